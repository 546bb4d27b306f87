"""From a sweep file to jobs. The scripts `submit`, `status`, `cancel` and `retry` are what people type.

plan/       a sweep file and a command line: their Runs, the graph of these, and what they will cost
inputs/     what they need: shards, weights from elsewhere, runs to take over
slurm/      SLURM's tables and queue, batch scripts, the launcher; `node` and `batch.sh` are what its jobs run
local       the launcher of this machine
display/    what is printed of plans and states
"""
