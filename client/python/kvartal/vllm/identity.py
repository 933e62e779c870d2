"""Which KV of this node's cache this engine may read: the probes of its configuration, and the digest of everything
that makes KV incompatible. Two engines share blocks exactly when their digests are equal.

What a probe does not know is declined, never guessed: a wrong guess is a wrong token.
"""
from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm import envs
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec

from kvartal import Namespace, weights
from kvartal.declined import Declined
from kvartal.vllm import version
from kvartal.vllm.options import Options
from kvartal.vllm.pages import Geometry

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

_FORMAT = 1  # of what is digested here and of how a block's bytes are laid out


def check_config(config: VllmConfig, kv: KVCacheConfig) -> None:
    """Raises Declined for whatever would need more than one group of plain attention blocks, of which each rank has the
    KV of its own heads."""
    transfer, parallel, cache = config.kv_transfer_config, config.parallel_config, config.cache_config
    if transfer.kv_load_failure_policy != 'recompute':
        raise Declined('kv_load_failure_policy is not "recompute": a block lost on its way would fail the request')
    if transfer.kv_role != 'kv_both':
        raise Declined(f'kv_role is {transfer.kv_role!r}, "kv_both" is needed')
    if parallel.nnodes != 1:
        raise Declined(f'an engine on {parallel.nnodes} nodes is not supported: the cache is of one node')
    if parallel.data_parallel_size != 1:
        raise Declined(f'{parallel.data_parallel_size} replicas: one is supported')
    if parallel.world_size != parallel.tensor_parallel_size or parallel.decode_context_parallel_size != 1:
        raise Declined(f'{parallel.world_size} ranks, {parallel.tensor_parallel_size} of them tensor parallel: '
                       'pipeline and context parallelism are not supported')
    # Other code than vLLM's in the worker may change the weights unheard; a sleep takes the pages from under a copy.
    if not parallel.worker_cls.startswith('vllm.') or parallel.worker_extension_cls:
        raise Declined(f'worker_cls {parallel.worker_cls!r}, worker_extension_cls {parallel.worker_extension_cls!r}: '
                       'whether they change the weights cannot be heard of')
    if config.model_config.enable_sleep_mode:
        raise Declined('enable_sleep_mode is not supported: what sleeps gives its pages and weights away')
    if config.speculative_config is not None:
        raise Declined('speculative decoding is not supported')
    if len(kv.kv_cache_groups) != 1:
        raise Declined(f'{len(kv.kv_cache_groups)} groups of KV blocks (a hybrid model): one is supported')
    spec = kv.kv_cache_groups[0].kv_cache_spec
    if type(spec) is not FullAttentionSpec or spec.sliding_window or spec.attention_chunk_size:
        raise Declined(f'the KV blocks are {type(spec).__name__}: only those of plain full attention are supported')
    if cache.cache_dtype not in ('auto', 'bfloat16', 'float16', 'float32'):
        raise Declined(f'a quantised KV cache ({cache.cache_dtype}) is not supported: its scales have no digest')
    if cache.prefix_caching_hash_algo not in ('sha256', 'sha256_cbor'):
        raise Declined(f'prefix_caching_hash_algo {cache.prefix_caching_hash_algo} is not collision resistant: '
                       'sha256_cbor is needed')
    if cache.hash_block_size not in (None, spec.block_size):
        raise Declined(f'blocks of {spec.block_size} tokens are hashed by {cache.hash_block_size}')


def is_cacheable(request: Any) -> bool:
    """Whether the block hashes of this request name all that its KV depends on: plain tokens and salt. An adapter is
    hashed by its name and path, whatever was loaded from there (docs/decisions/0029)."""
    return (request.lora_request is None and not request.mm_features and request.prompt_embeds is None
            and request.pooling_params is None)


def weights_digest(config: VllmConfig, options: Options) -> str:
    """Names the bytes of the weights. Reads them, unless the hub's cache has done so before. Raises Declined."""
    if options.weights_digest:
        return f'given:{options.weights_digest}'
    return weights.digest_of(_model_folder(config))


