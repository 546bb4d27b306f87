"""One attempt at a run: the objects that the loop works with, how they are started, and what a checkpoint holds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitssl import config, dist, evaluators, model
from vitssl.checkpoints import pretrained, run_checkpoint, saver
from vitssl.checkpoints.run_checkpoint import Progress
from vitssl.checkpoints.saver import Saver
from vitssl.config import ConfigError, Run
from vitssl.config.evals import EvalConfig, evals_of, own_evals
from vitssl.data.index import load_index
from vitssl.data.loading.batch import Batch
from vitssl.data.loading.cache import private_folder
from vitssl.data.loading.loader import TrainLoader
from vitssl.data.loading.subset import split_of
from vitssl.data.loading.view_stream import on_own_stream, slice_groups
from vitssl.run_folder import BEST, LAST
from vitssl.training import memory, optim, passes, pictures
from vitssl.views import EvalView, TrainViews


class TrainState:
    """Everything that one attempt at a run works with; the attributes declared here are set by `start`."""

    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    ema: optim.Ema | None
    run_pass: passes.Pass

    def __init__(self, folder: Path, run: Run):
        self.folder, self.run, self.saver = folder, run, Saver(folder)
        self.device = dist.device(run.loop.device)
        set_numerics(run)
        if self.device.type == "cpu":
            memory.keep_freed()
        self.index = load_index(run.data.shards, dist.local_rank(), dist.local_world_size())
        if run.data.sha256 not in (None, self.index.sha256):
            reason = f"{run.data.shards} is not what this run was made for (data.sha256); build it again or make a new run"
            raise ConfigError(reason, "data.shards")
        self.split = split_of(self.index, run)
        self.accumulate = config.slices(run, dist.world_size())
        self.mean, self.std = config.statistics(run.data, self.index.mean, self.index.std)
        self.loader = TrainLoader(
            self.index, self.split, run.data, seed=run.seed, batch_size=run.optim.batch_size,
            rank=dist.rank(), world_size=dist.world_size(), accumulate=self.accumulate, device=self.device,
            labelled_rows=config.labelled_rows(run),
        )  # fmt: skip
        self.views = TrainViews(
            config.active_views(run), image_size=run.data.image_size, mean=self.mean, std=self.std,
            num_classes=len(self.index.classes), seed=run.seed, device=self.device,
        )  # fmt: skip
        self.schedule = optim.Schedule(run, self.loader.steps_per_epoch)
        self.total_steps = config.total_steps(run, self.loader.num_samples)
        self.model = model.build(run, len(self.index.classes))
        self.parameters = list(self.model.parameters())  # kept, as to collect them takes a CPU half a millisecond
        self.progress = Progress()
        self.terms: dict[str, float] = {}  # the newest terms of the loss, without their weights
        view = EvalView(run.data.image_size, run.data.eval_crop, self.mean, self.std, self.device)
        self.subject = evaluators.Subject(
            self.model, run, self.index.classes, view, lambda: (self.index, self.split),
            ema=lambda: None if self.ema is None else self.ema.average, best=self._best,
        )  # fmt: skip
        self.own_evals = own_evals(run, heldout=len(self.split.val) > 0)
        self.evals = self.own_evals | evals_of(run)
        self.subject.check(self.evals)

    def batches(self, start_step: int, stop_step: int) -> Generator[Iterator[Batch], None, None]:
        """Yield for each step from ``start_step`` until before ``stop_step`` the views of this rank's slices of the global batch.

        Each slice is made when it is asked for, or on a GPU just before.
        """
        steps = self.loader.batches(start_step, stop_step)
        group_size = self.views.slices_at_once(self.loader.slice_size, self.loader.largest_px)
        raws = slice_groups((raw for slices in steps for raw in slices), group_size, start_step * self.accumulate)
        with contextlib.closing(on_own_stream((self.views.make_batches(group) for group in raws), self.device)) as batches:
            for _ in range(start_step, stop_step):
                yield islice(batches, self.accumulate)

    @property
    def epoch(self) -> float:
        """The number of the Run's epochs that are done; images of a further epoch in the last batch do not count."""
        return min(self.progress.step / self.loader.steps_per_epoch, float(self.run.loop.epochs))

    @property
    def epochs_done(self) -> int:
        """The number of the Run's epochs that are completely done."""
        return self._epochs_at(self.progress.step)

    @property
    def epoch_kept(self) -> bool:
        """Whether the newest step ended an epoch whose checkpoint is kept (``loop.keep_every``)."""
        return self._ended(self.run.loop.keep_every)

    @property
    def is_best(self) -> bool:
        """Whether the evaluation of the newest step made the present weights the best on the held-out split."""
        return self.progress.best_val.get("epoch") == self.epoch

    def _ended(self, every: int) -> bool:
        """Whether the newest step, which may end several epochs, ended one that is a multiple of ``every``; never if ``every`` is 0."""
        return every > 0 and self.epochs_done // every > self._epochs_at(self.progress.step - 1) // every

    def _epochs_at(self, step: int) -> int:
        return min(int(step / self.loader.steps_per_epoch + 1e-9), self.run.loop.epochs)

    def evals_due(self) -> dict[str, EvalConfig]:
        """Return the evaluators that are due after the newest step."""
        if self.progress.step == self.total_steps:
            return self.evals
        before_end = {name: cfg for name, cfg in self.evals.items() if cfg.weights != "best"}
        intervals = {name: self.run.loop.eval_every if cfg.every is None else cfg.every for name, cfg in before_end.items()}
        return {name: self.evals[name] for name, n in intervals.items() if self._ended(n)}

    def _best(self) -> dict[str, Tensor]:
        """Return the weights that were best on held-out images. The main rank reads them for all: others may still see an older file."""
        if self.is_best:
            return self.model.state_dict()
        ours, path = self.model.state_dict(), self.folder / BEST
        if dist.is_main():
            saved = run_checkpoint.fitted(self.model, run_checkpoint.read_run(path)["model"], path)
        return {name: dist.from_main(saved[name] if dist.is_main() else torch.empty_like(ours[name], device="cpu")) for name in ours}

    def has_best(self) -> bool:
        """Whether the weights that were best on held-out images are available; their file may have been deleted."""
        if self.is_best:
            return True
        if dist.is_main():
            self.saver.wait()
        return not dist.any_rank(dist.is_main() and not (self.folder / BEST).exists())[0]

    @property
    def class_counts_K(self) -> Tensor:
        """The number of labelled training images of each class."""
        labels = self.split.labels[self.split.train]
        return torch.bincount(torch.from_numpy(labels[labels >= 0]), minlength=len(self.index.classes))

    @property
    def data_facts(self) -> dict[str, Any]:
        """The facts about its data that a checkpoint holds, for predictions without the shards."""
        return {"classes": self.index.classes, "mean": list(self.mean), "std": list(self.std)}


