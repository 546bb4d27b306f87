"""Values as OmegaConf reads them, what stands in a record of a run that somebody else gave, and numbers that nobody can print."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from vitssl import config
from vitssl.config import ConfigError, Run
from vitssl.config.documents import dump

SWEEPS = sorted(Path(__file__).parents[1].glob("sweeps/**/*.yaml"))
NUMBERS = ["1e-3", "1E5", "-1.e+2", "1.5e3", ".5", "1.", "1_000", "1_0.5", "0x1f", "0b11", "017", "09", "+3", "-0", ".inf", "-.INF"]
NUMBERS += [".nan", "1_e5", "1__0e5", "2024_e1", ".5e3", ".5e+3"]
WORDS = ["yes", "No", "on", "OFF", "true", "null", "~", "2026-11-29", "1e", "e5", "1-3", "vit_pico", "a b", "é", "<", "1.2.3", "0o7"]
SCALARS = [*NUMBERS, *WORDS, "", "'1e-3'", '"yes"', "!!str 5", "!!float 5", "[]", "{}", "[1, [a, {b: c}]]"]


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_sweep_is_read_as_omegaconf_reads_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of-the-user")
    assert repr(config.read_yaml(path)) == repr(OmegaConf.to_container(OmegaConf.load(path), resolve=True))


def test_a_run_is_written_and_read_as_omegaconf_does(tmp_path: Path) -> None:
    run = config.merge(Run, {"data.shards": "1e-3", "data.cache_dir": "2026-11-29", "objectives.classify": {}, "optim.lr": 1e-7})
    config.save(run, tmp_path)
    assert config.load(tmp_path) == run
    assert OmegaConf.to_container(OmegaConf.load(tmp_path / "run.yaml")) == dataclasses.asdict(run)


@pytest.mark.parametrize("text", SCALARS)
def test_a_value_is_what_omegaconf_takes_it_for(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(f"a:\n  b: {text}\nc: [{text or '~'}]\n")
    read = config.read_yaml(tmp_path / "x.yaml")
    assert repr(read) == repr(OmegaConf.to_container(OmegaConf.load(tmp_path / "x.yaml")))
    assert repr(config.read_value(text, "a")) == repr(read["a"]["b"])


MERGES = [
    "x: &x {lr: 1, name: a}\ny: &y {lr: 2, size: 3}\nz: {<<: [*x, *y], size: 4, new: 5}",
    "x: &x {lr: 1, name: a}\ny: &y {<<: *x, lr: 2}\nz:\n  size: 4\n  <<: *y\n  name: b",
    "x: &x {1: 1, true: 2, lr: {a: 1}}\nz: {<<: *x, 1: 3, lr: {b: 2}}",
    "x: &x [1, {a: 2}]\ny: *x\nz: [*x, *x]",
    "~",
    "---\n# nothing\n",
]


@pytest.mark.parametrize("text", MERGES)
def test_what_merges_and_aliases_stand_for_is_what_omegaconf_takes_it_for(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    assert repr(config.read_yaml(tmp_path / "x.yaml")) == repr(OmegaConf.to_container(OmegaConf.load(tmp_path / "x.yaml")))


def test_what_an_alias_stands_for_is_a_copy(tmp_path: Path) -> None:
    """Else what changes one of them changes the other: an arm's published numbers were gone from a second arm."""
    (tmp_path / "x.yaml").write_text("a: &a {published: {x: 1}}\nb: *a\nc: {<<: *a}")
    read = config.read_yaml(tmp_path / "x.yaml")
    read["a"]["published"].clear()
    assert read["b"] == read["c"] == {"published": {"x": 1}} and read["b"]["published"] is not read["c"]["published"]


@pytest.mark.parametrize("text", [*NUMBERS, *WORDS, "", "1:30", "- a", "a: b", "#", "[", "*a", "\u2028", "x" * 300, "two\nlines\n", "="])
def test_a_text_is_written_so_that_it_is_read_as_that_text(tmp_path: Path, text: str) -> None:
    content = {"a": text, "b": [text], text: 1}
    (tmp_path / "x.yaml").write_text(dump(content), encoding="utf-8")
    assert OmegaConf.to_container(OmegaConf.load(tmp_path / "x.yaml")) == content
    if text.isprintable():
        assert config.read_yaml(tmp_path / "x.yaml") == content


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!!set {a: null}", "no field is of the type !!set"),
        ("!!omap [a: 1]", "no field is of the type !!omap"),
        ("!!binary aGk=", "is neither text nor a number"),
        ("!!timestamp 2026-11-29", "is neither text nor a number"),
        ("!!timestamp x", "'x' is not what its tag says"),
        ("!!bool x", "'x' is not what its tag says"),
        ("!!int ''", "'' is not what its tag says"),
        ("{null: 1}", "'None' is neither text nor a number"),
        ("{? [a] : 1}", "a name is a text or a number"),
        ("{<<: [1]}", "<< merges mappings"),
    ],
)
def test_a_type_that_no_field_has_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.yaml").write_text(f"a: {text}")
    with pytest.raises(ConfigError, match=rf"x\.yaml: .*{message}") as caught:
        config.read_yaml(tmp_path / "x.yaml")
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"^a(\.a)?: "):
        config.read_value(text, "a")


def test_many_values_and_long_names_are_refused_at_once(tmp_path: Path) -> None:
    """Each field's dotted name is kept, which of long names in one another was gigabytes."""
    (tmp_path / "x.yaml").write_text("a: [" + "1, " * 10_000 + "1]")
    with pytest.raises(ConfigError, match=r"x\.yaml: more than 10,000 values$"):
        config.read_yaml(tmp_path / "x.yaml")
    names = [letter * 900 for letter in "abcdefghij"]
    leaves = "{" + ", ".join(f"a{i}: 1" for i in range(4_000)) + "}"
    (tmp_path / "x.yaml").write_text(": {".join(names) + f": {leaves}" + "}" * 9)
    with pytest.raises(ConfigError, match=r"x\.yaml: the name a{80}\.\.\. has more than 1,000 letters$"):
        config.read_yaml(tmp_path / "x.yaml")


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
    with pytest.raises(ConfigError, match=r"x\.yaml: (a whole number of [0-9,]+ bits, more than 1,000|Exceeds the limit .*|.* letters)$"):
        config.read_yaml(tmp_path / "x.yaml")


@pytest.mark.parametrize("field", ["seed", "optim.lr", "loop.epochs"])
def test_a_text_of_many_digits_is_one_line(field):
    with pytest.raises(ConfigError, match=f"^{field}: ") as caught:
        config.check(config.merge(Run, {"data.shards": "x", "objectives.classify": {}}, [f"{field}='{'1' * 5_000}'"]))
    assert "\n" not in str(caught.value)
