"""SLURM's queue: its entries, the jobs that run folders belong to, and the commands that query and change it."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from vitssl.config import ConfigError, Site
from vitssl.files import read_json, write_json
from vitssl.run_folder import SLURM_JOB
from vitssl.words import counted, note

ENDING_S = 120  # how long to wait for a cancelled or requeued job to end; SLURM itself allows it KillWait, by default 30 s
ANSWER_S = 60  # time-out of SLURM's commands, longer than they try to reach the controller
ASKED_EVERY_S = 30.0  # by commands that wait; not more often, since all users share the controller
PAUSES_S = (1, 4, 15, 40, 60)  # between attempts to submit
# what SLURM's commands say if the controller is down, restarting or too busy, or holds as many jobs as it can
TRANSIENT = re.compile(
    r"(?i)timed out|unable to contact|temporarily u(nable|navailable)|connection refused|communication connection failure|zero bytes"
    r"|(send|receive) failure|transport endpoint|unable to connect|try again"
)
# fields of a site that only a cluster uses, and their names in messages; an image may also be one for this machine
CLUSTER_FIELDS = {name: name for name in ("partition", "account", "qos", "constraint")}
CLUSTER_FIELDS |= {"gpu_type": "gpu_type", "additional": "sbatch options", "image": "image", "after": "jobs to wait for"}
CLUSTER_FIELDS |= {name: name for name in ("mail_type", "nice", "exclude", "reservation")}


class NoAnswer(ConfigError):
    """Raised if SLURM's controller does not answer."""


@dataclass
class Entry:
    """A job in SLURM's queue."""

    state: str  # SLURM's state; or HELD, by `batch.sh` after restarts without progress, or by a person
    reason: str = ""  # why it is pending, in SLURM's words
    comment: str = ""  # what `batch.sh` noted about restarts
    user: str = ""
    start: str = ""  # when SLURM expects it to begin, in local time; empty if it does not say

    @property
    def is_mine(self) -> bool:
        return self.user == me()


def me() -> str:
    """Return the name by which SLURM knows this user."""
    return pwd.getpwuid(os.geteuid()).pw_name


def jobs(users: Iterable[str]) -> dict[str, Entry]:
    """Return {job id: entry} of the users' jobs that are pending or running, with one entry per array element."""
    lines = output("squeue", "-h", "-r", "-u", ",".join(users), "-o", "%i|%u|%T|%r|%S|%k").splitlines()
    listed = (line.split("|", maxsplit=5) for line in lines)
    return {
        job: Entry("HELD" if "held" in reason.lower() else state, reason, comment, user, "" if start == "N/A" else start)
        for job, user, state, reason, start, comment in listed
    }


def stands_still(entries: Collection[Entry]) -> bool:
    """Whether no job in ``entries`` goes on by itself: there is none, or all are held or wait for held ones."""
    held = any(entry.state == "HELD" for entry in entries)
    return not entries or (held and all(entry.state == "HELD" or entry.reason == "Dependency" for entry in entries))


def release(folder: Path) -> None:
    """Release the held job of a run, and clear its count of restarts."""
    job = queued_id(folder)
    output("scontrol", "update", f"jobid={job}", "comment=")
    output("scontrol", "release", job)


def job_id(folder: Path) -> str | None:
    """Return SLURM's id of the newest job of a run, or of a sweep's report; None if there was none."""
    return read_json(folder / SLURM_JOB).get("job_id")


def queued_id(folder: Path) -> str:
    """Return SLURM's id of the job of a folder that is in the queue, and so has a record of it (`queued`)."""
    return read_json(folder / SLURM_JOB)["job_id"]


def record(folder: Path, job: str, **facts: int) -> None:
    """Record the job of a run, or of a sweep's report, with its user and further ``facts``."""
    write_json(folder / SLURM_JOB, {"job_id": job, "user": me(), **facts})


def unqueued_count(sweep: Path) -> int:
    """Return how many runs the sweep's own job has yet to queue; 0 if that job makes the report."""
    return read_json(sweep / SLURM_JOB).get("left", 0)


def damaged(folders: Iterable[Path]) -> dict[Path, str]:
    """Return {folder: problem} of the ``folders`` with an unreadable job record, for which it is unknown whether they are in the queue."""
    problems: dict[Path, str] = {}
    for folder in folders:
        try:
            job_id(folder)
        except ConfigError as error:
            problems[folder] = str(error)
    return problems


def has_queue() -> bool:
    """Whether this machine can ask for SLURM's queue."""
    return shutil.which("squeue") is not None


def queued(folders: Iterable[Path]) -> dict[Path, Entry]:
    """Return {folder: entry} of the ``folders`` whose newest job is pending or running. SLURM is asked only if any was ever submitted.

    A machine without SLURM's commands (a laptop with copied folders) has an empty queue.
    """
    if not has_queue():
        return {}
    records = {folder: job_record for folder in folders if (job_record := read_json(folder / SLURM_JOB))}
    entries = jobs({job_record.get("user", me()) for job_record in records.values()}) if records else {}
    return {folder: entries[job_record["job_id"]] for folder, job_record in records.items() if job_record["job_id"] in entries}


