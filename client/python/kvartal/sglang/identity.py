"""Which KV of this node's cache this engine may read: the probes of its configuration, and the digest of everything
that makes KV incompatible. Two engines share pages exactly when their digests are equal.

What a probe does not know is declined, never guessed: a wrong guess is a wrong token.
"""
from __future__ import annotations

import hashlib
import json
import platform
from array import array
from typing import TYPE_CHECKING, Any

from sglang.srt.configs.model_config import is_audio_model, is_multimodal_model
from sglang.srt.environ import envs
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.runtime_context import (
    get_disagg, get_exec, get_lora, get_memory, get_model, get_serving, get_spec)

from kvartal import Namespace, weights
from kvartal.declined import Declined
from kvartal.sglang import version
from kvartal.sglang.options import Options
from kvartal.sglang.pages import PoolPages

if TYPE_CHECKING:
    from pathlib import Path

    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

_FORMAT = 1  # of what is digested here and of how a page's bytes are laid out
# Of SGLang's model configuration: what changes the KV that the same weights give.
_MODEL_LEAVES = ('load_format', 'dtype', 'quantization', 'quantization_param_path', 'kv_cache_dtype',
                 'context_length', 'model_impl', 'json_model_override_args', 'rl_quant_profile', 'modelopt_quant',
                 'qsa_indexer_dtype')
_KERNEL_LEAVES = ('attention_backend', 'prefill_attention_backend', 'decode_attention_backend')


def check_keys() -> None:
    """Raises Declined for an SGLang whose storage keys do not tell salts apart: any request may bring one."""
    tokens = array('q', range(2))
    asked = [RadixKey(tokens, extra_key, cache_salt=salt)
             for extra_key, salt in ((None, None), ('a', None), ('b', None), (None, 'a'), (None, 'b'), ('a', 'b'))]
    keys = [key for one in asked for key in get_storage_hash_str(one, None, page_size=1)]
    if len(set(keys)) != len(keys):
        raise Declined('storage keys of this SGLang ignore cache_salt or extra_key')
    if any(len(bytes.fromhex(key)) != 32 for key in keys):
        raise Declined('storage keys of this SGLang are not SHA-256')


def check_config(config: HiCacheStorageConfig) -> None:
    """Raises Declined for whatever would need more than the pages of plain attention on one pipeline stage."""
    extra = config.extra_config or {}
    if not extra.get('interface_v1'):
        raise Declined('"interface_v1": 1 is missing in the extra configuration')
    if get_memory().hicache_storage_backend != 'dynamic':
        raise Declined('it was attached to a running engine: whether the weights were changed before is not known')
    if config.pp_size != 1 or config.attn_cp_size != 1 or config.dcp_size != 1:
        raise Declined(f'{config.pp_size} pipeline stages, {config.attn_cp_size} and {config.dcp_size} context ranks: '
                       'one of each is supported')
    if config.tp_lcm_size is not None or config.should_split_heads:
        raise Declined('tp_lcm_size is not supported: pages are those of this tensor parallel size')
    if get_spec().speculative_algorithm is not None:
        raise Declined('speculative decoding is not supported')
    if get_lora().enable_lora or get_lora().lora_paths:
        raise Declined('LoRA is not supported: an adapter is keyed by its name and path, whatever lies there')
    if get_disagg().disaggregation_mode != 'null':
        raise Declined('disaggregated prefill and decode are not supported')


def weights_digest(options: Options) -> str:
    """Names the bytes of the weights. Reads them, unless the hub's cache has done so before. Raises Declined."""
    if options.weights_digest:
        return f'given:{options.weights_digest}'
    if get_model().weight_cache_mode != 'off':
        raise Declined('weight_cache_mode is not "off": another process loaded the weights, from files that may have '
                       'changed since (set weights_digest)')
    load_format = get_model().load_format
    if load_format not in weights.LOAD_FORMATS:
        raise Declined(f'load_format is "{load_format}": which bytes it loads is not known (set weights_digest)')
    return weights.digest_of(_model_folder())


def _model_folder() -> Path:
    model = get_model()
    if envs.SGLANG_USE_MODELSCOPE.get():
        raise Declined('SGLANG_USE_MODELSCOPE is set: the model is in no cache of the hub')
    return weights.folder_of(model.model_path, model.revision, model.download_dir)


def model_config() -> dict[str, Any]:
    """The model's own configuration. Raises Declined for one whose prompts are more than tokens."""
    try:
        read = json.loads((_model_folder() / 'config.json').read_text())
    except (OSError, ValueError) as error:
        raise Declined(f'the model\'s config.json was not found: {error}') from error
    architectures = read.get('architectures') or []
    if not architectures or is_multimodal_model(architectures) or is_audio_model(architectures):
        raise Declined(f'models like {architectures} are not supported: an image or sound is keyed by 64 bits')
    return {key: value for key, value in read.items() if key not in weights.ORIGIN_KEYS}


def weight_version() -> str:
    """What SGLang calls the weights that it serves now."""
    return str(get_serving().weight_version)


def namespace_of(config: HiCacheStorageConfig, pages: PoolPages, weights_named: str, model: dict[str, Any],
                 epoch: bytes) -> Namespace:
    """The namespace of the KV that this rank computes."""
    named = {
        'format': _FORMAT,
        'engine': f'sglang {version.installed()}',
        'weights': weights_named,
        'weight_version': weight_version(),
        'config': model,
        'model': {name: getattr(get_model(), name) for name in _MODEL_LEAVES},
        'attention': {name: getattr(get_exec().kernel, name) for name in _KERNEL_LEAVES},
        # The same tokens in SGLang's words: another way of hashing gives another namespace.
        'keys': get_storage_hash_str(RadixKey(array('q', range(4))), None, page_size=2),
        # Every rank of plain attention holds its own heads; those of MLA hold the same.
        'rank': ['all' if config.is_mla_model else config.tp_rank, config.tp_size],
        'pool': [pages.kind, pages.layout, pages.dtype, pages.page_tokens, pages.page_bytes, pages.layers],
        'machine': platform.machine(),
        'epoch': epoch.hex(),
    }
    digest = hashlib.sha256(json.dumps(named, sort_keys=True, default=str).encode()).digest()
    return Namespace(digest, pages.page_tokens, pages.page_bytes)
