"""The launcher, which runs a sweep file on this machine or on SLURM. Users type `submit`, `status`, `cancel` and `retry`.

plan/       from a sweep file and a command line to Runs, the graph of their jobs, and the predicted costs
inputs/     the inputs of runs: shards, imported weights, runs of other sweeps to reuse
slurm/      SLURM's tables and queue, batch scripts and submission; its jobs execute `node` and `batch.sh`
local       the executor of this machine
display/    the printed tables of plans and states
"""
