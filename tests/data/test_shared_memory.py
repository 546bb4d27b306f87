"""Worker processes where /dev/shm is full, as in a container with the usual 64 MB."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FULL = "mount -t tmpfs -o size=16k tmpfs /dev/shm && { head -c 1M /dev/zero > /dev/shm/full 2>/dev/null; true; }"
START = """
import sys
import torch
from vitssl.config import ConfigError, Data
from vitssl import pool
from vitssl.data.loading.images import Streamed
from vitssl.data.index import load_index

index = load_index(sys.argv[1])
for start in (
    lambda: Streamed(index, Data(shards=sys.argv[1], workers=2), torch.device("cpu"), 1).host_batches(lambda: iter(())),
    lambda: pool.run(str, range(4), workers=2, advance=print),
):
    try:
        start()
    except ConfigError as error:
        print(error)
"""


def in_a_namespace(*words: str) -> subprocess.CompletedProcess[str]:
    inside = ["unshare", "--mount", "sh", "-c", f'{FULL} && exec "$@"', "sh"]
    return subprocess.run([*inside, *words], capture_output=True, text=True, check=False)


def test_a_full_shared_memory_is_one_line_that_says_what_to_do(make_shards):
    if os.getuid() != 0 or in_a_namespace("true").returncode:
        pytest.skip("only root, where it may mount, can fill a /dev/shm of its own")
    result = in_a_namespace(sys.executable, "-c", START, str(make_shards().folder))
    assert not result.returncode, result.stderr
    loader, build = result.stdout.splitlines()
    assert loader.startswith("data.workers: /dev/shm is full, which worker processes need a little of;") and "--shm-size=1g" in loader
    assert loader.endswith("or set it to 0, which decodes in the training process")
    assert build.startswith("/dev/shm is full") and build.endswith("or take one process")
