"""How much SLURM takes at once, by its own tables: of a partition, of a user, of the cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from jobs import cluster
from vitssl.config import ConfigError, Site, unknown

SPARED = 0.1  # of the jobs that SLURM holds: other people submit too


class Nodes(NamedTuple):
    """What one node has, of nodes that have the same of everything."""

    gpus: dict[str, int]  # by SLURM's name of the type, which may be empty
    cpus: int
    mem_gb: float


@dataclass
class Partition:
    """A partition's limits; None: it has no such limit."""

    name: str
    state: str
    minutes: int | None
    nodes: int  # of one job
    kinds: list[Nodes] = field(default_factory=list)


class Limit(NamedTuple):
    """How many jobs SLURM takes at once, of which these are there."""

    name: str
    most: int
    used: int
    spared: int = 0  # that are left to other people

    @property
    def room(self) -> int:
        return max(0, self.most - self.spared - self.used)

    def __str__(self) -> str:
        spared = f", of which {self.spared} are left to others" if self.spared else ""
        return f"{self.name} is {self.most}{spared}, and {self.used} jobs are there"


class OfUser(NamedTuple):
    """What accounting allows this user."""

    whose: str = ""
    minutes: int | None = None
    limits: tuple[Limit, ...] = ()


def report_min(site: Site) -> int | None:
    """The longest that the report's job may take; None: no limit."""
    return cluster.time_limit_min(site.report.get("partition", site.partition))


def asked(site: Site, name: str) -> str | None:
    """What the runs ask sbatch for: `additional` wins over a field of its own."""
    return site.additional.get(name, getattr(site, name))


# ---------------------------------------------------------------------------------------------------------- partitions


def partitions(site: Site) -> list[Partition]:
    """Those that a site's jobs go to: any of several may take one.

    Raises:
        ConfigError: there is none of a name, or no default.
    """
    tables = {table["PartitionName"]: table for table in _tables(cluster.output("scontrol", "-o", "show", "partition"))}
    default = next((name for name, table in tables.items() if table["Default"] == "YES"), None)
    named = asked(site, "partition") or default
    if named is None:
        raise ConfigError(f"this cluster has no default partition; name one of {', '.join(tables)}", "site.partition")
    for name in named.split(","):
        if name not in tables:
            raise unknown(name, tables, "site.partition")
    return [_partition(tables[name]) for name in named.split(",")]


def _tables(text: str) -> list[dict[str, str]]:
    """What `scontrol -o show` prints, a line for each."""
    return [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in text.splitlines()]


def _partition(table: dict[str, str]) -> Partition:
    name, total = table["PartitionName"], int(table["TotalNodes"])
    most = min(total, int(table["MaxNodes"])) if table["MaxNodes"].isdigit() else total
    lines = cluster.output("sinfo", "-h", "-e", "-p", name, "-o", "%G|%c|%m").splitlines()
    return Partition(name, table["State"], cluster.minutes(table["MaxTime"]), most, [_nodes(line) for line in lines])


def _nodes(line: str) -> Nodes:
    """From `sinfo -e`, a line for each kind of nodes: gres, CPUs and MB, such as ``gpu:a100:4(S:0-1),gpu:v100:2|64|512000``."""
    gres, cpus, memory = line.split("|")
    gpus: dict[str, int] = {}
    for kind, count in re.findall(r"(?:^|,)gpu:(?:([^:,(]+):)?(\d+)(?=[,(]|$)", gres):
        gpus[kind] = gpus.get(kind, 0) + int(count)
    return Nodes(gpus, int(cpus), int(memory) / 1024)


# ------------------------------------------------------------------------------------------------------- submit limits


def room(site: Site) -> Limit:
    """The limit that leaves the fewest jobs to submit."""
    most = int(_config()["MaxJobCount"])
    everybody = Limit("MaxJobCount", most, _count("-t", "all"), round(most * SPARED))
    return min([everybody, *of_user(site).limits], key=lambda limit: limit.room)


def _config() -> dict[str, str]:
    return dict(re.findall(r"(?m)^(\w+)\s*= (.*\S)", cluster.output("scontrol", "show", "config")))


def max_array_size() -> int:
    """How many elements this cluster's arrays may have: the limit is on the index, which starts at 0."""
    return int(_config().get("MaxArraySize", 1000))


def _count(*words: str) -> int:
    return len(cluster.output("squeue", "-h", "-r", "-o", "%i", *words).splitlines())


def of_user(site: Site) -> OfUser:
    """From sacctmgr, where this cluster's accounting holds limits; what it does not tell, sbatch refuses.

    Raises:
        Silent: it does not answer.
    """
    if not {"limits", "safe"} & set(_config()["AccountingStorageEnforce"].split(",")):
        return OfUser()
    user = cluster.me()
    try:
        account = asked(site, "account") or next(iter(_accounting("user", user, "DefaultAccount")), ("",))[0]
        if not account:
            return OfUser()
        found = _accounting("assoc", f"user={user}", f"account={account}", "MaxSubmit,MaxWall,DefaultQOS")
        own, wall, default = found[0] if found else ("", "", "")
        qos = asked(site, "qos") or default or "normal"
        each, all_of, wall_of_qos = (_accounting("qos", qos, "MaxSubmitPU,GrpSubmit,MaxWall") or [("", "", "")])[0]
    except cluster.Silent:
        raise
    except ConfigError:
        return OfUser()
    found_limits = (
        *_limit(f"MaxSubmitJobs of {user} in account {account}", own, "--me", "-A", account),
        *_limit(f"MaxSubmitJobsPerUser of QOS {qos}", each, "--me", "-q", qos),
        *_limit(f"GrpSubmitJobs of QOS {qos}", all_of, "-q", qos),
    )
    walls = {f"QOS {qos}": cluster.minutes(wall_of_qos), f"account {account}": cluster.minutes(wall)}
    whose, minutes = min(walls.items(), key=lambda wall: float("inf") if wall[1] is None else wall[1])
    return OfUser(whose, minutes, found_limits)


def _accounting(kind: str, *words: str) -> list[tuple[str, ...]]:
    """What `sacctmgr show` prints of the columns that the last word names."""
    *which, columns = words
    lines = cluster.output("sacctmgr", "-n", "-P", "show", kind, *which, f"format={columns}").splitlines()
    return [tuple(line.split("|")) for line in lines]


def _limit(name: str, most: str, *used: str) -> list[Limit]:
    return [Limit(name, int(most), _count(*used))] if most.isdigit() else []
