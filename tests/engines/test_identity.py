"""What the connector declines, and what its digest tells apart. Needs vLLM's classes, starts no engine."""
from types import SimpleNamespace

import pytest
import torch
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from kvartal import weights
from kvartal.declined import Declined
from kvartal.vllm import identity, version
from kvartal.vllm.options import Options
from kvartal.vllm.pages import HostPages, geometry_of


def model(name, **changes):
    """A model's configuration."""
    return SimpleNamespace(to_dict=lambda: {'hidden_size': 8, '_name_or_path': name, **changes})


def config(**changes):
    """A configuration that is served, with changes like `parallel__world_size=2`."""
    made = SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_load_failure_policy='recompute', kv_role='kv_both'),
        parallel_config=SimpleNamespace(world_size=1, tensor_parallel_size=1, decode_context_parallel_size=1, nnodes=1,
                                        rank=0, data_parallel_size=1, worker_extension_cls='',
                                        worker_cls='vllm.v1.worker.cpu_worker.CPUWorker'),
        cache_config=SimpleNamespace(cache_dtype='auto', prefix_caching_hash_algo='sha256_cbor', hash_block_size=None,
                                     block_size=32),
        model_config=SimpleNamespace(model='m', model_weights='', revision=None, dtype=torch.float32, quantization=None,
                                     quantization_config=None, model_class_overrides={}, max_model_len=4096,
                                     hf_config=model('m'), enable_sleep_mode=False),
        load_config=SimpleNamespace(load_format='auto', ignore_patterns=['original/**/*'], download_dir=None),
        speculative_config=None)
    for path, value in changes.items():
        *owners, name = path.split('__')
        owner = made
        for part in owners:
            owner = getattr(owner, f'{part}_config')
        setattr(owner, name, value)
    return made


def groups(*specs):
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs])


FULL = FullAttentionSpec(block_size=32, num_kv_heads=3, head_size=64, dtype=torch.float32)
WINDOW = SlidingWindowSpec(block_size=32, num_kv_heads=3, head_size=64, dtype=torch.float32, sliding_window=128)
FACTS = {'rank': 0, 'layers': ['a', 'b'], 'page_bytes': 4096, 'isa': 'vec', 'layout': 'LBHNC'}


@pytest.fixture(autouse=True)
def seed(monkeypatch):
    monkeypatch.setattr(kv_cache_utils, 'NONE_HASH', b's' * 32, raising=False)


def test_the_installed_version_is_a_supported_one():
    version.check_version()


def test_another_version_is_declined(monkeypatch):
    monkeypatch.setattr(version, 'installed', lambda: '0.320.1')
    with pytest.raises(Declined, match='0.320.1'):
        version.check_version()


def test_what_is_served_is_not_declined():
    identity.check_config(config(), groups(FULL))


@pytest.mark.parametrize('changes, word', [
    ({'kv_transfer__kv_load_failure_policy': 'fail'}, 'recompute'),
    ({'kv_transfer__kv_role': 'kv_producer'}, 'kv_both'),
    ({'parallel__world_size': 4, 'parallel__tensor_parallel_size': 2}, '4 ranks, 2 of them'),
    ({'parallel__decode_context_parallel_size': 2}, 'context'), ({'parallel__nnodes': 2}, '2 nodes'),
    ({'parallel__data_parallel_size': 4}, '4 replicas'),
    ({'parallel__worker_cls': 'mine.Worker'}, 'mine.Worker'),
    ({'parallel__worker_extension_cls': 'mine.Extension'}, 'mine.Extension'),
    ({'model__enable_sleep_mode': True}, 'sleep'),
    ({'speculative_config': 'eagle'}, 'speculative'), ({'cache__cache_dtype': 'fp8'}, 'fp8'),
    ({'cache__prefix_caching_hash_algo': 'xxhash'}, 'xxhash'), ({'cache__hash_block_size': 16}, 'hashed by 16')])
def test_what_was_not_tested_is_declined_with_its_reason(changes, word):
    with pytest.raises(Declined, match=word):
        identity.check_config(config(**changes), groups(FULL))


@pytest.mark.parametrize('specs', [[FULL, FULL], [WINDOW]])
def test_other_blocks_than_plain_attention_are_declined(specs):
    with pytest.raises(Declined):
        identity.check_config(config(), groups(*specs))


