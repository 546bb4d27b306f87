"""A Run's identity: finished runs are found again; what changes the result changes it, and nothing else."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from jobs.plan.existing_runs import identity_of
from vitssl import config
from vitssl.config import ConfigError, Run
from vitssl.config.base import element_types_of, parts_of
from vitssl.config.evals import KINDS
from vitssl.files import read_json, write_json

GOLDEN = Path(__file__).parent / "golden"
BILINEAR = {"auto_augment_interpolation": "bilinear"}
GLOBAL = [
    {"jitter": {"strength": [0.4, 0.4, 0.2, 0.1], "prob": 0.8}}, {"gray": {"prob": 0.2}}, {"blur": {"prob": 0.1}},
    {"solarize": {"prob": 0.2}},
]  # fmt: skip
# the fields of Runs as a sweep says them, and their identity; tests/golden/runs holds the run.yaml of some
FROZEN: dict[str, tuple[dict[str, Any], str]] = {
    "classify": ({"objectives.classify": {}}, "66c4b984dcdc"),
    "mae": ({"objectives.mae": {}, "backbone.positions": "sincos"}, "3b82389e481f"),
    "dino": (
        {
            "objectives.dino": {}, "backbone.interpolate_antialias": True, "data.views.second": {"color": GLOBAL},
            "data.views.local": {"size": 96, "count": 8, "color": [{"blur": {"prob": 0.5, "sigma": [0.5, 1.5]}}]},
        }, "f23819532cfd",
    ),
    "simclr": ({"objectives.simclr": {}, "data.views.second": {}, "loop.ema_decay": 0.99}, "74f23e6cea0f"),
    "drloc": ({"objectives": {"classify.pool": "mean", "drloc": {}}, "backbone": {"name": "cvt_13", "variant": "drloc"}}, "6ba1e0d9d770"),
    "locality": ({"objectives.classify": {}, "objectives.locality": {"teacher": "x"}}, "7efd88b49a30"),
    "augmented": (
        {"objectives.classify": {}, "data.views.main": BILINEAR | {"auto_augment": "rand-m9-mstd0.5-inc1", "erasing_prob": 0.25}},
        "ac4210590da3",
    ),
    "sgd": ({"objectives.classify.pool": "mean", "optim.name": "sgd", "backbone.name": "resnet56"}, "74d2ebc6c540"),
    "layer_decay": ({"objectives.classify": {}, "optim.layer_decay": 0.75}, "e24ee1a2680a"),
    "dino_batch_norm": (
        {"objectives.dino": {"batch_norm": True, "teacher_batch_norm": "running"}, "data.views": {"second": {}, "local.size": 224}},
        "3a170e4c6dee",
    ),
    "cifar10": ({"objectives.classify": {}, "data.views.main.auto_augment": "cifar10"}, "43dd7de031f5"),
}  # fmt: skip


def make(*layers: dict[str, Any]) -> Run:
    return config.merge(Run, {"data.shards": "x"}, *layers)


@pytest.mark.parametrize("name", FROZEN)
def test_a_runs_identity_stays_as_it_is(name, tmp_path):
    fields, expected = FROZEN[name]
    run = make(fields)
    assert config.identity(run) == expected
    config.save(run, tmp_path)
    assert config.load(tmp_path) == run and config.identity(config.load(tmp_path)) == expected


@pytest.mark.parametrize("name", sorted(path.stem for path in (GOLDEN / "runs").iterdir()))
def test_a_finished_run_is_found_again_by_what_its_run_yaml_says(name, tmp_path):
    """The file as 0.1.0 writes it; fields that come later are not in it, and have their default."""
    (tmp_path / "run.yaml").write_bytes((GOLDEN / "runs" / f"{name}.yaml").read_bytes())
    assert config.identity(config.load(tmp_path)) == FROZEN[name][1]


def test_a_field_of_a_run_yaml_that_no_longer_exists_is_one_line(tmp_path):
    config.save(make(), tmp_path)
    path = tmp_path / "run.yaml"
    path.write_text(path.read_text().replace("hflip:", "mirror:"))
    with pytest.raises(ConfigError, match=r"^\S+run.yaml: data.views.main.mirror: 'mirror' is not known \(there is [^\n]*\)$"):
        config.load(tmp_path)


def test_a_folder_whose_record_has_no_identity_has_that_of_its_run_yaml(tmp_path):
    config.save(run := make({"objectives.classify": {}}), tmp_path)
    write_json(tmp_path / "job.json", {"schema": config.SCHEMA})
    assert identity_of(tmp_path) == config.identity(run)


def test_no_default_changes_without_the_schema():
    """What differs from the defaults would say something else: raise SCHEMA in config/identity.py, and write the file anew by deleting it.

    A new field has to stand there too: delete the file and run the test twice.
    """
    golden, now = GOLDEN / "defaults.json", {"schema": config.SCHEMA, "fields": _defaults(Run)}
    if not golden.exists():
        golden.write_text(json.dumps(now, indent=1) + "\n")
        pytest.fail(f"wrote {golden.name}: there was none to compare with")
    assert now == read_json(golden)


def _defaults(kind: type) -> dict[str, Any]:
    """{class.field: default} of all parts of a Run whose fields are in its identity."""
    found = {}
    for f in dataclasses.fields(kind):
        if f.metadata.get("identity", True):
            value = f.default if f.default is not dataclasses.MISSING else f.default_factory()
            found[f"{kind.__name__}.{f.name}"] = type(value).__name__ if dataclasses.is_dataclass(value) else value
    for part in {*parts_of(kind).values(), *element_types_of(kind).values()}:
        found |= _defaults(part)
    return dict(sorted(found.items()))


def test_the_default_settings_hash_to_almost_nothing(make_run):
    """So that a field that is new leaves the identity of finished runs alone."""
    from vitssl.config.identity import _differing

    assert _differing(make({"objectives.classify": {}}), Run()) == {"objectives": {"classify": {}}}


def test_evaluators_and_what_belongs_to_a_machine_have_no_part_in_it():
    plain = config.identity(make({"objectives.classify": {}}))
    for fields in ({f"evals.{kind}.type": kind for kind in KINDS}, {"loop.threads": 7, "data.workers": 0, "data.shards": "y"}):
        assert config.identity(make({"objectives.classify": {}}, fields)) == plain


@pytest.mark.parametrize(
    "fields",
    [
        {"optim.momentum": 0.5},  # of SGD
        {"optim.clip_norm": 2.0},  # nothing is clipped
        {"data.val_seed": 3},
        {"data.views.main.pad_px": 2},
        {"objectives.classify.activation": "tanh"},
        {"backbone.interpolate_antialias": True},  # all images are of one size
    ],
)
def test_a_field_without_effect_has_no_part_in_it(fields):
    assert config.identity(make({"objectives.classify": {}}, fields)) == config.identity(make({"objectives.classify": {}}))


def test_what_chooses_an_epoch_counts_where_a_classifier_is_trained():
    held_out = {"data.val_fraction": 0.2}
    for objectives, counts in (({"objectives.mae": {}}, False), ({"objectives.classify": {}}, True)):
        chosen = make(objectives, held_out, {"data.val_metric": "loss"})
        assert (config.identity(chosen) != config.identity(make(objectives, held_out))) is counts


def test_the_labelled_part_of_a_batch_counts_where_it_is_read():
    """Not where labels are not read, nor where all images have one."""
    for objectives, counts in (("mae",), False), (("classify",), False), (("classify", "mae"), True):
        plain = {f"objectives.{name}": {} for name in objectives}
        assert (config.identity(make(plain, {"data.labelled_batch_fraction": 0.25})) != config.identity(make(plain))) is counts


@pytest.mark.parametrize("without", ["auto_augment", "erasing_prob"])
def test_a_field_counts_where_it_is_read(without):
    view = {"auto_augment": "cifar10", "erasing_prob": 0.25}
    changed = {"auto_augment": BILINEAR, "erasing_prob": {"erasing_mode": "const", "erasing_scale": [0.02, 0.4]}}
    del view[without]
    plain = make({"objectives.classify": {}, "data.views.main": view})
    for owner, fields in changed.items():
        other = make({"objectives.classify": {}, "data.views.main": view | fields})
        assert (config.identity(other) == config.identity(plain)) == (owner == without)


def test_slices_are_part_of_it_where_batch_norms_take_their_statistics():
    def of(**fields) -> str:
        return config.identity(make({"objectives.classify.pool": "mean", "backbone.name": "resnet50"}, fields))

    few = {"loop.micro_batch_size": 16}
    per_gpu, whole = {"backbone.batch_norm": "per_gpu"}, {"loop.micro_batch_size": 1024}
    assert of(**per_gpu, **whole) == "dddecafadc9a"  # as it was
    assert len({of(), of(**few), of(**per_gpu), of(**per_gpu, **few)}) == 4
    assert of(**{"loop.micro_batch_size": 1024}) == of()  # a batch has no more images
    probe = {"backbone.frozen": True, "init_from": "x"}
    assert of(**probe, **few) == of(**probe)  # a frozen one's are those that it came with


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({"objectives.classify": {}}, False),
        ({"objectives.mae": {}}, False),
        ({"objectives.classify": {"norm": "batch"}}, True),
        ({"objectives.classify": {"extra_heads": [{"norm": "batch"}]}}, True),
        ({"objectives.lut": {}, "data.views.second": {}}, True),
        ({"objectives.lut": {"batch_norm": False}, "data.views.second": {}}, False),
        ({"objectives.dino": {"batch_norm": True, "local": None}, "data.views.second": {}}, True),
        ({"objectives.dino": {"local": None}, "data.views.second": {}}, False),
    ],
)
def test_slices_count_where_an_objectives_head_has_batch_norms(fields, counts):
    sliced = make(fields, {"loop.micro_batch_size": 16})
    assert (config.identity(sliced) != config.identity(make(fields))) == counts


def test_steps_of_a_views_colour_count_by_their_content():
    colors = [
        [], ["gray"], ["blur"], ["solarize"], ["jitter"], ["jitter", "gray"], ["gray", "blur"], ["gray", "jitter"], ["gray", "gray"],
        ["gray", {"gray": {"prob": 0.5}}], [{"solarize": {"threshold": 100}}], [{"one_of": ["gray"]}], [{"one_of": ["gray", "blur"]}],
        [{"one_of": ["blur", "gray"]}], [{"one_of": ["gray", {"blur.prob": 0.5}]}],
    ]  # fmt: skip
    assert len({config.identity(make({"data.views.main.color": color})) for color in colors}) == len(colors)
    spelt = (["gray", "jitter"], [{"gray": {}}, {"jitter": {"prob": 1, "strength": [0.4, 0.4, 0.4, 0]}}])
    assert len({config.identity(make({"data.views.main.color": color})) for color in spelt}) == 1


def test_labels_that_training_does_not_read_are_no_part_of_it():
    hidden, more = ({"data.labels": {"per_class": n}} for n in (5, 10))
    assert config.identity(make({"objectives.mae": {}}, hidden)) == config.identity(make({"objectives.mae": {}}, more))
    both = {"objectives": {"classify": {}, "mae": {}}}
    assert config.identity(make(both, hidden)) != config.identity(make(both, more))
