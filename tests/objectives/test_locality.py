"""Locality guidance: the loss against a slow loop, what is trained and what is not, a real chain from teacher to student."""

from __future__ import annotations

import dataclasses
import re
import shutil

import pytest
import torch
from omegaconf import OmegaConf
from torch._dynamo.testing import CompileCounter

import vitssl
from jobs.plan import sweep
from jobs.plan.cells import cells
from tests.conftest import TINY
from tests.objectives.conftest import batch_of
from tests.ranks import run_ranks
from vitssl import config, model, train
from vitssl.checkpoints import tensor_files
from vitssl.config.masked_tokens import MaskedTokens
from vitssl.costs import cost
from vitssl.files import read_events, read_json
from vitssl.objectives.locality import map_error
from vitssl.run_folder import LAST

OVER_RANKS = "it needs a teacher that is trained first; test_two_ranks_train_as_one"
CNN = {"name": "resnet8", "patch_size": None, "embed_dim": None, "depth": None, "num_heads": None}
TEACHER = {"backbone": CNN, "objectives.classify": {"pool": "mean"}}
GUIDANCE = {"teacher": "somewhere", "teacher_backbone": {"name": "resnet8"}, "teacher_px": 8, "blocks": [0, 1, 1], "weight": 2.5}
GUIDED = {"objectives": {"classify": {}, "locality": GUIDANCE}}
LONG = {"loop": {"epochs": 1, "warmup_epochs": 0, "max_steps": 6, "log_every": 1, "eval_every": 0}}


def weight(i: int, j: int, old: int, new: int) -> float:
    """Of pixel j in pixel i of a line that is resized linearly: a hat around its own place, which stops at the borders."""
    place = min(max((i + 0.5) * old / new - 0.5, 0), old - 1)
    return max(0.0, 1 - abs(place - j))


def slow_resize(map_DHW: torch.Tensor, side: int) -> torch.Tensor:
    old, out = map_DHW.shape[-1], torch.zeros(len(map_DHW), side, side)
    for r in range(side):
        for c in range(side):
            for y in range(old):
                for x in range(old):
                    out[:, r, c] += weight(r, y, old, side) * weight(c, x, old, side) * map_DHW[:, y, x]
    return out


def slow_loss(network: model.Model, images_BCHW: torch.Tensor) -> float:
    """Image by image, block by block, pixel by pixel."""
    student, objective = network.backbone, network.objectives["locality"]
    teacher, total = objective.teacher, 0.0
    for image_CHW in images_BCHW:
        small = slow_resize(image_CHW, objective.cfg.teacher_px)
        tokens = student.embed(image_CHW[None]).tokens
        tokens = torch.cat([student.cls_token + student.pos_embed[:, :1], tokens], dim=1)
        blocks = [tokens := block(tokens) for block in student.blocks]
        x = teacher.embed(small[None]).tokens
        stages = [x := stage(x) for stage in teacher.stages]
        for match, b, s in zip(objective.match, objective.out_indices, objective.cfg.stages, strict=True):
            patches_ND, target_DHW = blocks[b][0, 1:], stages[s][0]
            grid = round(len(patches_ND) ** 0.5)
            ours_DHW = torch.zeros(len(target_DHW), grid, grid)
            for n, token in enumerate(patches_ND):
                ours_DHW[:, n // grid, n % grid] = match.weight[:, :, 0, 0] @ token + match.bias
            side = max(grid, target_DHW.shape[-1])
            total += (slow_resize(ours_DHW, side) - slow_resize(target_DHW, side)).square().mean().item()
    return total / len(images_BCHW)


@pytest.mark.parametrize("teacher_px", [8, 4])
def test_loss_equals_the_slow_loop(make_run, teacher_px):
    """Teacher's maps of 8, 4 and 2 (or 4, 2 and 1) against 4 x 4 tokens: larger, equal and smaller."""
    network = model.build(make_run(GUIDED, {"objectives.locality.teacher_px": teacher_px}), 10).eval()
    images_BCHW = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        total, terms, _ = network(batch_of(images_BCHW), torch.zeros(()))
        assert terms["locality"].item() == pytest.approx(slow_loss(network, images_BCHW), rel=1e-4)
    assert total.item() == pytest.approx((terms["classify"] + 2.5 * terms["locality"]).item(), rel=1e-5)


def test_equal_maps_have_no_error_and_constants_their_squared_distance():
    map_BDhw = torch.randn(2, 3, 4, 4)
    assert map_error(map_BDhw, map_BDhw).item() == 0
    assert map_error(torch.full((2, 3, 2, 2), 1.0), torch.full((2, 3, 5, 5), 3.0)).item() == pytest.approx(4)


def test_only_the_student_and_the_convolutions_learn(make_run):
    run = make_run(GUIDED, {"optim.lr": 0.1})
    network = model.build(run, 10).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.1)
    network(batch_of(torch.randn(4, 3, 8, 8)), torch.zeros(()))[0].backward()
    optimizer.step()
    frozen = {name for name, p in network.named_parameters() if not p.requires_grad}
    assert frozen == {name for name, _ in network.named_parameters() if ".teacher." in name}
    assert not [name for name, p in network.named_parameters() if (name in frozen) != (p.grad is None)]
    changed = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert not [name for name in changed if ".teacher." in name], "not even the teacher's statistics"
    assert {"objectives.locality.match.0.weight", "objectives.locality.match.2.bias", "backbone.pos_embed"} <= changed