def digest(facts=FACTS, weights='w', epoch=b'', **changes):
    return identity.namespace_of(config(**changes), [facts], weights, epoch).digest


def test_equal_engines_share_whatever_their_model_is_called():
    assert digest() == digest(model__hf_config=model('elsewhere'), model__model='elsewhere')


def test_everything_that_makes_kv_incompatible_is_told_apart(monkeypatch):
    other_model = model('m', rope_theta=1e6)
    digests = [digest(), digest(weights='v'), digest(epoch=b'1'), digest(model__dtype=torch.bfloat16),
               digest(model__quantization='awq'), digest(model__quantization_config={'ignore': ['k_proj']}),
               digest(model__model_class_overrides={'A': 'B'}), digest(load__load_format='pt'),
               digest(load__ignore_patterns=[]), digest(model__max_model_len=8192),
               digest(model__hf_config=other_model), digest(cache__block_size=64),
               digest(cache__cache_dtype='bfloat16'), digest(cache__prefix_caching_hash_algo='sha256')]
    digests += [digest({**FACTS, **change}) for change in ({'isa': 'amx'}, {'layers': ['b', 'a']}, {'layout': 'BLHNC'},
                                                            {'page_bytes': 8192})]
    monkeypatch.setattr(version, 'installed', lambda: '0.32.1')
    digests.append(digest())
    monkeypatch.setattr(kv_cache_utils, 'NONE_HASH', b't' * 32)
    digests.append(digest())
    assert len(set(digests)) == len(digests)


def told(*ranks, **changes):
    """What ranks told, by the number that vLLM gives them."""
    return {key: {**FACTS, 'rank': rank, **changes.get(f'of_{rank}', {})} for key, rank in enumerate(ranks)}


def test_a_block_has_a_shard_of_every_rank_in_their_order():
    two = config(parallel__world_size=2, parallel__tensor_parallel_size=2)
    facts = identity.check_ranks(two, told(0, 1))
    namespace = identity.namespace_of(two, facts, 'w', b'')
    assert (namespace.shard_count, namespace.shard_bytes) == (2, 2 * 4096)
    assert namespace.digest != digest(), 'one rank has other heads'
    other = identity.check_ranks(two, told(0, 1, of_1={'isa': 'amx'}))
    assert namespace.digest != identity.namespace_of(two, other, 'w', b'').digest


@pytest.mark.parametrize('ranks', [(), (0,), (1, 0), (0, 0), (0, 1, 2)])
def test_ranks_that_are_not_all_there_are_declined(ranks):
    with pytest.raises(Declined, match='2 ranks, of which'):
        identity.check_ranks(config(parallel__world_size=2, parallel__tensor_parallel_size=2), told(*ranks))


def test_ranks_with_parts_of_other_sizes_are_declined():
    with pytest.raises(Declined, match='8192, 4096'):
        identity.check_ranks(config(parallel__world_size=2, parallel__tensor_parallel_size=2),
                             told(0, 1, of_1={'layers': ['a']}))


def test_one_byte_of_the_weights_makes_another_digest(tmp_path):
    weights = tmp_path / 'model.safetensors'
    weights.write_bytes(bytes(1 << 20))
    before = identity.weights_digest(config(model__model=str(tmp_path)), Options())
    weights.write_bytes(bytes(500_000) + b'\1' + bytes((1 << 20) - 500_001))
    after = identity.weights_digest(config(model__model=str(tmp_path)), Options())
    (tmp_path / 'modeling.py').write_text('scale = 2')
    with_code = identity.weights_digest(config(model__model=str(tmp_path)), Options())
    assert len({before, after, with_code}) == 3
    assert identity.weights_digest(config(), Options(weights_digest='v7')) == 'given:v7'


def test_a_file_of_the_hubs_cache_is_known_by_its_name(tmp_path):
    (tmp_path / ('ab' * 32)).write_bytes(b'anything')
    (tmp_path / 'model.safetensors').symlink_to(tmp_path / ('ab' * 32))
    assert weights._file_digest(tmp_path / 'model.safetensors') == 'ab' * 32


@pytest.mark.parametrize('changes', [
    {'load__load_format': 'dummy'}, {'load__load_format': 'tensorizer'}, {'load__load_format': 'sharded_state'},
    {'load__load_format': 'of a plugin'}, {'model__model_weights': 's3://bucket/m'},
    {'model__model': 'nobody/nothing'}])
