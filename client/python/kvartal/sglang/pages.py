"""SGLang's host pool as bytes: a page over all layers is a few runs of memory, a block of the cache is those runs back
to back. What is in a page is the engine's own affair.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvartal.declined import Declined

Bytes = npt.NDArray[np.uint8]
Run = tuple[int, int]  # offset in the pool's buffer, length

POOLS = ('MHATokenToKVPoolHost', 'MLATokenToKVPoolHost')
LAYOUTS = ('page_first', 'page_first_direct', 'page_head')  # in which a page is a run for K and one for V
DTYPES = ('torch.bfloat16', 'torch.float16', 'torch.float32')


class PoolPages:
    """Pages in the host pool, addressed in place. Any thread may copy; SGLang keeps a page that is being stored as it
    is, and gives one that is being loaded to nobody else."""

    def __init__(self, pool: Any):
        """Raises Declined for a pool whose pages are not known to be plain."""
        if type(pool).__name__ not in POOLS:
            raise Declined(f'the host pool is a {type(pool).__name__}: only those of plain MHA and MLA are supported')
        if pool.layout not in LAYOUTS:
            raise Declined(f'the host pool is laid out {pool.layout}: use --hicache-mem-layout page_first '
                           '(page_first_direct with --hicache-io-backend direct)')
        if str(pool.dtype) not in DTYPES:
            raise Declined(f'a quantised KV cache ({pool.dtype}) is not supported: its scales have no digest')
        if getattr(pool, 'target_layer_num', pool.layer_num) != pool.layer_num:
            raise Declined('the host pool holds layers of a draft model')
        buffer = pool.kv_buffer
        if not hasattr(buffer, 'data_ptr') or not buffer.is_contiguous() or buffer.device.type != 'cpu':
            raise Declined('the host pool is not one piece of host memory')
        self._pool = pool
        self._keep = buffer  # mapped for as long as this exists, also when the pool is destroyed
        self._base: int = buffer.data_ptr()
        self._memory: Bytes = np.asarray(type('View', (), {'__array_interface__': {
            'version': 3, 'typestr': '|u1', 'data': (self._base, False), 'shape': (buffer.nbytes,)}})())
        self.page_tokens: int = pool.page_size
        self.layout: str = pool.layout
        self.kind: str = type(pool).__name__
        self.dtype = str(pool.dtype)
        self.shape = list(buffer.shape)
        self.layers = [pool.start_layer, pool.end_layer, pool.layer_num]
        pointers, sizes = pool.get_page_buffer_meta(np.arange(self.page_tokens))
        self._page_runs = len(pointers)
        self.page_bytes = sum(sizes)
        if self.page_bytes != pool.get_size_per_token() * self.page_tokens:
            raise Declined(f'a page has {self.page_bytes} bytes, its tokens {pool.get_size_per_token()} each')

    def runs(self, indices: Any, pages: int) -> list[Sequence[Run]]:
        """Where those pages lie. indices: of their tokens, as SGLang gives them. Raises ValueError for pages that are
        not the pool's."""
        pointers, sizes = self._pool.get_page_buffer_meta(indices)
        each = self._page_runs
        if len(pointers) != pages * each or len(sizes) != len(pointers):
            raise ValueError(f'{len(indices)} indices for {pages} pages of {self.page_tokens} tokens')
        found: list[Sequence[Run]] = [[(pointers[i] - self._base, sizes[i]) for i in range(at, at + each)]
                                      for at in range(0, len(pointers), each)]
        end = self._memory.size
        for page in found:
            if sum(size for _, size in page) != self.page_bytes:
                raise ValueError('pages of the host pool differ in size')
            if any(offset < 0 or size < 0 or offset + size > end for offset, size in page):
                raise ValueError('a page lies outside the host pool')
        return found

    def read(self, page: Sequence[Run], into: Bytes) -> None:
        """Copies a page into a cache slot."""
        at = 0
        for offset, size in page:
            np.copyto(into[at:at + size], self._memory[offset:offset + size])
            at += size

    def write(self, page: Sequence[Run], source: Bytes) -> None:
        """Copies a cache block into a page."""
        at = 0
        for offset, size in page:
            np.copyto(self._memory[offset:offset + size], source[at:at + size])
            at += size
