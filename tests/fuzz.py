"""Mutated sweeps, sites, command lines, indexes, lists, arrays, images, checkpoints and records: each is accepted or refused in one line.

python -m tests.fuzz 10000            # so many of each kind; prints what was accepted and refused, and every traceback and hang
python -m tests.fuzz 500 mat npz      # of these kinds alone
python -m tests.fuzz --seed 3 500     # others than those of seed 0
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests import fuzz_data, fuzz_records, fuzz_weights

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 60  # that one input may take, on a busy machine too
# what people and enemies write in the place of a value
HOSTILE = [
    "null", "[]", "{}", "true", "-1", "0", "1e999", ".nan", "10000000000000000000000", "''", "[[]]", "{a: {b: [1]}}", "'[/]'", "../../x",
    "/etc/passwd", '"a\\nb"', '"\\0"', "$(id)", "%s%n", "é", "\U0001f600", "a" * 300, "${oc.env:HOME}", "*a", "&a 1", "2001-01-01", "0x10",
    "!!python/object:os.system x", "1_000", "~", "- 1", "? x",
]  # fmt: skip

Target = Callable[[bytes], None]
Change = Callable[[bytes, random.Random], bytes]


def mutated(content: bytes, rng: random.Random, changes: list[Change]) -> bytes:
    """A copy with one to three changes: of a text mostly of values and lines, and a few of bytes."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = rng.choice(changes if rng.random() < 0.95 else BYTE_CHANGES)(content, rng)
    return content


def _flip(content: bytes, rng: random.Random) -> bytes:
    altered = bytearray(content or b"\0")
    altered[rng.randrange(len(altered))] ^= 1 << rng.randrange(8)
    return bytes(altered)


def _cut(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content) + 1)
    return content[:start] + content[start + rng.randrange(40) :] if rng.random() < 0.7 else content[:start]


def _insert(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content) + 1)
    return content[:start] + rng.randbytes(rng.randrange(1, 5)) + content[start:]


def _value(content: bytes, rng: random.Random) -> bytes:
    """Another value behind a colon, an equals sign or a comma."""
    marks = [i for i, byte in enumerate(content) if byte in b":=,"]
    if not marks:
        return content
    start = rng.choice(marks) + 1
    end = min((i for mark in b",}]\n" if (i := content.find(mark, start)) >= 0), default=len(content))
    return content[:start] + b" " * (content[start - 1] != ord("=")) + rng.choice(HOSTILE).encode() + content[end:]


def _line(content: bytes, rng: random.Random) -> bytes:
    """A line that is gone, twice there, or at another depth."""
    lines = content.split(b"\n")
    i = rng.randrange(len(lines))
    lines[i : i + 1] = rng.choice([[], [lines[i], lines[i]], [b"  " + lines[i]], [lines[i].lstrip()]])
    return b"\n".join(lines)


BYTE_CHANGES: list[Change] = [_flip, _cut, _insert]
TEXT_CHANGES: list[Change] = [_value, _value, _line]
LIST_CHANGES: list[Change] = [fuzz_records.change_json, fuzz_records.change_json, fuzz_data.change_word, *TEXT_CHANGES]
RECORD_CHANGES: list[Change] = [fuzz_records.change_field, fuzz_records.change_field, fuzz_records.change_field, *TEXT_CHANGES]


# ------------------------------------------------------------------------------------------------------------- one input


class Hang(Exception):
    """An input took longer than it may."""


