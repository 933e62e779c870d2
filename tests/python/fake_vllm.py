"""As much of vLLM 0.32 as the connector touches, without torch: for tests on a machine that has neither. What the
scheduler and the runner do with a connector, and in which order, is in vllm_steps.py.
"""
import abc
import enum
import importlib.util
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

VERSION = '0.32.0'


class KVConnectorRole(enum.Enum):
    """The two halves."""

    SCHEDULER = 0
    WORKER = 1


class CacheHitSource(enum.Enum):
    """Where a hit came from."""

    EXTERNAL_UNSPECIFIED = 'external_unspecified'
    HOST = 'host'


class KVConnectorMetadata(abc.ABC):  # noqa: B024
    """To the workers."""


class KVConnectorHandshakeMetadata(abc.ABC):  # noqa: B024
    """From a worker, once."""


class KVConnectorWorkerMetadata(abc.ABC):
    """From a worker, each step."""

    @abc.abstractmethod
    def aggregate(self, other):
        """Of two ranks."""


@dataclass
class KVConnectorTransferResults:
    """What ended on a worker."""

    finished_sending: set = field(default_factory=set)
    finished_recving: set = field(default_factory=set)
    failed_recving: set = field(default_factory=set)


class SupportsHMA(abc.ABC):
    """Several groups of blocks."""

    @abc.abstractmethod
    def request_finished_all_groups(self, request, block_ids):
        """Whether its blocks stay."""


class KVConnectorBase_V1(abc.ABC):  # noqa: N801  vLLM's name
    """The base, with its defaults."""

    _cache_hit_source = CacheHitSource.EXTERNAL_UNSPECIFIED

    def __init__(self, vllm_config, role, kv_cache_config):
        self._connector_metadata = None
        self._vllm_config, self._role, self._kv_cache_config = vllm_config, role, kv_cache_config
        self._kv_transfer_config = vllm_config.kv_transfer_config

    @property
    def requires_kv_delivery(self):
        """Whether a request waits for the hand-over of its KV."""
        return True

    def bind_connector_metadata(self, connector_metadata):
        """Begins a step."""
        self._connector_metadata = connector_metadata

    def clear_connector_metadata(self):
        """Ends it."""
        self._connector_metadata = None

    def get_transfer_results(self, finished_req_ids):
        """In one piece."""
        sent, received = self.get_finished(finished_req_ids)
        return KVConnectorTransferResults(set(sent or ()), set(received or ()))

    def get_external_cache_hit_sources(self, request, num_external_tokens):
        """For the metrics."""
        return {self._cache_hit_source: num_external_tokens} if num_external_tokens else {}

    @abc.abstractmethod
    def start_load_kv(self, forward_context, **kwargs):
        """Loads begin."""

    @abc.abstractmethod
    def wait_for_layer_load(self, layer_name):
        """Of one layer."""

    @abc.abstractmethod
    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        """Of one layer."""

    @abc.abstractmethod
    def wait_for_save(self):
        """Stores begin."""

    @abc.abstractmethod
    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        """What is there."""

    @abc.abstractmethod
    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        """There is room."""

    @abc.abstractmethod
    def build_connector_meta(self, scheduler_output):
        """Ends the scheduling of a step."""


class KVConnectorStats:
    """Counts on their way."""

    def __init__(self, data=None):
        self.data = data or {}


class KVConnectorPromMetrics:
    """Counts at their end."""


class FullAttentionSpec:
    """Blocks of plain attention."""

    sliding_window = attention_chunk_size = None

    def __init__(self, block_size):
        self.block_size = block_size


class CPUWorker:
    """What may change the weights."""

    def _nothing(self, *args, **kwargs):
        """Of a model that is not there."""

    reload_weights = reset_weights = start_weight_update = start_draft_weight_update = update_weights = load_model = \
        apply_model = sleep = _nothing


