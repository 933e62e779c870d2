"""What vLLM's scheduler and its runners do with a connector, step by step and in their order, without vLLM: a pool of
blocks with a prefix cache, chunked prefill, preemption, aborts, loads beside the steps. The pages are numpy memory; a
page of a block that is full carries the key of that block, so that whoever reads it can tell whose it is.

Every assertion here is one of vLLM's, on which the engine would die, or one of wrong bytes, which it would not notice.
"""
import functools
import hashlib
import pickle
from collections import OrderedDict, deque
from types import SimpleNamespace

import fake_vllm
import numpy as np

BLOCK = 16  # tokens
LAYERS, PAGE = 2, 4096
KEY = 32  # bytes


@functools.cache
def page_of(key, layer, rank, weights=0):
    """What a full block's page holds; weights: how often they were changed."""
    return np.tile(np.frombuffer(hashlib.sha256(key + bytes([layer, rank, weights])).digest(), np.uint8), PAGE // KEY)


class Request:
    """As vLLM's: its tokens and block hashes grow as it runs."""

    lora_request = prompt_embeds = pooling_params = None
    mm_features, skip_reading_prefix_cache = (), False

    def __init__(self, name, tokens, salt, end):
        self.request_id, self.tokens, self.end = name, list(tokens), end
        self.block_hashes = []
        self._before = hashlib.sha256(salt.encode()).digest()
        self.num_preemptions = self.num_computed_tokens = 0
        self.status, self.blocks = 'waiting', []
        self._hash()

    def _hash(self):
        while (len(self.block_hashes) + 1) * BLOCK <= len(self.tokens):
            at = len(self.block_hashes) * BLOCK
            self._before = hashlib.sha256(self._before + repr(self.tokens[at:at + BLOCK]).encode()).digest()
            self.block_hashes.append(self._before)

    @property
    def num_tokens(self):
        """Of the prompt and what was generated."""
        return len(self.tokens)

    def append(self, token):
        """One was generated."""
        self.tokens.append(token)
        self._hash()


class Pool:
    """Blocks 1 to count - 1: free ones, the oldest first, some of which still hold a hashed block."""

    def __init__(self, count):
        self.free = OrderedDict.fromkeys(range(1, count))
        self.used = {}
        self.of_hash, self.hash_of = {}, {}

    def take(self, count):
        """New blocks, or None."""
        if count > len(self.free):
            return None
        taken = [self.free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            if (key := self.hash_of.pop(block, None)) is not None:
                del self.of_hash[key]
            self.used[block] = 1
        return taken

    def hit(self, keys):
        """Blocks of the leading keys that are there, one more user each."""
        found = []
        for key in keys:
            if (block := self.of_hash.get(key)) is None:
                break
            found.append(block)
            self.free.pop(block, None)
            self.used[block] = self.used.get(block, 0) + 1
        return found

    def give(self, blocks):
        """They are used once less; the tail goes first."""
        for block in reversed(blocks):
            self.used[block] -= 1
            if self.used[block] == 0:
                del self.used[block]
                self.free[block] = None

    def name(self, block, key):
        """That block is full now."""
        if key not in self.of_hash and block not in self.hash_of:
            self.of_hash[key], self.hash_of[block] = block, key

    def forget(self):
        """Empties the prefix cache, as far as blocks are free."""
        for block in list(self.free):
            if (key := self.hash_of.pop(block, None)) is not None:
                del self.of_hash[key]


class Engine:
    """A scheduler's connector, one connector a rank, and all that is between them."""

    def __init__(self, make, ranks, blocks, chance, per_step=160, max_running=6):
        """make: role -> a connector. chance: a random.Random."""
        self.pool, self.chance, self.per_step, self.max_running = Pool(blocks), chance, per_step, max_running
        self.memory = [np.zeros((LAYERS, blocks, PAGE), np.uint8) for _ in range(ranks)]
        roles = fake_vllm.KVConnectorRole
        self.workers = [make(roles.WORKER, rank) for rank in range(ranks)]
        for worker, memory in zip(self.workers, self.memory):
            worker.register_kv_caches({f'layer {i}': fake_vllm.Tensor(memory, memory[i]) for i in range(LAYERS)})
        self.scheduler = make(roles.SCHEDULER)
        self.scheduler.set_xfer_handshake_metadata(
            {rank: worker.get_handshake_metadata() for rank, worker in enumerate(self.workers)})
        self.requests, self.waiting, self.running = {}, deque(), []
        self.finished, self.received, self.failed = set(), set(), set()
        self.loading = {}  # request -> (first place, engine blocks)
        self._told = {'sent': {}, 'received': {}}  # by how many ranks
        self.weights = 0
        self.chains = set()  # of the requests that ended
        self.loaded_blocks = self.preemptions = self.failed_blocks = self.aborted_loads = 0

    # --- what happens to it

    def add(self, request):
        """A request arrives."""
        self.requests[request.request_id] = request
        self.waiting.append(request)
        self.scheduler.on_new_request(request)

    def abort(self, name):
        """Its client is gone."""
        request = self.requests.get(name)
        if request is not None and request.status != 'finished':
            was_loading = request.status == 'loading' and name not in self.received
            self.received.discard(name)
            self.failed.discard(name)
            self.aborted_loads += was_loading
            self._end(request, was_loading)

    def close(self):
        """The engine ends."""
        for connector in (*self.workers, self.scheduler):
            connector.shutdown()

    # --- a step

    def step(self):
        """One step of the engine."""
        self._abort_amid_a_load()
        out = self._schedule()
        metadata = self.scheduler.build_connector_meta(out)
        out.kv_connector_block_state = None
        self._update(out, [self._run(rank, pickle.loads(pickle.dumps(metadata)), out)
                           for rank in range(len(self.workers))])

    def _abort_amid_a_load(self):
        """Now and then: loads are short, and aborts at any moment miss them."""
        loading = sorted(name for name in self.loading if self.requests[name].status == 'loading')
        if loading and self.chance.random() < 0.1:
            self.abort(self.chance.choice(loading))

    def _schedule(self):
        self._preempted, left, scheduled = [], self.per_step, []
        for request in list(self.running):
            if request not in self.running:
                continue  # preempted meanwhile
            count = min(left, request.num_tokens - request.num_computed_tokens)
            while count and not self._grow(request, request.num_computed_tokens + count):
                victim = self.running.pop()
                self._preempt(victim)
                scheduled = [one for one in scheduled if one[0] is not victim]
                if victim is request:
                    count = 0
            if count:
                scheduled.append((request, count, False))
                left -= count
        # Those that hold blocks go first: others wait for those.
        self.waiting = deque(sorted(self.waiting, key=lambda request: not request.blocks))
        skipped = deque()
        while self.waiting and not self._preempted and len(self.running) < self.max_running and left:
            request = self.waiting.popleft()
            admitted = self._admit(request, left)
            if admitted is None:  # no room: those behind it wait, too
                self.waiting.appendleft(request)
                break
            if not admitted:
                skipped.append(request)
                continue
            scheduled.append((request, admitted, True))
            left -= admitted
        self.waiting.extendleft(reversed(skipped))
        finished, self.finished = self.finished, set()
        old = [request for request, _, new in scheduled if not new]
        return SimpleNamespace(
            scheduled=scheduled, preempted_req_ids=set(self._preempted) or None, finished_req_ids=finished,
            num_scheduled_tokens={request.request_id: count for request, count, _ in scheduled},
            scheduled_new_reqs=[SimpleNamespace(req_id=request.request_id,
                                                num_computed_tokens=request.num_computed_tokens)
                                for request, _, new in scheduled if new],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[request.request_id for request in old],
                num_computed_tokens=[request.num_computed_tokens for request in old]),
            kv_connector_block_state=SimpleNamespace(
                resolve_block_ids=lambda name: [list(self.requests[name].blocks)]),
            total_num_scheduled_tokens=sum(count for _, count, _ in scheduled))

    def _grow(self, request, tokens):
        """Whether it has blocks for that many tokens now."""
        more = -(-tokens // BLOCK) - len(request.blocks)
        if more <= 0:
            return True
        taken = self.pool.take(more)
        if taken is None:
            return False
        request.blocks += taken
        return True

    def _preempt(self, request):
        self.preemptions += 1
        self._preempted.append(request.request_id)
        self.pool.give(request.blocks)
        request.blocks, request.num_computed_tokens, request.status = [], 0, 'waiting'
        request.num_preemptions += 1
        self.waiting.appendleft(request)

    def _admit(self, request, left):
        """Tokens to compute of a waiting request; 0: another time; None: no room."""
        name, external = request.request_id, 0
        if request.status == 'loading':
            if name not in self.received:
                return 0
            self._promote(request)
        if request.num_computed_tokens == 0:
            assert not request.blocks
            hit = self.pool.hit(request.block_hashes[:(request.num_tokens - 1) // BLOCK])
            external, beside = self.scheduler.get_num_new_matched_tokens(request, len(hit) * BLOCK)
            if external is None:
                self.pool.give(hit)
                return 0
            assert beside == (external > 0), 'a cache that is loaded beside the steps'
            assert len(hit) * BLOCK + external < request.num_tokens, 'one token is left to compute'
            request.blocks, computed = hit, len(hit) * BLOCK + external
        else:
            computed = request.num_computed_tokens
        count = 0 if external else min(left, request.num_tokens - computed)
        # Now and then there is no room for reasons of its own.
        if self.chance.random() < 0.1 or not self._grow(request, computed + count):
            if request.num_computed_tokens == 0:
                self.pool.give(request.blocks)
                request.blocks = []
            return None
        self.scheduler.update_state_after_alloc(
            request, SimpleNamespace(get_block_ids=lambda: [list(request.blocks)]), external)
        request.num_computed_tokens = computed
        if external:
            request.status = 'loading'
            first = (computed - external) // BLOCK
            self.loading[name] = (first, request.blocks[first:computed // BLOCK])
            return 0
        request.status = 'running'
        self.running.append(request)
        return count

    def _promote(self, request):
        self.received.remove(request.request_id)
        if request.request_id in self.failed:
            self.failed.remove(request.request_id)
            if request.num_computed_tokens == 0:
                self.pool.give(request.blocks)
                request.blocks = []
        self._name_full(request)
        request.status = 'waiting'

    def _name_full(self, request):
        for i in range(request.num_computed_tokens // BLOCK):
            self.pool.name(request.blocks[i], request.block_hashes[i])

    def _run(self, rank, metadata, out):
        """One rank's part of a step: as gpu/kv_connector.py of vLLM has it."""
        worker = self.workers[rank]
        worker.handle_preemptions(metadata)
        worker.bind_connector_metadata(metadata)
        for request, count, _ in out.scheduled:
            self._compute(rank, request, count)
        worker.start_load_kv(SimpleNamespace(attn_metadata=object() if out.scheduled else None))
        worker.wait_for_save()
        results = worker.get_transfer_results(out.finished_req_ids)
        invalid = worker.get_block_ids_with_load_errors()
        worker.get_kv_connector_stats()
        told = worker.build_connector_worker_meta()
        worker.clear_connector_metadata()
        return results, invalid, told and pickle.loads(pickle.dumps(told))

    def _compute(self, rank, request, count):
        first, end = request.num_computed_tokens, request.num_computed_tokens + count
        for i in range(first // BLOCK):
            self._check(rank, request.blocks[i], request.block_hashes[i], 'is read by attention')
        for i in range(first // BLOCK, -(-end // BLOCK)):
            full = (i + 1) * BLOCK <= end
            for layer in range(LAYERS):
                self.memory[rank][layer, request.blocks[i]] = \
                    page_of(request.block_hashes[i], layer, rank, self.weights) if full else 255

    def _check(self, rank, block, key, what):
        for layer in range(LAYERS):
            # As in vLLM, what was computed before a change of the weights stays.
            assert any((self.memory[rank][layer, block] == page_of(key, layer, rank, weights)).all()
                       for weights in range(self.weights + 1)), f'block {block} {what}'

    def _update(self, out, told):
        """As the scheduler's update_from_output."""
        invalid = set().union(*(one[1] for one in told))
        for name, (first, blocks) in self.loading.items():
            request = self.requests.get(name)
            bad = [i for i, block in enumerate(blocks) if block in invalid]
            if bad and request is not None and request.status == 'loading':
                request.num_computed_tokens = min(request.num_computed_tokens, (first + bad[0]) * BLOCK)
                self.failed.add(name)
                self.failed_blocks += len(bad)
        for request, count, _ in out.scheduled:
            if request.status != 'running':
                continue
            request.num_computed_tokens += count
            self._name_full(request)
            if request.num_computed_tokens == request.num_tokens:
                request.append(1000 + len(request.tokens))
                if request.num_tokens >= request.end:
                    self.running.remove(request)
                    self._end(request)
        metas = [one[2] for one in told if one[2] is not None]
        for other in metas[1:]:
            metas[0] = metas[0].aggregate(other)
        self.scheduler.update_connector_output(SimpleNamespace(kv_connector_worker_meta=metas[0] if metas else None))
        for name in self._of_all_ranks('received', [one[0].finished_recving for one in told]):
            self._received(name)
        for name in self._of_all_ranks('sent', [one[0].finished_sending for one in told]):
            assert self.requests[name].status == 'finished', f'{name} was told as stored while it runs'
            self._free(self.requests[name])

    def _of_all_ranks(self, what, names_of):
        """Those that every rank has told by now. vLLM dies of a name that it does not know."""
        ended = []
        for name in (name for names in names_of for name in names):
            assert name in self.requests, f'{name} was told as {what}, and nobody knows it'
            count = self._told[what][name] = self._told[what].get(name, 0) + 1
            if count == len(self.workers):
                del self._told[what][name]
                ended.append(name)
        return ended

    def _received(self, name):
        request = self.requests[name]
        assert name in self.loading and name not in self.received, f'{name} was told as received twice'
        first, blocks = self.loading.pop(name)
        if request.status == 'finished':
            self._free(request)
            return
        assert request.status == 'loading'
        for i in range(first, request.num_computed_tokens // BLOCK):
            assert not self.weights, 'KV of the weights before was loaded'
            self.loaded_blocks += 1
            for rank in range(len(self.workers)):
                self._check(rank, request.blocks[i], request.block_hashes[i], 'was loaded')
        self.received.add(name)

    def _end(self, request, was_loading=False):
        if request in self.waiting:
            self.waiting.remove(request)
        if request in self.running:
            self.running.remove(request)
        request.status = 'finished'
        self.chains.add(tuple(request.block_hashes))
        waits, _ = self.scheduler.request_finished_all_groups(request, (list(request.blocks),))
        self.finished.add(request.request_id)
        if not (waits or was_loading):
            self._free(request)

    def _free(self, request):
        self.pool.give(request.blocks)
        del self.requests[request.request_id]
