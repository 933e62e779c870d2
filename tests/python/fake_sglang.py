"""As much of SGLang as the HiCache backend touches, without torch: for tests on a machine that has neither. The same
tests run on the real classes in tests/engines.
"""
import contextlib
import hashlib
import sys
from types import ModuleType, SimpleNamespace

import numpy as np

VERSION = '0.5.23'
TOKEN_BYTES = 1 << 10  # of K, over all layers; V has as many


class Bag:
    """A namespace of SGLang's configuration."""

    def __init__(self, **leaves):
        self.__dict__.update(leaves)

    @contextlib.contextmanager
    def override(self, **changes):
        """Sets leaves for a while."""
        before = dict(self.__dict__)
        self.__dict__.update(changes)
        try:
            yield
        finally:
            self.__dict__.clear()
            self.__dict__.update(before)


class RadixKey:
    """Tokens and what divides their caching."""

    def __init__(self, token_ids, extra_key=None, cache_salt=None):
        self.token_ids, self.extra_key, self.cache_salt = token_ids, extra_key, cache_salt


def get_storage_hash_str(key, prior_hash=None, page_size=None):
    """A chained hash for each page, in hexadecimal."""
    hashes, before = [], prior_hash or repr((key.extra_key, key.cache_salt))
    for at in range(0, len(key.token_ids) - page_size + 1, page_size):
        before = hashlib.sha256(f'{before}{list(key.token_ids[at:at + page_size])}'.encode()).hexdigest()
        hashes.append(before)
    return hashes


class HiCacheStorage:
    """The base of backends."""

    def register_mem_pool_host(self, mem_pool_host):
        """The pool of the engine."""
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        """One of its pools."""


class PoolTransferResult:
    """What is there of several pools."""

    def __init__(self, kv_hit_pages, extra_pool_hit_pages):
        self.kv_hit_pages, self.extra_pool_hit_pages = kv_hit_pages, extra_pool_hit_pages

    @classmethod
    def empty(cls):
        """Nothing."""
        return cls(0, {})


class _Buffer:
    """A tensor in host memory."""

    def __init__(self, memory):
        self.memory, self.nbytes, self.shape = memory, memory.nbytes, memory.shape
        self.device = SimpleNamespace(type='cpu')

    def data_ptr(self):
        """Where it begins."""
        return self.memory.ctypes.data

    def is_contiguous(self):
        """Whether it is one piece."""
        return True


class MHATokenToKVPoolHost:
    """K of all pages, then V of all pages; a page is one run of each."""

    parts = 2

    def __init__(self, pages, page_size, layout='page_first', dtype='torch.bfloat16'):
        self.page_size, self.layout, self.dtype = page_size, layout, dtype
        self.size, self.layer_num, self.start_layer, self.end_layer = pages * page_size, 4, 0, 4
        self.kv_buffer = _Buffer(np.zeros((self.parts, self.size, TOKEN_BYTES), np.uint8))

    def get_size_per_token(self):
        """Bytes of a token over all layers."""
        return self.parts * TOKEN_BYTES

    def get_page_buffer_meta(self, indices):
        """Addresses and sizes of pages, given the indices of their tokens."""
        indices = indices.tolist()
        base, part = self.kv_buffer.data_ptr(), self.size * TOKEN_BYTES
        pointers = [base + indices[at] * TOKEN_BYTES + i * part
                    for at in range(0, len(indices), self.page_size) for i in range(self.parts)]
        return pointers, [self.page_size * TOKEN_BYTES] * len(pointers)


class MLATokenToKVPoolHost(MHATokenToKVPoolHost):
    """One run a page."""

    parts = 1


class SchedulerWeightUpdaterManager:
    """Changes weights in place."""

    def _select_runners(self, selector='all'):
        return []

    def update_weights_from_tensor(self):
        """One of the ways."""
        return self._select_runners()


def install(model_path):
    """Makes these importable as sglang, for as long as the process lives; gives its bags of configuration."""
    bags = {
        'model': Bag(model_path=model_path, revision=None, download_dir=None, load_format='auto', dtype='bfloat16',
                     quantization=None, quantization_param_path=None, kv_cache_dtype='auto', context_length=8192,
                     model_impl='auto', json_model_override_args='{}', rl_quant_profile=None, modelopt_quant=None,
                     qsa_indexer_dtype=None, weight_cache_mode='off'),
        'serving': Bag(weight_version='default'),
        'lora': Bag(enable_lora=None, lora_paths=None),
        'memory': Bag(hicache_storage_backend='dynamic'),
        'spec': Bag(speculative_algorithm=None),
        'disagg': Bag(disaggregation_mode='null'),
        'exec': Bag(kernel=Bag(attention_backend='fa3', prefill_attention_backend=None,
                               decode_attention_backend=None)),
    }
    contents = {
        'sglang': {'__version__': VERSION},
        'sglang.srt.configs.model_config': {'is_multimodal_model': lambda names: 'LlavaLlamaForCausalLM' in names,
                                            'is_audio_model': lambda names: 'WhisperForConditionalGeneration' in names},
        'sglang.srt.environ': {'envs': SimpleNamespace(SGLANG_USE_MODELSCOPE=SimpleNamespace(get=lambda: False))},
        'sglang.srt.mem_cache.radix_cache': {'RadixKey': RadixKey},
        'sglang.srt.mem_cache.utils': {'get_storage_hash_str': get_storage_hash_str},
        'sglang.srt.mem_cache.hicache_storage': {'HiCacheStorage': HiCacheStorage,
                                                 'PoolTransferResult': PoolTransferResult},
        'sglang.srt.managers.scheduler_components.weight_updater': {
            'SchedulerWeightUpdaterManager': SchedulerWeightUpdaterManager},
        'sglang.srt.runtime_context': {f'get_{name}': lambda bag=bag: bag for name, bag in bags.items()},
    }
    for name, members in contents.items():
        parts = name.split('.')
        for i in range(1, len(parts) + 1):
            sys.modules.setdefault('.'.join(parts[:i]), ModuleType('.'.join(parts[:i])))
        vars(sys.modules[name]).update(members)
    return bags
