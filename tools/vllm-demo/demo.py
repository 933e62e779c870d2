"""Two tenants talk to two vLLM engines about documents, with Kvartal and without: what a turn costs.

usage: demo.py CHART.svg     (scripts/demo_vllm sets the environment up)
Each engine has room for about a conversation and a half, as one under load has; each tenant keeps four going. Without
Kvartal a conversation that comes back is computed again.
"""
import argparse
import inspect
import os
import statistics
import sys
import tempfile
import textwrap
from dataclasses import dataclass

from chart import write_chart
from daemon import Daemon
from engine import Engine, connector, same_tokens

TENANTS = ('red', 'blue')
CONVERSATIONS, TURNS = 4, 6
SYSTEM, DOCUMENT, QUESTION, ANSWER = 512, 1024, 30, 24  # tokens
ENGINE_BLOCKS, MODEL_LEN = 80, 2048  # of 32 tokens: room for 2,560


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
    return [system + tokens[start:start + DOCUMENT] for start in range(1200, 1200 + 900 * CONVERSATIONS, 900)]


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
    """One mode, from the start of its engines to their end."""
    print(f'{name}: starting an engine for each tenant (half a minute each)', flush=True)
    engines = {}
    try:
        for tenant in TENANTS:
            engines[tenant] = Engine(os.path.join(folder, f'{tenant}-{len(connectors)}.log'), connectors.get(tenant),
                                     num_gpu_blocks_override=ENGINE_BLOCKS, max_model_len=MODEL_LEN)
        text = inspect.getsource(argparse) + inspect.getsource(textwrap)
        tokens = next(iter(engines.values())).tokenize(text)
        for engine in engines.values():
            engine.one(tokens[-40:], tokens=2)  # the first request compiles kernels
        return serve(engines, tokens, lambda turn: print(f'{name}: turn {turn + 1} of {TURNS}', flush=True))
    finally:
        for engine in engines.values():
            engine.__exit__()


def later(turns):
    """Turns in which something could be reused: a conversation's first one has nothing."""
    return [turn for turn in turns if turn.number > 0]


def recomputed(turns):
    """The part of the prompts' tokens that was computed."""
    return 1 - sum(turn.cached_tokens for turn in turns) / sum(turn.prompt_tokens for turn in turns)


def row(tenant, name, turns):
    times = sorted(turn.ttft_s for turn in later(turns))
    p99 = times[min(len(times) - 1, len(times) * 99 // 100)]
    print(f'{tenant:<8} {name:<14} {statistics.median(times):8.2f} s {p99:8.2f} s {recomputed(later(turns)):12.1%}')


def main():
    with (tempfile.TemporaryDirectory(prefix='kvartal-vllm-demo-') as folder,
          Daemon(tenants=TENANTS, dram='2Gi', tenant_dram='1Gi') as daemon):
        daemon.start()
        alone = run('vLLM alone', {}, folder)
        cached = run('with Kvartal', {tenant: connector(daemon.door(tenant)) for tenant in TENANTS}, folder)
        held = daemon.ctl('tenants')
    print(f'\n{"tenant":<8} {"":<14} {"TTFT p50":>10} {"p99":>10} {"recomputed":>12}   (turns 2 to {TURNS})')
    for tenant in TENANTS:
        row(tenant, 'vLLM alone', alone[tenant])
        row(tenant, 'with Kvartal', cached[tenant])
    wrong = sum(not same_tokens(ours.answer, theirs.answer)
                for tenant in TENANTS for ours, theirs in zip(cached[tenant], alone[tenant]))
    print(f'\n{wrong} of {len(TENANTS) * TURNS * CONVERSATIONS} answers differ between the two.\n\n{held}')
    print('Real: vLLM, the model, every token; the daemon, two tenants behind two doors, every byte moved.\n'
          'Scaled down: a small model on the CPU, short documents; an engine has as little room as one under load.')
    write_chart(sys.argv[1], {'vLLM alone': alone, 'with Kvartal': cached})
    print(f'Chart: {sys.argv[1]}')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
