"""Names the bytes of a model's weights, so that engines share KV exactly when they computed it with the same ones."""
from __future__ import annotations

import hashlib
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kvartal.declined import Declined

WEIGHT_FILES = ('.safetensors', '.bin', '.pt', '.pth', '.gguf')
CODE_FILES = '.py'  # of a model that brings its own
LOAD_FORMATS = ('auto', 'hf', 'safetensors', 'pt')  # that read the files of the model's folder and nothing else
# Of a model's configuration: says where it came from, nothing of what it computes.
ORIGIN_KEYS = ('_name_or_path', '_commit_hash', 'transformers_version')
_SHA256 = re.compile(r'[0-9a-f]{64}')


def folder_of(model: str, revision: str | None, download_dir: str | None) -> Path:
    """Where an engine loads the weights of that model from: a folder, or the hub's cache. Raises Declined."""
    if os.path.isdir(model):
        return Path(model)
    if os.path.isfile(model):
        raise Declined(f'the model is one file, {model} (set weights_digest)')
    try:
        from huggingface_hub import snapshot_download
        return Path(snapshot_download(model, revision=revision, cache_dir=download_dir, local_files_only=True))
    except Exception as error:
        raise Declined(f'where the weights of {model} lie was not found: {error} (set weights_digest)') from error


def digest_of(folder: Path) -> str:
    """Names the bytes of the weights there. Reads them, unless the hub's cache has done so before. Raises Declined."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (*WEIGHT_FILES, CODE_FILES))
    if all(path.suffix == CODE_FILES for path in files):
        raise Declined(f'no weights in {folder} (set weights_digest)')
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        digests = list(pool.map(_file_digest, files))
    named = json.dumps([[path.name, digest] for path, digest in zip(files, digests)])
    return hashlib.sha256(named.encode()).hexdigest()


def _file_digest(path: Path) -> str:
    # The hub's cache links to blobs that are named by their SHA-256.
    target = path.resolve().name
    if _SHA256.fullmatch(target):
        return target
    with path.open('rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()
