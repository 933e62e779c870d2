"""The worker's half of the vLLM connector: a real daemon, engine pages made of numpy memory."""
import functools
import threading
import time

import numpy as np
import pytest
from conftest import PATIENT_MS, chain

import kvartal
from kvartal.vllm.options import Options
from kvartal.vllm.pages import Geometry, HostPages
from kvartal.vllm.plan import LoadJob, StepPlan, StoreJob
from kvartal.vllm.worker import FLUSH_S, WorkerSide

LAYERS, BLOCKS, PAGE = 3, 50, 16 << 10
OPTIONS = Options(load_deadline_ms=PATIENT_MS, store_deadline_ms=PATIENT_MS)
NAMESPACE = kvartal.Namespace(b'w' * 32, 16, LAYERS * PAGE)


class Engine:
    """Pages in memory with gaps between them, a scheduler's client, and the worker under test."""

    def __init__(self, daemon, options=OPTIONS):
        self.memory = np.zeros((LAYERS, BLOCKS, 2 * PAGE), np.uint8)
        geometry = Geometry(self.memory.ctypes.data, LAYERS, BLOCKS, PAGE, BLOCKS * 2 * PAGE, 2 * PAGE)
        self.client = kvartal.Client(daemon.door(), 'scheduler', deadline_ms=PATIENT_MS)
        self.worker = WorkerSide(lambda group: kvartal.Client(daemon.door(), 'worker', group, PATIENT_MS), options,
                                 HostPages(geometry, self.memory))
        self.jobs = 0

    def fill(self, block, tag):
        """Writes an engine block, each layer differently."""
        for layer in range(LAYERS):
            self.memory[layer, block, :PAGE] = tag + layer

    def holds(self, block, tag):
        return all((self.memory[layer, block, :PAGE] == tag + layer).all() for layer in range(LAYERS))

    def store(self, keys, blocks, depth=0):
        self.jobs += 1
        plan = StepPlan(self.client.group, stores=[StoreJob(self.jobs, NAMESPACE, keys, None, depth, 0, blocks)])
        self.worker.submit(plan)
        self.worker.submit_stores(plan)
        return self.jobs

    def load(self, lease, first, blocks, request='r'):
        self.jobs += 1
        self.worker.submit(StepPlan(self.client.group,
                                    loads=[LoadJob(self.jobs, request, NAMESPACE, lease, first, blocks)]))
        return self.jobs

    def wait(self, job):
        """Results, step by step, until that job was told; all of them together."""
        sent, received, bad, failed = set(), [], set(), set()
        until = time.monotonic() + PATIENT_MS / 1000
        while time.monotonic() < until:
            results = self.worker.results(idle=True)
            sent |= results.sent
            received += results.received
            bad |= results.failed_blocks
            failed |= results.report.failed
            if job in results.report.done:
                return sent, received, bad, failed
        raise AssertionError('a job was not told')


@pytest.fixture
def engine(daemon):
    engine = Engine(daemon)
    yield engine
    engine.worker.close()
    engine.client.close()


def test_pages_come_back_byte_by_byte_into_other_blocks(engine):
    blocks = list(range(1, 41))
    for block in blocks:
        engine.fill(block, 5 * block)
    assert engine.wait(engine.store(chain(40), blocks)) == (set(), [], set(), set())
    lease = engine.client.lookup(NAMESPACE, chain(40), deadline_ms=PATIENT_MS)
    assert lease.matched == 40
    before = engine.memory.copy()
    _, received, bad, failed = engine.wait(engine.load(lease.id, 10, [7, 3, 42]))
    assert (received, bad, failed) == (['r'], set(), set())
    assert [engine.holds(block, 5 * (11 + i)) for i, block in enumerate([7, 3, 42])] == [True] * 3
    before[:, [7, 3, 42], :PAGE] = engine.memory[:, [7, 3, 42], :PAGE]
    assert (engine.memory == before).all(), 'a load wrote beside its pages'
    lease.release()


