"""Run a sweep: `python jobs/submit.py sweeps/quickstart.yaml [key=value ...]`.

On a SLURM cluster it queues the jobs and returns; elsewhere it runs them on this machine. Repeating the command keeps finished runs and
continues the others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

if __name__ == "__main__":
    # run as a script, from anywhere: the project may not be installed
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from jobs import environment

    environment.require()

from rich.console import Console

from jobs import folders, local, site_profile
from jobs.display import show
from jobs.inputs import prepare, reuse, weights
from jobs.plan import equalize, existing_runs, graph, notes, overrides, predict, shards, smoke, sweep, sweep_files
from jobs.plan.cells import Cell, Stage, cells
from jobs.plan.launch import Launch
from jobs.plan.overrides import CLI
from jobs.plan.pace import on_gpu
from jobs.slurm import cluster, greenest, launcher, sbatch, waiting
from jobs.slurm.preflight import check_disk, error_location
from jobs.source import snapshot
from vitssl.arguments import Parser, guarded
from vitssl.config import ConfigError, Site
from vitssl.costs.emissions import GRID_FIELDS
from vitssl.terminal import console as screen
from vitssl.version import commit
from vitssl.words import counted, note

RUNS = Path("runs")  # the folder for all sweeps' runs, unless --runs names another


def main(arguments: list[str] | None = None) -> int:
    """Submit what the command line asks for.

    Exit code: 0 done or queued, 1 a run failed, 128 + N signal N stopped it (Ctrl-C: 130), 2 a user's mistake (nothing was queued).
    """
    options = _parser().parse_intermixed_args(arguments)
    if options.max_parallel is not None:
        options.overrides.append(f"site.max_parallel={options.max_parallel}")
    advice = "; choose writable folders for --runs, data.shards and weights/"
    return guarded(lambda: _submit(options, screen()), advice)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="jobs/submit.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.takes_fields = True
    parser.own_keys = {name: [name] for name in overrides.SWEEP_KEYS} | {"arms": ["arms"], "seed": ["axes.seed"]}
    add = parser.add_argument
    add("sweep", type=Path, help="a YAML file, for example sweeps/quickstart.yaml")
    add(
        "overrides", nargs="*", default=[], metavar="key=value",  # without a default, argparse's errors would call it required
        help="set a field: optim.lr=1e-3 for all Runs, finetune.optim.lr=1e-3 for a stage, arms.ssat.optim.lr=1e-3 for an arm, "
        "arms.sslft.finetune.optim.lr=1e-3 for a stage of an arm; or axes.seed=[0,1], arms=[ssat], resources.nodes=2, name=X",
    )  # fmt: skip
    add("--dry-run", action="store_true", help="print what would be submitted and what it would cost; submit and train nothing")
    executor_help = "auto: slurm if a cluster answers, otherwise local"
    add("--executor", choices=("auto", "slurm", "local"), default="auto", help=executor_help)
    greenest_help = "on SLURM: start when the grid is greenest by site.intensity_csv, delayed by at most this long"
    add(greenest.OPTION, type=greenest.seconds, metavar="24h", help=greenest_help)
    add("--wait", action="store_true", help="on SLURM: wait until all runs are done, then print the report's table")
    add("--site", help="site profile: a file, or a name in jobs/sites")
    parallel_help = "run at most N runs at once; on SLURM per job array, which is one stage of an arm (sbatch's %%N)"
    add("--max-parallel", metavar="N", help=parallel_help)
    add("--smoke", action="store_true", help="train every arm for five steps on tiny data")
    add("--all", action="store_true", help="include optional arms and axis values")
    add("--all-jobs", action="store_true", help="list every run separately; in a dry run with its fields and sbatch script")
    add("--runs", type=Path, default=RUNS, help="folder for all sweeps' runs (default: runs)")
    add("--reuse", action="store_true", help="use runs that other sweeps in that folder have trained, instead of training them again")
    add("--use-current-source", action="store_true", help="continue started runs with the current source instead of their snapshot")
    return parser


def _submit(options: argparse.Namespace, console: Console) -> int:
    file = sweep_files.find(options.sweep)
    parsed = overrides.parse(options.overrides)
    spec = sweep.read(file, parsed, options.all)
    profile = options.site or spec.site or "local"
    site = site_profile.read(profile, parsed.site, CLI if options.site else spec.file)
    executor = _executor(options.executor, options.dry_run, site)
    runs = _runs_folder(options.runs)
    if options.smoke:
        spec = smoke.narrow(spec)
        console.print(smoke.summary_text(spec), soft_wrap=True)
    launch = Launch(runs / spec.name, executor, site, Path(), options.use_current_source)
    sweep_files.refuse_taken_name(spec, launch.sweep)
    with error_location(spec, site_profile.file_of(profile)):
        planned = _plan(spec, launch, options.smoke)
        unfetched = _prepare([stage for cell in planned for stage in cell.stages], launch, options.dry_run)
        linked = _link(spec, planned, launch, options, console)
        if options.dry_run:
            return _dry_run(spec, linked, launch, unfetched, options, console)
        if options.greenest_within is not None or any(limit is not None for limit in vars(spec.budget).values()):
            predictions = predict.predict_runs(linked, launch)
            predict.check_budget(spec, linked, predictions, site)
            _begin_when_green(options.greenest_within, linked, predictions, launch, console)
        _show(spec, linked, (), site, options.all_jobs, console)
        return launch_all(linked, launch, options.wait, console, lambda: _write(spec, linked, launch))


def _runs_folder(named: Path) -> Path:
    """Return the absolute path of the folder for all sweeps' runs, which may not exist yet."""
    runs = named.resolve()
    if not str(runs).isprintable():  # a line break in it would start a new line of a batch script
        raise ConfigError(f"{str(runs)!r} has a line break or another control character; choose another folder", "--runs", CLI)
    if runs.exists() and not runs.is_dir():
        raise ConfigError("this is a file; name a folder", f"--runs {named}", CLI)
    if named != RUNS and not any(runs.glob("[!.]*")):
        note(f"{named} (--runs) holds nothing yet, so there are no earlier runs to keep or continue")
    return runs


