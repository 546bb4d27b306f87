"""The grid's carbon intensity by the hour: a file of a forecast, or of a typical week, and when in it energy is greenest.

Two columns with a header, `time,g_per_kwh`: times such as 2026-11-23T14:00 (a forecast, in this machine's zone where none is written), or
Mon 14:00 (a typical week, in this machine's zone). A figure holds until the next one; the last of a forecast for as long as the one before
it did.
"""

from __future__ import annotations

import bisect
import csv
import io
import itertools
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from vitssl.config import ConfigError
from vitssl.reader import read_whole

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
WEEK = timedelta(days=7)
EXAMPLE = "a line is such as 2026-11-23T14:00,310 or Mon 14:00,310"
BY_HOUR, OWN = "by the hour", "own figure"  # what a record of energy has in the country's place
MOST_LINES = 100_000
MOST_G = 5000.0  # per kWh: five times lignite's
STEP_S = 900.0  # between the beginnings that are compared; and the spans of time by which energy is recorded, as fine as forecasts are


@dataclass(frozen=True)
class Intensity:
    """Carbon intensity as steps.

    Attributes:
        times: of a forecast in seconds since 1970; of a typical week in seconds since Monday, 0:00.
        kg_per_kwh: from each of these times on.
        end: of what is known of a forecast; None for a week, which comes again.
    """

    times: list[float]
    kg_per_kwh: list[float]
    end: float | None

    @property
    def mean(self) -> float:
        """Over all that is known, kg/kWh."""
        last = self.end if self.end is not None else self.times[0] + WEEK.total_seconds()
        lengths = [b - a for a, b in zip(self.times, [*self.times[1:], last], strict=True)]
        return sum(length * kg for length, kg in zip(lengths, self.kg_per_kwh, strict=True)) / sum(lengths)

    def knows(self, start: float, end: float) -> bool:
        """Does it say something about all of this time (seconds since 1970)?"""
        return self.end is None or (self.times[0] <= start and end <= self.end)

    def at(self, time_s: float) -> float:
        """kg/kWh at a moment (seconds since 1970); beyond a forecast its mean."""
        if not self.knows(time_s, time_s):
            return self.mean
        place = bisect.bisect_right(self.times, time_s if self.end is not None else _into_week(time_s))
        return self.kg_per_kwh[place - 1]  # before the week's first time it is the week's last

    def over(self, start: float, end: float) -> float:
        """Mean in kg/kWh while as much energy is drawn at any time, from start to end (seconds since 1970)."""
        if end <= start:
            return self.at(start)
        cuts = [start, *self._changes(start, end), end]
        return sum((b - a) * self.at((a + b) / 2) for a, b in itertools.pairwise(cuts)) / (end - start)

    def _changes(self, start: float, end: float) -> list[float]:
        if self.end is not None:
            between = self.times[bisect.bisect_right(self.times, start) : bisect.bisect_left(self.times, end)]
            return [*between, self.end] if start < self.end < end else between
        monday, weeks = start - _into_week(start), math.ceil((end - start) / WEEK.total_seconds()) + 1
        moments = (monday + week * WEEK.total_seconds() + time for week in range(weeks) for time in self.times)
        return [moment for moment in moments if start < moment < end]

    def greenest(self, now: float, within_s: float, length_s: float) -> float:
        """When to begin what takes so long, not later than within this time, for the lowest mean: the earliest of several; now if all that
        is known ends before."""
        starts = [now + STEP_S * step for step in range(int(within_s // STEP_S) + 1)]
        known = [start for start in starts if self.knows(start, start + length_s)]
        return min(known, key=lambda start: (round(self.over(start, start + length_s), 9), start), default=now)


def _into_week(time_s: float) -> float:
    """Seconds since Monday, 0:00, by this machine's clock on the wall."""
    local = datetime.fromtimestamp(time_s)
    return local.weekday() * 86400 + local.hour * 3600 + local.minute * 60 + local.second + local.microsecond / 1e6


def read(path: str | Path) -> Intensity:
    """A file of times and g CO2e per kWh.

    Raises:
        ConfigError: naming the line that is not as it should be.
    """
    try:
        lines = itertools.islice(io.StringIO(read_whole(path).decode("utf-8"), newline=""), MOST_LINES)
        rows = [(number, row) for number, row in enumerate(csv.reader(lines), start=1) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"cannot be read ({getattr(error, 'strerror', None) or error})", "site.intensity_csv", str(path)) from None
    if not rows or [name.strip() for name in rows[0][1]] != ["time", "g_per_kwh"]:
        raise ConfigError(f"the first line is not time,g_per_kwh; then {EXAMPLE}", "site.intensity_csv", str(path))
    points = [_point(row, f"{path}: line {number}") for number, row in rows[1:]]
    weekly = {week for week, _, _ in points}
    if len(points) < 2 or len(weekly) > 1:
        raise ConfigError(f"at least two lines of one kind are needed; {EXAMPLE}", "site.intensity_csv", str(path))
    times = [time for _, time, _ in points]
    if any(b <= a for a, b in itertools.pairwise(times)):
        raise ConfigError("the times do not rise from line to line", "site.intensity_csv", str(path))
    end = None if weekly == {True} else times[-1] + (times[-1] - times[-2])
    return Intensity(times, [kg for _, _, kg in points], end)


def _point(row: list[str], where: str) -> tuple[bool, float, float]:
    """Is it of a week; its time and kg/kWh."""
    try:
        text, grams = row[0].strip(), float(row[1])
        day, _, clock = text.partition(" ")
        if week := day.lower() in DAYS:
            moment = datetime.strptime(clock, "%H:%M")
            time_s = DAYS.index(day.lower()) * 86400.0 + moment.hour * 3600 + moment.minute * 60
        else:
            time_s = datetime.fromisoformat(text).timestamp()
    except (ValueError, IndexError, OverflowError, OSError):
        raise ConfigError(f"{','.join(row)[:60]!r} is not a time and figure; {EXAMPLE}", "site.intensity_csv", where) from None
    if len(row) != 2 or not 0 <= grams <= MOST_G:
        raise ConfigError(f"{','.join(row)[:60]!r}: {EXAMPLE}, of at most {MOST_G:g} g/kWh", "site.intensity_csv", where)
    return week, time_s, grams / 1000


class ByQuarterHour:
    """Energy by the quarter of an hour in which it was drawn, from readings of a counter."""

    def __init__(self) -> None:
        self.kwh: dict[str, float] = {}
        self._before, self._then = 0.0, None

    def add(self, total_kwh: float, now: float) -> None:
        """What was drawn since the last reading, shared out evenly over that time."""
        drawn, then = total_kwh - self._before, now if self._then is None else self._then
        self._before, self._then = total_kwh, now
        cut = then
        while cut < now:
            end = min(now, (cut // STEP_S + 1) * STEP_S)
            self._put(cut, drawn * (end - cut) / (now - then))
            cut = end
        if now <= then:  # clocks are set back, too
            self._put(now, drawn)

    def _put(self, time_s: float, kwh: float) -> None:
        begin = datetime.fromtimestamp(time_s // STEP_S * STEP_S, UTC).strftime("%Y-%m-%dT%H:%M")
        self.kwh[begin] = self.kwh.get(begin, 0.0) + kwh


def co2e_kg(kwh_by_quarter_hour: dict[str, float], intensity: Intensity, earlier_s: float = 0.0) -> float:
    """Emissions of energy by the quarter of an hour; or what they had been, had all been drawn so much earlier."""
    begins = {begin: datetime.fromisoformat(f"{begin}+00:00").timestamp() - earlier_s for begin in kwh_by_quarter_hour}
    return sum(kwh * intensity.over(begins[begin], begins[begin] + STEP_S) for begin, kwh in kwh_by_quarter_hour.items())
