"""The shell that vLLM sees, without an engine: it declines with one line, and never raises."""
import logging
import re
import time
from argparse import Namespace
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fastapi import FastAPI
from test_identity import FULL, config, groups
from vllm import envs
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1, KVConnectorHandshakeMetadata, KVConnectorRole, supports_hma)
from vllm.entrypoints.launchers.api_server import routers
from vllm.v1.core import kv_cache_utils
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvartal.vllm import KvartalConnector
from kvartal.vllm.connector import Handshake, Metadata, WorkerMetadata
from kvartal.vllm.metrics import Stats
from kvartal.vllm.plan import StepReport
from kvartal.vllm.scheduler import SchedulerSide

BLOCKS = 5


@pytest.fixture(autouse=True)
def seed(monkeypatch):
    monkeypatch.setattr(kv_cache_utils, 'NONE_HASH', b's' * 32, raising=False)


@pytest.fixture
def lines(caplog):
    """What was logged for people, and only that."""
    caplog.set_level(logging.INFO, logger='vllm.kvartal')
    logging.getLogger('vllm').propagate = True  # vLLM keeps its lines to itself
    yield lambda: [record.getMessage() for record in caplog.records if record.name == 'vllm.kvartal']
    logging.getLogger('vllm').propagate = False


def make(role, tmp_path, extra=None, **changes):
    made = config(**changes)
    made.kv_transfer_config.kv_connector_extra_config = {'socket': str(tmp_path / 'nobody.sock'), **(extra or {})}
    kv = groups(FULL)
    kv.num_blocks, kv.kv_cache_layout = BLOCKS, 'LBHNC'
    kv.kv_cache_groups[0].layer_names = ['layer 0', 'layer 1']
    made.compilation_config = SimpleNamespace(static_forward_context={
        name: SimpleNamespace(isa='vec', impl=object()) for name in kv.kv_cache_groups[0].layer_names})
    return KvartalConnector(made, role, kv)


def request():
    return SimpleNamespace(request_id='r', num_tokens=1000, block_hashes=[bytes([i]) * 32 for i in range(31)],
                           num_preemptions=0, skip_reading_prefix_cache=False, lora_request=None, mm_features=[],
                           prompt_embeds=None, pooling_params=None)


def step():
    """A step in which request r computes 100 tokens."""
    return SimpleNamespace(preempted_req_ids=None, num_scheduled_tokens={'r': 100},
                           scheduled_new_reqs=[SimpleNamespace(req_id='r', num_computed_tokens=0)],
                           scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[]),
                           kv_connector_block_state=SimpleNamespace(resolve_block_ids=lambda name: [[1, 2, 3, 4]]))


def serve(scheduler):
    """The calls of a request's life; what the scheduler would have heard."""
    scheduler.on_new_request(request())
    found = scheduler.get_num_new_matched_tokens(request(), 0)
    scheduler.update_state_after_alloc(request(), SimpleNamespace(get_block_ids=lambda: [[1, 2, 3, 4]]), 0)
    metadata = scheduler.build_connector_meta(step())
    return found, metadata, scheduler.request_finished_all_groups(request(), ([1, 2, 3, 4],))


@pytest.mark.parametrize('given, word', [
    ({'kv_transfer__kv_load_failure_policy': 'fail'}, 'recompute'), ({'parallel__world_size': 2}, 'ranks'),
    ({'extra': {'sokcet': 'x'}}, 'sokcet')])
def test_a_declined_engine_says_so_once_and_serves(lines, tmp_path, given, word):
    worker = make(KVConnectorRole.WORKER, tmp_path, **given)
    worker.register_kv_caches({})
    scheduler = make(KVConnectorRole.SCHEDULER, tmp_path, **given)
    scheduler.set_xfer_handshake_metadata({0: worker.get_handshake_metadata()})
    (line,) = lines()
    assert 'runs uncached' in line and word in line
    found, metadata, finished = serve(scheduler)
    assert (found, finished) == ((0, False), (False, None))
    worker.bind_connector_metadata(metadata)
    worker.start_load_kv(SimpleNamespace(attn_metadata=None))
    worker.wait_for_save()
    assert worker.get_finished(set()) == (None, None) and worker.build_connector_worker_meta() is None
    assert scheduler.get_kv_connector_stats().data == {'uncached': 1} and scheduler.get_kv_connector_stats() is None


def test_what_only_the_worker_knows_declines_the_engine(lines, tmp_path):
    worker = make(KVConnectorRole.WORKER, tmp_path)
    worker.register_kv_caches({'layer 0': torch.zeros(BLOCKS + 1, 8), 'layer 1': torch.zeros(BLOCKS + 1, 8)})
    scheduler = make(KVConnectorRole.SCHEDULER, tmp_path)
    scheduler.set_xfer_handshake_metadata({0: worker.get_handshake_metadata()})
    (line,) = lines()
    assert 'not one buffer' in line and serve(scheduler)[0] == (0, False)


