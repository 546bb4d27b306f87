"""DINO's loss against a slow loop over its pairs, closed forms, and what its teacher and centre do over a step."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter

from vitssl import model
from vitssl.config import ConfigError
from vitssl.config.objectives.dino import DinoConfig
from vitssl.costs import cost
from vitssl.data.loading.batch import Batch
from vitssl.objectives.dino import Head
from vitssl.objectives.losses import self_distillation
from vitssl.objectives.teacher import rising_momentum

DINO = {
    "objectives.dino": {"hidden_dim": 16, "bottleneck_dim": 8, "out_dim": 12},
    "data.views": {"second": {"scale": [0.5, 1.0]}, "local": {"size": 4, "count": 3}},
}
OVER_RANKS = {"loop.micro_batch_size": 8}
JOINT = {**DINO, "objectives.classify": {"weight": 0.1}, "objectives.dino.weight": 0.9}


def batch_of(B: int = 4) -> Batch:
    views = {"main": torch.randn(B, 3, 8, 8), "second": torch.randn(B, 3, 8, 8), "local": torch.randn(3 * B, 3, 4, 4)}
    return Batch(views, {name: torch.arange(len(view)) % 10 for name, view in views.items()}, torch.arange(B), float(B))


def at(progress: float) -> torch.Tensor:
    return torch.tensor(progress)


# ---------------------------------------------------------------------------------------------------------------- loss


def slow_loss(student_VBK, teacher_GBK, temperature):
    losses = []
    for g, teacher_BK in enumerate(teacher_GBK):
        for v, student_BK in enumerate(student_VBK):
            if v != g:
                losses += [-(p * torch.log_softmax(s / temperature, 0)).sum() for p, s in zip(teacher_BK, student_BK, strict=True)]
    return sum(losses) / len(losses)


@pytest.mark.parametrize("locals_", [0, 3])
def test_loss_and_gradient_equal_the_slow_loop(locals_):
    teacher_GBK = (torch.randn(2, 5, 7) / 0.3).softmax(-1)
    scores = torch.randn(2 + locals_, 5, 7)
    fast, slow = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    got, expected = self_distillation(fast, teacher_GBK, 0.1), slow_loss(slow, teacher_GBK, 0.1)
    got.backward()
    expected.backward()
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(fast.grad, slow.grad, rtol=1e-4, atol=1e-6)


def test_uniform_outputs():
    K = 65536
    assert self_distillation(torch.full((10, 2, K), 0.3), torch.full((2, 2, K), 1 / K), 0.1).item() == pytest.approx(11.09035, abs=1e-5)


def slow_objective(network, batch, center_K, temperature):
    """Crop by crop: the teacher sees the two global ones, the student all five."""
    dino = network.objectives["dino"]
    B = len(batch.index_B)
    crops = [batch.views["main"], batch.views["second"], *batch.views["local"].split(B)]

    def scores(backbone, head, images):
        return head(backbone(backbone.embed(images)).prefix_BPD[:, 0])

    student = [scores(network.backbone, dino.head, crop) for crop in crops]
    with torch.no_grad():
        raw = [scores(dino.teacher["backbone"], dino.teacher["head"], crop) for crop in crops[:2]]
    teacher = [((score - center_K) / temperature).softmax(-1) for score in raw]
    return slow_loss(torch.stack(student), torch.stack(teacher), 0.1), torch.cat(raw).mean(0)


def test_the_objective_equals_the_slow_loop_over_crops(make_run):
    network = model.build(make_run(DINO), 10).train()
    dino = network.objectives["dino"]
    torch.nn.init.normal_(dino.head.last_layer.weight_v)  # the teacher is another network now
    dino.center.normal_(std=0.1)
    batch = batch_of()
    expected, _ = slow_objective(network, batch, dino.center, 0.04)
    assert network(batch, at(0.5))[1]["dino"].item() == pytest.approx(expected.item(), rel=1e-5)


# ---------------------------------------------------------------------------------------------------------------- head


def test_parameters_of_the_papers_head():
    head = Head(DinoConfig(), 384)
    assert sum(p.numel() for p in head.mlp.parameters()) == 5_509_376
    assert {name: p.numel() for name, p in head.last_layer.named_parameters()} == {"weight_v": 16_777_216, "weight_g": 65_536}


def test_a_batch_norm_in_the_head_sees_all_crops_together():
    """As in DINO's code, which puts all crops through the head at once."""
    torch.manual_seed(0)
    head = Head(DinoConfig(hidden_dim=16, bottleneck_dim=8, out_dim=12, batch_norm=True), 4).train()
    views = [torch.randn(6, 4), 5 + 3 * torch.randn(10, 4)]
    together = head(torch.cat(views))
    torch.testing.assert_close(head(*views), together)
    apart = torch.cat([head(view) for view in views])
    assert (apart - together).abs().max() > 0.05


