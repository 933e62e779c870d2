"""One vLLM engine that answers questions: a JSON object a line on stdin, its answer a line on stdout.

usage: serve_lines.py MODEL '{"connector": {...} or null, ...arguments of vllm.LLM}'
{"generate": [[token, ...], ...], "tokens": n, "salt": text or null}  -> [{tokens, logprobs, cached, ttft_s}, ...]
{"tokenize": text} -> [token, ...]      {"reset": true} -> whether the engine's own prefix cache is empty now
{"hits": true} -> tokens that came from the connector, in total
"""
import json
import os
import sys


def requests_of(question, TokensPrompt):
    for tokens in question['generate']:
        prompt = TokensPrompt(prompt_token_ids=tokens)
        if question.get('salt'):
            prompt['cache_salt'] = question['salt']
        yield prompt


def generate(llm, question, SamplingParams, TokensPrompt):
    params = SamplingParams(temperature=0, max_tokens=question['tokens'], ignore_eos=True, logprobs=1)
    outputs = llm.generate(list(requests_of(question, TokensPrompt)), params, use_tqdm=False)
    return [{'tokens': list(output.outputs[0].token_ids),
             'logprobs': [next(iter(step.values())).logprob for step in output.outputs[0].logprobs],
             'cached': output.num_cached_tokens, 'finish': output.outputs[0].finish_reason,
             'ttft_s': output.metrics.first_token_latency} for output in outputs]


def metric(llm, name):
    return sum(metric.value for metric in llm.get_metrics() if metric.name == name)


def main():
    answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)  # what the engine prints is its log
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt
    model, arguments = sys.argv[1], json.loads(sys.argv[2])
    connector = arguments.pop('connector', None)
    if connector is not None:
        arguments['kv_transfer_config'] = connector
    llm = LLM(model, enforce_eager=True, seed=0, disable_log_stats=False, **arguments)
    print('"ready"', file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        if 'generate' in question:
            answer = generate(llm, question, SamplingParams, TokensPrompt)
        elif 'tokenize' in question:
            answer = llm.get_tokenizer()(question['tokenize'])['input_ids']
        elif 'reset' in question:
            answer = llm.reset_prefix_cache(reset_connector=question.get('connector', False))
        else:
            answer = metric(llm, 'vllm:external_prefix_cache_hits')
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == '__main__':
    main()
