"""Files laid out as the releases are become runs whose features equal those of another implementation with the same weights."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

import vitssl
from tests.conftest import but_for_a_release
from tests.weights import releases
from tests.weights.releases import CLASSES, RELEASES, SIZE_PX, Release
from vitssl import cli, config, model
from vitssl.checkpoints import pretrained
from vitssl.config import ConfigError
from vitssl.data import shards
from vitssl.data.loading.batch import Batch
from vitssl.objectives.masking import TokenMask
from vitssl.weights import importing, released, timm_names
from vitssl.weights.exporting import export
from vitssl.weights.importing import import_file

# what no shape tells: the image's side, of networks without stored positions
SIZE = {"timm_swin": ["data.image_size=32"], "drloc_resnet": ["data.image_size=64"], "drloc_cvt": ["data.image_size=32"]}


def imported(name: str, tmp_path: Path, *settings: str) -> tuple[vitssl.trained.Trained, Release]:
    layout, make = RELEASES[name]
    torch.manual_seed(0)
    release = make()
    torch.save(release.content, tmp_path / "file.pth")
    words = [*SIZE.get(name, []), *(["objectives.mae.decoder_heads=2"] if name in ("mae", "ssat") else [])]
    words += ["objectives.lut.decoder_heads=2"] if name == "lut" else []
    folder = import_file(tmp_path / "file.pth", layout, tmp_path / "run", [*words, *settings])
    return vitssl.load(folder, device="cpu"), release


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, SIZE_PX, SIZE_PX, generator=torch.Generator().manual_seed(1))


def batch_of(images_BCHW: Tensor) -> Batch:
    return Batch({"main": images_BCHW}, {}, torch.arange(len(images_BCHW)), 0.0)


FIXED = ("mae", "mae_encoder", "ssat", "lut")  # positions
OBJECTIVES = {
    "mae": {"mae"}, "mae_encoder": set(), "ssat": {"classify", "mae"}, "dino": {"dino"}, "gmml": {"gmml"}, "sit": set(), "lut": {"lut"},
    "drloc_swin": {"classify", "drloc"}, "drloc_resnet": {"classify", "drloc"}, "drloc_cvt": {"classify", "drloc"},
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("name", RELEASES)
def test_features_and_logits_equal_those_of_another_implementation(name: str, tmp_path: Path) -> None:
    trained, release = imported(name, tmp_path)
    assert trained.run.backbone.positions == ("sincos" if name in FIXED else "learned")
    assert set(config.active(trained.run.objectives)) == OBJECTIVES.get(name, {"classify"})
    backbone, images_BCHW = trained.model.backbone, images()
    tokens_BND = backbone(backbone.embed(images_BCHW)).tokens_BND
    torch.testing.assert_close(tokens_BND, release.tokens(images_BCHW), atol=1e-5, rtol=1e-5)
    logits_BK = trained.model.predict(batch_of(images_BCHW))
    if release.logits is None:
        assert logits_BK is None
    else:
        assert logits_BK.shape == (2, CLASSES)
        torch.testing.assert_close(logits_BK, release.logits(images_BCHW), atol=1e-5, rtol=1e-5)


def test_the_size_of_swins_images_is_told_by_the_masks_of_its_authors_files(tmp_path: Path) -> None:
    trained, _ = imported("drloc_swin", tmp_path)
    assert trained.run.data.image_size == SIZE_PX and trained.run.backbone.window_size == 2


def test_t2t_of_drloc_is_read_without_its_table_of_positions(tmp_path: Path) -> None:
    fields = {"name": "t2t_pico", "embed_dim": 64, "num_heads": 1}
    run = config.merge(config.Run, {"backbone": fields, "objectives.classify": {}, "data": {"image_size": SIZE_PX, "shards": "none"}})
    ours = releases.drawn(model.build(run, CLASSES))
    tensors = ours.backbone.state_dict() | {f"head.{name}": value for name, value in ours.objectives["classify"].head.state_dict().items()}
    tensors |= {"pos_embed": torch.zeros(1, 5, 64)} | releases._drloc("drloc.", 64)
    torch.save({"model": tensors, "epoch": 100}, tmp_path / "file.pth")
    trained = vitssl.load(import_file(tmp_path / "file.pth", "drloc", tmp_path / "run", [f"data.image_size={SIZE_PX}"]), device="cpu")
    assert trained.run.objectives.drloc.features == "normed" and trained.run.backbone.attention_scale == "head_dim"
    assert torch.equal(trained.model.predict(batch_of(images())), ours.predict(batch_of(images())))


# ----------------------------------------------------------------------------------------------- heads of pretraining


@torch.no_grad()
def test_maes_decoder_predicts_as_the_blocks_it_was_made_of(tmp_path: Path) -> None:
    """Without hidden tokens, and with the order of tokens as it is: MAE's decoder is then a plain transformer."""
    trained, release = imported("mae", tmp_path)
    tensors, decoder = release.content["model"], trained.model.objectives["mae"].decoder
    features = trained.model.backbone(trained.model.backbone.embed(images()))
    everything = torch.arange(16).expand(2, -1)
    prediction = decoder(features, TokenMask(everything, torch.zeros(2, 16, dtype=torch.bool)))
    x = torch.nn.functional.linear(features.sequence(), tensors["decoder_embed.weight"], tensors["decoder_embed.bias"])
    x = x + tensors["decoder_pos_embed"]
    rival = releases.timm.create_model("vit_tiny_patch16_224", embed_dim=32, depth=2, num_heads=2, img_size=SIZE_PX).blocks
    rival.load_state_dict({name.removeprefix("decoder_blocks."): v for name, v in tensors.items() if name.startswith("decoder_blocks.")})
    x = torch.nn.functional.layer_norm(rival(x), (32,), tensors["decoder_norm.weight"], tensors["decoder_norm.bias"], eps=1e-6)
    expected = torch.nn.functional.linear(x[:, 1:], tensors["decoder_pred.weight"], tensors["decoder_pred.bias"])
    torch.testing.assert_close(prediction, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_gmmls_head_reconstructs_as_its_parts_say(tmp_path: Path) -> None:
    trained, release = imported("gmml", tmp_path)
    tensors = {name.removeprefix("module.head_recons."): value for name, value in release.content["SiT_model"].items()}
    features = trained.model.backbone(trained.model.backbone.embed(images()))
    x = features.tokens_BND
    for i in (0, 2, 4):
        x = torch.nn.functional.gelu(torch.nn.functional.linear(x, tensors[f"mlp.{i}.weight"], tensors[f"mlp.{i}.bias"]))
    x = x.transpose(1, 2).unflatten(2, (4, 4))
    expected = torch.nn.functional.conv_transpose2d(x, tensors["convTrans.weight"], tensors["convTrans.bias"], stride=8)
    torch.testing.assert_close(trained.model.objectives["gmml"].decoder(features), expected, atol=1e-5, rtol=1e-5)


def test_dinos_student_and_teacher_are_both_there(tmp_path: Path) -> None:
    trained, release = imported("dino", tmp_path)
    content, dino = release.content, trained.model.objectives["dino"]
    teacher = vitssl.load(trained.folder, weights="teacher", device="cpu").model.backbone
    assert torch.equal(trained.model.backbone.norm.weight, content["student"]["module.backbone.norm.weight"])
    assert torch.equal(teacher.norm.weight, content["teacher"]["backbone.norm.weight"])
    assert torch.equal(dino.head.last_layer.weight_v, content["student"]["module.head.last_layer.weight_v"])
    assert torch.equal(dino.teacher["head"].mlp[2].weight, content["teacher"]["head.mlp.2.weight"])
    assert torch.equal(dino.center, content["dino_loss"]["center"][0])


def test_luts_heads_and_teacher_are_there(tmp_path: Path) -> None:
    trained, release = imported("lut", tmp_path)
    lut, content = trained.model.objectives["lut"], release.content
    assert torch.equal(lut.projector[3].weight, content["model"]["head.3.weight"])
    assert torch.equal(lut.predictor[1].running_var, content["model"]["predictor.1.running_var"])
    assert torch.equal(lut.teacher["backbone"].norm.bias, content["model_ema"]["ema.norm.bias"])
    assert torch.equal(lut.teacher["projector"][0].weight, content["model_ema"]["ema.head.0.weight"])


@pytest.mark.parametrize("name", ["mae", "gmml", "dino", "lut", "ssat"])
def test_pretraining_goes_on_from_an_import(name: str, tmp_path: Path) -> None:
    trained, _ = imported(name, tmp_path)
    run = config.load(trained.folder)
    run.init_from, run.init_objectives = str(trained.folder), list(config.active(run.objectives))
    network = model.build(run, len(trained.classes))
    pretrained.init_from(network, network.backbone, run)
    theirs = trained.model.state_dict()
    assert all(torch.equal(value, theirs[key]) for key, value in network.state_dict().items())


# ---------------------------------------------------------------------------------------------------------- what it is


SHAPES = [(192, 12, 16, "vit_tiny"), (384, 12, 16, "vit_small"), (768, 12, 16, "vit_base"), (384, 12, 8, "vit_small"), (1280, 1, 14, None)]


@pytest.mark.parametrize(("width", "depth", "patch_px", "name"), but_for_a_release(SHAPES, [SHAPES[0], SHAPES[4]]))
def test_sizes_are_read_from_shapes(width: int, depth: int, patch_px: int, name: str | None, tmp_path: Path) -> None:
    sizes = {"img_size": 2 * patch_px, "patch_size": patch_px, "embed_dim": width, "depth": depth, "num_heads": 4}
    torch.save(releases.timm.create_model("vit_tiny_patch16_224", **sizes).state_dict(), tmp_path / "file.pth")
    run = config.load(import_file(tmp_path / "file.pth", "timm", tmp_path / "run"))
    size = config.size_of(run.backbone)
    assert (size.embed_dim, size.depths, size.patch_size, run.data.image_size) == (width, (depth,), patch_px, 2 * patch_px)
    assert size.num_heads == (16 if width == 1280 else width // 64)
    assert name is None or run.backbone.name == name


def test_an_import_is_a_finished_run(tmp_path: Path, digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained, _ = imported("deit", tmp_path, "data.normalize=half")
    folder = trained.folder
    job = json.loads((folder / "job.json").read_text())
    assert (job["imported"]["layout"], job["imported"]["file"]) == ("deit", str(tmp_path / "file.pth"))
    assert json.loads((folder / "cost.json").read_text())["macs_inference"] > 0
    assert trained.classes == [str(number) for number in range(CLASSES)]
    assert trained.view is not None and config.load(folder).data.normalize == "half"
    assert [cli.main(["cost", str(folder), *words]) for words in ([], ["--classes", str(CLASSES)])] == [2, 0]
    assert "without images, which would tell its classes; add --classes N" in capsys.readouterr().err
    assert cli.main(["evaluate", str(folder)]) == 2
    assert "was imported without training images, which are needed here; import it again with --shards SHARDS" in capsys.readouterr().err


@torch.no_grad()
@pytest.mark.parametrize("name", RELEASES)
def test_a_backbone_alone_has_the_same_features_and_no_objective(name: str, tmp_path: Path) -> None:
    layout, make = RELEASES[name]
    torch.manual_seed(0)
    release = make()
    torch.save(release.content, tmp_path / "file.pth")
    trained = vitssl.load(import_file(tmp_path / "file.pth", layout, tmp_path / "run", SIZE.get(name, []), backbone=True), device="cpu")
    assert not config.active(trained.run.objectives) and trained.model.predict(batch_of(images())) is None
    tokens_BND = trained.model.backbone(trained.model.backbone.embed(images())).tokens_BND
    torch.testing.assert_close(tokens_BND, release.tokens(images()), atol=1e-5, rtol=1e-5)


def test_a_file_of_our_own_export_gives_its_backbone_alone_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it notes of a classifier does not ask for one; and a whole import has another folder."""
    monkeypatch.chdir(tmp_path)
    assert config.active(imported("timm", tmp_path)[0].run.objectives)
    export(tmp_path / "run", tmp_path / "file.safetensors", "safetensors")
    alone, whole = (import_file(tmp_path / "file.safetensors", "timm", backbone=only) for only in (True, False))
    assert not config.active(config.load(alone).objectives) and config.active(config.load(whole).objectives)


@pytest.mark.parametrize(("layout", "alone"), [("mae", []), ("deit", ["--backbone"])])
def test_an_import_with_images_is_evaluated_and_probed(
    layout: str, alone: list[str], tmp_path: Path, digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """DeiT's classifier has 7 classes, and the digits 10."""
    torch.save((releases.mae_encoder() if layout == "mae" else releases.deit()).content, tmp_path / "file.pth")
    words = ["import", str(tmp_path / "file.pth"), "--out", str(tmp_path / "run"), "--as", layout, "--shards", str(digits), *alone]
    assert cli.main([*words, "--set", f"data.cache_dir={tmp_path / 'cache'}"]) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", str(tmp_path / "run"), "--type", "knn", "--set", "k=5"]) == 0
    assert json.loads(capsys.readouterr().out)["top1"] > 30  # random features tell digits apart better than chance


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.full((64,), 1e300, dtype=torch.float64), "has values that are not finite"),  # in float32
        (torch.full((64,), torch.nan), "has values that are not finite"),
        (torch.zeros(64, device="meta"), "is not a plain tensor of real numbers"),
        (torch.zeros(64, dtype=torch.complex64), "is not a plain tensor of real numbers"),
        (torch.zeros(1).expand(64), "is not a plain tensor of real numbers"),
    ],
)
def test_weights_that_are_no_numbers_are_imported_nowhere(tmp_path: Path, value: Tensor, words: str) -> None:
    content = releases.deit().content
    content["model"]["norm.weight"] = value
    torch.save(content, tmp_path / "file.pth")
    with pytest.raises(ConfigError, match=rf"file\.pth: .*norm\.weight {words}"):
        import_file(tmp_path / "file.pth", "deit", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_map_of_cvt_that_is_none_is_named(tmp_path: Path) -> None:
    content = releases.drloc_cvt().content
    name = next(name for name in content["model"] if name.endswith("to_q.net.2.weight"))
    content["model"][name] = content["model"][name].flatten()
    torch.save(content, tmp_path / "file.pth")
    with pytest.raises(ConfigError, match=r"file\.pth: stage0\.blocks\.0\.attn\.proj_q\.weight has shape"):
        import_file(tmp_path / "file.pth", "drloc", tmp_path / "run", SIZE["drloc_cvt"])


def test_the_same_import_twice_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(releases.deit().content, "weights.pth")
    assert cli.main(["import", "weights.pth", "--as", "deit"]) == 0
    first = Path(capsys.readouterr().out.strip())
    assert first.parent == Path("weights") and first.name.startswith("weights-deit-")
    written = (first / "last.pt").stat().st_mtime_ns
    assert cli.main(["import", "weights.pth", "--as", "deit"]) == 0
    assert (first / "last.pt").stat().st_mtime_ns == written
    assert cli.main(["import", "weights.pth", "--as", "deit", "--out", "/proc/x"]) == 2
    assert "/proc is not a folder that can be written to; name another place for x" in capsys.readouterr().err
    assert cli.main(["import", "weights.pth", "--as", "deit", "--set", "data.normalize=half"]) == 2
    assert "holds an import of another file, or with other fields; delete it, or name another folder" in capsys.readouterr().err


def test_a_width_without_usual_heads_asks_for_them(tmp_path: Path) -> None:
    network = releases.vit(embed_dim=48, num_heads=3)
    torch.save(network.state_dict(), tmp_path / "file.pth")
    with pytest.raises(ConfigError, match=r"width 48 is not a multiple of 64; add --set backbone.num_heads=N"):
        import_file(tmp_path / "file.pth", "timm", tmp_path / "run")
    trained = vitssl.load(import_file(tmp_path / "file.pth", "timm", tmp_path / "run", ["backbone.num_heads=3"]), device="cpu")
    features = trained.model.backbone(trained.model.backbone.embed(images()))
    torch.testing.assert_close(features.tokens_BND, network.forward_features(images())[:, 1:], atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------------------------------------------- what is wrong


def altered(change: dict[str, Tensor | None]) -> dict[str, Any]:
    tensors = dict(releases.deit().content["model"])
    for name, value in change.items():
        tensors.pop(name) if value is None else tensors.update({name: value})
    return {"model": tensors}


MISFITS = {
    "missing": ({"blocks.1.attn.qkv.weight": None}, r"blocks\.1\.attn\.qkv\.weight is missing"),
    "missing_two": (dict.fromkeys(("blocks.1.norm1.weight", "blocks.1.norm1.bias")), r"blocks\.1\.norm1\.bias is missing \(and 1 more\)"),
    "missing_size": ({"patch_embed.proj.weight": None}, r"patch_embed\.proj\.weight is missing, so it is not a network of this layout"),
    "missing_bias": ({"head.bias": None}, r"head\.bias is missing"),
    "extra": ({"blocks.0.attn.q_norm.weight": torch.ones(64)}, r"blocks\.0\.attn\.q_norm\.weight is not part of the network"),
    "misshapen": ({"blocks.2.mlp.fc2.weight": torch.ones(64, 2)}, r"2\.mlp\.fc2\.weight has shape \(64, 2\), and \(64, 256\) is expected"),
    "flat": ({"patch_embed.proj.weight": torch.ones(64, 192)}, r"patch_embed\.proj\.weight has shape \(64, 192\), and 4 dimensions"),
    "empty": ({"pos_embed": torch.ones(0, 17, 64)}, r"pos_embed has shape \(0, 17, 64\), and 3 dimensions are expected, none of them"),
    "not_square": ({"pos_embed": torch.ones(1, 19, 64)}, r"pos_embed has shape \(1, 19, 64\); positions of 1 special token and a square"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "key", "absent", "words"),
    [
        ("timm", None, "norm.weight", "norm.weight"),
        ("mae_finetuned", "model", "fc_norm.weight", "fc_norm.weight"),
        ("timm_swin", None, "head.fc.bias", "head.fc.bias"),
        ("dino", "student", "module.backbone.blocks.1.norm2.bias", "student: backbone.blocks.1.norm2.bias"),
        ("dino", "teacher", "head.mlp.2.bias", "teacher: head.mlp.2.bias"),
        ("gmml", "SiT_model", "module.head_recons.mlp.2.weight", "head_recons.mlp.2.weight"),
        ("sit", "model", "rot_token", "rot_token"),
        ("lut", "model", "predictor.1.running_mean", "model: predictor.1.running_mean"),
        ("lut", "model_ema", "ema.norm.bias", "model_ema: norm.bias"),
        ("ssat", "model", "decoder_pred.bias", "decoder_pred.bias"),
        ("drloc_swin", "model", "drloc.0.layers.2.bias", "drloc.0.layers.2.bias"),
    ],
)
def test_a_missing_tensor_has_the_name_that_it_has_in_such_files(
    name: str, key: str | None, absent: str, words: str, tmp_path: Path
) -> None:
    layout, make = RELEASES[name]
    content = make().content
    del (content if key is None else content[key])[absent]
    torch.save(content, tmp_path / "file.pth")
    heads = {"ssat": ["objectives.mae.decoder_heads=2"], "lut": ["objectives.lut.decoder_heads=2"]}.get(name, [])
    with pytest.raises(ConfigError, match=rf": {re.escape(words)} is missing"):
        import_file(tmp_path / "file.pth", layout, tmp_path / "run", [*SIZE.get(name, []), *heads])


@pytest.mark.parametrize("name", ["vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2", "deit3_small_patch16_224"])
def test_layer_scale_is_read_from_the_tensors(tmp_path: Path, name: str) -> None:
    """And exported to timm again, where all prefix tokens have positions."""
    theirs = releases.timm.create_model(name, img_size=64 if "deit3" in name else 56, num_classes=0, embed_dim=64, depth=2, num_heads=1)
    torch.save(theirs.state_dict(), tmp_path / "file.pth")
    trained = vitssl.load(import_file(tmp_path / "file.pth", "timm", tmp_path / "run"), device="cpu")
    assert (trained.run.backbone.layer_scale, trained.run.backbone.reg_tokens) == (1e-5, 4 if "reg4" in name else 0)
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "out.pth"), "--to", "timm"]) == 0
    again = timm_names.architecture(trained.run, 0)
    twin = releases.timm.create_model(again.name, **again.args).eval()
    twin.load_state_dict(torch.load(tmp_path / "out.pth"))
    ours = trained.model.backbone
    images_BCHW = torch.randn(2, 3, trained.run.data.image_size, trained.run.data.image_size)
    torch.testing.assert_close(ours(ours.embed(images_BCHW)).prefix_BPD[:, 0], theirs.eval().forward_features(images_BCHW)[:, 0])
    torch.testing.assert_close(twin(images_BCHW), theirs.forward_features(images_BCHW)[:, 0])


