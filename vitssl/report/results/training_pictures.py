"""The pictures that trainings left in their run folders: views of first batches, and reconstructions."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from PIL import Image

from vitssl.report.results.grid import Grid
from vitssl.words import listed

COUNT = 8  # images side by side in a picture
LARGE_BYTES, QUALITY = 40_000, 85  # a larger PNG is embedded in the page as WebP of this quality
ROWS = ("seen", "given back", "image")  # the rows of a picture of reconstructions


@dataclass(frozen=True)
class Picture:
    """A picture that one or several runs left.

    Attributes:
        caption: what it shows, and the arms that it belongs to.
        rows: the names of its rows of images; empty if there is only one.
        path: the PNG file.
    """

    caption: str
    rows: tuple[str, ...]
    path: Path

    def uri(self) -> str:
        """Return the picture as a data URI, for a page that needs no other file."""
        content, kind = self.path.read_bytes(), "png"
        if len(content) > LARGE_BYTES:
            out = BytesIO()
            Image.open(self.path).save(out, format="WEBP", quality=QUALITY)
            content, kind = out.getvalue(), "webp"
        return f"data:image/{kind};base64,{b64encode(content).decode()}"

    def size_px(self) -> tuple[int, int]:
        """Return width and height."""
        with Image.open(self.path) as image:
            return image.size


def pictures(grid: Grid, kind: str, rows: tuple[str, ...] = ()) -> list[Picture]:
    """Return the pictures of one kind (files KIND-*.png) of the first seed of every arm, column and stage.

    Runs whose pictures are equal to the byte share one, whose caption lists them.
    """
    by_content: dict[tuple[str, bytes], tuple[Path, list[str]]] = {}
    for column in grid.columns:
        suffix = f" on {grid.name(column)}" if grid.axis else ""
        for row in grid.rows:
            cells = row.columns[column]
            for stage, run in (stage for stage in cells[0].stages if stage[1].state != "unreadable") if cells else []:
                owner = grid.label(row) + (f": {stage}" if len(cells[0].stages) > 1 else "") + suffix
                for path in sorted(run.path.glob(f"{kind}-*.png")):
                    name = path.stem.removeprefix(f"{kind}-")
                    by_content.setdefault((name, path.read_bytes()), (path, []))[1].append(owner)
    return [Picture(f"{name}: {listed(owners)}", rows, path) for (name, _), (path, owners) in by_content.items()]