def set_numerics(run: Run) -> None:
    """Set the number of threads and the precision of matrix products as the Run says."""
    torch.set_num_threads(run.loop.threads)
    dist.set_precision(run.loop.precision)


def start(train_state: TrainState) -> nn.Module:
    """Set up weights, optimiser and DDP, and restore them from the folder's checkpoint if there is one.

    Returns:
        The module to train with: the network, compiled and wrapped in DDP if the Run says so.
    """
    run, network = train_state.run, train_state.model
    saved = saver.newest(train_state.folder)
    if saved is None:  # the checkpoint of a resumed run holds all weights, its teachers' too
        if run.init_from:
            pretrained.init_from(network, network.backbone, run)
        pretrained.load_teachers(network, run, train_state.mean, train_state.std)
    network.start(train_state.class_counts_K)
    network.to(train_state.device)
    train_state.optimizer = optim.make(network, network.backbone, run.optim)
    train_state.scaler = optim.loss_scaler(train_state.device, run.loop.precision)
    train_state.ema = optim.Ema(network, run.loop.ema_decay) if run.loop.ema_decay else None
    ddp_model = compiled(network, run) if run.loop.compile else network
    if dist.world_size() > 1:
        ddp_model = _distributed(train_state, ddp_model)
    train_state.run_pass = passes.make(ddp_model, run, train_state.device, train_state.scaler, train_state.parameters)
    if dist.world_size() > 1:
        _discard_one_step(train_state)
    if saved is not None:
        _restore(train_state, saved)
    return ddp_model


def compiled(network: nn.Module, run: Run) -> nn.Module:
    """Return the network as torch compiles it.

    Torch writes compiled code to files and loads it again, by default from a folder in a shared temporary directory, which belongs to the
    user who created it first. The folder that is set here belongs to this user alone.
    """
    for variable, name in (("TORCHINDUCTOR_CACHE_DIR", "torchinductor"), ("TRITON_CACHE_DIR", "triton")):
        if variable not in os.environ:
            os.environ[variable] = str(private_folder(run.data) / name)
    # every step has the same shapes; torch says that it returns a function, and returns a module for a module
    return torch.compile(network, dynamic=False)  # type: ignore[return-value]


