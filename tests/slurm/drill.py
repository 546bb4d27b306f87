"""A fault drill: `python -m tests.slurm.drill [--trials N] [--seed N] [--nodes N] [--at-once N] [FAULT ...]`, as root, on the test cluster.

Each trial submits a tiny sweep (a pretraining, and a run that starts from it), and at a step drawn at random does to the
pretraining what tests/slurm/faults.py says. The sweep then has to end by itself or, where the fault stops it for a reason that
`jobs/status.py` shows, by the same command once that is repaired. The exit code is 1 if a check failed. The cluster is the one of
SLURM_LOCAL_DIR if it is up, with the knobs of slurm_local.sh, else one of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from jobs import submit
from jobs.slurm import cluster
from tests.slurm.commands import events, is_done, restarts, run_folder, sh, state_of, wait_for
from tests.slurm.faults import FAULTS, Fault, Trial, submit_words

SCRIPT = Path(__file__).with_name("slurm_local.sh")
STEPS = 300  # of the pretraining
FIRST, LAST_STEP = 5, 200  # what a fault may begin at
ENDS_S = 600  # after a fault; only what fails waits so long, and a busy machine needs minutes to start a few attempts
COMES_BACK_S = 60  # how long a run may look as if it had ended
MOST_RESTARTS = 6  # after progress, three times without, to be held, and by the command


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.drill", description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of {' '.join(FAULTS)}; default: all")
    parser.add_argument("--trials", type=int, default=1, help="of each fault (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the steps and choices; it is printed")
    parser.add_argument("--nodes", type=int, default=2, help="of a run, but two at least where a fault needs them (default: %(default)s)")
    parser.add_argument("--at-once", type=int, default=1, help="trials, but for faults that reach every job (default: %(default)s)")
    what = "of the controller; longer than the 10 s that SLURM's commands wait for it (default: %(default)s)"
    parser.add_argument("--outage-s", type=float, default=60, help=what)
    options = parser.parse_args(arguments)
    if unknown := set(options.faults) - set(FAULTS):
        parser.error(f"no such fault: {' '.join(sorted(unknown))}; there are {' '.join(FAULTS)}")
    with test_cluster(), workplace() as place:
        succeeded = drill(place, options.faults or list(FAULTS), options)
    if succeeded:
        shutil.rmtree(place)
    return 0 if succeeded else 1


@contextmanager
def test_cluster() -> Iterator[None]:
    folder = os.environ.get("SLURM_LOCAL_DIR", f"{tempfile.gettempdir()}/slurm-drill-{os.getpid()}")
    kept = _script("status", folder) == 0
    os.environ.setdefault("SLURM_LOCAL_MESSAGE_TIMEOUT", "10")  # as clusters have it, and shorter than the outages
    assert _script("start", folder) == 0, "the cluster did not start"
    os.environ |= {"SLURM_CONF": f"{folder}/etc/slurm.conf", "OMP_NUM_THREADS": "1", "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    try:
        yield
    finally:
        if not kept:
            _script("clean", folder)


def _script(*words: str) -> int:
    return subprocess.run(["bash", str(SCRIPT), *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False).returncode


@contextmanager
def workplace() -> Iterator[Path]:
    """A working directory, that stays where a check failed."""
    place = Path(tempfile.mkdtemp(prefix="drill-"))
    place.chmod(0o755)  # for the other person
    before = Path.cwd()
    os.chdir(place)
    os.environ["VITSSL_CACHE_DIR"] = str(place / "cache")
    try:
        yield place
    finally:
        os.chdir(before)
        for sweep in place.glob("runs/*"):
            if sweep.is_mount():
                sh("umount", str(sweep))


def drill(place: Path, names: list[str], options: argparse.Namespace) -> bool:
    """Print a line per trial and a table of all; did all succeed?"""
    seed, at_once = options.seed, options.at_once
    print(f"seed {seed}, in {place}", flush=True)
    begun = time.monotonic()
    wanted = {name: max(options.nodes, FAULTS[name].nodes) for name in names}
    # processes: each redirects what it prints, and some have an sbatch of their own on their PATH
    pool_of = partial(ProcessPoolExecutor, mp_context=get_context("fork"))
    counts = sorted(set(wanted.values()))
    with pool_of(at_once) as pool:
        expected = dict(zip(counts, pool.map(partial(undisturbed, place), counts), strict=True))
    attempt = partial(one, place=place, seed=seed, outage_s=options.outage_s, nodes=wanted, expected=expected)
    chosen = [(name, number) for number in range(options.trials) for name in names]
    outcomes: dict[str, list[str]] = defaultdict(list)
    for together in (True, False):
        part = [which for which in chosen if FAULTS[which[0]].alone != together]
        with pool_of(at_once if together else 1) as pool:
            for which, (trial, outcome, time_s) in zip(part, pool.map(attempt, part), strict=True):
                print(f"{trial.name:18} step {trial.step:3} seed {seed} {time_s:4.0f} s  {outcome}", flush=True)
                outcomes[which[0]].append(outcome)
    print(f"\n{len(chosen)} trials in {time.monotonic() - begun:.0f} s, {at_once} at once")
    return table(outcomes)


def undisturbed(place: Path, nodes: int) -> dict[str, Any]:
    """The checkpoint of a run on so many nodes to which nothing happens."""
    trial = Trial(f"undisturbed-{nodes}", place, 0, random.Random(), nodes)
    assert submit_it(trial, "--wait") == 0, f"the undisturbed sweep failed: {place}/{trial.name}.txt"
    return checkpoint(trial.folder)


def submit_it(trial: Trial, *words: str) -> int:
    """By the command that a person would type; what it prints goes to a file."""
    with (trial.place / f"{trial.name}.txt").open("a") as file, redirect_stdout(file), redirect_stderr(file):
        code = submit.main([*submit_words(trial), *words])
    if code == 0:
        trial.folder = run_folder(trial.sweep, "sslft-pretrain")
    return code


def one(
    which: tuple[str, int], place: Path, seed: int, outage_s: float, nodes: dict[str, int], expected: dict[int, dict[str, Any]]
) -> tuple[Trial, str, float]:
    """A trial of a fault, its outcome, and the seconds that it took. Nodes by fault, and by their number the checkpoint to expect."""
    name, number = which
    chance, begun = random.Random(f"{seed} {name} {number}"), time.monotonic()
    trial = Trial(f"{name}-{number}", place, chance.randrange(FIRST, LAST_STEP), chance, nodes[name], outage_s)
    return trial, outcome_of(trial, FAULTS[name], expected[trial.nodes]), time.monotonic() - begun


def outcome_of(trial: Trial, fault: Fault, expected: dict[str, Any]) -> str:
    """ "ok", with what there is to say, or the checks that failed."""
    try:
        with fault.around(trial):
            code = submit_it(trial)
        assert (code == 0) == fault.taken, f"the first submission ended with {code}"
        if not fault.taken:
            assert not sh("squeue", "-h", "-o", "%j", "-n", f"{trial.name}-sslft-pretrain"), "what was refused is in the queue"
            assert submit_it(trial) == 0, "the second submission was refused"
        said = disturb(trial, fault) if fault.inject else ""
        wait_for_end(trial)
        wait_for_rest(trial)
    except (AssertionError, subprocess.SubprocessError, OSError) as error:
        cancel(trial)
        where = " > ".join(frame.name for frame in traceback.extract_tb(error.__traceback__)[1:])
        return f"FAILED in {where}: {str(error) or type(error).__name__}"
    if problems := [problem for problem in checks(trial, expected) if problem]:
        return f"FAILED: {'; '.join(problems)}"
    attempts, again = len(events(trial.folder, "start")), restarts(trial.folder)
    return f"ok: {', '.join(filter(None, [trial.detail, f'attempts {attempts}', f'restarts {again}', said]))}"


def disturb(trial: Trial, fault: Fault) -> str:
    """Let the fault happen; what the status then says of it, where it stops the run."""
    trial.wait_for_step()
    if fault.cause is None:
        fault.inject(trial)
        return ""
    fault_over = fault.inject(trial)
    next(fault_over)
    try:
        wait_for(lambda: state_of(trial.folder).state in ("failed", "held"), timeout_s=ENDS_S)
        shown = state_of(trial.folder)
    finally:
        next(fault_over, None)
    assert re.search(fault.cause, shown.error or ""), f"the status gives no cause: {shown.state}, {shown.error}"
    assert submit_it(trial) == 0, "the command after the repair was refused"
    return shown.error[:120]


def wait_for_end(trial: Trial) -> None:
    """Until the pretraining is done and out of the queue.

    SLURM itself holds a job that comes back to a node before its last processes have left it; a person then types the command again.
    """
    end, released = time.monotonic() + ENDS_S, False
    while not is_done(trial.folder) or trial.folder in cluster.queued([trial.folder]):
        shown = state_of(trial.folder)
        said = f"{shown.state}, {shown.error}"
        if shown.state == "held" and "launch failed" in (shown.error or "") and not released:
            assert submit_it(trial) == 0, "the command that releases it was refused"
            end, released, trial.detail = time.monotonic() + ENDS_S, True, f"{trial.detail}, held by SLURM, released by the command"
            continue
        assert shown.state not in ("failed", "held", "cancelled", "stopped") or time.monotonic() < end - ENDS_S + COMES_BACK_S, said
        assert time.monotonic() < end, f"not over after {ENDS_S} s: {said}; restarts {restarts(trial.folder)}"
        time.sleep(0.3)


def wait_for_rest(trial: Trial) -> None:
    """Until what comes after it is done too: the run that starts from it, and the report.

    Within the trial, since a controller that the next one kills may forget an end that it was just told of, and then takes that job for
    running up to its time limit. These jobs too SLURM holds where it could not launch them, as on a node that another trial has just
    taken down.
    """
    jobs = [run_folder(trial.sweep, "sslft-finetune"), trial.sweep]

    def held() -> bool:
        return any("launch failed" in entry.reason for entry in cluster.queued(jobs).values())

    wait_for(lambda: held() or not cluster.queued(jobs), timeout_s=ENDS_S)
    if cluster.queued(jobs):
        assert submit_it(trial) == 0, "the command that releases it was refused"
    wait_for(lambda: not cluster.queued(jobs), timeout_s=ENDS_S)
    assert is_done(jobs[0]), f"what started from it: {state_of(jobs[0])}"
    assert (trial.sweep / "report" / "report.html").exists(), "no report"


def cancel(trial: Trial) -> None:
    """So that it does not stand in the way of the next trial."""
    for folder in trial.sweep.glob("*/"):
        if job := cluster.job_id(folder):
            sh("scancel", job)


def checks(trial: Trial, expected: dict[str, Any]) -> Iterator[str]:
    folder = trial.folder
    found = checkpoint(folder)
    for part in ("model", "progress"):
        yield "" if equal(expected[part], found[part]) else f"{part} differs from an undisturbed run's"
    steps = [event["step"] for event in events(folder, "train")]
    yield "" if steps == list(range(1, STEPS + 1)) else f"{len(steps)} steps logged, {len(set(steps))} of them once"
    for event in events(folder, "start"):
        records = list(folder.glob(f"emissions-{event['attempt']}-*.json"))
        yield "" if len(records) == trial.nodes else f"{len(records)} energy records of attempt {event['attempt']}"
    numbers = [event["attempt"] for event in events(folder, "start")]
    yield "" if len(set(numbers)) == len(numbers) else f"attempts {numbers}"
    yield "" if restarts(folder) <= MOST_RESTARTS else f"{restarts(folder)} restarts"


def checkpoint(folder: Path) -> dict[str, Any]:
    """Without what differs between undisturbed runs too."""
    content = torch.load(folder / "last.pt", weights_only=True)
    for name in ("time_s", "attempt"):
        del content["progress"][name]
    return content


def equal(one: Any, other: Any) -> bool:
    """Of nested values with tensors: to the bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def table(outcomes: dict[str, list[str]]) -> bool:
    print("\n| fault | trials | equal to the bit, all in its place |\n|---|---|---|")
    for name, each in outcomes.items():
        print(f"| {name} | {len(each)} | {sum(outcome.startswith('ok') for outcome in each)} |")
    return all(outcome.startswith("ok") for each in outcomes.values() for outcome in each)


if __name__ == "__main__":
    sys.exit(main())
