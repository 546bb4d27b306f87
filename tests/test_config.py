"""Every mistake is one line that names the field; the identity is what defines the result."""

from __future__ import annotations

import ast
import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from vitssl import config
from vitssl.config import ConfigError, Run, evals
from vitssl.config.fields import fields_of
from vitssl.config.objectives.gmml import Corruptions
from vitssl.config.sweep import Budget, SweepFile

BASE = {"data.shards": "shards/x", "objectives.classify": {}}
PACKAGE = Path(config.__file__).parents[1]


def make(*layers) -> Run:
    run = config.merge(Run, BASE, *layers, where="sweeps/x.yaml")
    config.check(run, where="sweeps/x.yaml")
    return run


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (["optim.lrr=1"], ["optim.lrr", "lr"]),
        (["optim.lr=fast"], ["optim.lr", "fast"]),
        (["loop.epochs=1.5"], ["loop.epochs", "1.5"]),
        ({"objectives.mae": True}, ["objectives.mae", "{}"]),
        ({"objectives.mea": {}}, ["objectives.mea", "mae"]),
        ({"objectives.classify": None}, ["objectives", "no objective is on"]),
        ({"data.shards": "???"}, ["data.shards", "not set"]),
        (["backbone.name=vit_hug"], ["backbone.name", "vit_huge"[:7]]),
        (["backbone.patch_size=15"], ["backbone.patch_size", "224"]),
        (["backbone.num_heads=5"], ["backbone.num_heads", "192"]),
        (["backbone.embed_dim=30", "backbone.positions=sincos", "backbone.num_heads=3"], ["backbone.positions", "30"]),
        (["objectives.mae.mask_ratio=1.0"], ["objectives.mae.mask_ratio"]),
        (["objectives.mae.decoder_heads=7"], ["objectives.mae.decoder_dim", "7"]),
        (["objectives.classify.view=second"], ["objectives.classify", "data.views.second"]),
        (["objectives.classify.weight=-1"], ["objectives.classify.weight"]),
        (["objectives.classify.label_smoothing=1"], ["label_smoothing"]),
        (["data.images.fraction=2"], ["data.images.fraction"]),
        (["data.images.fraction=0.5", "data.images.per_class=5"], ["data.images", "exactly one"]),
        (["data.labels.seed=1"], ["data.labels", "exactly one"]),
        (["data.val_fraction=1.0"], ["data.val_fraction"]),
        (["data.views.main.hflip=2"], ["data.views.main.hflip"]),
        (["data.views.main.scale=[0.5]"], ["data.views.main.scale"]),
        (["data.views.main.erasing_scale=[0.4,0.02]"], ["data.views.main.erasing_scale"]),
        (["data.views.main.erasing_mode=rand"], ["data.views.main.erasing_mode", "rand"]),
        (["data.views.main.auto_augment=rnd"], ["data.views.main.auto_augment"]),
        (["data.views.main.auto_augment_interpolation=nearest"], ["data.views.main.auto_augment_interpolation", "nearest"]),
        (["data.views.main.color=[{jitter: {strength: [0.4]}}]"], ["data.views.main.color[0].jitter.strength", "hue"]),
        (["data.views.main.color=[gray, {jitter: {strength: [0, 0, 0, 0.6]}}]"], ["data.views.main.color[1].jitter.strength", "0.6"]),
        (["data.views.main.color=[{jitter: [0.4, 0.4, 0.4, 0]}]"], ["data.views.main.color[0].jitter: [0.4", "jitter.strength"]),
        (["data.views.main.color=[gray, {gray: {prob: 2}}]"], ["data.views.main.color[1].gray.prob: 2 is not in [0, 1]"]),
        (["data.views.main.color=[gray, {gray: {prob: often}}]"], ["data.views.main.color[1].gray.prob: 'often' is not a number"]),
        (["data.views.main.color=[{blur: {sigma: [2, 1]}}]"], ["data.views.main.color[0].blur.sigma", "rising"]),
        (["data.views.main.color=[{solarize: {threshold: -1}}]"], ["data.views.main.color[0].solarize.threshold: -1 is less than 0"]),
        (["data.views.main.color=[gray, blurr]"], ["data.views.main.color[1].blurr", "did you mean blur?"]),
        (["data.views.main.color=[{blur: {radius: 2}}]"], ["data.views.main.color[0].blur.radius", "'radius' is not known"]),
        (["data.views.main.color=[{one_of: [gray, {blur: {sigm: 2}}]}]"], ["data.views.main.color[0].one_of[1].blur.sigm", "sigma"]),
        (["data.views.main.color=[{one_of: [gray, {blur: {prob: -1}}]}]"], ["data.views.main.color[0].one_of[1].blur.prob: -1"]),
        (["data.views.main.color=[{one_of: [gray, {one_of: [blur]}]}]"], ["data.views.main.color[0].one_of[1].one_of", "is not known"]),
        (["data.views.main.color=[{one_of: []}]"], ["data.views.main.color[0].one_of: there is nothing"]),
        (["data.views.main.color=[{one_of: gray}]"], ["data.views.main.color[0].one_of: 'gray' is not a list; write [...]"]),
        (["data.views.main.color=[{gray: {}, blur: {}}]"], ["data.views.main.color[0]: set exactly one of jitter, gray, blur"]),
        (["data.views.main.color=[{gray: null}]"], ["data.views.main.color[0]: set exactly one of", "{} its defaults"]),
        (["data.views.main.color=[gray, 3]"], ["data.views.main.color[1]: 3 is not a set of fields"]),
        (["data.views.second.color=gray"], ["data.views.second.color: 'gray' is not a list; write [...]"]),
        (["data.views.second.color={gray: {}}"], ["data.views.second.color: {'gray': {}} is not a list"]),
        (["data.views.main.color_jitter=[0, 0, 0, 0]"], ["data.views.main.color_jitter: ", "did you mean data.views.main.color=[{"]),
        ({"data.views.second": {"grayscale_prob": 0.2}}, ["data.views.second.grayscale_prob: ", "did you mean data.views.second.color=[{"]),
        (["data.views.local.blur_sigma=[1, 2]"], ["data.views.local.blur_sigma: ", "did you mean data.views.local.color=[{"]),
        (["data.views.main.solarize_prob=0.2"], ["data.views.main.solarize_prob: ", "did you mean data.views.main.color=[{"]),
        (["data.views.main=3"], ["data.views.main: 3 is not a set of fields"]),
        (["data.views.main.auto_augment=rand-z1"], ["data.views.main.auto_augment"]),
        (["data.views.main.crop=pad", "data.views.main.pad_px=224"], ["data.views.main.pad_px", "224"]),
        (["seed=-1"], ["seed", "-1"]),
        (["data.labelled_batch_fraction=25"], ["data.labelled_batch_fraction: 25 is not in (0, 1)", "data.labelled_batch_fraction=0.25"]),
        (
            ["objectives.mae={}", "optim.batch_size=10", "data.labelled_batch_fraction=0.95"],
            ["data.labelled_batch_fraction: 0.95", "of a batch of 10 images it leaves none without a label"],
        ),
        (["data.mean=0.5"], ["data.mean: 0.5 is not a list; write [...]"]),
        (["data.mean=[0.5,0.5]", "data.std=[0.2,0.2,0.2]"], ["data.mean", "three numbers"]),
        (["data.mean=[0.5,0.5,0.5]", "data.std=[50,50,50]"], ["data.std", "the range of pixels here"]),
        (["data.mean=[0.5,0.5,0.5]"], ["data.mean: set data.std too, or neither"]),
        (["backbone.cls_token_std=-1"], ["backbone.cls_token_std"]),
        (["backbone.shortcut=projection"], ["backbone.shortcut", "a backbone that has this option ("]),
        (["backbone.batch_norm=per_gpu"], ["backbone.batch_norm", "a backbone that has this option ("]),
        (["optim.name=sgd", "optim.nesterov=true", "optim.momentum=0"], ["optim.nesterov", "momentum"]),
        (["optim.decay=['(']"], ["optim.decay", "regular expression"]),
        (["backbone.patch_size=0"], ["backbone.patch_size"]),
        (["objectives.mae.decoder_heads=0"], ["objectives.mae.decoder_heads"]),
        (["optim.min_lr=-1"], ["optim.min_lr"]),
        (["backbone.mlp_ratio=-1"], ["backbone.mlp_ratio"]),
        (["data.workers=-1"], ["data.workers"]),
        (["init_except=['(']"], ["init_except", "regular expression"]),
        (["data.images.fraction=0.5", "data.images.seed=-1"], ["data.images.seed"]),
        (["optim.betas=[0.9]"], ["optim.betas"]),
        (["optim.layer_decay=0"], ["optim.layer_decay"]),
        (["optim.clip=global", "optim.clip_norm=0"], ["optim.clip_norm"]),
        (["loop.schedule_epochs=50"], ["loop.schedule_epochs", "100"]),
        (["loop.warmup_epochs=100"], ["loop.warmup_epochs"]),
        (["loop.ema_decay=1"], ["loop.ema_decay"]),
        (["backbone.frozen=true", "objectives.mae.weight=1"], ["backbone.frozen"]),
        (["init_objectives=[mae]"], ["init_objectives", "mae"]),
    ],
)
def test_a_mistake_is_one_line_naming_file_and_field(layer, words):
    with pytest.raises(ConfigError) as caught:
        make(layer)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("sweeps/x.yaml")
    assert all(word in message for word in words), message


