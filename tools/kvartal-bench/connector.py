"""What the vLLM connector adds to a scheduler's step for a request that hits nothing: the lookup and all around it,
without an engine. Started by `kvartal-bench connector`; prints one JSON object.

usage: scripts/python_env base tools/kvartal-bench/connector.py SOCKET ROUNDS REQUESTS     needs KVARTAL_LIBRARY
Requests come 2 ms apart, so that the daemon sleeps in between.
"""
import json
import os
import statistics
import sys
import time
from types import SimpleNamespace

import kvartal
from kvartal.vllm.options import Options
from kvartal.vllm.scheduler import SchedulerSide

GAP_S = 0.002
BLOCK = 128
CHAINS = (12, 64)  # blocks a prompt: 1,500 tokens and 8,000


class NoDaemon:
    """Of a client that answers at once: what is left is Python."""

    group, connected, tenant, error, status = None, True, '', '', kvartal.Status.OK
    _miss = SimpleNamespace(matched=0, request=0, id=0)

    def lookup(self, namespace, keys, prompt_tokens, deadline_ms):
        """A miss."""
        return self._miss


def waited_for_a_core_ns():
    """How long this thread was ready to run, and did not."""
    with open('/proc/thread-self/schedstat', encoding='ascii') as file:
        return int(file.read().split()[1])


def step_us(side, name, blocks):
    """One request's first step: (all of it, waiting for a core in it)."""
    request = SimpleNamespace(num_tokens=blocks * BLOCK + 1, block_hashes=[os.urandom(32) for _ in range(blocks)])
    time.sleep(GAP_S)
    waited = waited_for_a_core_ns()
    begun = time.perf_counter_ns()
    side.begin(name, request, cacheable=True)
    found, _ = side.match(name, 0, 0)
    side.allocated(name, [], found)
    side.take_plan()
    side.finish(name)
    return (time.perf_counter_ns() - begun) / 1e3, (waited_for_a_core_ns() - waited) / 1e3


def side_of(client):
    """A scheduler's half that serves."""
    side = SchedulerSide(client, Options(), BLOCK, engine_blocks=1000, ranks=1)
    side.open(lambda epoch: kvartal.Namespace(b'm' * 32, BLOCK, 1 << 20))
    return side


def percentile(values, percent):
    """Of a sample."""
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def main():
    socket, rounds, requests = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    client = kvartal.Client(socket, 'kvartal-bench')
    if not client.connected:
        sys.exit(f'connector.py: {client.error}')
    served, alone = side_of(client), side_of(NoDaemon())
    figures = {name: {blocks: [] for blocks in CHAINS} for name in ('p50', 'p99', 'core_p99', 'python')}
    for number in range(rounds):
        for blocks in CHAINS:
            steps = [step_us(served, f'{number}-{blocks}-{i}', blocks) for i in range(requests)]
            figures['p50'][blocks].append(percentile([wall for wall, _ in steps], 50))
            figures['p99'][blocks].append(percentile([wall for wall, _ in steps], 99))
            figures['core_p99'][blocks].append(percentile([waited for _, waited in steps], 99))
            steps = [step_us(alone, f'{number}-{blocks}-{i}', blocks) for i in range(requests // 4)]
            figures['python'][blocks].append(percentile([wall for wall, _ in steps], 50))
    unanswered = served.take_counts().get('lookups_unanswered', 0)
    median = {name: {blocks: statistics.median(of) for blocks, of in by_chain.items()}
              for name, by_chain in figures.items()}
    short, long = CHAINS
    per_block = (median['python'][long] - median['python'][short]) / (long - short)
    print(json.dumps({
        'scheduler_p99_ms': max(median['p99'].values()) / 1e3,
        'scheduler_p50_ms': max(median['p50'].values()) / 1e3,
        'waited_for_a_core_p99_ms': max(median['core_p99'].values()) / 1e3,
        'worst_round_p99_ms': max(max(of) for of in figures['p99'].values()) / 1e3,
        'python_us_per_request': median['python'][short] - short * per_block,
        'python_us_per_block': per_block,
        'unanswered': int(unanswered),
    }))


if __name__ == '__main__':
    main()
