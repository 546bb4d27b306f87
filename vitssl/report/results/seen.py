"""What trainings saw and gave back, as the pictures that they left in their folders: views of first batches, reconstructions."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from PIL import Image

from vitssl.report.results.grid import Grid
from vitssl.words import listed

COUNT = 8  # images side by side in a picture
LARGE_BYTES, QUALITY = 40_000, 85  # a larger PNG stands in the page as WebP of this quality
ROWS = ("seen", "given back", "image")


@dataclass(frozen=True)
class Picture:
    """One picture of one or several runs.

    Attributes:
        caption: what it shows, and whose it is.
        rows: what its rows are called; empty for a single one.
        path: of the PNG file.
    """

    caption: str
    rows: tuple[str, ...]
    path: Path

    def uri(self) -> str:
        """Its content for a page that needs no other file."""
        content, kind = self.path.read_bytes(), "png"
        if len(content) > LARGE_BYTES:
            out = BytesIO()
            Image.open(self.path).save(out, format="WEBP", quality=QUALITY)
            content, kind = out.getvalue(), "webp"
        return f"data:image/{kind};base64,{b64encode(content).decode()}"

    def size_px(self) -> tuple[int, int]:
        """Width and height."""
        with Image.open(self.path) as image:
            return image.size


def pictures(grid: Grid, kind: str, rows: tuple[str, ...] = ()) -> list[Picture]:
    """Of the first seed of every arm, column and stage; runs that saw the same, to the byte, share one picture."""
    found: dict[tuple[str, bytes], tuple[Path, list[str]]] = {}
    for column in grid.columns:
        place = f" on {grid.name(column)}" if grid.axis else ""
        for row in grid.rows:
            cells = row.columns[column]
            for stage, run in (stage for stage in cells[0].stages if stage[1].status != "unreadable") if cells else []:
                user = grid.label(row) + (f": {stage}" if len(cells[0].stages) > 1 else "") + place
                for path in sorted(run.path.glob(f"{kind}-*.png")):
                    name = path.stem.removeprefix(f"{kind}-")
                    found.setdefault((name, path.read_bytes()), (path, []))[1].append(user)
    return [Picture(f"{name}: {listed(users)}", rows, path) for (name, _), (path, users) in found.items()]
