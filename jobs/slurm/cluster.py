"""What SLURM's queue holds, and which of its jobs a run folder belongs to."""

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

ENDING_S = 120  # a job that was cancelled or requeued has SLURM's KillWait (30 s by default) to end
ANSWER_S = 60  # longer than SLURM's commands themselves try to reach the controller
ASKED_EVERY_S = 30.0  # by commands that wait: the controller is everybody's
PAUSES_S = (1, 4, 15, 40, 60)  # between attempts to submit
# what SLURM's commands say where the controller is down, restarting or too busy, or holds as many jobs as it can
TRANSIENT = re.compile(
    r"(?i)timed out|unable to contact|temporarily u(nable|navailable)|connection refused|communication connection failure|zero bytes"
    r"|(send|receive) failure|transport endpoint|unable to connect|try again"
)
# fields of a site that this machine alone has no use for, and how an error calls them; an image may be one for this machine, or not
OF_A_CLUSTER = {name: name for name in ("partition", "account", "qos", "constraint")}
OF_A_CLUSTER |= {"gpu_type": "gpu_type", "additional": "sbatch options", "image": "image", "after": "jobs to wait for"}
OF_A_CLUSTER |= {name: name for name in ("mail_type", "nice", "exclude", "reservation")}


class Silent(ConfigError):
    """SLURM's controller does not answer."""


@dataclass
class Entry:
    """A job in SLURM's queue."""

    state: str  # SLURM's, or HELD: by `batch.sh`, after restarts without progress, or by a person
    reason: str = ""  # why it is pending, in SLURM's words
    comment: str = ""  # what `batch.sh` says of its restarts
    user: str = ""
    start: str = ""  # when SLURM expects it to begin, in local time; empty where it does not say

    @property
    def is_mine(self) -> bool:
        return self.user == me()


def me() -> str:
    """This user, by SLURM's name."""
    return pwd.getpwuid(os.geteuid()).pw_name


def jobs(users: Iterable[str]) -> dict[str, Entry]:
    """{id: entry} of these users' jobs that are pending or running; one entry per array element."""
    lines = output("squeue", "-h", "-r", "-u", ",".join(users), "-o", "%i|%u|%T|%r|%S|%k").splitlines()
    listed = (line.split("|", maxsplit=5) for line in lines)
    return {
        job: Entry("HELD" if "held" in reason.lower() else state, reason, comment, user, "" if start == "N/A" else start)
        for job, user, state, reason, start, comment in listed
    }


def stands_still(entries: Collection[Entry]) -> bool:
    """Does nothing go on by itself any more? Of jobs that are held, and what waits for them, nothing does."""
    held = any(entry.state == "HELD" for entry in entries)
    return not entries or (held and all(entry.state == "HELD" or entry.reason == "Dependency" for entry in entries))


def go_on(folder: Path) -> None:
    """Release the held job of a run."""
    output("scontrol", "update", f"jobid={job_id(folder)}", "comment=")
    output("scontrol", "release", job_id(folder))


def job_id(folder: Path) -> str | None:
    """SLURM's id of the newest job of a run, or of a sweep's report."""
    return read_json(folder / SLURM_JOB).get("job_id")


def record(folder: Path, job: str, **facts: int) -> None:
    """Write down which job a run, or a sweep's report, is, and whose, with further facts."""
    write_json(folder / SLURM_JOB, {"job_id": job, "user": me(), **facts})


def left(sweep: Path) -> int:
    """How many runs the job that follows a part of a sweep has yet to queue; 0: it is the report."""
    return read_json(sweep / SLURM_JOB).get("left", 0)


def damaged(folders: Iterable[Path]) -> dict[Path, str]:
    """{folder: what is wrong} of those whose record of a job cannot be read: whether they are in the queue is unknown."""
    found: dict[Path, str] = {}
    for folder in folders:
        try:
            job_id(folder)
        except ConfigError as error:
            found[folder] = str(error)
    return found


def queued(folders: Iterable[Path]) -> dict[Path, Entry]:
    """{folder: entry} of those whose newest job is pending or running; SLURM is asked only if any was ever submitted.

    A machine without SLURM's commands (a laptop with copied folders) has an empty queue.
    """
    if shutil.which("squeue") is None:
        return {}
    records = {folder: found for folder in folders if (found := read_json(folder / SLURM_JOB))}
    entries = jobs({found.get("user", me()) for found in records.values()}) if records else {}
    return {folder: entries[found["job_id"]] for folder, found in records.items() if found["job_id"] in entries}


