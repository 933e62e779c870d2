"""The HiCache backend on SGLang's own classes, on the CPU: what hicache_contract.py says, and a HiCacheController with
its backup and prefetch threads. Starts no server: SGLang has none for the CPU that has HiCache.
"""
import fcntl
import os
import re
import shlex
import threading
from array import array
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed
from daemon import PATIENT_MS, Daemon
from hicache_contract import *  # noqa: F403  the tests
from hicache_contract import until, warnings_of
from hicache_rig import PAGE, PAGES, Rig, keys, make_model
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolName
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.pool_host.group import HostPoolGroup, PoolEntry
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.storage import StorageBackendFactory
from sglang.srt.runtime_context import (
    get_context, get_disagg, get_exec, get_lora, get_memory, get_model, get_parallel, get_serving, get_spec)
from sglang.srt.server_args import prepare_server_args

from kvartal.sglang import KvartalHiCache, identity
from kvartal.sglang.options import Options
from kvartal.sglang.uncached import Uncached

LAYERS, HEADS, DIM = 4, 2, 32
DTYPES = {'torch.bfloat16': torch.bfloat16, 'torch.float16': torch.float16,
          'torch.float8_e4m3fn': torch.float8_e4m3fn}


class RealRig(Rig):
    """On a real host pool."""

    make_config = HiCacheStorageConfig

    def make_backend(self, config):
        config.extra_config.update(backend_name='kvartal', module_path='kvartal.sglang', class_name='KvartalHiCache')
        return StorageBackendFactory.create_backend('dynamic', config, self.pool)

    def indices(self, pages):
        return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])

    def _page(self, page):
        parts = 1 if isinstance(self.pool, MLATokenToKVPoolHost) else 2
        return self.pool.kv_buffer.view(torch.uint8).view(parts, PAGES, -1)[:, page]

    def write(self, page, value):
        for i, part in enumerate(self._page(page)):
            part.fill_(value + 100 * i)

    def holds(self, page, value):
        return all(bool((part == value + 100 * i).all()) for i, part in enumerate(self._page(page)))

    def everything(self):
        return self.pool.kv_buffer.view(torch.uint8).numpy().tobytes()


def device_pool(dtype=torch.bfloat16, mla=False):
    if mla:
        return MLATokenToKVPool(256, PAGE, dtype, DIM, DIM, LAYERS, 'cpu', False)
    return MHATokenToKVPool(256, PAGE, dtype, HEADS, DIM, LAYERS, 'cpu', False)


def host_pool(device, layout='page_first', allocator='default'):
    """As the assembler makes it; the last argument is what `"allocator": "shm"` turns into."""
    mla = isinstance(device, MLATokenToKVPool)
    more = {'target_layer_num': LAYERS} if mla else {}
    return (MLATokenToKVPoolHost if mla else MHATokenToKVPoolHost)(
        device.get_device_pool_infos()[0].buffer_info, 2, 0, PAGE, layout, pin_memory=False, allocator_type=allocator,
        device_capacity_tokens=device.size, start_layer=device.start_layer, end_layer=device.end_layer,
        host_token_capacity=PAGES * PAGE, **more)


@pytest.fixture
def daemon():
    with Daemon(tenants=('red', 'blue')) as running:
        yield running.start()


@pytest.fixture(scope='session')
def bags(tmp_path_factory):
    get_context().override_server_args(model_path=str(make_model(tmp_path_factory.mktemp('model'))),
                                        hicache_storage_backend='dynamic').install()
    return {'memory': get_memory(), 'model': get_model(), 'serving': get_serving(), 'lora': get_lora(),
            'spec': get_spec(), 'disagg': get_disagg(), 'exec': get_exec()}


