"""Client of the node's KV cache: look a chain of blocks up and read it in place, reserve slots and fill them in place.

Shapes. A *key* is 32 bytes: the engine's own chained hash of a prompt up to and including one block. A *chain* is a
prompt's keys in order. A *block* is the KV bytes of one key: `shard_count` shards of `shard_bytes` bytes.
Memory. Arrays of this module are numpy `uint8` views of mapped shared memory, never copies. They stay readable after
the lease, the client and the daemon are gone, but not for ever: the end of a session lets go of its memory, and 64 such
ends later, or 4 where they have more than 8 TiB of addresses together (an arena has four times the memory of its node),
to read it is a crash. Whether the bytes were the block's all the while, `Lease.valid` says after copying them out.
Failures. An absent, slow or refusing daemon is a miss: empty leases, slots that are None, 0 loaded. `Client.status` and
`Client.error` say why. Only misuse raises: `ValueError` for arguments, `RuntimeError` for a closed client.
Threads. Calls on one client take turns, so any thread may make them; each waits for the daemon with the interpreter
lock released. Reading and writing block bytes needs no turn. After a fork the child has to make its own Client: calls
on those of its parent are misses, and what it has of them ends without a word to the daemon.
Times are milliseconds; a deadline of 0 means 1000. It is of the whole call from its turn on: what attaching anew and
opening the namespace took is gone from it, and where nothing is left the call is a miss.
"""
from __future__ import annotations

import ctypes
import os
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from ctypes import byref, c_uint32, c_uint64, c_void_p
from types import TracebackType

import numpy as np
import numpy.typing as npt

from kvartal import _abi
from kvartal._abi import lib
from kvartal.values import Hint, Namespace, Outcome, Status, check32, check64

Bytes = npt.NDArray[np.uint8]

_DEADLINE_MS = 1000  # of a call that gives none
_ATTACH_AGAIN_S = 2.0  # after an attach that gave no client: a policy that names this process may come any time
_BLOCK = np.dtype({'names': ['data', 'tier', 'generation'], 'formats': [np.uint64, np.int32, np.uint32],
                   'offsets': [_abi.Block.data.offset, _abi.Block.tier.offset, _abi.Block.generation.offset],
                   'itemsize': ctypes.sizeof(_abi.Block)})


class _Handle:
    """One kv_client. Detached when the last client, lease, slot or array that leads into its memory is gone."""

    def __init__(self, pointer: int):
        self.pointer: int | None = pointer

    def __del__(self) -> None:
        # A lease in the same cycle may be finalized after this: it finds no client to give itself back to.
        pointer, self.pointer = self.pointer, None
        lib.kv_detach(pointer)


class _Memory:
    """What a numpy view is made of: an address, and the handle that keeps it mapped."""

    __slots__ = ('__array_interface__', 'handle')

    def __init__(self, handle: _Handle, address: int, size: int, read_only: bool):
        self.handle = handle
        self.__array_interface__ = {'version': 3, 'shape': (size,), 'typestr': '|u1', 'data': (address, read_only)}