def settled(folders: Iterable[Path]) -> dict[Path, Entry]:
    """As `queued`, once none of these jobs is ending any more: it leaves the queue then, or is back in it.

    Raises:
        ConfigError: one did not end.
    """
    folders, end = list(folders), time.monotonic() + ENDING_S
    ending: list[Path] = []
    while True:
        entries, before = queued(folders), ending
        ending = [folder for folder, entry in entries.items() if entry.state == "COMPLETING"]
        if not ending:
            return entries
        if time.monotonic() > end:
            raise ConfigError(f"job {job_id(ending[0])} of {ending[0].name} has been ending for {ENDING_S} s; try again later")
        if not before:
            note(f"waiting for {counted(len(ending), 'job')} that SLURM is ending")
        time.sleep(1)


def answers() -> bool:
    """Is there a cluster here? SLURM's commands may be installed where none is."""
    ping = _ping()
    return ping is not None and ping.returncode == 0


def expected(site: Site) -> str | None:
    """What tells that jobs are meant for a cluster, even where none answers; None: nothing does."""
    for name, called in OF_A_CLUSTER.items():
        if value := getattr(site, name):
            return f"the site {site.name} names the {called} {value if isinstance(value, str | int) else ', '.join(value)}"
    return "SLURM is set up on this machine" if _is_set_up() else None


def _is_set_up() -> bool:
    """Do SLURM's commands know of a cluster? A package that is installed, and no more, has neither a slurm.conf nor a server of one."""
    ping = _ping()
    return shutil.which("sbatch") is not None and (ping is None or "configuration source" not in ping.stderr)


def _ping() -> subprocess.CompletedProcess[str] | None:
    """The controller's answer; None where there are no commands, or none came in time."""
    if shutil.which("sbatch") is None:
        return None
    try:
        return subprocess.run(["scontrol", "ping"], capture_output=True, text=True, check=False, timeout=5)
    except subprocess.TimeoutExpired:
        return None


def time_limit_min(partition: str | None) -> int | None:
    """The longest that a job may take in a partition, or in all of several; without a name in the default one. None: no limit."""
    lines = (line.split("|") for line in output("sinfo", "-h", "-o", "%P|%l").splitlines())
    named = (partition or "").split(",")
    limits = [minutes(limit) for name, limit in lines if name.rstrip("*") in named or (partition is None and name.endswith("*"))]
    return min((limit for limit in limits if limit is not None), default=None)


def minutes(limit: str) -> int | None:
    """Of SLURM's [days-]hours:minutes:seconds or minutes:seconds; None of any other word, such as infinite."""
    found = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)", limit)
    days, hours, minutes = (int(number or 0) for number in found.groups()[:3]) if found else (0, 0, 0)
    return (24 * days + hours) * 60 + minutes if found else None


def submit(script: Path) -> str:
    """Queue a batch script and give SLURM's id of it. A busy controller is asked again, after growing pauses.

    Raises:
        ConfigError: SLURM refused the script, or did not take it in all this time; it is not queued.
    """
    begun, reason = time.monotonic(), ""
    try:
        for pause_s in (0, *PAUSES_S):
            if pause_s:
                note(f"{reason}; trying again in {pause_s} s")
                time.sleep(pause_s)
            try:
                # it may have been queued although sbatch failed
                return (_taken(script) if pause_s else None) or output("sbatch", "--parsable", str(script)).split(";")[0].strip()
            except Silent as error:
                reason = str(error)
        if job := _taken(script):
            return job
    except KeyboardInterrupt:
        if job := _taken(script):
            output("scancel", job)
        raise
    raise Silent(f"{reason}; gave up after {time.monotonic() - begun:.0f} s: try again when SLURM answers (scontrol ping)")


def _taken(script: Path) -> str | None:
    """The id of the job that a batch script is in the queue as."""
    listed = (line.split(maxsplit=1) for line in output("squeue", "-h", "--me", "-o", "%F %o").splitlines())
    return next((job for job, command in listed if command == str(script)), None)


def _environment() -> dict[str, str]:
    """Without a person's own ways of looking at the queue, which would hide jobs, or write times as nothing else reads them."""
    hidden = ("SQUEUE_", "SINFO_", "SLURM_TIME_FORMAT")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}


def output(*words: str) -> str:
    """What a SLURM command prints.

    Raises:
        Silent: the controller does not answer, or not in time.
        ConfigError: the command failed.
    """
    try:
        result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=ANSWER_S, env=_environment())
    except subprocess.TimeoutExpired as error:
        said = " ".join((error.stderr or b"").decode(errors="replace").split())
        raise Silent(f"{words[0]} did not answer in {ANSWER_S} s{said and f': {said}'}") from None
    if result.returncode:
        reason = " ".join(result.stderr.split())
        raise (Silent if TRANSIENT.search(reason) else ConfigError)(f"{words[0]} failed: {reason}")
    return result.stdout
