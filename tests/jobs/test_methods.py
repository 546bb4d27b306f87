"""The README's table of methods, typed on sweeps that compare unlike arms: each row is trained as it says, or refused with what to type."""

from __future__ import annotations

import re
import shlex
from operator import attrgetter
from pathlib import Path

import pytest

from jobs.plan import overrides, sweep
from jobs.plan.cells import Cell, cells
from jobs.plan.checks import kept_sizes
from vitssl.config import SIZES, BackboneConfig, ConfigError, active, dotted, nested
from vitssl.config.backbones import size_of
from vitssl.config.methods import METHODS, Method

SWEEPS = Path(__file__).parents[2] / "sweeps"
MORE = {"own_images": ["data.source=digits", "axes.seed=[0]"], "quickstart": ["axes.seed=[0]"]}
# rows that one of these sweeps cannot have: their reason
REASONS = {
    ("own_images", "SL-ViT"): "objectives.mae: backbone.tokenizer=shifted lets every token see part of its neighbours",
    ("quickstart", "ConvMAE"): "objectives.mae.mask_ratio: 0.75 keeps none of 1 token",
    ("quickstart", "MT-SiT"): "objectives.simclr: data.views.main.count is 2",
    ("quickstart", "SiT"): "objectives.simclr: data.views.main.count is 2",
}
TYPED = [(name, method) for name in MORE for method in METHODS if "stages" not in method.fields]


def plan(name: str, words: list[str]) -> list[Cell]:
    return cells(sweep.read(SWEEPS / f"{name}.yaml", overrides.parse([*words, *MORE.get(name, ["axes.seed=[0]"])])))


def corrected(words: list[str], error: ConfigError) -> list[str]:
    """The words with what the error says to type in place of what it is about."""
    if re.search(" add |; set |unset it:", error.reason):
        return [*words, *said(error)]
    assert any(f"{error.field}.".startswith(f"{word.partition('=')[0]}.") for word in words)
    return [*(word for word in words if not word.startswith(f"{error.field}=")), *said(error)]


def said(error: ConfigError) -> list[str]:
    """What the error says to type."""
    if error.reason.endswith("; leave it out: it has no effect where the objective is on"):
        return []
    (typed,) = re.findall(
        r"(?:for example|write|add|; set|unset it:) (.*?)(?:, (?:or|where) .*)?(?: \((?:in|the command line set) .*\))?$", error.reason
    )
    return shlex.split(typed)


@pytest.mark.parametrize(("name", "method"), TYPED, ids=[f"{name}-{method.title}" for name, method in TYPED])
def test_a_row_of_the_readme_is_trained_or_refused_with_what_to_type(name: str, method: Method) -> None:
    words, error = shlex.split(method.words), None
    before = {(cell.arm, stage.name): set(active(stage.run.objectives)) for cell in plan(name, []) for stage in cell.stages}
    for _ in range(3):
        try:
            made = plan(name, words)
        except ConfigError as refused:
            error = refused
            if (name, method.title) in REASONS and REASONS[name, method.title] in str(error):
                return
            if method.title == "Locality guidance" and error.field == "objectives.locality.teacher":
                assert "is not an earlier stage of the arm, nor a file or run folder" in error.reason
                return
            if method.title == "Linear probing":
                assert error.reason.endswith("is meant, arms.sslft.pretrain.init_from=RUN or arms.sslft.finetune.init_from=RUN")
                return
            words = corrected(words, error)
            continue
        break
    assert (name, method.title) not in REASONS
    asked = {key for key, value in dict(overrides_of(method)).items() if value is not None}
    after = {(cell.arm, stage.name): set(active(stage.run.objectives)) for cell in made for stage in cell.stages}
    changed = {place for place, kind in after.items() if kind != before[place]}
    assert len(changed) <= 1 and all(asked == after[place] - ({"classify"} - asked) for place in changed)
    assert (error is not None) == bool(asked)
    if "backbone.name" in method.fields:
        assert {stage.run.backbone.name for cell in made for stage in cell.stages} == {method.fields["backbone.name"]}
        assert all(stage.run.backbone.embed_dim is stage.run.backbone.depth is None for cell in made for stage in cell.stages)


def overrides_of(method: Method) -> dict:
    """{objective: fields} that a row switches on."""
    nested = method.fields.get("objectives", {})
    return nested | {key.split(".")[1]: value for key, value in method.fields.items() if key.startswith("objectives.")}


NOT_AN_ARM = {"SSL+FT", "ConvMAE", "DeiT", "Linear probing"}  # of several stages, of other backbones, of a trained run