def test_an_error_has_parts_and_its_text_is_their_line():
    with pytest.raises(ConfigError) as caught:
        make(["optim.momentum=2"])
    assert (caught.value.place, caught.value.field, caught.value.reason) == ("sweeps/x.yaml", "optim.momentum", "2 is not in [0, 1)")
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):  # as from a worker process
        assert str(error) == "sweeps/x.yaml: optim.momentum: 2 is not in [0, 1)"
    assert str(ConfigError("no cluster answers")) == "no cluster answers"


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (
            {"init_objectives": ["classify"]},
            r"init_objectives: \['classify'\] has an effect only with init_from; leave it out, or unset it: 'init_objectives=\[\]'",
        ),
        ({"init_except": ["head"]}, r"init_except: \['head'\] has an effect only with init_from"),
        (
            {"optim.clip_norm": 3},
            r"optim\.clip_norm: 3\.0 has an effect only with clip: global or tensor; leave it out, or unset it: optim\.clip_norm=1\.0",
        ),
        ({"optim.momentum": 0.5}, r"optim\.momentum: 0\.5 has an effect only with name: sgd or lars"),
        (
            {"optim.schedule": "constant", "loop.warmup_prefix": False},
            r"loop\.warmup_prefix: .* only with optim\.schedule: cosine",
        ),
        ({"optim.schedule": "constant", "optim.min_lr": 0.5}, r"optim\.min_lr: 0\.5 has an effect only with schedule: cosine or linear"),
        ({"optim.name": "sgd", "optim.betas": [0.9, 0.95]}, r"optim\.betas: .* has an effect only with name: adamw"),
    ],
)
def test_what_has_no_effect_is_refused_in_a_plan_and_read_in_a_run_folder(make_run, tmp_path, layer, words):
    run = make_run({"objectives.classify": {}}, layer)
    with pytest.raises(ConfigError, match=f"^{words}"):
        config.refuse_inactive_fields(run)
    config.save(run, tmp_path)
    assert config.load(tmp_path) == run


