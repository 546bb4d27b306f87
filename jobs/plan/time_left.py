"""How long the unfinished runs of a sweep may still take, by the measured times of runs that were seen.

    time of a run = starts * start time + images * pace of its architecture

- images: those still to train on, plus those still to evaluate as the part of a trained image that they cost (`equivalent_images`).
- pace: the seconds of all runs seen of that architecture / their images, without their starts. For an architecture that was not
  seen, it is the seconds / the images of all runs seen.
- starts: 1, or 0 for a run whose process is there. The start time is the mean of those seen, or `START_S`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean

from jobs.plan.architecture import architecture
from jobs.plan.graph import Job
from jobs.plan.predict import START_S
from jobs.plan.shards import equivalent_images, expected_index
from vitssl.config import ConfigError, Run
from vitssl.files import read_events, read_json
from vitssl.run_folder import DONE, EVENTS


@dataclass(frozen=True)
class Work:
    """The work of a run, or of a part of one."""

    images: float  # in images trained on, evaluated ones counting as the part of one that they cost
    architecture: str  # an image takes runs of one architecture equally long
    starts: int = 1  # how many processes have to start

    def part(self, share: float) -> Work:
        """Return a ``share`` of this work."""
        return replace(self, images=share * self.images)

    @property
    def without_start(self) -> Work:
        """The same work for a run whose process has started."""
        return replace(self, starts=0)


def work(run: Run) -> Work:
    """Return all the work of a Run."""
    return Work(equivalent_images(run), architecture(run))


def remaining(job: Job) -> Work:
    """Return the work that a run still has to do, whether it has begun or not."""
    try:
        events = read_events(job.folder / EVENTS)
    except ConfigError:  # a damaged file, which the run itself will refuse
        return work(job.run)
    steps = next((event["steps"] for event in reversed(events) if event["event"] == "start"), None)
    return work(job.run).part(1 - events[-1]["step"] / steps if steps else 1.0)


def measured_times(jobs: Iterable[Job]) -> MeasuredTimes:
    """Collect the times of the ``jobs`` that are done. One whose shards are gone since, as in a copied sweep, is left out."""
    seen = MeasuredTimes()
    for job in jobs:
        if expected_index(job.run.data) is not None:
            seen.add(work(job.run), time_of(job.folder))
    return seen


def time_of(folder: Path) -> float:
    """Return how long a run that is done has trained, with its evaluations; 0 if it is not done."""
    return read_json(folder / DONE).get("time_s") or 0.0


@dataclass
class MeasuredTimes:
    """The times of the runs that were seen: of their starts, and per architecture of the work that followed."""

    _images: dict[str, float] = field(default_factory=dict)  # by architecture
    _time_s: dict[str, float] = field(default_factory=dict)
    _starts_s: list[float] = field(default_factory=list)

    def add(self, done: Work, time_s: float) -> None:
        """Count the time of a run, or of the part of one that is done, without its start."""
        if done.images > 0 and time_s > 0:
            self._images[done.architecture] = self._images.get(done.architecture, 0.0) + done.images
            self._time_s[done.architecture] = self._time_s.get(done.architecture, 0.0) + time_s

    def add_start(self, time_s: float) -> None:
        """Count the time that a process took besides training and evaluating."""
        self._starts_s.append(time_s)

    @property
    def start_s(self) -> float:
        """The mean time that a process takes besides training and evaluating, or `START_S` if none was seen."""
        return mean(self._starts_s) if self._starts_s else START_S

    def time_s(self, todo: Work) -> float | None:
        """Return how long a run may take, or None if no run of its architecture was seen."""
        if todo.architecture not in self._images:
            return None
        return todo.starts * self.start_s + todo.images * self._time_s[todo.architecture] / self._images[todo.architecture]

    def total_s(self, todo: Iterable[Work]) -> float | None:
        """Return how long runs may take one after the other, or None if no run was seen at all."""
        if not self._images:
            return None
        pace = sum(self._time_s.values()) / sum(self._images.values())
        times = ((self.time_s(run_work), run_work.starts * self.start_s + run_work.images * pace) for run_work in todo)
        return sum(time_at_mean_pace_s if time_s is None else time_s for time_s, time_at_mean_pace_s in times)