def test_the_arms_of_methods_are_the_rows_of_the_readme() -> None:
    stages = {cell.arm: cell.stages[-2:] for cell in plan("methods", ["data.shards=shards/digits"])}
    for row in METHODS:
        if row.title in NOT_AN_ARM:
            continue
        trained = next(stage.run for stage in stages[row.arm] if overrides_of(row).keys() <= active(stage.run.objectives).keys())
        assert set(active(trained.objectives)) == (set(overrides_of(row)) or {"classify"})
        for name, value in dotted(nested(row.fields)).items():
            if name.split(".")[-1] not in ("teacher", "size") and value != {}:
                assert attrgetter(name)(trained) == value, (row.title, name)


def test_one_kind_of_stage_takes_an_objective_as_it_stands() -> None:
    made = plan("own_images", ["arms=[scratch]", "objectives.gmml={}"])
    assert [set(active(stage.run.objectives)) for cell in made for stage in cell.stages] == [{"classify", "gmml"}]
    with pytest.raises(ConfigError, match=r"\(sslft.pretrain: mae, sslft.finetune: classify\); say which is meant"):
        plan("own_images", ["arms.sslft.objectives.gmml={}"])
    with pytest.raises(ConfigError, match=r"^command line: axes.task: this would switch it on in different kinds of stage"):
        plan("own_images", ["axes.task={a: {}, b: {objectives.gmml: {}}}"])


def kinds(made: list[Cell]) -> dict[str, set[str]]:
    return {f"{cell.arm}.{stage.name}": set(active(stage.run.objectives)) for cell in made for stage in cell.stages}


@pytest.mark.parametrize(
    ("sweep_name", "word", "instead"),
    [
        ("own_images", "objectives.classify={label_smoothing: 0.1}", "objectives.classify.label_smoothing=0.1"),
        ("quickstart", "objectives.classify={label_smoothing: 0.1}", "objectives.classify.label_smoothing=0.1"),
        ("ssat_vs_sslft", "objectives.classify={label_smoothing: 0.1}", "objectives.classify.label_smoothing=0.1"),
        ("own_images", "objectives.mae={mask_ratio: 0.6}", "objectives.mae.mask_ratio=0.6"),
        ("own_images", "arms.sslft.objectives.mae={mask_ratio: 0.6}", "arms.sslft.objectives.mae.mask_ratio=0.6"),
    ],
)
def test_fields_of_an_objective_that_stages_have_are_set_in_each_that_has_it(sweep_name: str, word: str, instead: str) -> None:
    with pytest.raises(ConfigError, match="different kinds of stage") as error:
        plan(sweep_name, [word])
    assert said(error.value) == [instead]
    made = plan(sweep_name, said(error.value))
    assert kinds(made) == kinds(plan(sweep_name, []))
    (objective, field), value = instead.split("=")[0].split(".")[-2:], float(instead.split("=")[1])
    arm = instead.split(".")[1] if instead.startswith("arms.") else None
    on = [active(stage.run.objectives).get(objective) for cell in made if arm in (None, cell.arm) for stage in cell.stages]
    assert {getattr(fields, field) for fields in on if fields} == {value}


def test_an_objective_of_an_axis_is_set_by_its_fields_there() -> None:
    with pytest.raises(ConfigError, match=r"to change it where it is on, write objectives.mae.mask_ratio=0.6$"):
        plan("own_images", ["axes.ratio={low: {objectives.mae: {mask_ratio: 0.6}}, high: {}}"])
    assert plan("own_images", ["axes.ratio={low: {objectives.mae.mask_ratio: 0.6}, high: {}}"])


def test_no_example_takes_an_objective_from_a_stage_that_has_those_asked_for() -> None:
    with pytest.raises(ConfigError) as error:
        plan("own_images", ["objectives={classify: {weight: 0.2}, mae: {weight: 0.8}}"])
    assert said(error.value) == ["arms.ssat.objectives={classify: {weight: 0.2}, mae: {weight: 0.8}}"]


def test_one_stage_is_of_several_kinds_where_an_axis_makes_them() -> None:
    """At lambda 1.0 the file's Run is from scratch, and so it has to stay."""
    with pytest.raises(
        ConfigError, match=r"\(ssat: classify \+ mae or classify\); leave it out: it has no effect where the objective is on$"
    ):
        plan("ssat_lambda", ["objectives.mae={}"])
    with pytest.raises(ConfigError, match=r"write train\.objectives\.mae\.mask_ratio=0\.6$"):
        plan("ssat_lambda", ["train.objectives.mae={mask_ratio: 0.6}"])
    made = plan("ssat_lambda", ["objectives.mae.mask_ratio=0.6"])
    assert [cell.axes["lambda"] for cell in made if active(cell.stages[0].run.objectives).keys() == {"classify"}] == [1.0, 1.0]
    with pytest.raises(ConfigError) as error:
        plan("ssat_lambda", ["arms.ssat.objectives.gmml={}"])
    assert said(error.value) == ["arms.ssat.objectives={mae: null, gmml: {}}"]
    assert kinds(plan("ssat_lambda", [*said(error.value), "axes.lambda=[0.1]"])) == {"ssat.train": {"classify", "gmml"}}
    assert kinds(plan("ssat_lambda", ["objectives.gmml={}", "axes.lambda=[1.0]"])) == {"ssat.train": {"classify", "gmml"}}


