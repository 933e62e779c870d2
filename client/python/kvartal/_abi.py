"""The C ABI of client/libkvartal/kvartal.h for ctypes: types, one table of signatures, and where the library is.

Nothing here decides anything; `kvartal.client` does. What a struct or function means stands in kvartal.h.
"""
import ctypes
import os
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from pathlib import Path

KEY_BYTES = 32
DIGEST_BYTES = 32
GROUP_BYTES = 16
RESERVE_MAX = 1024  # keys of one kv_reserve


class Options(ctypes.Structure):
    """kv_options"""

    _fields_ = [('struct_size', c_size_t), ('socket_path', c_char_p), ('client_name', c_char_p),
                ('join_group', c_char_p), ('deadline_ms', c_uint32), ('token_path', c_char_p)]


class Layout(ctypes.Structure):
    """kv_layout"""

    _fields_ = [('tokens_per_block', c_uint32), ('shard_count', c_uint32), ('shard_bytes', c_uint32)]


class Block(ctypes.Structure):
    """kv_block"""

    _fields_ = [('data', c_void_p), ('tier', c_int), ('generation', c_uint32)]


class Slot(ctypes.Structure):
    """kv_slot"""

    _fields_ = [('data', c_void_p), ('reservation', c_uint64), ('outcome', c_int)]


class ReserveArgs(ctypes.Structure):
    """kv_reserve_args"""

    _fields_ = [('struct_size', c_size_t), ('ns', c_uint32), ('shard', c_uint32), ('keys', c_char_p),
                ('count', c_uint32), ('parent_key', c_char_p), ('first_depth', c_uint32), ('request', c_uint64)]


_CLIENT = _LEASE = c_void_p
_OUT_U32 = POINTER(c_uint32)
_OUT_U64 = POINTER(c_uint64)
_OUT_POINTER = POINTER(c_void_p)

# name: (result, arguments)
_FUNCTIONS = {
    'kv_attach': (c_int, [POINTER(Options), _OUT_POINTER]),
    'kv_detach': (None, [_CLIENT]),
    'kv_last_error': (c_char_p, [_CLIENT]),
    'kv_last_refusal': (c_char_p, [_CLIENT]),
    'kv_connected': (c_int, [_CLIENT]),
    'kv_tenant': (c_char_p, [_CLIENT]),
    'kv_group': (c_int, [_CLIENT, POINTER(c_uint8)]),
    'kv_open_namespace': (c_int, [_CLIENT, c_char_p, POINTER(Layout), _OUT_U32, c_uint32]),
    'kv_close_namespace': (c_int, [_CLIENT, c_uint32]),
    'kv_lookup': (c_int, [_CLIENT, c_uint32, c_char_p, c_uint32, c_uint64, _OUT_POINTER, _OUT_U32, _OUT_U64,
                          c_uint32]),
    'kv_lease_blocks': (c_void_p, [_LEASE]),
    'kv_lease_count': (c_uint32, [_LEASE]),
    'kv_lease_shard': (c_void_p, [_LEASE, c_uint32, c_uint32]),
    'kv_lease_id': (c_uint64, [_LEASE]),
    'kv_borrow': (c_int, [_CLIENT, c_uint32, c_uint64, c_uint32, c_uint32, _OUT_POINTER, c_uint32]),
    'kv_load': (c_int, [_CLIENT, _LEASE, c_uint32, c_uint32, _OUT_U32, c_uint32]),
    'kv_prefetch': (c_int, [_CLIENT, _LEASE, c_uint32, c_uint32]),
    'kv_block_valid': (c_int, [_LEASE, c_uint32]),
    'kv_release': (None, [_CLIENT, _LEASE, c_uint32]),
    'kv_pin': (c_int, [_CLIENT, _LEASE, c_uint64, c_uint32]),
    'kv_hint': (c_int, [_CLIENT, _LEASE, c_int]),
    'kv_renew': (c_int, [_CLIENT, c_uint32]),
    'kv_reserve': (c_int, [_CLIENT, POINTER(ReserveArgs), POINTER(Slot), c_uint32]),
    'kv_commit': (c_int, [_CLIENT, POINTER(Slot), c_uint32, c_uint32, _OUT_U32, c_uint32]),
    'kv_abort': (c_int, [_CLIENT, POINTER(Slot), c_uint32, c_uint32]),
    'kv_poll': (c_int, [_CLIENT, c_uint32, _OUT_U64]),
}


def _open() -> ctypes.CDLL:
    """$KVARTAL_LIBRARY, else the library of the wheel, else what the loader finds. Raises OSError for none of them."""
    packed = Path(__file__).with_name('libkvartal.so')
    library = ctypes.CDLL(os.environ.get('KVARTAL_LIBRARY') or (str(packed) if packed.exists() else 'libkvartal.so.0'))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


lib = _open()
