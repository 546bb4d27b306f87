"""A sweep larger than SLURM's queue: `python -m tests.slurm.large [--runs 300]`, as root, on a cluster of its own on this machine.

It is queued by one command, and goes to its report without a hand on it: half of the runs are pretrainings, the other half starts from
them, SLURM takes 50 jobs at once in arrays of 20, and the task of one run in ten is killed once, by kill -9, while it trains. The exit
code is 1 if a run is not done, one that was not killed has begun twice, an attempt has no record of its energy, or SLURM held more jobs.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from jobs import submit
from tests.slurm.commands import events, is_done, parent_of, sh
from tests.slurm.conftest import running

SWEEP = Path(__file__).with_name("tiny.yaml")
KNOBS = {"ARRAY": 20, "JOBS": 50, "JOB_AGE": 2, "PORT": 24200, "PREFIX": "large"}
STEPS = 20
ENDS_S = 3600


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.large", description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="an even number (default: %(default)s)")
    options = parser.parse_args(arguments)
    place = Path(tempfile.mkdtemp(prefix="large-"))
    os.chdir(place)
    os.environ["VITSSL_CACHE_DIR"] = str(place / "cache")
    with running(f"{tempfile.gettempdir()}/slurm-large-{os.getpid()}", **KNOBS):
        problems = list(drive(place, options.runs))
    for problem in problems:
        print(problem)
    if not problems:
        shutil.rmtree(place)
    return 1 if problems else 0


def drive(place: Path, runs: int) -> Iterator[str]:
    """Submit, kill, and wait for the report; gives what is not as it has to be."""
    sweep, begun = place / "runs" / "tiny", time.monotonic()
    seeds = ",".join(map(str, range(runs // 2)))
    words = ["--executor", "slurm", f"axes.seed=[{seeds}]", "resources.nodes=1", f"loop.max_steps={STEPS}", "site.country=FRA"]
    assert submit.main([str(SWEEP), *words]) == 0
    submitted_s = time.monotonic() - begun
    folders = sorted(path.parent for path in sweep.glob("*/job.json"))
    chosen, killed, most = set(random.Random(0).sample(folders, runs // 10)), set[Path](), 0
    while not (sweep / "report" / "report.html").exists():
        if time.monotonic() > begun + ENDS_S:
            yield f"no report after {ENDS_S} s"
            return
        killed |= {folder for folder in chosen - killed if kill(folder)}
        most = max(most, len(sh("squeue", "-h", "-r", "-t", "all").splitlines()))
        time.sleep(0.2)
    seconds = time.monotonic() - begun
    print(f"{len(folders)} runs, {len(killed)} killed once; submitted in {submitted_s:.1f} s, the report after {seconds:.0f} s; ", end="")
    print(f"at most {most} jobs in SLURM's tables at once", flush=True)
    yield from checks(folders, killed)
    if most > KNOBS["JOBS"]:
        yield f"{most} jobs were in SLURM's tables"


def kill(folder: Path) -> bool:
    """kill -9 of the task of a run that trains; whether that was done."""
    if not events(folder, "train") or is_done(folder):
        return False
    found = subprocess.run(["pgrep", "-f", "--", f"-m vitssl.train {folder}$"], capture_output=True, text=True, check=False).stdout.split()
    if not found:
        return False
    os.kill(parent_of(int(found[0])), signal.SIGKILL)
    return True


def checks(folders: list[Path], killed: set[Path]) -> Iterator[str]:
    for folder in folders:
        attempts = [event["attempt"] for event in events(folder, "start")]
        if not is_done(folder):
            yield f"{folder.name} is not done"
        if len(attempts) != 1 + (folder in killed):
            yield f"{folder.name}: attempts {attempts}"
        if missing := [number for number in attempts if not list(folder.glob(f"emissions-{number}-*.json"))]:
            yield f"{folder.name}: no energy of attempts {missing}"


if __name__ == "__main__":
    sys.exit(main())
