"""Time to first token of a hit, of a cold run and of the engine's own prefix hit.
usage: scripts/python_env engines tests/engines/measure.py [TOKENS ...]

Needs KVARTAL_BIN_DIR, KVARTAL_LIBRARY and tests/python on PYTHONPATH. One engine in bf16, blocks of 128 tokens, one
thread; medians of three. `make demo-vllm` ends with the same.
"""
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass

from daemon import Daemon
from engine import TEXT, Engine, connector

RUNS = 3
OF_COLD = {1500: 0.12, 6000: 0.06}  # tokens: the most that a hit may take of the cold run
OF_LOCAL = 1.25  # the most that a hit may take of the engine's own


@dataclass(frozen=True)
class Times:
    """Medians of the time to the first token of a prompt of that many tokens, in seconds."""

    tokens: int
    cold_s: float
    local_s: float
    loaded_s: float

    def __str__(self):
        return (f'{self.tokens} tokens: cold {self.cold_s:.3f} s, local hit {self.local_s:.3f} s, loaded '
                f'{self.loaded_s:.3f} s; loaded / cold {self.loaded_s / self.cold_s:.3f}, loaded / local '
                f'{self.loaded_s / self.local_s:.2f}')


def times_of(engine, tokens, length):
    """Of an engine that serves with Kvartal; `tokens` are at least that many."""
    cold, local, loaded = [], [], []
    for run in range(RUNS):
        prompt = [1000 + run] + tokens[:length - 1]
        for times in (cold, local, loaded):
            if times is loaded:
                engine.forget()
            times.append(engine.ttft_s(prompt))
        engine.forget()
    return Times(length, *(statistics.median(times) for times in (cold, local, loaded)))


def measure(lengths, folder, say=print):
    """An engine and a daemon of their own: Times for each length."""
    with Daemon(dram='3Gi', tenant_dram='3Gi') as daemon:
        door = daemon.start().door()
        with Engine(os.path.join(folder, 'measure.log'), connector(door, min_load_tokens=1), max_model_len=8192,
                    dtype='bfloat16', block_size=128) as engine:
            tokens = engine.tokenize(TEXT)
            engine.ttft_s(tokens[-300:])  # kernels
            found = []
            for length in lengths:
                found.append(times_of(engine, tokens, length))
                say(found[-1])
            return found


def main():
    with tempfile.TemporaryDirectory(prefix='kvartal-measure-') as folder:
        measure([int(length) for length in sys.argv[1:]] or [160, 1500, 6000], folder,
                lambda times: print(times, flush=True))


if __name__ == '__main__':
    main()
