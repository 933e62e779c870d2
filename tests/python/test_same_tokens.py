"""How the engine tests compare answers: what they let pass, and that they say how much they saw."""
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / 'engines'))

from engine import TIE, equal_tokens, same_tokens, tally  # noqa: E402


def answer(tokens, margins=None):
    return {'tokens': tokens, 'margins': margins or [1.0] * len(tokens), 'finish': 'length'}


@pytest.fixture(autouse=True)
def begin():
    tally.begin()


def counted():
    return tally.compared, tally.all


def test_equal_answers_are_compared_in_full_also_over_a_tie():
    tie_first = answer([1, 2, 3, 4], [0.0, 1.0, 1.0, 1.0])
    assert same_tokens(answer([1, 2, 3, 4]), tie_first)
    assert counted() == (4, 4) and tally.is_enough()
    assert not same_tokens(answer([1, 2, 9, 4]), tie_first), 'a tie of before excuses nothing'
    assert counted() == (4, 4)


def test_a_tie_excuses_what_follows_it_and_is_counted():
    assert same_tokens(answer([1, 9, 9, 9]), answer([1, 2, 3, 4], [1.0, TIE / 2, 1.0, 1.0]))
    assert counted() == (1, 4) and not tally.is_enough()
    for _ in range(4):
        same_tokens(answer([1, 2, 3, 4]), answer([1, 2, 3, 4]))
    assert counted() == (17, 20) and tally.is_enough()


def test_a_choice_that_was_no_tie_is_another_answer():
    assert not same_tokens(answer([1, 9]), answer([1, 2], [0.0, TIE]))


def test_equal_tokens_knows_no_ties():
    assert equal_tokens(answer([1, 2]), answer([1, 2]))
    assert not equal_tokens(answer([1, 9]), answer([1, 2], [1.0, 0.0]))
    assert not equal_tokens(answer([1]), answer([1, 2]))


def test_answers_of_two_lengths_or_that_ended_early_are_no_answers():
    with pytest.raises(ValueError, match='argument 2 is longer'):
        same_tokens(answer([1]), answer([1, 2]))
    with pytest.raises(AssertionError):
        same_tokens({**answer([1]), 'finish': 'abort'}, answer([1]))
