"""The command that trains a run on a node, or writes a sweep's report there: in its container, with its environment.

The launcher runs outside the container; torchrun and training run inside. This module needs neither torch nor anything else from there.
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

CACHE = "VITSSL_CACHE_DIR"
# a stopping worker saves first; torchrun's default of 30 s is too short for that
SHUTDOWN_S = 300
# Threads wait for each other by spinning, by default so long that beside other work they keep the one that they wait for from its core.
# So short a time costs nothing on a quiet machine, and beside other work makes a run several times as fast (vitssl/docs/speed.md).
SHORT_WAITS = {"GOMP_SPINCOUNT": "3000"}
WAITS = {"OMP_WAIT_POLICY", *SHORT_WAITS}


def container_command(site: Site, python: str, paths: list[Path]) -> list[str]:
    """The command that starts Python at a site: in its container, with these paths bound, if it has one."""
    if site.image is None:
        return [python]
    binds = [*site.binds, *(str(path) for path in dict.fromkeys(paths) if path.exists())]
    return [*shlex.split(site.container), *(word for bind in binds for word in ("--bind", bind)), site.image, "python"]


def cli_command(site: Site, paths: list[Path], *words: str) -> list[str]:
    """What types `vitssl WORDS` at a site."""
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
        """Where the processes of several nodes find each other: below the ephemeral range (32768), and different after a requeue.

        All nodes have to know it before they can talk, so none is tried in turn: where another job's is the same on the same first node
        (one in 12,000 of those that share it), the later job fails, and says that the address is in use.
        """
        return 20000 + (7 * self.job + self.restart) % 12000


def command(folder: Path, job: dict[str, Any], node: NodeInfo, stop_file: Path) -> list[str]:
    """The command that trains the run in ``folder`` on one node."""
    site, processes = site_of(job), max(1, job["gpus_per_node"])
    python = container_command(site, sys.executable, [folder.parent, Path(job["source"]), stop_file.parent, *_outside(job, site)])
    if node.nodes == 1 and processes == 1:
        return [*python, "-m", job["module"], str(folder)]
    # torchrun makes a folder for logs even where it writes none, and leaves it in /tmp unless it is told where
    training = ["--log-dir", str(stop_file.parent), "--nproc-per-node", str(processes), "-m", job["module"], str(folder)]
    if node.nodes == 1:
        return [*python, "-m", "vitssl.loopback", *training]
    # static: what torchrun's elastic rendezvous finds in its store it unpickles, and everybody on the network can write there
    rendezvous = ["--nnodes", str(node.nodes), "--node-rank", str(node.rank), "--rdzv-backend", "static"]
    rendezvous += ["--master-addr", node.head, "--master-port", str(node.port()), "--max-restarts", "0"]
    return [*python, "-m", "torch.distributed.run", *rendezvous, *training]


def _outside(job: dict[str, Any], site: Site) -> list[Path]:
    """The paths that a run uses outside its sweep's folder. The node's cache folder is created, so that a container can bind it."""
    cache = cache_folder(job["cache_dir"], site)[1]
    if site.image is not None and cache is not None:
        Path(cache).mkdir(parents=True, exist_ok=True)
    return [Path(path) for path in (*job["binds"], cache) if path is not None]


def cache_folder(of_run: str | None, site: Site) -> tuple[str, str | None]:
    """(what names it, the folder for caches) of a run on this node; None for the one of temporary files."""
    named = {"data.cache_dir": of_run, "site.env": site.env.get(CACHE), CACHE: os.environ.get(CACHE)}
    return next(((name, folder) for name, folder in named.items() if folder), ("", None))


def set_up(site: Site, source: Path) -> list[str]:
    """Shell lines before training: the site's, its variables, and the source first on Python's path."""
    path = f'export PYTHONPATH={shlex.quote(str(source))}"${{PYTHONPATH:+:$PYTHONPATH}}"'
    return [*site.setup, *_exports(site.env), path]


def _exports(variables: Mapping[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def environment(job: dict[str, Any], stop_file: Path) -> dict[str, str]:
    """A run's environment: its source snapshot first on the path, the site's variables, and what a site cannot change."""
    given = os.environ | site_of(job).env
    paths = [job["source"], *filter(None, [given.get("PYTHONPATH")])]
    waits = {} if WAITS & given.keys() else SHORT_WAITS
    return given | waits | {"PYTHONPATH": os.pathsep.join(paths)} | _own_variables(stop_file)


def _own_variables(stop_file: Path) -> dict[str, str]:
    """The file that asks a run to stop, and how its devices and its processes are handled."""
    return {
        "VITSSL_STOP_FILE": str(stop_file),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order of NVML, which measures their energy
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(SHUTDOWN_S),
    }


def start(
    folder: Path, node: NodeInfo, stop_file: Path, variables: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Start the run of a folder on this node, with further variables in its environment."""
    job, more = job_of(folder), dict(variables or {})
    words = command(folder, job, node, stop_file)
    if job["executor"] == "local" and site_of(job).setup:  # on SLURM the batch script has run them
        lines = [*set_up(site_of(job), Path(job["source"])), *_exports(_own_variables(stop_file) | more)]
        words = ["bash", "-c", "\n".join([*lines, f"exec {shlex.join(words)}"])]  # without arguments, which a sourced file would take
    return subprocess.Popen(words, cwd=job["source"], env=environment(job, stop_file) | more, **options)


def job_of(folder: Path) -> dict[str, Any]:
    """The `job.json` of a run; a trained one is evaluated by the new source, on one GPU."""
    job = read_json(folder / "job.json")
    return job | job.get("evaluation", {})


def site_of(job: dict[str, Any]) -> Site:
    return merge(Site, job["site"], where="job.json: site")


def report_command(folder: Path, job: dict[str, Any]) -> list[str]:
    """The command that prints and writes the report of a sweep's folder."""
    return cli_command(site_of(job), [folder, Path(job["source"])], "report", str(folder))
