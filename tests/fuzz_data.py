"""Lists of images, arrays, findings and caches that can be mutated, each with what reads it."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from tests.fuzz_records import OTHERS

Target = Callable[[bytes], None]
PATHS = ("a/1.png", "a/2.png", "b/1.png", "b/2.png")


def change_word(content: bytes, rng: random.Random) -> bytes:
    """Another word between spaces, commas, colons or what separates options."""
    words = re.split(rb"([\s,:?&=]+)", content)
    i = rng.randrange(0, len(words), 2)
    words[i] = rng.choice([str(other).encode("utf-8", "surrogatepass") for other in OTHERS] + [b"9" * 5000, b'"', b"a" * 5000, b"."])
    return b"".join(words)


def change_part(content: bytes, rng: random.Random) -> bytes:
    """A few bytes of a part of an npz, or of what gzip packs, under checksums that are right."""
    try:
        if content[:2] == b"\x1f\x8b":
            return gzip.compress(_altered(gzip.decompress(content), rng), 1)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError, NotImplementedError, ValueError):  # it was changed before
        return content
    name = rng.choice(list(parts))
    parts[name] = _altered(parts[name], rng)
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return written.getvalue()


def _altered(part: bytes, rng: random.Random) -> bytes:
    """Mostly of its head."""
    altered = bytearray(part)
    for _ in range(rng.randrange(1, 4)):
        altered[rng.randrange(min(len(altered), rng.choice((16, 128, 10**9))))] = rng.choice(
            b"\0\xff0123456789<>|'({,bOSU" + rng.randbytes(1)
        )
    return bytes(altered)


def targets(place: Path) -> tuple[dict[str, tuple[bytes, Target]], dict[str, tuple[bytes, Target]]]:
    """{name: (an input that is accepted, what reads it)} of texts, and of binary files."""
    for i, path in enumerate(PATHS):
        (place / path).parent.mkdir(exist_ok=True)
        Image.effect_noise((6, 5 + i), 60).save(place / path)
    return _texts(place), _binaries(place)


def _source(place: Path, name: str, source: str, others: dict[str, bytes] | None = None) -> Target:
    """Writes a file, and lists and decodes the images of the source that it is a part of."""
    from vitssl.data.building import listing, writing
    from vitssl.data.sources import opening

    for other, content in (others or {}).items():
        (place / other).parent.mkdir(exist_ok=True)
        (place / other).write_bytes(content)

    def target(content: bytes) -> None:
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(content)
        opened = opening.open_source(source)
        listing.rows(opened)
        for _, sample in opened.samples():
            writing.stored(sample)

    return target


def _texts(place: Path) -> dict[str, tuple[bytes, Target]]:
    plain = "".join(f"{path} {label}\n" for path, label in zip(PATHS, (3, 3, 10, 10), strict=True))
    table = "path,label,split\n" + "".join(f"{path},{path[0]},{split}\n" for path in PATHS for split in ("train", "test"))
    entries = [{"name": path, "label": i // 2} for i, path in enumerate(PATHS)]
    coco = {
        "categories": [{"id": 7, "name": "owl"}, {"id": 9, "name": "cat"}],
        "images": [{"id": i, "file_name": path} for i, path in enumerate(PATHS)],
        "annotations": [{"image_id": i, "category_id": 7 + 2 * (i // 2)} for i in range(len(PATHS))],
    }  # fmt: skip
    found = {"scaled": {"16 bits": 2}, "left_out": [["train", "a/3.png", "broken"]], "near_duplicates": [["train", "a", "test", "b", 0.9]]}
    found |= {"equal": [["train", "b", "a", False]]}
    as_list = f"list:{place}?train=list.{{0}}&test=list.{{0}}"
    return {
        "text list": (plain.encode(), _source(place, "list.txt", as_list.format("txt"))),
        "csv": (table.encode(), _source(place, "table.csv", f"csv:{place / 'table.csv'}")),
        "json list": (json.dumps(entries).encode(), _source(place, "list.json", as_list.format("json"))),
        "coco": (json.dumps(coco).encode(), _source(place, "list.json", as_list.format("json"))),
        "source": (f"folder:{place}/cub?test=0.5&seed=1&classes=x.txt".encode(), _named(place)),
        "found.json": (json.dumps(found).encode(), _findings(place / "found")),
    }


def _named(place: Path) -> Target:
    """A text as the name of a source."""
    from vitssl.data.sources import opening

    for path in PATHS:
        (place / "cub" / path).parent.mkdir(parents=True, exist_ok=True)
        (place / "cub" / path).write_bytes((place / path).read_bytes())
    (place / "cub" / "x.txt").write_text("a\nb\n")

    def target(content: bytes) -> None:
        opening.open_source(content.decode("utf-8", "surrogateescape"))

    return target


def _findings(folder: Path) -> Target:
    from tests.jobs.conftest import write_index
    from vitssl.data.building import findings
    from vitssl.data.index import read_index

    folder.mkdir()
    write_index(folder, [("train", 3), ("test", 2)])
    index = read_index(folder)

    def target(content: bytes) -> None:
        (folder / findings.FILE).write_bytes(content)
        findings.lines(index)
        found = findings.read(folder)
        assert found is not None and found.counts() is not None

    return target


def _binaries(place: Path) -> dict[str, tuple[bytes, Target]]:
    from scipy.io import savemat

    images, labels = np.random.default_rng(0).integers(0, 256, (4, 5, 6), np.uint8), np.array([0, 0, 1, 1], np.uint8)
    mat, npz, wide = io.BytesIO(), io.BytesIO(), io.BytesIO()
    savemat(mat, {"file_list": np.array(PATHS, dtype=object)[:, None], "labels": np.array([[1], [1], [2], [2]])})
    splits = {f"{split}_{what}": array for split in ("train", "test") for what, array in (("images", images), ("labels", labels[:, None]))}
    np.savez(npz, **splits)
    np.savez_compressed(wide, **{name: array.astype(np.float32) / 255 if "images" in name else array for name, array in splits.items()})
    idx = {
        f"{split}-{what}-idx{array.ndim}-ubyte": bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
        for split in ("train", "t10k") for what, array in (("images", images), ("labels", labels))
    }  # fmt: skip
    packed = {f"{name}.gz": gzip.compress(content) for name, content in idx.items()}
    return {
        "mat": (mat.getvalue(), _source(place, "list.mat", f"list:{place}?train=list.mat")),
        "npz": (npz.getvalue(), _source(place, "x.npz", f"npz:{place / 'x.npz'}")),
        "npz of floats": (wide.getvalue(), _source(place, "x.npz", f"npz:{place / 'x.npz'}")),
        "idx": _of(place, idx, "idx"),
        "idx.gz": _of(place, packed, "packed"),
        "cache": _cache(place / "cached"),
    }


def _of(place: Path, files: dict[str, bytes], folder: str) -> tuple[bytes, Target]:
    """The training images of a folder of idx files."""
    (name, content), *others = files.items()
    return content, _source(place, f"{folder}/{name}", f"idx:{place / folder}", {f"{folder}/{other}": value for other, value in others})


def _cache(place: Path) -> tuple[bytes, Target]:
    from vitssl.config import Data
    from vitssl.data import shards
    from vitssl.data.index import read_index
    from vitssl.data.loading.cache import folder_of, open_cache

    place.mkdir()
    shards.build(f"folder:{place.parent / 'cub'}?test=0.5", place / "shards", workers=1, progress=False)
    index = read_index(place / "shards")
    data = Data(shards=str(place / "shards"), cache_dir=str(place / "cache"))
    open_cache(index, data, progress=False).close()
    (path,) = folder_of(data).glob("*.u8")

    def target(content: bytes) -> None:
        path.write_bytes(content)
        cache = open_cache(index, data, progress=False)
        assert len(cache.read(np.arange(len(index)))[0]) == len(index)
        cache.close()

    return path.read_bytes(), target
