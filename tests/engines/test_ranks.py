"""An engine of several tensor-parallel ranks: a block has a shard of each, is found when all are there, and is loaded
by all. The test model has three heads of KV: three ranks have one each."""
import pytest
from daemon import Daemon
from engine import HITS, Engine, connector, equal_tokens, same_tokens, usable

RANKS = 3


@pytest.fixture(scope='module')
def daemon():
    with Daemon(dram='1Gi', tenant_dram='1Gi') as running:
        yield running.start()


def test_ranks_load_what_they_stored_and_no_engine_of_another_number_finds_it(daemon, logs, tokens):
    prompts = [tokens[:330], tokens[1000:1700]]
    lost = tokens[2000:2400]
    with Engine(logs / 'ranks.log', connector(daemon.door()), tensor_parallel_size=RANKS, max_model_len=1024) as engine:
        cold = [engine.one(prompt) for prompt in prompts]
        assert engine.metric(HITS) == 0
        warm = [engine.one(prompt) for prompt in prompts]
        assert [answer['cached'] for answer in warm] == [usable(prompt) for prompt in prompts]
        for prompt, computed, local in zip(prompts, cold, warm):
            engine.forget()
            before = engine.metric(HITS)
            answer = engine.one(prompt)
            assert engine.metric(HITS) - before == answer['cached'] == usable(prompt)
            assert same_tokens(answer, computed)
            assert equal_tokens(answer, local) and answer['logprobs'] == local['logprobs']
        said = [line for line in engine.log().splitlines() if 'Kvartal:' in line]
        assert sum('digest' in line for line in said) == 1 and 'uncached' not in ''.join(said), said
        # Together, with the daemon killed amid it: what is lost on one rank is computed on all.
        cold.append(engine.one(lost))
        engine.forget()
        engine.send({'generate': [*prompts, lost], 'tokens': 8, 'salt': None})
        daemon.kill()
        for answer, computed in zip(engine.receive(), cold):
            assert same_tokens(answer, computed)
        daemon.start()
        engine.forget()
        for prompt, computed in zip(prompts, cold):
            assert same_tokens(engine.one(prompt), computed)
        engine.forget()
        before = engine.metric(HITS)
        assert same_tokens(engine.one(prompts[0]), cold[0])
        assert engine.metric(HITS) - before == usable(prompts[0]), 'it stores again'
    with Engine(logs / 'one-rank.log', connector(daemon.door()), max_model_len=1024) as engine:
        assert same_tokens(engine.one(prompts[0]), cold[0])
        assert engine.metric(HITS) == 0
