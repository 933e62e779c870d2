"""kvartal.Client against a real daemon."""
import gc
import os
import signal
import threading
import time
import types

import numpy as np
import pytest
from conftest import BLOCK_BYTES, PATIENT_MS, chain, store
from daemon import Daemon

import kvartal
from kvartal import Hint, Outcome, Status, _abi
from kvartal import client as client_module


def attach(daemon, door='red', group=None):
    client = kvartal.Client(daemon.door(door), 'test', group, PATIENT_MS)
    assert client.connected, client.error
    return client


def test_an_absent_daemon_is_a_miss_and_no_exception(tmp_path, namespace):
    client = kvartal.Client(str(tmp_path / 'nobody.sock'))
    assert client.status == Status.UNAVAILABLE and 'nobody.sock' in client.error
    with client.lookup(namespace, chain(3)) as lease:
        assert (lease.matched, len(lease), lease.load(), lease.block(0), lease.valid(0)) == (0, 0, 0, None, False)
    with client.reserve(namespace, chain(3)) as slots:
        assert slots.outcomes == [Outcome.REFUSED] * 3 and slots[0] is None and slots.commit() == 0
    assert client.poll() == 0 and not client.renew() and client.group is None and client.tenant == ''


def test_the_admin_socket_is_told_to_be_none_for_clients(daemon):
    client = kvartal.Client(str(daemon.folder / 'run/admin.sock'))
    assert client.status == Status.UNAVAILABLE and "kvartald's admin socket" in client.error


def test_a_door_without_a_policy_is_a_miss_until_there_is_one(daemon, namespace, monkeypatch):
    policy = daemon.folder / 'policy/tenants.yaml'
    text = policy.read_text()
    policy.write_text(text.replace('socket: blue', 'socket: other'))
    daemon.ctl('reload')
    client = kvartal.Client(daemon.door('blue'), deadline_ms=PATIENT_MS)
    assert client.status == Status.DENIED and not client.connected
    assert client.lookup(namespace, chain(1)).matched == 0
    policy.write_text(text)
    daemon.ctl('reload')
    monkeypatch.setattr(client_module, '_ATTACH_AGAIN_S', 0)
    client._attach_at = 0
    assert client.lookup(namespace, chain(1), deadline_ms=PATIENT_MS).matched == 0
    assert client.status == Status.OK and client.tenant == 'test/blue'


def test_what_one_client_stores_another_reads_in_place(daemon, namespace):
    writer, reader = attach(daemon), attach(daemon)
    assert writer.tenant == 'test/red' and len(writer.group) == 16
    assert store(writer, namespace, chain(40)) == 40
    with reader.lookup(namespace, chain(50), deadline_ms=PATIENT_MS) as lease:
        assert lease.matched == 40 and list(lease.tiers) == [1] * 40
        assert lease.load(deadline_ms=PATIENT_MS) == 40
        for i in (0, 17, 39):
            block = lease.block(i)
            assert block.shape == (BLOCK_BYTES,) and (block == 1 + i).all() and lease.valid(i)
            assert not block.flags.owndata and not block.flags.writeable
        assert lease.block(40) is None and not lease.valid(40)
        assert lease.hint(Hint.WAITING) and lease.hint(Hint.ENDED)
    assert not lease.hint(Hint.ENDED), 'of a lease that was given back nothing can be said'


def test_of_a_chain_that_is_cached_whole_nothing_is_left_to_store(daemon, namespace):
    client, keys = attach(daemon), chain(4)
    store(client, namespace, keys)
    with client.lookup(namespace, keys, deadline_ms=PATIENT_MS) as lease:
        with client.reserve(namespace, keys[lease.matched:], keys[lease.matched - 1], lease.matched, lease.request,
                            deadline_ms=PATIENT_MS) as slots:
            assert lease.matched == 4 and client.status == Status.OK
            assert (len(slots), slots.outcomes, slots.commit()) == (0, [], 0)


def test_shards_lie_apart_and_a_block_is_seen_with_its_last_one(daemon):
    namespace = kvartal.Namespace(b's' * 32, 16, BLOCK_BYTES, shard_count=2)
    ranks = [attach(daemon)]
    ranks.append(attach(daemon, group=ranks[0].group))
    for shard, client in enumerate(ranks):
        assert ranks[0].lookup(namespace, chain(1), deadline_ms=PATIENT_MS).matched == 0
        with client.reserve(namespace, chain(1), shard=shard, deadline_ms=PATIENT_MS) as slots:
            slots[0][:] = 10 + shard
            assert slots.commit(PATIENT_MS) == 1
    with ranks[0].lookup(namespace, chain(1), deadline_ms=PATIENT_MS) as lease:
        assert [int(lease.block(0, shard).max()) for shard in (0, 1)] == [10, 11]