def test_the_teacher_sees_the_students_view_once(make_run):
    network, seen = model.build(make_run(GUIDED), 10).train(), []
    teacher = network.objectives["locality"].teacher
    teacher.conv1.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], module.training)))
    images_BCHW = torch.randn(2, 3, 8, 8)
    network(batch_of(images_BCHW), torch.zeros(()))
    assert len(seen) == 1 and torch.equal(seen[0][0], images_BCHW) and not teacher.training


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_compiled_it_is_one_graph(make_run, precision):
    network, counter = model.build(make_run(GUIDED), 10).train(), CompileCounter()
    compiled, batch = torch.compile(network, backend=counter), batch_of(torch.randn(4, 3, 8, 8))
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        for i in range(2):
            got = compiled(batch, torch.tensor(i / 2))[1]["locality"]
    assert counter.frame_count == 1 and got.dtype == torch.float32
    assert got.item() == pytest.approx(network(batch, torch.zeros(()))[1]["locality"].item(), rel=0.02)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"teacher": None}, r"locality\.teacher: name the trained teacher"),
        ({"blocks": [0, 1, 2]}, r"locality\.blocks: \[0, 1, 2\] are not all in 0 to 1, what vit_pico has"),
        ({"stages": [1, 2, 3]}, r"locality\.stages: \[1, 2, 3\] are not all in 0 to 2, what resnet8 has"),
        ({"stages": [1, 2]}, r"locality\.stages: \[1, 2\] does not match the number of blocks"),
        ({"teacher_px": 6}, r"locality\.teacher_backbone\.name: resnet8 has an output token per 4 px, which does not divide the 6 px"),
        (
            {"teacher_backbone.init": "xavier"},
            r"locality\.teacher_backbone\.init: xavier .* a backbone that has this option \(resnet8 does not\)",
        ),
    ],
)
def test_impossible_fields_are_refused(make_run, fields, words):
    with pytest.raises(config.ConfigError, match=words):
        make_run(GUIDED, {"objectives.locality": fields})


def test_cost_is_known_before_there_is_a_teacher(make_run):
    """The training forward includes the teacher's, neither parameters nor inference do."""
    images = {"data.image_size": 32, "backbone.patch_size": 8, "objectives.locality.teacher_px": 32}
    guided = cost.measure(make_run(GUIDED, images), 10)
    plain = cost.measure(make_run({"objectives.classify": {}, "data.image_size": 32, "backbone.patch_size": 8}), 10)
    convolutions = [(32 + 1) * width for width in (16, 32, 64)]
    assert guided["params_train"] == plain["params_train"] + sum(convolutions)
    assert guided["params_inference"] == plain["params_inference"] and guided["macs_inference"] == plain["macs_inference"]
    teacher = cost.measure(make_run({"data.image_size": 32, **TEACHER}), 10)["macs_inference"]
    more = guided["macs_train_forward"] - plain["macs_train_forward"]
    assert more == pytest.approx(teacher + 16 * 32 * (16 + 32 + 64), rel=0.02)


