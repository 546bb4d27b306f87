"""What a training writes down and says of itself: how an attempt starts, the lines of metrics.jsonl, and how it ended."""

from __future__ import annotations

from vitssl import dist
from vitssl.training import evaluate
from vitssl.training.log import Log, Meter, machine
from vitssl.training.train_state import TrainState
from vitssl.words import counted, duration


def start(train_state: TrainState, log: Log) -> None:
    """Log the start of an attempt, and say what a user may not expect of it."""
    run, loader, progress, device = train_state.run, train_state.loader, train_state.progress, train_state.device
    log.event(
        "start", progress.step, attempt=progress.attempt, world_size=dist.world_size(), steps=train_state.total_steps,
        steps_per_epoch=loader.steps_per_epoch, epochs=run.loop.epochs, train_images=loader.num_samples,
        lr=train_state.schedule.peak_lr, batch_size=run.optim.batch_size, accumulate=train_state.accumulate, lost_steps=log.lost_steps,
        **machine(device),
    )  # fmt: skip
    name = train_state.folder.name
    if dist.is_bf16_emulated(device, run.loop.precision):
        kind, precision = ("GPU", "fp16") if device.type == "cuda" else ("CPU", "fp32")
        log.say(f"{name}: this {kind} has no native bf16, which makes it slow; use loop.precision={precision}")
    if progress.step:
        log.say(f"{name}: continues after step {progress.step} of {train_state.total_steps}")


def begin(train_state: TrainState, meter: Meter) -> float:
    """Begin a line of the log and return the mean seconds per step since the line before."""
    step, schedule = train_state.progress.step, train_state.schedule
    facts = {"epoch": train_state.epoch, "lr": schedule.lr(step - 1), "weight_decay": schedule.weight_decay(step - 1)}
    return meter.begin_line(train_state.run.optim.batch_size, step=step, **facts)


def write(train_state: TrainState, meter: Meter, log: Log) -> None:
    """Write the line of the log that was begun, if there is one."""
    if (values := meter.pop_line()) is None:
        return
    step = values.pop("step")
    train_state.terms |= values["terms"]
    log.event("train", step, **values)
    note = f"{terms_of(train_state, ' ')} {values['images_per_s']:.0f} img/s"
    log.advance(step, f"epoch {values['epoch']:.1f}/{train_state.run.loop.epochs}", note)


def terms_of(train_state: TrainState, separator: str) -> str:
    """Return the newest losses, in one order whichever came first."""
    return separator.join(f"{name} {value:.3f}" for name, value in sorted(train_state.terms.items()))


def end(train_state: TrainState) -> str:
    """Return the closing line of a run: its time over all attempts, its accuracies if it was evaluated, and the newest loss terms."""
    progress = train_state.progress
    took = f"{counted(train_state.epoch, 'epoch')} in {duration(progress.time_s)}"
    losses = f"loss {terms_of(train_state, ', ')}" if train_state.terms else ""
    return f"{train_state.folder.name}: {'; '.join(filter(None, [took, evaluate.headlines(progress.last, train_state.run), losses]))}"
