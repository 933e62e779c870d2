"""One vLLM engine that answers questions: a JSON object a line on stdin, its answer a line on stdout.

usage: serve_lines.py MODEL '{"connector": {...} or null, ...arguments of vllm.LLM}'
{"generate": [[token, ...], ...], "tokens": n, "salt": text or null}  -> [{tokens, logprobs, margins, cached, ...}, ...]
    with "bare": true without log-probabilities, which take time of their own
{"abort": [[token, ...], ...], "steps": n}  adds them, steps n times, aborts them all -> steps until the engine is idle
{"storm": [{"prompt": [token, ...], "at": step, "abort_at": step or null}, ...], "tokens": n}  adds and aborts them at
    those steps of the engine -> an answer or null for each
{"tokenize": text} -> [token, ...]      {"reset": true} -> whether the engine's own prefix cache is empty now
{"metric": name} -> its value
{"rpc": method, ...its keyword arguments}  calls that method of vLLM's worker -> true
{"at": "module.Class.method", "kill": pid}  the next call of it kills that process first; {"at": ..., "answer": value}
    the next call of it answers that
"""
import functools
import importlib
import json
import os
import signal
import sys


def arm(question):
    """Plants a fault at the next call of a method of ours."""
    module, owner, name = question['at'].rsplit('.', 2)
    owner = getattr(importlib.import_module(module), owner)
    original = getattr(owner, name)

    @functools.wraps(original)
    def once(*args, **kwargs):
        setattr(owner, name, original)
        if 'kill' not in question:
            return question['answer']
        os.kill(question['kill'], signal.SIGKILL)
        return original(*args, **kwargs)
    setattr(owner, name, once)
    return True


class Engine:
    """vllm.LLM, and what the questions need of it."""

    def __init__(self, model, arguments):
        import vllm
        from vllm.inputs import TokensPrompt
        self.vllm, self.prompt_class = vllm, TokensPrompt
        connector = arguments.pop('connector', None)
        if connector is not None:
            arguments['kv_transfer_config'] = connector
        self.llm = vllm.LLM(model, enforce_eager=True, seed=0, disable_log_stats=False, **arguments)

    def prompt(self, tokens, salt=None):
        prompt = self.prompt_class(prompt_token_ids=tokens)
        if salt:
            prompt['cache_salt'] = salt
        return prompt

    def params(self, tokens, bare=False):
        return self.vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True,
                                        logprobs=None if bare else 2)

    def generate(self, question):
        prompts = [self.prompt(tokens, question.get('salt')) for tokens in question['generate']]
        outputs = self.llm.generate(prompts, self.params(question['tokens'], question.get('bare', False)),
                                    use_tqdm=False)
        return [self.answer(output) for output in outputs]

    def answer(self, output):
        completion = output.outputs[0]
        steps = [sorted((entry.logprob for entry in step.values()), reverse=True) for step in completion.logprobs or []]
        return {'tokens': list(completion.token_ids), 'finish': completion.finish_reason,
                'logprobs': [step[0] for step in steps], 'margins': [step[0] - step[1] for step in steps],
                'cached': output.num_cached_tokens, 'ttft_s': output.metrics.first_token_latency}

    def abort(self, question):
        engine = self.llm.llm_engine
        names = [f'aborted-{os.urandom(4).hex()}' for _ in question['abort']]
        for name, tokens in zip(names, question['abort']):
            engine.add_request(name, self.prompt(tokens), self.params(64))
        for _ in range(question['steps']):
            engine.step()
        engine.abort_request(names)
        steps = 0
        while engine.has_unfinished_requests():
            engine.step()
            steps += 1
        return steps

    def storm(self, question):
        engine, requests = self.llm.llm_engine, question['storm']
        names = [f'storm-{os.urandom(4).hex()}' for _ in requests]
        answers, step = {}, 0
        waiting, running = set(range(len(requests))), set()
        while waiting or running:
            for i in [i for i in waiting if requests[i]['at'] <= step]:
                engine.add_request(names[i], self.prompt(requests[i]['prompt']), self.params(question['tokens']))
                waiting.remove(i)
                running.add(i)
            gone = [i for i in running if requests[i]['abort_at'] is not None and requests[i]['abort_at'] <= step]
            engine.abort_request([names[i] for i in gone])
            running.difference_update(gone)
            for output in engine.step():
                if output.finished and output.request_id in names:
                    answers[names.index(output.request_id)] = self.answer(output)
                    running.discard(names.index(output.request_id))
            step += 1
        return [answers.get(i) for i in range(len(requests))]

    def metric(self, question):
        return sum(metric.value for metric in self.llm.get_metrics() if metric.name == question['metric'])

    def ask(self, question):
        if 'generate' in question:
            return self.generate(question)
        if 'storm' in question:
            return self.storm(question)
        if 'abort' in question:
            return self.abort(question)
        if 'tokenize' in question:
            return self.llm.get_tokenizer()(question['tokenize'])['input_ids']
        if 'rpc' in question:
            self.llm.collective_rpc(question.pop('rpc'), kwargs=question)
            return True
        if 'reset' in question:
            return self.llm.reset_prefix_cache(reset_connector=question['connector'])
        return arm(question) if 'at' in question else self.metric(question)


def main():
    answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)  # what the engine prints is its log
    engine = Engine(sys.argv[1], json.loads(sys.argv[2]))
    print('"ready"', file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(engine.ask(json.loads(line))), file=answers, flush=True)


if __name__ == '__main__':
    main()