def test_a_rate_that_would_rise_to_its_end_is_refused_in_a_plan_and_read_in_a_run_folder(make_run, tmp_path):
    run = make_run({"objectives.classify": {}, "optim": {"lr": 1e-5, "batch_size": 16, "lr_rule": "batch/256"}})
    with pytest.raises(ConfigError, match=r"^optim\.min_lr: 1e-06 is above the learning rate, .* 6\.25e-07, .*; type optim\.min_lr=0$"):
        config.refuse_rising_lr(run)
    config.save(run, tmp_path)
    assert config.load(tmp_path).optim.min_lr == 1e-6
    config.refuse_rising_lr(make_run({"objectives.classify": {}, "optim": {"lr": 1e-5, "min_lr": 0.0}}))


@pytest.mark.parametrize(
    ("field", "value", "owner"),
    [
        ("data.val_seed", 7, "a val_fraction"),
        ("data.val_metric", "loss", "a val_fraction or a val_split"),
        ("data.views.main.pad_px", 3, "crop: pad"),
        ("data.views.main.auto_augment_interpolation", "bilinear", "an auto_augment"),
        ("data.views.main.erasing_scale", [0.02, 0.4], "an erasing_prob"),
        ("data.views.main.erasing_mode", "const", "an erasing_prob"),
        ("data.views.main.mix_prob", 0.5, "a mixup_alpha or cutmix_alpha"),
        ("data.views.main.switch_prob", 0.1, "both mixup_alpha and cutmix_alpha"),
        ("optim.warmup_lr", 0.1, "loop.warmup_epochs"),
    ],
)
def test_what_has_no_effect_is_refused_on_the_command_line(make_run, field, value, owner):
    run = make_run({"objectives.classify": {}, "loop.warmup_epochs": 0}, {field: value})
    config.refuse_inactive_fields(run)  # a sweep may say it for its other arms
    with pytest.raises(ConfigError, match=rf"^{field}: .* has an effect only with {owner}; leave it out, or unset it: "):
        config.refuse_inactive_fields(run, [field])