def test_the_blocks_of_the_paper_are_spread_over_a_network_of_another_depth(make_run):
    def blocks(depth, **fields):
        run = make_run(GUIDED, {"backbone.depth": depth, "objectives.locality": {"blocks": None, **fields}})
        return run.objectives.locality.student_blocks(run.backbone)

    assert [blocks(depth) for depth in (2, 3, 4, 6, 12, 24)] == [[0, 0, 1], [0, 1, 2], [0, 2, 3], [0, 2, 5], [0, 6, 11], [0, 6, 11]]
    assert blocks(12, stages=[0, 2]) == [0, 11] and blocks(12, stages=[1]) == [0]


# --------------------------------------------------------------------------------------------------------------- chain


@pytest.fixture(scope="module")
def trained_teacher(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    data = {"data.shards": str(digits), "data.cache_dir": str(folder / "cache")}
    config.save(config.merge(config.Run, TINY, TEACHER, LONG, data), folder / "teacher")
    assert train.main([str(folder / "teacher")]) == 0
    return folder / "teacher"


@pytest.fixture
def chain(make_run, digits, trained_teacher, tmp_path):
    """The folder of a trained teacher, and a function that saves a student of it."""
    teacher = shutil.copytree(trained_teacher, tmp_path / "teacher")

    def student(name, *layers, of=teacher):
        config.save(make_run(GUIDED, LONG, {"objectives.locality.teacher": str(of)}, *layers, shards=digits), tmp_path / name)
        return tmp_path / name

    return teacher, student


def test_a_chain_from_teacher_to_student(chain, monkeypatch, tmp_path):
    """The student trains with the teacher's weights; stopped, moved away from its teacher and continued, it is the same to the bit."""
    teacher, student = chain
    whole, parts = student("whole", {"loop.ema_decay": 0.9}), student("parts", {"loop.ema_decay": 0.9})
    assert train.main([str(whole)]) == 0
    stop, step = tmp_path / "stop", train.train_step
    monkeypatch.setenv("VITSSL_STOP_FILE", str(stop))
    monkeypatch.setattr(train, "train_step", lambda *args: stop.touch() or step(*args))
    assert train.main([str(parts)]) == train.STOPPED
    monkeypatch.undo()
    theirs = tensor_files.read(teacher / LAST)["model"]
    shutil.rmtree(teacher)
    stop.unlink()
    assert train.main([str(parts)]) == 0
    left, right = (tensor_files.read(folder / LAST)["model"] for folder in (whole, parts))
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    copied = {name.removeprefix("objectives.locality.teacher."): v for name, v in left.items() if ".teacher." in name}
    assert copied.keys() == {name.removeprefix("backbone.") for name in theirs if name.startswith("backbone.")}
    assert all(torch.equal(copied[name], theirs[f"backbone.{name}"]) for name in copied)
    terms = [event["terms"]["locality"] for event in read_events(whole / "metrics.jsonl") if event["event"] == "train"]
    assert len(terms) == 6 and terms[-1] < terms[0]


def test_two_ranks_train_as_one(chain):
    _, student = chain
    sgd = {"optim": {"name": "sgd", "lr": 0.02}}
    one, two = student("one", sgd), student("two", sgd)
    assert train.main([str(one)]) == 0
    run_ranks(two, 2)
    left, right = (tensor_files.read(folder / LAST)["model"] for folder in (one, two))
    assert not [name for name in left if not torch.allclose(left[name], right[name], rtol=1e-4, atol=2e-5)]
    losses = [[event["terms"] for event in read_events(f / "metrics.jsonl") if event["event"] == "train"] for f in (one, two)]
    assert len(losses[0]) == 6 and all(a == pytest.approx(b, abs=1e-5) for a, b in zip(*losses, strict=True))


def test_a_student_is_loaded_and_evaluated_without_its_teacher(chain):
    from vitssl.config.evals import ClassificationConfig
    from vitssl.training.evaluate import evaluate_folder

    teacher, student = chain
    folder = student("student")
    assert train.main([str(folder)]) == 0
    shutil.rmtree(teacher)
    trained = vitssl.load(folder)
    assert evaluate_folder(folder, ClassificationConfig())["top1"] == read_json(folder / "done.json")["test"]["top1"]
    network = trained.model
    network.objectives["locality"].teacher = None  # so nothing of it can be used
    images_BCHW = torch.randn(2, 3, 8, 8)
    assert network.predict(batch_of(images_BCHW)).shape == (2, 10)
    assert network.step(batch_of(images_BCHW)).encode("main").intermediates.keys() == {0, 1}


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"data.normalize": "imagenet"}, "trained with other channel statistics; set the same data.normalize"),
        (
            {"objectives.locality.teacher_backbone.depths": [1, 2, 1]},
            r"teacher_backbone\.depths: \[1, 2, 1\] does not match the teacher's Run, which has null; "
            r"set 'objectives\.locality\.teacher_backbone=\{depths: null\}'",
        ),
    ],
)
def test_another_teacher_than_described_is_refused(chain, capsys, layer, words):
    _, student = chain
    assert train.main([str(student("student", layer))]) == 2
    error = capsys.readouterr().err
    assert re.search(words, error), error


