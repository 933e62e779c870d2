"""Time to first token of a hit against a cold run and against the engine's own prefix hit, and what the connector adds
to a step of the scheduler. usage: scripts/python_env engines tests/engines/measure.py [TOKENS ...]

Needs KVARTAL_BIN_DIR, KVARTAL_LIBRARY and tests/python on PYTHONPATH. One engine in this process, bf16, blocks of 128
tokens, one thread; medians of three.
"""
import os
import statistics
import sys
import time

from daemon import Daemon
from engine import _ENVIRONMENT, connector

os.environ.update(_ENVIRONMENT, VLLM_ENABLE_V1_MULTIPROCESSING='0', VLLM_LOGGING_LEVEL='ERROR')
RUNS = 3
METHODS = ('on_new_request', 'get_num_new_matched_tokens', 'update_state_after_alloc', 'build_connector_meta',
           'update_connector_output', 'request_finished_all_groups')


def record_times(owner):
    """Microseconds of each call of the scheduler's methods, by name."""
    times = {name: [] for name in METHODS}
    for name in METHODS:
        original = getattr(owner, name)

        def timed(self, *args, _original=original, _times=times[name]):
            begun = time.perf_counter()
            try:
                return _original(self, *args)
            finally:
                _times.append((time.perf_counter() - begun) * 1e6)
        setattr(owner, name, timed)
    return times


def ttft(llm, vllm, prompt, salt=None):
    request = vllm.inputs.TokensPrompt(prompt_token_ids=prompt)
    if salt:
        request['cache_salt'] = salt
    params = vllm.SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    (output,) = llm.generate([request], params, use_tqdm=False)
    return output.metrics.first_token_latency


def forget(llm, vllm):
    while not llm.reset_prefix_cache():
        ttft(llm, vllm, [1, 2, 3])


def compare(llm, vllm, tokens, length):
    cold, local, loaded = [], [], []
    for run in range(RUNS):
        prompt = [1000 + run] + tokens[:length - 1]
        cold.append(ttft(llm, vllm, prompt))
        local.append(ttft(llm, vllm, prompt))
        forget(llm, vllm)
        loaded.append(ttft(llm, vllm, prompt))
        forget(llm, vllm)
    cold, local, loaded = (statistics.median(times) for times in (cold, local, loaded))
    print(f'{length} tokens: cold {cold:.3f} s, local hit {local:.3f} s, loaded {loaded:.3f} s; loaded / cold '
          f'{loaded / cold:.3f}, loaded / local {loaded / local:.2f}', flush=True)


def quantile(times, part):
    return sorted(times)[min(len(times) - 1, int(len(times) * part))]


def main():
    lengths = [int(length) for length in sys.argv[1:]] or [160, 1500, 6000]
    with Daemon(dram='3Gi', tenant_dram='3Gi') as daemon:
        daemon.start()
        import vllm
        import vllm.inputs
        from conftest import TEXT
        from kvartal.vllm import KvartalConnector
        times = record_times(KvartalConnector)
        llm = vllm.LLM(os.environ['KVARTAL_TEST_MODEL'], enforce_eager=True, seed=0, disable_log_stats=False,
                       max_model_len=8192, dtype='bfloat16', prefix_caching_hash_algo='sha256_cbor',
                       kv_transfer_config=connector(daemon.door(), min_load_tokens=1))
        tokens = llm.get_tokenizer()(TEXT)['input_ids']
        ttft(llm, vllm, tokens[-300:])
        for length in lengths:
            compare(llm, vllm, tokens, length)
        for name in METHODS:
            times[name].clear()
        for run in range(200):  # misses: 300 tokens each, unlike any before
            ttft(llm, vllm, [2000 + run] * 300)
        for name, values in times.items():
            print(f'{name}: {len(values)} calls, p50 {quantile(values, 0.5):.0f} us, '
                  f'p99 {quantile(values, 0.99):.0f} us')


if __name__ == '__main__':
    main()
