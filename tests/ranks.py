"""Train a run folder on several gloo ranks of this machine, as torchrun would."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from vitssl import train

ROOT = Path(__file__).parent.parent


def start_ranks(folder: Path, ranks: int, **env: str) -> list[subprocess.Popen]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {**os.environ, "PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), **env}
    command = [sys.executable, "-m", "vitssl.train", str(folder)]
    return [
        subprocess.Popen(command, env={**common, "RANK": str(r), "LOCAL_RANK": str(r)}, stderr=subprocess.PIPE, text=True)
        for r in range(ranks)
    ]


def run_ranks(folder: Path, ranks: int, **env: str) -> list[int]:
    processes = start_ranks(folder, ranks, **env)
    errors = [p.communicate(timeout=120)[1] for p in processes]
    codes = [p.returncode for p in processes]
    assert set(codes) <= {0, train.STOPPED}, errors[0]
    return codes
