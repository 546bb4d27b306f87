"""Rows of pictures as one figure, which is as wide as a page of paper if they then stay large enough.

Each row is one image on the figure's only pair of axes: a pair of axes for every picture, or hundreds of images on one pair, would take
longer than everything else.
"""

from __future__ import annotations

import textwrap

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from vitssl.report.figures import style

SIDE_PX = 160  # side of a picture; larger pictures are averaged, and pixels of smaller ones are repeated
LEAST_IN, MOST_IN = 0.6, 1.0  # width of a picture
LINE_IN, NAME_IN = 0.14, 1.75  # the height of a line, the width of a row's name
GAP = 0.05  # between pictures, as a share of their width
LETTERS = 16  # the longest word above or below a picture, in letters an inch
ROW_LETTERS = 26  # the longest line of a row's name


class Sheet:
    """A figure with ``columns`` pictures in each row, to which rows are added from the top.

    A picture is an array (H, W, 3), of uint8 or of floats from 0 to 1.
    """

    def __init__(self, columns: int):
        self.figure = Figure()
        self.axis = self.figure.add_axes((0, 0, 1, 1))
        self._columns, self._bottom = columns, 0.0
        self._side_in = min(MOST_IN, max(LEAST_IN, (style.WIDTHS_IN[3] - NAME_IN) / (columns * (1 + GAP))))
        self._line = LINE_IN / self._side_in  # the axes are in widths of a picture

    def add(
        self,
        name: str,
        pictures: list[np.ndarray],
        above: list[str] | None = None,
        below: list[str] | None = None,
        square: tuple[float, ...] | None = None,
        colour: str | tuple[float, ...] = style.INK,
    ) -> None:
        """Add a row of pictures below the others.

        Args:
            name: the name of the row, written in ``colour``.
            pictures: the pictures from left to right.
            above, below: words above and below each picture.
            square: left, top, width and height of a frame in each picture, as shares of its sides.
        """
        top = self._bottom + GAP + self._line * bool(above)
        self.axis.text(-GAP, top + 0.5, textwrap.fill(name, ROW_LETTERS), fontsize=7, ha="right", va="center", color=colour)
        self.axis.imshow(_joined(pictures), extent=(0, len(pictures) * (1 + GAP), top + 1, top), interpolation="nearest")
        for column in range(len(pictures)):
            left, middle = column * (1 + GAP), column * (1 + GAP) + 0.5
            if above:
                self.axis.text(middle, top - 0.03, self._short(above[column]), fontsize=7, ha="center", va="bottom")
            if below:
                self.axis.text(middle, top + 1.03, self._short(below[column]), fontsize=6, ha="center", va="top")
            if square:
                x, y, width, height = square
                self.axis.add_patch(Rectangle((left + x, top + y), width, height, fill=False, edgecolor=style.WHITE, linewidth=1.0))
        self._bottom = top + 1 + self._line * bool(below)

    def done(self) -> Figure:
        """Make the figure as large as its rows and return it."""
        name, right = NAME_IN / self._side_in, self._columns * (1 + GAP)
        self.axis.set(xlim=(-name, right), ylim=(self._bottom + GAP, 0), aspect="equal")
        self.axis.set_axis_off()
        self.figure.set_size_inches(self._side_in * (name + right), self._side_in * (self._bottom + GAP))
        return self.figure

    def _short(self, word: str) -> str:
        """Cut the middle out of a long word, since its end may be a probability."""
        letters = int(LETTERS * self._side_in)
        return word if len(word) <= letters else f"{word[: letters // 2]}…{word[-letters // 2 + 1 :]}"


def _joined(pictures: list[np.ndarray]) -> np.ndarray:
    """Join pictures side by side into one RGBA image (SIDE_PX, W, 4), with a transparent gap after each."""
    cells = np.zeros((len(pictures), SIDE_PX, round(SIDE_PX * (1 + GAP)), 4), dtype=np.uint8)
    for cell_HW4, picture in zip(cells, pictures, strict=True):
        cell_HW4[:, :SIDE_PX] = np.dstack([_sized(picture), np.full((SIDE_PX, SIDE_PX), 255, dtype=np.uint8)])
    return np.concatenate(list(cells), axis=1)


def _sized(picture_HWC: np.ndarray) -> np.ndarray:
    """Return a picture as uint8 with sides of SIDE_PX."""
    pixels = picture_HWC if picture_HWC.dtype == np.uint8 else (255 * picture_HWC).round().astype(np.uint8)
    resampling = Image.Resampling.BOX if min(pixels.shape[:2]) > SIDE_PX else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(pixels).resize((SIDE_PX, SIDE_PX), resampling))