def test_what_is_there_is_not_stored_twice(engine):
    engine.fill(1, 1)
    engine.wait(engine.store(chain(1), [1]))
    engine.fill(1, 99)
    assert engine.wait(engine.store(chain(1), [1]))[3] == set()
    lease = engine.client.lookup(NAMESPACE, chain(1), deadline_ms=PATIENT_MS)
    assert int(lease.block(0)[0]) == 1
    lease.release()


def test_a_lease_that_ended_is_a_failed_load_told_once(engine):
    job = engine.load(12345, 0, [4, 5])
    sent, received, bad, failed = engine.wait(job)
    assert (sent, received, bad, failed) == (set(), ['r'], {4, 5}, {job})
    assert engine.worker.results(idle=True).received == set()


def test_a_daemon_that_dies_fails_loads_and_stores_and_comes_back(engine, daemon):
    engine.fill(1, 1)
    engine.wait(engine.store(chain(1), [1]))
    lease = engine.client.lookup(NAMESPACE, chain(1), deadline_ms=PATIENT_MS)
    daemon.kill()
    assert engine.wait(engine.load(lease.id, 0, [2]))[1:3] == (['r'], {2})
    job = engine.store(chain(2), [1, 2])
    assert engine.wait(job)[3] == {job}
    lease.release()
    daemon.start()
    until = time.monotonic() + PATIENT_MS / 1000
    while not engine.client.renew(PATIENT_MS):
        assert time.monotonic() < until
    while (job := engine.store(chain(2), [1, 2])) in engine.wait(job)[3]:
        assert time.monotonic() < until, 'the worker does not find the daemon again'
    lease = engine.client.lookup(NAMESPACE, chain(2), deadline_ms=PATIENT_MS)
    assert lease.matched == 2
    lease.release()


def test_after_a_flush_no_page_is_read(engine, daemon):
    engine.fill(1, 1)
    engine.wait(engine.store(chain(1, salt=9), [1]))  # attached
    daemon.freeze()
    job = engine.store(chain(1), [1])
    begun = time.monotonic()
    engine.worker.flush([job])
    assert FLUSH_S <= time.monotonic() - begun < PATIENT_MS / 2000
    engine.fill(1, 77)  # another request's KV now
    daemon.thaw()
    assert engine.wait(job)[3] == {job}
    assert engine.client.lookup(NAMESPACE, chain(1), deadline_ms=PATIENT_MS).matched == 0


