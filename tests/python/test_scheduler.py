"""The scheduler's half of the vLLM connector, without vLLM and without a daemon."""
from collections import Counter
from types import SimpleNamespace

import pytest

from kvartal import Namespace, Status
from kvartal.declined import Declined
from kvartal.vllm.options import Options
from kvartal.vllm.plan import StepReport
from kvartal.vllm.scheduler import SchedulerSide

BLOCK = 16


class Lease:
    def __init__(self, matched):
        self.matched, self.request, self.id, self.released = matched, 77, 5, 0

    def release(self):
        self.released += 1


class Client:
    """Knows the first `cached` blocks of every chain."""

    def __init__(self):
        self.cached, self.connected, self.lookups, self.leases, self.ended = 0, True, [], [], []
        self.deadlines_ms = []
        self.group, self.tenant, self.error, self.status = b'g' * 16, 'test/red', '', Status.OK

    def lookup(self, namespace, keys, prompt_tokens=0, deadline_ms=0):
        self.lookups.append((namespace, keys, prompt_tokens))
        self.deadlines_ms.append(deadline_ms)
        self.leases.append(Lease(min(self.cached, len(keys))))
        return self.leases[-1]

    def close_namespace(self, namespace):
        self.ended.append(namespace)

    def close(self):
        pass


@pytest.fixture
def client():
    return Client()


@pytest.fixture
def side(client):
    side = SchedulerSide(client, Options(min_load_tokens=2 * BLOCK), BLOCK, engine_blocks=40, ranks=1)
    side.open(lambda epoch: Namespace((b'n' + epoch).ljust(32, b'.'), BLOCK, 4096))
    return side