def queued_once_settled(folders: Iterable[Path]) -> dict[Path, Entry]:
    """Wait until no job of ``folders`` is ending, then return their entries as `queued` does.

    A job that SLURM is ending leaves the queue then, or is back in it.

    Raises:
        ConfigError: a job did not end in time.
    """
    folders, deadline = list(folders), time.monotonic() + ENDING_S
    ending: list[Path] = []
    while True:
        entries, previously = queued(folders), ending
        ending = [folder for folder, entry in entries.items() if entry.state == "COMPLETING"]
        if not ending:
            return entries
        if time.monotonic() > deadline:
            raise ConfigError(f"job {queued_id(ending[0])} of {ending[0].name} has been ending for {ENDING_S} s; try again later")
        if not previously:
            note(f"waiting for {counted(len(ending), 'job')} that SLURM is ending")
        time.sleep(1)


def answers() -> bool:
    """Whether a cluster answers. SLURM's commands may also be installed on a machine without one."""
    ping = _ping()
    return ping is not None and ping.returncode == 0


def expected(site: Site) -> str | None:
    """Return what shows that jobs are meant for a cluster, even if none answers; None if nothing does."""
    for name, label in CLUSTER_FIELDS.items():
        if value := getattr(site, name):
            return f"the site {site.name} names the {label} {value if isinstance(value, str | int) else ', '.join(value)}"
    return "SLURM is set up on this machine" if _is_set_up() else None


def _is_set_up() -> bool:
    """Whether SLURM's commands are configured for a cluster: a freshly installed package has no slurm.conf, nor a server to get it from."""
    ping = _ping()
    return shutil.which("sbatch") is not None and (ping is None or "configuration source" not in ping.stderr)


def _ping() -> subprocess.CompletedProcess[str] | None:
    """Return the result of `scontrol ping`; None if SLURM is not installed, or no answer came in time."""
    if shutil.which("sbatch") is None:
        return None
    try:
        return subprocess.run(["scontrol", "ping"], capture_output=True, text=True, check=False, timeout=5)
    except subprocess.TimeoutExpired:
        return None


def time_limit_min(partition: str | None) -> int | None:
    """Return the least time limit of the partitions (``partition`` may list several; None: the default one). None: no limit."""
    lines = (line.split("|") for line in output("sinfo", "-h", "-o", "%P|%l").splitlines())
    names = (partition or "").split(",")
    limits = [minutes(limit) for name, limit in lines if name.rstrip("*") in names or (partition is None and name.endswith("*"))]
    return min((limit for limit in limits if limit is not None), default=None)


def minutes(limit: str) -> int | None:
    """Return the minutes of a time written [days-]hours:minutes:seconds or minutes:seconds; None for another word, such as infinite."""
    match = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)", limit)
    days, hours, minutes = (int(number or 0) for number in match.groups()[:3]) if match else (0, 0, 0)
    return (24 * days + hours) * 60 + minutes if match else None


def submit(script: Path) -> str:
    """Queue a batch script and return its job id. A busy controller is asked again, after growing pauses.

    Raises:
        ConfigError: SLURM refused the script, or did not answer in all this time; the script is not queued.
    """
    started_s, reason = time.monotonic(), ""
    try:
        for pause_s in (0, *PAUSES_S):
            if pause_s:
                note(f"{reason}; trying again in {pause_s} s")
                time.sleep(pause_s)
            try:
                # first look in the queue, since sbatch may have queued the script although it failed
                return (_taken(script) if pause_s else None) or output("sbatch", "--parsable", str(script)).split(";")[0].strip()
            except NoAnswer as error:
                reason = str(error)
        if job := _taken(script):
            return job
    except KeyboardInterrupt:
        if job := _taken(script):
            output("scancel", job)
        raise
    raise NoAnswer(f"{reason}; gave up after {time.monotonic() - started_s:.0f} s: try again when SLURM answers (scontrol ping)")


def _taken(script: Path) -> str | None:
    """Return the id of the job in the queue that a batch script belongs to, or None."""
    listed = (line.split(maxsplit=1) for line in output("squeue", "-h", "--me", "-o", "%F %o").splitlines())
    return next((job for job, command in listed if command == str(script)), None)


def _environment() -> dict[str, str]:
    """Return the environment without the user's own settings of SLURM's output, which could hide jobs or change the format of times."""
    hidden = ("SQUEUE_", "SINFO_", "SLURM_TIME_FORMAT")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}


def output(*words: str) -> str:
    """Run a SLURM command and return what it prints.

    Raises:
        NoAnswer: the controller does not answer, or not in time.
        ConfigError: the command failed.
    """
    try:
        result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=ANSWER_S, env=_environment())
    except subprocess.TimeoutExpired as error:
        stderr = " ".join((error.stderr or b"").decode(errors="replace").split())
        raise NoAnswer(f"{words[0]} did not answer in {ANSWER_S} s{stderr and f': {stderr}'}") from None
    if result.returncode:
        reason = " ".join(result.stderr.split())
        raise (NoAnswer if TRANSIENT.search(reason) else ConfigError)(f"{words[0]} failed: {reason}")
    return result.stdout
