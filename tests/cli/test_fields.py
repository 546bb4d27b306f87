"""The reference of fields: every one has a meaning, it fits a terminal, and what is asked for is found."""

from __future__ import annotations

import dataclasses
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Optional

import pytest

from jobs.site_profile import SITES
from vitssl import cli, config
from vitssl.cli import fields
from vitssl.config import ConfigError, Run
from vitssl.config.base import runtime_field
from vitssl.config.evals import KINDS, EvalConfig
from vitssl.config.fields import fields_of
from vitssl.config.methods import METHODS, method
from vitssl.config.metrics import METRICS


@dataclass
class Part:
    """What a part is.

    And more of it.
    """

    size: int = 3  # pixels


@dataclass
class Base:
    inherited: float = 1.0  # said by the base


@dataclass
class Example(Base):
    inherited: float = 2.0
    # above,
    # and above
    both: bool = False  # and beside
    name: Literal[
        "a", "b",
    ] = "a"  # fmt: skip
    # above a statement
    long: Optional[str] = runtime_field(
        None,  # and in it
    )
    runtime: Optional[int] = runtime_field(None)  # has metadata
    part: Part = field(default_factory=Part)
    parts: list[Part] = field(default_factory=list)  # several
    named: dict[str, Part] = field(default_factory=dict)  # by name
    must: str = "???"  # to be set


def test_names_types_defaults_and_meanings_are_read_from_the_source() -> None:
    found = {one.name: (one.kind, one.default, one.meaning) for one in fields_of(Example, "x.")}
    assert found == {
        "x.inherited": ("number", "2.0", "said by the base"),
        "x.both": ("true | false", "false", "above, and above and beside"),
        "x.name": ("a | b", "a", ""),
        "x.long": ("text | null", "null", "above a statement and in it"),
        "x.runtime": ("whole number | null", "null", "has metadata"),
        "x.part": ("set of fields", None, "What a part is."),
        "x.part.size": ("whole number", "3", "pixels"),
        "x.parts": ("list of sets of fields", "[]", "several"),
        "x.parts[].size": ("whole number", "3", "pixels"),
        "x.named": ("mapping of names", "{}", "by name"),
        "x.named.NAMED.size": ("whole number", "3", "pixels"),
        "x.must": ("text", None, "to be set"),
    }


def test_every_field_has_a_meaning() -> None:
    """A comment beside it; of a set of fields its docstring's first paragraph will do."""
    every = {(one.owner.__name__, one.own_name): one.meaning for listed in fields.sections().values() for one in listed}
    assert len(every) > 200
    assert not {where: text for where, text in every.items() if len(text) < 9 or text.startswith(("fmt:", "noqa"))}


def test_the_reference_has_every_field_of_a_run_and_fits_a_terminal(capsys) -> None:
    assert cli.main(["fields"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) < 80
    first_words = [line.split(":")[0] for line in shown.splitlines() if line and not line.startswith((" ", "-"))]
    assert len(first_words) == len(set(first_words))
    shared = ("data.views.second.", "data.views.local.", "objectives.locality.teacher_backbone.")
    for name in config.dotted(dataclasses.asdict(Run())):
        assert name.startswith(shared) or name in first_words
    for name in ("arms.ARM.published", "resources.gpus_per_node", "site.price_per_gpu_hour", "evals.knn.temperature", "SimMIM"):
        assert name in first_words
    assert (
        "data.views.local: set of fields | null, default null\n    small crops (DINO); its fields are those of data.views.main\n" in shown
    )


def test_every_metric_is_named_where_a_sweeps_is_told_of() -> None:
    table = (Path(__file__).parents[2] / "sweeps" / "README.md").read_text()
    row = next(line for line in table.splitlines() if line.startswith("| `metric` |"))
    told = fields.listing("metric").partition("\n\n")[0]
    assert not [name for name in METRICS if f"`{name}`" not in row or not re.search(rf"\b{name}\b", told)]


def test_where_variables_are_set_it_is_said_that_their_values_are_kept(capsys) -> None:
    assert cli.main(["fields", "site.env"]) == 0
    assert "no secrets: batch scripts and the folders of runs hold the values" in " ".join(capsys.readouterr().out.split())
    for profile in SITES.glob("*.yaml"):
        lines = profile.read_text().splitlines()
        assert all("no secrets" in line for line in lines if line.startswith("env:")), profile


@pytest.mark.parametrize(
    ("pattern", "there", "not_there"),
    [
        (
            "momentum",
            ["optim.momentum: number, default 0.9\n    momentum of sgd and lars", "objectives.dino.center_momentum"],
            ["optim.lr"],
        ),
        ("optim.*lr", ["optim.lr:", "optim.min_lr:"], ["optim.lr_rule:", "momentum"]),
        ("OPTIM.L?", ["optim.lr:"], ["optim.lr_rule"]),
        ("second.scale", ["data.views.second.scale:"], ["data.views.main.scale"]),
        ("knn", ["evals.knn.k: whole number, default 20"], ["evals.linear"]),
        ("sl_vit", ["SL-ViT\n    'backbone={tokenizer: shifted, attention: local}'\n    whole in sweeps/ssat_sota.yaml"], ["optim"]),
    ],
)
def test_a_pattern_is_a_part_of_the_name_a_glob_or_a_method(pattern, there, not_there, capsys) -> None:
    assert cli.main(["fields", pattern]) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in there) and not any(text in shown for text in not_there)