def _distributed(train_state: TrainState, network: nn.Module) -> nn.Module:
    device_ids = [train_state.device.index] if train_state.device.type == "cuda" else None
    ddp_model = DistributedDataParallel(network, device_ids=device_ids, gradient_as_bucket_view=True)
    # buffers are equal on all ranks between steps: fixed, or computed from values of all ranks (the argument of this name is deprecated)
    ddp_model.broadcast_buffers = False
    return ddp_model


def _discard_one_step(train_state: TrainState) -> None:
    """Run a forward and backward pass and discard it, since DDP rebuilds its buckets after the first one, which changes the order of sums.

    With one discarded step at every start, a resumed run and an undisturbed one use the same buckets from their first real step on.
    """
    network = train_state.model
    saved_state = {name: value.clone() for name, value in network.state_dict().items()}
    with contextlib.closing(train_state.batches(0, 1)) as steps:
        batch = next(next(steps))
    network.train()
    forward_backward(train_state, batch, step=0)
    network.zero_grad(set_to_none=False)
    network.load_state_dict(saved_state)


def _restore(train_state: TrainState, saved: dict[str, Any]) -> None:
    """Continue from a checkpoint's content.

    Raises:
        ConfigError: something that training needs is missing or damaged, or the checkpoint is of another config.
    """
    last = train_state.folder / LAST
    goes_on = (saved.get("progress") or {}).get("step") != train_state.total_steps  # after the last step no weight changes any more
    needed = {"progress", "identity"} | ({"ema"} if train_state.ema is not None else set())
    needed |= {"optimizer"} if goes_on else set()
    needed |= {"scaler"} if train_state.scaler.is_enabled() else set()
    if missing := needed - {name for name, value in saved.items() if value is not None}:
        raise ConfigError(f"{min(missing)} is missing, and training cannot go on from it; {run_checkpoint.ADVICE}", place=str(last))
    # the identity of an earlier schema cannot be compared; run.yaml is taken to be unchanged since training began
    if saved.get("schema") == config.SCHEMA and saved["identity"] != _identity(train_state.run):
        raise ConfigError(
            "it belongs to another config; run.yaml was changed after training began, or it was begun by a version of vitssl"
            " that computes the identity differently",
            place=str(last),
        )
    if saved["progress"]["step"] > train_state.total_steps:
        reason = f"step {saved['progress']['step']:,} of {train_state.total_steps:,}; {run_checkpoint.ADVICE}"
        raise ConfigError(reason, place=str(last))
    run_checkpoint.load_model(train_state.model, saved["model"], last)
    if saved.get("optimizer") is not None:
        run_checkpoint.load_optimizer(train_state.optimizer, saved["optimizer"], last)
    if train_state.scaler.is_enabled():
        train_state.scaler.load_state_dict(saved["scaler"])
    if train_state.ema is not None:
        train_state.ema.load(run_checkpoint.fitted(train_state.model, saved["ema"], last))
    train_state.progress = Progress(**saved["progress"])
    if train_state.is_best and dist.is_main():  # the attempt may have been killed before it wrote best.pt
        train_state.saver.write_best(saved | {"data": train_state.data_facts})


def _identity(run: Run) -> str:
    # without the parents' paths, since a runs folder may be moved, or have another path in a container
    return config.identity(config.without_checkpoints(run))


def save(train_state: TrainState) -> None:
    """Begin to write ``last.pt`` (main rank only). Resuming needs no generator state: all noise is a function of (seed, step, rank)."""
    if not dist.is_main():
        return
    # after the last step nothing needs the optimizer's state, with AdamW two thirds of the file
    goes_on = train_state.progress.step < train_state.total_steps
    content = {
        "model": train_state.model.state_dict(),
        "optimizer": train_state.optimizer.state_dict() if goes_on else None,
        "scaler": train_state.scaler.state_dict() or None,
        "ema": train_state.ema.average if train_state.ema else None,
        "progress": vars(train_state.progress),
        "identity": _identity(train_state.run),
        "schema": config.SCHEMA,
        "data": train_state.data_facts,
    }
    kept = [f"epoch-{train_state.epochs_done:04d}.pt"] if train_state.epoch_kept else []
    train_state.saver.save(content, *kept, best=train_state.is_best)


def forward_backward(train_state: TrainState, batch: Batch, step: int) -> passes.Losses:
    """Run the forward and backward pass of a slice; at the first step, also record its views as pictures."""
    if step == 0 and dist.is_main():
        pictures.record_views(train_state.folder, batch, (train_state.mean, train_state.std))
    return train_state.run_pass(batch, train_state.schedule.progress(step))
