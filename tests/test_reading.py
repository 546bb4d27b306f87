"""What stands in a record of a run that somebody else gave, and numbers that nobody can print."""

from __future__ import annotations

import pytest

from vitssl import config
from vitssl.config import ConfigError, Run


@pytest.mark.parametrize("value", ["${oc.env:SECRET}", '"\\x24{oc.env:SECRET}"', "${oc.env:SECRET_NOT_SET}", "${oc.decode:1}", "x${}"])
def test_a_runs_record_reads_no_environment(tmp_path, monkeypatch, value):
    """Else the folder that somebody gave shows what is in it, in a report or in the message of a check."""
    monkeypatch.setenv("SECRET", "of-the-user")
    config.save(config.merge(Run, {"data.shards": "shards/x", "objectives.classify": {}}), tmp_path)
    written = (tmp_path / "run.yaml").read_text()
    (tmp_path / "run.yaml").write_text(written.replace("shards/x", value))
    with pytest.raises(ConfigError, match=r"run\.yaml: .* is looked up nowhere, .*; write the value itself$") as caught:
        config.load(tmp_path)
    assert "of-the-user" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("mark", ["$", "\\x24"])
def test_variables_that_double_one_another_are_refused_however_they_are_written(tmp_path, mark):
    lines = ["a0: x", *(f'a{i + 1}: "{mark}{{a{i}}}{mark}{{a{i}}}"' for i in range(40))]
    (tmp_path / "x.yaml").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=r"only \$\{oc\.env:NAME\} is supported"):
        config.read_yaml(tmp_path / "x.yaml")


@pytest.mark.parametrize("number", ["1:30", "90:00", "-1:4", "1:30.5", "1" + ":00" * 900])
def test_a_number_to_the_base_of_60_is_refused(tmp_path, number):
    """YAML 1.1 reads 1:30 as 90: hours of a job, or a batch size, sixty times as many as meant."""
    with pytest.raises(ConfigError, match=r"^seed: \S+ would be a number to the base of 60; write a decimal one, or quote it"):
        config.merge(Run, {"data.shards": "x", "objectives.classify": {}}, [f"seed={number}"])
    (tmp_path / "x.yaml").write_text(f"a: [{number}]")
    with pytest.raises(ConfigError, match=r"x\.yaml: \S+ would be a number to the base of 60"):
        config.read_yaml(tmp_path / "x.yaml")
    (tmp_path / "x.yaml").write_text(f"a: ['{number}', 1:75, a1:30]")
    assert config.read_yaml(tmp_path / "x.yaml") == {"a": [number, "1:75", "a1:30"]}


@pytest.mark.parametrize("field", ["seed", "optim.batch_size", "loop.epochs", "data.shards", "optim.lr", "backbone.name", "data"])
@pytest.mark.parametrize("number", ["0x" + "f" * 9_000, "0b" + "1" * 4_000, "-0x" + "f" * 400])
def test_a_whole_number_that_nothing_holds_is_one_line(tmp_path, field, number):
    """Python reads it, and fails where a message or a record has it in decimals, or a float is made of it."""
    with pytest.raises(ConfigError, match=f"^{field}: a whole number of [0-9,]+ bits, more than 1,000$"):
        config.merge(Run, {"data.shards": "x", "objectives.classify": {}}, [f"{field}={number}"])
    (tmp_path / "x.yaml").write_text(f"{field}: [{number}]")
    with pytest.raises(ConfigError, match=r"x\.yaml: .*a whole number of [0-9,]+ bits, more than 1,000$"):
        config.read_yaml(tmp_path / "x.yaml")
    (tmp_path / "x.yaml").write_text(f"? {number}\n: 1")
    with pytest.raises(ConfigError, match=r"x\.yaml: (a whole number of [0-9,]+ bits, more than 1,000|Exceeds the limit .*)$"):
        config.read_yaml(tmp_path / "x.yaml")


@pytest.mark.parametrize("field", ["seed", "optim.lr", "loop.epochs"])
def test_a_text_of_many_digits_is_one_line(field):
    with pytest.raises(ConfigError, match=f"^{field}: ") as caught:
        config.check(config.merge(Run, {"data.shards": "x", "objectives.classify": {}}, [f"{field}='{'1' * 5_000}'"]))
    assert "\n" not in str(caught.value)
