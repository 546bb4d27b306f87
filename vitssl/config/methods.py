"""What to type for the methods of papers. Most are a combination of a few fields, and few have a field of their own name."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

import yaml


@dataclass(frozen=True)
class Method:
    """A method: what it does, the fields that make a Run of it (or the stages of an arm), and a sweep that has it as its paper does."""

    title: str
    about: str  # what is learnt, in a clause
    fields: dict[str, Any]
    sweep: str
    also: tuple[str, ...] = ()  # further names that people type
    note: str = ""
    arm: str = ""  # of sweeps/methods.yaml; empty where it is a network, or a way to evaluate one

    @property
    def words(self) -> str:
        """The fields as words of the command line; for several stages, as in a sweep file."""
        if "stages" in self.fields:
            return flow(self.fields)[1:-1]
        return shlex.join(f"{name}={flow(value)}" for name, value in self.fields.items())

    @property
    def advice(self) -> str:
        """One line that says what to type."""
        return f"for {self.title} write {self.words}{f' ({self.note})' if self.note else ''}; sweeps/{self.sweep}.yaml has it whole"


_TWO_VIEWS: dict[str, Any] = {"data.views.second": {}}
_CROPS = {"data.views": {"second": {}, "local": {"size": 96, "count": 8, "scale": [0.05, 0.4]}}}
METHODS = (
    Method(
        "SSAT",
        "classification and a self-supervised task (here MAE) at once",
        {"objectives": {"classify": {"weight": 0.1}, "mae": {"weight": 0.9}}},
        "ssat_vs_sslft",
        arm="ssat",
    ),
    Method(
        "SSL+FT",
        "self-supervised pretraining, then fine-tuning",
        {"stages": {"pretrain": {"objectives.mae": {}}, "finetune": {"objectives.classify": {}, "init_from": "pretrain"}}},
        "own_images",
        ("pretraining", "finetuning"),
        "the stages of an arm",
        arm="mae",
    ),
    Method(
        "Drloc",
        "beside classification, where two patches lie relative to each other",
        {"objectives": {"classify": {}, "drloc": {}}},
        "drloc_scratch",
        ("vt_drloc",),
        arm="drloc",
    ),
    Method("GMML", "reconstruct blocks of the image that were replaced", {"objectives.gmml": {}}, "gmml_small", arm="gmml"),
    Method("LUT", "MAE that also trains the tokens that are not masked", {"objectives.lut": {}, **_TWO_VIEWS}, "lut_imagenet", arm="lut"),
    Method(
        "MT-SiT",
        "SiT with learnable masked tokens",
        {
            "objectives": {"sit": {}, "masked_tokens": {"view": "sit"}},
            "data.views.main.count": 2,
            "backbone": {"reg_tokens": 1, "masked_tokens": {}},
        },
        "mt_cifar",
        arm="mt_sit",
    ),
    Method(
        "MT-DINO",
        "DINO with learnable masked tokens",
        {"objectives": {"dino": {}, "masked_tokens": {"second": "second"}}, "backbone.masked_tokens": {}, **_CROPS},
        "mt_imagenet",
        arm="mt_dino",
    ),
    Method("MAE", "reconstruct hidden patches from few visible ones", {"objectives.mae": {}}, "lut_imagenet", arm="mae"),
    Method(
        "SimMIM",
        "reconstruct hidden patches by one linear layer",
        {"objectives.mae": {"mask_ratio": 0.6, "hide": "mask", "decoder": "pixel_shuffle", "loss": "l1"}},
        "lut_simmim",
        arm="simmim",
    ),
    Method(
        "ConvMAE",
        "MAE on a network that begins with convolutions",
        {"backbone.name": "cvt_13", "objectives.mae": {"fuse": True}},
        "ssat_backbones",
        ("mcmae",),
    ),
    Method("SimCLR", "tell an image's two views from other images", {"objectives.simclr": {}, **_TWO_VIEWS}, "ssat_tasks", arm="simclr"),
    Method("DINO", "match a momentum teacher across views and crops", {"objectives.dino": {}, **_CROPS}, "mt_imagenet", arm="dino"),
    Method(
        "SiT",
        "reconstruct corrupted views, and tell them from other images",
        {"objectives.sit": {}, "data.views.main.count": 2, "backbone.reg_tokens": 1},
        "mt_cifar",
        arm="sit",
    ),
    Method(
        "SL-ViT",
        "ViT with shifted patches and local attention",
        {"backbone": {"tokenizer": "shifted", "attention": "local"}},
        "ssat_sota",
        ("spt", "lsa", "spt_lsa"),
        arm="sl_vit",
    ),
    Method(
        "Locality guidance",
        "features follow a small convolutional network's",
        {"objectives": {"classify": {}, "locality": {"teacher": "RUN"}}},
        "ssat_sota",
        ("guidance",),
        "RUN: the folder of a trained resnet56",
        arm="locality",
    ),
    Method(
        "DeiT",
        "its networks are plain ViTs",
        {"backbone.name": "vit_tiny"},
        "gmml_imagenet",
        ("deit_tiny", "deit_small", "deit_base", "deit_ti", "deit_s", "deit_b"),
        "or vit_small, vit_base",
    ),
    Method(
        "Linear probing",
        "a classifier on a frozen network",
        {"backbone.frozen": True, "init_from": "RUN"},
        "mt_cifar",
        ("linear", "linear_probe", "probe"),
        "or `vitssl evaluate RUN --type linear`",
    ),
)


def method(name: str) -> Method | None:
    """Return the method called ``name`` in any spelling (sl_vit, SL-ViT, slvit); None if there is none."""
    return next((m for m in METHODS if _plain(name) in map(_plain, (m.title, *m.also))), None)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def flow(value: Any) -> str:
    """Return ``value`` as YAML in one line."""
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000).removesuffix("\n...\n").strip()
