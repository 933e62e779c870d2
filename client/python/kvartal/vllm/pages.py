"""The engine's KV pages as bytes: one block of the engine is one page in every layer, one block of the cache is those
pages back to back, in layer order. What is in a page is the attention kernel's own affair.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from kvartal.declined import Declined

if TYPE_CHECKING:
    import torch

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Geometry:
    """Where pages lie, in bytes: page (layer, block) begins at base + layer * layer_stride + block * block_stride."""

    base: int
    layers: int
    blocks: int
    page_bytes: int
    layer_stride: int
    block_stride: int

    @property
    def block_bytes(self) -> int:
        """Of one block over all layers: what a shard of the cache holds."""
        return self.layers * self.page_bytes


class Pages(Protocol):
    """The pages of an engine's blocks, wherever they lie. `fence` belongs to the engine's thread, `read` and `write` to
    the one that copies; they return when the bytes are there. Both raise ValueError for a block that is not the
    engine's. Whoever calls sees to it that the engine is given no block that is copied."""

    def fence(self) -> None:
        """What is copied from here on is copied after all that the engine has queued on its device so far."""

    def read(self, block: int, into: Bytes) -> None:
        """Copies engine block `block` into a cache slot: uint8, shape (block_bytes,)."""

    def write(self, block: int, source: Bytes) -> None:
        """Copies a cache block, uint8 of shape (block_bytes,), into engine block `block`."""


class HostPages:
    """Pages in host memory, addressed in place. Any thread may copy; whoever calls sees to it that the engine neither
    writes a block that is read here nor reads one that is written."""

    def __init__(self, geometry: Geometry, keep: Any = None):
        """keep: whatever owns the memory."""
        self.geometry = geometry
        self._keep = keep
        view = type('View', (), {'__array_interface__': {
            'version': 3, 'typestr': '|u1', 'data': (geometry.base, False),
            'shape': (geometry.layers, geometry.blocks, geometry.page_bytes),
            'strides': (geometry.layer_stride, geometry.block_stride, 1)}})()
        self._pages: Bytes = np.asarray(view)

    def fence(self) -> None:
        """Nothing to wait for: on a CPU a forward has ended when it returns."""

    def read(self, block: int, into: Bytes) -> None:
        """Copies engine block `block` into a cache slot of block_bytes bytes."""
        np.copyto(into.reshape(self.geometry.layers, self.geometry.page_bytes), self._pages[:, self._check(block), :])

    def write(self, block: int, source: Bytes) -> None:
        """Copies a cache block of block_bytes bytes into engine block `block`."""
        np.copyto(self._pages[:, self._check(block), :], source.reshape(self.geometry.layers, self.geometry.page_bytes))

    def _check(self, block: int) -> int:
        # Block 0 is the engine's null block: nothing that is anybody's KV.
        if not 0 < block < self.geometry.blocks:
            raise ValueError(f'engine block {block} is not in 1..{self.geometry.blocks - 1}')
        return block


def geometry_of(tensors: Mapping[str, torch.Tensor], blocks: int) -> Geometry:
    """The geometry of one tensor a layer, block first. Declined when they are not host memory cut evenly."""
    first = next(iter(tensors.values()))
    if any(tensor.device.type != 'cpu' for tensor in tensors.values()):
        raise Declined(f'the KV cache is on {first.device}; this version copies from and to host memory only')
    if len({tensor.untyped_storage().data_ptr() for tensor in tensors.values()}) != 1:
        raise Declined('the KV cache is not one buffer')
    if len({(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors.values()}) != 1:
        raise Declined('the layers of the KV cache differ in shape or type')
    if first.shape[0] != blocks:
        raise Declined(f'the KV cache has {first.shape[0]} pages a layer for {blocks} blocks')
    page = first[0]
    if not page.is_contiguous():
        raise Declined(f'a page of the KV cache is not one piece: shape {tuple(page.shape)}, strides {page.stride()}')
    addresses = [tensor.data_ptr() for tensor in tensors.values()]
    steps = {after - before for before, after in zip(addresses, addresses[1:])} or {0}
    if len(steps) != 1:
        raise Declined('the layers of the KV cache are not evenly spaced')
    page_bytes = page.numel() * page.element_size()
    geometry = Geometry(addresses[0], len(addresses), blocks, page_bytes, steps.pop(),
                        first.stride(0) * first.element_size())
    storage = first.untyped_storage()
    last = (geometry.base + (geometry.layers - 1) * geometry.layer_stride + (blocks - 1) * geometry.block_stride
            + page_bytes)
    if geometry.base < storage.data_ptr() or last > storage.data_ptr() + storage.nbytes():
        raise Declined('the pages of the KV cache lie outside its buffer')
    return geometry
