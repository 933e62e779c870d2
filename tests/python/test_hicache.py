"""The HiCache backend for SGLang on fakes of its classes: what hicache_contract.py says, in `make test`."""
import fake_sglang
import pytest
from hicache_contract import *  # noqa: F403  the tests
from hicache_rig import PAGE, PAGES, Rig, make_model


@pytest.fixture(scope='session')
def bags(tmp_path_factory):
    return fake_sglang.install(str(make_model(tmp_path_factory.mktemp('model'))))


@pytest.fixture
def updater(bags):
    """Changes the weights of every engine in this process."""
    return fake_sglang.SchedulerWeightUpdaterManager().update_weights_from_tensor


@pytest.fixture
def engine(daemon, bags):
    """Makes engines of the tenant behind a door."""
    made = []

    def make(door='red', layout='page_first', dtype='torch.bfloat16', mla=False, at=None, **changes):
        pool = fake_sglang.MLATokenToKVPoolHost if mla else fake_sglang.MHATokenToKVPoolHost
        made.append(Rig(at or daemon.door(door), pool(PAGES, PAGE, layout, dtype), mla=mla, **changes))
        return made[-1]

    yield make
    for one in made:
        one.close()