def outcome(target: Target, content: bytes) -> str:
    """accepted, refused, or what went wrong."""
    from vitssl.config import ConfigError

    def late(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # notes
            target(content)
    except ConfigError as error:
        return "refused" if "\n" not in str(error) else f"several lines: {error}"
    except Hang:
        return "hang"
    except BaseException:  # noqa: BLE001 - whatever it is, it is counted
        return "traceback: " + traceback.format_exc()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return "accepted"


def run(
    name: str, content: bytes, target: Target, count: int, changes: list[Change], seed: int = 0
) -> tuple[Counter[str], list[tuple[bytes, str]]]:
    """Outcomes of ``count`` mutations, and the inputs of those that are neither accepted nor refused."""
    assert (whole := outcome(target, content)) == "accepted", f"{name} itself: {whole}"
    counts: Counter[str] = Counter()
    wrong = []
    for number in range(count):
        altered = mutated(content, random.Random(f"{name} {seed} {number}"), changes)
        result = outcome(target, altered)
        counts[result.split(":")[0]] += 1
        if result not in ("accepted", "refused"):
            wrong.append((altered, result))
    return counts, wrong


# --------------------------------------------------------------------------------------------------------------- targets


def targets(place: Path) -> dict[str, tuple[bytes, Target, list[Change]]]:
    """{name: (an input that is accepted, what reads it, how it is changed)}, in a folder that they may write in."""
    import json

    import torch
    from PIL import Image

    from jobs import site_profile
    from jobs.plan import overrides, sweep
    from jobs.plan.cells import cells
    from tests.jobs.conftest import write_index
    from vitssl import config, model
    from vitssl.checkpoints import tensor_files
    from vitssl.checkpoints.run_checkpoint import read_run
    from vitssl.data import index
    from vitssl.data.pixels import decode
    from vitssl.files import hash_file

    (place / "shards").mkdir()
    write_index(place / "shards", [("train", 60), ("train", 40), ("test", 20)])
    run = config.merge(config.Run, {
        "data": {"shards": str(place / "shards"), "image_size": 8},
        "backbone": {"name": "vit_pico", "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}, "objectives.classify": {},
    })  # fmt: skip
    torch.manual_seed(0)
    data = {"classes": ["a", "b"], "mean": [0.5] * 3, "std": [0.5] * 3}
    tensor_files.save(place / "good.pt", {"model": model.build(run, 2).state_dict(), "data": data})
    png, jpeg = io.BytesIO(), io.BytesIO()
    Image.effect_noise((24, 20), 60).convert("RGB").save(png, "PNG")
    Image.effect_noise((24, 20), 60).convert("RGB").save(jpeg, "JPEG")

    def written(name: str, read: Callable[[Path], object]) -> Target:
        def target(content: bytes) -> None:
            path = place / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            read(path)

        return target

    def read_sweep(path: Path) -> None:
        cells(sweep.read(path))

    def read_words(content: bytes) -> None:
        words = content.decode("utf-8", "surrogateescape").replace("\0", "").split("\n")
        cells(sweep.read(place / "good.yaml", overrides.parse([word for word in words if word])))

    def restated(path: Path) -> None:
        """With the sha256 of its content, as somebody who means harm would write it."""
        try:
            content = json.loads(path.read_bytes())
            path.write_text(json.dumps(content | {"index_sha256": index._own_sha256(content)}))
        except (ValueError, TypeError, AttributeError):
            pass
        index.read_index(path.parent)

    def resampled(path: Path) -> None:
        """The same of samples.npy, whose sha256 stands in index.json, and that one's in itself."""
        content = json.loads(path.with_name("index.json").read_text()) | {"samples_sha256": hash_file(path)}
        path.with_name("index.json").write_text(json.dumps(content | {"index_sha256": index._own_sha256(content)}))
        index.read_index(path.parent)

    for other in ("other", "samples"):
        shutil.copytree(place / "shards", place / other)
    sweep_file = (ROOT / "tests" / "jobs" / "sweep.yaml").read_text().replace("shards/digits", str(place / "shards")).encode()
    (place / "good.yaml").write_bytes(sweep_file)
    config.save(run, place / "run")
    words = (
        b"optim.lr=1e-3\nloop.epochs=4\narms=[scratch]\naxes.seed=[0,1]\narms.scratch.train.loop.epochs=2\nresources.hours=2\n"
        b"axes.optim.weight_decay=[0.1,0.2]"
    )
    run_yaml = (place / "run" / "run.yaml").read_bytes()
    site = (ROOT / "jobs" / "sites" / "slurm_a100.yaml").read_bytes()
    (place / "data").mkdir()
    (place / "weights").mkdir()
    lists, arrays = fuzz_data.targets(place / "data")
    return {
        **{name: (content, target, LIST_CHANGES) for name, (content, target) in lists.items()},
        **{name: (content, target, [*[fuzz_data.change_part] * 6, *BYTE_CHANGES]) for name, (content, target) in arrays.items()},
        **{name: (content, target, [fuzz_weights.change]) for name, (content, target) in fuzz_weights.targets(place / "weights").items()},
        "sweep": (sweep_file, written("sweep.yaml", read_sweep), TEXT_CHANGES),
        "words": (words, read_words, TEXT_CHANGES),
        "site": (site, written("site.yaml", lambda path: site_profile.read(str(path), {})), TEXT_CHANGES),
        "run.yaml": (run_yaml, written("run/run.yaml", lambda path: config.load(path.parent)), TEXT_CHANGES),
        "index": ((place / "shards" / "index.json").read_bytes(), written("other/index.json", restated), TEXT_CHANGES),
        "samples": ((place / "samples" / "samples.npy").read_bytes(), written("samples/samples.npy", resampled), BYTE_CHANGES),
        "records": (*fuzz_records.target(place / "records"), RECORD_CHANGES),
        "checkpoint": ((place / "good.pt").read_bytes(), written("x.pt", read_run), BYTE_CHANGES),
        "png": (png.getvalue(), lambda content: decode.decode_file(content, "x.png"), BYTE_CHANGES),
        "jpeg": (jpeg.getvalue(), lambda content: decode.decode_file(content, "x.jpg"), BYTE_CHANGES),
    }  # fmt: skip


def main() -> int:
    """Fuzz every target, or those of some names; exit code 1 where anything was neither accepted nor refused."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("count", nargs="?", type=int, default=300, help="of each kind (default: %(default)s)")
    parser.add_argument("names", nargs="*", metavar="KIND", help="default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations (default: %(default)s)")
    options, bad = parser.parse_args(), 0
    with tempfile.TemporaryDirectory(prefix="vitssl-fuzz-") as folder:
        for name, (content, target, changes) in targets(Path(folder)).items():
            if options.names and name not in options.names:
                continue
            counts, wrong = run(name, content, target, options.count, changes, options.seed)
            bad += len(wrong)
            print(f"{name:12}{dict(counts)}", flush=True)
            for altered, result in wrong[:3]:
                print(f"--- {altered[:2000]!r}\n{result}", flush=True)
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"peak memory {peak_gb:.2f} GB; {bad} tracebacks, hangs and messages of several lines")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
