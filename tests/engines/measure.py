"""Time to first token of a hit, of a cold run and of the engine's own prefix hit.
usage: measure.py [TOKENS ...]     (scripts/measure_hits sets the environment up)

One engine in bf16, blocks of 128 tokens, one thread; medians of three. Exits with 1 when a figure misses its bar: 1500
and 6000 tokens have one. `make demo-vllm` ends with the same.
"""
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass

from daemon import Daemon
from engine import TEXT, Engine, connector

RUNS = 3
LENGTHS = (160, 420, 1500, 6000)  # a block, three, a long prompt, a longer one
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


def bars(times):
    """What has to hold of a length: (what, seen, whether it does). Only some have bars."""
    if times.tokens not in OF_COLD:
        return
    of_cold, of_local = times.loaded_s / times.cold_s, times.loaded_s / times.local_s
    most = OF_COLD[times.tokens]
    yield f'{times.tokens} tokens: a hit <= {most} of cold', f'{of_cold:.3f}', of_cold <= most
    yield f"{times.tokens} tokens: a hit <= {OF_LOCAL} of the engine's own", f'{of_local:.2f}', of_local <= OF_LOCAL


def verdict(of_bars):
    """Tells each of them; the exit status: 1 when one was missed."""
    missed = False
    for what, seen, met in of_bars:
        print(f'{what:<52} {seen:>8}  {"met" if met else "MISSED"}')
        missed |= not met
    return 1 if missed else 0


def main():
    with tempfile.TemporaryDirectory(prefix='kvartal-measure-') as folder:
        found = measure([int(length) for length in sys.argv[1:]] or LENGTHS, folder,
                        lambda times: print(times, flush=True))
    return verdict(bar for times in found for bar in bars(times))


if __name__ == '__main__':
    sys.exit(main())
