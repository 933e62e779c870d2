"""Fixtures of the Python tests. The build under test is named by KVARTAL_BIN_DIR and KVARTAL_LIBRARY."""
import pytest
from daemon import PATIENT_MS, Daemon

import kvartal

BLOCK_BYTES = 64 << 10


@pytest.fixture
def daemon():
    with Daemon(tenants=('red', 'blue')) as running:
        yield running.start()


@pytest.fixture
def namespace():
    return kvartal.Namespace(b'n' * 32, tokens_per_block=16, shard_bytes=BLOCK_BYTES)


def chain(count, salt=0):
    """Keys of a chain."""
    return [bytes([salt]) + i.to_bytes(31, 'little') for i in range(count)]


def store(client, namespace, keys, value=1):
    """Stores a chain; block i holds bytes of value `value + i`. How many are stored now."""
    with client.reserve(namespace, keys, deadline_ms=PATIENT_MS) as slots:
        for i in range(len(slots)):
            if slots[i] is not None:
                slots[i][:] = value + i
        return slots.commit(PATIENT_MS)

