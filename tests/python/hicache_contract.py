"""What SGLang may rely on of the storage backend. `engine` makes engines: fakes in test_hicache.py, SGLang's own pools
and classes in tests/engines/test_sglang.py.
"""
import functools
import inspect
import logging
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from daemon import PATIENT_MS, Daemon
from hicache_rig import PAGES, keys

import kvartal
from kvartal.sglang.pages import PoolPages


@pytest.fixture(autouse=True)
def _say_all(caplog):
    caplog.set_level(logging.INFO, 'sglang.kvartal')


def warnings_of(caplog):
    """What was said that an operator should see."""
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def is_uncached(rig):
    """Whether it serves nothing, and says so once."""
    chain = keys(2)
    return (rig.backend.batch_exists(chain) == 0 and rig.store(chain) == [False, False]
            and rig.load(chain, [8, 9]) == [False, False] and rig.backend.counts['uncached'] == 1)


# --- what is stored, is found and is right

@pytest.mark.parametrize('layout', ['page_first', 'page_first_direct', 'page_head'])
def test_pages_come_back_byte_by_byte_into_other_pages(engine, layout):
    one, other = engine(layout=layout), engine(layout=layout)
    chain = keys(40)
    assert one.store(chain) == [True] * 40
    assert other.backend.batch_exists(chain) == 40
    assert other.load(chain[:3], [50, 7, 33]) == [True] * 3
    assert [other.holds(page, 1 + i) for i, page in enumerate([50, 7, 33])] == [True] * 3
    untouched = engine(layout=layout)
    for rig in (other, untouched):
        for page in (50, 7, 33):
            rig.write(page, 0)
    assert other.everything() == untouched.everything(), 'a load wrote beside its pages'


def test_an_mla_page_is_one_run_and_every_rank_reads_what_one_stored(engine):
    ranks = [engine(mla=True, tp_rank=rank, tp_size=2) for rank in (0, 1)]
    chain = keys(5)
    assert ranks[0].store(chain) == [True] * 5
    assert ranks[1].backend.batch_exists(chain) == 5
    assert ranks[1].load(chain, range(20, 25)) == [True] * 5
    assert all(ranks[1].holds(20 + i, 1 + i) for i in range(5))


def test_a_rank_of_plain_attention_finds_its_own_heads_only(engine):
    ranks = [engine(tp_rank=rank, tp_size=2) for rank in (0, 1)]
    chain = keys(3)
    ranks[0].store(chain, value=1)
    assert ranks[1].backend.batch_exists(chain) == 0
    ranks[1].store(chain, value=11)
    for rank, value in ((ranks[0], 1), (ranks[1], 11)):
        assert rank.backend.batch_exists(chain) == 3
        rank.load(chain, [30, 31, 32])
        assert rank.holds(31, value + 1)


def test_exists_counts_what_leads_from_any_place_of_the_chain(engine):
    rig = engine()
    chain = keys(10)
    rig.store(chain[:3])
    rig.store(chain[5:8], first_page=5, prefix=chain[:5])
    assert rig.backend.batch_exists(chain) == 3
    assert rig.backend.batch_exists(chain[2:]) == 1
    assert rig.backend.batch_exists(chain[5:]) == 3
    assert rig.backend.batch_exists(chain[8:]) == 0 and rig.backend.batch_exists([]) == 0
    assert rig.load(chain[:6], range(20, 26)) == [True] * 3 + [False] * 3, 'also without asking first'
    assert rig.backend.batch_get_v1([], rig.indices([0])[:0]) == [] and rig.backend.counts['failed_pages'] == 3


def test_one_question_serves_all_batches_of_a_prompt(engine):
    rig = engine()
    chain = keys(48)
    rig.store(chain)
    assert rig.backend.batch_exists(chain) == 48
    # SGLang drops a head that it has meanwhile, and copies the rest in batches.
    for at in range(8, 48, 8):
        assert rig.load(chain[at:at + 8], range(8)) == [True] * 8
        assert rig.holds(3, 1 + at + 3)
    assert rig.backend.counts['lookups'] == 1 and rig.backend.counts['loaded_pages'] == 40


def test_what_is_there_is_not_stored_twice(engine):
    rig = engine()
    chain = keys(2)
    rig.store(chain, value=1)
    assert rig.store(chain, value=90) == [True, True]
    rig.load(chain, [20, 21])
    assert rig.holds(20, 1) and rig.holds(21, 2)


