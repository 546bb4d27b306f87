"""How long the runs of a sweep that are not done may still take, by the times of those that were seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean

from jobs.plan.architecture import architecture
from jobs.plan.graph import Job
from jobs.plan.predict import START_S
from jobs.plan.shards import images_worked
from vitssl.config import ConfigError, Run
from vitssl.files import read_events, read_json
from vitssl.run_folder import DONE


@dataclass(frozen=True)
class Work:
    """What a run has to do."""

    images: float  # to train on, and to evaluate as the part of one that they cost
    architecture: str  # each image costs runs of one architecture as much
    starts: int = 1  # of processes

    def part(self, share: float) -> Work:
        return replace(self, images=share * self.images)

    @property
    def begun(self) -> Work:
        """The same, of a run whose process is there."""
        return replace(self, starts=0)


def work(run: Run) -> Work:
    return Work(images_worked(run), architecture(run))


def remaining(job: Job) -> Work:
    """What a run that has begun has still to do, or one that has not."""
    try:
        events = read_events(job.folder / "metrics.jsonl")
    except ConfigError:  # damaged, which the run itself refuses
        return work(job.run)
    steps = next((event["steps"] for event in reversed(events) if event["event"] == "start"), None)
    return work(job.run).part(1 - events[-1]["step"] / steps if steps else 1.0)


def seen_of(jobs: Iterable[Job]) -> Seen:
    """The times of the runs that are done."""
    seen = Seen()
    for job in jobs:
        seen.add(work(job.run), time_of(job.folder))
    return seen


def time_of(folder: Path) -> float:
    """How long a run that is done has trained, with its evaluations; 0 where it is not."""
    return read_json(folder / DONE).get("time_s") or 0.0


@dataclass
class Seen:
    """The times of runs that were seen: of their starts, and of what came then."""

    _images: dict[str, float] = field(default_factory=dict)  # by architecture
    _time_s: dict[str, float] = field(default_factory=dict)
    _starts_s: list[float] = field(default_factory=list)

    def add(self, done: Work, time_s: float) -> None:
        """Count a run, or the part of one that is done, without its start."""
        if done.images > 0 and time_s > 0:
            self._images[done.architecture] = self._images.get(done.architecture, 0.0) + done.images
            self._time_s[done.architecture] = self._time_s.get(done.architecture, 0.0) + time_s

    def add_start(self, time_s: float) -> None:
        """Count what a process took besides, from its start to its end."""
        self._starts_s.append(time_s)

    @property
    def start_s(self) -> float:
        """How long a run takes besides training."""
        return mean(self._starts_s) if self._starts_s else START_S

    def time_s(self, todo: Work) -> float | None:
        """How long a run may take; None where no run of its architecture was seen."""
        if todo.architecture not in self._images:
            return None
        return todo.starts * self.start_s + todo.images * self._time_s[todo.architecture] / self._images[todo.architecture]

    def total_s(self, todo: Iterable[Work]) -> float | None:
        """How long runs may take one after the other, those of other architectures at the mean pace; None where no run was seen."""
        if not self._images:
            return None
        pace = sum(self._time_s.values()) / sum(self._images.values())
        known = ((self.time_s(one), one.starts * self.start_s + one.images * pace) for one in todo)
        return sum(mean_s if time_s is None else time_s for time_s, mean_s in known)
