"""The daemon is absent, slow, killed, back: never a crash, a hang or another token."""
import os
import time

import pytest
from daemon import Daemon
from engine import BLOCK, HITS, Engine, connector, equal_tokens, same_tokens, usable

# Every step of the protocol that an engine takes: the daemon dies right before it. The end of an epoch, the giving up
# of slots and the attaching of a worker have tests of their own; leases are renewed by a thread of the library.
STEPS = ['kvartal.client.Client._open', 'kvartal.client.Client.lookup', 'kvartal.client.Client.borrow',
         'kvartal.client.Lease.load',
         'kvartal.client.Lease.block', 'kvartal.client.Lease.valid', 'kvartal.client.Lease.release',
         'kvartal.client.Client.reserve', 'kvartal.client.Slots.__getitem__', 'kvartal.client.Slots.commit']
SLACK_S = 5  # of a busy machine, beside what the same requests took without the cache
LATE_S = 0.5  # of a thread that is ready and gets no core: less than the second of a call without a deadline
FAILED = 'vllm:kvartal_failed_blocks'
LOOKUPS = ['vllm:kvartal_lookups', 'vllm:kvartal_lookups_unanswered', 'vllm:kvartal_lookup_seconds']


@pytest.fixture(scope='module')
def world(logs):
    """A daemon that does not run yet, and an engine that started without it."""
    with Daemon(dram='2Gi', tenant_dram='2Gi') as daemon:
        with Engine(logs / 'failures.log', connector(daemon.door())) as engine:
            yield daemon, engine


@pytest.fixture(scope='module')
def prompts(tokens):
    return [tokens[n:n + 260] for n in range(0, 3000, 300)]


def cold_together(engine, prompts):
    """Answers computed in full, all at once, and how long that takes."""
    begun = time.monotonic()
    answers = engine.generate(*prompts, salt=os.urandom(8).hex())
    return answers, time.monotonic() - begun


def answers_in_time(engine, prompts, cold, cold_s, deadlines_s=0.0):
    """Asks for them together: the right tokens, and no later than computing them and every deadline explain."""
    begun = time.monotonic()
    for answer, reference in zip(engine.generate(*prompts), cold, strict=True):
        assert same_tokens(answer, reference)
    took_s = time.monotonic() - begun
    assert took_s < 2 * cold_s + deadlines_s + SLACK_S, f'{took_s:.1f} s, and {cold_s:.1f} s without the cache'


def hit(engine, prompt):
    """Asks until the answer comes from the cache again: the daemon is found within its back-off."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        engine.forget()
        before = engine.metric(HITS)
        answer = engine.one(prompt)
        if engine.metric(HITS) - before == usable(prompt):
            return answer
        time.sleep(0.2)
    raise AssertionError(f'the cache is not found again: {engine.log()[-3000:]}')


def cached(world, prompts):
    """A daemon that has the first of them, and an engine that has none: what all of them give without the cache."""
    daemon, engine = world
    if daemon.process is None:
        daemon.start()
    cold = cold_together(engine, prompts)
    hit(engine, prompts[0])
    engine.forget()
    return cold


def test_without_a_daemon_the_engine_serves(world, prompts):
    _, engine = world
    assert equal_tokens(engine.one(prompts[0]), engine.cold(prompts[0]))
    assert 'no cache for now' in engine.log()


def test_a_daemon_that_appears_is_used(world, prompts):
    daemon, engine = world
    daemon.start()
    assert same_tokens(hit(engine, prompts[0]), engine.cold(prompts[0]))


@pytest.mark.parametrize('step', STEPS)
def test_killed_right_before(world, prompts, step):
    daemon, engine = world
    cold, cold_s = cached(world, prompts[:3])
    engine.kill_at(step, daemon.process.pid)
    answers_in_time(engine, prompts[:3], cold, cold_s)
    assert daemon.process.wait(10) == -9, 'the step was not taken'
    daemon.kill()
    assert same_tokens(engine.one(prompts[0]), cold[0])
    daemon.start()
    assert same_tokens(hit(engine, prompts[0]), cold[0])


@pytest.mark.parametrize('step', ['kvartal.client.Client.close_namespace', 'kvartal.client.Slots.abort'])
def test_killed_right_before_what_an_engine_does_seldom(world, prompts, step):
    daemon, engine = world
    cold, cold_s = cached(world, prompts[:2])
    pid = daemon.process.pid
    if step.endswith('abort'):
        engine.answer_at('kvartal.vllm.worker.WorkerSide._begin_reading', False)  # as after a preemption
        engine.kill_at(step, pid)
        engine.one(prompts[9][:250], salt=os.urandom(8).hex())
    else:
        engine.kill_at(step, pid)
        engine.forget(connector=True)
    assert daemon.process.wait(10) == -9, 'the step was not taken'
    daemon.kill()
    answers_in_time(engine, prompts[:2], cold, cold_s)
    daemon.start()
    assert same_tokens(hit(engine, prompts[0]), cold[0])


def test_bytes_that_changed_while_they_were_copied_are_computed(world, prompts):
    _, engine = world
    cold = engine.cold(prompts[0])
    hit(engine, prompts[0])
    engine.forget()
    before = engine.metric(FAILED)
    engine.answer_at('kvartal.client.Lease.valid', False)
    assert equal_tokens(engine.one(prompts[0]), cold)
    assert (engine.metric(FAILED) - before) * BLOCK == usable(prompts[0]), 'the first of them, and so all'
    engine.forget()


def test_killed_at_any_moment_while_serving(world, prompts):
    daemon, engine = world
    cold = [engine.cold(prompt) for prompt in prompts]
    for moment in range(6):
        hit(engine, prompts[0])
        engine.forget()
        engine.send({'generate': prompts, 'tokens': 8})
        time.sleep(0.25 * moment)
        daemon.kill()
        if moment % 2:
            daemon.start()
        for answer, reference in zip(engine.receive(), cold):
            assert same_tokens(answer, reference), moment
        if daemon.process is None:
            daemon.start()


def test_a_daemon_that_hangs_costs_its_deadlines_and_no_more(logs, prompts):
    short = {'lookup_deadline_ms': 20, 'load_deadline_ms': 200, 'store_deadline_ms': 200}
    with Daemon() as daemon:
        with Engine(logs / 'hang.log', connector(daemon.start().door(), **short)) as engine:
            engine.one([1, 2, 3])  # kernels
            engine.kill_at('kvartal.client.Client.__init__', daemon.process.pid)  # of the worker, at its first transfer
            cold, cold_s = cold_together(engine, prompts[:3])
            assert daemon.process.wait(10) == -9, 'the worker did not attach'
            daemon.kill()
            answers_in_time(engine, prompts[:3], cold, cold_s)
            daemon.start()
            assert same_tokens(hit(engine, prompts[0]), cold[0])
            cold, cold_s = cold_together(engine, prompts[:3])
            engine.forget()
            daemon.freeze()
            before = [engine.metric(name) for name in LOOKUPS]
            # Each may wait for a lookup and a load, and its blocks for the stores of all.
            answers_in_time(engine, prompts[:3], cold, cold_s, 3 * (0.02 + 0.2 + 0.2))
            asked, unanswered, seconds = (engine.metric(name) - was for name, was in zip(LOOKUPS, before))
            assert unanswered > 0, 'nothing was asked: the test shows nothing'
            assert seconds < asked * 0.02 + LATE_S, f'{asked} lookups kept the scheduler for {seconds:.3f} s'
            daemon.thaw()
            answers_in_time(engine, prompts[:3], cold, cold_s, 3 * (0.02 + 0.2 + 0.2))
