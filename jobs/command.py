"""The commands that train a run, or write a sweep's report, on a node: with the site's container and environment.

The launcher runs outside the container, torchrun and training inside. This module needs neither torch nor other packages of the container.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitssl.config import Site, merge
from vitssl.files import read_json
from vitssl.run_folder import JOB
from vitssl.variables import CACHE_DIR, STOP_FILE

# a worker that was asked to stop saves first; torchrun's default of 30 s is too short for that
SHUTDOWN_S = 300
# Threads that wait for each other spin. With the default count, on a busy machine, they keep the thread that they wait for off its core.
# This lower count costs nothing on a quiet machine, and makes a run several times as fast beside other work (vitssl/docs/speed.md).
SHORT_WAITS = {"GOMP_SPINCOUNT": "3000"}
WAITS = {"OMP_WAIT_POLICY", *SHORT_WAITS}


def container_command(site: Site, python: str, paths: list[Path]) -> list[str]:
    """Return the command that starts Python at a site: inside the site's container, with ``paths`` bound, if it has one."""
    if site.image is None:
        return [python]
    binds = [*site.binds, *(str(path) for path in dict.fromkeys(paths) if path.exists())]
    return [*shlex.split(site.container), *(word for bind in binds for word in ("--bind", bind)), site.image, "python"]


def cli_command(site: Site, paths: list[Path], *words: str) -> list[str]:
    """Return the command that runs `vitssl WORDS` at a site."""
    return [*container_command(site, sys.executable, paths), "-m", "vitssl", *words]


@dataclass
class NodeInfo:
    """A node's place among the nodes of its job."""

    nodes: int = 1
    rank: int = 0  # of this node
    host: str = "localhost"  # its name
    head: str = "localhost"  # the first node's name
    job: int = 0  # SLURM's raw job id
    restart: int = 0  # how often SLURM requeued the job

    def port(self) -> int:
        """Return the port at which the processes of several nodes meet: below the ephemeral range (32768), another one after a requeue.

        All nodes have to know it before they can talk, so they cannot try several in turn. If another job on the same first node has the
        same port (one in 12,000 of the jobs that share the node), the later job fails and says that the address is in use.
        """
        return 20000 + (7 * self.job + self.restart) % 12000


def command(folder: Path, job: dict[str, Any], node: NodeInfo, stop_file: Path) -> list[str]:
    """Return the command that trains the run in ``folder`` on one node."""
    site, processes = site_of(job), max(1, job["gpus_per_node"])
    python = container_command(site, sys.executable, [folder.parent, Path(job["source"]), stop_file.parent, *_outside(job, site)])
    if node.nodes == 1 and processes == 1:
        return [*python, "-m", job["module"], str(folder)]
    # torchrun makes a folder for logs even if it writes none, and leaves it in /tmp unless told otherwise
    training = ["--log-dir", str(stop_file.parent), "--nproc-per-node", str(processes), "-m", job["module"], str(folder)]
    if node.nodes == 1:
        return [*python, "-m", "vitssl.loopback", *training]
    # static, since torchrun's elastic rendezvous unpickles what it finds in its store, to which anybody on the network can write
    rendezvous = ["--nnodes", str(node.nodes), "--node-rank", str(node.rank), "--rdzv-backend", "static"]
    rendezvous += ["--master-addr", node.head, "--master-port", str(node.port()), "--max-restarts", "0"]
    return [*python, "-m", "torch.distributed.run", *rendezvous, *training]


def _outside(job: dict[str, Any], site: Site) -> list[Path]:
    """Return the paths that a run uses outside its sweep's folder. Create the node's cache folder, so that a container can bind it."""
    cache = cache_folder(job["cache_dir"], site)[1]
    if site.image is not None and cache is not None:
        Path(cache).mkdir(parents=True, exist_ok=True)
    return [Path(path) for path in (*job["binds"], cache) if path is not None]


def cache_folder(of_run: str | None, site: Site) -> tuple[str, str | None]:
    """Return (name of the setting, cache folder) of a run on this node. Without a setting, they are empty and None: use temporary files."""
    settings = {"data.cache_dir": of_run, "site.env": site.env.get(CACHE_DIR), CACHE_DIR: os.environ.get(CACHE_DIR)}
    return next(((name, folder) for name, folder in settings.items() if folder), ("", None))


def set_up(site: Site, source: Path) -> list[str]:
    """Return the shell lines to run before training: the site's setup, its variables, and ``source`` first on Python's path."""
    path = f'export PYTHONPATH={shlex.quote(str(source))}"${{PYTHONPATH:+:$PYTHONPATH}}"'
    return [*site.setup, *_exports(site.env), path]


def _exports(variables: Mapping[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def environment(job: dict[str, Any], stop_file: Path) -> dict[str, str]:
    """Return a run's environment: its source snapshot first on the path, the site's variables, and variables that a site cannot change."""
    inherited = os.environ | site_of(job).env
    paths = [job["source"], *filter(None, [inherited.get("PYTHONPATH")])]
    waits = {} if WAITS & inherited.keys() else SHORT_WAITS
    return inherited | waits | {"PYTHONPATH": os.pathsep.join(paths)} | _own_variables(stop_file)


def _own_variables(stop_file: Path) -> dict[str, str]:
    """Return the variables that a site cannot change: the run's stop file, the order of its GPUs, and torchrun's patience when stopping."""
    return {
        STOP_FILE: str(stop_file),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as in NVML, which measures the energy of the GPUs
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(SHUTDOWN_S),
    }


def start(
    folder: Path, node: NodeInfo, stop_file: Path, variables: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Start the run in ``folder`` on this node, with ``variables`` in its environment and ``options`` for `subprocess.Popen`."""
    job, extra = job_of(folder), dict(variables or {})
    words = command(folder, job, node, stop_file)
    if job["executor"] == "local" and site_of(job).setup:  # on SLURM the batch script has run the setup
        lines = [*set_up(site_of(job), Path(job["source"])), *_exports(_own_variables(stop_file) | extra)]
        words = ["bash", "-c", "\n".join([*lines, f"exec {shlex.join(words)}"])]  # no arguments, which a sourced file would see
    return subprocess.Popen(words, cwd=job["source"], env=environment(job, stop_file) | extra, **options)


def job_of(folder: Path) -> dict[str, Any]:
    """Return the `job.json` of a run; for a trained run, with the facts of its later evaluation, such as a newer source and one GPU."""
    job = read_json(folder / JOB)
    return job | job.get("evaluation", {})


def site_of(job: dict[str, Any]) -> Site:
    return merge(Site, job["site"], where="job.json: site")


def report_command(folder: Path, job: dict[str, Any]) -> list[str]:
    """Return the command that prints the report of the sweep in ``folder`` and writes it there."""
    return cli_command(site_of(job), [folder, Path(job["source"])], "report", str(folder))


def write_report(folder: Path, job: dict[str, Any]) -> bool:
    """Print the report of the sweep in ``folder`` and write it there; return whether that succeeded."""
    return subprocess.run(report_command(folder, job), check=False, cwd=job["source"]).returncode == 0