def test_slots_that_were_not_committed_are_given_back_unseen(daemon, namespace):
    client = attach(daemon)
    with pytest.raises(KeyError), client.reserve(namespace, chain(2), deadline_ms=PATIENT_MS) as slots:
        assert slots.outcomes == [Outcome.GRANTED] * 2
        raise KeyError
    assert slots[0] is None and slots.commit() == 0
    assert client.lookup(namespace, chain(2), deadline_ms=PATIENT_MS).matched == 0
    assert store(client, namespace, chain(2)) == 2
    with client.reserve(namespace, chain(3), deadline_ms=PATIENT_MS) as slots:
        assert slots.outcomes == [Outcome.EXISTS, Outcome.EXISTS, Outcome.GRANTED] and slots[0] is None


def test_a_refusal_names_its_limit(namespace):
    with Daemon(tenant_dram='2Mi') as daemon:
        client = attach(daemon.start())
        with client.reserve(namespace, chain(40), deadline_ms=PATIENT_MS) as slots:
            assert {slots.outcomes[0], slots.outcomes[-1]} == {Outcome.GRANTED, Outcome.REFUSED}
            assert client.status == Status.OK and client.refusal == 'tenant_limit'
        assert client.refusal == ''


def test_a_chain_comes_back_from_the_disk_as_far_as_there_is_room(namespace):
    with Daemon(tenant_dram='2Mi', nvme='64Mi') as daemon:
        client = attach(daemon.start())
        keys, stored = chain(60), 0
        until = time.monotonic() + PATIENT_MS / 1000
        while stored < len(keys):  # room comes when a block has reached the disk
            assert time.monotonic() < until
            parent = keys[stored - 1] if stored else None
            with client.reserve(namespace, keys[stored:stored + 8], parent, stored, deadline_ms=PATIENT_MS) as slots:
                for i in range(len(slots)):
                    if slots[i] is not None:
                        slots[i][:] = stored + i
                slots.commit(PATIENT_MS)
            with client.lookup(namespace, keys, deadline_ms=PATIENT_MS) as lease:
                stored = lease.matched
        with client.lookup(namespace, keys, deadline_ms=PATIENT_MS) as lease:
            assert lease.matched == 60 and 2 in lease.tiers
            loaded = lease.load(deadline_ms=PATIENT_MS)
            assert 0 < loaded < 60 and client.refusal
            for i in range(loaded):
                assert (lease.block(i) == i).all() and lease.valid(i)
            assert lease.block(59) is None
            lease.release_front(loaded)
            more = lease.load(loaded, 60 - loaded, PATIENT_MS)
            assert more > 0 and not lease.valid(0)
            for i in range(loaded, loaded + more):
                assert (lease.block(i) == i).all() and lease.valid(i)


def test_tenants_and_namespaces_do_not_meet(daemon, namespace):
    red, blue = attach(daemon), attach(daemon, 'blue')
    store(red, namespace, chain(2))
    assert blue.lookup(namespace, chain(2), deadline_ms=PATIENT_MS).matched == 0
    other = kvartal.Namespace(b'o' * 32, 16, BLOCK_BYTES)
    assert red.lookup(other, chain(2), deadline_ms=PATIENT_MS).matched == 0
    with red.lookup(namespace, chain(2), deadline_ms=PATIENT_MS) as lease:
        assert lease.matched == 2


def test_an_engine_may_start_anew_again_and_again(daemon):
    client = attach(daemon)
    for epoch in range(600):
        namespace = kvartal.Namespace(epoch.to_bytes(32, 'little'), 16, BLOCK_BYTES)
        assert store(client, namespace, chain(1)) == 1, (epoch, client.error)
        client.close_namespace(namespace)
    client.close_namespace(namespace)  # it is not open
    with client.lookup(namespace, chain(1), deadline_ms=PATIENT_MS) as lease:
        assert lease.matched == 1, 'closed is not deleted'


def test_a_lease_outlives_its_namespace(daemon, namespace):
    client = attach(daemon)
    store(client, namespace, chain(2))
    with client.lookup(namespace, chain(2), deadline_ms=PATIENT_MS) as lease:
        client.close_namespace(namespace)
        assert lease.load(deadline_ms=PATIENT_MS) == 2 and lease.valid(1)


def test_a_worker_reads_what_its_scheduler_leased(daemon, namespace):
    scheduler = attach(daemon)
    worker = attach(daemon, group=scheduler.group)
    store(scheduler, namespace, chain(6))
    lease = scheduler.lookup(namespace, chain(6), deadline_ms=PATIENT_MS)
    with worker.borrow(namespace, lease.id, range(2, 5), PATIENT_MS) as borrowed:
        assert borrowed.load(deadline_ms=PATIENT_MS) == 3
        assert [int(borrowed.block(i)[0]) for i in borrowed.blocks] == [3, 4, 5] and borrowed.valid(4)
    lease.release()
    assert scheduler.renew(PATIENT_MS)  # the release has been told
    with worker.borrow(namespace, lease.id, range(2, 5), PATIENT_MS) as borrowed:
        assert borrowed.load(deadline_ms=PATIENT_MS) == 0 and worker.status == Status.NOT_FOUND


