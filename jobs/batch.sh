# How the batch script of a run ends: sourced with $run, the run's folder, and $job, SLURM's id of it.
#
# A job that was stopped or killed goes back into the queue, and what it then finds in its folder it goes on from. What it remembers of
# its restarts is in its comment (`squeue -o %k`), not in the folder, which may be read-only, full, or out of inodes.

# a site's `setup` may have set these, with which the script would end at the first answer of no
set +eu +o pipefail

# a person's own ways of looking at the queue would hide the job
unset ${!SQUEUE_@}

most=3  # restarts in a row without progress, before it is held

# what changes as a run gets on, in training and in evaluation; both are written under another name and moved into place
saved() { stat -c '%n %i %y' "$run/last.pt" "$run/evals.json" 2>/dev/null; }
begun_with=$(saved)

# seconds for a step to end once its run is done. Where its slurmstepd was killed it never does, srun would wait until the time limit, and
# SLURM would cancel what waits for this job
ending=60
trained=
[ -e "$run/done.json" ] && trained=1  # what is left to do is to evaluate it
is_done() { [ -z "$trained" ] && [ -e "$run/done.json" ]; }
leave() {
  until is_done; do sleep 5; done
  sleep "$ending"
  kill -9 "$1"
}

# whoever signals the batch script means the run: its tasks are asked, save and leave. A shell hears of signals only while it waits
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

# one that failed by itself would fail again; 100 is FAILED of node.py, which may know of an error that NFS does not show here yet
failed() { [ "$code" -eq 100 ] || [ -e "$run/error.json" ]; }
end() {
  code=$?
  trap '' USR2 TERM
  # one that is no longer RUNNING, SLURM is requeueing or cancelling already
  if [ "$code" -ne 0 ] && ! failed && entry=$(insist squeue -h -j "$job" -o "%T %k") && [ "${entry%% *}" = RUNNING ]; then
    restart
  fi
  exit "$code"
}
trap end EXIT

# seconds between questions to a controller that does not answer, as it is restarting or too busy: ten minutes in all
pauses="1 2 4 8 15 30 30 30 60 60 60 60 60 60 60 60"
insist() {
  for pause in $pauses; do
    "$@" && return 0  # in a trap, a return without a number gives what was before the trap
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

comment() { # SLURM has answered just now: where it refuses one, it does so always
  echo "$1"
  pauses="1 2 4 8 15" insist scontrol update jobid="$job" comment="$1"
}
# where SLURM takes no comment, its own count of restarts bounds them, those after progress and preemptions included
counted() { comment "$1" || [ "${SLURM_RESTART_COUNT:-0}" -lt "$most" ]; }

# SLURM may have done it although no answer came; and it never does where the job was submitted with --no-requeue
again() { insist asked_to "$1"; }
asked_to() {
  said=$(scontrol "$1" "$job" 2>&1) && return 0
  echo "$said"
  case $said in *disabled*) return 0 ;; esac
  state=$(squeue -h -j "$job" -o %T) && [ "$state" != RUNNING ]
}