def test_how_timm_feeds_a_released_network_is_taken_over(tmp_path: Path) -> None:
    name = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    network = releases.timm.create_model(name)
    torch.save({"model": network.state_dict(), "source": f"timm:{name}"}, tmp_path / "file.pth")
    for alone in (False, True):
        trained = vitssl.load(import_file(tmp_path / "file.pth", "timm", tmp_path / f"run{alone}", backbone=alone), device="cpu")
        assert (trained.mean, trained.std, trained.run.data.eval_crop) == ([0.5] * 3, [0.5] * 3, 0.9)
    torch.save({"model": releases.vit().state_dict(), "source": f"timm:{name}"}, tmp_path / "other.pth")
    with pytest.raises(ConfigError, match=f"it says that it is timm's {name}, and its tensors are not those of that network"):
        import_file(tmp_path / "other.pth", "timm", tmp_path / "other")
    import_file(tmp_path / "file.pth", "timm", tmp_path / "mean", ["objectives.classify.pool=mean", "data.image_size=64"])
    with pytest.raises(ConfigError, match="makes other features of an image than this network of the same tensors"):
        import_file(tmp_path / "file.pth", "timm", tmp_path / "heads", ["backbone.num_heads=4", "data.image_size=64"])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("swin_base_patch4_window12_384.ms_in22k_ft_in1k", "", marks=pytest.mark.release),
        (
            "swin_s3_tiny_224.ms_in1k",
            r"layers.2.blocks.0.attn.relative_position_bias_table has shape \(729, 12\), and \(169, 12\) is expected",
        ),
        (
            "resnetaa50.a1h_in1k",
            "makes other features of an image than this network of the same tensors; --set backbone.num_heads=N, if",
        ),
    ],
)
def test_a_released_network_is_timms_or_is_refused(tmp_path: Path, monkeypatch, name: str, reason: str) -> None:
    """The first is for larger images than usual, which its shapes do not tell."""
    made = releases.timm.create_model(name)
    torch.save({"model": made.state_dict(), "source": f"timm:{name}"}, tmp_path / "file.pth")
    if reason:
        for words in ([], ["data.image_size=224"]):
            with pytest.raises(ConfigError, match=reason):
                import_file(tmp_path / "file.pth", "timm", tmp_path / "run", words)
        return
    trained = vitssl.load(import_file(tmp_path / "file.pth", "timm", tmp_path / "run"), device="cpu")
    assert trained.run.data.image_size == 384
    images_BCHW = torch.randn(1, 3, 384, 384)
    with torch.no_grad():
        torch.testing.assert_close(trained.model.predict(batch_of(images_BCHW)), made.eval()(images_BCHW), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("name", "size_px"), [("swin_tiny_patch4_window7_224", 224), ("resnet50", 64), ("vit_tiny_patch16_224", 224)])
