"""The fields of a sweep file; `jobs.sweep` reads, checks and narrows one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Optional

Quantity = Literal["macs", "gpu_hours", "kwh"]  # that trainings may cost equally much of


@dataclass
class Paper:
    """The published table that the sweep reproduces."""

    title: str = ""  # of the paper
    table: str = ""  # its number in the paper, such as Table 1
    url: str = ""  # where the paper is


@dataclass
class Resources:
    """What one job asks for; of a chain of stages each is a job."""

    nodes: int = 1  # machines that work on one run together
    gpus_per_node: int = 1  # one process each; 0 is one process on the CPU
    cpus_per_gpu: int = 8  # cores for each process
    mem_gb: Optional[float] = None  # memory per node; null takes the cluster's default
    hours: float = 12.0  # a job that needs longer is stopped, requeued and continued


@dataclass
class Budget:
    """What the runs that are not done yet may cost; a submission whose prediction exceeds it is refused."""

    gpu_hours: Optional[float] = None  # GPU-hours of all runs together
    kwh: Optional[float] = None  # energy, in kWh
    kg_co2e: Optional[float] = None  # emissions, in kg CO2e
    money: Optional[float] = None  # in the site's currency


@dataclass
class Arm:
    """One row of the report: a chain of stages, or a row that the paper only quotes."""

    row: str = ""  # its name in the report, as in the paper's table; empty: the arm's own
    published: Any = None  # the paper's number, or one per value of the columns axis
    published_cost: Optional[dict[str, Any]] = None  # {gmacs, gpu_hours, kg_co2e}, or one such per value of the columns axis
    quoted: bool = False  # the paper took this number from elsewhere
    not_runnable: Optional[str] = None  # why it cannot run here; the row is shown with what the paper printed
    note: Optional[str] = None  # shown below the report's table
    baseline: Optional[str] = None  # the arm that differences are taken against; null: the sweep's
    optional: bool = False  # runs only when asked for, by arms=[...] or --all
    resources: dict[str, Any] = field(default_factory=dict)  # what this arm's jobs ask for, over the sweep's
    defaults: dict[str, Any] = field(default_factory=dict)  # fields of Runs, over the sweep's, for every stage
    stages: dict[str, Optional[dict[str, Any]]] = field(default_factory=dict)  # name -> fields; the accuracy is that of the last one


@dataclass
class SweepFile:
    """The fields of a sweep file."""

    name: str = ""  # of the sweep, and of the folder of its runs
    paper: Optional[Paper] = None
    notes: list[str] = field(default_factory=list)  # lines for the report
    columns: Optional[str] = None  # the axis whose values are columns of the report's table
    baseline: Optional[str] = None  # the arm that differences are taken against
    # after the last epoch, on the test set: top1, top5, balanced_accuracy, macro_f1, auc, ece or loss; with _ema (top1_ema) of averaged
    # weights; or an evaluator's (knn/top1)
    metric: str = "top1"
    select: list[str] = field(default_factory=list)  # axes of which each arm and column takes the values that are best on held-out images
    length: float = 1.0  # times as many epochs as the file says, in every stage: 0.2 for a try
    # epochs such that every arm's training costs what that of equal_to does; an axis value may have it too
    equalize: Optional[Quantity] = None
    equal_to: Optional[str] = None  # the arm whose cost the others are to have; null: the baseline
    budget: Budget = field(default_factory=Budget)
    site: Optional[str] = None  # profile of the place where it runs, where --site names none: a file, or a name in jobs/sites
    resources: Resources = field(default_factory=Resources)
    defaults: dict[str, Any] = field(default_factory=dict)  # fields of all Runs
    smoke: dict[str, Any] = field(default_factory=dict)  # further fields of a `--smoke` run
    arms: dict[str, Arm] = field(default_factory=dict)  # name -> one row of the report
    axes: dict[str, Any] = field(default_factory=dict)  # name -> values of the field of that name, or {label: fields}
