"""What `make demo-vllm` and `make measure-hits` tell in the end, of invented turns and times: a mistake there would
come out after a quarter of an hour of serving.
"""
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / 'tests/engines'), str(ROOT / 'tools/vllm-demo')]

import chart  # noqa: E402
import demo  # noqa: E402
import measure  # noqa: E402

SVG = '{http://www.w3.org/2000/svg}'


def turns_of(cached_share, ttft_s=1.0, tokens=(1, 2, 3)):
    """Of each tenant: as many as the demo serves; the first of a conversation finds nothing."""
    answer = {'tokens': list(tokens), 'margins': [1.0] * len(tokens), 'finish': 'length'}
    return {tenant: [demo.Turn(number, 1000, int(1000 * cached_share) if number else 0, ttft_s, answer)
                     for number in range(demo.TURNS) for _ in range(demo.CONVERSATIONS)] for tenant in demo.TENANTS}


def times(loaded_s=0.2, local_s=0.19):
    return [measure.Times(tokens, 10.0, local_s, loaded_s) for tokens in measure.OF_COLD]


def report(alone, cached, of_times, capsys):
    """The exit status, and the lines of the bars that were missed."""
    status = measure.verdict(demo.bars(alone, cached, of_times))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2 * len(demo.TENANTS) + 2 * len(measure.OF_COLD)
    assert all(line.endswith('  met') or line.endswith('  MISSED') for line in lines)
    return status, [line for line in lines if line.endswith('MISSED')]


def test_all_bars_are_met(capsys):
    assert report(turns_of(0.2), turns_of(0.98), times(), capsys) == (0, [])


@pytest.mark.parametrize('said, changes', [
    ('answers that differ', {'cached': turns_of(0.98, tokens=(1, 2, 4))}),
    ('recomputed with Kvartal', {'cached': turns_of(0.9)}),
    ('recomputed alone', {'alone': turns_of(0.7)}),
    ('of cold', {'of_times': times(loaded_s=5.0, local_s=4.9)}),
    ("of the engine's own", {'of_times': times(local_s=0.1)})])
def test_a_bar_that_is_missed_is_named_and_is_the_exit_status(said, changes, capsys):
    seen = {'alone': turns_of(0.2), 'cached': turns_of(0.98), 'of_times': times(), **changes}
    status, missed = report(**seen, capsys=capsys)
    assert status == 1 and missed and all(said in line for line in missed)


def test_ties_that_hide_most_of_the_tokens_are_a_bar_missed(capsys):
    alone, cached = turns_of(0.2), turns_of(0.98, tokens=(1, 9, 9))
    for turns in alone.values():
        for turn in turns:
            turn.answer['margins'] = [1.0, 0.0, 1.0]
    status, missed = report(alone, cached, times(), capsys)
    assert status == 1 and len(missed) == 1 and 'compared' in missed[0] and '24 of 72' in missed[0]


def test_lengths_without_a_bar_are_told_and_not_judged():
    assert list(measure.bars(measure.Times(160, 0.1, 0.1, 9.0))) == []
    assert set(measure.OF_COLD) <= set(measure.LENGTHS)
    assert 'loaded / cold 0.020' in str(times()[0])


def test_a_row_says_what_a_turn_took(capsys):
    turns = turns_of(0.98)['red']
    turns[-1].ttft_s = 7.0
    demo.row('red', 'with Kvartal', turns, {'red': 0.75})
    demo.row('red', 'vLLM alone', turns, {})
    with_it, alone = capsys.readouterr().out.splitlines()
    assert with_it.split() == ['red', 'with', 'Kvartal', '1.00', 's', '7.00', 's', '2.0%', '75.0%']
    assert alone.split()[-1] == '-'


def test_the_chart_is_a_picture_of_every_request(tmp_path):
    modes = {'vLLM alone': turns_of(0.2, 4.0), 'with Kvartal & <cache>': turns_of(0.98, 0.5)}
    chart.write_chart(tmp_path / 'chart.svg', modes)
    root = xml.etree.ElementTree.parse(tmp_path / 'chart.svg').getroot()
    assert root.tag == f'{SVG}svg'
    texts = [text.text for text in root.iter(f'{SVG}text')]
    assert set(modes) < set(texts) and {'tenant red', 'tenant blue'} < set(texts)
    assert [text for text in texts if text.startswith('turn ')] == [
        f'turn {number + 1}' for _ in demo.TENANTS for number in range(demo.TURNS)]
    requests = len(demo.TENANTS) * demo.TURNS * demo.CONVERSATIONS
    circles = list(root.iter(f'{SVG}circle'))
    assert len(circles) == len(list(root.iter(f'{SVG}path'))) == requests + 1, 'and one each that says which is which'
    heights = {float(circle.get('cy')) for circle in circles[1:]}
    assert len(heights) == 1 and chart.TOP < heights.pop() < chart.HEIGHT - chart.BOTTOM