def test_a_stage_that_several_arms_have_may_be_of_several_kinds() -> None:
    with pytest.raises(ConfigError, match=r"^command line: train.objectives.gmml: .*\(scratch: classify, ssat: classify \+ mae\)") as error:
        plan("own_images", ["train.objectives.gmml={}"])
    assert kinds(plan("own_images", said(error.value)))["scratch.train"] == {"classify"}
    assert kinds(plan("own_images", ["pretrain.objectives.gmml={}"]))["sslft.pretrain"] == {"mae", "gmml"}
    assert plan("own_images", ["train={}"])


def test_weights_to_start_from_do_not_cut_a_chain(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^command line: init_from: finetune of sslft starts from its stage pretrain; say which"):
        plan("own_images", [f"init_from={tmp_path}"])
    (sslft,) = plan("own_images", ["arms=[sslft]", f"pretrain.init_from={tmp_path}"])
    assert [stage.run.init_from for stage in sslft.stages] == [str(tmp_path), "pretrain"]


def test_a_named_backbone_is_no_other_of_its_name(capsys) -> None:
    made = plan("own_images", ["backbone.name=vit_tiny"])
    sizes = {size_of(stage.run.backbone) for cell in made for stage in cell.stages}
    assert sizes == {SIZES["vit_tiny"]._replace(patch_size=8)}, "a plain ViT may have any patch"
    note = "note: with backbone.name=vit_tiny the file's depth, embed_dim, num_heads, which are for vit_pico, are left out\n"
    assert capsys.readouterr().err == note
    made = plan("own_images", ["backbone.name=vit_tiny", "backbone={embed_dim: 96, depth: 2, num_heads: 3}"])
    assert {stage.run.backbone.embed_dim for cell in made for stage in cell.stages} == {96} and not capsys.readouterr().err
    assert plan("own_images", ["axes.size=[vit_tiny_224px]"]) and plan("quickstart", ["axes.backbone.name=[vit_tiny,vit_small]"])


def test_what_the_command_line_sets_of_another_backbone_is_not_left_out() -> None:
    words = ["arms=[scratch]", "objectives.classify.pool=mean", "backbone.name=resnet8", "backbone.masked_tokens.count=4"]
    with pytest.raises(ConfigError, match="masked_tokens"):
        plan("quickstart", words)


def test_backbones_of_an_axis_are_those_of_their_names() -> None:
    made = plan("own_images", ["axes.backbone.name=[vit_tiny,vit_small]"])
    assert {size_of(stage.run.backbone).embed_dim for cell in made for stage in cell.stages} == {192, 384}


def test_a_size_of_the_file_that_a_name_has_itself_is_no_other() -> None:
    file_fields = {"name": "vit_pico", "embed_dim": 192, "depth": 12, "num_heads": 3, "mlp_ratio": 4.0}
    assert kept_sizes(BackboneConfig("vit_tiny"), file_fields) == []
    assert kept_sizes(BackboneConfig("vit_small"), file_fields) == ["embed_dim", "num_heads"]
    staged = {"name": "swin_pico", "embed_dim": 96, "depths": [2, 2, 6, 2], "num_heads": 3, "patch_size": 2}
    assert kept_sizes(BackboneConfig("swin_tiny"), staged) == ["patch_size"]


@pytest.mark.parametrize("name", ["own_images", "quickstart", "ssat_vs_sslft"])
@pytest.mark.parametrize("backbone", ["vit_small", "swin_tiny", "swin_pico", "cvt_13"])
def test_what_another_backbone_needs_is_said_until_it_is_there(name: str, backbone: str) -> None:
    words = [f"backbone.name={backbone}", *(["data.image_size=32"] if name == "quickstart" else [])]
    for _ in range(5):
        try:
            made = plan(name, words)
            break
        except ConfigError as error:
            words += said(error)
    assert {stage.run.backbone.name for cell in made for stage in cell.stages} == {backbone}


def test_one_arm_may_have_another_backbone() -> None:
    made = plan("own_images", ["arms.scratch.backbone.name=swin_tiny", "arms.scratch.objectives.classify.pool=mean"])
    assert {(cell.arm, stage.run.backbone.name, size_of(stage.run.backbone).embed_dim) for cell in made for stage in cell.stages} == {
        ("scratch", "swin_tiny", 96), ("sslft", "vit_pico", 128), ("ssat", "vit_pico", 128),
    }  # fmt: skip


def test_what_the_command_line_sets_itself_is_not_taken_back() -> None:
    with pytest.raises(ConfigError, match=r"positions") as error:
        plan("quickstart", ["backbone.name=swin_tiny", "backbone.positions=sincos", "objectives.classify.pool=mean"])
    assert error.value.field == "backbone.positions"
