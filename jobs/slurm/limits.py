"""The limits of partitions, of the user and of the whole cluster, as read from SLURM's own tables."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from jobs.slurm import cluster
from vitssl.config import ConfigError, Site, unknown_error

SPARED = 0.1  # share of SLURM's MaxJobCount that is left to other people


class NodeKind(NamedTuple):
    """The resources of each node in a group of identical nodes."""

    gpus: dict[str, int]  # {SLURM's name of the type, which may be empty: number}
    cpus: int
    mem_gb: float


@dataclass
class Partition:
    """The limits of a partition; None stands for no limit."""

    name: str
    state: str
    minutes: int | None
    nodes: int  # most of one job
    kinds: list[NodeKind] = field(default_factory=list)


class Limit(NamedTuple):
    """A limit on how many jobs SLURM takes at once, and how many of them are in use."""

    name: str
    most: int
    used: int
    spared: int = 0  # jobs of ``most`` that are left to other people

    @property
    def room(self) -> int:
        return max(0, self.most - self.spared - self.used)

    def __str__(self) -> str:
        spared = f"; {self.spared:,} are reserved for others" if self.spared else ""
        return f"{self.used:,} of {self.most:,} jobs in use ({self.name}){spared}"


class UserLimits(NamedTuple):
    """This user's limits in SLURM's accounting: the minutes of a job, whose limit that is (``owner``), and limits on the number of jobs."""

    owner: str = ""
    minutes: int | None = None
    limits: tuple[Limit, ...] = ()


def report_limit_min(site: Site) -> int | None:
    """Return the time limit of the report's job in minutes; None if it has no limit."""
    return cluster.time_limit_min(site.report.get("partition", site.partition))


def requested_option(site: Site, name: str) -> str | None:
    """Return the value of an sbatch option for the runs: `additional` wins over the site's field of the same name."""
    return site.additional.get(name, getattr(site, name))


# ---------------------------------------------------------------------------------------------------------- partitions


def partitions(site: Site) -> list[Partition]:
    """Return the partitions of a site's jobs; if there are several, SLURM starts a job in any of them.

    Raises:
        ConfigError: a named partition does not exist, or none is named and the cluster has no default.
    """
    return [_partition(table) for table in _partition_tables(site)]


def _partition_tables(site: Site) -> list[dict[str, str]]:
    """Return SLURM's tables of the partitions of a site's jobs."""
    tables = {table["PartitionName"]: table for table in _tables(cluster.output("scontrol", "-o", "show", "partition"))}
    default = next((name for name, table in tables.items() if table["Default"] == "YES"), None)
    named = requested_option(site, "partition") or default
    if named is None:
        raise ConfigError(f"this cluster has no default partition; name one of {', '.join(tables)}", "site.partition")
    for name in named.split(","):
        if name not in tables:
            raise unknown_error(name, tables, "site.partition")
    return [tables[name] for name in named.split(",")]


def _tables(text: str) -> list[dict[str, str]]:
    """Parse the output of `scontrol -o show` into a dict for each line."""
    return [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in text.splitlines()]


def _partition(table: dict[str, str]) -> Partition:
    name, total = table["PartitionName"], int(table["TotalNodes"])
    max_nodes = min(total, int(table["MaxNodes"])) if table["MaxNodes"].isdigit() else total
    lines = cluster.output("sinfo", "-h", "-e", "-p", name, "-o", "%G|%c|%m").splitlines()
    return Partition(name, table["State"], cluster.minutes(table["MaxTime"]), max_nodes, [_node_kind(line) for line in lines])


def _node_kind(line: str) -> NodeKind:
    """Parse a line of `sinfo -e`, one per kind of node: gres, CPUs and MB, such as ``gpu:a100:4(S:0-1),gpu:v100:2|64|512000``."""
    gres, cpus, memory = line.split("|")
    gpus: dict[str, int] = {}
    for kind, count in re.findall(r"(?:^|,)gpu:(?:([^:,(]+):)?(\d+)(?=[,(]|$)", gres):
        gpus[kind] = gpus.get(kind, 0) + int(count)
    return NodeKind(gpus, int(cpus), int(memory) / 1024)


# ------------------------------------------------------------------------------------------------------- submit limits


def room(site: Site, user: UserLimits | None = None) -> Limit:
    """Return the limit that leaves room for the fewest jobs. Ask SLURM for the user's limits unless ``user`` gives them."""
    max_jobs = int(_config()["MaxJobCount"])
    of_cluster = Limit("MaxJobCount", max_jobs, _count("-t", "all"), round(max_jobs * SPARED))
    return min([of_cluster, *(user or user_limits(site)).limits], key=lambda limit: limit.room)


