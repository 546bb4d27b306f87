"""The energy of steps that a kill lost, and that were trained again."""

from __future__ import annotations

import pytest

from tests.ranks import start_ranks
from tests.training.test_train import CLASSIFY, wait_for_step
from vitssl import train
from vitssl.files import read_events, read_json
from vitssl.run_folder import lost_kwh


def starts(*steps: tuple[int, int]) -> list[dict]:
    """Of attempts that began at a step, the one before having lost some."""
    return [{"event": "start", "attempt": i, "step": step, "lost_steps": lost} for i, (step, lost) in enumerate(steps)]


def records(*kwh: float) -> list[dict]:
    return [{"attempt": i, "energy_kwh": value} for i, value in enumerate(kwh)]


@pytest.mark.parametrize(
    ("events", "lost"),
    [
        (starts((0, 0)), 0.0),
        (starts((0, 0), (50, 0)), 0.0),  # it was asked to stop, and saved
        (starts((0, 0), (30, 10)), 8 * 10 / 40),
        (starts((0, 0), (0, 20)), 8.0),  # before its first checkpoint
        (starts((0, 0), (30, 10), (40, 40)), 8 * 10 / 40 + 4 * 40 / 50),
        (starts((0, 0), (43, 0), (0, 40)), 8.0),  # its checkpoint was deleted before the next had logged a step
        (starts((0, 0), (100, 0), (0, 100)), 8.0),
        (starts((0, 0), (100, 0), (50, 80)), 8 * 50 / 100 + 4.0),  # its last checkpoint was damaged
        (starts((0, 0), (40, 0), (20, 30), (10, 15)), 8 * 30 / 40 + 4.0 + 1.0),
    ],
)
def test_an_attempt_s_energy_is_lost_as_far_as_its_steps_are(events, lost) -> None:
    assert lost_kwh(events, records(8.0, 4.0, 1.0, 1.0)) == pytest.approx(lost)


def test_two_nodes_of_an_attempt_count_both() -> None:
    assert lost_kwh(starts((0, 0), (30, 10)), [*records(8.0, 1.0), *records(4.0)]) == pytest.approx(12 * 10 / 40)


def test_a_killed_run_records_how_much_its_next_attempt_trains_again(folder) -> None:
    run = folder("run", CLASSIFY, {"loop": {"max_steps": 100, "log_every": 1, "eval_every": 0, "checkpoint_minutes": 60}})
    (process,) = start_ranks(run, 1)
    wait_for_step(run, 5)
    process.kill()
    process.wait(60)
    reached = max(event["step"] for event in read_events(run / "metrics.jsonl") if event["event"] == "train")
    assert train.main([str(run)]) == 0
    events = read_events(run / "metrics.jsonl")
    assert [event["lost_steps"] for event in events if event["event"] == "start"] == [0, reached]
    emissions = [read_json(path) for path in sorted(run.glob("emissions-*.json"))]
    assert lost_kwh(events, emissions) == sum(record["energy_kwh"] for record in emissions if record["attempt"] == 0)
