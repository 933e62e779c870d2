"""Leases that the SGLang backend keeps between a question and the copying."""
import threading

import pytest

from kvartal.sglang.leases import KEPT_MAX, KEPT_S, Found, KeptLeases


class Lease:
    def __init__(self):
        self.front = 0
        self.released = threading.Event()

    def release(self):
        assert not self.released.is_set(), 'given back twice'
        self.released.set()


def found(*names):
    return Found(Lease(), {name.encode(): i for i, name in enumerate(names)})


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def kept(clock):
    kept = KeptLeases(lambda: clock[0])
    yield kept
    kept.close()


def test_one_taker_gets_a_lease_by_any_of_its_keys(kept):
    one, other = found('a', 'b'), found('a', 'c')
    kept.keep(one)
    kept.keep(other)
    assert kept.take(b'b') is one and kept.take(b'b') is None
    assert kept.take(b'a') is other and kept.take(b'a') is None
    kept.keep(one)
    assert kept.take(b'a') is one
    assert not one.lease.released.is_set()


def test_a_lease_whose_front_was_given_back_is_for_what_is_left_of_it(kept):
    one = found('a', 'b', 'c')
    one.lease.front = 2
    kept.keep(one)
    assert kept.take(b'a') is None and kept.take(b'b') is None and kept.take(b'c') is one


def test_the_newest_lease_is_taken(kept):
    one, other = found('a', 'b'), found('a')
    kept.keep(one)
    kept.keep(other)
    assert kept.take(b'a') is other and kept.take(b'a') is one


def test_what_nobody_takes_is_given_back_in_time(kept, clock):
    one, other = found('a'), found('b')
    kept.keep(one)
    clock[0] = KEPT_S / 2
    kept.keep(other)
    assert kept.expire() == KEPT_S / 2
    clock[0] = KEPT_S
    assert kept.expire() == KEPT_S / 2
    assert one.lease.released.is_set() and kept.take(b'b') is other


def test_a_thread_sees_to_it_when_no_call_comes():
    moments = iter([0.0])  # the first call keeps; every later one finds that time has passed
    kept = KeptLeases(lambda: next(moments, 2 * KEPT_S))
    one = found('a')
    kept.keep(one)
    assert one.lease.released.wait(20)
    kept.close()


def test_there_is_an_end_to_what_is_kept(kept):
    first = found('first')
    kept.keep(first)
    for i in range(KEPT_MAX):
        kept.keep(found(str(i)))
    assert first.lease.released.is_set() and kept.take(b'0') is not None


def test_a_close_gives_everything_back(clock):
    kept, one = KeptLeases(lambda: clock[0]), found('a')
    kept.keep(one)
    kept.close()
    assert one.lease.released.is_set()
