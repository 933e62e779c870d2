"""Versions of engines that are not supported: the engine gets a connector that says so in one line, and serves. On
stand-ins for their base classes, with an interface older and newer than the supported one.
"""
import abc
import enum
import importlib
import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest


class Role(enum.Enum):
    """vLLM's two halves."""

    SCHEDULER = 0
    WORKER = 1


class Metadata:
    """What goes to vLLM's workers."""


class OldConnector(abc.ABC):
    """With two arguments, as vLLM 0.11 has it."""

    def __init__(self, vllm_config, role):
        self.role = role

    @abc.abstractmethod
    def start_load_kv(self, forward_context, **kwargs):
        """On the worker."""

    @abc.abstractmethod
    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        """What is there."""

    @abc.abstractmethod
    def build_connector_meta(self, scheduler_output):
        """For the workers."""

    def request_finished(self, request, block_ids):
        """Whether its blocks stay."""
        raise AssertionError('of the base')


class NewConnector(OldConnector):
    """With three arguments, and a method that nobody knows today."""

    def __init__(self, vllm_config, role, kv_cache_config):
        assert kv_cache_config is not None
        super().__init__(vllm_config, role)

    @abc.abstractmethod
    def of_next_year(self, anything):
        """Not known today."""


class SupportsHMA(abc.ABC):
    """Several groups of blocks."""

    @abc.abstractmethod
    def request_finished_all_groups(self, request, block_ids):
        """Whether its blocks stay."""


class HiCacheStorage(abc.ABC):
    """SGLang's base, with a method that nobody knows today."""

    @abc.abstractmethod
    def get(self, key, target_location=None, target_sizes=None):
        """One page."""

    @abc.abstractmethod
    def of_next_year(self, anything):
        """Not known today."""

    def register_mem_pool_host(self, mem_pool_host):
        """The engine's pool."""
        self.mem_pool_host = mem_pool_host


def provide(monkeypatch, contents):
    """These modules and no others of their package, for one test; ours anew."""
    package = next(iter(contents)).split('.')[0]
    for name in list(sys.modules):
        if name.split('.')[0] == package or name.startswith(f'kvartal.{package}'):
            monkeypatch.delitem(sys.modules, name)
    for name, members in contents.items():
        parts = name.split('.')
        for i in range(1, len(parts) + 1):
            if '.'.join(parts[:i]) not in sys.modules:
                monkeypatch.setitem(sys.modules, '.'.join(parts[:i]), ModuleType('.'.join(parts[:i])))
        vars(sys.modules[name]).update(members)
    return importlib.import_module(f'kvartal.{package}')


def vllm_of(monkeypatch, version, connector, **more):
    """Our package beside a vLLM of that version."""
    base = {'KVConnectorBase_V1': connector, 'KVConnectorMetadata': Metadata, **more}
    return provide(monkeypatch, {'vllm.version': {'__version__': version},
                                 'vllm.distributed.kv_transfer.kv_connector.v1.base': base})


@pytest.mark.parametrize('version, connector, more, arguments', [
    ('0.11.0', OldConnector, {}, ()), ('0.40.1', NewConnector, {'SupportsHMA': SupportsHMA}, ('kv',)),
    # Supported by its number, and nearly all of it is missing.
    ('0.32.7', NewConnector, {'SupportsHMA': SupportsHMA}, ('kv',))])
def test_an_engine_of_vllm_runs_uncached(monkeypatch, caplog, version, connector, more, arguments):
    found = vllm_of(monkeypatch, version, connector, **more).KvartalConnector
    assert issubclass(found, connector) and all(issubclass(found, one) for one in more.values())
    worker, scheduler = found('config', Role.WORKER, *arguments), found('config', Role.SCHEDULER, *arguments)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith('Kvartal: this engine runs uncached: ') and '0.32' in line
    assert version in line or 'Error' in line
    assert scheduler.get_num_new_matched_tokens('request', 0) == (0, False)
    assert type(scheduler.build_connector_meta('output')) is Metadata
    assert scheduler.request_finished('request', [1]) == (False, None) and scheduler.reset_cache() is True
    assert not scheduler.requires_kv_delivery
    assert worker.start_load_kv('context', more=1) is None
    if more:
        assert scheduler.request_finished_all_groups('request', ([1],)) == (False, None)
        assert worker.of_next_year('anything') is None


def test_vllm_asks_for_the_class_more_than_once(monkeypatch):
    package = vllm_of(monkeypatch, '0.40.1', NewConnector)
    assert package.KvartalConnector is package.KvartalConnector
    with pytest.raises(AttributeError):
        package.Kvartal


@pytest.mark.parametrize('config', ['config', SimpleNamespace(enable_storage_metrics=True, tp_rank=0),
                                    SimpleNamespace(enable_storage_metrics=True)])
@pytest.mark.parametrize('version', ['0.5.17', '0.5.23'])
def test_an_engine_of_sglang_runs_uncached(monkeypatch, caplog, version, config):
    results = SimpleNamespace(empty=lambda: 'nothing')
    found = provide(monkeypatch, {'sglang': {'__version__': version}, 'sglang.srt.mem_cache.hicache_storage': {
        'HiCacheStorage': HiCacheStorage, 'PoolTransferResult': results}}).KvartalHiCache
    assert issubclass(found, HiCacheStorage)
    backend = found(config, {})
    backend.register_mem_pool_host('pool')
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith('Kvartal: this engine runs uncached: ') and '0.5.23' in line
    assert backend.batch_exists(['k', 'l']) == 0 and backend.exists('k') is False and backend.get('k') is None
    assert backend.batch_get_v1(['k', 'l'], [0]) == backend.batch_set_v1(['k', 'l'], [0], None) == [False, False]
    assert backend.batch_exists_v2(['k']) == 'nothing' and backend.of_next_year('anything') is None
    assert backend.batch_set_v2([SimpleNamespace(name='kv', keys=['k'])]) == {'kv': [False]}
    assert backend.counts == {'uncached': 1}
    backend.clear()
    backend.close()