def test_a_worker_that_serves_says_how_its_pages_look(tmp_path):
    memory = torch.zeros(2, BLOCKS, 64, dtype=torch.bfloat16)
    worker = make(KVConnectorRole.WORKER, tmp_path)
    worker.register_kv_caches({'layer 0': memory[0], 'layer 1': memory[1]})
    handshake = worker.get_handshake_metadata()
    assert isinstance(handshake, Handshake) and not handshake.declined
    assert handshake.facts['page_bytes'] == 128 and handshake.facts['isa'] == 'vec'
    worker.shutdown()


def test_pages_are_in_the_order_that_the_digest_names(tmp_path):
    memory = torch.zeros(2, BLOCKS, 64, dtype=torch.bfloat16)
    memory[1] = 1
    worker = make(KVConnectorRole.WORKER, tmp_path)
    worker.register_kv_caches({'layer 1': memory[1], 'layer 0': memory[0]})
    assert worker.get_handshake_metadata().facts['layers'] == ['layer 0', 'layer 1']
    block = torch.empty(256, dtype=torch.uint8)
    worker._worker._pages.read(1, block.numpy())
    assert block.view(torch.bfloat16).tolist() == [0] * 64 + [1] * 64
    worker.shutdown()


@pytest.mark.parametrize('names', [['layer 0'], ['layer 0', 'another'], ['layer 0', 'layer 1', 'another']])
def test_pages_of_other_layers_than_the_digest_names_decline_the_engine(tmp_path, names):
    memory = torch.zeros(len(names), BLOCKS, 64, dtype=torch.bfloat16)
    worker = make(KVConnectorRole.WORKER, tmp_path)
    worker.register_kv_caches(dict(zip(names, memory)))
    assert 'its group of blocks' in worker.get_handshake_metadata().declined and worker._worker is None


def test_a_worker_that_did_not_start_does_not_serve(tmp_path, monkeypatch):
    memory = torch.zeros(2, BLOCKS, 64, dtype=torch.bfloat16)
    worker = make(KVConnectorRole.WORKER, tmp_path)
    monkeypatch.setattr('kvartal.vllm.connector.WorkerSide', lambda *args: 1 / 0)
    worker.register_kv_caches({'layer 0': memory[0], 'layer 1': memory[1]})
    assert worker.get_handshake_metadata().declined


def test_workers_of_another_connector_decline_the_engine(lines, tmp_path):
    class Another(KVConnectorHandshakeMetadata):
        """What a MultiConnector's first connector tells."""
    scheduler = make(KVConnectorRole.SCHEDULER, tmp_path)
    scheduler.set_xfer_handshake_metadata({0: Another()})
    (line,) = lines()
    assert 'MultiConnector' in line and serve(scheduler)[0] == (0, False)


def test_weights_that_cannot_be_named_decline_the_engine(lines, tmp_path):
    scheduler = make(KVConnectorRole.SCHEDULER, tmp_path, model__model=str(tmp_path))
    scheduler.set_xfer_handshake_metadata({0: Handshake({'rank': 0, 'layers': ['a'], 'page_bytes': 64})})
    (line,) = lines()
    assert 'no weights' in line and serve(scheduler)[0] == (0, False)


@pytest.mark.parametrize('method', ['begin', 'match', 'allocated', 'computed', 'finish', 'preempted', 'take_plan'])
def test_an_exception_never_reaches_the_engine(lines, tmp_path, monkeypatch, method):
    scheduler = make(KVConnectorRole.SCHEDULER, tmp_path, extra={'weights_digest': 'w'})
    scheduler.set_xfer_handshake_metadata({0: Handshake({'rank': 0, 'layers': ['a'], 'page_bytes': 64})})
    monkeypatch.setattr(SchedulerSide, method, lambda *args: 1 / 0)
    found, metadata, finished = serve(scheduler)
    assert found == (0, False) and isinstance(metadata, Metadata) and finished == (False, None)
    assert sum('runs uncached from here on' in line for line in lines()) == 1
    assert scheduler.get_kv_connector_stats().data['uncached'] == 1