def _plan(spec: sweep.Spec, launch: Launch, tiny: bool) -> list[Cell]:
    """Return the sweep's cells with all their Runs for this machine or the cluster; ``tiny`` ones for a smoke run."""
    here = launch.executor == "local"
    if here:
        sweep.on_this_machine(spec)
    else:
        site_profile.add_own(launch.site)
    planned = cells(spec)
    stages = [stage for cell in planned for stage in cell.stages]
    if tiny:
        for stage in stages:
            on_cpus = not on_gpu(stage.run, spec.resources, launch.executor)
            stage.run = smoke.shrink(stage.run, spec, launch.sweep.parent, stage.where, on_cpus)
    prepare.check_machine(stages, launch.site, here)
    return planned


def _prepare(stages: list[Stage], launch: Launch, dry_run: bool) -> dict[str, str]:
    """Build the shards and fetch the weights that Runs start from, and check both; return the weights that a dry run leaves unfetched."""
    missing, unfetched = prepare.shards(stages, dry_run), weights.prepare(stages)
    weights.check_names(unfetched, launch.site)
    if not dry_run:
        prepare.build(missing, launch.site)
        weights.fetch(unfetched, launch.site)
        weights.prepare(stages)  # again, to check that the imported weights fit
    prepare.check_images(stages)
    weights.check_networks(stages, launch.site)
    return unfetched


def _link(spec: sweep.Spec, planned: list[Cell], launch: Launch, options: argparse.Namespace, console: Console) -> graph.Graph:
    """Return the jobs of the planned cells, with notes on what a user may not expect of them."""
    if not options.smoke:
        equalize.apply(spec, planned, launch)
    linked = graph.link(spec, planned, launch.sweep, shards.fingerprint)
    folders.check_trained(linked.jobs)
    _reuse(linked, launch, options.reuse, console)
    if not options.smoke:
        remarks = existing_runs.remarks(linked.jobs, launch.sweep, launch.use_current_source)
        typed = not spec.overrides.site.keys().isdisjoint(GRID_FIELDS)
        kept_grids = existing_runs.kept_grids(linked.jobs, launch.sweep, launch.site, typed)
        for line in [*notes.notes(spec, planned, launch.site), *remarks, *filter(None, [kept_grids])]:
            note(line)
    return linked


def _reuse(linked: graph.Graph, launch: Launch, asked: bool, console: Console) -> None:
    """Plan to take runs that other sweeps have trained, if ``asked`` to; otherwise print a note if there are any."""
    reusable = reuse.find(linked.jobs, launch.sweep)
    if asked:
        console.print(reusable.summary_text(linked.jobs, "taken from"), soft_wrap=True)
        reuse.plan(linked.jobs, reusable)
    elif reusable.folders:
        note(f"{reusable.summary_text(linked.jobs, 'done in')}; --reuse takes them from there instead of training them again")


def _begin_when_green(
    within_s: float | None, linked: graph.Graph, predictions: list[predict.Prediction], launch: Launch, console: Console
) -> None:
    if within_s is not None:
        start = greenest.find(within_s, linked, predictions, launch)
        console.print(str(start), soft_wrap=True)
        greenest.apply(start, launch)


