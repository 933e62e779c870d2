"""Both halves of the vLLM connector behind the shell that vLLM sees, under a scheduler that does what vLLM's may do, at
random, while the daemon comes and goes. The seed is printed, and taken from KVARTAL_STORM_SEED; it decides what happens
at which step, the copying thread and the daemon add their own.
"""
import functools
import os
import random
import time
from types import SimpleNamespace

import fake_vllm
import pytest
from daemon import PATIENT_MS, Daemon

fake_vllm.install()

import vllm_steps  # noqa: E402
from vllm_steps import BLOCK, LAYERS, Request, page_of  # noqa: E402

import kvartal  # noqa: E402
from kvartal import weights_change  # noqa: E402
from kvartal.vllm import KvartalConnector  # noqa: E402
from kvartal.vllm.pages import HostPages  # noqa: E402
from kvartal.vllm.scheduler import SchedulerSide  # noqa: E402
from kvartal.vllm.worker import WorkerSide  # noqa: E402

BLOCKS, STEPS = 40, 500
PROMPTS = 9  # over three beginnings


def seed_of_today():
    """Another one each time, and printed."""
    seed = int(os.environ.get('KVARTAL_STORM_SEED') or random.randrange(1 << 30))
    print(f'KVARTAL_STORM_SEED={seed}')
    return seed