def test_scores_are_cosines_with_the_prototypes():
    head = Head(DinoConfig(hidden_dim=16, bottleneck_dim=8, out_dim=12), 6)
    input_BD = torch.randn(5, 6)
    expected = F.cosine_similarity(head.mlp(input_BD)[:, None], head.last_layer.weight_v[None], dim=-1)
    torch.testing.assert_close(head(input_BD), expected)
    assert not head.last_layer.weight_g.requires_grad
    free = Head(DinoConfig(hidden_dim=16, bottleneck_dim=8, out_dim=12, norm_last_layer=False), 6).last_layer
    torch.nn.init.constant_(free.weight_g, 3.0)
    free(F.normalize(torch.randn(5, 8))).square().sum().backward()
    assert free.weight_g.grad.abs().min() > 0


def test_the_last_layer_is_frozen_at_first(make_run):
    network = model.build(make_run(DINO, {"objectives.dino.freeze_last_layer_epochs": 0.5, "loop.epochs": 2}), 10)
    dino, last = network.objectives["dino"], network.objectives["dino"].head.last_layer
    for progress, frozen in ((0.0, True), (0.24, True), (0.25, False), (1.0, False)):
        network(batch_of(), at(progress))[0].backward()
        dino.before_step(progress)
        assert (last.weight_v.grad is None) == frozen
        assert all(p.grad is not None for p in dino.head.mlp.parameters())
        network.zero_grad()


# --------------------------------------------------------------------------------------------------- teacher and centre


def test_the_teacher_moves_by_a_cosine_that_ends_at_one(make_run):
    network = model.build(make_run(DINO), 10)
    dino = network.objectives["dino"]
    assert [rising_momentum(dino.cfg.teacher_momentum, p) for p in (0.0, 0.5, 1.0)] == pytest.approx([0.996, 0.998, 1.0], abs=1e-12)
    own = dino.teacher["backbone"].cls_token
    torch.nn.init.constant_(own, 1.0)
    torch.nn.init.constant_(network.backbone.cls_token, 2.0)
    network(batch_of(), at(0.0))
    network.after_step(0.0)
    torch.testing.assert_close(own.detach(), torch.full_like(own, 1.004))
    network(batch_of(), at(1.0))
    network.after_step(1.0)
    torch.testing.assert_close(own.detach(), torch.full_like(own, 1.004))


def test_the_centre_is_the_average_of_the_teachers_scores_however_a_step_is_sliced(make_run):
    network = model.build(make_run(DINO), 10).train()
    dino = network.objectives["dino"]
    expected_K = torch.zeros(12)
    for _ in range(3):
        means = []
        for batch in (batch_of(), batch_of()):
            before = dino.center.clone()
            expected, mean_K = slow_objective(network, batch, expected_K, 0.04)
            assert network(batch, at(0.0))[1]["dino"].item() == pytest.approx(expected.item(), rel=1e-5)
            assert torch.equal(dino.center, before), "the slices of a step are centred alike"
            means.append(mean_K)
        network.after_step(0.0)
        expected_K = 0.9 * expected_K + 0.1 * torch.stack(means).mean(0)
        torch.testing.assert_close(dino.center, expected_K)


@pytest.mark.parametrize(("progress", "expected"), [(0.0, 0.04), (0.05, 0.055), (0.1, 0.07), (0.7, 0.07)])
def test_the_teachers_temperature_warms_up(make_run, progress, expected):
    warm = {"teacher_temperature": 0.07, "warmup_teacher_temperature_epochs": 10}
    network = model.build(make_run(DINO, {"objectives.dino": warm, "loop.epochs": 50, "loop.schedule_epochs": 100}), 10)
    assert network.objectives["dino"].teacher_temperature(at(progress)).item() == pytest.approx(expected)


def test_without_warm_up_the_temperature_is_constant(make_run):
    dino = model.build(make_run(DINO, {"objectives.dino.teacher_temperature": 0.06}), 10).objectives["dino"]
    assert [dino.teacher_temperature(at(p)).item() for p in (0.0, 1.0)] == pytest.approx([0.06, 0.06])


def test_only_the_student_drops_paths(make_run):
    """With paths dropped the student's scores change from pass to pass, the teacher's do not."""
    network = model.build(make_run(DINO, {"backbone.drop_path": 0.9}), 10).train()
    dino, batch = network.objectives["dino"], batch_of(16)
    losses, sums = [], []
    for _ in range(2):
        losses.append(network(batch, at(0.0))[0].item())
        sums.append(dino.score_sum.clone())
    torch.testing.assert_close(sums[1], 2 * sums[0])
    assert losses[0] != losses[1]


