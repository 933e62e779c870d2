"""What the connector adds to a scheduler's step for a request that hits nothing: the lookup and all around it, without
an engine. usage: scripts/python_env base tests/python/measure_scheduler.py

Needs KVARTAL_BIN_DIR and KVARTAL_LIBRARY. Requests come 2 ms apart, so that the daemon sleeps in between.
"""
import os
import time
from types import SimpleNamespace

from daemon import Daemon

import kvartal
from kvartal.vllm.options import Options
from kvartal.vllm.scheduler import SchedulerSide

REQUESTS = 2000
GAP_S = 0.002
BLOCK = 128


def step(side, name, blocks):
    """Microseconds of one request's first step."""
    request = SimpleNamespace(num_tokens=blocks * BLOCK + 1, block_hashes=[os.urandom(32) for _ in range(blocks)])
    time.sleep(GAP_S)
    begun = time.perf_counter()
    side.begin(name, request, cacheable=True)
    found, _ = side.match(name, 0, 0)
    side.allocated(name, [], found)
    side.take_plan()
    side.finish(name)
    return (time.perf_counter() - begun) * 1e6


def main():
    with Daemon() as daemon:
        client = kvartal.Client(daemon.start().door(), 'measure')
        side = SchedulerSide(client, Options(), BLOCK, engine_blocks=1000, ranks=1)
        side.open(lambda epoch: kvartal.Namespace(b'm' * 32, BLOCK, 1 << 20))
        for blocks in (12, 64):
            times = sorted(step(side, f'{blocks}-{i}', blocks) for i in range(REQUESTS))
            p50, p99 = times[REQUESTS // 2], times[REQUESTS * 99 // 100]
            print(f'{blocks} blocks, a miss: p50 {p50:.0f} us, p99 {p99:.0f} us')


if __name__ == '__main__':
    main()