def test_later_layers_win_and_dotted_keys_nest():
    run = make({"optim": {"lr": 1.0}, "optim.batch_size": 8}, ["optim.lr=0.5"])
    assert (run.optim.lr, run.optim.batch_size) == (0.5, 8)
    assert make({"objectives": {"mae.decoder_dim": 64}, "objectives.mae.weight": 2}).objectives.mae.decoder_dim == 64


def test_an_empty_mapping_leaves_what_is_there_and_null_takes_it_away():
    there = {"objectives.mae": {"weight": 2}}
    assert make(there, {"objectives.mae": {}}).objectives.mae.weight == 2
    assert make(there, {"objectives.mae": None}).objectives.mae is None
    assert make(there, {"objectives.mae": None}, {"objectives.mae": {}}).objectives.mae.weight == 1
    with pytest.raises(ConfigError, match=r"^sweeps/x.yaml: data.shards: not set"):
        make({"data.shards": "???"})
    assert make({"data.shards": "???"}, {"data": {"shards": "y"}}).data.shards == "y"


def test_dotted_is_the_inverse_of_nested():
    layers = {"a.b": 1, "a": {"c.d": [2]}}, {"a.c": {}, "e": None}, {"a.b.f": {}}
    assert config.nested(*layers) == {"a": {"b": {"f": {}}, "c": {"d": [2]}}, "e": None}
    flat = config.dotted(config.nested(*layers))
    assert flat == {"a.b.f": {}, "a.c.d": [2], "e": None} and config.nested(flat) == config.nested(*layers)


@dataclasses.dataclass
class Named:
    """Names that the user chooses, each with fields, as a Run may have them."""

    sets: dict[str, config.Subset] = dataclasses.field(default_factory=dict)
    names: dict[str, str] = dataclasses.field(default_factory=dict)


def test_names_that_the_user_chooses_hold_fields():
    made = config.merge(Named, {"sets": {"few": {"per_class": "5"}}, "names.x": 1}, ["sets.few.seed=3", "sets.all={}"])
    assert made == Named({"few": config.Subset(per_class=5, seed=3), "all": config.Subset()}, {"x": "1"})
    for word, message in (
        ("sets.few.per_clas=1", r"^here: sets\.few\.per_clas: 'per_clas' is not known \(did you mean per_class\?\)$"),
        ("sets.few=1", r"^here: sets\.few: 1 is not a set of fields; .* such as sets\.few\.fraction or sets\.few\.per_class$"),
        ("sets=[few]", r"^here: sets: \['few'\] is not a mapping of names; write \{name: value\}$"),
        ("names.x=[1]", r"^here: names\.x: \[1\] is not text$"),
    ):
        with pytest.raises(ConfigError, match=message):
            config.merge(Named, [word], where="here")