def test_the_teacher_starts_from_the_loaded_weights(make_run):
    for names, copied in (([], True), (["dino"], False)):
        network = model.build(make_run(DINO, {"init_objectives": names}), 10)
        dino = network.objectives["dino"]
        torch.nn.init.constant_(network.backbone.cls_token, 2.0)
        torch.nn.init.constant_(dino.teacher["backbone"].cls_token, 3.0)  # its own, where it is loaded itself
        dino.start(network.backbone, torch.full((10,), 3))
        assert dino.teacher["backbone"].cls_token.flatten()[0].item() == (2.0 if copied else 3.0)


def test_the_teacher_is_state_but_not_trained(make_run):
    network = model.build(make_run(JOINT), 10)
    frozen = {name for name, p in network.named_parameters() if not p.requires_grad}
    assert frozen == {n for n, _ in network.named_parameters() if ".teacher." in n} | {"objectives.dino.head.last_layer.weight_g"}
    assert frozen | {"objectives.dino.center"} <= network.state_dict().keys()


# ------------------------------------------------------------------------------------------------------------ the step


@pytest.mark.parametrize("extra", [{}, {"objectives.dino.batch_norm": True}, {"objectives.dino.local": None, "data.views.local": None}])
def test_every_trained_parameter_gets_a_gradient_jointly_in_bfloat16_and_by_the_mean_token(make_run, extra):
    network = model.build(make_run(JOINT, {"objectives.dino.pool": "mean"}, extra), 10)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total, terms, weighted = network(batch_of(), at(0.0))
    total.backward()
    trained = {name: p.grad for name, p in network.named_parameters() if p.requires_grad}
    assert not [name for name, grad in trained.items() if grad is None or grad.abs().max() == 0]
    assert weighted["dino"].item() == pytest.approx(0.9 * terms["dino"].item()) and terms["dino"].dtype == torch.float32


def test_the_students_passes_are_shared_with_the_other_objectives(make_run):
    network = model.build(make_run(JOINT), 10)
    passes = []
    network.backbone.register_forward_hook(lambda *_: passes.append("student"))
    network.objectives["dino"].teacher["backbone"].register_forward_hook(lambda *_: passes.append("teacher"))
    network(batch_of(), at(0.0))
    assert sorted(passes) == ["student"] * 3 + ["teacher"] * 2


def test_compiled_it_is_one_graph(make_run):
    warm = {"teacher_temperature": 0.07, "warmup_teacher_temperature_epochs": 1}
    network, counter = model.build(make_run(JOINT, {"objectives.dino": warm}), 10), CompileCounter()
    compiled = torch.compile(network, backend=counter)
    for step in range(4):
        compiled(batch_of(), at(step / 4))[0].backward()
        network.after_step(step / 4)
    assert counter.frame_count == 1
    assert network.objectives["dino"].center.abs().max() > 0 and network.objectives["dino"].score_count == 0


@pytest.mark.parametrize(
    ("layers", "word"),
    [
        ({"objectives.dino.second": "main"}, "different"),
        ({"objectives.dino.local": "second"}, "different"),
        ({"data.views.local": None}, "data.views.local"),
        ({"data.views.local.size": 3}, "does not divide"),
        ({"objectives.dino.teacher_momentum": 1.1}, "teacher_momentum"),
    ],
)
def test_impossible_settings_are_refused(make_run, layers, word):
    with pytest.raises(ConfigError, match=word):
        make_run(DINO, layers)


def test_cost_counts_the_teachers_passes_and_leaves_it_out_of_inference(make_run):
    """Per image: the student's two global and three local crops, the teacher's two global ones, five and two heads."""
    plain = cost.measure(make_run({"objectives.classify": {}}), 10)
    small = cost.measure(make_run({"objectives.classify": {}, "data.image_size": 4}), 10)
    dino = cost.measure(make_run(DINO), 10)
    assert dino["params_inference"] == plain["params_inference"] - 330
    trained = 32 * 16 + 16 + 16 * 16 + 16 + 16 * 8 + 8 + 8 * 12
    assert dino["params_train"] == dino["params_inference"] + trained
    heads = 7 * (32 * 16 + 16 * 16 + 16 * 8 + 8 * 12)
    passes = 4 * (plain["macs_inference"] - 320) + 3 * (small["macs_inference"] - 320)
    assert dino["macs_train_forward"] == pytest.approx(passes + heads, rel=2e-3)