def test_what_begins_a_word_of_a_name_comes_first(capsys) -> None:
    assert cli.main(["fields", "lr"]) == 0
    shown = capsys.readouterr().out
    assert 0 < shown.index("optim.lr:") < shown.index("optim.min_lr:") < shown.index("objectives.simclr:")


def test_the_type_of_an_evaluator_is_explained_by_all_there_are() -> None:
    (meaning,) = [one.meaning for one in fields_of(EvalConfig) if one.name == "type"]
    assert [kind for kind in KINDS if not re.search(rf"\b{kind}\b", meaning)] == []


def test_where_no_name_has_the_words_those_whose_meanings_have_them_are_listed(capsys) -> None:
    assert cli.main(["fields", "Learning rate"]) == 0
    shown = capsys.readouterr().out
    assert all(f"optim.{name}: number" in shown for name in ("lr", "min_lr", "warmup_lr", "layer_decay")) and "weight_decay" not in shown


def test_other_fields_that_have_a_word_as_a_value_or_in_their_meaning_are_named_after_those_of_that_name(capsys) -> None:
    assert cli.main(["fields", "balanced"]) == 0
    first, *_, last = capsys.readouterr().out.strip().split("\n\n")
    assert "data.images.balanced:" in first
    assert " ".join(last.split()) == "balanced is also a value, or in the meaning, of objectives.classify.class_weight"
    assert cli.main(["fields", "lr"]) == 0
    assert "is also a value" not in capsys.readouterr().out, "too short to be meant as a word"


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("learning_rate", "optim.lr"),
        ("learnign_rate", "optim.lr"),
        ("wamrup_epochs", "loop.warmup_epochs"),
        ("num_gpus", "resources.gpus_per_node"),
    ],
)
def test_what_is_not_there_is_one_line_that_names_what_is(pattern, meant, capsys) -> None:
    assert cli.main(["fields", pattern]) == 2
    assert capsys.readouterr().err == f"error: no field matches '{pattern}' (did you mean {meant}?)\n"
    assert cli.main(["fields", "xyzzy"]) == 2
    assert capsys.readouterr().err == "error: no field matches 'xyzzy'; vitssl fields lists all\n"


# -------------------------------------------------------------------------------------------------------------- methods


@pytest.mark.parametrize("one", METHODS, ids=lambda one: one.title)
def test_what_is_to_be_typed_for_a_method_is_a_possible_run(one) -> None:
    for layer in one.fields.get("stages", {"": one.fields}).values():
        plain = {"data.shards": "x"} | ({} if any(name.startswith("objectives") for name in layer) else {"objectives.classify": {}})
        config.check(config.merge(Run, plain, layer))
    sweep = config.read_yaml(Path(__file__).parents[2] / "sweeps" / f"{one.sweep}.yaml")
    assert sweep["arms"]
    if "stages" not in one.fields:  # its words are the same fields
        words = dict(word.split("=", 1) for word in shlex.split(one.words))
        assert config.nested({k: config.read_value(v, k) for k, v in words.items()}) == config.nested(one.fields)


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("simmim", "SimMIM"),
        ("Sim-MIM", "SimMIM"),
        ("convmae", "ConvMAE"),
        ("sl_vit", "SL-ViT"),
        ("slvit", "SL-ViT"),
        ("deit_small", "DeiT"),
    ],
)
def test_a_method_is_known_however_it_is_spelled(name, title) -> None:
    assert method(name).title == title
    assert method("xyzzy") is None


@pytest.mark.parametrize(
    ("layer", "advice"),
    [
        (
            {"objectives.simmim": {}},
            "objectives.simmim: 'simmim' is not a field; for SimMIM write 'objectives.mae={mask_ratio: 0.6, hide: mask,",
        ),
        ({"backbone.name": "sl_vit"}, "backbone.name: 'sl_vit' is none of .*; for SL-ViT write 'backbone={tokenizer: shifted"),
        ({"backbone.name": "vit_tny"}, r"backbone.name: 'vit_tny' is none of .* \(did you mean vit_tiny\?\)"),
        ({"backbone.name": "convnext_tiny"}, "is none of vit_pico, .*; for another .* write name: timm and timm_model: convnext_tiny$"),
        ({"backbone.name": "vit"}, r"\(did you mean vit_pico\?\)"),
        ({"optim.epochs": 3}, r"optim.epochs: 'epochs' is not known \(did you mean loop.epochs\?\)"),
        ({"loop.batch_size": 3}, r"\(did you mean micro_batch_size or optim.batch_size\?\)"),
        ({"data.mask_ratio": 3}, r"\(did you mean objectives.mae.mask_ratio or objectives.lut.mask_ratio"),
        ({"loop.epocs": 3}, r"\(did you mean epochs\?\)"),
    ],
)
def test_a_name_that_is_elsewhere_is_named_there(layer, advice) -> None:
    with pytest.raises(ConfigError, match=advice):
        config.merge(Run, layer)