def test_weights_that_the_engine_may_load_from_elsewhere_are_declined(changes, tmp_path):
    (tmp_path / 'model.safetensors').write_bytes(b'not what is loaded')
    with pytest.raises(Declined, match='weights_digest'):
        identity.weights_digest(config(**{'model__model': str(tmp_path), **changes}), Options())
    assert identity.weights_digest(config(**changes), Options(weights_digest='v7')) == 'given:v7'


def test_a_model_of_another_hub_is_declined(monkeypatch, tmp_path):
    (tmp_path / 'model.safetensors').write_bytes(b'of the folder')
    monkeypatch.setattr(identity.envs, 'VLLM_USE_MODELSCOPE', True, raising=False)
    with pytest.raises(Declined, match='MODELSCOPE'):
        identity.weights_digest(config(model__model=str(tmp_path)), Options())


def test_the_digest_is_of_the_snapshot_in_the_engines_download_folder(tmp_path, monkeypatch):
    for cache, content in (('default', b'old'), ('chosen', b'new')):
        snapshot = tmp_path / cache / 'models--some--model' / 'snapshots' / ('c' * 40)
        snapshot.mkdir(parents=True)
        (snapshot / 'model.safetensors').write_bytes(content)
        refs = snapshot.parent.parent / 'refs'
        refs.mkdir()
        (refs / 'main').write_text('c' * 40)
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_CACHE', str(tmp_path / 'default'))
    chosen, folder = str(tmp_path / 'chosen'), config(model__model=str(snapshot))
    assert identity.weights_digest(config(model__model='some/model', load__download_dir=chosen),
                                   Options()) == identity.weights_digest(folder, Options())


@pytest.mark.parametrize('change', [{'lora_request': object()}, {'mm_features': [1]}, {'prompt_embeds': object()},
                                    {'pooling_params': object()}])
def test_requests_whose_hashes_do_not_name_everything_are_not_cached(change):
    plain = {'lora_request': None, 'mm_features': [], 'prompt_embeds': None, 'pooling_params': None}
    assert identity.is_cacheable(SimpleNamespace(**plain))
    assert not identity.is_cacheable(SimpleNamespace(**{**plain, **change}))


def layers(order, count=3, blocks=5):
    """Tensors [block, head, token, content] of one buffer, whose memory is in that order of the five dimensions."""
    sizes = {'L': count, 'B': blocks, 'H': 2, 'N': 4, 'C': 8}
    memory = torch.arange(count * blocks * 2 * 4 * 8, dtype=torch.int32).view([sizes[axis] for axis in order])
    whole = memory.permute([order.index(axis) for axis in 'LBHNC'])
    return {f'layer {i}': whole[i] for i in range(count)}


@pytest.mark.parametrize('order', ['LBHNC', 'BLHNC'])
def test_pages_of_an_even_layout_are_found_where_the_tensors_have_them(order):
    tensors = layers(order)
    pages = HostPages(geometry_of(tensors, 5), tensors)
    block = torch.empty(pages.geometry.block_bytes, dtype=torch.uint8).numpy()
    pages.read(3, block)
    expected = torch.stack([tensor[3].contiguous() for tensor in tensors.values()])
    assert torch.equal(torch.from_numpy(block).view(torch.int32), expected.flatten())
    pages.write(2, block)
    assert all(torch.equal(tensor[2], tensor[3]) for tensor in tensors.values())


@pytest.mark.parametrize('order', ['LHBNC', 'BHLNC', 'LBNHC', 'BLNHC'])
def test_pages_in_pieces_are_declined(order):
    with pytest.raises(Declined, match='one piece'):
        geometry_of(layers(order), 5)


def test_layers_that_are_not_alike_are_declined():
    tensors = layers('LBHNC')
    with pytest.raises(Declined, match='5 pages a layer for 6 blocks'):
        geometry_of(tensors, 6)
    with pytest.raises(Declined, match='one buffer'):
        geometry_of({**tensors, 'other': torch.zeros(5, 2, 4, 8, dtype=torch.int32)}, 5)
    with pytest.raises(Declined, match='differ'):
        geometry_of({**tensors, 'other': tensors['layer 0'][:, :1]}, 5)
