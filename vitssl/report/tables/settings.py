"""What was run: the settings in which the arms differ, those that all arms share, and the provenance of the numbers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from vitssl.config import Run, checkpoint_fields, scaled_lr, size_of
from vitssl.config.backbones import family
from vitssl.report.results.collect import RunFolder
from vitssl.report.results.energy import CPU_POWER, intensities
from vitssl.report.results.external_sources import origins
from vitssl.report.results.grid import SEED, Grid
from vitssl.report.table import DASH, Entry, Table
from vitssl.version import snapshot_of, sources_of
from vitssl.words import listed

# fields that differ by seed, place or machine, never by arm
LEFT_OUT = {"seed", "data.shards", "data.source", "data.sha256", "data.cache_dir", *checkpoint_fields(Run)}


def stages(grid: Grid) -> dict[str, dict[str, RunFolder]]:
    """Return, by the name of each distinct (row, stage) in the report, a run by column; of several seeds the first."""
    runs: dict[str, dict[str, RunFolder]] = {}
    for row in grid.rows:
        for column, cells in row.columns.items():
            chain = cells[0].stages if cells else []
            for name, run in chain:
                if run.run:
                    title = grid.label(row) if len(chain) == 1 else f"{grid.label(row)}: {name}"
                    runs.setdefault(title, {})[grid.name(column)] = run
    return runs


def settings(grid: Grid) -> tuple[Table | None, dict[str, str]]:
    """Return the table of the settings in which stages differ, and the settings that all stages share, by field."""
    by_stage = stages(grid)
    if not by_stage:
        return None, {}
    fields = {name: {column: run.run_fields for column, run in runs.items()} for name, runs in by_stage.items()}
    names = dict.fromkeys(k for flats in fields.values() for f in flats.values() for k in f)
    keys = [k for k in names if k not in LEFT_OUT and not k.startswith("evals")]  # evaluators' fields are shown beside their results
    # a value that is off in one stage may be a whole group of fields in another
    off = {k for k in keys if any(other.startswith(f"{k}.") for other in keys)}
    groups = {k for k in off if k.startswith("data.views.")}
    lines = {k: [_by_column({c: _value(f, k, groups) for c, f in flats.items()}) for flats in fields.values()] for k in keys}
    shared = {k: next(iter(values)) for k, line in lines.items() if len(values := _compared(k, line, groups)) == 1 and k not in off}
    shared.pop(grid.axis or "", None)  # this one differs between columns
    shown = {name: [_by_column({c: text(run) for c, run in runs.items()}) for runs in by_stage.values()] for name, text in FIRST.items()}
    shown |= {k: line for k, line in lines.items() if (k not in shared and k not in off - groups) or k == grid.axis}
    if set(shown["starts from"]) == {DASH}:  # no run starts from anything but a stage of its own arm
        del shown["starts from"]
    rows = [[Entry(name), *map(Entry, line)] for name, line in shown.items()]
    caption = (
        "Effective batch, learning rate, and every field of the configuration in which the stages differ; "
        "of an objective its weight, of a view whether it is on, and the fields in which the stages that have it differ."
    )
    return Table("Settings", ["setting", *by_stage], rows, caption, left=frozenset(range(len(by_stage) + 1))), shared


def _value(fields: dict[str, Any], name: str, groups: set[str]) -> str:
    """Return the text of a field; ``on`` for one of ``groups``, such as a view, if its own fields are set."""
    return "on" if name in groups and any(field.startswith(f"{name}.") for field in fields) else _text(fields.get(name, DASH))


def _compared(name: str, line: list[str], groups: set[str]) -> set[str]:
    """Return the values of a field by which stages are told apart.

    A dash does not count if another line says that the part is off: the view's own line, or the weight of an objective.
    """
    objective, grouped = name.startswith("objectives."), any(name.startswith(f"{group}.") for group in groups)
    said_elsewhere = not name.endswith(".weight") if objective else grouped
    return {value for value in line if value != DASH} if said_elsewhere else set(line)


def _steps(run: RunFolder) -> str:
    starts = run.events_of("start")
    return f"{starts[-1]['steps']:,}" if starts else DASH


def _by_column(texts: dict[str, str]) -> str:
    """Return one text if all columns have the same, otherwise the text of each column."""
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{column}: {text}" for column, text in texts.items())


def _text(value: Any) -> str:
    if value is None:
        return "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        set_fields = {name: fields for name, fields in value.items() if fields is not None}
        if all(isinstance(fields, dict | list) for fields in set_fields.values()):
            return " and ".join(_part(name, fields) for name, fields in set_fields.items())
        return " ".join(f"{name}={_text(field)}" for name, field in set_fields.items())
    return ", ".join(_text(v) for v in value) or "none" if isinstance(value, list) else str(value) or "none"


def _part(name: str, fields: Any) -> str:
    """Format one step of a list, such as a view's colour augmentations: jitter 0.4 0.4 0.2 0.1 (p 0.8)."""
    if isinstance(fields, list):
        return f"{name.replace('_', ' ')} ({_text(fields)})"
    numbers = [_text(value).replace(",", "") for key, value in fields.items() if key != "prob"]
    return " ".join([name, *numbers, *([] if fields["prob"] == 1 else [f"(p {fields['prob']:g})"])])


