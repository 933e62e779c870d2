"""What the vLLM connector adds to a scheduler's step for a request that hits nothing, the lookup and all around it, and
what the SGLang backend adds to the copying of a page; without an engine. Started by `kvartal-bench connector`; prints
one JSON object.

usage: scripts/python_env base tools/kvartal-bench/connector.py SOCKET ROUNDS REQUESTS     needs KVARTAL_LIBRARY
Requests come 2 ms apart, so that the daemon sleeps in between.
"""
import json
import os
import statistics
import sys
import time
from types import SimpleNamespace

import numpy as np

import kvartal
from kvartal.sglang.options import Options as HiCacheOptions
from kvartal.sglang.pages import PoolPages
from kvartal.sglang.store import PageStore
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


class MHATokenToKVPoolHost:
    """Laid out like SGLang's, page first: 64 pages of 64 tokens, too small for the copying of their bytes to count."""

    layout, dtype, page_size, layer_num, start_layer, end_layer = 'page_first', 'torch.bfloat16', 64, 32, 0, 32
    _token, _pages = 16, 64

    def __init__(self):
        self.memory = np.ones((2, self._pages * self.page_size, self._token), np.uint8)
        self.kv_buffer = SimpleNamespace(data_ptr=lambda: self.memory.ctypes.data, is_contiguous=lambda: True,
                                         device=SimpleNamespace(type='cpu'), nbytes=self.memory.nbytes,
                                         shape=self.memory.shape)

    def get_size_per_token(self):
        """Bytes over all layers."""
        return 2 * self._token

    def get_page_buffer_meta(self, indices):
        """Addresses and sizes of pages."""
        first = [index for index in indices.tolist() if index % self.page_size == 0]
        addresses = [self.memory[part, index].ctypes.data for index in first for part in (0, 1)]
        return addresses, [self.page_size * self._token] * len(addresses)


def hicache(socket, rounds):
    """Of a prompt of 64 pages, in microseconds: (loading a page, the lookup)."""
    pool = MHATokenToKVPoolHost()
    pages = PoolPages(pool)
    patient = HiCacheOptions(lookup_deadline_ms=20_000, load_deadline_ms=20_000, store_deadline_ms=20_000)
    store = PageStore(kvartal.Client(socket), kvartal.Client(socket),
                      kvartal.Namespace(b'h' * 32, pages.page_tokens, pages.page_bytes), pages, patient,
                      lambda name, value: None)
    keys = [bytes([i] * 32).hex() for i in range(64)]
    indices = np.arange(64 * pages.page_tokens)
    if not all(store.set(keys, indices, None)):
        sys.exit('connector.py: 64 pages could not be stored')
    loads, lookups = [], []
    for _ in range(rounds):
        begun = time.perf_counter()
        store.exists(keys)
        asked = time.perf_counter()
        loaded = store.get(keys, indices)
        copied = time.perf_counter()
        loads.append((copied - asked) * 1e6 / len(keys))
        lookups.append((asked - begun) * 1e6)
        if not all(loaded):
            sys.exit('connector.py: a page was lost')
    store.close()
    return statistics.median(loads), statistics.median(lookups)


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
    hicache_us_per_page, hicache_lookup_us = hicache(socket, rounds)
    print(json.dumps({
        'scheduler_p99_ms': max(median['p99'].values()) / 1e3,
        'scheduler_p50_ms': max(median['p50'].values()) / 1e3,
        'waited_for_a_core_p99_ms': max(median['core_p99'].values()) / 1e3,
        'worst_round_p99_ms': max(max(of) for of in figures['p99'].values()) / 1e3,
        'python_us_per_request': median['python'][short] - short * per_block,
        'python_us_per_block': per_block,
        'unanswered': int(unanswered),
        'hicache_us_per_page': hicache_us_per_page,
        'hicache_lookup_us': hicache_lookup_us,
    }))


if __name__ == '__main__':
    main()
