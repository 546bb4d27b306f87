"""LUT's two terms against slow loops from the paper's equations, closed forms of its code, and what is refused."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter

from tests.objectives.test_mae import slow_loss as slow_reconstruction
from vitssl import model
from vitssl.config import ConfigError
from vitssl.costs import cost
from vitssl.data.loading.batch import Batch
from vitssl.objectives import lut
from vitssl.objectives.losses import Gathered, info_nce
from vitssl.objectives.masking import TokenMask

TINY = {"decoder_dim": 16, "decoder_depth": 1, "decoder_heads": 2, "hidden_dim": 16}
SIMMIM = {"hide": "mask", "decoder": "pixel_shuffle", "loss": "l1", "normalize_targets": False, "mask_ratio": 0.6, "hidden_dim": 16}
# tried with every backbone; what a name ends in is what it requires: /cls, /drop or /mask
PAIRS = {
    "lut/drop": {"lut": TINY},
    "lut, text, jointly/drop": {"classify": {"pool": "mean", "weight": 0.1}, "lut": TINY | {"symmetric": False, "weight": 0.9}},
    "lut, both/drop": {"lut": TINY | {"guided": "both", "level": "both", "distance": "smooth_l1"}},
    "lut, context alone/drop": {"lut": {"hidden_dim": 16, "reconstruction_weight": 0, "distance": "infonce", "temperature": 0.5}},
    "lut, simmim pixel_shuffle": {"lut": SIMMIM},
}
# layers of the Run whose loss curve is in tests/golden
CURVE = {"objectives": {"lut": TINY}, "data.views.second": {"scale": [0.5, 1.0]}}
OVER_RANKS = "its masks differ between ranks; test_the_rows_of_two_ranks_average_to_the_whole_batch"
LUT = {"objectives.lut": TINY, "data.views.second": {}}


def fields(**changed) -> dict:
    return {f"objectives.lut.{name}": value for name, value in changed.items()}


def batch_of(B: int = 4) -> Batch:
    views = {"main": torch.randn(B, 3, 8, 8), "second": torch.randn(B, 3, 8, 8)}
    return Batch(views, {name: torch.arange(B) for name in views}, torch.arange(B), float(B))


@pytest.fixture
def masks(monkeypatch) -> list[TokenMask]:
    """The student's masks, as they are drawn."""
    seen: list[TokenMask] = []
    draw = lut.disjoint_masks
    monkeypatch.setattr(lut, "disjoint_masks", lambda *args: (seen.extend(drawn := draw(*args)), drawn)[1])
    return seen


def slow_head(head, vectors: list[torch.Tensor], *, running: bool) -> list[torch.Tensor]:
    """Linear, batch norm over these vectors or by running averages, ReLU, linear."""
    first, norm, _, last = head
    rows = torch.stack([first.weight @ vector for vector in vectors])
    mean, variance = (norm.running_mean, norm.running_var) if running else (rows.mean(0), rows.var(0, correction=0))
    rows = (rows - mean) / (variance + norm.eps) ** 0.5 * norm.weight + norm.bias
    return [last.weight @ row.clamp(min=0) for row in rows]


def slow_context(network, student: torch.Tensor, other: torch.Tensor, mask: TokenMask, distance: str, kind: str) -> torch.Tensor:
    """Eq. 2 for one view of the student and one kind of vectors: image by image, token by token."""
    objective, backbone = network.objectives["lut"], network.backbone
    ours, theirs, projector = [], [], objective.projector
    for b, (image, target, keep) in enumerate(zip(student, other, mask.keep_BM.tolist(), strict=True)):
        if objective.cfg.hide == "drop":
            features = backbone(backbone.embed(image[None]), torch.tensor([keep]))
            visible = features.tokens_BND[0]
        else:
            features = backbone(backbone.embed(image[None]), mask_BN=mask.mask_BN[b : b + 1])
            visible = features.tokens_BND[0, keep]
        teacher = objective.teacher["backbone"]
        whole = teacher(teacher.embed(target[None]))
        mean = sum(whole.tokens_BND[0]) / whole.tokens_BND.shape[1]
        if kind == "token":
            ours += list(visible)
            theirs += [whole.tokens_BND[0, place] for place in keep]
        elif kind == "masked":
            decoded = objective.decoder.tokens(features, TokenMask(*(part[b : b + 1] for part in mask)))[0]
            hidden = [decoded[n] for n in range(len(decoded)) if n not in keep]
            ours.append(sum(hidden) / len(hidden))
            theirs.append(mean)
            projector = objective.masked_projector
        else:
            ours.append(features.prefix_BPD[0, 0] if kind == "cls" else sum(visible) / len(visible))
            theirs.append(whole.prefix_BPD[0, 0] if kind == "cls" else mean)
    ours = slow_head(objective.predictor, slow_head(projector, ours, running=False), running=False)
    theirs = [vector.detach() for vector in slow_head(objective.teacher["projector"], theirs, running=True)]

    def cosine(a, b):
        return (a * b).sum() / (a.norm() * b.norm())

    losses = []
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if distance == "cosine":
            losses.append(2 - 2 * cosine(a, b))
        elif distance == "infonce":
            similar = torch.stack([cosine(a, other) / 0.2 for other in theirs])
            losses.append(-torch.log(similar[i].exp() / similar.exp().sum()))
        else:
            differences = (a - b).abs()
            losses.append(torch.stack([0.5 * d**2 if d < 1 else d - 0.5 for d in differences]).mean())
    return torch.stack(losses).mean()