def test_what_is_read_is_not_read_otherwise_again(tmp_path):
    """PyYAML's two parsers take a question mark in braces for different things."""
    (tmp_path / "x.yaml").write_text("data: {train_split: train+unlabeled?, image_size: 32}\nseed: [0, 1, 2]\n")
    assert config.read_yaml(tmp_path / "x.yaml") == {"data": {"train_split": "train+unlabeled?", "image_size": 32}, "seed": [0, 1, 2]}


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\n]", r"x\.yaml: line 2: not YAML: "),
        ("a: 1\na: 2", r"x\.yaml: line 2: a: line 1 sets it too; leave out one$"),
        ("axes: {w: {a: {x: 1}, a: {y: 1}}}", r"x\.yaml: line 1: a: it is there twice; leave out one$"),
        ("arms: {x: {published: {0: 1.0, 0: 2.0}}}", r"x\.yaml: line 1: 0: it is there twice; leave out one$"),
        ("a: &- [*-]", r"x\.yaml: more than 10,000 values, aliases counted as what they stand for$"),
        ("a: ${oc.env:NOT_THERE_AT_ALL}", r"x\.yaml: a: .*NOT_THERE_AT_ALL"),
        (
            "a: 1\nb: ${a}",
            r"x\.yaml: only \$\{oc\.env:NAME\} is supported; to use a value twice",
        ),
        (LAUGHS, r"x\.yaml: (more than 10,000 values, aliases counted|YAML alias expansion)"),
        ("a: &a [*a]", r"x\.yaml: more than 10,000 values, aliases counted as what they stand for$"),
        ("a: " + "[" * 100_000, r"x\.yaml: values are nested too deep$"),
        ("- " * 5_000, r"x\.yaml: values are nested too deep$"),
        ("a: " + "1" * 5_000, r"x\.yaml: Exceeds the limit"),
        ("a: " + "x" * 1_000_001, r"x\.yaml: 1,000,004 characters, more than 1,000,000$"),
        (
            'a: {b: "x\\nrm -rf ~"}',
            r"x\.yaml: a\.b: 'x\\nrm -rf ~' has a line break or another control character; write it in one line without$",
        ),
        ('"a\\x00b": 1', r"x\.yaml: 'a\\x00b' has a line break or another control character"),
        ("[a]", r"x\.yaml: \['a'\] is not a mapping of names"),
    ],
)
def test_a_file_that_is_no_mapping_is_one_line_with_its_place(tmp_path, text, message):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        config.read_yaml(tmp_path / "x.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.b: 1\nc: 1\na: {b: 2}", r"x\.yaml: line 3: a\.b: line 1 sets it too; leave out one$"),
        ("a.b.c: 1\na: {b: {d: 1}}\na.b: {c: 1}", r"line 3: a\.b\.c: line 1 sets it too"),
        ("a: null\na.b: 1", r"line 2: a: line 1 sets it too"),
        ("a.b: 1\na: null", r"line 2: a: line 1 sets it too"),
        ("x: [{a.b: 1, a: {b: 1}}]", r"line 1: x\[0\]\.a\.b: it is there twice; leave out one$"),
        ("evals.my-knn: {k: 1}\nevals: {my-knn: {k: 2}}", r"line 2: evals\.my-knn\.k: line 1 sets it too"),
        ("axes: {w: {small: {a.b: 1, a: {b: 2}}}}", r"axes\[w\]\[small\]\.a\.b: it is there twice"),
        ("a.b: 1\na: {}", None),
        ("'': {a: 1}\na: 2", None),
        ("a: {b: , c: 1}", None),
        ("x: [{a.b: 1}, {a: {b: 1}}]", None),
        ("a: &a {b.c: 1}\nd:\n  <<: *a\n  b: {c: 2}", None),
        ("a: &a {b.c: 1}\nd: {<<: [*a], e: 1}", None),
        ("a.b: 1\narms: {x: {published: {0: 1.0, 0.5: 2.0}, published_cost: {'1': 2.0, '1.5': 2.0}}}", None),
        ("axes: {w: {1: null, 1.5: {a.b: 1}}}", None),
        ("axes: {optim: [{lr: 1}, {lr: 2}], optim.weight_decay: [1, 2], a: {x: {b: 1}, y: {a.b: 1}}}", None),
    ],
)
def test_a_field_that_two_ways_of_writing_set_is_refused_with_both_lines(tmp_path, text, message):
    (tmp_path / "x.yaml").write_text(text)
    if message is None:
        config.read_yaml(tmp_path / "x.yaml")
        return
    with pytest.raises(ConfigError, match=message):
        config.read_yaml(tmp_path / "x.yaml")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('arms: {note: {stages: {"train\\ntouch owned #": {}}}}', "arms.note.stages: 'train"),
        ('additional: {note: "x\\ncmd"}', "additional.note: 'x"),
        ('{"setup\\nx": 1}', "'setup"),
        ('arms: {a: {note: {"b\\nc": 1}}}', "arms.a.note: 'b"),
        ('notes: ["\\e[31m"]', "notes: '"),
    ],
)
def test_only_shell_lines_and_sentences_have_several_lines(tmp_path, text, place):
    """An arm called note, or an option, had them too: its stages' names became lines of the batch script."""
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=f"{place}.*line break or another control character") as caught:
        config.read_yaml(tmp_path / "x.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["- " * 100_000 + "x", "? " * 100_000 + "x", "[" * 100_000, "a: " + "{b: " * 100_000])
def test_deep_nesting_is_a_line_and_no_segmentation_fault(tmp_path, text):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"x\.yaml: values are nested too deep$"):
        config.read_yaml(tmp_path / "x.yaml")
    with pytest.raises(ConfigError, match=r"^name: values are nested too deep$"):
        config.read_value(text, "name")


def test_many_variables_are_refused_before_they_are_looked_up(tmp_path):
    (tmp_path / "x.yaml").write_text("a: " + "${oc.env:HOME}" * 60_000)
    with pytest.raises(ConfigError, match=r"more than 1,000 variables$"):
        config.read_yaml(tmp_path / "x.yaml")


def test_shell_lines_and_notes_may_have_several_lines(tmp_path):
    (tmp_path / "x.yaml").write_text('setup: ["a\\nb"]\narms: {a: {note: "b\\nc"}}\n')
    assert config.read_yaml(tmp_path / "x.yaml") == {"setup": ["a\nb"], "arms": {"a": {"note": "b\nc"}}}


@pytest.mark.parametrize("text", ['"a\\nb"', "${a}${a}", "[" * 200, "1" * 5_000, '"\\x1b[31m"'])
def test_a_hostile_value_of_the_command_line_is_one_line(text):
    with pytest.raises(ConfigError, match=r"^here: name: ") as caught:
        config.read_value(text, "name", "here")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


def test_an_exponent_without_a_dot_is_a_number():
    assert make(["optim.lr=1e-3"]).optim.lr == 1e-3


def test_a_failed_write_leaves_the_old_run_yaml(tmp_path, monkeypatch):
    run = make()
    config.save(run, tmp_path)
    before = (tmp_path / "run.yaml").read_text()

    write = Path.write_text

    def full(path, content, **kwargs):
        write(path, content[:100], **kwargs)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        config.save(run, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"] and (tmp_path / "run.yaml").read_text() == before


def test_save_and_load_give_the_same_run(tmp_path):
    run = make(["objectives.mae.weight=0.9", "data.images.per_class=5"])
    config.save(run, tmp_path)
    assert config.load(tmp_path) == run
    assert "decoder_depth: 8" in (tmp_path / "run.yaml").read_text(), "defaults are explicit"


def test_load_names_a_folder_without_a_run(tmp_path):
    with pytest.raises(ConfigError, match=r"run\.yaml does not exist"):
        config.load(tmp_path)


@pytest.mark.parametrize("layer", [["data.workers=9"], ["data.shards=elsewhere"], ["loop.log_every=1"], ["backbone.fused_attention=false"]])
def test_identity_ignores_what_does_not_change_the_result(layer):
    assert config.identity(make(layer)) == config.identity(make())


@pytest.mark.parametrize("layer", [["seed=1"], ["data.sha256=ab"], ["optim.lr=1"], ["objectives.mae.weight=1"], ["loop.max_steps=5"]])
def test_identity_sees_what_does(layer):
    assert config.identity(make(layer)) != config.identity(make())


@pytest.mark.parametrize(
    ("rule", "batch", "expected"),
    [
        ("none", 64, 1e-3),
        ("batch/256", 64, 2.5e-4),
        ("batch/256", 512, 2e-3),
        ("batch/512", 1024, 2e-3),
        ("sqrt_batch", 256, 4e-3),
        ("sqrt_batch", 4096, 16e-3),
        ("sqrt_batch/8", 1024, 4e-3),
    ],
)
def test_learning_rate_rules(rule, batch, expected):
    run = make([f"optim.lr_rule={rule}", f"optim.batch_size={batch}"])
    assert config.scaled_lr(run.optim, 1e-3) == pytest.approx(expected)


def _schema():
    """(dataclass, field) of everything that can be set."""
    return {(one.owner, one.own_name) for kind in (Run, SweepFile, *evals.KINDS.values()) for one in fields_of(kind)}


def test_every_field_is_read_somewhere():
    """An option that nothing reads is a lie; attribute reads outside the config, or inside its functions, count."""
    read = set()
    for path in [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "jobs").rglob("*.py")]:
        tree = ast.parse(path.read_text())
        read |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}
    # walked by `config.active_views`, `config.active`, `ColorOp.chosen`, `Corruptions.enabled` and `predict.check_budget`
    by_name = (config.Views, config.Objectives, config.ColorOp, config.ColorStep, Corruptions, Budget)
    unread = [f"{cls.__name__}.{name}" for cls, name in _schema() if name not in read and cls not in by_name]
    assert len(_schema()) > 200 and not unread, "nothing reads these fields by name (getattr with a made name does not count)"


def test_the_config_needs_no_torch():
    code = "import sys, vitssl.config; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_list_of_steps_is_replaced_by_a_later_layer():
    run = make({"data.views.main.color": ["gray", "blur"]}, {"data.views.main": {"color": [{"one_of": ["solarize", {"blur.prob": 0.5}]}]}})
    assert run.data.views.main.color == [
        config.ColorStep(one_of=[config.ColorOp(solarize=config.Solarize()), config.ColorOp(blur=config.Blur(prob=0.5))])
    ]


def test_weights_of_another_network_are_refused_unless_that_is_meant(make_run):
    run, other = make_run({"objectives.classify": {}, "init_from": "x"}), make_run({"objectives.classify": {}, "backbone.depth": 3})
    config.check_fits(run, "init_from", run)
    # shapes are the same with other heads, but what they mean is not
    heads = make_run({"objectives.classify": {}, "backbone.num_heads": 2 * config.size_of(run.backbone).num_heads})
    for different, words in ((other, r"depths \(3,\), but this one has \(\d+,\)"), (heads, r"num_heads (\d+), but this one has (?!\1)\d")):
        with pytest.raises(config.ConfigError, match=f"init_from: those weights are from a backbone with {words}"):
            config.check_fits(run, "init_from", different)
    config.check_fits(make_run({"objectives.classify": {}, "init_from": "x", "init_except": ["blocks"]}), "init_from", other)
    masked, more, random = (
        make_run({"objectives.classify": {}, "init_from": "x", "backbone.masked_tokens": {"blocks": 2} | fields})
        for fields in ({}, {"count": 7}, {"selection": "random"})
    )
    config.check_fits(masked, "init_from", more)  # queries are interpolated
    config.check_fits(run, "init_from", random)  # which has none
    for ours, theirs in ((run, masked), (masked, run), (masked, random)):
        with pytest.raises(
            config.ConfigError, match=r"with masked_tokens .*; if that is intended, set init_except: \[\^backbone\.inserted\]"
        ):
            config.check_fits(ours, "init_from", theirs)


def test_a_run_yaml_that_was_cut_short_is_never_read_with_the_defaults_of_what_is_missing(make_run, tmp_path):
    config.save(make_run({"objectives.classify": {}}), tmp_path)
    whole = (tmp_path / "run.yaml").read_text()
    (tmp_path / "job.json").write_text("{}")
    assert config.load(tmp_path).objectives.classify is not None
    for length in range(0, whole.index("init_from:"), 7):
        (tmp_path / "run.yaml").write_text(whole[:length])
        with pytest.raises(ConfigError, match=r"run\.yaml"):
            config.load(tmp_path)


@pytest.mark.parametrize("patch_size", [None, 8, 16])
def test_the_size_of_local_views_that_an_error_names_is_accepted(patch_size):
    fields = {"data": {"shards": "x", "image_size": 64, "views": {"second": {}, "local": {"size": 96}}}, "objectives.dino": {}}
    with pytest.raises(ConfigError, match=r"96 is larger than data\.image_size, 64") as error:
        config.check(config.merge(Run, fields, {"backbone.patch_size": patch_size}))
    size = int(str(error.value).rpartition("=")[2])
    config.check(config.merge(Run, fields, {"backbone.patch_size": patch_size, "data.views.local.size": size}))


@pytest.mark.parametrize(
    ("name", "fields", "kind"),
    [("knn", {}, "knn"), ("linear", {"l2": 0.1}, "linear"), ("knn", {"type": "linear"}, "linear"), ("probe", {}, "classification")],
)
def test_an_evaluator_that_is_named_as_a_type_is_of_it(name, fields, kind):
    assert type(evals.parse(name, fields)) is evals.KINDS[kind]