def test_a_backbone_alone_is_compared_with_timms(name: str, size_px: int, tmp_path: Path) -> None:
    """Of its tokens after the final norm, which fine-tuned ViTs of MAE have behind the mean (fc_norm)."""
    fields = {"global_pool": "avg", "fc_norm": True} if name.startswith("vit") else {}
    theirs = releases.drawn(releases.timm.create_model(name, num_classes=0, **fields))
    torch.save(theirs.state_dict(), tmp_path / "file.pth")
    words = [f"data.image_size={size_px}"]
    network = vitssl.load(import_file(tmp_path / "file.pth", "timm", tmp_path / "run", words, backbone=True), device="cpu").model
    made = releases.timm.create_model
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(releases.timm, "create_model", lambda _, num_classes: made(name, num_classes=num_classes, **fields))
        released.check_same(name, theirs.state_dict(), network, 0, size_px)
        with torch.no_grad():
            for parameter in network.backbone.parameters():
                parameter.mul_(1.1)
        with pytest.raises(ConfigError, match="makes other features"):
            released.check_same(name, theirs.state_dict(), network, 0, size_px)


@pytest.mark.parametrize("registers", [0, 4])
def test_dinov2_as_its_authors_write_it(tmp_path: Path, registers: int) -> None:
    """With the token that its training masks with; of registers their code adds the class token's position to it alone."""
    name = "vit_small_patch14_reg4_dinov2" if registers else "vit_small_patch14_dinov2"
    theirs = releases.drawn(releases.timm.create_model(name, img_size=56, num_classes=0, embed_dim=64, depth=2, num_heads=1))
    tensors = dict(theirs.state_dict()) | {"mask_token": torch.zeros(1, 64)}
    if registers:
        first = torch.randn(1, 1, 64)
        tensors |= {"register_tokens": tensors.pop("reg_token"), "cls_token": tensors["cls_token"] - first}
        tensors["pos_embed"] = torch.cat([first, tensors["pos_embed"]], dim=1)
    torch.save(tensors, tmp_path / "file.pth")
    trained = vitssl.load(import_file(tmp_path / "file.pth", "dino", tmp_path / "run"), device="cpu")
    images_BCHW = torch.randn(2, 3, 56, 56)
    with torch.no_grad():
        found = trained.model.backbone(trained.model.backbone.embed(images_BCHW)).sequence()
        torch.testing.assert_close(found, theirs.forward_features(images_BCHW), atol=1e-4, rtol=1e-4)


