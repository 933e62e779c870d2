"""Two tenants talk to two vLLM engines about documents, with Kvartal and without: what a turn costs.

usage: demo.py CHART.svg     (scripts/demo_vllm sets the environment up)
Each engine has room for a conversation and a quarter, as one under load has; each tenant keeps two going, of up to as
many tokens as the model takes. Without Kvartal a conversation that comes back is computed again. In the end a hit is
timed against a cold run and against the engine's own hit. Exits with 1 when a figure misses its bar.
"""
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass

import measure
from chart import write_chart
from daemon import Daemon
from engine import ENOUGH, HITS, TEXT, Engine, connector, same_tokens, tally

TENANTS = ('red', 'blue')
CONVERSATIONS, TURNS = 2, 6
MODEL_LEN = 8192  # tokens
SYSTEM, QUESTION, ANSWER = 1500, 30, 24
DOCUMENT = MODEL_LEN - SYSTEM - TURNS * (QUESTION + ANSWER)  # the last turn ends at the model's limit
ENGINE_BLOCKS = 320  # of 32 tokens: room for 10,240
RECOMPUTED, RECOMPUTED_ALONE = 0.06, 0.38  # of the prompts' tokens after the first turn: at most, at least
QUERIES = 'vllm:external_prefix_cache_queries'  # tokens that were asked of the connector


@dataclass
class Turn:
    """One request and its answer."""

    number: int
    prompt_tokens: int
    cached_tokens: int
    ttft_s: float
    answer: dict


def conversations_of(tokens, tenant):
    """A tenant's beginnings: one system prompt, a document for each conversation."""
    base = 300 * TENANTS.index(tenant)
    system = tokens[base:base + SYSTEM]
    return [system + tokens[start:start + DOCUMENT] for start in range(2200, 2200 + 900 * CONVERSATIONS, 900)]


def serve(engines, tokens, say):
    """All turns of all tenants, each tenant's conversations in turn: tenant -> turns."""
    prompts = {tenant: conversations_of(tokens, tenant) for tenant in engines}
    turns = {tenant: [] for tenant in engines}
    for number in range(TURNS):
        for i in range(CONVERSATIONS):
            for tenant, engine in engines.items():
                begin = 40 * (number * CONVERSATIONS + i)
                prompts[tenant][i] = prompts[tenant][i] + tokens[begin:begin + QUESTION]
                engine.send({'generate': [prompts[tenant][i]], 'tokens': ANSWER, 'salt': None})
            for tenant, engine in engines.items():
                (answer,) = engine.receive()
                turns[tenant].append(Turn(number, len(prompts[tenant][i]), answer['cached'], answer['ttft_s'], answer))
                prompts[tenant][i] = prompts[tenant][i] + answer['tokens']
        say(number)
    return turns


def run(name, connectors, folder):
    """One mode, from the start of its engines to their end: tenant -> turns, tenant -> its hit rate at Kvartal."""
    print(f'{name}: starting an engine for each tenant (half a minute each)', flush=True)
    engines = {}
    try:
        for tenant in TENANTS:
            engines[tenant] = Engine(os.path.join(folder, f'{tenant}-{len(connectors)}.log'), connectors.get(tenant),
                                     num_gpu_blocks_override=ENGINE_BLOCKS, max_model_len=MODEL_LEN)
        tokens = next(iter(engines.values())).tokenize(TEXT)
        for engine in engines.values():
            engine.one(tokens[-40:], tokens=2)  # the first request compiles kernels
        turns = serve(engines, tokens, lambda turn: print(f'{name}: turn {turn + 1} of {TURNS}', flush=True))
        asked = {tenant: engine.metric(QUERIES) for tenant, engine in engines.items()}
        return turns, {tenant: engine.metric(HITS) / asked[tenant] for tenant, engine in engines.items()
                       if asked[tenant]}
    finally:
        for engine in engines.values():
            engine.__exit__()


def later(turns):
    """Turns in which something could be reused: a conversation's first one has nothing."""
    return [turn for turn in turns if turn.number > 0]


def recomputed(turns):
    """The part of the prompts' tokens that was computed."""
    return 1 - sum(turn.cached_tokens for turn in turns) / sum(turn.prompt_tokens for turn in turns)


def row(tenant, name, turns, hit_rates):
    times = sorted(turn.ttft_s for turn in later(turns))
    p99 = times[min(len(times) - 1, len(times) * 99 // 100)]
    print(f'{tenant:<8} {name:<14} {statistics.median(times):8.2f} s {p99:8.2f} s {recomputed(later(turns)):12.1%} '
          + (f'{hit_rates[tenant]:10.1%}' if tenant in hit_rates else f'{"-":>10}'))


def bars(alone, cached, times):
    """What has to hold: (what, seen, whether it does)."""
    tally.begin()
    same = [same_tokens(ours.answer, theirs.answer)
            for tenant in TENANTS for ours, theirs in zip(cached[tenant], alone[tenant], strict=True)]
    yield 'answers that differ between the two: none', f'{same.count(False)} of {len(same)}', all(same)
    yield f'tokens of the others compared >= {ENOUGH:.0%}', f'{tally.compared} of {tally.all}', tally.is_enough()
    for tenant in TENANTS:
        seen = recomputed(later(cached[tenant]))
        yield f'{tenant}: recomputed with Kvartal <= {RECOMPUTED:.0%}', f'{seen:.1%}', seen <= RECOMPUTED
        seen = recomputed(later(alone[tenant]))
        yield f'{tenant}: recomputed alone >= {RECOMPUTED_ALONE:.0%}', f'{seen:.1%}', seen >= RECOMPUTED_ALONE
    for one in times:
        yield from measure.bars(one)


def main():
    with (tempfile.TemporaryDirectory(prefix='kvartal-vllm-demo-') as folder,
          Daemon(tenants=TENANTS, dram='2Gi', tenant_dram='1Gi') as daemon):
        daemon.start()
        alone, _ = run('vLLM alone', {}, folder)
        cached, hit_rates = run('with Kvartal', {tenant: connector(daemon.door(tenant)) for tenant in TENANTS}, folder)
        held = daemon.ctl('tenants')
        print('timing a hit: an engine of its own', flush=True)
        times = measure.measure(measure.OF_COLD, folder, lambda one: print(one, flush=True))
    print(f'\n{"tenant":<8} {"":<14} {"TTFT p50":>10} {"p99":>10} {"recomputed":>12} {"hit rate":>10}   '
          f'(turns 2 to {TURNS}; the hit rate is of all that was asked of Kvartal)')
    for tenant in TENANTS:
        row(tenant, 'vLLM alone', alone[tenant], {})
        row(tenant, 'with Kvartal', cached[tenant], hit_rates)
    print(f'\n{held}')
    print('Real: vLLM, the model, every token; the daemon, two tenants behind two doors, every byte moved.\n'
          'Scaled down: a small model on the CPU; an engine has as little room as one under load.')
    write_chart(sys.argv[1], {'vLLM alone': alone, 'with Kvartal': cached})
    print(f'Chart: {sys.argv[1]}')
    return measure.verdict(bars(alone, cached, times))


if __name__ == '__main__':
    sys.exit(main())
