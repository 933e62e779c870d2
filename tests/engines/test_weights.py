"""Weights that are changed while the engine runs end its caching: what it computes from then on nobody finds, and what
was there it does not load."""
import os
import shutil
from pathlib import Path

import pytest
from daemon import Daemon
from engine import HITS, Engine, connector, same_tokens, usable
from safetensors.torch import load_file, save_file


@pytest.fixture(scope='module')
def other_model(tmp_path_factory):
    """The model with other weights, of which the first layer computes other KV."""
    folder = tmp_path_factory.mktemp('other') / 'model'
    shutil.copytree(os.environ['KVARTAL_TEST_MODEL'], folder)
    (weights,) = Path(folder).glob('*.safetensors')
    tensors = load_file(weights)
    for name in tensors:
        if 'layers.0.self_attn.v_proj' in name:
            tensors[name] = -tensors[name]
    save_file(tensors, weights, {'format': 'pt'})
    return folder


@pytest.mark.parametrize('processes', [False, True])
def test_weights_that_are_reloaded_end_the_caching(logs, tokens, other_model, processes):
    old, new = tokens[:330], tokens[400:730]
    with Daemon(dram='1Gi', tenant_dram='1Gi') as daemon:
        door = daemon.start().door()
        with Engine(logs / f'reloaded-{processes}.log', connector(door), processes, max_model_len=1024) as engine:
            engine.one(old)
            engine.forget()
            before = engine.metric(HITS)
            engine.one(old)
            assert engine.metric(HITS) - before == usable(old)
            engine.ask({'rpc': 'reload_weights', 'weights_path': str(other_model)})
            engine.forget()
            before = engine.metric(HITS)
            answers = [engine.one(prompt) for prompt in (new, old)]
            engine.forget(connector=True)
            engine.one(old)
            # The step after the change may promise what it does not get.
            assert engine.metric('vllm:kvartal_uncached') == 1 and engine.metric(HITS) - before == 0
            assert sum('its weights were changed while it ran' in line for line in engine.log().splitlines()) == 1
        with Engine(logs / f'after-{processes}.log', connector(door), max_model_len=1024) as engine:
            cold = [engine.cold(prompt) for prompt in (new, old)]
            assert not same_tokens(answers[0], cold[0]), 'the other weights say the same: the test shows nothing'
            assert same_tokens(engine.one(new), cold[0]) and engine.metric(HITS) == 0
            assert same_tokens(engine.one(old), cold[1]) and engine.metric(HITS) == usable(old)