def _model_folder(config: VllmConfig) -> Path:
    """Where the engine loads the weights from. Raises Declined when it may load them from elsewhere."""
    model, load = config.model_config, config.load_config
    if load.load_format not in weights.LOAD_FORMATS:
        raise Declined(f'load_format is "{load.load_format}": which bytes it loads is not known (set weights_digest)')
    if model.model_weights:
        raise Declined(f'the weights are pulled from {model.model_weights} (set weights_digest)')
    if envs.VLLM_USE_MODELSCOPE:
        raise Declined('VLLM_USE_MODELSCOPE is set: the weights are in no cache of the hub (set weights_digest)')
    return weights.folder_of(model.model, model.revision, load.download_dir)


def worker_facts(config: VllmConfig, kv: KVCacheConfig, geometry: Geometry, tensor: Any) -> dict[str, Any]:
    """What only the worker knows of how a page looks. Raises Declined when the kernel's packing cannot be told."""
    layers = config.compilation_config.static_forward_context
    names = kv.kv_cache_groups[0].layer_names
    packings = {getattr(layers.get(name), 'isa', None) for name in names}
    if len(packings) != 1 or None in packings:
        raise Declined('which instruction set the attention kernel packs K for was not found')
    return {
        'rank': config.parallel_config.rank,
        'layers': names,
        'attention': sorted({type(layers[name].impl).__qualname__ for name in names}),
        'isa': packings.pop(),
        'dtype': str(tensor.dtype),
        'page': list(tensor.shape[1:]),
        'page_bytes': geometry.page_bytes,
        'layout': str(kv.kv_cache_layout),
        'machine': platform.machine(),
    }


def check_ranks(config: VllmConfig, facts: Mapping[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """What the ranks told, in their order: a block has a shard of each. Raises Declined when one is missing, or has
    shards of another size."""
    ranks = config.parallel_config.world_size
    in_order = [facts[rank] for rank in sorted(facts)]
    if [of_rank['rank'] for of_rank in in_order] != list(range(ranks)):
        raise Declined(f'{ranks} ranks, of which these told how their pages look: '
                       f'{[of_rank["rank"] for of_rank in in_order]}')
    if len({_shard_bytes(of_rank) for of_rank in in_order}) != 1:
        raise Declined(f'the ranks have {[_shard_bytes(of_rank) for of_rank in in_order]} bytes of a block: '
                       'only equal parts are supported')
    return in_order


def _shard_bytes(of_rank: dict[str, Any]) -> int:
    return len(of_rank['layers']) * int(of_rank['page_bytes'])


def namespace_of(config: VllmConfig, facts: list[dict[str, Any]], weights_named: str, epoch: bytes) -> Namespace:
    """The namespace of the KV that this engine computes. facts: of each rank, see check_ranks."""
    model, cache = config.model_config, config.cache_config
    algorithm = cache.prefix_caching_hash_algo
    named = {
        'format': _FORMAT,
        'engine': f'vllm {version.installed()}',
        'weights': weights_named,
        'config': {key: value for key, value in model.hf_config.to_dict().items() if key not in weights.ORIGIN_KEYS},
        'max_model_len': model.max_model_len,  # chooses between the frequencies of some rotary embeddings
        'dtype': str(model.dtype),
        'quantization': str(model.quantization),
        'quantization_config': str(model.quantization_config),
        'model_class_overrides': model.model_class_overrides,
        # One folder may hold the weights twice, in files of two kinds that differ.
        'load_format': config.load_config.load_format,
        'ignore_patterns': config.load_config.ignore_patterns,
        'cache_dtype': cache.cache_dtype,
        'block_tokens': cache.block_size,
        'hash': algorithm,
        # The hash of a block is over pickled bytes, which differ between versions of Python.
        'hash_encoding': platform.python_version() if algorithm == 'sha256' else 'cbor',
        'hash_seed': kv_cache_utils.NONE_HASH.hex(),
        'pages': facts,
        'epoch': epoch.hex(),
    }
    digest = hashlib.sha256(json.dumps(named, sort_keys=True, default=str).encode()).digest()
    return Namespace(digest, cache.block_size, _shard_bytes(facts[0]), len(facts))
