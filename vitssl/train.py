"""The training loop, one for everything: ``python -m vitssl.train FOLDER``, alone or as a rank under torchrun.

Start order: the folder's last checkpoint, else ``init_from``, else scratch. Exit codes: 0 done (or done before),
2 a mistake of the user's, 75 stopped on request with everything saved, other: failure.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitssl import config, dist
from vitssl.checkpoints import tensor_files
from vitssl.config import ConfigError, Run
from vitssl.costs import cost
from vitssl.data.loading.batch import Batch
from vitssl.files import full_disk_error, read_json, write_json
from vitssl.run_folder import COST, DIVERGED, DONE, JOB, LAST, RUN, is_trained, median_speed, to_evaluate
from vitssl.training import attempt, evaluate, lines, optim, pictures
from vitssl.training.attempt import Diverged
from vitssl.training.log import Log, Meter, device_name
from vitssl.training.stopping import STOPPED, StopRequest
from vitssl.training.train_state import TrainState, forward_backward, save, set_numerics, start
from vitssl.words import listed, print_line

UNSAVED_S = 60.0  # most training that a kill during an evaluation may lose

# ---------------------------------------------------------------------------------------------------------------- step


def train_step(train_state: TrainState, ddp_model: nn.Module, micro_batches: Iterator[Batch]) -> dict[str, dict[str, Tensor]]:
    """Take one optimiser step over the accumulated slices and return the detached terms, averaged over the slices.

    If no image has a label, the terms of losses that need labels are left out: a loss of 0 would lower the mean over steps.
    """
    run, step, slices = train_state.run, train_state.progress.step, train_state.accumulate
    sums: dict[str, dict[str, Tensor]] = {"terms": {}, "weighted": {}}
    for i in range(slices):
        # masks, drop-path and the like are functions of (seed, step, part of the step, rank)
        words = np.random.SeedSequence([run.seed, step, i, dist.rank()]).generate_state(2)
        dist.seed(train_state.device, int(words[0]) << 31 ^ int(words[1]))
        last = i == slices - 1
        sync_context = ddp_model.no_sync() if isinstance(ddp_model, DistributedDataParallel) and not last else nullcontext()
        with sync_context:
            terms, weighted = forward_backward(train_state, batch := next(micro_batches), step)
        if not batch.labelled:  # which counts over all slices and ranks of the step
            terms = {name: value for name, value in terms.items() if not name.startswith(config.label_objectives(run))}
        for kind, values in (("terms", terms), ("weighted", weighted)):
            for name, value in values.items():
                sums[kind][name] = sums[kind].get(name, 0) + value / slices
    train_state.model.before_step(train_state.schedule.progress(step))
    train_state.scaler.unscale_(train_state.optimizer)
    norm = optim.clip_gradients(train_state.parameters, run.optim)
    norm = optim.without_overflow(norm, train_state.scaler)
    train_state.schedule.apply(train_state.optimizer, step)
    train_state.scaler.step(train_state.optimizer)
    train_state.scaler.update()
    train_state.optimizer.zero_grad(set_to_none=not isinstance(ddp_model, DistributedDataParallel))
    train_state.progress.step += 1
    train_state.model.after_step(train_state.schedule.progress(step))
    if train_state.ema is not None:
        train_state.ema.update()
    return {**sums, "loss": {"loss": torch.stack(list(sums["weighted"].values())).sum(), "grad_norm": norm}}


# ---------------------------------------------------------------------------------------------------------------- loop


def fit(train_state: TrainState, ddp_model: nn.Module, steps: Iterator[Iterator[Batch]], log: Log, stopping: StopRequest) -> bool:
    """Train on the slices of each step until done or asked to stop; return whether training is done.

    In both cases the state is saved, at most once per step, so that a new file means progress.

    Raises:
        Diverged: the loss is not finite; ``diverged.pt`` holds the state, ``last.pt`` the newest checkpoint before it, if any.
    """
    run, progress = train_state.run, train_state.progress
    train_state.model.train()
    meter, saved_at, started = Meter(), time.time(), time.time() - progress.time_s
    saved_step = progress.step
    if progress.to_evaluate:
        saved_step = -1  # the results of that evaluation are not in the checkpoint
        with meter.paused():
            evaluate.in_training(train_state, log, train_state.evals_due())
        if train_state.is_best:
            save(train_state)
            saved_step = progress.step
    for micro_batches in steps:
        train_state.saver.check_write()
        period_over = dist.is_main() and time.time() - saved_at > 60 * run.loop.checkpoint_minutes
        stop, checkpoint, diverged = dist.any_rank(bool(stopping), period_over, not meter.is_finite())
        if diverged:
            _give_up(train_state, meter, log)
        if stop or checkpoint:
            _settle(train_state, meter, log)
            if progress.step > saved_step:
                save(train_state)
            saved_at, saved_step = time.time(), progress.step
        if stop:
            stopping.accept()
            train_state.saver.wait()
            return False
        meter.add(train_step(train_state, ddp_model, micro_batches))
        lines.write(train_state, meter, log)  # the line of an earlier step, which has been computed by now
        if progress.step % run.loop.log_every == 0 or progress.step == train_state.total_steps:
            step_s = lines.begin(train_state, meter)
            stopping.needs(2 * step_s + train_state.saver.slowest_s)
        if due := train_state.evals_due():
            _settle(train_state, meter, log)
            with meter.paused():
                if time.time() - saved_at > UNSAVED_S:
                    _save_before_evaluation(train_state)
                    saved_at = time.time()
                evaluate.in_training(train_state, log, due)
        progress.time_s = time.time() - started
        if (train_state.epoch_kept or train_state.is_best) and progress.step < train_state.total_steps:
            _settle(train_state, meter, log)
            save(train_state)
            saved_at, saved_step = time.time(), progress.step
    _settle(train_state, meter, log)
    if progress.step > saved_step or not (train_state.folder / LAST).exists():
        save(train_state)
    train_state.saver.wait()
    return True


def _save_before_evaluation(train_state: TrainState) -> None:
    """Save the state before an evaluation, which may take longer than a request to stop waits."""
    train_state.progress.to_evaluate = True
    save(train_state)
    train_state.progress.to_evaluate = False


def _settle(train_state: TrainState, meter: Meter, log: Log) -> None:
    """Make sure that the newest loss is finite on all ranks, and log it, before anything is saved or evaluated."""
    if dist.any_rank(not meter.is_finite(newest=True))[0]:
        _give_up(train_state, meter, log)
    lines.write(train_state, meter, log)


def _give_up(train_state: TrainState, meter: Meter, log: Log) -> None:
    """Save the state as ``diverged.pt``, log the end and raise `Diverged`."""
    step, broken = train_state.progress.step, meter.nonfinite_terms()
    culprits = f"; of its terms only {listed(broken)}" if broken else ""
    lines.write(train_state, meter, log)
    if dist.is_main():
        content = {"model": train_state.model.state_dict(), "optimizer": train_state.optimizer.state_dict(), "step": step}
        tensor_files.save(train_state.folder / DIVERGED, content)
    log.event("end", step, attempt=train_state.progress.attempt, reason="diverged")
    dist.wait_for_ranks()
    raise Diverged(
        f"the loss or its gradient was not finite by step {step} (epoch {train_state.epoch:.2f}{culprits}); {DIVERGED} holds that state,"
        f" {LAST}, if there is one, the newest checkpoint before it. A lower optim.lr, a longer loop.warmup_epochs, optim.clip: global, or"
        " a loop.precision other than fp16 may help"
    )


# ----------------------------------------------------------------------------------------------------------------- run


def train_or_evaluate(folder: Path) -> int:
    """Train the Run in ``folder`` to its end, or until asked to stop, and return the exit code.

    If the run is trained already, only its missing evaluators run.

    Raises:
        ConfigError: a mistake of the user's, or another process trains this run.
    """
    run, trained = config.load(folder), is_trained(folder)
    if trained and not (dist.is_main() and to_evaluate(folder, run)):
        return 0
    job = read_json(folder / JOB)
    attempt.refuse_other_image(job)
    attempt.refuse_cpu(run, job | job.get("evaluation", {}))
    with attempt.run_lock(folder) if dist.is_main() else nullcontext():
        if not trained:
            return _train(folder, run)
        dist.become_only_rank()
        set_numerics(run)
        return 0 if evaluate.evaluate_finished(folder, run.loop.device) else STOPPED


def _train(folder: Path, run: Run) -> int:
    config.check(run, where=str(folder / RUN))
    dist.start(dist.device(run.loop.device))
    wait_for_all = dist.barrier(timeout_h=12)
    number = attempt.number(folder)
    tracker = attempt.tracker(folder, run, number) if dist.local_rank() == 0 else nullcontext()
    with StopRequest() as stopping, tracker:
        train_state = TrainState(folder, run)
        wait_for_all()
        ddp_model = start(train_state)
        if dist.is_main():
            train_state.saver.check_room(train_state.model)
        progress = train_state.progress
        progress.attempt = number
        log = Log(folder, progress.step, train_state.total_steps, dist.is_main(), progress.to_evaluate, run.loop.loggers)
        lines.start(train_state, log)
        try:
            with train_state.saver, closing(train_state.batches(progress.step, train_state.total_steps)) as steps:
                done = fit(train_state, ddp_model, steps, log, stopping)
            del train_state.run_pass  # frees the memory of a recorded CUDA graph
            log.event("end", progress.step, attempt=number, reason="done" if done else "stopped")
            if done:
                log.say(lines.end(train_state))
        finally:
            log.close()
    if not done:
        dist.wait_for_ranks()
        return STOPPED
    if dist.is_main():
        _finish(train_state, log.speeds)
    return 0


def _finish(train_state: TrainState, speeds: list[float]) -> None:
    """Write what a run leaves besides its weights and its log; ``done.json`` comes last, as others wait for it.

    Args:
        speeds: the images/s over all processes that were logged.
    """
    folder, run, index = train_state.folder, train_state.run, train_state.index
    pictures.record_reconstructions(folder, run, train_state.model, index, train_state.split.test, (train_state.mean, train_state.std))
    costs = cost.measure(run, len(index.classes)) | cost.throughput(train_state.model, run, train_state.device)
    if speeds:
        costs["training"] = {
            "images_per_s": median_speed(speeds) / dist.world_size(),
            "images": train_state.progress.step * run.optim.batch_size,
            "device": device_name(train_state.device),
        }
    write_json(folder / COST, costs)
    write_json(folder / DONE, _summary(train_state))
    train_state.saver.finish()


def _summary(train_state: TrainState) -> dict[str, Any]:
    progress = train_state.progress
    own = {name: progress.last[name] for name in train_state.own_evals if name in progress.last}
    if "selected" in own:
        own["selected"] = own["selected"] | {"epoch": progress.best_val["epoch"]}
    evaluations = {"test": None, "test_best": progress.best_test or None, **own}
    return {"step": progress.step, "epochs": train_state.epoch, "time_s": progress.time_s, **evaluations}


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1:
        print("usage: python -m vitssl.train RUN_FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    if not (folder / RUN).exists():
        print_line(f"error: {folder} is not a run folder; to train a sweep: python jobs/submit.py SWEEP")
        return 2
    try:
        with attempt.silence_removal_errors(folder), attempt.ErrorFile(folder):
            code = train_or_evaluate(folder)
    except ConfigError as error:  # something that the user can fix; error.json has the details
        print_line(f"error: {error}")
        return 2
    except Diverged as error:
        print_line(f"error: {folder}: {error}")
        return 1
    except FileNotFoundError:
        if folder.is_dir():
            raise
        print_line(f"error: {folder} was removed during training")
        return 1
    except (OSError, RuntimeError) as error:
        if (full := full_disk_error(error)) is None:
            raise
        print_line(f"error: {folder}: {attempt.full_disk(full)}")
        return 1
    dist.stop()
    return code


if __name__ == "__main__":
    dist.hard_exit(main())