def _config() -> dict[str, str]:
    return dict(re.findall(r"(?m)^(\w+)\s*= (.*\S)", cluster.output("scontrol", "show", "config")))


def max_array_size() -> int:
    """Return how many elements an array may have on this cluster: MaxArraySize bounds the index, which starts at 0."""
    return int(_config().get("MaxArraySize", 1000))


def _count(*words: str) -> int:
    return len(cluster.output("squeue", "-h", "-r", "-o", "%i", *words).splitlines())


class Qos(NamedTuple):
    """The limits of a QOS as sacctmgr prints them; empty if not set."""

    name: str
    counted: tuple[str, ...]  # options of squeue that select its jobs
    of_user: str = ""  # most jobs of a user at once
    of_all: str = ""  # most jobs of all users at once
    wall: str = ""
    flags: str = ""


def user_limits(site: Site) -> UserLimits:
    """Return this user's limits by sacctmgr, if the cluster enforces limits. Others show only when sbatch refuses a job.

    Of several limits of a kind, the first that is set counts: of the partition's QOS, of the job's QOS, of the user in the account.

    Raises:
        NoAnswer: SLURM does not answer.
    """
    if not {"limits", "safe"} & set(_config()["AccountingStorageEnforce"].split(",")):
        return UserLimits()
    user = cluster.me()
    try:
        account = requested_option(site, "account") or next(iter(_accounting("user", user, "DefaultAccount")), ("",))[0]
        if not account:
            return UserLimits()
        tables = _partition_tables(site)
        max_submit, wall, default_qos = _in_account(user, account, {table["PartitionName"] for table in tables})
        by_rank = _by_rank(requested_option(site, "qos") or default_qos or "normal", tables)
    except cluster.NoAnswer:
        raise
    except ConfigError:
        return UserLimits()
    per_user = [(f"MaxSubmitJobsPerUser of QOS {qos.name}", qos.of_user, ("--me", *qos.counted)) for qos in by_rank]
    per_user.append((f"MaxSubmitJobs of {user} in account {account}", max_submit, ("--me", "-A", account)))
    per_qos = [(f"GrpSubmitJobs of QOS {qos.name}", qos.of_all, qos.counted) for qos in by_rank]
    walls = [*((f"QOS {qos.name}", cluster.minutes(qos.wall)) for qos in by_rank), (f"account {account}", cluster.minutes(wall))]
    owner, minutes = next((wall for wall in walls if wall[1] is not None), ("", None))
    return UserLimits(owner, minutes, (*_first(per_user), *_first(per_qos)))


def _in_account(user: str, account: str, partitions: set[str]) -> tuple[str, ...]:
    """Return (MaxSubmit, MaxWall, DefaultQOS) of a user in an account; an entry for one of ``partitions`` wins over the general one."""
    columns = "Partition,MaxSubmit,MaxWall,DefaultQOS"
    rows = _accounting("assoc", f"user={user}", f"account={account}", f"cluster={_config()['ClusterName']}", columns)
    matching = [row for row in rows if row[0] in partitions] or [row for row in rows if not row[0]] or [("", "", "", "")]
    return matching[0][1:]


def _by_rank(qos: str, where: list[dict[str, str]]) -> list[Qos]:
    """Return the QOS of the partitions, if all have the same, then the job's QOS ``qos``; reversed if that has the flag OverPartQOS."""
    of_job = _qos(qos, "-q", qos)
    names = {table.get("QoS", "N/A") for table in where}
    if len(names) > 1 or names <= {"N/A", ""}:
        return [of_job]
    of_partition = _qos(*names, "-p", ",".join(table["PartitionName"] for table in where))
    return [of_job, of_partition] if "OverPartQOS" in of_job.flags else [of_partition, of_job]


def _qos(name: str, *counted: str) -> Qos:
    return Qos(name, counted, *next(iter(_accounting("qos", name, "MaxSubmitPU,GrpSubmit,MaxWall,Flags")), ()))


def _accounting(kind: str, *words: str) -> list[tuple[str, ...]]:
    """Return the rows that `sacctmgr show` prints; the last of ``words`` names the columns."""
    *selection, columns = words
    lines = cluster.output("sacctmgr", "-n", "-P", "show", kind, *selection, f"format={columns}").splitlines()
    return [tuple(line.split("|")) for line in lines]


def _first(limits: list[tuple[str, str, tuple[str, ...]]]) -> list[Limit]:
    """Return the first of ``limits`` (name, most, options of squeue that select its jobs) that is set, in a list; empty if none is."""
    return [Limit(name, int(most), _count(*used)) for name, most, used in limits if most.isdigit()][:1]
