"""Weights are taken over exactly as asked."""

from __future__ import annotations

import argparse
import json
import os
import re
import socket

import pytest
import timm
import torch
from safetensors.torch import save_file

from vitssl import cli, model
from vitssl.checkpoints import pretrained, tensor_files
from vitssl.config import ConfigError
from vitssl.weights.released import check_released, released

CLASSIFY = {"objectives.classify": {}}
MAE = {"objectives.mae": {"decoder_dim": 16, "decoder_depth": 1, "decoder_heads": 2}}


@pytest.fixture
def started(make_run, tmp_path):
    network = model.build(make_run(MAE, {"seed": 7}), 10)
    tensor_files.save(tmp_path / "last.pt", {"model": network.state_dict()})
    return tmp_path, network


def test_init_from_takes_the_backbone_and_nothing_else(make_run, started):
    folder, theirs = started
    run = make_run(CLASSIFY, {"init_from": str(folder)})
    ours = model.build(run, 10)
    head = ours.objectives["classify"].head.weight.clone()
    pretrained.init_from(ours, ours.backbone, run)
    assert all(torch.equal(a, b) for a, b in zip(ours.backbone.state_dict().values(), theirs.backbone.state_dict().values(), strict=True))
    assert torch.equal(ours.objectives["classify"].head.weight, head)


def test_init_objectives_names_what_comes_along(make_run, started):
    folder, theirs = started
    run = make_run(MAE, {"init_from": str(folder / "last.pt"), "init_objectives": ["mae"]})
    ours = model.build(run, 10)
    pretrained.init_from(ours, ours.backbone, run)
    assert torch.equal(ours.objectives["mae"].decoder.mask_token, theirs.objectives["mae"].decoder.mask_token)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"backbone.depth": 3}, r"blocks\.2\..* is missing"),
        ({"backbone.depth": 1}, r"blocks\.1\..* is not part of the network"),
        ({"backbone.mlp_ratio": 2.0}, r"fc1.* has shape \(128.*\), and \(64"),
        ({"init_objectives": ["classify"]}, r"objectives\.classify\.head\.bias is missing"),
    ],
)
def test_a_misfit_is_named_and_can_be_excused(make_run, started, layer, words):
    folder, _ = started
    run = make_run(CLASSIFY, {"init_from": str(folder)}, layer)
    with pytest.raises(ConfigError, match=words):
        pretrained.init_from(model.build(run, 10), None or model.build(run, 10).backbone, run)
    run = make_run(CLASSIFY, {"init_from": str(folder), "init_except": ["."]}, layer)
    ours = model.build(run, 10)
    pretrained.init_from(ours, ours.backbone, run)


def test_positions_are_resized_for_a_larger_image(make_run, started):
    folder, theirs = started
    run = make_run(CLASSIFY, {"init_from": str(folder), "data.image_size": 16})
    ours = model.build(run, 10)
    pretrained.init_from(ours, ours.backbone, run)
    assert ours.backbone.pos_embed.shape[1] == 65
    assert torch.equal(ours.backbone.pos_embed[:, 0], theirs.backbone.pos_embed[:, 0])


def test_a_token_for_masking_is_left_behind_or_starts_afresh(make_run, tmp_path):
    simmim = {"objectives.mae": {"hide": "mask", "decoder": "pixel_shuffle"}}
    theirs = model.build(make_run(simmim, {"seed": 7}), 10)
    tensor_files.save(tmp_path / "last.pt", {"model": theirs.state_dict()})
    run = make_run(CLASSIFY, {"init_from": str(tmp_path)})
    ours = model.build(run, 10)
    pretrained.init_from(ours, ours.backbone, run)
    assert torch.equal(ours.backbone.patch_embed.proj.weight, theirs.backbone.patch_embed.proj.weight)
    tensor_files.save(tmp_path / "last.pt", {"model": ours.state_dict()})
    again = model.build(make_run(simmim), 10)
    pretrained.init_from(again, again.backbone, make_run(simmim, {"init_from": str(tmp_path)}))
    assert torch.equal(again.backbone.cls_token, theirs.backbone.cls_token)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda tensors: tensors,
        lambda tensors: {"model": tensors, "args": argparse.Namespace(lr=1.0)},
        lambda tensors: {"state_dict_ema": tensors, "epoch": 3},
        lambda tensors: {"state_dict": {f"module.{k}": v for k, v in tensors.items()}},
    ],
    ids=["bare", "model", "state_dict_ema", "ddp"],
)
def test_a_foreign_file_is_read_without_its_classifier(make_run, tmp_path, wrap):
    theirs = timm.create_model("vit_tiny_patch16_224", img_size=8, patch_size=2, embed_dim=32, depth=2, num_heads=2)
    torch.save(wrap(theirs.state_dict()), tmp_path / "vit.pth")
    run = make_run(CLASSIFY, {"init_from": str(tmp_path / "vit.pth")})
    ours = model.build(run, 10)
    pretrained.init_from(ours, ours.backbone, run)
    named = theirs.state_dict()
    assert all(torch.equal(value, named[name]) for name, value in ours.backbone.state_dict().items())


SWIN = {"img_size": 32, "embed_dim": 8, "depths": (1, 1, 2), "num_heads": (1, 2, 4), "window_size": 2}


def test_safetensors_are_read_whatever_the_files_name(make_run, tmp_path):
    theirs = model.build(make_run(CLASSIFY, {"seed": 7}), 10).backbone
    save_file(theirs.state_dict(), tmp_path / "weights.pt")
    ours = model.build(make_run(CLASSIFY), 10)
    pretrained.init_from(ours, ours.backbone, make_run(CLASSIFY, {"init_from": str(tmp_path / "weights.pt")}))
    assert all(torch.equal(a, b) for a, b in zip(ours.backbone.state_dict().values(), theirs.state_dict().values(), strict=True))


