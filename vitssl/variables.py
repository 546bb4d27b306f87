"""The environment variables that vitssl reads; training and the launcher, which may run apart, agree on their names here."""

from __future__ import annotations

CACHE_DIR = "VITSSL_CACHE_DIR"  # a user's: the folder of the cache of decoded images where `data.cache_dir` names none
REVISION = "VITSSL_REVISION"  # a container image's: the commit that it was built from
# the launcher's, for each run
STOP_FILE = "VITSSL_STOP_FILE"  # training saves and stops once this file is there
ENDS_AT = "VITSSL_ENDS_AT"  # when SLURM ends the job, in seconds since 1970
# JSON of what else the sweep has to do when this run starts, for the time left in the run's log:
# "position"      of this run in the sweep, such as [3/12]
# "side_by_side"  number of runs that are trained at the same time
# "seconds"       time that the other runs take, as far as their pace is known
# "times_this"    work of the runs whose pace is not known, as a multiple of the work of this run
# "longest"       time left, in seconds, of the longest run that is being trained beside this one
SWEEP = "VITSSL_SWEEP"
