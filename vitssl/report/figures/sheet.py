"""Rows of pictures, an inch each, as one figure.

A row is one image on the figure's only pair of axes: to lay out a pair for every picture, or to put hundreds of images onto one, takes
longer than all else.
"""

from __future__ import annotations

import textwrap

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from vitssl.report.figures import style

SIDE_PX = 160  # of a picture; larger ones are averaged, of smaller ones pixels are repeated
GAP, LINE, NAME = 0.05, 0.14, 1.75  # inches between pictures, of a line of words, of a row's name
LETTERS = 16  # of a word beside a picture
ROW_LETTERS = 26  # of a line of a row's name


class Sheet:
    """A figure of ``columns`` pictures across, to which rows are added from the top.

    A picture is (H, W, 3), uint8 or from 0 to 1.
    """

    def __init__(self, columns: int):
        self.figure = Figure()
        self.axis = self.figure.add_axes((0, 0, 1, 1))
        self._columns, self._bottom = columns, 0.0

    def add(
        self,
        name: str,
        pictures: list[np.ndarray],
        above: list[str] | None = None,
        below: list[str] | None = None,
        square: tuple[float, ...] | None = None,
        colour: str | tuple[float, ...] = style.INK,
    ) -> None:
        """One more row.

        Args:
            name: of the row, in ``colour``.
            pictures: from the left.
            above, below: words at each of them.
            square: left, top, width and height of what is framed in each, as shares of its sides.
        """
        top = self._bottom + GAP + LINE * bool(above)
        self.axis.text(-GAP, top + 0.5, textwrap.fill(name, ROW_LETTERS), fontsize=7, ha="right", va="center", color=colour)
        self.axis.imshow(_joined(pictures), extent=(0, len(pictures) * (1 + GAP), top + 1, top), interpolation="nearest")
        for column in range(len(pictures)):
            left, middle = column * (1 + GAP), column * (1 + GAP) + 0.5
            if above:
                self.axis.text(middle, top - 0.03, _short(above[column]), fontsize=7, ha="center", va="bottom")
            if below:
                self.axis.text(middle, top + 1.03, _short(below[column]), fontsize=6, ha="center", va="top")
            if square:
                x, y, width, height = square
                self.axis.add_patch(Rectangle((left + x, top + y), width, height, fill=False, edgecolor=style.WHITE, linewidth=1.0))
        self._bottom = top + 1 + LINE * bool(below)

    def done(self) -> Figure:
        """The figure, as large as its rows."""
        right = self._columns * (1 + GAP)
        self.axis.set(xlim=(-NAME, right), ylim=(self._bottom + GAP, 0), aspect="equal")
        self.axis.set_axis_off()
        self.figure.set_size_inches(NAME + right, self._bottom + GAP)
        return self.figure


def _joined(pictures: list[np.ndarray]) -> np.ndarray:
    """Pictures beside each other as one of RGBA, with a transparent gap after each, (SIDE_PX, W, 4)."""
    cells = np.zeros((len(pictures), SIDE_PX, round(SIDE_PX * (1 + GAP)), 4), dtype=np.uint8)
    for cell_HW4, picture in zip(cells, pictures, strict=True):
        cell_HW4[:, :SIDE_PX] = np.dstack([_sized(picture), np.full((SIDE_PX, SIDE_PX), 255, dtype=np.uint8)])
    return np.concatenate(list(cells), axis=1)


def _sized(picture_HWC: np.ndarray) -> np.ndarray:
    pixels = picture_HWC if picture_HWC.dtype == np.uint8 else (255 * picture_HWC).round().astype(np.uint8)
    how = Image.Resampling.BOX if min(pixels.shape[:2]) > SIDE_PX else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(pixels).resize((SIDE_PX, SIDE_PX), how))


def _short(word: str) -> str:
    """Without the middle of a long one, at whose end a probability may be."""
    return word if len(word) <= LETTERS else f"{word[: LETTERS // 2]}…{word[-LETTERS // 2 + 1 :]}"