def test_a_promise_that_breaks_is_a_failed_load_of_those_blocks_only(tmp_path, monkeypatch):
    scheduler = make(KVConnectorRole.SCHEDULER, tmp_path, extra={'weights_digest': 'w', 'min_load_tokens': 64})
    scheduler.set_xfer_handshake_metadata({0: Handshake({'rank': 0, 'layers': ['a', 'b'], 'page_bytes': 128})})
    lease = SimpleNamespace(matched=31, request=1, id=7, release=lambda: None)
    monkeypatch.setattr('kvartal.Client.lookup', lambda *args: lease)
    scheduler.on_new_request(request())
    tokens, beside = scheduler.get_num_new_matched_tokens(request(), 32)
    assert beside and tokens == 2 * 32
    monkeypatch.setattr(SchedulerSide, 'allocated', lambda *args: 1 / 0)
    scheduler.update_state_after_alloc(request(), SimpleNamespace(get_block_ids=lambda: [[1, 2, 3, 4]]), tokens)
    metadata = scheduler.build_connector_meta(step())
    memory = torch.zeros(2, BLOCKS, 64, dtype=torch.bfloat16)
    worker = make(KVConnectorRole.WORKER, tmp_path)
    worker.register_kv_caches({'layer 0': memory[0], 'layer 1': memory[1]})
    worker.bind_connector_metadata(metadata)
    worker.start_load_kv(SimpleNamespace(attn_metadata=None))
    received, until = None, time.monotonic() + 30
    while received is None and time.monotonic() < until:
        _, received = worker.get_finished(set())
    assert received == {'r'} and worker.get_block_ids_with_load_errors() == {2, 3}
    scheduler.update_connector_output(SimpleNamespace(
        kv_connector_worker_meta=worker.build_connector_worker_meta()))
    worker.shutdown()


@pytest.mark.parametrize('method', ['preempted', 'computed'])
def test_what_breaks_beside_a_promise_does_not_lose_it(tmp_path, monkeypatch, method):
    scheduler = make(KVConnectorRole.SCHEDULER, tmp_path, extra={'weights_digest': 'w', 'min_load_tokens': 64})
    scheduler.set_xfer_handshake_metadata({0: Handshake({'rank': 0, 'layers': ['a', 'b'], 'page_bytes': 128})})
    lease = SimpleNamespace(matched=31, request=1, id=7, release=lambda: None)
    monkeypatch.setattr('kvartal.Client.lookup', lambda *args: lease)
    scheduler.on_new_request(request())
    tokens, _ = scheduler.get_num_new_matched_tokens(request(), 32)
    scheduler.update_state_after_alloc(request(), SimpleNamespace(get_block_ids=lambda: [[1, 2, 3, 4]]), tokens)
    monkeypatch.setattr(SchedulerSide, method, lambda *args: 1 / 0)
    assert [job.request_id for job in scheduler.build_connector_meta(step()).plan.loads] == ['r']


@pytest.mark.parametrize('role', KVConnectorRole)
def test_an_end_that_fails_does_not_reach_the_engine(tmp_path, role):
    connector = make(role, tmp_path)
    broken = SimpleNamespace(close=lambda: 1 / 0)
    connector._worker, connector._scheduler = broken, broken
    connector.shutdown()


def test_reports_and_counts_of_ranks_add_up():
    one, other = WorkerMetadata(StepReport(Counter([1, 2]), {2})), WorkerMetadata(StepReport(Counter([2]), set()))
    assert one.aggregate(other).report == StepReport(Counter({1: 1, 2: 2}), {2})
    assert Stats({'lookups': 1, 'x': 2}).aggregate(Stats({'lookups': 2})).data == {'lookups': 3, 'x': 2}


def test_every_method_that_is_overridden_is_one_of_vllms():
    ours = {name for name in vars(KvartalConnector) if not name.startswith('_')}
    assert ours - set(dir(KVConnectorBase_V1)) == {'request_finished_all_groups', 'weights_change'}


def test_what_vllm_reads_of_the_class(tmp_path):
    made = make(KVConnectorRole.SCHEDULER, tmp_path)
    assert supports_hma(KvartalConnector) and made.requires_kv_delivery is False
    assert made.get_external_cache_hit_sources(request(), 64) == {CacheHitSource.HOST: 64}


@pytest.mark.parametrize('dev', [True, False])
def test_the_reset_that_the_page_names_is_vllms(monkeypatch, dev):
    page = (Path(__file__).parents[2] / 'docs/VLLM.md').read_text()
    route, parameter, environment = re.search(r'`POST (/\w+)\?(\w+)=true`.*?`(\w+)=1`', page, re.DOTALL).groups()
    monkeypatch.setattr(envs, environment, dev, raising=True)
    app = FastAPI()
    app.state.args = Namespace()
    routers.register_api_routers(Namespace(), app, ())
    found = app.openapi()['paths'].get(route)
    assert (found is not None) == dev, 'the page says when it is there'
    if dev:
        assert parameter in {given['name'] for given in found['post']['parameters']}
