"""Fixtures of the engine tests."""
import os
from pathlib import Path

import pytest
from engine import TEXT, tally


@pytest.fixture(autouse=True)
def enough_is_compared():
    """A test that lets ties pass has compared most of its tokens all the same."""
    tally.begin()
    yield
    assert tally.is_enough(), f'{tally.compared} of {tally.all} tokens were compared: ties hid the rest'


@pytest.fixture(scope='session')
def tokens():
    """Some thousands of tokens of real text."""
    from tokenizers import Tokenizer
    return Tokenizer.from_file(os.path.join(os.environ['KVARTAL_TEST_MODEL'], 'tokenizer.json')).encode(TEXT).ids


@pytest.fixture(scope='session')
def logs(tmp_path_factory):
    """Where the engines' logs go: kept by pytest after a failure."""
    folder = Path(os.environ.get('KVARTAL_ENGINE_LOGS') or tmp_path_factory.mktemp('engines'))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
