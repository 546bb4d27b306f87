"""How much SLURM takes at once, by its own tables: of a partition, of a user, of the cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from jobs.slurm import cluster
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
        spared = f"; {self.spared:,} are reserved for others" if self.spared else ""
        return f"{self.used:,} of {self.most:,} jobs in use ({self.name}){spared}"


class OfUser(NamedTuple):
    """What accounting allows this user."""

    whose: str = ""
    minutes: int | None = None
    limits: tuple[Limit, ...] = ()


def report_limit_min(site: Site) -> int | None:
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
    return [_partition(table) for table in _named(site)]


def _named(site: Site) -> list[dict[str, str]]:
    """SLURM's tables of them."""
    tables = {table["PartitionName"]: table for table in _tables(cluster.output("scontrol", "-o", "show", "partition"))}
    default = next((name for name, table in tables.items() if table["Default"] == "YES"), None)
    named = asked(site, "partition") or default
    if named is None:
        raise ConfigError(f"this cluster has no default partition; name one of {', '.join(tables)}", "site.partition")
    for name in named.split(","):
        if name not in tables:
            raise unknown(name, tables, "site.partition")
    return [tables[name] for name in named.split(",")]


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


def room(site: Site, user: OfUser | None = None) -> Limit:
    """The limit that leaves the fewest jobs to submit; SLURM is asked for the user's unless they are given."""
    most = int(_config()["MaxJobCount"])
    everybody = Limit("MaxJobCount", most, _count("-t", "all"), round(most * SPARED))
    return min([everybody, *(user or of_user(site)).limits], key=lambda limit: limit.room)


def _config() -> dict[str, str]:
    return dict(re.findall(r"(?m)^(\w+)\s*= (.*\S)", cluster.output("scontrol", "show", "config")))


def max_array_size() -> int:
    """How many elements this cluster's arrays may have: the limit is on the index, which starts at 0."""
    return int(_config().get("MaxArraySize", 1000))


def _count(*words: str) -> int:
    return len(cluster.output("squeue", "-h", "-r", "-o", "%i", *words).splitlines())


class Qos(NamedTuple):
    """What a QOS allows, in sacctmgr's words; empty: nothing is said."""

    name: str
    counted: tuple[str, ...]  # how squeue is asked for its jobs
    of_user: str = ""  # jobs at once
    of_all: str = ""
    wall: str = ""
    flags: str = ""


def of_user(site: Site) -> OfUser:
    """From sacctmgr, where this cluster's accounting holds limits; what it does not tell, sbatch refuses.

    Of several limits of a kind the first counts that is set: of the partition's QOS, of the job's, of the user in the account.

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
        where = _named(site)
        own, wall, default = _in_account(user, account, {table["PartitionName"] for table in where})
        by_rank = _by_rank(asked(site, "qos") or default or "normal", where)
    except cluster.Silent:
        raise
    except ConfigError:
        return OfUser()
    each = [(f"MaxSubmitJobsPerUser of QOS {qos.name}", qos.of_user, ("--me", *qos.counted)) for qos in by_rank]
    each.append((f"MaxSubmitJobs of {user} in account {account}", own, ("--me", "-A", account)))
    of_all = [(f"GrpSubmitJobs of QOS {qos.name}", qos.of_all, qos.counted) for qos in by_rank]
    walls = [*((f"QOS {qos.name}", cluster.minutes(qos.wall)) for qos in by_rank), (f"account {account}", cluster.minutes(wall))]
    whose, minutes = next((wall for wall in walls if wall[1] is not None), ("", None))
    return OfUser(whose, minutes, (*_first(each), *_first(of_all)))


def _in_account(user: str, account: str, partitions: set[str]) -> tuple[str, ...]:
    """What a user may submit, for how long, and the QOS by default; for a partition there may be more to say than for all."""
    columns = "Partition,MaxSubmit,MaxWall,DefaultQOS"
    rows = _accounting("assoc", f"user={user}", f"account={account}", f"cluster={_config()['ClusterName']}", columns)
    ours = [row for row in rows if row[0] in partitions] or [row for row in rows if not row[0]] or [("", "", "", "")]
    return ours[0][1:]


def _by_rank(qos: str, where: list[dict[str, str]]) -> list[Qos]:
    """The QOS of the partitions, if all have the same, and that of the job; the other way round where a flag of the job's says so."""
    of_job = _qos(qos, "-q", qos)
    names = {table.get("QoS", "N/A") for table in where}
    if len(names) > 1 or names <= {"N/A", ""}:
        return [of_job]
    of_partition = _qos(*names, "-p", ",".join(table["PartitionName"] for table in where))
    return [of_job, of_partition] if "OverPartQOS" in of_job.flags else [of_partition, of_job]


def _qos(name: str, *counted: str) -> Qos:
    return Qos(name, counted, *next(iter(_accounting("qos", name, "MaxSubmitPU,GrpSubmit,MaxWall,Flags")), ()))


def _accounting(kind: str, *words: str) -> list[tuple[str, ...]]:
    """What `sacctmgr show` prints of the columns that the last word names."""
    *which, columns = words
    lines = cluster.output("sacctmgr", "-n", "-P", "show", kind, *which, f"format={columns}").splitlines()
    return [tuple(line.split("|")) for line in lines]


def _first(limits: list[tuple[str, str, tuple[str, ...]]]) -> list[Limit]:
    """The first that is set, of (its name, how many, how squeue is asked for those that are there)."""
    return [Limit(name, int(most), _count(*used)) for name, most, used in limits if most.isdigit()][:1]