def request(tokens):
    return SimpleNamespace(num_tokens=tokens, block_hashes=[i.to_bytes(32, 'little') for i in range(tokens // BLOCK)])


def done(*jobs, failed=()):
    return StepReport(Counter(jobs), set(failed))


def load(side, client, name='a', tokens=10 * BLOCK + 1, cached=8, computed=0):
    client.cached = cached
    side.begin(name, request(tokens), cacheable=True)
    found, beside = side.match(name, computed, 0)
    side.allocated(name, list(range(100, 111)), found)
    return found, beside, side.take_plan()


def test_one_lookup_a_request_however_often_the_engine_asks(side, client):
    client.cached = 8
    side.begin('a', request(10 * BLOCK + 1), cacheable=True)
    assert [side.match('a', 0, 0) for _ in range(50)] == [(8 * BLOCK, True)] * 50
    assert len(client.lookups) == 1 and client.lookups[0][2] == 10 * BLOCK + 1
    assert client.leases[0].released == 0
    assert side.take_counts()['lookups'] == 1 and not side.take_counts()


@pytest.mark.parametrize('options, deadline_ms', [({}, 5), ({'lookup_deadline_ms': 17}, 17)])
def test_a_lookup_waits_as_long_as_the_options_say(client, options, deadline_ms):
    side = SchedulerSide(client, Options(min_load_tokens=2 * BLOCK, **options), BLOCK, engine_blocks=40, ranks=1)
    side.open(lambda epoch: Namespace(b'n' * 32, BLOCK, 4096))
    load(side, client)
    assert client.deadlines_ms == [deadline_ms]


def test_a_load_begins_behind_what_the_engine_has(side, client):
    found, beside, plan = load(side, client, computed=3 * BLOCK)
    assert (found, beside) == (5 * BLOCK, True)
    (job,) = plan.loads
    assert (job.first, job.blocks, job.lease, plan.group) == (3, [103, 104, 105, 106, 107], 5, b'g' * 16)


def test_the_last_token_is_left_to_compute(side, client):
    assert load(side, client, tokens=8 * BLOCK, cached=8)[0] == 7 * BLOCK
    assert len(client.lookups[0][1]) == 7


def test_a_hit_that_is_too_short_is_let_go(side, client):
    client.cached = 1
    side.begin('a', request(10 * BLOCK + 1), cacheable=True)
    assert side.match('a', 0, 0) == (0, False)
    assert client.leases[0].released == 1
    side.begin('b', request(2 * BLOCK), cacheable=True)
    assert side.match('b', 0, 0) == (0, False) and len(client.lookups) == 1, 'nothing to win: nothing to ask'


def test_loads_hold_a_part_of_the_engines_blocks_only(side, client):
    load(side, client, 'a', tokens=16 * BLOCK + 1, cached=16)
    client.cached = 8
    side.begin('b', request(10 * BLOCK + 1), cacheable=True)
    assert side.match('b', 0, 0) == (None, False), '16 of 20 are loading'
    side.take_report(done(1))
    assert side.match('b', 0, 0) == (8 * BLOCK, True)
    client.cached = 30
    side.begin('c', request(35 * BLOCK), cacheable=True)
    assert side.match('c', 0, 0) == (20 * BLOCK, True), 'more than may load at once: the rest is computed'


def test_a_lease_lives_until_its_load_is_reported_also_when_the_request_is_gone(side, client):
    load(side, client)
    assert side.finish('a') is False
    assert client.leases[0].released == 0
    side.take_report(done(1))
    assert client.leases[0].released == 1


class NoGroupClient(Client):
    """Of a client that can no longer tell its engine group."""

    group = property(lambda self: 1 / 0, lambda self, value: None)


def test_loads_are_begun_also_when_the_engine_group_is_not_known():
    client = NoGroupClient()
    side = SchedulerSide(client, Options(min_load_tokens=2 * BLOCK), BLOCK, engine_blocks=40, ranks=1)
    side.open(lambda epoch: Namespace(b'n' * 32, BLOCK, 4096))
    plan = load(side, client)[2]
    assert len(plan.loads) == 1 and plan.group is None, 'its request would wait for ever'


def test_the_engine_may_drop_what_was_promised(side, client):
    client.cached = 8
    side.begin('a', request(10 * BLOCK + 1), cacheable=True)
    side.match('a', 0, 0)
    side.allocated('a', list(range(11)), 0)
    assert client.leases[0].released == 1 and not side.take_plan().loads


def test_what_is_given_an_image_later_is_not_cached_from_then_on(client):
    side = SchedulerSide(client, Options(min_load_tokens=2 * BLOCK), BLOCK, engine_blocks=40, ranks=1,
                         still_cacheable=lambda engine: not engine.images)
    side.open(lambda epoch: Namespace(b'n' * 32, BLOCK, 4096))
    client.cached = 8
    text, mixed = request(10 * BLOCK + 1), request(10 * BLOCK + 1)
    text.images = mixed.images = ()
    side.begin('text', text, cacheable=True)
    side.begin('mixed', mixed, cacheable=True)
    mixed.images = ('cat',)
    assert side.match('text', 0, 0)[0] == 8 * BLOCK and side.match('mixed', 0, 0) == (0, False)
    side.computed('mixed', 10 * BLOCK, lambda: list(range(100, 110)))
    assert not side.take_plan().stores
    mixed.images = ()
    side.computed('mixed', 10 * BLOCK, lambda: list(range(100, 110)))
    assert not side.take_plan().stores, 'what it was given before is in its chain'


def test_a_failed_load_is_not_tried_again_and_its_blocks_are_stored_anew(side, client):
    load(side, client)
    side.take_report(done(1, failed=[1]))
    assert side.match('a', 0, 0) == (0, False) and len(client.lookups) == 1
    side.computed('a', 10 * BLOCK, lambda: list(range(100, 110)))
    assert side.take_plan().stores[0].depth == 0


def test_only_what_is_full_computed_and_not_cached_is_stored(side, client):
    load(side, client)
    side.take_report(done(1))
    side.computed('a', 9 * BLOCK + 3, lambda: list(range(100, 111)))
    (job,) = side.take_plan().stores
    assert (job.depth, job.blocks, job.request, job.parent) == (8, [108], 77, (7).to_bytes(32, 'little'))
    side.computed('a', 9 * BLOCK + 4, lambda: list(range(100, 111)))
    assert not side.take_plan().stores


def test_blocks_of_a_finished_request_stay_for_its_stores(side, client):
    load(side, client, cached=0)
    side.computed('a', 10 * BLOCK, lambda: list(range(100, 110)))
    (job,) = side.take_plan().stores
    assert side.finish('a') is True
    assert side.take_plan().awaited == {'a': [job.job]}
    load(side, client, 'b', cached=0)
    side.computed('b', 10 * BLOCK, lambda: list(range(100, 110)))
    side.take_report(done(side.take_plan().stores[0].job))
    assert side.finish('b') is False


def test_a_preempted_request_gives_its_stores_up_and_is_looked_up_again(side, client):
    load(side, client, cached=0)
    side.computed('a', 5 * BLOCK, lambda: list(range(100, 110)))
    (job,) = side.take_plan().stores
    side.preempted(['a', 'unknown'])
    assert side.take_plan().flush == [job.job]
    client.cached = 5
    assert side.match('a', 0, 1) == (5 * BLOCK, True) and len(client.lookups) == 2
    side.take_report(done(job.job, failed=[job.job]))
    side.computed('a', 6 * BLOCK, lambda: list(range(100, 110)))
    assert side.take_plan().stores[0].depth == 5, 'what was given up before counts no more'


def test_a_preempted_request_that_ends_waits_for_nothing(side, client):
    load(side, client, cached=0)
    side.computed('a', 5 * BLOCK, lambda: list(range(100, 110)))
    job = side.take_plan().stores[0].job
    side.preempted(['a'])
    assert side.finish('a') is False
    side.take_report(done(job))


@pytest.mark.parametrize('handed_over', [False, True])
def test_a_request_that_ended_before_its_preemption_was_told_gives_its_stores_up(side, client, handed_over):
    load(side, client, cached=0)
    side.computed('a', 5 * BLOCK, lambda: list(range(100, 110)))
    job = side.take_plan().stores[0].job
    assert side.finish('a') is True
    if handed_over:
        assert side.take_plan().awaited == {'a': [job]}
    side.preempted(['a'])
    plan = side.take_plan()
    assert plan.flush == [job], 'its blocks are written from this step on'
    assert plan.awaited == ({} if handed_over else {'a': [job]}), 'the engine was told to wait for the worker'
    side.preempted(['a'])
    assert side.take_plan().flush == [], 'once'


def test_a_transfer_is_over_when_every_rank_says_so(client):
    side = SchedulerSide(client, Options(min_load_tokens=BLOCK), BLOCK, 40, ranks=2)
    side.open(lambda epoch: Namespace(b'n' * 32, BLOCK, 4096))
    load(side, client)
    side.take_report(done(1))
    assert client.leases[0].released == 0
    side.take_report(done(1))
    assert client.leases[0].released == 1
    load(side, client, 'b')
    side.take_report(done(2).merged(done(2)))
    assert client.leases[1].released == 1


def test_after_a_failed_store_the_rest_of_the_chain_is_not_stored(side, client):
    load(side, client, cached=0)
    side.computed('a', 2 * BLOCK, lambda: list(range(100, 110)))
    job = side.take_plan().stores[0].job
    side.take_report(done(job, failed=[job]))
    side.computed('a', 4 * BLOCK, lambda: list(range(100, 110)))
    assert not side.take_plan().stores


def test_without_a_daemon_a_chain_waits_as_a_whole(side, client):
    client.connected = False
    load(side, client, cached=0)
    side.computed('a', 2 * BLOCK, lambda: list(range(100, 110)))
    assert not side.take_plan().stores
    client.connected = True
    side.computed('a', 4 * BLOCK, lambda: list(range(100, 110)))
    assert side.take_plan().stores[0].depth == 0


def test_a_new_epoch_finds_nothing_old_and_stores_nothing_old(side, client):
    load(side, client, cached=0)
    side.new_epoch()
    side.computed('a', 5 * BLOCK, lambda: list(range(100, 110)))
    assert not side.take_plan().stores
    load(side, client, 'b', cached=0)
    assert client.lookups[0][0] != client.lookups[1][0]
    assert client.ended == [client.lookups[0][0]], 'what is dead may go first'


def test_a_new_epoch_fails_what_is_being_loaded_and_lets_go_of_what_was_promised(side, client):
    (job,) = load(side, client)[2].loads
    side.begin('promised', request(10 * BLOCK + 1), cacheable=True)
    assert side.match('promised', 0, 0) == (8 * BLOCK, True)
    side.new_epoch()
    assert side.take_plan().fail == [job.job] and side.take_plan().fail == []
    assert [lease.released for lease in client.leases] == [0, 1]
    side.take_report(done(job.job, failed=[job.job]))
    assert client.leases[0].released == 1
    side.new_epoch()
    assert side.take_plan().fail == []


def test_after_a_stop_nothing_is_looked_up_or_stored_and_what_was_begun_ends(side, client):
    load(side, client)
    load(side, client, 'b', cached=0)
    side.begin('promised', request(10 * BLOCK + 1), cacheable=True)
    client.cached = 8
    assert side.match('promised', 0, 0) == (8 * BLOCK, True)
    side.stop()
    assert [lease.released for lease in client.leases] == [0, 0, 1], 'the first is being loaded'
    assert client.ended == [client.lookups[0][0]]
    assert side.match('promised', 0, 0) == (0, False)
    side.allocated('promised', list(range(11)), 0)
    side.computed('b', 10 * BLOCK, lambda: list(range(100, 110)))
    load(side, client, 'c')
    side.new_epoch()
    load(side, client, 'd')
    plan = side.take_plan()
    assert len(client.lookups) == 3 and not plan.loads and not plan.stores
    side.take_report(done(1))
    assert client.leases[0].released == 1 and side.finish('a') is False


def test_what_the_hashes_do_not_name_never_reaches_the_daemon(side, client):
    client.cached = 8
    side.begin('a', request(10 * BLOCK + 1), cacheable=False)
    assert side.match('a', 0, 0) == (0, False)
    side.computed('a', 10 * BLOCK, lambda: list(range(100, 110)))
    assert not client.lookups and not side.take_plan().stores


def test_what_loads_and_steps_take_decides_which_hit_is_worth_loading(client):
    clock = [0.0]
    side = SchedulerSide(client, Options(), BLOCK, engine_blocks=400, ranks=1, now=lambda: clock[0])
    side.open(lambda epoch: Namespace(b'n' * 32, BLOCK, 4096))
    client.cached, names = 100, iter(range(1000))

    def found(cached):
        client.cached = cached
        name = f'r{next(names)}'
        side.begin(name, request(40 * BLOCK + 1), cacheable=True)
        tokens, _ = side.match(name, 0, 0)
        return name, tokens

    assert found(15)[1] == 0 and found(16)[1] == 16 * BLOCK, '256 tokens before anything is measured'
    for blocks in (20, 30, 20, 30):
        name, tokens = found(blocks)
        side.allocated(name, list(range(1, 42)), tokens)
        (job,) = side.take_plan(128).loads
        clock[0] += 0.025  # 5,120 tokens a second: a block is computed in 3.125 ms
        side.step_ended()
        clock[0] += 0.010 + 0.001 * blocks  # and loaded in 1 ms, beside 35 ms that are fixed
        side.take_report(done(job.job))
        clock[0] += 50  # idle
    assert found(16)[1] == 0 and found(17)[1] == 17 * BLOCK, '35 / 2.125 blocks'


@pytest.mark.parametrize('given', [{'sokcet': 'x'}, {'lookup_deadline_ms': 0}, {'min_load_tokens': '256'},
                                   {'min_load_tokens': 0}, {'max_loading_share': 1.5}])
def test_options_that_are_wrong_are_declined_by_name(given):
    with pytest.raises(Declined, match=next(iter(given))):
        Options.parse(given)