def test_a_distilled_deit_is_told_which_layout_reads_it(tmp_path: Path) -> None:
    torch.save(releases.deit_distilled().content, tmp_path / "file.pth")
    with pytest.raises(ConfigError, match="it has a distillation token, which --as deit reads"):
        import_file(tmp_path / "file.pth", "timm", tmp_path / "run")


def test_a_classifiers_own_names_are_not_replaced_by_those_of_other_shards(untrained_run, tmp_path: Path, digits: Path) -> None:
    """Of as many classes: a digit would be called by the name of a photo."""
    for split, number in itertools.product(("train", "test"), range(10)):
        (tmp_path / "photos" / split / f"c{number}").mkdir(parents=True)
        Image.effect_noise((8, 8), 90).save(tmp_path / "photos" / split / f"c{number}" / "a.png")
    shards.build(f"folder:{tmp_path / 'photos'}", tmp_path / "shards", workers=1, progress=False)
    assert cli.main(["export", str(untrained_run()), str(tmp_path / "x.safetensors"), "--to", "safetensors"]) == 0
    words = [f"data.shards={digits}"]
    assert vitssl.load(import_file(tmp_path / "x.safetensors", "timm", tmp_path / "same", words)).classes == [str(i) for i in range(10)]
    with pytest.raises(ConfigError, match="--shards: their class 1 is c0, and the classifier's 0; --backbone"):
        import_file(tmp_path / "x.safetensors", "timm", tmp_path / "other", [f"data.shards={tmp_path / 'shards'}"])


