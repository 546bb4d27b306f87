"""Every allowed pair of backbone and objective trains; every other is refused before anything is built, and says why."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from tests.conftest import but_for_a_release
from tests.objectives.conftest import declared
from vitssl import config, model
from vitssl.config import FAMILIES, ConfigError
from vitssl.data.loading.batch import Batch

VIEWS = {"data.image_size": 64, "data.views.second": {}, "data.views.local": {"size": 32, "count": 2}}
# a tiny backbone of every family, and of every choice within a family that changes what it offers or is made of
BACKBONES = {
    "vit": {"name": "vit_pico", "embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 16},
    "vit_sincos": {
        "name": "vit_pico", "embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 16, "positions": "sincos", "init": "xavier",
    },
    "vit_masked_tokens": {
        "name": "vit_pico", "embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 16, "masked_tokens": {"count": 3, "blocks": 2},
        "reg_tokens": 1,
    },
    "vit_random_tokens": {
        "name": "vit_pico", "embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 16,
        "masked_tokens": {"count": 3, "blocks": 2, "selection": "random"},
    },
    "sl_vit": {
        "name": "vit_pico", "embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 16, "tokenizer": "shifted", "attention": "local",
    },
    "swin": {"name": "swin_pico", "embed_dim": 8, "depths": [1, 1, 2], "num_heads": 1, "patch_size": 4, "window_size": 2},
    "swin_plain": {"name": "swin_pico", "embed_dim": 8, "depths": [2, 1], "num_heads": 1, "patch_size": 8, "relative_positions": False},
    "cvt": {"name": "cvt_pico"},
    "cvt_drloc": {"name": "cvt_pico", "variant": "drloc"},
    "t2t": {"name": "t2t_pico", "embed_dim": 32, "num_heads": 2},
    "resnet": {"name": "resnet_pico"},
    "cifarresnet": {"name": "resnet8", "embed_dim": 4},
    "cifarresnet_projecting": {"name": "resnet8", "embed_dim": 4, "shortcut": "projection"},
    "timm": {"name": "timm", "timm_model": "test_convnext"},
    "timm_batch_norm": {"name": "timm", "timm_model": "test_efficientnet"},
}  # fmt: skip
MAE = {"decoder_dim": 16, "decoder_depth": 1, "decoder_heads": 2}
DINO = {"hidden_dim": 16, "bottleneck_dim": 8, "out_dim": 12}
OBJECTIVES = {
    "classify/cls": {"classify": {"pool": "cls"}},
    "classify/mean": {"classify": {"pool": "mean"}},
    "mae/drop": {"mae": MAE},
    "mae/drop, fused": {"mae": MAE | {"fuse": True}},
    "mae/mask": {"mae": MAE | {"hide": "mask", "loss": "l1"}},
    "mae/mask, fused": {"mae": MAE | {"hide": "mask", "fuse": True}},
    "mae/pixel_shuffle": {"mae": {"hide": "mask", "decoder": "pixel_shuffle"}},
    "dino/cls": {"dino": DINO},
    "dino/mean": {"dino": DINO | {"pool": "mean", "batch_norm": True}},
    "drloc": {"classify": {"pool": "mean"}, "drloc": {"pairs": 4, "hidden_dim": 8}},
    "drloc/ce, all scales": {"classify": {"pool": "mean"}, "drloc": {"pairs": 4, "hidden_dim": 8, "loss": "ce", "multi_scale": True}},
    "drloc/cbr": {
        "classify": {"pool": "mean"},
        "drloc": {"pairs": 4, "hidden_dim": 8, "loss": "cbr", "signed": True, "features": "normed"},
    },
    "ssat/drop": {"classify": {"pool": "mean", "weight": 0.1}, "mae": MAE | {"weight": 0.9}},
    "ssat/mask": {"classify": {"pool": "mean", "weight": 0.1}, "mae": MAE | {"weight": 0.9, "hide": "mask"}},
    "ssat/dino": {"classify": {"pool": "mean", "weight": 0.1}, "dino": DINO | {"weight": 0.9, "pool": "mean"}},
}
GUIDED = {"teacher": "a stage", "teacher_backbone": {"name": "resnet8", "embed_dim": 4}, "blocks": [0], "stages": [2], "teacher_px": 16}
OBJECTIVES["locality"] = {"classify": {"pool": "mean"}, "locality": GUIDED}
OBJECTIVES["locality alone"] = {"locality": GUIDED}
OBJECTIVES["drloc/raw alone"] = {"drloc": {"pairs": 4, "hidden_dim": 8}}
OBJECTIVES["drloc/raw, locality"] = OBJECTIVES["drloc/raw alone"] | OBJECTIVES["locality alone"]
OBJECTIVES["drloc/normed alone"] = {"drloc": {"pairs": 4, "hidden_dim": 8, "features": "normed"}}
for _pairs in declared("PAIRS").values():  # by names as above: what `lacking` looks for in them is what they require
    OBJECTIVES |= _pairs
NO_CLS = {"swin", "swin_plain", "cvt_drloc", "resnet", "cifarresnet", "cifarresnet_projecting", "timm", "timm_batch_norm"}
MASKED_TOKENS = {"vit_masked_tokens", "vit_random_tokens"}
DROPPING = {"vit", "vit_sincos", "cvt", "cvt_drloc"} | MASKED_TOKENS
MASKING = {"vit", "vit_sincos", "swin", "swin_plain"} | MASKED_TOKENS
STAGED = {"swin", "swin_plain", "cvt", "cvt_drloc", "resnet", "cifarresnet", "cifarresnet_projecting"}


def lacking(backbone: str, objective: str) -> str | None:
    """A word of the refusal, or None where the pair is allowed: written down by hand, apart from the config's own table."""
    if "/masked_tokens" in objective and backbone not in MASKED_TOKENS:
        able = backbone.startswith(("vit", "sl_vit", "t2t"))
        return f"has no masked tokens; {'set backbone.masked_tokens' if able else 'take a ViT'}"
    if ", reg" in objective and backbone in NO_CLS:
        return "class token"
    if ", reg" in objective and backbone != "vit_masked_tokens":
        return f"has no registers; {'set backbone.reg_tokens' if backbone.startswith(('vit', 'sl_vit')) else 'take a ViT'}"
    if objective.endswith("/cls") and backbone in NO_CLS:
        return "class token"
    if backbone == "sl_vit" and ("/drop" in objective or "/mask" in objective or "pixel_shuffle" in objective):
        return "neighbours"
    hides = "/drop" in objective or "/mask" in objective or "pixel_shuffle" in objective
    if hides and backbone not in DROPPING | MASKING:
        return "cannot hide tokens"
    if "/drop" in objective and backbone not in DROPPING:
        return "cannot drop hidden tokens; set objectives."
    if hides and "/drop" not in objective and backbone not in MASKING:
        return "no mask token; set objectives."
    if "fused" in objective and backbone not in STAGED:
        return "no earlier stages"
    if objective in ("locality alone", "drloc/raw alone", "drloc/raw, locality"):
        return "its last layers would stay untrained"
    if "all scales" in objective and backbone not in STAGED:
        return "one stage only"
    return None


