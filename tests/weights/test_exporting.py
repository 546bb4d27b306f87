"""What a run is exported to is loaded by other code, strictly, and gives the same logits or features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

import vitssl
from tests.conftest import but_for_a_release
from tests.jobs.standin import COST
from tests.weights import releases
from vitssl import cli, config, model
from vitssl.checkpoints import tensor_files
from vitssl.data.loading.batch import Batch
from vitssl.trained import Trained
from vitssl.weights import importing, onnx, timm_names
from vitssl.weights.exporting import export
from vitssl.weights.importing import import_file

VIT = {"name": "vit_pico", "embed_dim": 64, "depth": 2, "num_heads": 2, "patch_size": 8}
SWIN = {"name": "swin_pico", "embed_dim": 16, "depths": [1, 2, 1], "num_heads": 1, "patch_size": 4, "window_size": 2}
NETWORKS = {
    "vit": ({"backbone": VIT}, "cls"),
    "vit_mean": ({"backbone": VIT}, "mean"),
    "vit_sincos": ({"backbone": VIT | {"positions": "sincos", "qkv_bias": False, "mlp_ratio": 3.0}}, "cls"),
    "vit_registers": ({"backbone": VIT | {"reg_tokens": 2}}, "mean"),
    "vit_fc_norm": ({"backbone": VIT, "objectives.classify.norm": "fc"}, "mean"),
    "vit_probe": ({"backbone": VIT, "objectives.classify.norm": "batch"}, "cls"),
    "swin": ({"backbone": SWIN}, "mean"),
    "resnet": ({"backbone": {"name": "resnet50", "depths": [1, 1, 1, 1]}}, "mean"),
}
ONNX_ONLY = {
    "vit_two_heads": ({"backbone": VIT, "objectives.classify.extra_heads": [{"pool": "mean", "hidden_dim": 8}]}, "cls"),
    "cvt": ({"backbone": {"name": "cvt_pico"}}, "mean"),
    "sl_vit": ({"backbone": VIT | {"tokenizer": "shifted", "attention": "local"}}, "cls"),
    "t2t": ({"backbone": {"name": "t2t_pico", "embed_dim": 64, "num_heads": 2}}, "cls"),
}
NEITHER = {"masked_tokens": ({"backbone": VIT | {"masked_tokens": {"blocks": 1}}}, "cls")}
CLASSES = ["a", "b", "c"]


def saved(folder: Path, *layers: dict[str, Any], **content: Any) -> Trained:
    """A run folder with drawn weights of three classes, loaded."""
    run = config.merge(config.Run, {"data": {"shards": "gone", "image_size": 32, "normalize": "half"}}, *layers)
    config.save(run, folder)
    torch.manual_seed(0)
    network = releases.drawn(model.build(run, len(CLASSES)))
    data = {"classes": CLASSES, "mean": [0.5] * 3, "std": [0.25] * 3}
    tensor_files.save(folder / "last.pt", {"model": network.state_dict(), "ema": None, "data": data} | content)
    (folder / "cost.json").write_text(json.dumps(COST))
    (folder / "done.json").write_text('{"step": 0, "epochs": 0.0}')
    return vitssl.load(folder, device="cpu")


def classifier(name: str, folder: Path) -> Trained:
    layer, pool = (NETWORKS | ONNX_ONLY | NEITHER)[name]
    return saved(folder, {"objectives.classify": {"pool": pool}}, layer)


def images(count: int = 3) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits(trained: Trained, images_BCHW: Tensor) -> Tensor:
    return trained.model.predict(Batch({"main": images_BCHW}, {}, torch.zeros(0), 0.0))


def rival(trained: Trained, num_classes: int = 3) -> nn.Module:
    architecture = timm_names.architecture(trained.run, num_classes)
    return timm.create_model(architecture.name, **architecture.args).eval()


@torch.no_grad()
@pytest.mark.parametrize("name", NETWORKS)
def test_timm_loads_it_strictly_and_gives_the_same_logits_and_features(name: str, tmp_path: Path) -> None:
    trained = classifier(name, tmp_path / "run")
    for kind in ("timm", "safetensors"):
        export(tmp_path / "run", tmp_path / kind, kind)
    theirs = rival(trained)
    for tensors in (torch.load(tmp_path / "timm", weights_only=True), load_file(tmp_path / "safetensors")):
        theirs.load_state_dict(tensors, strict=True)
        torch.testing.assert_close(theirs(images()), logits(trained, images()), atol=1e-5, rtol=1e-5)
    if "fc_norm" not in name:  # whose features come before the norm there
        features = trained.model.backbone(trained.model.backbone.embed(images()))
        theirs_BTD = theirs.forward_features(images())
        theirs_BTD = theirs_BTD if name.startswith("vit") else theirs_BTD.flatten(1, 2) if name == "swin" else theirs_BTD.flatten(2).mT
        torch.testing.assert_close(features.sequence(), theirs_BTD, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", ["vit", "swin", "resnet"])
def test_timm_loads_a_hub_folder_from_disk(name: str, tmp_path: Path) -> None:
    trained = classifier(name, tmp_path / "run")
    export(tmp_path / "run", tmp_path / "hub", "huggingface")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True).eval()
    torch.testing.assert_close(theirs(images()), logits(trained, images()), atol=1e-5, rtol=1e-5)
    data = timm.data.resolve_model_data_config(theirs)
    assert [list(data[name]) for name in ("input_size", "mean", "std")] == [[3, 32, 32], [0.5] * 3, [0.25] * 3]
    assert json.loads((tmp_path / "hub" / "config.json").read_text())["label_names"] == CLASSES
    assert (tmp_path / "hub" / "README.md").read_text().startswith("---\nlibrary_name: timm\npipeline_tag: image-classification\n")
    assert {path.name for path in (tmp_path / "hub").iterdir()} == {"config.json", "model.safetensors", "README.md"}


@pytest.mark.parametrize("kind", ["ema", "teacher", "backbone"])
def test_other_weights_and_the_backbone_alone(kind: str, tmp_path: Path) -> None:
    dino = {"hidden_dim": 8, "bottleneck_dim": 8, "out_dim": 8, "local": None}
    layers = {"backbone": VIT, "objectives.classify": {}, "objectives.dino": dino, "data.views.second": {}, "loop.ema_decay": 0.9}
    run = saved(tmp_path / "run", layers)
    average = {name: value + 0.01 if value.is_floating_point() else value for name, value in run.model.state_dict().items()}
    saved(tmp_path / "run", layers, ema=average)
    export(tmp_path / "run", tmp_path / "file", "timm", **({"backbone": True} if kind == "backbone" else {"weights": kind}))
    tensors = torch.load(tmp_path / "file", weights_only=True)
    chosen = vitssl.load(tmp_path / "run", weights="model" if kind == "backbone" else kind, device="cpu").model
    assert ("head.weight" in tensors) == (kind == "ema")
    assert torch.equal(tensors["norm.bias"], chosen.backbone.norm.bias)
    rival(run, 3 if kind == "ema" else 0).load_state_dict(tensors, strict=True)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        *((name, {}) for name in NETWORKS),
        ("t2t", {}),
        ("t2t", {"attention_scale": "embed_dim"}),
        ("cvt", {"variant": "drloc", "embed_dim": 64, "num_heads": 2}),
    ],
)
def test_there_and_back_again(name: str, fields: dict[str, str], tmp_path: Path) -> None:
    layer, pool = (NETWORKS | ONNX_ONLY)[name]
    trained = saved(tmp_path / "run", {"objectives.classify": {"pool": pool}}, layer, {"backbone": fields})
    export(tmp_path / "run", tmp_path / "file.safetensors", "safetensors")
    again = vitssl.load(import_file(tmp_path / "file.safetensors", "timm", tmp_path / "again"), device="cpu")
    torch.testing.assert_close(logits(again, images()), logits(trained, images()), atol=1e-5, rtol=1e-5)
    assert (again.classes, again.mean, again.std) == (CLASSES, trained.mean, trained.std)
    assert config.size_of(again.run.backbone) == config.size_of(trained.run.backbone)
    assert again.run.data.image_size == trained.run.data.image_size


@torch.no_grad()
@pytest.mark.parametrize("name", but_for_a_release(["vit", "vit_probe", "swin", "resnet", *ONNX_ONLY], ["vit"]))
def test_onnx_runs_elsewhere_with_equal_logits(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    trained = classifier(name, tmp_path / "run")
    export(tmp_path / "run", tmp_path / "file.onnx", "onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "file.onnx"))
    for count in (1, 3):  # of any number of images
        (theirs,) = session.run(["logits"], {"images": images(count).numpy()})
        np.testing.assert_allclose(theirs, logits(trained, images(count)).numpy(), atol=1e-4)
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["classes"]) == CLASSES and json.loads(facts["mean"]) == [0.5] * 3


@pytest.mark.release
@torch.no_grad()
def test_onnx_of_a_pretraining_gives_tokens(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    trained = saved(tmp_path / "run", {"backbone": VIT, "objectives.mae": {"decoder_dim": 16, "decoder_depth": 1, "decoder_heads": 2}})
    export(tmp_path / "run", tmp_path / "file.onnx", "onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "file.onnx"))
    prefix, tokens = session.run(["prefix", "tokens"], {"images": images().numpy()})
    features = trained.model.backbone(trained.model.backbone.embed(images()))
    np.testing.assert_allclose(tokens, features.tokens_BND.numpy(), atol=1e-4)
    np.testing.assert_allclose(prefix, features.prefix_BPD.numpy(), atol=1e-4)


def test_onnx_without_its_packages_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    classifier("vit", tmp_path / "run")
    monkeypatch.setattr(onnx, "NEEDED", ("onnx_of_tomorrow", "onnxscript_of_tomorrow"))
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "x.onnx"), "--to", "onnx"]) == 2
    error = capsys.readouterr().err
    assert "--to onnx needs onnx_of_tomorrow and onnxscript_of_tomorrow; pip install onnx_of_tomorrow onnxscript_of_tomorrow\n" in error


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vit_two_heads", "objectives.classify.extra_heads: timm's networks have no classifier with"),
        ("cvt", "timm has no network like this cvt_pico; export --to safetensors (with our names) or onnx"),
        ("sl_vit", "timm has no network like this vit_pico"),
    ],
)
def test_what_timm_does_not_have_is_one_line(name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    classifier(name, tmp_path / "run")
    for kind in ("timm", "huggingface"):
        assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", kind]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {tmp_path / 'run'}: ") and words in error and error.count("\n") == 1
        assert not (tmp_path / "out").exists()


def test_what_onnx_does_not_have_is_one_line(tmp_path: Path, monkeypatch, capfd: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise torch.onnx.OnnxExporterError("\x1b[96mFailed\x1b[0m to convert\nThis is step 3/3")

    classifier("vit_mean", tmp_path / "run")
    monkeypatch.setattr(torch.onnx, "export", refuse)
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "onnx"]) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.endswith("ONNX cannot have this vit_pico (Failed to convert); export --to safetensors")


@pytest.mark.parametrize("kind", ["timm", "huggingface", "onnx"])
def test_masked_tokens_are_exported_with_our_names_alone(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    classifier("masked_tokens", tmp_path / "run")
    words = ["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to"]
    assert cli.main([*words, kind]) == 2
    assert (
        "run: backbone.masked_tokens: timm, Hugging Face and ONNX exports do not support masked tokens; export --to safetensors --backbone"
        in capsys.readouterr().err
    )
    assert cli.main([*words, "safetensors", "--backbone"]) == 0


@torch.no_grad()
@pytest.mark.parametrize("kind", ["timm", "safetensors", "huggingface"])
def test_the_line_that_loads_it_gives_the_same_probabilities_of_an_image(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture) -> None:
    run = saved(tmp_path / "run", {"objectives.classify": {}, "backbone": VIT, "data.eval_crop": 1.0})  # no resizing: that of PIL rounds
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", kind]) == 0
    scope: dict[str, Any] = {"timm": timm, "torch": torch, "safetensors": safetensors}
    exec(capsys.readouterr().err.removeprefix("load it with "), scope)  # as it is printed
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
    probabilities = scope["model"](scope["transform"](image)[None]).softmax(-1)
    torch.testing.assert_close(probabilities, run.predict(image), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["timm", "huggingface"])
def test_images_that_were_shrunk_before_are_told(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture) -> None:
    saved(tmp_path / "run", {"objectives.classify": {}, "backbone": VIT, "data.cache_px": 48})
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", kind]) == 0
    told = "  # images with a short side above 48 px were first shrunk to that (data.cache_px)\n"
    assert capsys.readouterr().err.endswith(told)
    assert kind == "timm" or told in (tmp_path / "out" / "README.md").read_text()


def test_the_command_says_how_to_load_it_and_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    classifier("vit", tmp_path / "run")
    words = ["export", str(tmp_path / "run"), str(tmp_path / "new" / "vit.pth"), "--to", "timm"]
    assert cli.main(words) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'new' / 'vit.pth'}\n"
    assert cli.main(words) == 2
    assert "vit.pth exists; delete it, or choose another name" in capsys.readouterr().err
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "run"), "--to", "huggingface"]) == 2
    assert cli.main(["export", str(tmp_path / "nowhere"), str(tmp_path / "x"), "--to", "timm"]) == 2
    assert f"there is no folder {tmp_path / 'nowhere'}; name a run, such as {tmp_path / 'run'}" in capsys.readouterr().err
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "x"), "--to", "timm", "--weights", "teacher"]) == 2
    assert "holds no teacher" in capsys.readouterr().err


def test_files_of_earlier_versions_are_read():
    """By these names a file that somebody has exported says what it is; they stay, wherever the code that reads them goes."""
    assert (importing.FIELDS, importing.CLASSES) == ("vitssl.fields", "vitssl.classes")
