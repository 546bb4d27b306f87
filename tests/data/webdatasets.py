"""WebDatasets for the tests of those that somebody else wrote."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import webdataset
from PIL import Image

from vitssl.config import ConfigError
from vitssl.data import shards
from vitssl.data.index import Index


def encoded(seed: int, kind: str = "PNG", mode: str = "RGB") -> bytes:
    """An image of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 10, 3), dtype=np.uint8)
    image, buffer = Image.fromarray(pixels if mode == "RGB" else pixels[:, :, 0].astype(np.uint16) * 16), io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def write_tar(path: Path, samples: list[dict]) -> Path:
    """A tar as webdataset writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(str(path)) as tar:
        for sample in samples:
            tar.write(sample)
    return path


def pets(count: int, first: int = 0) -> list[dict]:
    """Samples with numbers for labels, of three classes in turn."""
    return [{"__key__": f"pet/{first + i:03d}", "png": encoded(first + i), "cls": (first + i) % 3} for i in range(count)]


def write_set(root: Path) -> str:
    """Two training tars of six images and a test tar of three; what names them."""
    write_tar(root / "train-00.tar", pets(6))
    write_tar(root / "train-01.tar", pets(6, 6))
    write_tar(root / "test-00.tar", pets(3, 100))
    return f"wds:{root}/train-{{00..01}}.tar?test=test-{{00..00}}.tar"


def build(source: str, out: Path, call=shards.build, **options) -> Index:
    return call(source, out, **{"workers": 1, "progress": False} | options)


def refused(source: str, out: Path, **options) -> str:
    with pytest.raises(ConfigError) as error:
        build(source, out, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def write_members(path: Path, members: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "a") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def members(tar: Path) -> list[tarfile.TarInfo]:
    with tarfile.open(tar) as opened:
        return opened.getmembers()


def cut(tar: Path) -> None:
    os.truncate(tar, members(tar)[-1].offset_data + 9)


PNG = encoded(999)