class _Until:
    """The deadline of one verb, through all the calls to the library that it takes."""

    def __init__(self, deadline_ms: int):
        self._at_ns = time.monotonic_ns() + (deadline_ms or _DEADLINE_MS) * 1_000_000

    def left_ms(self) -> int:
        """Rounded up, so that a call is never given less than there is. With 0 it must not be made: to the library that
        is a whole default deadline."""
        return max(0, -((time.monotonic_ns() - self._at_ns) // 1_000_000))


def _join(keys: Sequence[bytes]) -> bytes:
    joined = b''.join(keys)
    if len(joined) != len(keys) * _abi.KEY_BYTES:
        raise ValueError(f'a key has {_abi.KEY_BYTES} bytes; {len(keys)} keys came to {len(joined)}')
    return joined


class Client:
    """A session with the daemon of this node, found again by itself when it was gone.

    socket: path of the daemon's socket; None: $KVARTAL_SOCKET, else /run/kvartal/kvartal.sock.
    name: for the daemon's log. group: 16 bytes of another client's `group`, to be one engine with it.
    deadline_ms: how long attaching may take. token_file: of the pod's ServiceAccount token, read at every attach and
    renewed from before it expires; None: $KVARTAL_TOKEN_FILE, else none.
    No daemon, or one that denies this process, raises nothing: every call is a miss until that has changed.
    """

    def __init__(self, socket: str | None = None, name: str | None = None, group: bytes | None = None,
                 deadline_ms: int = 0, token_file: str | None = None):
        check32(deadline_ms=deadline_ms)
        if group is not None and len(group) != _abi.GROUP_BYTES:
            raise ValueError(f'a group has {_abi.GROUP_BYTES} bytes, not {len(group)}')
        self._turns: dict[int, AbstractContextManager[bool]] = {}  # by process
        self._options = _abi.Options(ctypes.sizeof(_abi.Options), socket.encode() if socket else None,
                                     name.encode()[:128] if name else None, group, deadline_ms,
                                     token_file.encode() if token_file else None)
        self._handle: _Handle | None = None
        self._closed = False
        self._attach_at = 0.0
        self._opened: dict[Namespace, int] = {}
        self._status = Status.OK
        self._error = ''
        self._refusal = ''
        with self._turn:
            self._ready(deadline_ms)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the session once nothing leads into its memory any more. May be called twice."""
        with self._turn:
            self._closed = True
            self._handle = None

    # --- what it knows

    @property
    def status(self) -> Status:
        """Of the last call."""
        return self._status

    @property
    def error(self) -> str:
        """What was wrong with the last call, where, and what to do; '' when nothing was."""
        return self._error

    @property
    def refusal(self) -> str:
        """The limit that the last call met, 'tenant_limit' for example; '' when there was none. A reservation or load
        of which only a part was refused is Status.OK and has one."""
        return self._refusal

    @property
    def connected(self) -> bool:
        """Whether a session is up."""
        handle = self._handle
        return handle is not None and bool(lib.kv_connected(handle.pointer))

    @property
    def tenant(self) -> str:
        """The tenant that the daemon took this process for; '' before the first attach."""
        with self._turn:
            return '' if self._handle is None else lib.kv_tenant(self._handle.pointer).decode()

    @property
    def group(self) -> bytes | None:
        """The 16 bytes that other processes of this engine join with; None before the first attach."""
        out = (ctypes.c_uint8 * _abi.GROUP_BYTES)()
        with self._turn:
            if self._handle is None or lib.kv_group(self._handle.pointer, out) != Status.OK:
                return None
        return bytes(out)

    # --- verbs

    def close_namespace(self, namespace: Namespace) -> None:
        """Nothing of it is asked for any more: its blocks are the first to go when nobody else has it open. Its leases
        and slots last as others do. Nothing happens when it is not open; the next use opens it again."""
        with self._turn:
            number = self._opened.pop(namespace, None)
            if number is not None and self._handle is not None:
                lib.kv_close_namespace(self._handle.pointer, number)

    def lookup(self, namespace: Namespace, keys: Sequence[bytes], prompt_tokens: int = 0,
               deadline_ms: int = 0) -> Lease:
        """How many leading keys of the chain are cached, and a lease on them. An empty lease is a miss.

        prompt_tokens: tokens of the whole prompt, for hit accounting; 0: keys times tokens_per_block.
        """
        joined = _join(keys)
        check64(prompt_tokens=prompt_tokens)
        check32(deadline_ms=deadline_ms)
        lease, matched, request = c_void_p(), c_uint32(), c_uint64()
        with self._turn:
            number, left_ms = self._open(namespace, deadline_ms)
            if number is not None and keys:
                assert self._handle is not None
                self._note(lib.kv_lookup(self._handle.pointer, number, joined, len(keys), prompt_tokens, byref(lease),
                                         byref(matched), byref(request), left_ms))
            return Lease(self, namespace, lease.value, range(matched.value), request.value)

    def borrow(self, namespace: Namespace, lease_id: int, blocks: range, deadline_ms: int = 0) -> Lease:
        """A handle on those blocks of a lease that another client of this engine group holds (`Lease.id`).

        Load it before reading. It must be released before its owner gives the lease back, and gives nothing back.
        """
        check64(lease_id=lease_id)
        check32(first=blocks.start, count=len(blocks), deadline_ms=deadline_ms)
        lease = c_void_p()
        with self._turn:
            number, left_ms = self._open(namespace, deadline_ms)
            if number is not None:
                assert self._handle is not None
                self._note(lib.kv_borrow(self._handle.pointer, number, lease_id, blocks.start, len(blocks),
                                         byref(lease), left_ms))
            return Lease(self, namespace, lease.value, blocks if lease.value else range(0), 0)

    def reserve(self, namespace: Namespace, keys: Sequence[bytes], parent: bytes | None = None, first_depth: int = 0,
                request: int = 0, shard: int = 0, deadline_ms: int = 0) -> Slots:
        """Slots for consecutive blocks of one chain, charged from now on. At most 1024 keys; for none, none.

        parent: the key before keys[0], None at the head of a chain. first_depth: the place of keys[0] in its chain.
        request: `Lease.request` of the lookup of this chain, 0 when there was none. shard: the one this client writes.
        """
        check64(request=request)
        check32(shard=shard, first_depth=first_depth, deadline_ms=deadline_ms)
        args = _abi.ReserveArgs(ctypes.sizeof(_abi.ReserveArgs), 0, shard, _join(keys), len(keys), parent, first_depth,
                                request)
        if parent is not None and len(parent) != _abi.KEY_BYTES:
            raise ValueError(f'a key has {_abi.KEY_BYTES} bytes; the parent has {len(parent)}')
        slots = (_abi.Slot * len(keys))()
        for slot in slots:
            slot.outcome = Outcome.REFUSED  # what it stays without a daemon
        with self._turn:
            number, left_ms = self._open(namespace, deadline_ms)
            if number is not None and keys:
                assert self._handle is not None
                args.ns = number
                self._note(lib.kv_reserve(self._handle.pointer, byref(args), slots, left_ms))
                self._refusal = lib.kv_last_refusal(self._handle.pointer).decode()  # some may be refused of an OK call
            return Slots(self, namespace, slots, shard)

    def poll(self, wait_ms: int = 0) -> int:
        """Blocks of this engine group, whichever client committed them, that this one was told would survive kill -9 of
        the daemon, in total; waits for news of it."""
        check32(wait_ms=wait_ms)
        durable = c_uint64()
        with self._turn:
            if self._ready(0):
                assert self._handle is not None
                self._note(lib.kv_poll(self._handle.pointer, wait_ms, byref(durable)))
        return durable.value

    def renew(self, deadline_ms: int = 0) -> bool:
        """Makes every lease of this engine group live on. A thread of the library does it by itself, too."""
        check32(deadline_ms=deadline_ms)
        with self._turn:
            until = _Until(deadline_ms)
            if not self._ready(deadline_ms) or not (left_ms := self._left_ms(until)):
                return False
            assert self._handle is not None
            return self._note(lib.kv_renew(self._handle.pointer, left_ms)) == Status.OK

    @property
    def _turn(self) -> AbstractContextManager[bool]:
        """To be held for a call. A forked child has one of its own: in its copy of its parent's another thread may have
        the turn, which is not there to end it."""
        process = os.getpid()
        return self._turns.get(process) or self._turns.setdefault(process, threading.RLock())

    # --- behind the verbs; the caller has the turn

    def _note(self, status: int) -> Status:
        self._status = Status(status)
        if status == Status.OK:
            self._error = self._refusal = ''
            return Status.OK
        pointer = self._handle.pointer if self._handle is not None else None
        self._error = lib.kv_last_error(pointer).decode()
        self._refusal = lib.kv_last_refusal(pointer).decode() if pointer else ''
        if status == Status.INVALID_ARGUMENT:
            raise ValueError(self._error)
        return self._status

    def _ready(self, deadline_ms: int) -> bool:
        if self._closed:
            raise RuntimeError('the client is closed')
        if self._handle is not None:
            return True
        if time.monotonic() < self._attach_at:
            return False
        self._options.deadline_ms = deadline_ms
        pointer = c_void_p()
        status = lib.kv_attach(byref(self._options), byref(pointer))
        if pointer.value:
            self._handle = _Handle(pointer.value)
            self._opened.clear()
        else:
            self._attach_at = time.monotonic() + _ATTACH_AGAIN_S
        self._note(status)
        return self._handle is not None

    def _left_ms(self, until: _Until) -> int:
        """0: the call is over, as a miss."""
        left_ms = until.left_ms()
        if left_ms == 0 and self._status == Status.OK:
            self._status = Status.UNAVAILABLE
            self._error = 'the deadline passed while the session began: the next call finds it ready'
        return left_ms

    def _open(self, namespace: Namespace, deadline_ms: int) -> tuple[int | None, int]:
        """The number of the namespace, None when there is nothing to ask, and what is left of the deadline."""
        if self._handle is not None and (opened := self._opened.get(namespace)) is not None:
            return opened, deadline_ms
        until = _Until(deadline_ms)
        if not self._ready(deadline_ms) or not (left_ms := self._left_ms(until)):
            return None, 0
        layout = _abi.Layout(namespace.tokens_per_block, namespace.shard_count, namespace.shard_bytes)
        out = c_uint32()
        assert self._handle is not None
        status = self._note(lib.kv_open_namespace(self._handle.pointer, namespace.digest, byref(layout), byref(out),
                                                  left_ms))
        if status not in (Status.OK, Status.UNAVAILABLE):
            return None, 0
        self._opened[namespace] = out.value
        left_ms = self._left_ms(until)
        return (out.value if left_ms else None), left_ms


class Lease:
    """Blocks that a lookup found, kept where they are until `release`. A context manager that releases.

    Indexes are places in the chain and never move: `blocks` is range(0, matched) for a lookup, and the borrowed part
    of it for `Client.borrow`.
    """

    def __init__(self, client: Client, namespace: Namespace, pointer: int | None, blocks: range, request: int):
        self._client = client
        self._handle = client._handle
        self._namespace = namespace
        self._pointer = pointer
        self.blocks = blocks
        self.front = blocks.start  #: the first that is not given back
        self.request = request  #: the number to pass to `Client.reserve` for the rest of this chain
        self.id: int = lib.kv_lease_id(pointer) if pointer else 0  #: what another process borrows it by

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, '_pointer', None):
            warnings.warn('a lease was forgotten: release it, or use it in a with statement', ResourceWarning,
                          source=self)
            self.release()

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def matched(self) -> int:
        """How many leading keys of the chain are cached; 0 is a miss."""
        return self.blocks.stop

    @property
    def tiers(self) -> npt.NDArray[np.int32]:
        """Where each block of the chain is: 0 HBM, 1 DRAM, 2 NVMe. Only blocks in DRAM can be read; a copy."""
        if not self._pointer:
            return np.empty(0, np.int32)
        count = lib.kv_lease_count(self._pointer)
        raw = (ctypes.c_uint8 * (count * _BLOCK.itemsize)).from_address(lib.kv_lease_blocks(self._pointer))
        return np.frombuffer(raw, _BLOCK)['tier'].copy()

    def load(self, first: int | None = None, count: int | None = None, deadline_ms: int = 0) -> int:
        """Brings blocks [first, first + count) into DRAM; None: all. How many from `first` on can be read now.

        Fewer than asked: no room for more at once (status REFUSED or OK), a block was lost (LOST), the lease has ended
        (NOT_FOUND), no daemon (UNAVAILABLE). Blocks beyond are a miss.
        """
        first = self.blocks.start if first is None else first
        count = self.blocks.stop - first if count is None else count
        check32(first=first, count=count, deadline_ms=deadline_ms)
        if not self._pointer or count == 0:
            return 0
        loaded = c_uint32()
        with self._client._turn:
            if self._client._handle is not self._handle or self._handle is None:
                raise RuntimeError('the client is closed')
            self._client._note(lib.kv_load(self._handle.pointer, self._pointer, first, count, byref(loaded),
                                           deadline_ms))
            self._client._refusal = lib.kv_last_refusal(self._handle.pointer).decode()
        return loaded.value

    def block(self, i: int, shard: int = 0) -> Bytes | None:
        """The bytes of one shard of block `i`, read-only, shape (shard_bytes,); None unless it is in DRAM."""
        address = lib.kv_lease_shard(self._pointer, i, shard) if self._pointer else None
        if not address or self._handle is None:
            return None
        return np.asarray(_Memory(self._handle, address, self._namespace.shard_bytes, read_only=True))

    def valid(self, i: int) -> bool:
        """After copying block `i` out: whether the bytes were the block's all the while. False is a failed load."""
        return bool(self._pointer) and bool(lib.kv_block_valid(self._pointer, i))

    def pin(self, until_wall_ms: int, deadline_ms: int = 0) -> bool:
        """Keeps the blocks resident until then (ms since 1970), within the tenant's guarantee."""
        check64(until_wall_ms=until_wall_ms)
        check32(deadline_ms=deadline_ms)
        if not self._pointer or self._handle is None:
            return False
        with self._client._turn:
            return self._client._note(lib.kv_pin(self._handle.pointer, self._pointer, until_wall_ms,
                                                 deadline_ms)) == Status.OK

    def hint(self, what: Hint) -> bool:
        """What is known of the conversation whose whole chain this lease holds: advice for what is evicted."""
        if not self._pointer or self._handle is None:
            return False
        with self._client._turn:
            return self._client._note(lib.kv_hint(self._handle.pointer, self._pointer, what)) == Status.OK

    def release_front(self, place: int) -> None:
        """Gives back the blocks before that place of the chain, but for the last one: room to load more of a chain that
        is longer than the tenant may hold in memory. Of what `borrow` gave nothing is given back."""
        count = min(place, self.blocks.stop - 1) - self.front
        if not self._pointer or self._handle is None or count < 1:
            return
        self.front += count
        with self._client._turn:
            lib.kv_release(self._handle.pointer, self._pointer, count)

    def release(self) -> None:
        """Gives the lease back. May be called twice. Arrays can be read on, but are no longer the block's."""
        pointer, self._pointer = self._pointer, None
        if pointer and self._handle is not None:
            with self._client._turn:
                lib.kv_release(self._handle.pointer, pointer, 0)


class Slots:
    """Slots of one reservation. A context manager: what was not committed in it is aborted."""

    def __init__(self, client: Client, namespace: Namespace, slots: ctypes.Array[_abi.Slot], shard: int):
        self._client = client
        self._handle = client._handle
        self._namespace = namespace
        self._slots = slots
        self._shard = shard
        self._open = any(slot.reservation for slot in slots)
        #: One a key, in order.
        self.outcomes: list[Outcome] = [Outcome(slot.outcome) for slot in slots]

    def __enter__(self) -> Slots:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.abort()

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, i: int) -> Bytes | None:
        """The bytes to write for key `i`, shape (shard_bytes,); None unless it was granted and is still open."""
        slot = self._slots[i]
        if not self._open or not slot.data or self._handle is None:
            return None
        return np.asarray(_Memory(self._handle, slot.data, self._namespace.shard_bytes, read_only=False))

    def commit(self, deadline_ms: int = 0) -> int:
        """Makes every granted slot visible; fill them first. How many are stored now."""
        check32(deadline_ms=deadline_ms)
        committed = c_uint32()
        if self._take() and self._handle is not None:
            with self._client._turn:
                self._client._note(lib.kv_commit(self._handle.pointer, self._slots, len(self._slots), self._shard,
                                                 byref(committed), deadline_ms))
        return committed.value

    def abort(self, deadline_ms: int = 0) -> None:
        """Gives the slots back unseen. Nothing happens after a commit or abort."""
        check32(deadline_ms=deadline_ms)
        if self._take() and self._handle is not None:
            with self._client._turn:
                self._client._note(lib.kv_abort(self._handle.pointer, self._slots, len(self._slots), deadline_ms))

    def _take(self) -> bool:
        was_open, self._open = self._open, False
        return was_open