COMPARED = [
    ({"distance": "cosine"}, ["pooled"]),
    ({"distance": "infonce"}, ["pooled"]),
    ({"distance": "smooth_l1"}, ["pooled"]),
    ({"level": "token"}, ["token"]),
    ({"pool": "cls"}, ["cls"]),
    ({"level": "both"}, ["pooled", "token"]),
    ({"guided": "both"}, ["pooled", "masked"]),
    ({"hide": "mask", "distance": "smooth_l1"}, ["pooled"]),
    ({"hide": "mask", "guided": "both"}, ["pooled", "masked"]),
]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("changed", "kinds"), COMPARED, ids=str)
def test_context_and_its_gradient_equal_the_slow_loop(make_run, masks, changed, kinds, symmetric):
    network = model.build(make_run(LUT, fields(symmetric=symmetric, **changed)), 10).double().train()
    objective, batch = network.objectives["lut"], batch_of()
    batch.views = {name: view.double() for name, view in batch.views.items()}
    objective.start(network.backbone, torch.full((10,), 3))
    for parameter in network.parameters():  # a student that has left its teacher
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    torch.nn.init.uniform_(objective.teacher["projector"][1].running_var, 0.5, 2.0)
    loss = objective(network.step(batch), batch, torch.zeros(()))["lut_context"]
    main, second = batch.views["main"], batch.views["second"]
    compared = [(main, second), (second, main)] if symmetric else [(main, second)]
    distance = changed.get("distance", "cosine")
    each = [slow_context(network, *pair, mask, distance, kind) for pair, mask in zip(compared, masks, strict=True) for kind in kinds]
    slow = torch.stack(each).mean()
    torch.testing.assert_close(loss, slow)
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for fast, expected in zip(*(torch.autograd.grad(value, trained, allow_unused=True) for value in (loss, slow)), strict=True):
        assert (fast is None) == (expected is None)
        if fast is not None:
            torch.testing.assert_close(fast, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("symmetric", [True, False])
def test_reconstruction_is_maes_of_the_first_view(make_run, masks, symmetric):
    network = model.build(make_run(LUT, fields(symmetric=symmetric)), 10).eval()
    batch = batch_of()
    _, terms, _ = network(batch, torch.zeros(()))
    network.objectives["mae"] = network.objectives["lut"]
    assert terms["lut_mae"].item() == pytest.approx(slow_reconstruction(network, batch.views["main"], masks[0], True), rel=1e-5)
    assert len(masks) == (2 if symmetric else 1) and (masks[0].mask_BN.sum(1) == 12).all()


def test_the_views_keep_disjoint_sets_of_one_permutation(make_run, masks):
    """ViT-B/16 at 224 px keeps 49 tokens and 49 others of 196; 98 are never seen."""
    network = model.build(make_run(LUT), 10)
    network(batch_of(), torch.zeros(()))
    for first, second in zip(masks[0].keep_BM.tolist(), masks[1].keep_BM.tolist(), strict=True):
        assert len(first) == len(second) == 4 and not set(first) & set(second)
    both = lut.disjoint_masks(3, 196, [49, 49], torch.device("cpu"))
    assert [int(mask.mask_BN.sum()) for mask in both] == [3 * 147] * 2
    assert ((both[0].mask_BN & both[1].mask_BN).sum(1) == 98).all()


@pytest.mark.parametrize(("sign", "distance"), [(1.0, 0.0), (0.0, 2.0), (-1.0, 4.0)])
def test_cosine_distance_of_equal_orthogonal_and_opposite_vectors(make_run, sign, distance):
    objective = model.build(make_run(LUT), 10).objectives["lut"]
    ours = torch.eye(4)[:2].repeat(1, 2)
    theirs = sign * 7.5 * ours if sign else ours.roll(2, 1)
    assert objective._vector_distance(ours, theirs, torch.arange(len(ours))).item() == pytest.approx(distance, abs=1e-6)


def test_each_view_has_batch_statistics_of_its_own(make_run):
    """With both views in one batch, moving one would move the other's predictions."""
    network = model.build(make_run(LUT), 10).train()
    objective, seen = network.objectives["lut"], []
    objective.predictor.register_forward_hook(lambda module, arguments, output: seen.append(output))
    batch = batch_of()
    for factor in (1.0, 5.0):
        batch.views["second"] = batch.views["second"] * factor
        torch.manual_seed(0)
        network(batch, torch.zeros(()))
    assert len(seen) == 4
    torch.testing.assert_close(seen[0], seen[2])
    assert not torch.allclose(seen[1], seen[3])


def test_the_teacher_follows_with_its_buffers_and_gets_no_gradient(make_run):
    network = model.build(make_run(LUT), 10).train()
    objective = network.objectives["lut"]
    objective.start(network.backbone, torch.full((10,), 3))
    before = copy.deepcopy(objective.teacher.state_dict())
    network(batch_of(), torch.zeros(()))[0].backward()
    assert all(p.grad is None for p in objective.teacher.parameters())
    assert not any(part.training for part in objective.teacher.modules())
    for parameter in itertools.chain(network.backbone.parameters(), objective.projector.parameters()):
        parameter.data += 1.0
    objective.cfg.teacher_momentum = 1.0
    objective.after_step(network.backbone, 0.3)
    assert all(torch.equal(value, before[name]) for name, value in objective.teacher.state_dict().items() if "num_batches" not in name)
    objective.cfg.teacher_momentum = 0.9
    objective.after_step(network.backbone, 0.0)
    running = objective.projector[1].running_mean
    torch.testing.assert_close(objective.teacher["projector"][1].running_mean, 0.1 * running)
    objective.cfg.teacher_momentum = 0.0
    objective.after_step(network.backbone, 0.0)
    for name, value in objective.projector.state_dict().items():
        torch.testing.assert_close(objective.teacher["projector"].state_dict()[name], value)


def test_a_masked_target_changes_what_the_teacher_sees(make_run):
    network = model.build(make_run(LUT, fields(target_mask_ratio=0.5)), 10)
    sizes = []
    network.objectives["lut"].teacher["backbone"].blocks[0].register_forward_hook(lambda m, a, out: sizes.append(out.shape[1]))
    network(batch_of(), torch.zeros(()))
    assert sizes == [1 + 8], "one pass for both views, of half of the tokens"


def test_masked_tokens_are_guided_too(make_run):
    """Both terms reach the decoder then; else the reconstruction's alone does."""
    for guided, reached in (("unmasked", False), ("both", True)):
        network = model.build(make_run(LUT, fields(guided=guided)), 10).train()
        objective, batch = network.objectives["lut"], batch_of()
        loss = objective(network.step(batch), batch, torch.zeros(()))["lut_context"]
        gradient = torch.autograd.grad(loss, objective.decoder.embed.weight, allow_unused=True)[0]
        assert (gradient is not None) is reached


def test_info_nce_of_identical_vectors_is_a_guess_among_all_images():
    unit_BD = F.normalize(torch.ones(6, 5), dim=1)
    assert info_nce(unit_BD, Gathered(unit_BD, torch.arange(6), 0), 0.2).item() == pytest.approx(torch.tensor(6.0).log().item())


def test_the_rows_of_two_ranks_average_to_the_whole_batch():
    own, keys = (F.normalize(torch.randn(6, 5), dim=1) for _ in range(2))
    images = torch.arange(6)
    ranks = [info_nce(own[3 * r : 3 * r + 3], Gathered(keys, images, 3 * r), 0.2) for r in (0, 1)]
    assert torch.stack(ranks).mean().item() == pytest.approx(info_nce(own, Gathered(keys, images, 0), 0.2).item())


def test_an_image_that_is_there_twice_is_no_negative_of_itself():
    own, keys = (F.normalize(torch.randn(4, 5), dim=1) for _ in range(2))
    got = info_nce(own, Gathered(keys, torch.tensor([0, 1, 0, 2]), 0), 0.2)
    others = [[0, 1, 3], [0, 1, 2, 3], [1, 2, 3], [0, 1, 2, 3]]
    expected = [-(own[i] @ keys[i] / 0.2 - torch.logsumexp(keys[others[i]] @ own[i] / 0.2, 0)) for i in range(4)]
    torch.testing.assert_close(got, torch.stack(expected).mean())


ALONE = fields(reconstruction_weight=0, decoder_dim=512, decoder_depth=8, decoder_heads=16)
VIT = {"data.image_size": 224, "backbone": {"positions": "sincos", "init": "xavier", "patch_size": 16}, "data.views.second": {}}
BARE = {f"backbone.{name}": None for name in ("embed_dim", "depth", "num_heads")}


@pytest.mark.parametrize(("name", "trained", "projector"), [("vit_base", 124_254_976, 6_299_648), ("vit_small", 53_709_568, 3_153_920)])
def test_parameters_of_luts_networks(make_run, name, trained, projector):
    run = make_run(VIT, BARE, {"backbone.name": name, "objectives.lut": {}})
    with torch.device("meta"):
        network = model.Model(*_parts(run))
    assert sum(p.numel() for p in network.parameters() if p.requires_grad) == trained
    assert sum(p.numel() for p in network.objectives["lut"].projector.parameters()) == projector


def _parts(run):
    built = model.build(run, 10)
    return built.backbone, dict(built.objectives)


BASE = pytest.param("vit_base", 17.563, 4.408, 5.373, marks=pytest.mark.release)


@pytest.mark.parametrize(("name", "full", "masked", "decoder"), [BASE, ("vit_small", 4.598, 1.143, 5.363)])
def test_macs_of_a_step_are_those_of_its_passes(make_run, name, full, masked, decoder):
    """In G: the text's one masked pass, decoder and one full pass; the code's two of both passes. And three heads for each view."""
    run = {"backbone.name": name, "objectives.lut": {}}
    for symmetric, passes in ((False, 1), (True, 2)):
        measured = cost.measure(make_run(VIT, BARE, run, fields(symmetric=symmetric)), 10)["macs_train_forward"]
        heads = 3 * 2 * {"vit_base": 768, "vit_small": 384}[name] * 4096 / 1e9
        assert measured / 1e9 == pytest.approx(passes * (full + masked + heads) + decoder, rel=3e-3)


def test_scale_of_the_terms(make_run):
    network = model.build(make_run(LUT, fields(context_weight=0.25, weight=0.5)), 10)
    total, terms, weighted = network(batch_of(), torch.zeros(()))
    assert weighted["lut_context"].item() == pytest.approx(0.125 * terms["lut_context"].item())
    assert weighted["lut_mae"].item() == pytest.approx(0.5 * terms["lut_mae"].item())
    assert total.item() == pytest.approx(sum(w.item() for w in weighted.values()))


@pytest.mark.parametrize(
    ("layers", "word"),
    [
        ({"data.views.second": None}, "data.views.second"),
        ({"data.views.second.size": 16}, "the same size"),
        ({"data.views.main.count": 2}, "must be 1"),
        (fields(second="main"), "second"),
        (fields(mask_ratio=0.4), "disjoint"),
        (fields(context_weight=0), "objectives.mae"),
        (ALONE | fields(guided="both"), "guided"),
        (fields(reconstruction_weight=0), "decoder_dim"),
        (fields(temperature=0.3), "temperature"),
        (fields(distance="infonce", level="token"), "level"),
        (fields(distance="infonce") | {"loop.micro_batch_size": 8}, "micro_batch_size"),
        (fields(distance="infonce", temperature=0), "temperature"),
        (fields(target_mask_ratio=1.0), "target_mask_ratio"),
        (fields(target_mask_ratio=0.5, level="both"), "level"),
        (fields(teacher_momentum=1.5), "teacher_momentum"),
    ],
)
def test_what_cannot_be_trained_is_refused(make_run, layers, word):
    with pytest.raises(ConfigError, match=word):
        make_run(LUT, layers)


def test_every_parameter_gets_a_gradient_in_bfloat16(make_run):
    network = model.build(make_run(LUT), 10).train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total, terms, _ = network(batch_of(), torch.zeros(()))
    total.backward()
    assert not [name for name, p in network.named_parameters() if p.requires_grad and (p.grad is None or p.grad.abs().max() == 0)]
    assert all(term.dtype == torch.float32 for term in terms.values())


def test_compiled_it_is_one_graph(make_run):
    network, counter = model.build(make_run(LUT), 10), CompileCounter()
    compiled = torch.compile(network, backend=counter)
    for step in range(3):
        compiled(batch_of(), torch.tensor(step / 3))[0].backward()
    assert counter.frame_count == 1