def test_the_daemon_hears_of_the_chain_around_a_page(engine, monkeypatch):
    rig = engine()
    heard, reserve = [], kvartal.Client.reserve
    monkeypatch.setattr(kvartal.Client, 'reserve', lambda client, namespace, asked, parent, depth, **more: (
        heard.append((parent and parent.hex(), depth, len(asked))),
        reserve(client, namespace, asked, parent, depth, **more))[1])
    chain = keys(40)
    rig.store(chain[:20], prefix=[])
    rig.store(chain[20:], first_page=20, prefix=chain[:20])
    assert heard == [(None, 0, 16), (chain[15], 16, 4), (chain[19], 20, 16), (chain[35], 36, 4)]


def test_threads_of_sglang_do_not_disturb_each_other(engine):
    rig = engine()
    wrong = []

    def work(number):
        chain = keys(4, salt=str(number))
        first = 4 * number
        for _ in range(20):
            stored = rig.store(chain, first_page=first, value=1 + number)
            if rig.backend.batch_exists(chain) != 4 or rig.load(chain, range(first, first + 4)) != stored:
                wrong.append(number)
            if not all(rig.holds(first + i, 1 + number + i) for i in range(4)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and 'uncached' not in rig.backend.counts


# --- who shares

def test_salts_and_tenants_do_not_meet(engine):
    red, blue = engine('red'), engine('blue')
    red.store(keys(3, salt='a'))
    for others in (keys(3), keys(3, salt='b'), keys(3, extra_key='a'), keys(3, salt='a', extra_key='a')):
        assert red.backend.batch_exists(others) == 0
    assert red.backend.batch_exists(keys(3, salt='a')) == 3
    assert blue.backend.batch_exists(keys(3, salt='a')) == 0


def test_engines_share_exactly_when_all_that_makes_kv_is_equal(engine, bags, tmp_path):
    base = engine()
    base.store(keys(2))

    def shares(**changes):
        return engine(**changes).backend.batch_exists(keys(2)) == 2

    assert shares() and shares(dp_rank=1) and shares(model_name='another name')
    assert not shares(layout='page_head') and not shares(tp_size=2) and not shares(mla=True)
    assert not shares(dtype='torch.float16') and not shares(options={'weights_digest': 'v2'})
    for name, changes in (('model', {'dtype': 'half'}), ('model', {'context_length': 4096}),
                          ('model', {'quantization': 'fp8'}), ('serving', {'weight_version': '2'})):
        with bags[name].override(**changes):
            assert not shares(), changes
    for file, content in (('model.safetensors', bytes(1 << 16)[:-1] + b'\1'),
                          ('config.json', b'{"architectures": ["LlamaForCausalLM"], "rope_theta": 1}')):
        copy = tmp_path / file
        copy.mkdir()
        for path in Path(bags['model'].model_path).iterdir():
            (copy / path.name).write_bytes(path.read_bytes())
        with bags['model'].override(model_path=str(copy)):
            assert shares(), 'the same model in another folder'
            (copy / file).write_bytes(content)
            assert not shares(), file


def test_after_a_clear_nothing_old_is_found_and_others_keep_theirs(engine):
    one, other = engine(), engine()
    chain = keys(3)
    one.store(chain, value=1)
    assert one.backend.batch_exists(chain) == 3
    one.backend.clear()
    assert one.load(chain, [40, 41, 42]) == [False] * 3, 'a lease of before is not used'
    assert one.backend.batch_exists(chain) == 0
    one.store(chain, value=50)
    assert one.load(chain, [40, 41, 42]) == [True] * 3 and one.holds(40, 50)
    assert other.load(chain, [40, 41, 42]) == [True] * 3 and other.holds(40, 1)


def test_ranks_that_share_pages_cannot_clear(engine):
    rig = engine(mla=True, tp_size=2)
    rig.backend.clear()
    assert is_uncached(rig)


def test_weights_that_were_changed_under_it_end_its_caching(engine, bags, caplog):
    rig = engine()
    assert rig.store(keys(1)) == [True]
    with bags['serving'].override(weight_version='step 2'):
        assert rig.store(keys(2)) == [False, False], 'a page in the queue may be of the weights before'
    assert is_uncached(rig) and len(warnings_of(caplog)) == 1


def test_weights_that_are_changed_in_place_end_its_caching_for_good(engine, updater, monkeypatch, caplog):
    from kvartal import weights_change
    monkeypatch.setattr(weights_change, '_changed', False)  # and again when this test is over
    one, other = engine(), engine()
    assert one.store(keys(1)) == [True]
    updater()
    assert is_uncached(one) and is_uncached(other)
    assert is_uncached(engine()), 'the weights are not those of the files any more'
    assert len(warnings_of(caplog)) == 3 and all('weights were changed' in line for line in warnings_of(caplog))


# --- what is declined

DECLINED = {
    'layout': {'layout': 'layer_first'}, 'quantised': {'dtype': 'torch.float8_e4m3fn'},
    'pipeline': {'pp_size': 2}, 'context': {'attn_cp_size': 2}, 'heads': {'tp_lcm_size': 4},
    'interface_v1': {'extra': {'interface_v1': 0}}, 'unknown keys': {'options': {'sokcet': 'x'}},
    'lookup_deadline_ms': {'options': {'lookup_deadline_ms': 0}}, 'an object': {'extra': {'kvartal': 'x'}},
}


@pytest.mark.parametrize('why', DECLINED)
def test_what_is_not_known_is_declined_with_one_line(engine, why, caplog):
    rig = engine(**DECLINED[why])
    assert is_uncached(rig)
    (line,) = warnings_of(caplog)
    assert line.startswith('Kvartal: this engine runs uncached')


@pytest.mark.parametrize('bag, changes, why', [
    ('model', {'load_format': 'dummy'}, 'weights_digest'), ('model', {'weight_cache_mode': 'client'}, 'weights_digest'),
    ('model', {'model_path': 'nobody/nothing'}, 'not found'),
    ('spec', {'speculative_algorithm': 'EAGLE'}, 'speculative'), ('lora', {'enable_lora': True}, 'LoRA'),
    ('lora', {'lora_paths': ['a=b']}, 'LoRA'), ('memory', {'hicache_storage_backend': None}, 'running engine'),
    ('disagg', {'disaggregation_mode': 'prefill'}, 'disaggregated')])
def test_a_configuration_that_is_not_known_is_declined(engine, bags, bag, changes, why, caplog):
    with bags[bag].override(**changes):
        rig = engine()
        assert is_uncached(rig)
    (line,) = warnings_of(caplog)
    assert why in line


def test_an_untested_version_and_keys_without_salt_are_declined(engine, monkeypatch, caplog):
    from kvartal.sglang import identity, version
    with monkeypatch.context() as patch:
        patch.setattr(version, 'installed', lambda: '0.5.17')
        assert is_uncached(engine())
    with monkeypatch.context() as patch:
        real = identity.get_storage_hash_str
        patch.setattr(identity, 'get_storage_hash_str', lambda key, prior, page_size: real(
            identity.RadixKey(key.token_ids), prior, page_size=page_size))
        assert is_uncached(engine())
    first, second = warnings_of(caplog)
    assert '0.5.17' in first and 'ignore cache_salt' in second


def test_models_that_keep_more_than_kv_are_declined(engine, bags, tmp_path, caplog):
    rig = engine()
    rig.backend.register_mem_host_pool_v2(object(), 'mamba')
    assert is_uncached(rig)
    assert rig.backend.batch_exists_v2(keys(2), [], None).kv_hit_pages == 0
    transfers = [SimpleNamespace(name='mamba', keys=keys(2))]
    assert rig.backend.batch_get_v2(transfers) == rig.backend.batch_set_v2(transfers) == {'mamba': [False, False]}
    (tmp_path / 'config.json').write_text('{"architectures": ["LlavaLlamaForCausalLM"]}')
    (tmp_path / 'model.safetensors').write_bytes(b'x')
    with bags['model'].override(model_path=str(tmp_path)):
        assert is_uncached(engine())
    twice = engine(layout='layer_first')
    twice.backend.register_mem_host_pool_v2(object(), 'mamba')
    assert is_uncached(twice)
    assert len(warnings_of(caplog)) == 3


def test_the_older_interface_finds_and_keeps_nothing(engine):
    backend = engine().backend
    assert backend.get('k') is None and backend.batch_get(['k', 'l']) == [None, None]
    assert backend.set('k') is False and backend.batch_set(['k']) is False and backend.exists('k') is False


# --- when things fail

def test_a_daemon_that_comes_later_is_found(tmp_path, engine, caplog):
    with Daemon() as late:
        rig = engine(at=late.door())
        chain = keys(2)
        assert (rig.backend.batch_exists(chain), rig.store(chain), rig.load(chain, [8, 9])) == (
            0, [False, False], [False, False])
        assert len(warnings_of(caplog)) == 1 and 'no cache for now' in warnings_of(caplog)[0]
        late.start()
        until(lambda: rig.store(chain) == [True, True])
        until(lambda: rig.backend.batch_exists(chain) == 2)
        assert 'uncached' not in rig.backend.counts


def until(happens):
    """Waits for it."""
    end = time.monotonic() + PATIENT_MS / 1000
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.01)


