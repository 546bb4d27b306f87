"""Checkpoints whose parts are exchanged, under checksums that are right, each with what loads it."""

from __future__ import annotations

import argparse
import io
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from tests.fuzz_records import OTHERS, RUN, change_part, places

Target = Callable[[bytes], None]
TENSORS = [
    torch.zeros(()), torch.zeros(0), torch.zeros(16), torch.full((16,), torch.nan), torch.full((16,), 1e300, dtype=torch.float64),
    torch.zeros(16, dtype=torch.complex64), torch.zeros(16, dtype=torch.bool), torch.zeros(2, 16), torch.zeros(16, 16).to_sparse(),
    torch.zeros(1).expand(10**12), torch.zeros(16, dtype=torch.int8), torch.zeros(16, dtype=torch.bfloat16), torch.zeros(16, device="meta"),
    torch.zeros(1, 1, 1, 1, 1), torch.nn.Parameter(torch.zeros(16)),
]  # fmt: skip
OF_THE_SAME_SHAPE: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda value: value * torch.nan, lambda value: value.double() + 1e300, torch.Tensor.half, torch.Tensor.bool, torch.Tensor.to_sparse,
    lambda value: value.to(torch.int8), lambda value: value.to(torch.complex64), lambda value: torch.zeros(()).expand(value.shape),
    lambda value: value.to("meta"), lambda value: torch.randn(value.shape[::-1]).permute(tuple(reversed(range(value.dim())))),
    torch.nn.Parameter, lambda value: value.flatten(), lambda value: value[None],
]  # fmt: skip


def change(content: bytes, rng: random.Random) -> bytes:
    """Something else in the place of a tensor, a value or a whole part; or none; or under another name."""
    from vitssl.checkpoints.tensor_files import ALSO_READ

    try:
        with torch.serialization.safe_globals(list(ALSO_READ)):
            parts = torch.load(io.BytesIO(content), weights_only=True)
    except Exception:  # noqa: BLE001 - it was changed before, to what cannot be read
        return content
    if isinstance(parts, dict) and isinstance(parts.get("args"), argparse.Namespace) and rng.random() < 0.2:
        parts["args"] = argparse.Namespace(**dict.fromkeys(vars(parts["args"]), rng.choice(OTHERS)))
    others = [*TENSORS, *(value for value in OTHERS if value != "\ud800"), {"x": torch.zeros(16)}, [torch.zeros(16)], 2**70]
    draw = rng.random()
    if draw < 0.2 and isinstance(parts, dict) and parts:  # else nearly all are weights
        parts[rng.choice(list(parts))] = rng.choice(others)
    elif draw < 0.5 and (there := [(owner, key) for owner, key in places(parts) if isinstance(owner[key], torch.Tensor)]):
        owner, key = rng.choice(there)
        owner[key] = rng.choice(OF_THE_SAME_SHAPE)(owner[key])
    else:
        change_part(parts, rng, others)
    altered = io.BytesIO()
    torch.save(parts, altered)
    return altered.getvalue()


def targets(place: Path) -> dict[str, tuple[bytes, Target]]:
    """{name: (a file that is accepted, what loads it)}: the checkpoint of a run that goes on and is loaded, and a file that is imported."""
    from tests.weights.releases import RELEASES
    from vitssl import config, train
    from vitssl.data import shards
    from vitssl.run_folder import LAST
    from vitssl.trained import Trained
    from vitssl.training import train_state
    from vitssl.weights.importing import import_file

    shards.build("digits", place / "digits", workers=1, progress=False)
    run = config.merge(config.Run, RUN, {"data.shards": str(place / "digits"), "loop.ema_decay": 0.9, "loop.max_steps": 2})
    config.save(run, place / "run")
    assert train.main([str(place / "run")]) == 0
    begun = train_state.TrainState(place / "run", run)

    def go_on(content: bytes) -> None:
        (place / "run" / LAST).write_bytes(content)
        begun.model.requires_grad_(True)
        train_state.start(begun)
        Trained(place / "run", LAST, "cpu", "ema")

    layout, make = RELEASES["mae_finetuned"]  # with a command line
    torch.manual_seed(0)
    released = io.BytesIO()
    torch.save(make().content, released)

    def import_it(content: bytes) -> None:
        shutil.rmtree(place / "imported", ignore_errors=True)
        (place / "file.pth").write_bytes(content)
        import_file(place / "file.pth", layout, place / "imported")
        Trained(place / "imported", LAST, "cpu", "model")

    return {"resumed": ((place / "run" / LAST).read_bytes(), go_on), "imported": (released.getvalue(), import_it)}