def test_a_killed_daemon_is_a_miss_and_is_found_again(daemon, namespace):
    client = attach(daemon)
    store(client, namespace, chain(2))
    lease = client.lookup(namespace, chain(2), deadline_ms=PATIENT_MS)
    block = lease.block(1)
    daemon.kill()
    assert client.lookup(namespace, chain(2)).matched == 0 and client.status == Status.UNAVAILABLE
    assert lease.load() == 0
    assert int(block[0]) == 2, 'the memory of a dead daemon stays while a lease reads it'
    lease.release()
    daemon.start()
    while client.lookup(namespace, chain(2), deadline_ms=PATIENT_MS) and client.status != Status.OK:
        pass
    assert store(client, namespace, chain(2)) == 2


class SlowLibrary:
    """The library on a clock of its own, where each call that has a deadline takes `takes_ms`; what they were given."""

    CALLS = ('kv_attach', 'kv_open_namespace', 'kv_lookup', 'kv_borrow', 'kv_reserve', 'kv_renew')

    def __init__(self, takes_ms):
        self.takes_ms, self.now_ns, self.given = takes_ms, 0, []

    def __getattr__(self, name):
        function = getattr(_abi.lib, name)
        if name not in self.CALLS:
            return function

        def slow(*arguments):
            self.given.append((name, arguments[0]._obj.deadline_ms if name == 'kv_attach' else arguments[-1]))
            self.now_ns += self.takes_ms * 1_000_000
            return function(*arguments)
        return slow


VERBS = {'kv_lookup': lambda client, namespace: client.lookup(namespace, chain(1), deadline_ms=10_000).release(),
         'kv_borrow': lambda client, namespace: client.borrow(namespace, 7, range(1), 10_000).release(),
         'kv_reserve': lambda client, namespace: client.reserve(namespace, chain(1), deadline_ms=10_000).abort()}


@pytest.mark.parametrize('verb', VERBS)
def test_one_deadline_for_all_that_a_verb_takes(daemon, namespace, monkeypatch, verb):
    client = attach(daemon)

    def given(takes_ms, opened):
        """What the calls of that verb are given when they take so long."""
        if not opened:  # as after an attach that was denied
            client._handle, client._attach_at = None, 0
        library = SlowLibrary(takes_ms)
        clock = types.SimpleNamespace(monotonic=time.monotonic, monotonic_ns=lambda: library.now_ns)
        with monkeypatch.context() as patch:
            patch.setattr(client_module, 'lib', library)
            patch.setattr(client_module, 'time', clock)
            VERBS[verb](client, namespace)
        return library.given

    assert given(3000, False) == [('kv_attach', 10_000), ('kv_open_namespace', 7_000), (verb, 4_000)]
    assert given(3000, True) == [(verb, 10_000)]
    assert given(5000, False) == [('kv_attach', 10_000), ('kv_open_namespace', 5_000)]
    assert client.status == Status.UNAVAILABLE and 'deadline' in client.error
    assert given(5000, True) == [(verb, 10_000)] and client.status != Status.UNAVAILABLE, 'it was opened meanwhile'
    assert given(10_000, False) == [('kv_attach', 10_000)] and client.status == Status.UNAVAILABLE


def test_a_renewal_has_what_attaching_left(daemon, monkeypatch):
    client = attach(daemon)
    client._handle, client._attach_at = None, 0
    library = SlowLibrary(3000)
    monkeypatch.setattr(client_module, 'lib', library)
    monkeypatch.setattr(client_module, 'time', types.SimpleNamespace(monotonic=time.monotonic,
                                                                     monotonic_ns=lambda: library.now_ns))
    assert client.renew() is False and library.given == [('kv_attach', 0)], 'the default of a second is gone'
    client._handle = None
    library.given.clear()
    assert client.renew(PATIENT_MS) and library.given == [('kv_attach', PATIENT_MS), ('kv_renew', PATIENT_MS - 3000)]


def test_arrays_outlive_everything(daemon, namespace):
    client = attach(daemon)
    store(client, namespace, chain(1), value=7)
    lease = client.lookup(namespace, chain(1), deadline_ms=PATIENT_MS)
    block = lease.block(0)
    lease.release()
    client.close()
    del lease, client
    assert int(block.sum(dtype=np.int64)) == 7 * BLOCK_BYTES