PAIRS = list(itertools.product(BACKBONES, OBJECTIVES))
ALLOWED = [pair for pair in PAIRS if lacking(*pair) is None]


def _covering() -> list[tuple[str, str]]:
    """Of the allowed pairs few in which each backbone and each objective is: as many as there are objectives, more or less."""
    found: list[tuple[str, str]] = []
    for objective in OBJECTIVES:
        takes = [backbone for backbone in BACKBONES if (backbone, objective) in ALLOWED]
        found += [(min(takes, key=[backbone for backbone, _ in found].count), objective)] if takes else []
    left = BACKBONES.keys() - dict(found).keys()
    return found + [next(pair for pair in ALLOWED if pair[0] == backbone) for backbone in sorted(left)]


COVERING = _covering()


def batch(B: int = 4) -> Batch:
    sizes = {"main": (B, 64), "second": (B, 64), "local": (2 * B, 32)}
    views = {name: torch.randn(count, 3, px, px) for name, (count, px) in sizes.items()}
    targets = {name: torch.arange(len(view)) % 10 for name, view in views.items()}
    return Batch(views, targets, torch.arange(B), torch.tensor(float(B)))


@pytest.fixture
def make(make_run):
    bare = {f"backbone.{name}": None for name in ("embed_dim", "depth", "num_heads", "patch_size")}
    return lambda backbone, objective: make_run(VIEWS, bare, {"backbone": BACKBONES[backbone], "objectives": OBJECTIVES[objective]})


def test_every_family_is_here():
    named = {config.family_name(config.BackboneConfig(name=fields["name"])) for fields in BACKBONES.values()}
    assert named == set(FAMILIES)


def test_few_pairs_cover_every_backbone_and_every_objective_that_has_one():
    assert [{pair[position] for pair in COVERING} for position in (0, 1)] == [{pair[position] for pair in ALLOWED} for position in (0, 1)]
    assert len(COVERING) <= len(BACKBONES) + len(OBJECTIVES)


@pytest.mark.parametrize(("backbone", "objective"), but_for_a_release(ALLOWED, COVERING))
def test_an_allowed_pair_takes_two_steps_and_every_parameter_gets_a_gradient(make, backbone, objective):
    torch.manual_seed(0)  # of eight ReLUs all may be dead, once in a while
    run = make(backbone, objective)
    network = model.build(run, 10).train()
    network.start(torch.full((10,), 3))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for step in range(2):
        optimizer.zero_grad()
        total, terms, weighted = network(batch(), torch.tensor(0.5))
        total.backward()
        assert torch.isfinite(total) and terms.keys() == weighted.keys()
        trained = {n: p for n, p in network.named_parameters() if p.requires_grad}
        assert not [n for n, p in trained.items() if p.grad is None], "DDP waits for ever for a parameter that is not used"
        still = [n for n, p in trained.items() if not p.grad.abs().sum() > 0]
        if backbone == "resnet" and step == 0:
            still = [n for n in still if ".layer" not in n]  # timm's residual branches end in a gain that starts at zero
        # the class token's query skips the convolution, and in the last block nobody asks for the other tokens'
        assert all("blocks.1.attn.conv_proj_q" in n for n in still) if backbone == "cvt" else not still
        optimizer.step()
        network.after_step(0.5)
    for name, cfg in config.active(run.objectives).items():
        own = [part for part_name, part in network.objectives[name].named_modules() if not part_name.startswith("teacher")]
        assert cfg.has_batch_norm() == any(isinstance(part, _BatchNorm) for part in own), f"has_batch_norm of {name} says otherwise"
    unmoved = [name for name, value in network.backbone.named_buffers() if name.endswith("running_mean") and not value.any()]
    assert not unmoved, "no pass updates these statistics: an objective that makes no full pass says has_full_pass = False"


@pytest.mark.parametrize(("backbone", "objective"), [pair for pair in PAIRS if pair not in ALLOWED])
def test_another_pair_is_refused_with_the_reason(make, backbone, objective):
    with pytest.raises(ConfigError, match=lacking(backbone, objective)) as caught:
        make(backbone, objective)
    assert "objectives." in str(caught.value) and "\n" not in str(caught.value)