@pytest.fixture(params=['disk', 'distributed', 'tensor', 'ipc', 'session'])
def updater(request, monkeypatch):
    """Changes the weights of every engine in this process, in each of SGLang's ways."""
    manager = object.__new__(SchedulerWeightUpdaterManager)
    monkeypatch.setattr(torch.distributed, 'barrier', lambda **_: None)
    manager.tp_worker = SimpleNamespace(weight_update_runners=lambda: [])
    manager.draft_worker = manager.metrics_collector = manager.tp_cpu_group = None
    manager.scheduler, manager._session = SimpleNamespace(record_weight_version_change=lambda **_: None), None
    asked = SimpleNamespace(selector='target', weight_version=None, flush_cache=False, load_format=None)
    if request.param == 'session':
        return lambda: manager.begin_weight_update(asked)
    if request.param in ('distributed', 'tensor'):  # run in a session
        manager._session = SimpleNamespace(selector='target')
        manager.tp_worker.deserialize_own_rank = lambda tensors: []
        receiver = SimpleNamespace(receive_weights_from_distributed=lambda **_: [])
        manager.tp_worker.model_runner = SimpleNamespace(weight_updater=receiver)
        asked.serialized_named_tensors = asked.names = asked.dtypes = asked.shapes = asked.group_name = None
        monkeypatch.setattr('msgspec.structs.replace', lambda struct, **_: struct)
    return lambda: getattr(manager, f'update_weights_from_{request.param}')(asked)


@pytest.fixture
def engine(daemon, bags):
    """Makes engines of the tenant behind a door."""
    made = []

    def make(door='red', layout='page_first', dtype='torch.bfloat16', mla=False, at=None, allocator='default',
             **changes):
        pool = host_pool(device_pool(DTYPES[dtype], mla), layout, allocator)
        made.append(RealRig(at or daemon.door(door), pool, mla=mla, **changes))
        return made[-1]

    yield make
    for one in made:
        one.close()


# --- the controller

@pytest.fixture(scope='session')
def parallel(tmp_path_factory):
    """One rank: what a server would have said."""
    torch.distributed.init_process_group('gloo', init_method=f'file://{tmp_path_factory.mktemp("group")}/it', rank=0,
                                         world_size=1)
    ones = {f'{name}_{what}': int(what == 'size') for name in ('tp', 'pp', 'attn_dcp', 'attn_tp', 'attn_cp', 'attn_dp')
            for what in ('rank', 'size')}
    with ExitStack() as stack:
        stack.enter_context(get_parallel().override(**ones))
        yield
    torch.distributed.destroy_process_group()


