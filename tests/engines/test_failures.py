"""The daemon is absent, slow, killed, back: never a crash, a hang or another token."""
import time

import pytest
from daemon import Daemon
from engine import HITS, Engine, connector, same_tokens, usable

# Every step of the protocol that an engine takes: the daemon dies right before it.
STEPS = ['kvartal.client.Client.lookup', 'kvartal.client.Client.borrow', 'kvartal.client.Lease.load',
         'kvartal.client.Lease.block', 'kvartal.client.Lease.valid', 'kvartal.client.Lease.release',
         'kvartal.client.Client.reserve', 'kvartal.client.Slots.__getitem__', 'kvartal.client.Slots.commit']
HIT_S = 30  # a request with a dead daemon has to be over by then, on a busy machine


@pytest.fixture(scope='module')
def world(logs):
    """A daemon that does not run yet, and an engine that started without it."""
    with Daemon(dram='2Gi', tenant_dram='2Gi') as daemon:
        with Engine(logs / 'failures.log', connector(daemon.door())) as engine:
            yield daemon, engine


@pytest.fixture(scope='module')
def prompts(tokens):
    return [tokens[n:n + 260] for n in range(0, 3000, 300)]


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


def test_without_a_daemon_the_engine_serves(world, prompts):
    _, engine = world
    assert same_tokens(engine.one(prompts[0]), engine.cold(prompts[0]))
    assert 'no cache for now' in engine.log()


def test_a_daemon_that_appears_is_used(world, prompts):
    daemon, engine = world
    daemon.start()
    assert same_tokens(hit(engine, prompts[0]), engine.cold(prompts[0]))


@pytest.mark.parametrize('step', STEPS)
def test_killed_right_before(world, prompts, step):
    daemon, engine = world
    if daemon.process is None:
        daemon.start()
    cold = {prompt: engine.cold(prompts[prompt]) for prompt in (0, 1, 2)}
    hit(engine, prompts[0])
    engine.forget()
    engine.kill_at(step, daemon.process.pid)
    begun = time.monotonic()
    for prompt, answer in zip((0, 1, 2), engine.generate(prompts[0], prompts[1], prompts[2])):
        assert same_tokens(answer, cold[prompt])
    assert time.monotonic() - begun < HIT_S
    assert daemon.process.wait(10) == -9, 'the step was not taken'
    daemon.kill()
    assert same_tokens(engine.one(prompts[0]), cold[0])
    daemon.start()
    assert same_tokens(hit(engine, prompts[0]), cold[0])


def test_bytes_that_changed_while_they_were_copied_are_computed(world, prompts):
    _, engine = world
    cold = engine.cold(prompts[0])
    hit(engine, prompts[0])
    engine.forget()
    engine.answer_at('kvartal.client.Lease.valid', False)
    assert same_tokens(engine.one(prompts[0]), cold)
    assert 'could not be loaded and are computed' in engine.log()
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
            cold = [engine.cold(prompt) for prompt in prompts[:3]]
            engine.generate(*prompts[:3])
            engine.forget()
            daemon.freeze()
            begun = time.monotonic()
            for answer, reference in zip(engine.generate(*prompts[:3]), cold):
                assert same_tokens(answer, reference)
            assert time.monotonic() - begun < HIT_S
            daemon.thaw()
            for answer, reference in zip(engine.generate(*prompts[:3]), cold):
                assert same_tokens(answer, reference)
