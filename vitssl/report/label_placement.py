"""Labels beside points, where there is room for them: they cover neither each other nor the points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from matplotlib.axes import Axes
from matplotlib.figure import Figure

Line = Sequence[tuple[float, float]]  # corners, in data coordinates
Box = tuple[float, float, float, float]  # px: left, bottom, right, top; matplotlib's Bbox is a hundred times slower to compare
SIZE_PT = 8.0
COVERED = 0.1  # of a label's box, by what stands there or beyond the axes, that it can be read with
STEPS = 50  # boxes that stand for a part of a line
# right, left, above, below and the corners, near first; in points
AROUND = ((1, 0.4), (1, -1), (-1, 0.4), (-1, -1), (0, 1), (0, -1.4), (0, 1.8))
OFFSETS = [(dx * r, dy * r) for r, (dx, dy) in product((7, 14), AROUND)]  # farther away it is not seen whose they are


@dataclass(frozen=True)
class Point:
    """A labelled point with its error bars (half lengths), in data coordinates."""

    x: float
    y: float
    x_error: float
    y_error: float
    text: str
    colour: str


def place_all(figure: Figure, panels: list[tuple[Axes, list[Point], Line]]) -> bool:
    """Annotate the points of every panel, clear of the line that is drawn through it; nothing, where a label would cover something.

    Returns:
        Is there room for all of them?
    """
    figure.draw_without_rendering()  # fixes limits and layout
    placed = [(axis, point, found) for axis, points, line in panels for point, found in _places(axis, points, line)]
    if any(found is None for *_, found in placed):
        return False
    for axis, point, (dx, dy) in placed:
        look = {"color": point.colour, "size": SIZE_PT, "ha": _side(dx), "va": "center"}
        axis.annotate(point.text, (point.x, point.y), (dx, dy), textcoords="offset points", **look)
    return True


def _places(axis: Axes, points: list[Point], line: Line) -> Iterator[tuple[Point, tuple[float, float] | None]]:
    """Where the label of each point goes, relative to it; None where it would cover something.

    Greedy, from the top: for each the first offset at which its box is inside the axes and clear of points, error bars, labels and of the
    drawn ``line``, or all but clear: the one that overlaps least.
    """
    point_px, inside = axis.figure.dpi / 72, axis.get_window_extent().extents
    taken = [box for point in points for box in _marks(axis, point, 4 * point_px)] + _along(axis, line, point_px)
    for point in sorted(points, key=lambda p: -p.y):
        width, height = _size_px(axis, point.text)
        centre = axis.transData.transform((point.x, point.y))
        boxes = [_box(centre, dx * point_px, dy * point_px, width, height) for dx, dy in OFFSETS]
        clashes = [_clash(box, taken, inside) for box in boxes]
        best = clashes.index(min(clashes))  # the first of equals
        taken.append(boxes[best])
        yield point, OFFSETS[best] if clashes[best] <= COVERED * width * height else None


def _marks(axis: Axes, point: Point, size_px: float) -> list[Box]:
    """Boxes (px) of the marker and of both error bars."""
    x, y = axis.transData.transform((point.x, point.y))
    right, top = axis.transData.transform((point.x + point.x_error, point.y + point.y_error))
    halves = [(size_px, size_px), (right - x + 2, size_px / 2), (size_px / 2, top - y + 2)]
    return [(x - w, y - h, x + w, y + h) for w, h in halves]


def _along(axis: Axes, line: Line, size_px: float) -> list[Box]:
    """Boxes (px) that cover a line."""
    corners = axis.transData.transform(line) if len(line) > 1 else []
    places = [a + (b - a) * step / STEPS for a, b in pairwise(corners) for step in range(STEPS + 1)]
    return [(x - size_px, y - size_px, x + size_px, y + size_px) for x, y in places]


def _side(dx: float) -> str:
    return "center" if dx == 0 else "left" if dx > 0 else "right"


def _size_px(axis: Axes, text: str) -> tuple[float, float]:
    probe = axis.text(0, 0, text, size=SIZE_PT)
    box = probe.get_window_extent()
    probe.remove()
    return box.width, box.height


def _box(centre: tuple[float, float], dx: float, dy: float, width: float, height: float) -> Box:
    left = centre[0] + dx - {"left": 0.0, "right": width, "center": width / 2}[_side(dx)]
    bottom = centre[1] + dy - height / 2
    return left, bottom, left + width, bottom + height


def _clash(box: Box, taken: list[Box], inside: Box) -> float:
    """Area (px²) shared with what is taken, and outside the axes."""
    return sum(_shared(box, other) for other in taken) + _shared(box, box) - _shared(box, inside)


def _shared(a: Box, b: Box) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return width * height if width > 0 and height > 0 else 0.0
