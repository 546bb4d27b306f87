"""The Model: every parameter is trained, compiled code is one graph, building draws nothing from the global generator."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from vitssl import model
from vitssl.backbones.base import Backbone
from vitssl.data.loading.batch import Batch
from vitssl.objectives.base import Objective
from vitssl.objectives.masking import disjoint_masks, random_mask

MAE = {"decoder_dim": 16, "decoder_depth": 1, "decoder_heads": 2}
OBJECTIVES = {
    "classify": {"classify": {}},
    "mae": {"mae": MAE},
    "ssat": {"classify": {"weight": 0.1, "label_smoothing": 0.1}, "mae": MAE | {"weight": 0.9}},
}
BACKBONES = [{"backbone.positions": "sincos", "backbone.init": "xavier"}, {"backbone.positions": "learned"}]


def batch(B: int, labelled: float = 8.0, px: int = 8) -> Batch:
    return Batch({"main": torch.randn(B, 3, px, px)}, {"main": torch.arange(B) % 10}, torch.arange(B), torch.tensor(labelled))


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        ({"classify": torch.tensor(1.0)}, "another objective's term is called classify too; begin its name with mae"),
        ({"reconstruction": torch.tensor(1.0)}, "its term reconstruction must be called mae, or mae_ and more"),
        ({"mae": 0.5}, "its term mae is of type float; give a tensor"),
        ({"mae": torch.ones(3)}, r"its term mae has the shape \(3,\); give its mean, a scalar"),
        ({"mae": torch.tensor(1.0)}, r"its term mae has no gradient, so that nothing learns from it \(detach, no_grad\?\)"),
        (torch.tensor(1.0), "it gives Tensor; a dict of its terms is wanted, such as {'mae': loss}"),
    ],
)
def test_a_term_that_would_count_wrongly_is_refused(make_run, monkeypatch, terms, reason):
    network = model.build(make_run({"objectives": OBJECTIVES["ssat"]}), 10).train()
    monkeypatch.setattr(network.objectives["mae"], "forward", lambda *_: terms)
    with pytest.raises((ValueError, TypeError), match=f"objective mae: {reason}"):
        network(batch(8), torch.tensor(0.5))


@pytest.mark.parametrize("labels", [[0, 3, -1, 7], [-1] * 4])
def test_a_batch_made_by_hand_has_the_losses_of_the_loaders(make_run, labels):
    images, labels_B, run = torch.randn(4, 3, 8, 8), torch.tensor(labels), make_run({"objectives": OBJECTIVES["ssat"]})
    loaded = Batch({"main": images}, {"main": labels_B}, torch.arange(4), float(max(1, sum(label >= 0 for label in labels))))
    network, losses = model.build(run, 10).train(), []
    for made in (loaded, Batch.of(run, images, labels_B), Batch.of(run, {"main": images}, labels_B)):
        torch.manual_seed(0)
        losses.append(network(made, torch.tensor(0.5))[0].item())
    assert losses[1:] == [losses[0]] * 2


DINO = {"dino": {"hidden_dim": 8, "bottleneck_dim": 8, "out_dim": 8}, "classify": {}}
COPIES = {"data.views.second": {}, "data.views.local": {"count": 3, "size": 4}, "backbone.positions": "sincos"}


def views_of_dino() -> dict[str, torch.Tensor]:
    return {"main": torch.randn(2, 3, 8, 8), "second": torch.randn(2, 3, 8, 8), "local": torch.randn(6, 3, 4, 4)}


def test_labels_are_those_of_every_copy_of_a_view(make_run):
    run = make_run(COPIES, {"objectives": DINO})
    made = Batch.of(run, views_of_dino(), torch.tensor([4, -100]))  # as torch marks what a loss ignores
    assert made.targets["main"].tolist() == [4, -1] and made.targets["local"].tolist() == [4, -1] * 3
    assert made.index_B.tolist() == [0, 1] and made.labelled == 1
    network = model.build(run, 10).train()
    network.start(torch.full((10,), 3))
    assert set(network(made, torch.tensor(0.5))[1]) == {"dino", "classify"}
    alone = make_run(COPIES, {"objectives": {"dino": DINO["dino"]}})
    assert Batch.of(alone, views_of_dino()).targets["local"].tolist() == [-1] * 6, "labels that nobody reads may be left out"


@pytest.mark.parametrize(
    ("changed", "labels", "reason"),
    [
        ({"second": None}, [0, 1], "views: main and local; the objectives of this Run read main, second and local"),
        ({"other": torch.zeros(2, 3, 8, 8)}, [0, 1], "views: main, second, local and other; the objectives"),
        ({}, None, r"labels: none; an objective of this Run reads them, int64 \(B,\), -1 where an image has none"),
        ({}, [0.0, 1.0], r"labels: float32 \(2,\); they are an int64 tensor \(B,\)"),
        ({}, [[0, 1]], r"labels: int64 \(1, 2\)"),
        ({}, [0], r"view main: float32 \(2, 3, 8, 8\); wanted: 1 normalised image of 8 px, a float tensor \(1, 3, 8, 8\)"),
        (
            {"local": torch.zeros(4, 3, 4, 4)},
            [0, 1],
            r"view local: float32 \(4, 3, 4, 4\); wanted: 3 copies of 2 normalised images of 4 px,",
        ),
        ({"main": torch.zeros(2, 8, 8, 3)}, [0, 1], r"view main: float32 \(2, 8, 8, 3\); wanted: 2 normalised images of 8 px, a"),
        ({"main": torch.zeros(2, 3, 16, 16)}, [0, 1], r"view main: float32 \(2, 3, 16, 16\)"),
        (
            {"main": torch.zeros(2, 3, 8, 8, dtype=torch.uint8)},
            [0, 1],
            r"view main: uint8 \(2, 3, 8, 8\); normalised images are a float tensor",
        ),
        ({"main": torch.zeros(2, 3, 8, 8).numpy()}, [0, 1], "view main: ndarray; normalised images are a"),
        ({"local": [torch.zeros(2, 3, 4, 4)] * 3}, None, "view local: list; normalised images are a"),
        ({name: torch.zeros(0, 3, 8, 8) for name in ("main", "second", "local")}, [], "view main: float32"),
    ],
)
def test_what_is_no_batch_of_a_run_is_refused(make_run, changed, labels, reason):
    views = {name: view for name, view in (views_of_dino() | changed).items() if view is not None}
    with pytest.raises(ValueError, match=reason):
        Batch.of(make_run(COPIES, {"objectives": DINO}), views, None if labels is None else torch.tensor(labels))


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_pair_takes_two_steps_and_every_parameter_gets_a_gradient_in_each(make_run, name, backbone):
    network = model.build(make_run({"objectives": OBJECTIVES[name]}, backbone), 10).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        total, terms, weighted = network(batch(8), torch.tensor(0.5))
        total.backward()
        assert torch.isfinite(total) and terms.keys() == weighted.keys()
        assert not [n for n, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
        optimizer.step()


class Corrupted(Objective):
    """Looks at images that it makes itself, in a pass over them."""

    has_full_pass = False

    def __init__(self, backbone: Backbone):
        super().__init__()
        self.head = nn.Linear(backbone.embed_dim, 3)

    def forward(self, step, batch, progress):
        step.add("noise", torch.randn_like(step.images("main")))
        return {"corrupted": self.head(step.encode("noise").tokens_BND).square().mean()}

    def weight(self, term, progress):
        return 1.0


def convolutional(make_run, name: str, *layers) -> model.Model:
    bare = {f"backbone.{name}": None for name in ("embed_dim", "depth", "num_heads", "patch_size")}
    return model.build(make_run({"data.image_size": 32, "backbone.name": name, "objectives.classify.pool": "mean"}, bare, *layers), 10)


def statistics_after(network: model.Model, images: Batch) -> dict[str, torch.Tensor]:
    network.train()(images, torch.tensor(0.5))
    return {name: value.clone() for name, value in network.backbone.named_buffers()}


def test_running_statistics_are_of_whole_views_where_an_objective_sees_such(make_run):
    """A classifier is evaluated with them, on images that nobody corrupted."""
    images = batch(8, px=32)
    plain, joint, alone = (convolutional(make_run, "resnet8") for _ in range(3))
    joint = model.Model(joint.backbone, {"corrupted": Corrupted(joint.backbone), **joint.objectives})
    alone = model.Model(alone.backbone, {"corrupted": Corrupted(alone.backbone)})
    expected = statistics_after(plain, images)
    assert all(torch.equal(value, expected[name]) for name, value in statistics_after(joint, images).items())
    other = statistics_after(alone, images)
    assert not torch.equal(other["bn1.running_mean"], expected["bn1.running_mean"]) and other["bn1.num_batches_tracked"] == 1


@pytest.mark.parametrize("layer", [{"objectives.classify": None}, {}])
def test_statistics_move_once_a_step_of_masked_passes_where_there_are_no_others(make_run, layer):
    """A frozen probe on MAE's CvT would else see statistics that nothing ever trained."""
    network = convolutional(make_run, "cvt_pico", {"objectives.mae": MAE}, layer)
    found = statistics_after(network, batch(8, px=32))
    assert {int(count) for name, count in found.items() if name.endswith("num_batches_tracked")} == {1}