def test_a_flush_waits_for_the_page_that_is_being_read(engine, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    def read(pages, block, into):
        begun.set()
        assert go_on.wait(PATIENT_MS / 1000)

    monkeypatch.setattr(HostPages, 'read', read)
    job = engine.store(chain(2), [1, 2])
    assert begun.wait(PATIENT_MS / 1000)
    flush = threading.Thread(target=engine.worker.flush, args=([job],))
    flush.start()
    flush.join(3 * FLUSH_S)
    assert flush.is_alive(), 'a page was given away while it was read'
    go_on.set()
    flush.join(PATIENT_MS / 1000)
    assert not flush.is_alive() and engine.wait(job)[3] == {job}


def test_bytes_that_changed_under_the_reader_are_a_failed_load(engine, monkeypatch):
    engine.fill(1, 1)
    engine.fill(2, 5)
    engine.wait(engine.store(chain(2), [1, 2]))
    monkeypatch.setattr(kvartal.Lease, 'valid', lambda lease, i: i != 1)
    with engine.client.lookup(NAMESPACE, chain(2), deadline_ms=PATIENT_MS) as lease:
        job = engine.load(lease.id, 0, [3, 4])
        assert engine.wait(job)[1:] == (['r'], {4}, {job})


def test_a_scheduler_that_is_a_new_engine_group_takes_its_worker_along(engine, daemon):
    engine.fill(1, 1)
    engine.wait(engine.store(chain(1), [1]))
    engine.client.close()
    engine.client = kvartal.Client(daemon.door(), 'scheduler', deadline_ms=PATIENT_MS)
    with engine.client.lookup(NAMESPACE, chain(1), deadline_ms=PATIENT_MS) as lease:
        assert engine.wait(engine.load(lease.id, 0, [3]))[1:3] == (['r'], set())
    assert engine.holds(3, 1)


def test_a_load_that_is_not_wanted_any_more_fails_also_when_it_has_landed(engine, daemon):
    engine.fill(1, 1)
    engine.wait(engine.store(chain(1), [1]))
    with engine.client.lookup(NAMESPACE, chain(1), deadline_ms=PATIENT_MS) as lease:
        told = engine.load(lease.id, 0, [2])
        assert engine.wait(told)[2] == set()
        landed = engine.load(lease.id, 0, [3])
        until = time.monotonic() + PATIENT_MS / 1000
        while landed in engine.worker._live:
            assert time.monotonic() < until
            time.sleep(0.001)
        daemon.freeze()
        late = engine.load(lease.id, 0, [4], 'late')
        engine.worker.submit(StepPlan(fail=[told, landed, late]))
        assert engine.wait(landed)[2:] == ({3}, {landed})
        daemon.thaw()
        assert engine.wait(late)[2:] == ({4}, {late})
        assert engine.wait(engine.load(lease.id, 0, [5]))[2] == set() and engine.holds(5, 1)


def test_a_copy_comes_after_what_the_engine_has_queued(engine, monkeypatch):
    happened = []
    for name in ('fence', 'read', 'write'):
        monkeypatch.setattr(HostPages, name, functools.partialmethod(
            lambda pages, *args, _name, _real: (happened.append(_name), _real(pages, *args))[1], _name=name,
            _real=getattr(HostPages, name)))
    engine.fill(1, 1)
    engine.wait(engine.store(chain(1), [1]))
    with engine.client.lookup(NAMESPACE, chain(1), deadline_ms=PATIENT_MS) as lease:
        engine.wait(engine.load(lease.id, 0, [2]))
    assert happened == ['fence', 'read', 'fence', 'write']


def test_a_fence_that_fails_ends_its_jobs_as_failed(engine, monkeypatch):
    engine.fill(1, 1)
    engine.wait(engine.store(chain(1), [1]))

    def broken(_pages):
        raise RuntimeError('no stream')

    with engine.client.lookup(NAMESPACE, chain(1), deadline_ms=PATIENT_MS) as lease:
        with monkeypatch.context() as patched:
            patched.setattr(HostPages, 'fence', broken)
            load = engine.load(lease.id, 0, [2])
            assert engine.wait(load)[2:] == ({2}, {load})
            store = engine.store(chain(2), [1, 3])
            assert engine.wait(store)[3] == {store}
        assert engine.wait(engine.load(lease.id, 0, [2]))[2] == set() and engine.holds(2, 1)


def test_after_a_change_of_the_weights_no_load_is_good_and_nothing_is_stored(engine, daemon):
    engine.fill(1, 1)
    engine.wait(engine.store(chain(1), [1]))
    with engine.client.lookup(NAMESPACE, chain(1), deadline_ms=PATIENT_MS) as lease:
        assert engine.wait(engine.load(lease.id, 0, [2]))[1:] == (['r'], set(), set())
        landed = engine.load(lease.id, 0, [3])
        until = time.monotonic() + PATIENT_MS / 1000
        while landed in engine.worker._live:  # it ended, and nobody was told
            assert time.monotonic() < until
            time.sleep(0.001)
        daemon.freeze()
        late = engine.load(lease.id, 0, [4], 'late')
        engine.worker.weights_change()
        daemon.thaw()
        assert not engine.worker.take_counts()['failed_blocks']
        results = engine.worker.results(idle=True)
        assert results.report.weights_changed and 3 in results.failed_blocks and landed in results.report.failed
        if late not in results.report.done:
            assert engine.wait(late)[2:] == ({4}, {late})
        else:
            assert 4 in results.failed_blocks
        assert engine.worker.take_counts()['failed_blocks'] == 2
    job = engine.store(chain(1, salt=1), [1])
    assert engine.wait(job)[3] == {job}
    assert engine.client.lookup(NAMESPACE, chain(1, salt=1), deadline_ms=PATIENT_MS).matched == 0
    assert engine.worker.results(idle=True).report.weights_changed, 'also should one report be lost'


class HangingClient:
    """Of a daemon that does not answer: every call takes `takes_ms`, or all the time that it is given."""

    error = 'no answer'

    def __init__(self, takes_ms):
        self.clock, self.takes_ms, self.calls = 0.0, takes_ms, []

    def _take(self, deadline_ms):
        self.calls.append(deadline_ms)
        self.clock += min(self.takes_ms, deadline_ms) / 1000

    def borrow(self, namespace, lease, blocks, deadline_ms):
        self._take(deadline_ms)
        return self

    def load(self, deadline_ms):
        self._take(deadline_ms)
        return 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def close(self):
        pass


@pytest.mark.parametrize('takes_ms, given_ms', [(2000, [2000]), (500, [2000, 1500, 1000, 500])])
def test_a_load_that_waited_for_others_has_what_is_left_of_its_deadline(takes_ms, given_ms):
    client = HangingClient(takes_ms)
    memory = np.zeros((1, BLOCKS, PAGE), np.uint8)
    worker = WorkerSide(lambda group: client, Options(load_deadline_ms=2000),
                        HostPages(Geometry(memory.ctypes.data, 1, BLOCKS, PAGE, memory.nbytes, PAGE), memory),
                        now=lambda: client.clock)
    worker.submit(StepPlan(loads=[LoadJob(i, f'r{i}', NAMESPACE, i, 0, [i]) for i in (1, 2, 3)]))
    received, failed = set(), set()
    until = time.monotonic() + PATIENT_MS / 1000
    while len(received) < 3:
        assert time.monotonic() < until
        results = worker.results(idle=True)
        received |= results.received
        failed |= results.failed_blocks
    assert failed == {1, 2, 3}
    assert client.calls == given_ms, 'the third load asks for nothing: its request has waited long enough'
    worker.close()


def test_what_is_left_of_a_store_goes_on_where_it_stopped():
    job = StoreJob(1, NAMESPACE, chain(5), None, 10, 7, [21, 22, 23, 24, 25]).without_head(2)
    assert job == StoreJob(1, NAMESPACE, chain(5)[2:], chain(5)[1], 12, 7, [23, 24, 25])


def test_a_flush_of_stores_that_go_on_waits_for_them(engine):
    for block in range(1, 41):
        engine.fill(block, block)
    engine.worker.flush([engine.store(chain(40), list(range(1, 41)))])
    engine.memory[:] = 0
    with engine.client.lookup(NAMESPACE, chain(40), deadline_ms=PATIENT_MS) as lease:
        for i in range(lease.matched):  # fewer than all when the machine was slow: never wrong
            assert int(lease.block(i)[0]) == 1 + i


def test_a_finished_request_is_told_when_its_stores_are_done(engine, daemon):
    engine.fill(1, 1)
    engine.wait(engine.store(chain(1, salt=9), [1]))
    daemon.freeze()
    job = engine.store(chain(1), [1])
    engine.worker.submit(StepPlan(awaited={'r': [job], 'q': [1]}))
    assert engine.worker.results(idle=True).sent == {'q'}, 'its only store had ended before'
    assert engine.worker.results(idle=True).sent == set()
    daemon.thaw()
    sent = engine.wait(job)[0]
    assert sent | engine.worker.results(idle=True).sent == {'r'}


def test_a_block_that_is_not_the_engines_is_a_failed_transfer(engine):
    job = engine.store(chain(1), [BLOCKS])
    assert engine.wait(job)[3] == {job}
    engine.fill(1, 1)
    engine.wait(engine.store(chain(1), [1]))
    with engine.client.lookup(NAMESPACE, chain(1), deadline_ms=PATIENT_MS) as lease:
        for block in (0, BLOCKS, -1):
            assert engine.wait(engine.load(lease.id, 0, [block]))[1:3] == (['r'], {block})
