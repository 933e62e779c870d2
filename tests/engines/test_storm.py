"""Requests that come, share prefixes, run out of blocks and are aborted at random, while the daemon comes and goes: the
engine lives, and whatever finishes says the right thing. The seed is printed."""
import os
import random
import threading

from daemon import Daemon
from engine import BLOCK, HITS, PREEMPTIONS, Engine, connector, same_tokens

BLOCKS = 48  # of the engine: three or four of these requests at once
ROUNDS = 8
TOKENS = 2 * BLOCK


def prompts_of(tokens, chance):
    """Twelve prompts over three beginnings."""
    made = []
    for i in range(12):
        begin = 700 * (i % 3)
        shared, own = chance.randrange(3, 9) * BLOCK, chance.randrange(20, 100)
        made.append(tokens[begin:begin + shared] + tokens[3000 + 120 * i:3000 + 120 * i + own])
    return made


def weather(prompts, chance):
    """Each prompt twice, at random steps; a third of them aborted."""
    return [{'prompt': prompts[i % len(prompts)], 'at': chance.randrange(60),
             'abort_at': chance.randrange(120) if chance.random() < 0.33 else None} for i in range(2 * len(prompts))]


def test_a_storm_of_requests(logs, tokens):
    seed = int(os.environ.get('KVARTAL_STORM_SEED') or random.randrange(1 << 30))
    print(f'KVARTAL_STORM_SEED={seed}')
    chance = random.Random(seed)
    prompts = prompts_of(tokens, chance)
    with Daemon(dram='1Gi', tenant_dram='1Gi') as daemon, Engine(
            logs / 'storm.log', connector(daemon.start().door()), max_model_len=1024, num_gpu_blocks_override=BLOCKS,
            max_num_batched_tokens=256) as engine:
        cold = [engine.cold(prompt, TOKENS) for prompt in prompts]
        finished = 0
        for round_number in range(ROUNDS):
            storm = weather(prompts, chance)
            fate = None
            if round_number % 4 == 3:
                fate = threading.Timer(chance.uniform(0.5, 5), daemon.kill)
                fate.start()
            answers = engine.ask({'storm': storm, 'tokens': TOKENS})
            for i, answer in enumerate(answers):
                assert answer is not None or storm[i]['abort_at'] is not None, (seed, round_number, i)
                if answer is not None:
                    finished += 1
                    assert same_tokens(answer, cold[i % len(prompts)]), (seed, round_number, i)
            if fate is not None:
                fate.join()
                daemon.kill()
                daemon.start()
            engine.forget()  # fails while a block is held
        assert finished > ROUNDS * len(prompts) and engine.metric(HITS) > 0 and engine.metric(PREEMPTIONS) > 0
        assert ' failed; this engine' not in engine.log() and 'a transfer failed' not in engine.log()