class Weather:
    """An engine on a daemon, and what befalls both."""

    def __init__(self, seed, ranks, folder):
        self.chance = random.Random(seed)
        self.daemon = Daemon(dram='64Mi', tenant_dram='64Mi').start()
        (folder / 'model.safetensors').write_bytes(b'weights')
        config = fake_vllm.config(folder, BLOCK, ranks, socket=self.daemon.door(), min_load_tokens=BLOCK,
                                  lookup_deadline_ms=1000)
        kv = fake_vllm.kv_cache_config(config, LAYERS, BLOCKS)

        def make(role, rank=0):
            return KvartalConnector(fake_vllm.of_rank(config, rank), role, kv)
        self.engine = vllm_steps.Engine(make, ranks, BLOCKS, self.chance)
        assert not self.engine.scheduler._declined
        self.names = self.read = 0
        self.prompts = []
        for i in range(PROMPTS):
            shared, own = self.chance.randrange(3, 7) * BLOCK, self.chance.randrange(10, 80)
            self.prompts.append([*range(100 * (i % 3), 100 * (i % 3) + shared), *range(9000 + 100 * i,
                                                                                       9000 + 100 * i + own)])

    def blow(self):
        """All of it, to a quiet end."""
        # What empties the cache comes in the first half, so that there is something to read in the end.
        dies_at = {self.chance.randrange(STEPS // 2): 'dies', self.chance.randrange(STEPS): 'hangs'}
        for number in range(STEPS):
            self._befall(dies_at.get(number))
            if number < STEPS // 2 and self.chance.random() < 0.01:
                assert self.engine.scheduler.reset_cache()
            self.engine.step()
        self.calm()

    def run(self, steps):
        """Requests alone: nothing befalls the daemon."""
        for _ in range(steps):
            self._befall(None)
            self.engine.step()

    def calm(self):
        """Ends: the engine is idle, every block is free, no lease is left."""
        until = time.monotonic() + PATIENT_MS / 1000
        while self.engine.requests:
            assert time.monotonic() < until, f'these never end: {sorted(self.engine.requests)}'
            self.engine.step()
        assert sorted(self.engine.pool.free) == list(range(1, BLOCKS)), 'a block was lost'
        while self.daemon.leases():
            assert time.monotonic() < until, f'{self.daemon.leases()} leases are left'
            self.engine.step()
        if self.namespace() is not None:
            self.read_all(self.namespace())
        assert not self.engine.loading and not self.engine._told['received'] and not self.engine._told['sent']

    def namespace(self):
        """Of what the engine stores now."""
        return self.engine.scheduler._scheduler._namespace

    def read_all(self, namespace):
        """Every block of it that is in the cache now holds the bytes of its key, by the weights of the start."""
        with kvartal.Client(self.daemon.door(), 'reader', deadline_ms=PATIENT_MS) as client:
            for chain in self.engine.chains:
                with client.lookup(namespace, chain, deadline_ms=PATIENT_MS) as lease:
                    for i in range(lease.load(deadline_ms=PATIENT_MS)):
                        for rank in range(namespace.shard_count):
                            pages = lease.block(i, rank).reshape(LAYERS, -1)
                            assert all((pages[layer] == page_of(chain[i], layer, rank)).all()
                                       for layer in range(LAYERS)), 'a block in the cache holds other bytes'
                            self.read += 1

    def _befall(self, fate):
        if fate == 'dies':
            self.daemon.kill()
            for _ in range(20):
                self.engine.step()
            self.daemon.start()
            until = time.monotonic() + PATIENT_MS / 1000
            while not self.engine.scheduler._scheduler._client.renew(1000):
                assert time.monotonic() < until
        if fate == 'hangs':
            self.daemon.freeze()
            for _ in range(3):
                self.engine.step()
            self.daemon.thaw()
        if self.chance.random() < 0.3 and len(self.engine.requests) < 10:
            prompt = self.chance.choice(self.prompts)
            salt = self.chance.choice(['', '', 'salt'])
            self.names += 1
            self.engine.add(Request(f'r{self.names}', prompt, salt, len(prompt) + self.chance.randrange(1, 60)))
        if self.chance.random() < 0.06 and self.engine.requests:
            self.engine.abort(self.chance.choice(sorted(self.engine.requests)))
        if self.chance.random() < 0.3:
            self.engine.pool.forget()

    def close(self):
        """Ends both."""
        self.engine.close()
        self.daemon.__exit__()


@pytest.fixture
def weather(tmp_path):
    """Makes it."""
    made = []

    def make(seed, ranks=1):
        made.append(Weather(seed, ranks, tmp_path))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize('ranks', [1, 2])
def test_a_storm_ends_quietly_and_no_page_holds_anothers_bytes(weather, ranks):
    storm = weather(seed_of_today(), ranks)
    storm.blow()
    engine = storm.engine
    print(f'{storm.names} requests, {engine.loaded_blocks} blocks loaded, {engine.failed_blocks} failed, '
          f'{engine.preemptions} preemptions, {engine.aborted_loads} aborts amid a load')
    assert storm.names > 40 and engine.loaded_blocks > 20 and engine.preemptions > 5 and storm.read > 20
    assert engine.aborted_loads > 0, 'no client went amid a load'
    cost = engine.scheduler._scheduler._cost
    assert cost._step_tokens > 0 and cost._w > 0, 'what steps and loads take reaches the measure through the shell'
    assert not engine.scheduler._broken and not any(worker._broken for worker in engine.workers)


def test_weights_that_are_changed_amid_it_end_the_caching(weather, monkeypatch, caplog):
    monkeypatch.setattr(weights_change, '_changed', False)
    storm = weather(seed_of_today(), 2)
    storm.run(200)
    storm.calm()
    engine, namespace = storm.engine, storm.namespace()
    for i in range(3):  # the next step fills blocks
        engine.add(Request(f'fresh{i}', range(50000 + 100 * i, 50000 + 100 * i + 2 * BLOCK), '', 3 * BLOCK))
    fake_vllm.CPUWorker().update_weights()
    engine.weights = 1
    storm.run(200)
    storm.calm()
    assert storm.namespace() is None
    (line,) = [record.getMessage() for record in caplog.records if 'uncached' in record.getMessage()]
    assert 'its weights were changed while it ran' in line
    assert engine.scheduler.get_kv_connector_stats().data['uncached'] == 1
    storm.read_all(namespace)  # nothing of the weights after
    assert engine.loaded_blocks > 5 and storm.read > 20


def told_twice(results):
    """A worker that names requests again."""
    said = set()

    @functools.wraps(results)
    def again(side, idle):
        taken = results(side, idle)
        said.update(taken.received)
        taken.received |= said
        return taken
    return again


def untold(results):
    """A worker that keeps failures to itself."""
    @functools.wraps(results)
    def silent(side, idle):
        taken = results(side, idle)
        taken.failed_blocks.clear()
        return taken
    return silent


def slowly(read):
    """Copies that take as long as a step."""
    @functools.wraps(read)
    def slow(pages, block, into):
        time.sleep(0.002)
        read(pages, block, into)
    return slow


def first_again(block):
    """The first block of a lease, whichever was asked for."""
    return functools.wraps(block)(lambda lease, i, shard=0: block(lease, lease.blocks.start, shard))


WRONG_BYTES = 'block [0-9]+ was loaded|holds other bytes'
# What is planted (owner, name and how it is changed), and what the storm says of it.
BUGS = {
    'the bytes of another block': (WRONG_BYTES, [(kvartal.Lease, 'block', first_again)]),
    'a request told twice': ('told as received', [(WorkerSide, 'results', told_twice)]),
    'a failure that is not told': (WRONG_BYTES, [
        (WorkerSide, 'results', untold),
        (kvartal.Lease, 'valid', lambda valid: lambda lease, i: False)]),
    'pages that were not written': (WRONG_BYTES, [
        (HostPages, 'write', lambda write: lambda pages, block, source: None)]),
    'a lease that is kept': ('leases are left', [(kvartal.Lease, 'release', lambda release: lambda lease: None)]),
    'blocks of the preempted that are read on': (WRONG_BYTES, [
        (WorkerSide, 'flush', lambda flush: lambda side, jobs: None), (HostPages, 'read', slowly)]),
    'a store that nobody waits for': ('told as sent, and nobody knows it|' + WRONG_BYTES, [
        (SchedulerSide, 'finish', lambda finish: lambda side, name: (finish(side, name), False)[1]),
        (HostPages, 'read', slowly)]),
    'a request that is never told': ('these never end', [
        (WorkerSide, '_tell_landed', lambda tell: lambda side, results: None)]),
}


@pytest.mark.parametrize('bug', BUGS)
def test_a_planted_bug_is_found(weather, monkeypatch, bug):
    monkeypatch.setattr('test_vllm_storm.PATIENT_MS', 3000)  # of what never comes
    said, changes = BUGS[bug]
    with monkeypatch.context() as planted:
        for owner, name, changed in changes:
            planted.setattr(owner, name, changed(getattr(owner, name)))
        storm = weather(seed_of_today())
        with pytest.raises(AssertionError, match=said):
            storm.blow()


def test_what_vllm_reads_of_the_class():
    config = fake_vllm.config('nowhere', BLOCK)
    made = KvartalConnector(config, fake_vllm.KVConnectorRole.SCHEDULER, fake_vllm.kv_cache_config(config, 1, 9))
    assert made.requires_kv_delivery is False, 'a request that was preempted would be computed again, not finished'
    assert isinstance(made, fake_vllm.SupportsHMA), 'the hybrid KV manager would be turned off'
    assert made.request_finished_all_groups(SimpleNamespace(request_id='r'), ([1],)) == (False, None)
    assert made.get_external_cache_hit_sources('request', 64) == {fake_vllm.CacheHitSource.HOST: 64}
    made.shutdown()