def _show(
    spec: sweep.Spec, linked: graph.Graph, predictions: Sequence[predict.Prediction], site: Site, all_jobs: bool, console: Console
) -> None:
    show.jobs(linked, spec, console, predictions, site, all_jobs)
    runs = [job.run for job in linked.jobs]
    for line in [*dict.fromkeys(map(shards.describe, runs)), *shards.held_out(runs), *shards.unread(runs)]:
        console.print(line, soft_wrap=True)


def _executor(asked: str, dry_run: bool, site: Site) -> str:
    """Return the executor, "slurm" or "local".

    If the site or this machine is set up for a cluster but none answers, a dry run shows the plan for SLURM.

    Raises:
        ConfigError: runs are meant for a cluster, and none answers; they are not trained on this machine instead.
    """
    if asked == "local" or (asked == "slurm" and dry_run):
        return asked
    if cluster.answers():
        return "slurm"
    if asked == "slurm":
        raise ConfigError("no SLURM cluster answers here (sbatch, scontrol ping)", "--executor slurm", CLI)
    expected = cluster.expected(site)
    if expected is None:
        return "local"
    if not dry_run:
        raise ConfigError(f"{expected}, but no SLURM cluster answers here; submit where one does, or train here with --executor local")
    plan = "this is the plan for it; --executor local shows this machine's"
    note(f"{expected}, but no SLURM cluster answers here: {plan}")
    return "slurm"


def _dry_run(
    spec: sweep.Spec, linked: graph.Graph, launch: Launch, unfetched: dict[str, str], options: argparse.Namespace, console: Console
) -> int:  # fmt: skip
    """Print the plan of a sweep and check it as a submission would; return the exit code.

    The totals come first: with all jobs, the tables and scripts of a large sweep are hundreds of lines.
    """
    predictions = predict.predict_runs(linked, launch)
    for line in show.summary(linked, predictions, launch):
        console.print(line, soft_wrap=True)
    _begin_when_green(options.greenest_within, linked, predictions, launch, console)
    show.basis(options.overrides, linked, launch, console)
    for file, name in unfetched.items():
        console.print(f"{file} would be fetched from {name} first, which also gives the runs their final names", soft_wrap=True)
    _show(spec, linked, predictions, launch.site, options.all_jobs, console)
    if options.all_jobs:
        show.runs(linked, console)
        if launch.executor == "slurm":
            sbatch.show_scripts(linked, launch, console)
    else:
        scripts = " and sbatch scripts" if launch.executor == "slurm" else ""
        line = f"Costs are for all runs of a line. {show.ALL_JOBS} prints every run, with its fields{scripts}"
        console.print(line, soft_wrap=True)
    predict.check_budget(spec, linked, predictions, launch.site)
    if launch.executor == "slurm" and cluster.answers():
        launcher.check(linked, launch)
    elif launch.executor == "local":
        check_disk(linked.jobs, launch)
    return 0


def launch_all(linked: graph.Graph, launch: Launch, wait: bool, console: Console, write: Callable[[], None]) -> int:
    """Start all runs, here or on SLURM, after ``write`` has put what they need into the sweep's folder. Return the exit code."""
    refuse_two_at_once(linked, launch)
    if launch.executor == "local":
        check_disk(linked.jobs, launch)
        with folders.locked(launch.sweep):
            write()
        return local.run(linked, launch, console)
    with folders.locked(launch.sweep):
        write()
        launcher.run(linked, launch, console)
    return waiting.wait_for(linked, launch, console) if wait else 0


def refuse_two_at_once(linked: graph.Graph, launch: Launch) -> None:
    """Raise a ConfigError if a run would be trained by this machine and SLURM at once, or by two people."""
    local.refuse_running(launch.sweep)
    run_folders = [job.folder for job in linked.jobs]
    for folder, entry in cluster.queued(run_folders).items():
        if not entry.is_mine:
            conflict = f"{folder.name} is in SLURM's queue for {entry.user} (job {cluster.queued_id(folder)})"
            raise ConfigError(f"{conflict}; wait for it, or use your own folder: --runs")
    if launch.executor == "local" and (entries := cluster.queued_once_settled(run_folders)):
        problem = f"SLURM's queue holds {counted(len(entries), 'run')} of {launch.sweep}"
        raise ConfigError(f"{problem}; cancel that first with jobs/cancel.py {launch.sweep}")


def _write(spec: sweep.Spec, linked: graph.Graph, launch: Launch) -> None:
    reuse.take(linked.jobs, launch.sweep)
    launch.source, launch.commit = snapshot(launch.sweep), commit()  # building shards may have taken hours since the start
    folders.keep_sweep_file(spec, launch)
    folders.keep_grid(launch)
    for job in linked.jobs:
        folders.restate(job)
    folders.write_sweep(spec, linked, launch)


if __name__ == "__main__":
    sys.exit(main())
