"""Weights that vLLM changes in place are heard of before they change; on a stand-in for its worker."""
import sys
from types import ModuleType

import pytest

from kvartal import weights_change
from kvartal.declined import Declined
from kvartal.vllm import weight_watch


class Base:
    """What all of vLLM's workers have, as far as it matters here."""

    said: list[str]

    def _do(self, what):
        self.said.append(what)
        return what


for name in weight_watch._METHODS:
    setattr(Base, name, lambda self, *args, _name=name: self._do(_name))


class Watcher:
    """Writes down in which order things happen."""

    def __init__(self, said):
        self.said = said

    def weights_change(self):
        self.said.append('told')


@pytest.fixture
def worker(monkeypatch):
    """A worker's class of its own, importable as stand_in.Worker."""
    monkeypatch.setattr(weights_change, '_changed', False)
    module = ModuleType('stand_in')
    module.Worker = type('Worker', (Base,), {'said': []})
    monkeypatch.setitem(sys.modules, 'stand_in', module)
    return module.Worker


@pytest.mark.parametrize('method', weight_watch._METHODS)
def test_it_is_told_before_they_change_and_later_ones_decline(worker, method):
    watcher, other = Watcher(worker.said), Watcher([])
    for one in (watcher, other):
        weight_watch.watch(one, 'stand_in.Worker')
    assert getattr(worker(), method)('argument') == method
    assert worker.said == ['told', method] and other.said == ['told']
    with pytest.raises(Declined, match='restart'):
        weight_watch.watch(Watcher([]), 'stand_in.Worker')


def test_a_worker_that_is_not_known_is_declined(worker):
    with pytest.raises(Declined, match='cannot be heard of'):
        weight_watch.watch(Watcher([]), 'nobody.Worker')
    with pytest.raises(Declined, match='cannot be heard of'):
        weight_watch.watch(Watcher([]), 'auto')
    del Base.update_weights
    try:
        with pytest.raises(Declined, match='update_weights'):
            weight_watch.watch(Watcher([]), 'stand_in.Worker')
    finally:
        Base.update_weights = lambda self, *args: self._do('update_weights')