def test_a_teacher_that_is_not_there_is_named(chain, capsys, tmp_path):
    _, student = chain
    assert train.main([str(student("student", of=tmp_path / "nothing"))]) == 2
    assert "run.yaml does not exist: this is not a run folder" in capsys.readouterr().err


def test_a_teachers_checkpoint_file_does_as_well(chain):
    teacher, student = chain
    assert train.main([str(student("by_file", of=teacher / LAST))]) == 0


def test_how_the_teacher_was_trained_may_differ_and_what_it_computes_may_not(make_run):
    run, theirs = make_run(GUIDED), make_run(TEACHER)
    field = "objectives.locality.teacher"
    for same in ({}, {"drop_path": 0.1}, {"init": "xavier"}, {"fused_attention": False}, {"batch_norm": "per_gpu"}):
        other = dataclasses.replace(theirs, backbone=dataclasses.replace(theirs.backbone, **same))
        config.check_fits(run, field, other)
    for differs in ({"name": "resnet56"}, {"embed_dim": 8}, {"masked_tokens": MaskedTokens()}):
        other = dataclasses.replace(theirs, backbone=dataclasses.replace(theirs.backbone, **differs))
        with pytest.raises(config.ConfigError, match=r"^here: objectives\.locality\.teacher_backbone\."):
            config.check_fits(run, field, other, where="here")


def test_a_teacher_whose_run_yaml_lacks_fields_that_came_later_is_still_one(make_run, tmp_path):
    config.save(make_run(TEACHER), tmp_path)
    written = (tmp_path / "run.yaml").read_text().splitlines()
    (tmp_path / "run.yaml").write_text(
        "\n".join(line for line in written if "interpolate_antialias" not in line and "shortcut" not in line)
    )
    config.check_fits(make_run(GUIDED), "objectives.locality.teacher", config.load(tmp_path))


def test_the_launcher_refuses_another_teacher_before_anything_is_queued(tmp_path):
    def expand(name: str) -> list:
        stages = {
            "teacher": {"backbone.name": name, "objectives.classify": {"pool": "mean"}, "data.image_size": 32},
            "train": {"objectives.classify": {}, "objectives.locality": {"teacher": "teacher"}},
        }
        content = {"name": "x", "defaults": {"data.shards": "nowhere"}, "arms": {"guided": {"stages": stages}}}
        (tmp_path / "x.yaml").write_text(OmegaConf.to_yaml(content))
        return cells(sweep.read(tmp_path / "x.yaml"))

    (cell,) = expand("resnet56")
    assert [stage.pointers for stage in cell.stages] == [{}, {"objectives.locality.teacher": "teacher"}]
    with pytest.raises(config.ConfigError, match=r"arms\.guided\.stages\.train: objectives\.locality\.teacher_backbone\.name: resnet56"):
        expand("resnet8")
