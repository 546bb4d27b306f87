"""A submission."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Any

from vitssl.config import Site
from vitssl.version import commit


@dataclasses.dataclass
class Launch:
    """What all jobs of one submission have in common."""

    sweep: Path
    executor: str  # slurm, local
    site: Site
    source: Path
    use_current_source: bool = False
    start: dict[str, float] | None = None  # when and why its runs begin later than at once (jobs.slurm.greenest.Start)
    commit: tuple[str | None, bool] = dataclasses.field(default_factory=commit)
    command: str = dataclasses.field(default_factory=lambda: shlex.join(sys.orig_argv))

    def about(self) -> dict[str, Any]:
        sha, dirty = self.commit
        # without what is not set: a run that has begun goes on with its own source, which may not know the newest fields
        site = {name: value for name, value in dataclasses.asdict(self.site).items() if value not in (None, [], {})}
        start = {"start": self.start} if self.start else {}
        return {"site": site, "commit": sha, "dirty": dirty, "command": self.command, **start}

    @property
    def of_report(self) -> dict[str, Any]:
        """As in `job.json`, for the sweep's report."""
        return self.about() | {"source": str(self.source)}