def test_misuse_raises(daemon, namespace):
    client = attach(daemon)
    with pytest.raises(ValueError, match='32 bytes'):
        client.lookup(namespace, [b'short'])
    with pytest.raises(ValueError, match='32 bytes'):
        kvartal.Namespace(b'short', 16, BLOCK_BYTES)
    with pytest.raises(ValueError, match='16 bytes'):
        kvartal.Client(daemon.door(), group=b'short')
    with pytest.raises(ValueError, match='1024'):
        client.reserve(namespace, chain(1025))
    with pytest.raises(ValueError, match='32 MiB'):
        client.lookup(kvartal.Namespace(b'n' * 32, 16, 64 << 20), chain(1), deadline_ms=PATIENT_MS)
    client.close()
    with pytest.raises(RuntimeError, match='closed'):
        client.lookup(namespace, chain(1))


def test_a_forgotten_lease_is_given_back_with_a_warning(daemon, namespace):
    client = attach(daemon)
    store(client, namespace, chain(1))
    with pytest.warns(ResourceWarning, match='forgotten'):
        client.lookup(namespace, chain(1), deadline_ms=PATIENT_MS)


def test_a_lease_that_is_collected_with_its_client_is_no_crash(daemon, namespace):
    class Engine:
        def __init__(self):
            self.client = attach(daemon)
            store(self.client, namespace, chain(1))
            self.lease = self.client.lookup(namespace, chain(1), deadline_ms=PATIENT_MS)
            self.me = self

    # In which order the members of a cycle end is nobody's choice: several, so that both come.
    for _ in range(5):
        engine = Engine()
        assert engine.lease.matched == 1
        with pytest.warns(ResourceWarning, match='forgotten'):
            del engine
            gc.collect()
    client = attach(daemon)
    with client.lookup(namespace, chain(1), deadline_ms=PATIENT_MS) as lease:
        assert lease.matched == 1


def test_numbers_that_c_would_cut_off_are_refused(daemon, namespace):
    digest = bytes(32)
    for layout in ({'tokens_per_block': -1, 'shard_bytes': 4096}, {'tokens_per_block': 16, 'shard_bytes': 2**32 + 4096},
                   {'tokens_per_block': 16, 'shard_bytes': 4096, 'shard_count': 2**32 + 1}):
        with pytest.raises(ValueError, match='has to be from 0 to 4294967295'):
            kvartal.Namespace(digest, **layout)
    client = attach(daemon)
    for call in (lambda: client.lookup(namespace, chain(1), deadline_ms=-1),
                 lambda: client.lookup(namespace, chain(1), prompt_tokens=-1),
                 lambda: client.reserve(namespace, chain(1), shard=2**32),
                 lambda: client.reserve(namespace, chain(1), first_depth=-1),
                 lambda: client.borrow(namespace, -1, range(1)), lambda: client.poll(-1), lambda: client.renew(2**32)):
        with pytest.raises(ValueError, match='has to be from 0'):
            call()
    store(client, namespace, chain(1))
    with client.lookup(namespace, chain(1), deadline_ms=PATIENT_MS) as lease:
        with pytest.raises(ValueError, match='until_wall_ms is -1'):
            lease.pin(-1)
        with pytest.raises(ValueError, match='count is -1'):
            lease.load(0, -1)


def test_threads_of_one_client_take_turns(daemon, namespace):
    client = attach(daemon)
    wrong = []

    def work(salt):
        for _ in range(30):
            store(client, namespace, chain(4, salt), value=salt)
            with client.lookup(namespace, chain(4, salt), deadline_ms=PATIENT_MS) as lease:
                if lease.matched != 4 or int(lease.block(3)[-1]) != salt + 3:
                    wrong.append(salt)

    threads = [threading.Thread(target=work, args=(salt,)) for salt in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_does_not_wait_for_a_turn_that_a_thread_of_its_parent_has(daemon, namespace):
    client = attach(daemon)
    store(client, namespace, chain(1))
    leases = [client.lookup(namespace, chain(1), deadline_ms=PATIENT_MS)]
    slots = client.reserve(namespace, chain(1, salt=1), deadline_ms=PATIENT_MS)
    caller = threading.Thread(target=client.poll, args=(3000,))
    caller.start()
    while client._turn.acquire(blocking=False):  # until the other thread has it
        client._turn.release()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends it where it hangs
        leases.clear()  # whose last reference this was
        gc.collect()
        slots.abort()
        missed = client.lookup(namespace, chain(1)).matched == 0 and client.status == Status.UNAVAILABLE
        client.close()
        os._exit(0 if missed and not client.connected else 1)
    assert os.waitpid(child, 0)[1] == 0
    caller.join()
    assert leases[0].valid(0), 'its parent has what it had'
    leases[0].release()
    assert slots.commit(PATIENT_MS) == 1
