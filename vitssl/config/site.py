"""Where jobs run: the fields of a site profile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional


@dataclass
class Site:
    """Where jobs run: the fields of a site profile (jobs/sites/*.yaml)."""

    name: str = "local"  # of the place, in predictions and reports
    partition: Optional[str] = None  # SLURM's, that jobs go to
    account: Optional[str] = None  # SLURM's, that jobs are charged to
    qos: Optional[str] = None  # SLURM's quality of service
    constraint: Optional[str] = None  # SLURM's, features that nodes must have
    gpu: Optional[str] = None  # name of the board, for the predictions, the report, and a note where it has no bf16
    gpu_type: Optional[str] = None  # SLURM's name of it, where a partition has several: --gpus-per-node=TYPE:N
    gpu_power_w: float = 230.0  # board power, for the estimate "GPU-hours x board power"
    gpu_tflops: Optional[float] = None  # peak in the Run's precision, for predictions; null measures or assumes
    price_per_gpu_hour: float = 0.0  # for predictions and reports; 0: no money in them
    currency: str = "USD"  # of the price
    country: str = "USA"  # ISO 3166-1 alpha-3, for the grid's carbon intensity
    intensity_kg_per_kwh: Optional[float] = None  # kg CO2e per kWh, in place of the country's
    intensity_csv: Optional[str] = None  # file of times and g CO2e per kWh, a forecast or a typical week, in place of both (jobs/README.md)
    estimate_kg_per_kwh: float = 0.432  # kg CO2e per kWh of the estimate, as the SSAT paper's Table 3
    image: Optional[str] = None  # container (.sif) that training runs in
    container: str = "apptainer exec --nv"  # how to enter it
    binds: list[str] = field(default_factory=list)  # further folders that the container sees, as its --bind has them
    setup: list[str] = field(default_factory=list)  # shell lines before the job
    # variables of the job's environment; no secrets: batch scripts and the folders of runs hold the values. A line of setup can read these
    # from a file of yours, as in `source ~/.secrets`
    env: dict[str, str] = field(default_factory=dict)
    report: dict[str, str] = field(default_factory=dict)  # options of sbatch for the report's job, such as {partition: cpu, time: 5}
    after: list[str] = field(default_factory=list)  # SLURM's ids of jobs that must have ended before a sweep's begin
    # runs at once: on SLURM of an array (the runs of a stage of an arm), elsewhere of the sweep; null: as many as SLURM lets run, elsewhere
    # four on CPUs, or as many as the GPUs are enough for
    max_parallel: Optional[int] = None
    # the next ones are of the runs' jobs, and not of the report's
    mail_type: Optional[str] = None  # when SLURM mails: FAIL, END, TIME_LIMIT, ... (several with commas; ARRAY_TASKS: of every run)
    mail_user: Optional[str] = None  # whom; null: who submits
    nice: Optional[int] = None  # how far they stand back in the queue behind your other jobs
    exclude: Optional[str] = None  # nodes that they must not run on, such as node[1-3],node7
    reservation: Optional[str] = None  # that they run in
    additional: dict[str, str] = field(default_factory=dict)  # further options of sbatch, for the runs: {exclusive: true}

    def estimate_kg(self, gpu_hours: float) -> float:
        """CO2e (kg) by the estimate of the SSAT paper's Table 3 (Lacoste et al. 2019): GPU-hours x board power x grid intensity."""
        return gpu_hours * self.gpu_power_w / 1000 * self.estimate_kg_per_kwh