def test_unfused_attention_reaches_the_decoder(make_run):
    network = model.build(make_run({"objectives": {"mae": MAE}, "backbone.fused_attention": False}), 10)
    assert {part.fused_attn for part in network.modules() if hasattr(part, "fused_attn")} == {False}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_compiled_training_is_one_graph_whatever_the_progress(make_run, name):
    network = model.build(make_run({"objectives": OBJECTIVES[name]}), 10).train()
    counter = CompileCounter()
    compiled = torch.compile(network, backend=counter)
    for i in range(4):
        compiled(batch(8, labelled=float(i + 1)), torch.tensor(i / 4))[0].backward()
    assert counter.frame_count == 1


def test_building_depends_on_the_seed_alone(make_run):
    run = make_run({"objectives": OBJECTIVES["ssat"]})
    torch.manual_seed(3)
    expected_draw = torch.rand(1)
    torch.manual_seed(3)
    first = model.build(run, 10).state_dict()
    assert torch.equal(torch.rand(1), expected_draw)
    second = model.build(run, 10).state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)
    other = model.build(make_run({"objectives": OBJECTIVES["ssat"], "seed": 1}), 10).state_dict()
    assert not torch.equal(first["backbone.blocks.0.attn.qkv.weight"], other["backbone.blocks.0.attn.qkv.weight"])