KILL_AT = ['lookup', 'load', 'write', 'reserve', 'read', 'commit']


@pytest.mark.parametrize('at', KILL_AT)
def test_a_daemon_killed_at_any_step_is_a_miss_and_comes_back(engine, daemon, at, monkeypatch):
    rig = engine()
    chain = keys(40)
    rig.store(chain[:20])
    owner = {'lookup': kvartal.Client, 'reserve': kvartal.Client, 'load': kvartal.Lease,
             'commit': kvartal.client.Slots, 'write': PoolPages, 'read': PoolPages}[at]
    real = getattr(owner, at)
    calls = []

    def killing(*args, **kwargs):
        calls.append(at)
        if len(calls) == (3 if at in ('write', 'read') else 1):
            daemon.kill()
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, at, killing)
        if at in ('lookup', 'load', 'write'):
            matched = rig.backend.batch_exists(chain)
            loaded = rig.load(chain[:20], range(40, 60))
            assert matched in (0, 20) and loaded == sorted(loaded, reverse=True)
            assert all(rig.holds(40 + i, 1 + i) for i in range(20) if loaded[i]), 'a page that is told is right'
        else:
            stored = rig.store(chain[20:32], first_page=20, value=21, prefix=chain[:20])
            assert stored == [False] * 12, 'what was not committed is not told as stored'
    assert calls
    daemon.start()
    until(lambda: rig.store(chain) == [True] * 40)
    until(lambda: rig.backend.batch_exists(chain) == 40)
    assert rig.load(chain[:4], range(60, 64)) == [True] * 4 and rig.holds(63, 4)
    assert 'uncached' not in rig.backend.counts


