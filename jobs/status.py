"""Show the state of a sweep's runs, or a run's log: `python jobs/status.py runs/quickstart`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from jobs import environment

    environment.require()

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs import logs
from jobs.display.states import ENDED, Overview, Status, is_over, read_overview
from jobs.display.tables import fits, print_table
from jobs.plan.time_left import MeasuredTimes, Work, time_of
from jobs.slurm import cluster
from jobs.sweep_runs import repeat_command, run_named, yet_to_queue
from vitssl import sweep_folder
from vitssl.arguments import Parser, guarded
from vitssl.config.metrics import measured_by
from vitssl.files import read_json
from vitssl.run_folder import ERROR, JOB
from vitssl.sweep_folder import SWEEP
from vitssl.terminal import console as screen
from vitssl.words import about, counted, duration, note, printable

OPTIONAL_COLUMNS = ("stage", "job", "attempts")  # columns that are left out first if the terminal is too narrow
REASON_TEXTS = {  # {SLURM's reason: what jobs wait for}
    "Dependency": "for the runs they start from",
    "Resources": "for free nodes",
    "Priority": "behind other jobs",
    "JobArrayTaskLimit": "for other jobs of their array (max_parallel)",
    "PartitionTimeLimit": "forever: resources.hours exceeds the partition's limit",
    "BeginTime": "for their start time",
    "ReqNodeNotAvail": "for nodes that are down, reserved or excluded",
}


def main(arguments: list[str] | None = None) -> int:
    """Show what the command line asks for. Exit code: 0, or 2 for a user's mistake."""
    parser = Parser(prog="jobs/status.py", description=__doc__)
    parser.add_argument("sweep", type=sweep_folder.find_sweep, help="the sweep's folder, for example runs/quickstart, or its name in runs/")
    add = parser.add_argument
    watch_help = "refresh every SECONDS (default: 10) until all runs have ended"
    add("--watch", nargs="?", type=_number, const=10.0, metavar="SECONDS", help=watch_help)
    log_help = "show the end of this run's newest log instead; RUN is its folder, or as much of its name as stands for no other"
    add("--log", metavar="RUN", help=log_help)
    add("--follow", "-f", action="store_true", help="with --log: keep printing new lines until the run has ended")
    add("--lines", "-n", type=_number, default=40, help="with --log: number of lines to show at first (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.follow and options.log is None:
        parser.error("argument --follow: name a run with --log RUN; --watch follows the sweep")
    if options.watch and options.log is not None:
        parser.error("argument --watch: this is for the whole sweep; to follow a log, use --log RUN --follow")
    return guarded(lambda: _show(options, screen()))


def _number(text: str) -> float:
    if not text.replace(".", "", 1).isdecimal() or float(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1; name the sweep's folder first")
    return float(text)


def _show(options: argparse.Namespace, console: Console) -> None:
    if options.log is not None:
        show_log(run_named(options.sweep, options.log), int(options.lines), options.follow)
    elif options.watch:
        watch(options.sweep, options.watch, console)
    else:
        show(options.sweep, console)


def show_log(folder: Path, lines: int, follow: bool) -> None:
    """Print the last ``lines`` of a run's newest log. With ``follow``, go on until the run has ended, and print how it ended."""
    overview = Overview()

    def ended() -> bool:
        nonlocal overview
        overview = read_overview(folder.parent, folder)
        return is_over(overview, folder)

    if follow:
        logs.follow(folder, lines, ended)
    else:
        overview = read_overview(folder.parent, folder)
    last = overview.status_of(folder)
    if not follow and (logs.newest(folder) or not (folder / ERROR).exists()):  # it may have failed before it wrote a log
        logs.show(folder, lines, last.state)
    if details := read_json(folder / ERROR).get("details"):  # of the rank that failed first, which may not be at the log's end
        print(printable(details), end="")
    if follow or last.error:
        print(f"{last.name}: {last.state}{f': {last.error}' if last.error else ''}", file=sys.stderr)


def show(sweep: Path, console: Console) -> None:
    """Print the table of a sweep's runs, and the notes below it, such as why runs are pending or failed."""
    _draw(sweep, read_overview(sweep), console)


def watch(sweep: Path, every_s: float, console: Console) -> None:
    """Print what `show` prints every ``every_s`` seconds, on a terminal in the same place, until nothing more happens by itself."""
    while True:
        overview = read_overview(sweep)
        if console.is_terminal:
            console.clear()
        else:
            console.print(time.strftime("%H:%M:%S"))
        _draw(sweep, overview, console)
        if overview.has_ended(sweep):
            return
        time.sleep(every_s)


def _draw(sweep: Path, overview: Overview, console: Console) -> None:
    """Print the table and the notes on its runs. Names lose their hashes if the table only fits without them."""
    statuses = overview.statuses
    table = _table(sweep, {s.name: s for s in statuses})
    without_hash = {s.name.rpartition("-")[0]: s for s in statuses}  # `--log` finds runs by these names too
    if len(without_hash) == len(statuses) and not fits(table, console, without=OPTIONAL_COLUMNS):
        table = _table(sweep, without_hash)
    print_table(table, console, drop=(*OPTIONAL_COLUMNS, "epoch", "left"))
    if overview.note:
        note(overview.note)
    for line in filter(
        None, (_pending_text(overview, sweep), _lost_energy_text(statuses), _report_text(overview, sweep), time_left(sweep, statuses))
    ):
        console.print(line, soft_wrap=True)
    for s in (s for s in statuses if s.error is not None):
        console.print(Text.assemble((s.name, "red"), f": {s.error}"), soft_wrap=True)


def _table(sweep: Path, statuses: dict[str, Status]) -> Table:
    """Return the table of ``statuses`` ({shown name: status}), one row each."""
    table = Table(title=str(sweep), title_justify="left")
    metric = measured_by(read_json(sweep / SWEEP).get("metric", "top1"))
    for column in ("run", "stage", "state", "epoch", "left", metric.title, "job", "attempts"):
        table.add_column(column)
    for name, s in statuses.items():
        epoch = "" if s.epoch is None else f"{s.epoch:.1f} ({s.progress or 0:.0%})"
        left = "" if s.left_s is None else duration(s.left_s)
        table.add_row(name, s.stage, s.state, epoch, left, s.score, s.job_id or "", str(s.attempts) if s.attempts > 1 else "")
    return table


def _pending_text(overview: Overview, sweep: Path) -> str:
    """Return a line with SLURM's reasons for pending runs, and when it expects the first run of each reason to begin."""
    pending = [entry for folder, entry in overview.queue.items() if entry.state == "PENDING" and folder != sweep]
    reasons = []
    for reason, number in Counter(entry.reason for entry in pending).most_common():
        starts = sorted(entry.start for entry in pending if entry.reason == reason and entry.start)
        expected = f", from {starts[0].replace('T', ' ')} on" if starts else ""
        reasons.append(f"{number} {_reason_text(reason)} ({reason}{expected})")
    return f"Pending: {', '.join(reasons)}" if reasons else ""


def _reason_text(reason: str) -> str:
    """Return what SLURM's ``reason`` means. SLURM may add nodes to it, as in ``ReqNodeNotAvail, UnavailableNodes:a1,b1``."""
    name = reason.partition(",")[0]
    limited = name.startswith(("QOS", "Assoc"))
    return "by your account's or QOS's limit" if limited else REASON_TEXTS.get(name, "for another reason")


def _lost_energy_text(statuses: list[Status]) -> str:
    """Return a line with the energy that kills have cost so far; empty if none."""
    kwh, runs = sum(s.lost_kwh for s in statuses), counted(sum(s.lost_kwh > 0 for s in statuses), "run")
    if not kwh:
        return ""
    from vitssl.report.units import quantity  # imported late, since the report's package loads matplotlib

    return f"Lost to kills and trained again: {quantity(kwh, 'kWh')}, in {runs}"


def _report_text(overview: Overview, sweep: Path) -> str:
    """Return a line on the job that makes the report, or that queues the remaining runs; empty if there is nothing to say."""
    if sweep in overview.damaged:
        return ""
    entry, job, ended = overview.queue.get(sweep), cluster.job_id(sweep), all(s.state in ENDED for s in overview.statuses)
    command = f"`vitssl report {sweep}`"
    if n_left := len(yet_to_queue(sweep, (sweep / s.name for s in overview.statuses if s.state == "not begun"))):
        waiting = f"{counted(n_left, 'run')} {'wait' if n_left > 1 else 'waits'}"
        if entry is None:
            return f"{waiting}: job {job}, which was to queue them, has ended; to continue, {repeat_command(sweep)}"
        return f"{waiting}: job {job}, {entry.state.lower()}, queues them when there is room"
    if entry is None:
        not_made = f"Report: job {job} has ended without making it; {command} makes it here"
        return "" if job is None or not ended or sweep_folder.is_reported(sweep) else not_made
    is_stuck = entry.state == "PENDING" and ended
    advice = f" ({entry.reason}); all runs have ended, and {command} makes it here" if is_stuck else ""
    return f"Report: job {job}, {entry.state.lower()}{advice}"


def time_left(sweep: Path, statuses: list[Status]) -> str:
    """Return a line with the time left for a sweep, by the pace seen so far; empty if nothing is left to do, or no pace was seen."""
    recorded = read_json(sweep / SWEEP).get("work", {})
    works = {name: Work(facts["images"], facts["architecture"]) for name, facts in recorded.items()}
    todo, seen = [s for s in statuses if s.state not in ENDED], MeasuredTimes()
    for s in statuses:
        if s.name in works and s.state != "unreadable":
            seen.add(works[s.name], time_of(sweep / s.name))
            seen.add(works[s.name].part(1 - (s.progress or 0)), s.left_s or 0)
    if not todo or any(s.name not in works for s in todo):
        return ""
    left_s = [seen.total_s([works[s.name].part(1 - (s.progress or 0))]) if s.left_s is None else s.left_s for s in todo]
    known_s = [time_s for time_s in left_s if time_s is not None]
    here = sweep_folder.launcher_pid(sweep) is not None
    return _time_left_text(todo, sum(known_s), max(known_s), here, _to_continue(sweep, todo)) if known_s else ""


def _to_continue(sweep: Path, todo: list[Status]) -> str:
    """Return how to continue the runs that are left: all by the sweep's command, and one that has begun without the sweep's file too."""
    begun = any((sweep / s.name / JOB).exists() for s in todo)
    retry = f"`python jobs/retry.py {sweep} RUN` continues one that has begun; to continue all" if begun else "to continue"
    return f"{retry}, {repeat_command(sweep)}"


def _time_left_text(todo: list[Status], sum_s: float, longest_s: float, here: bool, advice: str) -> str:
    runs, running = counted(len(todo), "run"), sum(s.state == "running" for s in todo)
    if here or running == len(todo):
        return f"{about(max(longest_s, sum_s / max(1, running)))} left for the sweep: {runs} remaining"
    if running or any(s.job_id is not None for s in todo):
        return f"{about(sum_s)} of computing left in {runs}, {running} of them running; SLURM decides when the others start"
    return f"{about(sum_s)} of computing left in {runs}, none of which is running or queued; {advice}"


if __name__ == "__main__":
    sys.exit(main())
