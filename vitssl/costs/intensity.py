"""The grid's carbon intensity over time, from a file of a forecast or of a typical week, and the time at which energy is greenest.

The file has two columns with a header, `time,g_per_kwh`. Times are such as 2026-11-23T14:00 (a forecast, in this machine's time zone if
none is given) or Mon 14:00 (a typical week, in this machine's time zone). A figure holds until the next one; the last figure of a forecast
holds for as long as the one before it did.
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
BY_HOUR, OWN_FIGURE = "by the hour", "own figure"  # names of the grid in a record of energy, instead of a country
MOST_LINES = 600_000  # more than a year of minutes
MOST_G = 5000.0  # per kWh: five times lignite's
STEP_S = 900.0  # between the start times that are compared; also the period by which energy is recorded: as fine as forecasts are


@dataclass(frozen=True)
class Intensity:
    """Carbon intensity as a step function of time.

    Attributes:
        times: seconds since 1970 for a forecast, seconds since Monday, 0:00, for a typical week.
        kg_per_kwh: the intensity from each of ``times`` on.
        end: the time until which a forecast is known; None for a week, which repeats.
    """

    times: list[float]
    kg_per_kwh: list[float]
    end: float | None

    @property
    def mean(self) -> float:
        """The mean over the whole forecast or week, in kg/kWh."""
        last = self.end if self.end is not None else self.times[0] + WEEK.total_seconds()
        lengths = [b - a for a, b in zip(self.times, [*self.times[1:], last], strict=True)]
        return sum(length * kg for length, kg in zip(lengths, self.kg_per_kwh, strict=True)) / sum(lengths)

    def is_known(self, start: float, end: float) -> bool:
        """Whether the intensity is known for all of the time from ``start`` to ``end`` (seconds since 1970)."""
        return self.end is None or (self.times[0] <= start and end <= self.end)

    def at(self, time_s: float) -> float:
        """Return the intensity in kg/kWh at a moment (seconds since 1970); beyond a forecast, its mean."""
        if not self.is_known(time_s, time_s):
            return self.mean
        place = bisect.bisect_right(self.times, time_s if self.end is not None else _into_week(time_s))
        return self.kg_per_kwh[place - 1]  # before the first time of a week, its last figure holds

    def over(self, start: float, end: float) -> float:
        """Return the mean intensity in kg/kWh from ``start`` to ``end`` (seconds since 1970) for energy that is drawn evenly.

        mean = sum over steps of (length of the step between ``start`` and ``end`` * its kg/kWh) / (end - start)
        """
        if end <= start:
            return self.at(start)
        cuts = [start, *self._changes(start, end), end]
        return sum((b - a) * self.at((a + b) / 2) for a, b in itertools.pairwise(cuts)) / (end - start)

    def _changes(self, start: float, end: float) -> list[float]:
        """Return the moments between ``start`` and ``end`` at which the intensity changes."""
        if self.end is not None:
            changes = self.times[bisect.bisect_right(self.times, start) : bisect.bisect_left(self.times, end)]
            return [*changes, self.end] if start < self.end < end else changes
        monday, weeks = start - _into_week(start), math.ceil((end - start) / WEEK.total_seconds()) + 1
        moments = (monday + week * WEEK.total_seconds() + time for week in range(weeks) for time in self.times)
        return [moment for moment in moments if start < moment < end]

    def greenest(self, now: float, within_s: float, length_s: float) -> float:
        """Return the time at which work of ``length_s`` should begin, at most ``within_s`` after ``now``, for the lowest mean intensity.

        Of equally good times it is the earliest; it is ``now`` if the intensity is not known long enough for any of them.
        """
        starts = [now + STEP_S * step for step in range(int(within_s // STEP_S) + 1)]
        known = [start for start in starts if self.is_known(start, start + length_s)]
        return min(known, key=lambda start: (round(self.over(start, start + length_s), 9), start), default=now)


def _into_week(time_s: float) -> float:
    """Return the seconds since Monday, 0:00, in this machine's time zone."""
    local = datetime.fromtimestamp(time_s)
    return local.weekday() * 86400 + local.hour * 3600 + local.minute * 60 + local.second + local.microsecond / 1e6


def read(path: str | Path) -> Intensity:
    """Read a file of times and g CO2e per kWh.

    Raises:
        ConfigError: the file or one of its lines is invalid; the message names it.
    """
    try:
        text = read_whole(path).decode("utf-8-sig")  # spreadsheets begin their files with a byte order mark
        if text.count("\n") > MOST_LINES:
            reason = f"it has more than {MOST_LINES:,} lines; leave out those of other years, or write one for each hour"
            raise ConfigError(reason, "site.intensity_csv", str(path))
        rows = [(number, row) for number, row in enumerate(csv.reader(io.StringIO(text, newline="")), start=1) if row]
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
    """Return whether a row is of a typical week, its time in seconds, and its kg/kWh."""
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
    """Energy by the quarter of an hour in which it was drawn, from the readings of a counter."""

    def __init__(self) -> None:
        self.kwh: dict[str, float] = {}
        self._last_kwh = 0.0
        self._last_time_s: float | None = None

    def add(self, total_kwh: float, now: float) -> None:
        """Distribute the energy that was drawn since the last reading evenly over the time since then.

        energy of a quarter hour += drawn * (time of the quarter hour since the last reading) / (time since the last reading)
        """
        drawn, last_read = total_kwh - self._last_kwh, now if self._last_time_s is None else self._last_time_s
        self._last_kwh, self._last_time_s = total_kwh, now
        cut = last_read
        while cut < now:
            end = min(now, (cut // STEP_S + 1) * STEP_S)
            self._put(cut, drawn * (end - cut) / (now - last_read))
            cut = end
        if now <= last_read:  # the first reading, or the clock was set back
            self._put(now, drawn)

    def _put(self, time_s: float, kwh: float) -> None:
        begin = datetime.fromtimestamp(time_s // STEP_S * STEP_S, UTC).strftime("%Y-%m-%dT%H:%M")
        self.kwh[begin] = self.kwh.get(begin, 0.0) + kwh


def co2e_kg(kwh_by_quarter_hour: dict[str, float], intensity: Intensity, earlier_s: float = 0.0) -> float:
    """Return the emissions in kg of energy by quarter hour, or what they would have been if it had been drawn ``earlier_s`` earlier.

    co2e = sum over quarter hours of (kWh * mean kg/kWh of the quarter hour)
    """
    begins = {begin: datetime.fromisoformat(f"{begin}+00:00").timestamp() - earlier_s for begin in kwh_by_quarter_hour}
    return sum(kwh * intensity.over(begins[begin], begins[begin] + STEP_S) for begin, kwh in kwh_by_quarter_hour.items())