def install():
    """Makes these importable as vllm, for as long as the process lives."""
    connector = 'vllm.distributed.kv_transfer.kv_connector.v1'
    contents = {
        'vllm': {},
        'vllm.version': {'__version__': VERSION},
        'vllm.envs': {'VLLM_USE_MODELSCOPE': False},
        'vllm.v1.core.kv_cache_utils': {'NONE_HASH': b's' * 32},
        'vllm.v1.kv_cache_interface': {'FullAttentionSpec': FullAttentionSpec},
        'vllm.v1.metrics.cache_hit_source': {'CacheHitSource': CacheHitSource},
        'vllm.v1.worker.cpu_worker': {'CPUWorker': CPUWorker},
        f'{connector}.base': {one.__name__: one for one in (
            KVConnectorBase_V1, KVConnectorHandshakeMetadata, KVConnectorMetadata, KVConnectorRole,
            KVConnectorWorkerMetadata, SupportsHMA)},
        f'{connector}.metrics': {'KVConnectorPromMetrics': KVConnectorPromMetrics,
                                 'KVConnectorStats': KVConnectorStats},
    }
    if importlib.util.find_spec('prometheus_client') is None:
        contents['prometheus_client'] = {'Counter': object}
    for name, members in contents.items():
        parts = name.split('.')
        for i in range(1, len(parts) + 1):
            module = sys.modules.setdefault('.'.join(parts[:i]), ModuleType('.'.join(parts[:i])))
            if i > 1:
                setattr(sys.modules['.'.join(parts[:i - 1])], parts[i - 1], module)
        vars(sys.modules[name]).update(members)


class Tensor:
    """A layer's pages: numpy memory [block, byte], which is a part of `whole`."""

    device, dtype = SimpleNamespace(type='cpu'), 'uint8'

    def __init__(self, whole, part):
        self._whole, self._part, self.shape = whole, part, part.shape

    def __getitem__(self, i):
        return Tensor(self._whole, self._part[i])

    def untyped_storage(self):
        """Of all layers."""
        return SimpleNamespace(data_ptr=lambda: self._whole.ctypes.data, nbytes=lambda: self._whole.nbytes)

    def data_ptr(self):
        """Where it begins."""
        return self._part.ctypes.data

    def stride(self, dim=None):
        """In elements."""
        return self._part.strides if dim is None else self._part.strides[dim]

    def is_contiguous(self):
        """Whether it is one piece."""
        return self._part.flags.c_contiguous

    def numel(self):
        """Elements."""
        return self._part.size

    def element_size(self):
        """Bytes."""
        return 1


def config(folder, block_size, ranks=1, **extra):
    """vLLM's configuration of an engine that is served; `extra` goes to the connector. folder: with the weights."""
    layers = {}
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_load_failure_policy='recompute', kv_role='kv_both',
                                           kv_connector_extra_config=extra),
        parallel_config=SimpleNamespace(world_size=ranks, tensor_parallel_size=ranks, decode_context_parallel_size=1,
                                        nnodes=1, rank=0, data_parallel_size=1, worker_extension_cls='',
                                        worker_cls='vllm.v1.worker.cpu_worker.CPUWorker'),
        cache_config=SimpleNamespace(cache_dtype='auto', prefix_caching_hash_algo='sha256_cbor', hash_block_size=None,
                                     block_size=block_size),
        model_config=SimpleNamespace(model=str(folder), model_weights='', revision=None, dtype='float32',
                                     quantization=None, quantization_config=None, model_class_overrides={},
                                     max_model_len=4096, enable_sleep_mode=False,
                                     hf_config=SimpleNamespace(to_dict=lambda: {'hidden_size': 8})),
        load_config=SimpleNamespace(load_format='auto', ignore_patterns=[], download_dir=None), speculative_config=None,
        compilation_config=SimpleNamespace(static_forward_context=layers))


def of_rank(vllm_config, rank):
    """That configuration as a worker has it."""
    parallel = SimpleNamespace(**{**vars(vllm_config.parallel_config), 'rank': rank})
    return SimpleNamespace(**{**vars(vllm_config), 'parallel_config': parallel})


def kv_cache_config(vllm_config, layers, blocks):
    """Of one group of plain attention over that many layers."""
    names = [f'layer {i}' for i in range(layers)]
    for name in names:
        vllm_config.compilation_config.static_forward_context[name] = SimpleNamespace(isa='vec', impl=object())
    spec = FullAttentionSpec(vllm_config.cache_config.block_size)
    return SimpleNamespace(num_blocks=blocks, kv_cache_layout='LBHNC', kv_cache_groups=[
        SimpleNamespace(kv_cache_spec=spec, layer_names=names)])
