"""Carbon intensity by the hour: closed forms of a made-up day and week, the greenest window by brute force, wrong files."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import pytest

from vitssl.config import ConfigError
from vitssl.costs import intensity
from vitssl.costs.intensity import ByQuarterHour, co2e_kg

DAY = {0: 400, 6: 300, 10: 100, 16: 350, 22: 250}  # g/kWh from these hours on; then till 4 the next day


@pytest.fixture(params=["UTC", "Europe/Berlin", "Asia/Kolkata"])
def zone(request, monkeypatch):
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def written(folder: Path, lines: dict[str, float]) -> Path:
    path = folder / "grid.csv"
    path.write_text("time,g_per_kwh\n" + "".join(f"{when},{grams}\n" for when, grams in lines.items()))
    return path


@pytest.fixture
def day(tmp_path):
    return intensity.read(written(tmp_path, {f"2026-11-23T{hour:02d}:00": grams for hour, grams in DAY.items()}))


@pytest.fixture
def week(tmp_path):
    return intensity.read(written(tmp_path, {"Mon 00:00": 400, "Wed 12:00": 100, "Sat 00:00": 200}))


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_forecast_holds_until_the_next_figure(zone, day):
    assert [day.at(at(f"2026-11-23T{hour}")) for hour in ("00:00", "09:59", "10:00", "23:00")] == [0.4, 0.3, 0.1, 0.25]
    assert day.over(at("2026-11-23T09:00"), at("2026-11-23T11:00")) == pytest.approx(0.2)
    assert day.over(at("2026-11-23T08:00"), at("2026-11-23T18:00")) == pytest.approx((2 * 0.3 + 6 * 0.1 + 2 * 0.35) / 10)
    assert day.end == at("2026-11-24T04:00"), "the last figure holds as long as the one before it"
    assert day.mean == pytest.approx((6 * 0.4 + 4 * 0.3 + 6 * 0.1 + 6 * 0.35 + 6 * 0.25) / 28)
    assert not day.is_known(at("2026-11-22T23:00"), at("2026-11-23T01:00")) and day.at(at("2026-11-30T12:00")) == day.mean


def test_a_week_comes_again(zone, week):
    for monday in ("2026-11-23", "2027-02-01"):
        start = at(f"{monday}T00:00")
        hours = [week.at(start + 3600 * hour) for hour in (0, 59, 60, 119, 120, 167, 168)]
        assert hours == [0.4, 0.4, 0.1, 0.1, 0.2, 0.2, 0.4]
        assert week.over(start, start + 7 * 86400) == pytest.approx(week.mean) == pytest.approx((60 * 0.4 + 60 * 0.1 + 48 * 0.2) / 168)
        assert week.over(start - 86400, start + 86400) == pytest.approx(0.3)
    assert week.is_known(0.0, 1e10)


def test_before_a_weeks_first_figure_its_last_one_holds(tmp_path):
    late = intensity.read(written(tmp_path, {"Tue 08:00": 100, "Fri 20:00": 300}))
    assert [late.at(at(f"2026-11-{day}")) for day in ("23T12:00", "24T07:59", "24T08:00", "28T00:00")] == [0.3, 0.3, 0.1, 0.3]


def test_a_file_as_spreadsheets_write_it_is_read(tmp_path, week):
    path = written(tmp_path, {"Mon 00:00": 400, "Wed 12:00": 100, "Sat 00:00": 200})
    path.write_text(path.read_text().replace("\n", "\r\n"), "utf-8-sig", newline="")
    assert intensity.read(path) == week


@pytest.mark.parametrize("hours", [0.5, 3.0, 6.0, 9.0])
def test_the_greenest_beginning_is_that_of_a_search_by_minutes(zone, day, hours):
    now, length_s = at("2026-11-23T03:00"), 3600 * hours

    def slowly(start: float) -> float:
        """Minute by minute."""
        minutes = int(length_s // 60)
        return sum(day.at(start + 60 * m + 30) for m in range(minutes)) / minutes

    begin = day.greenest(now, 16 * 3600, length_s)
    starts = [now + 900 * step for step in range(65) if now + 900 * step + length_s <= day.end]
    assert slowly(begin) == pytest.approx(min(map(slowly, starts)), abs=1e-9)
    assert begin == min(start for start in starts if slowly(start) < slowly(begin) + 1e-9), "the earliest of several"


def test_what_a_forecast_does_not_reach_begins_now(day):
    now = at("2026-11-23T03:00")
    assert day.greenest(now, 86400.0, 40 * 3600.0) == now
    assert day.greenest(now, 3600.0, 3600.0) == now, "before 6:00 nothing changes"


def test_energy_is_of_the_quarter_of_an_hour_in_which_it_was_drawn():
    drawn, start = ByQuarterHour(), at("2026-11-23T09:50:00+00:00")
    drawn.add(0.0, start)
    drawn.add(1.0, start + 1200)  # half of it before 10:00
    drawn.add(4.0, start + 1200)  # in no time
    drawn.add(4.0, start + 1800)
    assert drawn.kwh == pytest.approx({"2026-11-23T09:45": 0.5, "2026-11-23T10:00": 3.5, "2026-11-23T10:15": 0.0})


def test_no_energy_is_lost_when_the_clock_is_set_back():
    drawn = ByQuarterHour()
    for total_kwh, now in enumerate((1000.0, 1030.0, 1020.0, 1040.0)):
        drawn.add(float(total_kwh), now)
    assert sum(drawn.kwh.values()) == pytest.approx(3.0)


def test_emissions_are_energy_times_the_intensity_of_its_time(day):
    start = at("2026-11-23T10:00")
    hours = ByQuarterHour()
    for hour in range(3):
        hours.add(float(hour), start + 3600 * hour)
    assert co2e_kg(hours.kwh, day) == pytest.approx(2 * 0.1)
    assert co2e_kg(hours.kwh, day, earlier_s=8 * 3600) == pytest.approx(2 * 0.4), "from 2:00 on"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the first line is not time,g_per_kwh"),
        ("hour,g\n1,2\n", "the first line is not time,g_per_kwh"),
        ("time,g_per_kwh\n2026-11-23T14:00,310\n", "at least two lines of one kind are needed"),
        ("time,g_per_kwh\nMon 10:00,310\n2026-11-23T14:00,310\n", "at least two lines of one kind are needed"),
        ("time,g_per_kwh\nMon 10:00,310\nMon 09:00,310\n", "the times do not rise from line to line"),
        ("time,g_per_kwh\nMon 10:00,310\nMoonday,310\n", "line 3: site.intensity_csv: 'Moonday,310' is not a time and figure"),
        ("time,g_per_kwh\nMon 10:00,310\nTue 10:00,-1\n", "line 3"),
        ("time,g_per_kwh\nMon 10:00,310\nTue 10:00,nan\n", "line 3"),
        ("time,g_per_kwh\nMon 10:00\n", "line 2"),
        ("time,g_per_kwh\nMon 25:00,1\nTue 10:00,nan\n", "line 2"),
        ("time,g_per_kwh\n" + "Mon 10:00,310\n" * intensity.MOST_LINES, "it has more than 600,000 lines"),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_one_line(tmp_path, text, said):
    path = tmp_path / "grid.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        intensity.read(path)
    assert said in str(error.value) and str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"gone.csv: site.intensity_csv: cannot be read \(No such file or directory\)"):
        intensity.read(tmp_path / "gone.csv")
