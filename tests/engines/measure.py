"""Time to first token of a hit, of a cold run and of the engine's own prefix hit.
usage: scripts/python_env engines tests/engines/measure.py [TOKENS ...]

Needs KVARTAL_BIN_DIR, KVARTAL_LIBRARY and tests/python on PYTHONPATH. One engine in this process, bf16, blocks of 128
tokens, one thread; medians of three.
"""
import os
import statistics
import sys

from daemon import Daemon
from engine import _ENVIRONMENT, connector

os.environ.update(_ENVIRONMENT, VLLM_ENABLE_V1_MULTIPROCESSING='0', VLLM_LOGGING_LEVEL='ERROR')
RUNS = 3


def ttft(llm, vllm, prompt):
    request = vllm.inputs.TokensPrompt(prompt_token_ids=prompt)
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


def main():
    lengths = [int(length) for length in sys.argv[1:]] or [160, 1500, 6000]
    with Daemon(dram='3Gi', tenant_dram='3Gi') as daemon:
        daemon.start()
        import vllm
        import vllm.inputs
        from conftest import TEXT
        llm = vllm.LLM(os.environ['KVARTAL_TEST_MODEL'], enforce_eager=True, seed=0, disable_log_stats=False,
                       max_model_len=8192, dtype='bfloat16', prefix_caching_hash_algo='sha256_cbor',
                       kv_transfer_config=connector(daemon.door(), min_load_tokens=1))
        tokens = llm.get_tokenizer()(TEXT)['input_ids']
        ttft(llm, vllm, tokens[-300:])
        for length in lengths:
            compare(llm, vllm, tokens, length)


if __name__ == '__main__':
    main()
