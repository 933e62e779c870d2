"""From how many tokens on a hit is worth its load."""
import random

import pytest

from kvartal.vllm.cost import MAX_TOKENS, SLOWEST, TRY_AFTER, UNMEASURED_TOKENS, LoadCost

BLOCK = 16


def measured(fixed_s, block_s, tokens_a_second, blocks=(4, 16, 9, 30), noise=0.0, rounds=10):
    """A cost that has seen loads and steps like that."""
    cost, chance = LoadCost(BLOCK), random.Random(1)
    for _ in range(rounds):
        for count in blocks:
            cost.loaded(count, (fixed_s + count * block_s) * chance.uniform(1 - noise, 1 + noise))
            cost.computed(1024, 1024 / tokens_a_second * chance.uniform(1 - noise, 1 + noise))
    return cost


def test_before_both_are_measured_it_is_a_constant():
    cost = LoadCost(BLOCK)
    assert cost.min_tokens() == UNMEASURED_TOKENS
    cost.loaded(10, 0.002)
    cost.computed(1, 0.02)  # a step of decoding says nothing
    assert cost.min_tokens() == UNMEASURED_TOKENS
    cost.computed(512, 0.02)
    assert cost.min_tokens() != UNMEASURED_TOKENS


@pytest.mark.parametrize('fixed_s, block_s, rate, blocks', [
    (0.005, 0.0001, 25_000, 10),  # 5 ms / (0.64 - 0.1)
    (0.005, 0.0001, 500, 1), (0.1, 0.001, 2_000, 15), (0.05, 0.0005, 25_000, 256)])
def test_it_is_where_loading_becomes_faster_than_computing(fixed_s, block_s, rate, blocks):
    cost = measured(fixed_s, block_s, rate)
    assert cost.min_tokens() == min(blocks * BLOCK, MAX_TOKENS)
    for count in (blocks - 1, blocks):
        assert ((fixed_s + count * block_s < count * BLOCK / rate) == (count >= blocks)) or blocks * BLOCK >= MAX_TOKENS


def test_noise_moves_it_little():
    assert 10 * BLOCK <= measured(0.1, 0.001, 2_000, noise=0.2, rounds=50).min_tokens() <= 22 * BLOCK


def test_a_load_that_never_pays_is_bounded():
    assert measured(0.001, 0.01, 10_000).min_tokens() == MAX_TOKENS


def test_loads_of_one_length_are_judged_at_that_length():
    assert measured(0.1, 0.001, 2_000, blocks=(20,)).min_tokens() == 15 * BLOCK, '120 ms of 20 blocks of 8 ms'


def test_what_was_slow_once_is_tried_again_and_forgotten():
    cost = measured(0.001, 0.0001, 2_000)
    for _ in range(20):
        cost.loaded(10, 30.0)
    asked = [cost.min_tokens() for _ in range(TRY_AFTER + 3)]
    assert min(asked[:TRY_AFTER]) > UNMEASURED_TOKENS
    assert asked[TRY_AFTER:] == [BLOCK] * 3, 'until a load has come of it, whoever asks'
    for _ in range(100):
        cost.loaded(16, 0.0026)
    assert cost.min_tokens() == BLOCK


def test_one_slow_load_counts_as_a_few_of_the_others():
    cost, bounded = measured(0.05, 0.0005, 2_000), measured(0.05, 0.0005, 2_000)
    cost.loaded(10, 30.0)
    bounded.loaded(10, SLOWEST * 0.055)
    assert abs(cost.min_tokens() - bounded.min_tokens()) <= BLOCK and cost.min_tokens() < MAX_TOKENS


def test_an_engine_of_short_hits_gets_a_measure():
    cost = LoadCost(BLOCK)
    cost.computed(512, 0.25)
    assert [cost.min_tokens() for _ in range(TRY_AFTER + 1)] == [UNMEASURED_TOKENS] * TRY_AFTER + [BLOCK]
    cost.loaded(5, 0.002)
    assert cost.min_tokens() == BLOCK