def _batch(run: RunFolder) -> str:
    """Return the images per optimiser step, and how they were spread over processes and slices."""
    size, starts = run.config.optim.batch_size, run.events_of("start")
    if not starts:
        return f"{size}"
    ranks, slices = starts[-1]["world_size"], starts[-1].get("accumulate", 1)
    spread = _processes(ranks) + (f" x {slices} slices" if slices > 1 else "")
    return f"{size} ({spread})"


def _rate(run: RunFolder) -> str:
    optim = run.config.optim
    return f"{scaled_lr(optim, optim.lr):.3g} ({optim.lr:g}, {optim.lr_rule})"


def _network(run: RunFolder) -> str:
    """Return the network's name and its sizes, those that the name stands for among them."""
    backbone, size = run.config.backbone, size_of(run.config.backbone)
    if backbone.timm_model:
        return f"{backbone.timm_model} of timm"
    depths = "-".join(map(str, size.depths))
    read = family(backbone).reads.split()
    sizes = {"embed_dim": size.embed_dim, "depth" if "depth" in read else "depths": depths, "num_heads": size.num_heads}
    sizes |= {"mlp_ratio": f"{size.mlp_ratio:g}", "patch_size": size.patch_size}
    return ", ".join([backbone.name, *(f"{name} {value}" for name, value in sizes.items() if name in read)])


# the lines of the table before those of fields
FIRST: dict[str, Callable[[RunFolder], str]] = {
    "starts from": lambda run: listed(origins(run)) or DASH,
    "network": _network,
    "effective batch": _batch,
    "learning rate, scaled peak": _rate,
    "optimiser steps": _steps,
}


def _span(records: list[dict[str, Any]]) -> str:
    """Return the time from the first to the last record of energy; empty if there are none."""
    ends = [
        time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(moment))
        for moment in ((min(r["start"] for r in records), max(r["end"] for r in records)) if records else ())
    ]
    return " to ".join(ends)


def provenance(grid: Grid) -> dict[str, str]:
    """Return where the numbers come from, as texts by name."""
    sweep = grid.sweep
    facts, runs = sweep.facts, list(sweep.runs.values())
    starts = [event for run in runs for event in run.events_of("start")]
    records = [record for run in runs for record in run.emissions]
    costs = [run.cost for run in runs if run.cost]
    versions = [" · ".join(f"{k} {v}" for k, v in e["versions"].items()) for e in starts]
    begun_with = [(run, source) for run in runs if run.attempts for source in sources_of(run.job)]
    sources = [source for _, source in begun_with]
    # where it now is: the sweep's folder may have been moved
    snapshots = [str(found.resolve()) if (found := snapshot_of(run.path, source)) else source["source"] for run, source in begun_with]
    commits = dict.fromkeys(_commit(source) for source in sources if "commit" in source)
    submitted = _commit(facts)
    entries = {
        "command": [facts["command"]],
        "sweep file": [facts["file"]],
        "commit": commits or [submitted],
        "trained": [_span(records)],
        "last submitted": [f"{facts['created']}{'' if submitted in (commits or [submitted]) else f' (commit {submitted})'}"],
        "source snapshot": snapshots,
        "hardware": [f"{e['device']}, {_processes(e['world_size'])}" for e in starts],
        "inference speed": [f"on {c['inference_device']}, batch {c['inference_batch_size']}, {c['precision']}" for c in costs],
        "hosts": [e["host"] for e in starts],
        "versions": versions,
        "grid": [f"{country}, {kg} kg CO2e/kWh" for country, kg in intensities(records).items()],
        "CPU power": [f"{CPU_POWER[r['cpu_power_source']]} (codecarbon {r['codecarbon']})" for r in records],
        "share of the node": [f"{r['node_share']:.0%} of its CPU and RAM energy" for r in records],
        "axes": [f"{axis}: {', '.join(map(str, values))}" for axis, values in facts["axes"].items()],
        "seeds": [", ".join(str(s) for s in dict.fromkeys(c.axes.get(SEED) for c in sweep.cells) if s is not None)],
        "run folders": [str(sweep.folder.resolve())],
    }
    texts = {name: "; ".join(dict.fromkeys(str(v) for v in values if v)) for name, values in entries.items()}
    return {name: text for name, text in texts.items() if text}


def _commit(source: dict[str, Any]) -> str:
    changed = " with uncommitted changes" if source.get("dirty") else ""
    return f"{source['commit']}{changed}" if source["commit"] else "not a git checkout"


def _processes(count: int) -> str:
    return f"{count} process{'es' if count > 1 else ''}"