def test_a_daemon_that_hangs_costs_the_deadline_and_no_more(engine, daemon):
    rig = engine(options={'lookup_deadline_ms': 50, 'load_deadline_ms': 50, 'store_deadline_ms': 50})
    chain = keys(4)
    until(lambda: rig.store(chain) == [True] * 4)
    until(lambda: rig.backend.batch_exists(chain) == 4)
    daemon.freeze()
    begun = time.monotonic()
    assert rig.backend.batch_exists(keys(4, salt='x')) == 0
    assert rig.store(keys(4, salt='x')) == [False] * 4
    assert time.monotonic() - begun < PATIENT_MS / 1000
    daemon.thaw()
    until(lambda: rig.load(chain, range(40, 44)) == [True] * 4)
    assert rig.holds(40, 1)


def deadlines_of(patch, owner, name):
    """What each call of that method is given from now on."""
    real, given = getattr(owner, name), []

    @functools.wraps(real)
    def noting(*args, **kwargs):
        given.append(inspect.signature(real).bind(*args, **kwargs).arguments.get('deadline_ms', 0))
        return real(*args, **kwargs)

    patch.setattr(owner, name, noting)
    return given


def test_every_call_has_the_deadline_of_its_option(engine, monkeypatch):
    lookup_ms, load_ms, store_ms = PATIENT_MS + 1, PATIENT_MS + 2, PATIENT_MS + 3
    rig = engine(options={'lookup_deadline_ms': lookup_ms, 'load_deadline_ms': load_ms, 'store_deadline_ms': store_ms})
    lookups, loads, reserves, commits = (deadlines_of(monkeypatch, owner, name) for owner, name in (
        (kvartal.Client, 'lookup'), (kvartal.Lease, 'load'), (kvartal.Client, 'reserve'),
        (kvartal.client.Slots, 'commit')))
    chain = keys(20)  # more than one part
    assert rig.store(chain) == [True] * 20 and rig.load(chain, range(20, 40)) == [True] * 20
    assert lookups == [lookup_ms] and reserves == commits == [store_ms] * 2
    assert len(loads) == 2 and load_ms >= loads[0] >= loads[1] > 0, 'one deadline for all parts'


