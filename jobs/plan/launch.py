"""A submission of a sweep: where its runs go, how they are started, and from which source."""

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
    """The facts that all jobs of a submission share."""

    sweep: Path
    executor: str  # slurm or local
    site: Site
    source: Path
    use_current_source: bool = False
    start: dict[str, float] | None = None  # when runs start and why not at once (jobs.slurm.greenest.Start)
    commit: tuple[str | None, bool] = dataclasses.field(default_factory=commit)
    command: str = dataclasses.field(default_factory=lambda: shlex.join(sys.orig_argv))

    def about(self) -> dict[str, Any]:
        """Return the facts that job.json and sweep.json record: site, commit, command line and delayed start."""
        sha, dirty = self.commit
        # unset fields are left out: a run that has begun continues with its own source, which may not know the newest fields
        site = {name: value for name, value in dataclasses.asdict(self.site).items() if value not in (None, [], {})}
        start = {"start": self.start} if self.start else {}
        return {"site": site, "commit": sha, "dirty": dirty, "command": self.command, **start}

    @property
    def report_job(self) -> dict[str, Any]:
        """As in `job.json`, for the sweep's report."""
        return self.about() | {"source": str(self.source)}
