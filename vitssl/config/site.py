"""The fields of a site profile, which says where and how jobs run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional


@dataclass
class Site:
    """Where jobs run: the fields of a site profile (jobs/sites/*.yaml)."""

    name: str = "local"  # the site's name in predictions and reports
    partition: Optional[str] = None  # SLURM partition that jobs are submitted to
    account: Optional[str] = None  # SLURM account that jobs are charged to
    qos: Optional[str] = None  # SLURM quality of service
    constraint: Optional[str] = None  # SLURM constraint: features that nodes must have
    gpu: Optional[str] = None  # GPU model, for predictions, the report, and a note if it lacks bf16
    gpu_type: Optional[str] = None  # SLURM's name for it, if a partition has several types: --gpus-per-node=TYPE:N
    gpu_power_w: float = 230.0  # board power in watts, for the estimate "GPU-hours x board power"
    gpu_tflops: Optional[float] = None  # peak TFLOP/s in the Run's precision, for predictions; null: measured or assumed
    price_per_gpu_hour: float = 0.0  # for predictions and reports; 0: they show no money
    currency: str = "USD"  # currency of the price
    country: str = "USA"  # ISO 3166-1 alpha-3 code, for the grid's carbon intensity
    intensity_kg_per_kwh: Optional[float] = None  # kg CO2e per kWh, in place of the country's
    # CSV file of times and g CO2e per kWh, a forecast or a typical week, in place of country and intensity_kg_per_kwh (jobs/README.md)
    intensity_csv: Optional[str] = None
    estimate_kg_per_kwh: float = 0.432  # kg CO2e per kWh for the estimate, as in the SSAT paper's Table 3
    image: Optional[str] = None  # container (.sif) that training runs in
    container: str = "apptainer exec --nv"  # command that runs the image
    binds: list[str] = field(default_factory=list)  # further folders to mount in the container, as in its --bind option
    setup: list[str] = field(default_factory=list)  # shell lines to run before training
    # environment variables of the job; no secrets: batch scripts and the folders of runs hold the values. For secrets, a line of setup can
    # read a file of yours: `source ~/.secrets`
    env: dict[str, str] = field(default_factory=dict)
    report: dict[str, str] = field(default_factory=dict)  # sbatch options for the report job, such as {partition: cpu, time: 5}
    after: list[str] = field(default_factory=list)  # ids of SLURM jobs that must end before a sweep's jobs start
    # most runs at once: on SLURM per job array (one stage of one arm), elsewhere per sweep; null: on SLURM no limit, elsewhere four on
    # CPUs, or as many as the GPUs allow
    max_parallel: Optional[int] = None
    # these options apply to run jobs only, not to the report job

    # when SLURM sends mail about run jobs: FAIL, END, TIME_LIMIT, ... (comma-separated; ARRAY_TASKS: for every run)
    mail_type: Optional[str] = None
    mail_user: Optional[str] = None  # recipient of that mail; null: the user who submits
    nice: Optional[int] = None  # lowers the priority of run jobs by this much (sbatch --nice)
    exclude: Optional[str] = None  # nodes that run jobs avoid, such as node[1-3],node7
    reservation: Optional[str] = None  # SLURM reservation for run jobs
    additional: dict[str, str] = field(default_factory=dict)  # further sbatch options for run jobs, such as {exclusive: true}

    def estimate_kg(self, gpu_hours: float) -> float:
        """Return the CO2e in kg, estimated as in the SSAT paper's Table 3 (Lacoste et al. 2019).

        The estimate is GPU-hours x board power x grid intensity.
        """
        return gpu_hours * self.gpu_power_w / 1000 * self.estimate_kg_per_kwh