def test_a_step_s_masks_are_functions_of_the_seed_the_step_and_the_rank(make_run):
    network = model.build(make_run({"objectives": OBJECTIVES["mae"]}), 10)

    def mask(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        masks: list = []
        network.objectives["mae"].decoder.register_forward_hook(lambda module, arguments, output: masks.append(arguments[1]))
        network(batch(4), torch.tensor(0.5))
        return masks[0].mask_BN

    assert torch.equal(mask(1), mask(1)) and not torch.equal(mask(1), mask(2))


class Disjoint(Objective):
    """LUT's two passes: each view keeps a part of one permutation that the other does not."""

    has_full_pass = False

    def forward(self, step, batch, progress):
        self.masks = disjoint_masks(len(batch.index_B), math.prod(step.grid("main")), [4, 4])
        self.kept = [step.encode(view, keep_BM=mask.keep_BM) for view, mask in zip(("main", "second"), self.masks, strict=True)]
        return {"lut": sum(features.tokens_BND.square().mean() for features in self.kept)}


def test_two_views_see_disjoint_tokens_of_one_permutation(make_run):
    """Each pass is that of its view and of its mask: not those of another view's, as they were when masks had names."""
    backbone = model.build(make_run({"objectives": {"mae": MAE}}), 10).backbone.eval()
    objective = Disjoint()
    views = batch(3)
    views.views["second"] = torch.randn_like(views.views["main"])
    objective(model.Model(backbone, {"lut": objective}).step(views), views, torch.tensor(0.5))
    for view, mask, features in zip(("main", "second"), objective.masks, objective.kept, strict=True):
        expected = backbone(backbone.embed(views.views[view]), mask.keep_BM).tokens_BND
        assert torch.equal(features.tokens_BND, expected) and features.tokens_BND.shape[:2] == (3, 4)
    shared = (~objective.masks[0].mask_BN) & (~objective.masks[1].mask_BN)
    assert not shared.any()


def test_a_pass_without_a_mask_is_made_once_and_one_with_a_mask_whenever_it_is_asked_for(make_run):
    network = model.build(make_run({"objectives": {"mae": MAE}}), 10)
    step = network.step(batch(3))
    assert step.encode("main") is step.encode("main")
    first, second = (step.encode("main", keep_BM=random_mask(3, 16, 0.75).keep_BM) for _ in range(2))
    assert not torch.equal(first.tokens_BND, second.tokens_BND)