def test_a_damaged_run_is_to_be_trained_anew(make_run, started):
    folder, _ = started
    os.truncate(folder / "last.pt", 1000)
    ours, run = model.build(make_run(CLASSIFY), 10), make_run(CLASSIFY, {"init_from": str(folder)})
    anew = f"; delete {folder}, and repeat the command to train that run anew"
    for job, advice in (({}, ""), ({"imported": {"file": "x.pt", "layout": "timm", "sha256": "0"}}, ""), ({"name": "x"}, anew)):
        (folder / "job.json").write_text(json.dumps(job))
        with pytest.raises(ConfigError, match=rf"last\.pt is not a checkpoint that can be read \([^;]*\){advice}$"):
            pretrained.init_from(ours, ours.backbone, run)


FAMILIES = {
    "swin": ("swin_tiny_patch4_window7_224", SWIN, SWIN | {"name": "swin_pico", "num_heads": 1, "patch_size": 4, "depths": [1, 1, 2]}),
    "resnet": ("resnet50", {}, {"name": "resnet50"}),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_of_timms_fits_its_family(make_run, tmp_path, family):
    name, arguments, fields = FAMILIES[family]
    theirs = timm.create_model(name, **arguments)
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    fields = {field: value for field, value in fields.items() if field != "img_size"}
    bare = {f"backbone.{field}": None for field in ("embed_dim", "depth", "num_heads", "patch_size")}
    run = make_run(
        {"objectives.classify.pool": "mean", "data.image_size": 32},
        bare,
        {"backbone": fields},
        {"init_from": str(tmp_path / "weights.pth")},
    )
    ours = model.build(run, 10).eval()
    pretrained.init_from(ours, ours.backbone, run)
    images_BCHW = torch.randn(2, 3, 32, 32)
    pooled_BD = theirs.eval().forward_head(theirs.forward_features(images_BCHW), pre_logits=True)
    assert torch.allclose(ours.backbone(ours.backbone.embed(images_BCHW)).tokens_BND.mean(1), pooled_BD, atol=1e-5)


def test_released_weights_that_do_not_exist_are_one_line(capsys):
    with pytest.raises(ConfigError, match=r"timm has no such weights: 'deit_tinny' is not known .did you mean deit_tiny_\S+ or \S+"):
        released("deit_tinny")
    for name in ("deit_tiny_patch16_224", "deit_tiny_patch16_224.fb_in1k", "hf-hub:someone/something"):
        check_released(name)
    assert cli.main(["weights", "hf-hub:someone/something"]) == 2, "it does not say that there are some"
    assert "only a download tells whether there is a hf-hub:someone/something" in capsys.readouterr().err


def test_a_hub_without_an_address_is_one_line_at_once(monkeypatch):
    """Where the file is not cached, and no proxy is asked."""
    import huggingface_hub

    def unknown(*_):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(timm, "create_model", None)  # is not come to
    with pytest.raises(
        ConfigError, match=r"^timm:deit_tiny_patch16_224: huggingface\.co cannot be reached from here \(Name or service not known\)"
    ):
        released("deit_tiny_patch16_224")


@pytest.mark.parametrize(
    ("layer", "advice"),
    [
        ({"backbone.embed_dim": 64}, "the file is of another network than this vit_pico; name that network, or another file"),
        ({"backbone.mlp_ratio": 2.0}, "name it in init_except if that is meant"),
    ],
)
def test_another_network_is_told_from_one_that_differs_in_a_part(make_run, started, layer, advice):
    folder, _ = started
    run = make_run(CLASSIFY, {"init_from": str(folder)}, layer)
    network = model.build(run, 10)
    with pytest.raises(ConfigError, match=re.escape(advice)):
        pretrained.init_from(network, network.backbone, run)


def test_heads_of_several_layers_are_left_out_of_bare_files(make_run, tmp_path):
    """As in MAE's linear probes: a batch norm, and the classifier."""
    run = make_run(CLASSIFY, {"init_from": str(tmp_path / "x.pt")})
    network = model.build(run, 10)
    bare = {name: torch.ones_like(value) for name, value in network.backbone.state_dict().items()}
    heads = {"head.0.running_mean": torch.ones(3), "head.1.weight": torch.ones(3, 3), "fc.2.bias": torch.ones(3)}
    torch.save({"model": bare | heads}, tmp_path / "x.pt")
    pretrained.init_from(network, network.backbone, run)
    assert all((value == 1).all() for value in network.backbone.state_dict().values())


def test_a_pattern_that_excuses_no_name_is_refused(make_run, started):
    folder, _ = started
    run = make_run(CLASSIFY, {"init_from": str(folder), "init_except": ["patch_embed", "nonsense"]})
    network = model.build(run, 10)
    with pytest.raises(ConfigError, match=r"^init_except: 'nonsense' is in no name of the weights, such as backbone\."):
        pretrained.init_from(network, network.backbone, run)


@pytest.mark.parametrize(("asked", "meant"), [("emaa", r" \(did you mean ema\?\)"), ("best", "")])
def test_weights_of_another_kind_are_refused_with_the_choices(asked, meant):
    with pytest.raises(ConfigError, match=rf"^weights: '{asked}' is none of model, ema, teacher{meant}$"):
        pretrained.chosen({"model": {}}, asked)


def test_a_missing_checkpoint_is_named(make_run, tmp_path):
    run = make_run(CLASSIFY, {"init_from": str(tmp_path)})
    network = model.build(run, 10)
    with pytest.raises(ConfigError, match=r"last\.pt does not exist"):
        pretrained.init_from(network, network.backbone, run)
