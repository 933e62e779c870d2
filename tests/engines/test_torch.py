"""Blocks and slots as torch has them: tensors over the same memory."""
import pytest
import torch
from daemon import PATIENT_MS, Daemon

import kvartal


@pytest.mark.filterwarnings('ignore:The given NumPy array is not writable')
def test_a_tensor_of_a_block_shares_its_memory():
    namespace, keys = kvartal.Namespace(b't' * 32, 16, 4096), [b'k' * 32]
    with Daemon() as daemon, kvartal.Client(daemon.start().door(), deadline_ms=PATIENT_MS) as client:
        with client.reserve(namespace, keys, deadline_ms=PATIENT_MS) as slots:
            torch.from_numpy(slots[0]).fill_(7)
            assert slots.commit(PATIENT_MS) == 1
        with client.lookup(namespace, keys, deadline_ms=PATIENT_MS) as lease:
            block = lease.block(0)
            tensor = torch.from_numpy(block)
            assert tensor.data_ptr() == block.ctypes.data == torch.from_numpy(lease.block(0)).data_ptr()
            assert tensor.eq(7).all() and lease.valid(0)
        del block, lease
    assert tensor.eq(7).all(), 'it keeps its memory, also without lease and client'
