"""Two tenants never share; an engine whose blocks run out is right, too."""
import re

import pytest
from daemon import Daemon
from engine import BLOCK, HITS, PREEMPTIONS, Engine, connector, equal_tokens, same_tokens, usable


@pytest.fixture(scope='module')
def daemon():
    with Daemon(tenants=('red', 'blue'), dram='2Gi', tenant_dram='1Gi') as running:
        yield running.start()


def digest(engine):
    """What the engine says its blocks are kept under."""
    return re.search(r'digest (\w+)', engine.log())[1]


def test_equal_prompts_of_two_tenants_do_not_meet(daemon, logs, tokens):
    prompt = tokens[:330]
    with Engine(logs / 'red.log', connector(daemon.door('red')), max_model_len=1024) as red:
        reference = red.one(prompt)
        red.forget()
        assert red.one(prompt)['cached'] == usable(prompt)
        red_digest = digest(red)
    with Engine(logs / 'blue.log', connector(daemon.door('blue')), max_model_len=1024,
                num_gpu_blocks_override=40) as blue:
        answer = blue.one(prompt)
        assert digest(blue) == red_digest, 'nothing but the tenant is to keep them apart'
        assert blue.metric(HITS) == 0, "another tenant's blocks were found"
        assert equal_tokens(answer, reference)
        blue.forget()
        assert blue.one(prompt)['cached'] == usable(prompt)
        run_out_of_blocks(blue, tokens)


def run_out_of_blocks(engine, tokens):
    """40 blocks for four requests of 12 or more each: some are preempted, and find what they stored."""
    prompts = [tokens[n:n + 250] for n in (0, 600, 1200, 1800)]
    cold = [engine.cold(prompt, tokens=4 * BLOCK) for prompt in prompts]
    engine.forget()
    before = engine.metric(PREEMPTIONS)
    for _ in range(2):
        for answer, reference in zip(engine.generate(*prompts, tokens=4 * BLOCK), cold):
            assert same_tokens(answer, reference)
        engine.forget()
    assert engine.metric(PREEMPTIONS) > before, 'nothing was preempted: the test shows nothing'
