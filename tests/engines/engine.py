"""A real vLLM engine in a process of its own, as tests talk to it."""
import argparse
import inspect
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

_ENVIRONMENT = {
    'HF_HUB_OFFLINE': '1', 'TRANSFORMERS_OFFLINE': '1', 'VLLM_NO_USAGE_STATS': '1', 'DO_NOT_TRACK': '1',
    'VLLM_CPU_KVCACHE_SPACE': '1', 'VLLM_CPU_OMP_THREADS_BIND': 'nobind', 'TOKENIZERS_PARALLELISM': 'false',
    # Two threads that wait for each other on a busy machine take many times what one takes.
    'OMP_NUM_THREADS': '1',
}
BLOCK = 32
TEXT = inspect.getsource(argparse) + inspect.getsource(textwrap)  # to make prompts of
TIE = 1e-3  # nearer than this, another order of the same sums may choose the other token
ENOUGH = 0.8  # of the tokens that a test takes for the same it has compared
HITS = 'vllm:external_prefix_cache_hits'  # tokens that came from the connector
PREEMPTIONS = 'vllm:num_preemptions'


def connector(door, **extra):
    """The flags of docs/VLLM.md for a daemon's door, with deadlines that only a bug reaches on a busy machine."""
    extra = {'socket': door, 'lookup_deadline_ms': 5000, 'load_deadline_ms': 20000, 'store_deadline_ms': 20000,
             'min_load_tokens': BLOCK, **extra}
    return {'kv_connector': 'KvartalConnector', 'kv_connector_module_path': 'kvartal.vllm', 'kv_role': 'kv_both',
            'kv_load_failure_policy': 'recompute', 'kv_connector_extra_config': extra}


class Engine:
    """Starts with the object, ends with its context. Its log lies at `log_path`."""

    def __init__(self, log_path, connector=None, processes=False, environment=None, **arguments):
        arguments = {'max_model_len': 4096, 'dtype': 'float32', 'block_size': BLOCK, 'max_num_seqs': 8,
                     'prefix_caching_hash_algo': 'sha256_cbor', 'connector': connector, **arguments}
        self.log_path = Path(log_path)
        self._log = open(log_path, 'w')
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name('serve_lines.py')), os.environ['KVARTAL_TEST_MODEL'],
             json.dumps(arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, **_ENVIRONMENT, 'VLLM_ENABLE_V1_MULTIPROCESSING': '1' if processes else '0',
                 **(environment or {})})
        assert self._answer() == 'ready'

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f'the engine ended: {self.log()[-4000:]}')
        return json.loads(line)

    def send(self, question):
        """Asks, and does not wait."""
        self._process.stdin.write(json.dumps(question) + '\n')
        self._process.stdin.flush()

    def receive(self):
        """The answer to what was sent."""
        return self._answer()

    def ask(self, question):
        """Asks and waits."""
        self.send(question)
        return self.receive()

    def generate(self, *prompts, tokens=8, salt=None):
        """One answer a prompt; several prompts run together."""
        return self.ask({'generate': prompts, 'tokens': tokens, 'salt': salt})

    def one(self, prompt, tokens=8, salt=None):
        """The answer to one prompt."""
        return self.generate(prompt, tokens=tokens, salt=salt)[0]

    def ttft_s(self, prompt):
        """Seconds to the first token of an answer to that prompt, of which nothing else is wanted."""
        (answer,) = self.ask({'generate': [prompt], 'tokens': 2, 'salt': None, 'bare': True})
        return answer['ttft_s']

    def tokenize(self, text):
        """The tokens of a text."""
        return self.ask({'tokenize': text})

    def forget(self, connector=False):
        """Empties the engine's own prefix cache, so that the next hit comes from the connector."""
        for _ in range(100):
            if self.ask({'reset': True, 'connector': connector}):
                return
            self.one([1, 2, 3], tokens=1)  # stores of finished requests are reaped by a step
        raise AssertionError('the engine keeps blocks')

    def cold(self, prompt, tokens=8):
        """The answer computed in full: its salt is like no other."""
        return self.one(prompt, tokens, salt=os.urandom(8).hex())

    def metric(self, name):
        """A counter of the engine, in total."""
        return self.ask({'metric': name})

    def kill_at(self, method, pid):
        """The next call of that method of the package kills the process first."""
        self.ask({'at': method, 'kill': pid})

    def answer_at(self, method, value):
        """The next call of that method of the package answers this."""
        self.ask({'at': method, 'answer': value})

    def log(self):
        """All it printed."""
        return self.log_path.read_text()


def usable(prompt):
    """Tokens of a prompt that can be loaded: whole blocks, and one token is left to compute."""
    return (len(prompt) - 1) // BLOCK * BLOCK


class Tally:
    """Tokens of the answers that were the same by `same_tokens`: all, and those that it compared."""

    def __init__(self):
        self.begin()

    def begin(self):
        """From here on it counts anew."""
        self.all = self.compared = 0

    def is_enough(self):
        """Whether ties did not leave most of it unseen."""
        return self.compared >= ENOUGH * self.all


tally = Tally()  # of the test that runs: conftest.py begins it, and asks it in the end


def same_tokens(answer, reference):
    """Whether both chose the same tokens, up to the first choice that differs and was a tie: for runs that computed in
    batches of other shapes. What follows a tie cannot be compared, and the tally tells how much that was."""
    assert answer['finish'] == reference['finish'] == 'length'
    compared = 0
    for ours, theirs, margin in zip(answer['tokens'], reference['tokens'], reference['margins'], strict=True):
        if ours != theirs:
            if margin >= TIE:
                return False
            break
        compared += 1
    tally.all += len(reference['tokens'])
    tally.compared += compared
    return True


def equal_tokens(answer, reference):
    """Whether both chose the same tokens throughout: for runs that computed in batches of the same shapes, as one
    request at a time does that finds as much."""
    assert answer['finish'] == reference['finish'] == 'length'
    return answer['tokens'] == reference['tokens']
