# How a run's batch script ends. It is sourced with $run, the run's folder, and $job, the id of the job in SLURM.
#
# A job that was stopped or killed is requeued, and continues from the state in the run's folder. The number of its restarts is kept in the
# job's comment (`squeue -o %k`) instead of the folder, which may be read-only, full, or out of inodes.

# the `setup` lines of a site may have set these options, which would end the script at the first command that fails
set +eu +o pipefail

# a user's own settings of squeue, such as a filter, could hide the job
unset ${!SQUEUE_@}

most=3  # restarts without progress, one after the other, before the job is held

# Print what changes when a run makes progress. Both files are replaced as a whole, so that their inodes change.
saved() { stat -c '%n %i %y' "$run/last.pt" "$run/evals.json" 2>/dev/null; }
begun_with=$(saved)

# Seconds that the job step may take to end after its run is done. If its slurmstepd was killed, the step never ends: srun would wait until
# the time limit, and SLURM would then cancel the jobs that depend on this one.
ending=60
trained=
[ -e "$run/done.json" ] && trained=1  # only evaluations are left to do
is_done() { [ -z "$trained" ] && [ -e "$run/done.json" ]; }
leave() {
  until is_done; do sleep 5; done
  sleep "$ending"
  kill -9 "$1"
}

# A signal to the batch script is meant for the run: pass it on to its tasks, which save and exit. While srun runs in the foreground the
# shell would not handle signals, so it runs in the background and the shell waits.
ask() { scancel --signal=USR2 "$job"; }
trap ask USR2 TERM
srun() {
  command srun "$@" &
  step=$!
  leave "$step" & watch=$!
  wait "$step"; code=$?
  while [ "$code" -gt 128 ] && kill -0 "$step" 2>/dev/null; do wait "$step"; code=$?; done
  kill "$watch"
  is_done || return "$code"
}

# Whether the run failed by itself, and would fail again. 100 is FAILED in node.py: NFS may not show this node the error's file yet.
failed() { [ "$code" -eq 100 ] || [ -e "$run/error.json" ]; }
end() {
  code=$?
  trap '' USR2 TERM
  # if the job is no longer RUNNING, SLURM is already requeueing or cancelling it
  if [ "$code" -ne 0 ] && ! failed && entry=$(insist squeue -h -j "$job" -o "%T %k") && [ "${entry%% *}" = RUNNING ]; then
    restart
  fi
  exit "$code"
}
trap end EXIT

# seconds between attempts to reach a controller that does not answer, because it restarts or is too busy: ten minutes in all
pauses="1 2 4 8 15 30 30 30 60 60 60 60 60 60 60 60"
insist() {
  for pause in $pauses; do
    "$@" && return 0  # in a trap, `return` without a number returns the exit code from before the trap
    sleep "$pause"
  done
  "$@"
}

restart() {
  before=$(echo "${entry#* }" | sed -n 's/^restart \([0-9]*\) of .*/\1/p')
  if [ "$(saved)" != "$begun_with" ]; then
    [ -z "$before" ] || comment "restarted after progress"
    again requeue
  elif [ "${before:-0}" -lt "$most" ] && counted "restart $((${before:-0} + 1)) of $most without progress (exit code $code)"; then
    again requeue
  else
    comment "held: $most restarts without progress (exit code $code), see $run/log; once that is repaired, type the command that submitted it again"
    again requeuehold
  fi
}

comment() { # few attempts: SLURM has just answered, and a site that refuses comments always does
  echo "$1"
  pauses="1 2 4 8 15" insist scontrol update jobid="$job" comment="$1"
}
# If SLURM accepts no comment, its own count limits the restarts; it includes preemptions and restarts after progress.
counted() { comment "$1" || [ "${SLURM_RESTART_COUNT:-0}" -lt "$most" ]; }

# Requeue or hold the job. SLURM may have done so although its answer got lost, and never does for a job submitted with --no-requeue.
again() { insist asked_to "$1"; }
asked_to() {
  said=$(scontrol "$1" "$job" 2>&1) && return 0
  echo "$said"
  case $said in *disabled*) return 0 ;; esac
  state=$(squeue -h -j "$job" -o %T) && [ "$state" != RUNNING ]
}