def test_bytes_that_changed_under_the_reader_are_a_failed_load(engine, monkeypatch):
    rig = engine()
    chain = keys(6)
    rig.store(chain)
    monkeypatch.setattr(kvartal.Lease, 'valid', lambda lease, i: i != 4)
    assert rig.load(chain, range(20, 26)) == [True] * 4 + [False] * 2
    assert rig.backend.counts['failed_pages'] == 2


def test_a_prompt_longer_than_the_tenant_may_hold_comes_from_the_disk_whole(engine, monkeypatch):
    with Daemon(tenant_dram='2Mi', nvme='64Mi') as small:
        rig = engine(at=small.start().door())
        chain = keys(3 * PAGES)
        for at in range(0, len(chain), PAGES):  # room comes when a page has reached the disk
            until(lambda: all(rig.store(chain[at:at + PAGES], prefix=chain[:at])))
        until(lambda: rig.backend.batch_exists(chain) == len(chain))
        given_back = []
        real = kvartal.Lease.release_front
        monkeypatch.setattr(kvartal.Lease, 'release_front',
                            lambda lease, place: (given_back.append(place), real(lease, place)))
        for at in range(0, len(chain), 32):
            for page in range(32):
                rig.write(page, 77)
            assert rig.load(chain[at:at + 32], range(32)) == [True] * 32
            assert all(rig.holds(page, 1 + (at + page) % PAGES) for page in range(32))
        assert given_back, 'all of it fitted at once'
        # Another request with the same front comes while the lease that gave its front back is kept for the rest.
        given_back.clear()
        until(lambda: rig.backend.batch_exists(chain) == len(chain))
        at = 0
        while not given_back:
            assert rig.load(chain[at:at + 32], range(32)) == [True] * 32
            at += 32
        assert at < len(chain)
        loaded = rig.load(chain[:32], range(32))
        assert loaded == sorted(loaded, reverse=True), 'there may be no room for both'
        assert all(rig.holds(page, 1 + page) for page in range(loaded.count(True)))
        assert 'uncached' not in rig.backend.counts


def test_a_limit_is_a_page_that_is_not_stored(engine):
    with Daemon(tenant_dram='2Mi') as small:
        rig = engine(at=small.start().door(), options={'store_deadline_ms': 200})  # of 2 MiB
        stored = rig.store(keys(PAGES)) + rig.store(keys(PAGES, salt='x'))
        assert True in stored and rig.backend.counts['stored_pages'] == stored.count(True)
        assert rig.backend.counts.get('skipped_pages', 0) == stored.count(False)
        assert 'uncached' not in rig.backend.counts


@pytest.mark.parametrize('method, call', [
    ('runs', lambda rig: rig.store(keys(2))), ('read', lambda rig: rig.store(keys(2))),
    ('write', lambda rig: rig.load(keys(1, salt='a'), [3]))])
def test_a_bug_ends_the_caching_and_not_the_engine(engine, monkeypatch, method, call, caplog):
    rig = engine()
    rig.store(keys(1, salt='a'))

    def broken(*args, **kwargs):
        raise KeyError('a bug')

    with monkeypatch.context() as patch:
        patch.setattr(PoolPages, method, broken)
        assert not any(call(rig))
    assert is_uncached(rig)
    (line,) = warnings_of(caplog)
    assert 'runs uncached' in line and 'a bug' in line
    assert engine().backend.batch_exists(keys(1)) == 0, 'a page that was not copied is not seen'


def test_pages_that_are_not_the_pools_are_never_touched(engine):
    rig = engine()
    assert rig.store(keys(1)) == [True]
    before = rig.everything()
    assert rig.load(keys(1), [PAGES + 5]) == [False]
    assert rig.everything() == before and is_uncached(rig)


def test_a_backend_that_was_closed_is_a_miss(engine):
    rig = engine()
    rig.store(keys(2))
    rig.backend.batch_exists(keys(2))
    rig.backend.close()
    rig.backend.close()
    assert (rig.backend.batch_exists(keys(2)), rig.store(keys(2)), rig.load(keys(2), [5, 6])) == (
        0, [False, False], [False, False])
