"""An engine of SGLang as the storage backend sees it: a host pool, keys, configuration. What the tests of
hicache_contract.py run on; fake here, real in tests/engines.
"""
from array import array
from types import SimpleNamespace

import numpy as np
from daemon import PATIENT_MS

PAGE = 16  # tokens
PAGES = 64  # of the pool


def make_model(folder):
    """A folder with a model's configuration and weights."""
    (folder / 'config.json').write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    (folder / 'model.safetensors').write_bytes(bytes(1 << 16))
    return folder


class Rig:
    """An engine's pool and its backend. A subclass for other pools says how their pages are read and written."""

    make_config = SimpleNamespace

    def __init__(self, door, pool, *, mla=False, extra=None, options=None, **config):
        self.pool = pool
        patient = {'socket': door, 'lookup_deadline_ms': PATIENT_MS, 'load_deadline_ms': PATIENT_MS,
                   'store_deadline_ms': PATIENT_MS}
        extra = {'interface_v1': 1, 'kvartal': {**patient, **(options or {})}, **(extra or {})}
        self.backend = self.make_backend(self.make_config(**{
            'tp_rank': 0, 'tp_size': 1, 'pp_rank': 0, 'pp_size': 1, 'attn_cp_rank': 0, 'attn_cp_size': 1,
            'is_mla_model': mla, 'enable_storage_metrics': False, 'is_page_first_layout': True, 'model_name': 'm',
            'tp_lcm_size': None, 'should_split_heads': False, 'dp_rank': 0, 'extra_config': extra, 'dcp_size': 1,
            'dcp_rank': 0, **config}))
        self.backend.register_mem_pool_host(pool)
        self.backend.register_mem_host_pool_v2(pool, 'kv')

    def make_backend(self, config):
        """As SGLang makes it."""
        from kvartal.sglang import KvartalHiCache
        return KvartalHiCache(config, {})

    def close(self):
        """The engine ends."""
        self.backend.close()

    def indices(self, pages):
        """Of the tokens of those pages, as SGLang gives them."""
        return np.concatenate([np.arange(page * PAGE, (page + 1) * PAGE) for page in pages])

    def write(self, page, value):
        """Fills a page with KV; its parts differ."""
        for i in range(self.pool.parts):
            self.pool.kv_buffer.memory[i, page * PAGE:(page + 1) * PAGE] = value + 100 * i

    def holds(self, page, value):
        """Whether a page has what was written with that value."""
        return all((self.pool.kv_buffer.memory[i, page * PAGE:(page + 1) * PAGE] == value + 100 * i).all()
                   for i in range(self.pool.parts))

    def everything(self):
        """The bytes of the whole pool."""
        return self.pool.kv_buffer.memory.tobytes()

    def store(self, keys, first_page=0, value=1, prefix=None):
        """Fills pages from `first_page` on, and stores them under those keys."""
        for i in range(len(keys)):
            self.write(first_page + i, value + i)
        extra = SimpleNamespace(prefix_keys=prefix, extra_info=None)
        return self.backend.batch_set_v1(keys, self.indices(range(first_page, first_page + len(keys))), extra)

    def load(self, keys, pages):
        """Copies the pages of those keys into pages of the pool."""
        return self.backend.batch_get_v1(keys, self.indices(pages), SimpleNamespace(prefix_keys=None))


def keys(count, salt=None, extra_key=None, first=0):
    """Storage keys of a prompt of `count` pages, by the engine's own hash."""
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.utils import get_storage_hash_str
    tokens = array('q', range(first, first + count * PAGE))
    return get_storage_hash_str(RadixKey(tokens, extra_key, cache_salt=salt), None, page_size=PAGE)