class Controller:
    """A real controller, and what the scheduler does with it."""

    def __init__(self, door, hybrid, options=None, layout='page_first'):
        device = device_pool()
        self.pool = host_pool(device, layout)
        host = HostPoolGroup([PoolEntry(PoolName.KV, self.pool, device, lambda layer: layer, True)]) if hybrid \
            else self.pool
        patient = {'socket': door, 'lookup_deadline_ms': PATIENT_MS, 'load_deadline_ms': PATIENT_MS,
                   'store_deadline_ms': PATIENT_MS, **(options or {})}
        self.it = (HybridCacheController if hybrid else HiCacheController)(
            PagedTokenToKVPoolAllocator(256, PAGE, torch.bfloat16, 'cpu', device, False), host, PAGE,
            torch.distributed.group.WORLD, threading.Event(), write_policy='write_through', io_backend='direct',
            storage_backend='dynamic', prefetch_threshold=PAGE, model_name='m', storage_backend_extra_config={
                'backend_name': 'kvartal', 'module_path': 'kvartal.sglang', 'class_name': 'KvartalHiCache',
                'interface_v1': 1, 'kvartal': patient})
        self.raw = self.pool.kv_buffer.view(torch.uint8).view(2, PAGES, -1)

    def back_up(self, tokens, salt=None, value=1):
        """Writes pages of a prompt into host memory and has them stored; how many tokens were."""
        indices = self.it.mem_pool_host.alloc(len(tokens))
        for i, index in enumerate(indices[::PAGE].tolist()):
            self.raw[:, index // PAGE] = value + i
        chain = chain_of(tokens, salt)
        self.it.write_storage(indices, tokens, chain, [])
        done = self.it.ack_backup_queue.get(timeout=PATIENT_MS / 1000)
        self.it.mem_pool_host.free(indices)
        return done.completed_tokens

    def prefetch(self, tokens, salt=None, value=1):
        """Has pages fetched, as the scheduler does; how many tokens came, each with the right bytes."""
        operation = self.it.prefetch(SimpleNamespace(rid='r'), RadixKey(array('q', tokens), cache_salt=salt))
        found = self.it.prefetch_hit_queue.get(timeout=PATIENT_MS / 1000)
        assert found is operation
        if found.storage_hit_count == 0:
            return 0
        operation.host_indices = self.it.mem_pool_host.alloc(found.storage_hit_count)
        for index in operation.host_indices[::PAGE].tolist():
            self.raw[:, index // PAGE] = 0
        self.it.prefetch_buffer.put(operation)
        tokens_there = 0
        while True:
            ack = self.it.ack_prefetch_queue.get(timeout=PATIENT_MS / 1000)
            tokens_there = ack.completed_tokens or tokens_there
            if ack.completed_req:
                break
        for i, index in enumerate(operation.host_indices[::PAGE].tolist()[:tokens_there // PAGE]):
            assert bool((self.raw[:, index // PAGE] == value + i).all())
        self.it.mem_pool_host.free(operation.host_indices)
        return tokens_there

    def close(self):
        self.it.detach_storage_backend()


def chain_of(tokens, salt=None):
    return identity.get_storage_hash_str(RadixKey(array('q', tokens), cache_salt=salt), None, page_size=PAGE)


@pytest.fixture
def controller(daemon, bags, parallel):
    made = []

    def make(hybrid=True, door='red', at=None, **more):
        made.append(Controller(at or daemon.door(door), hybrid, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


TOKENS = list(range(1000, 1000 + 20 * PAGE))


@pytest.mark.parametrize('hybrid', [True, False])
def test_a_controller_fetches_what_another_backed_up(controller, hybrid):
    one, other = controller(hybrid), controller(hybrid)
    assert type(one.it.storage_backend) is KvartalHiCache
    assert one.it.page_set_func.__name__ == '_page_set_zero_copy'
    assert one.back_up(TOKENS) == len(TOKENS)
    assert other.prefetch(TOKENS + list(range(2 * PAGE))) == len(TOKENS)
    assert other.prefetch(TOKENS[:5 * PAGE]) == 5 * PAGE
    assert other.prefetch(TOKENS, salt='a') == 0 and controller(hybrid, door='blue').prefetch(TOKENS) == 0
    assert one.back_up(TOKENS, salt='a', value=70) == len(TOKENS)
    assert other.prefetch(TOKENS, salt='a', value=70) == len(TOKENS)
    assert other.it.storage_backend.counts['lookups'] == 4, 'one question a prompt'


def test_an_attach_again_finds_what_was_there(controller):
    one = controller()
    assert one.back_up(TOKENS) == len(TOKENS)
    extra = dict(one.it.storage_config.extra_config)
    one.it.detach_storage_backend()
    one.it.attach_storage_backend('dynamic', PAGE, 'm', extra, host_pools=one.it.mem_pool_host.entries)
    assert one.prefetch(TOKENS) == len(TOKENS)
    one.it.reset()
    assert one.prefetch(TOKENS) == len(TOKENS), 'a flush of the tree leaves the storage as it is'
    assert one.it.clear_storage_backend() and one.prefetch(TOKENS) == 0


def test_a_declined_engine_works_without_storage(controller, caplog):
    one = controller(layout='layer_first')
    assert one.back_up(TOKENS) == 0 and one.prefetch(TOKENS) == 0
    (line,) = [line for line in warnings_of(caplog) if line.startswith('Kvartal')]
    assert '--hicache-mem-layout page_first' in line


@pytest.mark.parametrize('when', ['before', 'between', 'after'])
def test_a_controller_outlives_its_daemon(bags, parallel, when):
    with Daemon() as daemon:
        if when != 'before':
            daemon.start()
        one = Controller(daemon.door(), hybrid=True)
        try:
            if when == 'before':
                assert one.back_up(TOKENS) == 0 and one.prefetch(TOKENS) == 0
                daemon.start()
            if when == 'between':
                assert one.back_up(TOKENS) == len(TOKENS)
                lookup = one.it.storage_backend.batch_exists
                one.it.storage_backend.batch_exists = lambda *args: (lookup(*args), daemon.kill())[0]
                assert one.prefetch(TOKENS) == 0
                one.it.storage_backend.batch_exists = lookup
                daemon.start()
            if when == 'after':
                assert one.back_up(TOKENS) == len(TOKENS)
                daemon.kill()
                assert one.prefetch(TOKENS) == 0 and one.back_up(TOKENS) == 0
                daemon.start()
            until(lambda: one.back_up(TOKENS) == len(TOKENS))
            until(lambda: one.prefetch(TOKENS) == len(TOKENS))
        finally:
            one.close()


def test_what_it_counts_is_at_prometheus(engine):
    from prometheus_client import REGISTRY
    rig = engine(enable_storage_metrics=True, tp_rank=3)
    rig.store(keys(4))
    again = engine(enable_storage_metrics=True, tp_rank=3, layout='layer_first')
    assert again.backend.counts == {'uncached': 1}
    labels = {'tp_rank': '3', 'dp_rank': '0'}
    assert REGISTRY.get_sample_value('sglang:kvartal_stored_pages_total', labels) == 4
    assert REGISTRY.get_sample_value('sglang:kvartal_uncached_total', labels) == 1


def test_the_shared_pool_of_sglang_can_be_truncated(engine):
    """Why the daemon never touches it: its seals say that nobody may seal it (docs/decisions/0022)."""
    rig = engine(allocator='shm')
    assert rig.store(keys(2)) == [True, True] and rig.load(keys(2), [20, 21]) == [True, True] and rig.holds(21, 2)
    seals = fcntl.fcntl(rig.pool.fd, fcntl.F_GET_SEALS)
    assert not seals & fcntl.F_SEAL_SHRINK
    with pytest.raises(PermissionError):
        fcntl.fcntl(rig.pool.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    assert os.fstat(rig.pool.fd).st_size >= rig.pool.kv_buffer.nbytes


def test_the_flags_that_the_page_says_are_sglangs(tmp_path):
    page = (Path(__file__).parents[2] / 'docs/SGLANG.md').read_text()
    command = re.search(r'sglang\.launch_server (.*?)\n```', page, re.DOTALL)[1].replace('\\\n', ' ')
    arguments = shlex.split(command.replace('MODEL', str(make_model(tmp_path))))
    given = prepare_server_args([*arguments, '--device', 'cpu'])
    assert (given.hicache_storage_backend, given.hicache_mem_layout) == ('dynamic', 'page_first')
    extra, *_, passes_prefix = HybridCacheController.parse_storage_backend_extra_config(
        given.hicache_storage_backend_extra_config)
    assert passes_prefix and extra['class_name'] == KvartalHiCache.__name__ and extra['interface_v1'] == 1
    assert Options.parse(extra).socket == '/run/kvartal/red.sock'


def test_every_method_of_the_storage_is_ours():
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
    ours = {name for name in (*vars(KvartalHiCache), *vars(Uncached)) if not name.startswith('_')}
    theirs = {name for name in vars(HiCacheStorage) if not name.startswith('_')}
    assert ours - theirs == {'close', 'counts', 'weights_change'}
    assert theirs - ours == {'on_host_pools_registered', 'get_stats'}
