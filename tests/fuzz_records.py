"""The records of a sweep with a run that was trained and one that failed, as one text that can be mutated."""

from __future__ import annotations

import json
import math
import random
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

MARK = b"\n==== "  # before the name of each record
DRAWN = 25  # of so many reports one draws its figures, which takes seconds
RUN = {
    "data.image_size": 8, "backbone": {"name": "vit_pico", "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2},
    "objectives.classify": {}, "optim.batch_size": 32, "loop": {"max_steps": 4, "log_every": 1, "warmup_epochs": 0, "device": "cpu"},
    "evals": {"knn": {"type": "knn"}},
}  # fmt: skip

# what a field may be changed to
OTHERS = [
    None, [], {}, True, -1, 0, 1, 1e308, -1e308, 1e-300, 10**12, 10**30, math.nan, math.inf, "", "x", "\0", "\ud800", "[/]", "../../x",
    "a" * 300, [[]], [None], {"": {}}, "2026",
]  # fmt: skip


def change_field(content: bytes, rng: random.Random) -> bytes:
    """Another value for a field of a record, or none, or another name."""
    parts = content.split(MARK)
    i = rng.randrange(1, len(parts)) if len(parts) > 1 else 0
    name, _, text = parts[i].partition(b"\n")
    lines = text.split(b"\n") if name.endswith(b"l") else [text]
    k = rng.randrange(len(lines))
    lines[k] = change_json(lines[k], rng)
    parts[i] = name + b"\n" + b"\n".join(lines)
    return MARK.join(parts)


def change_json(content: bytes, rng: random.Random) -> bytes:
    """The same of one text in JSON."""
    try:
        record = json.loads(content)
    except ValueError:  # it was changed before, or is YAML
        return content
    change_part(record, rng, OTHERS)
    return json.dumps(record).encode()


def change_part(record: Any, rng: random.Random, others: list[Any]) -> None:
    """Another value somewhere in nested mappings and lists, or none, or under another name."""
    found = list(places(record))
    if not found:
        return
    owner, key = rng.choice(found)
    if rng.random() < 0.25:
        value = owner.pop(key)
        if isinstance(owner, dict) and rng.random() < 0.3:
            owner[f"{key}_"] = value
    else:
        owner[key] = rng.choice(others)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (mapping or list, name or position) in a value."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield value, key
            yield from places(part)


def target(place: Path) -> tuple[bytes, Callable[[bytes], None]]:
    """The records, and what reports on them, says their status, and loads the trained run."""
    import vitssl
    from jobs import status
    from tests.report.conftest import make_sweep
    from vitssl import config, report, train
    from vitssl.data import shards
    from vitssl.report.figures import style

    make = {("ssat", 0): {"state": "failed"}, ("sslft", 0): {"state": "not begun"}}
    short = {"objectives.classify": {}, "loop": {"epochs": 4, "warmup_epochs": 0}}
    stages = {arm: [("train", short)] for arm in ("scratch", "ssat", "sslft")}
    sweep = make_sweep(place / "sweep", dict.fromkeys(stages, 80.0), {"seed": [0]}, columns=None, make=make, stages=stages)
    trained, failed = sweep / "scratch-train-0", sweep / "ssat-train-0"
    job = (trained / "job.json").read_bytes()
    shutil.rmtree(trained)
    shards.build("digits", place / "digits", workers=1, progress=False)
    config.save(config.merge(config.Run, RUN, {"data.shards": str(place / "digits")}), trained)
    (trained / "job.json").write_bytes(job)
    assert train.main([str(trained)]) == 0
    (failed / "errors.jsonl").write_text(json.dumps({"message": "the loss", "attempt": 0, "details": "a trace"}) + "\n")
    (trained / "slurm.json").write_text(json.dumps({"job_id": "12_0"}))
    files = [path for path in sorted(sweep.rglob("*")) if path.suffix in (".json", ".jsonl", ".yaml")]
    records = {path.relative_to(sweep): path.read_bytes() for path in files}
    sweep_json = records[Path("sweep.json")]

    def read(content: bytes) -> None:
        for path in records:
            (sweep / path).unlink(missing_ok=True)
        for part in content.split(MARK)[1:]:
            name, _, record = part.partition(b"\n")
            if (path := Path(name.decode("ascii", "replace"))) in records:
                (sweep / path).write_bytes(record)
        drawn = style.save if zlib.crc32(content) % DRAWN == 0 else lambda figure, path: '<svg width="9pt" height="9pt">'
        try:
            with mock.patch.object(style, "save", drawn):
                report.write(sweep)
            report.summary(sweep)
            status.read_overview(sweep)
        except config.ConfigError as error:
            assert not _is(sweep / "sweep.json", sweep_json), f"the others were not reported: {error}"
            raise
        finally:
            vitssl.load(trained)

    whole = b"".join(MARK + str(path).encode() + b"\n" + record for path, record in records.items())
    return whole, read


def _is(path: Path, content: bytes) -> bool:
    return path.exists() and path.read_bytes() == content