def test_a_teacher_is_a_start(tmp_path: Path) -> None:
    trained, release = imported("dino", tmp_path)
    run = config.load(trained.folder)
    run.init_from, run.init_weights = str(trained.folder), "teacher"
    network = model.build(run, 0)
    pretrained.init_from(network, network.backbone, run)
    assert torch.equal(network.backbone.norm.weight, release.content["teacher"]["backbone.norm.weight"])


@pytest.mark.parametrize("case", MISFITS)
def test_a_tensor_that_does_not_fit_is_one_line_with_its_name(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, words = MISFITS[case]
    file = tmp_path / "file.pth"
    torch.save(altered(change), file)
    with pytest.raises(ConfigError, match=words):
        import_file(file, "deit", tmp_path / "run")
    assert cli.main(["import", str(file), "--out", str(tmp_path / "run"), "--as", "deit"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {file}: ") and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


class Other:
    pass


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a checkpoint that can be read"),
        (b"hello", "is not a checkpoint that can be read"),
        ({"model": Other()}, "holds other things than tensors and plain values"),
        ([1, 2], "holds a list, not the tensors of a network by name"),
        ({"epoch": 3}, "holds no tensors; files of this layout have 'model'"),
        ({"model": {}}, "'model' holds no tensors"),
    ],
    ids=["empty", "text", "class", "list", "no_tensors", "no_model"],
)
def test_what_holds_no_network_is_one_line(content: Any, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file.pth"
    file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
    assert cli.main(["import", str(file), "--as", "deit"]) == 2
    error = capsys.readouterr().err
    assert words in error and error.startswith(f"error: {file}") and error.count("\n") == 1


SWIN = {
    "patch_embed.proj.weight": torch.zeros(96, 3, 4, 4), "layers.0.blocks.0.mlp.fc1.weight": torch.zeros(384, 96),
    "layers.0.blocks.0.attn.relative_position_bias_table": torch.zeros(49, 3),
}  # fmt: skip
RESNET = {"conv1.weight": torch.zeros(64, 3, 7, 7), "layer1.0.x": torch.zeros(1)}
CVT = {"stage0.patch_embed.proj.weight": torch.zeros(64, 3, 7, 7), "stage0.blocks.0.mlp.fc1.weight": torch.zeros(256, 64)}


@pytest.mark.parametrize("digits", ["1" + "0" * 12, "9" * 5000])
@pytest.mark.parametrize(
    ("content", "name", "most"),
    [
        (SWIN, "layers.{}.x", "4"),
        (SWIN, "layers.1.blocks.{}.x", "1,000"),
        (SWIN, "layers.{}.blocks.0.attn_mask", "4"),
        (RESNET, "layer{}.0.x", "5"),
        (CVT, "stage{}.x", "3"),
        (releases.bare().content, "blocks.{}.x", "1,000"),
    ],
)
def test_a_name_that_counts_without_end_is_one_line(
    content: dict[str, Tensor], name: str, most: str, digits: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.pth"
    torch.save(content | {name.format(digits): torch.zeros(1)}, file)
    assert cli.main(["import", str(file), "--as", "timm"]) == 2
    error = capsys.readouterr().err
    assert error == f"error: {file}: {name.format(digits)[:80]} is one of more than {most}, and no network of this layout has as many\n"


def test_a_folder_a_missing_file_and_a_missing_part_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["import", str(tmp_path), "--as", "mae"]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path} is a folder; name the file of weights in it\n"
    assert cli.main(["import", str(tmp_path / "none.pth"), "--as", "mae"]) == 2
    assert "none.pth does not exist" in capsys.readouterr().err
    content = releases.dino().content
    del content["teacher"]
    torch.save(content, tmp_path / "file.pth")
    assert cli.main(["import", str(tmp_path / "file.pth"), "--as", "dino"]) == 2
    assert "it has 'student' and no 'teacher', which files of this layout have" in capsys.readouterr().err


def test_a_dino_file_without_its_centre_is_one_line(tmp_path: Path) -> None:
    for loss in ({}, "center"):
        torch.save(releases.dino().content | {"dino_loss": loss}, tmp_path / "file.pth")
        with pytest.raises(ConfigError, match="dino_loss: center is missing"):
            import_file(tmp_path / "file.pth", "dino", tmp_path / "run")


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({importing.FIELDS: "{"}, "its metadata are damaged"),
        ({importing.FIELDS: "[]"}, "its metadata are damaged .not those of an export"),
        ({importing.FIELDS: "[" * 100_000}, "its metadata are damaged .maximum recursion depth"),
        ({importing.CLASSES: "1" * 5000}, "its metadata are damaged .Exceeds the limit"),
        ({importing.CLASSES: '["\\u001b[2J"]'}, r"vitssl\.classes\[0\]: '\\x1b\[2J' holds a control character"),
        ({importing.CLASSES: '["x", "a\\nb"]'}, r"vitssl\.classes\[1\]: 'a\\nb' holds a control character"),
        ({importing.CLASSES: '["\\ud800"]'}, r"vitssl\.classes\[0\]: '\\ud800' holds a control character"),
        ({importing.FIELDS: '{"data.image_size": "big"}'}, "data.image_size: 'big' is not a whole number"),
    ],
)
def test_metadata_that_no_export_wrote_are_one_line(metadata: dict[str, str], words: str, tmp_path: Path) -> None:
    save_file(releases.bare().content, tmp_path / "file.safetensors", metadata)
    with pytest.raises(ConfigError, match=words):
        import_file(tmp_path / "file.safetensors", "timm", tmp_path / "run")


def test_a_folder_that_holds_something_else_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(releases.deit().content, tmp_path / "file.pth")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    assert cli.main(["import", str(tmp_path / "file.pth"), "--out", str(tmp_path / "mine"), "--as", "deit"]) == 2
    assert "exists and is not an import; name another folder" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_classes_of_other_shards_are_refused(tmp_path: Path, digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(releases.deit().content, tmp_path / "file.pth")
    assert cli.main(["import", str(tmp_path / "file.pth"), "--out", str(tmp_path / "run"), "--as", "deit", "--shards", str(digits)]) == 2
    assert "--shards: they have 10 classes, and the classifier of the file 7; --backbone leaves it out" in capsys.readouterr().err


def test_an_import_without_objectives_cannot_be_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from vitssl import train

    trained, _ = imported("mae_encoder", tmp_path)
    assert train.main([str(trained.folder)]) == 0  # it is done
    (trained.folder / "done.json").unlink()
    assert train.main([str(trained.folder)]) == 2
    assert "objectives: no objective is on; set at least one" in capsys.readouterr().err
