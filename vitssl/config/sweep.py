"""The fields of a sweep file, which `jobs.plan.sweep` reads, checks and narrows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Optional

Quantity = Literal["macs", "gpu_hours", "kwh"]  # costs that ``equalize`` can make the same for all trainings


@dataclass
class Paper:
    """The published table that the sweep reproduces."""

    title: str = ""  # of the paper
    table: str = ""  # its number in the paper, such as Table 1
    url: str = ""  # where the paper is


@dataclass
class Resources:
    """What one job asks for; each stage of a chain is a job of its own."""

    nodes: int = 1  # machines that work on one run together
    gpus_per_node: int = 1  # one process per GPU; 0: one process on the CPU
    cpus_per_gpu: int = 8  # CPU cores per process
    mem_gb: Optional[float] = None  # memory per node; null: the cluster's default
    hours: float = 12.0  # a job that needs longer is stopped, requeued and continued


@dataclass
class Budget:
    """Most that the unfinished runs may cost; a submission predicted to cost more is refused."""

    gpu_hours: Optional[float] = None  # GPU-hours of all runs together
    kwh: Optional[float] = None  # energy, in kWh
    kg_co2e: Optional[float] = None  # emissions, in kg CO2e
    money: Optional[float] = None  # in the site's currency


@dataclass
class Arm:
    """One row of the report: a chain of stages, or a row that the paper only quotes."""

    row: str = ""  # label of its row in the report, as in the paper's table; empty: the arm's name
    published: Any = None  # the paper's number, or one per value of the columns axis
    # the paper's cost: {gmacs, gpu_hours, kg_co2e}, or one such set per value of the columns axis
    published_cost: Optional[dict[str, Any]] = None
    quoted: bool = False  # true: the paper quotes this number from another publication
    not_runnable: Optional[str] = None  # why it cannot run here; its row shows only the paper's number
    note: Optional[str] = None  # shown below the report's table
    baseline: Optional[str] = None  # the arm that this one is compared with; null: the sweep's baseline
    optional: bool = False  # runs only when selected by arms=[...] or --all
    resources: dict[str, Any] = field(default_factory=dict)  # what this arm's jobs ask for; overrides the sweep's resources
    defaults: dict[str, Any] = field(default_factory=dict)  # fields of Runs for all stages of this arm; override the sweep's defaults
    stages: dict[str, Optional[dict[str, Any]]] = field(default_factory=dict)  # name -> fields; the last stage's accuracy is reported

    def fields_of(self, stage: str) -> dict[str, Any]:
        """Return the fields of a stage; the file may have null for none."""
        return self.stages[stage] or {}


@dataclass
class SweepFile:
    """The fields of a sweep file."""

    name: str = ""  # name of the sweep and of the folder with its runs
    paper: Optional[Paper] = None
    notes: list[str] = field(default_factory=list)  # lines shown in the report
    columns: Optional[str] = None  # the axis whose values become the columns of the report's table
    baseline: Optional[str] = None  # the arm that the others are compared with
    # what the report compares, on the test set after the last epoch: top1, top5, balanced_accuracy, macro_f1, auc, ece or loss; with _ema
    # (top1_ema): of the averaged weights; selected/top1: at the epoch that held-out images choose; knn/top1: of the evaluator knn
    metric: str = "top1"
    # axes to tune: each arm and column uses the values that are best on held-out images
    select: list[str] = field(default_factory=list)
    length: float = 1.0  # factor for the epochs of every stage: 0.2 trains a fifth as long
    # adjust epochs so that every arm's training costs as much as that of equal_to; a value of an axis may set it too
    equalize: Optional[Quantity] = None
    equal_to: Optional[str] = None  # the arm whose cost the others are to match; null: the baseline
    budget: Budget = field(default_factory=Budget)
    site: Optional[str] = None  # site profile, unless --site names one: a file, or a name in jobs/sites
    resources: Resources = field(default_factory=Resources)
    defaults: dict[str, Any] = field(default_factory=dict)  # fields that all Runs share
    smoke: dict[str, Any] = field(default_factory=dict)  # fields that `--smoke` sets in addition
    arms: dict[str, Arm] = field(default_factory=dict)  # name -> one row of the report
    axes: dict[str, Any] = field(default_factory=dict)  # name of a field -> its values; or any name -> {label: fields}
