"""Sizes that no machine was meant to compute are refused before anything of that size is built."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from vitssl import config
from vitssl.config import ConfigError

TEN_12 = 10**12
BEYOND = {
    "backbone.depth": 1_000_000, "backbone.embed_dim": TEN_12, "backbone.num_heads": TEN_12, "backbone.patch_size": TEN_12,
    "backbone.mlp_ratio": 1e12, "backbone.reg_tokens": TEN_12, "data.image_size": TEN_12, "data.views.main.size": TEN_12,
    "data.views.main.count": TEN_12, "data.repeats": TEN_12, "data.workers": 1_000_000, "loop.threads": 1_000_000, "loop.epochs": TEN_12,
    "loop.schedule_epochs": TEN_12, "loop.max_steps": TEN_12, "optim.batch_size": TEN_12, "objectives.mae.decoder_depth": 1_000_000,
    "objectives.mae.decoder_dim": TEN_12, "objectives.dino.layers": 1_000_000, "objectives.dino.out_dim": TEN_12,
    "objectives.classify.hidden_dim": TEN_12, "objectives.gmml.decoder_layers": 1_000_000,
}  # fmt: skip


def refusal(*layers: dict) -> str:
    """The message, which must come fast and without memory for what is refused."""
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(ConfigError) as error:
        config.check(config.merge(config.Run, {"data.shards": "x", "objectives.classify": {}}, *layers))
    peak_mb = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    assert time.process_time() - started < 1 and peak_mb < 5
    return str(error.value)


@pytest.mark.parametrize("field", BEYOND)
def test_far_more_than_anybody_uses_is_one_line(field):
    said = refusal({"objectives.dino": {}} if "dino" in field else {}, {field: BEYOND[field]})
    assert said.startswith(f"{field}: {BEYOND[field]} is more than ") and "\n" not in said


def test_of_a_staged_backbone_and_an_evaluator_too():
    assert refusal({"backbone": {"name": "swin_tiny", "depths": [2, 2, 1_000_000, 2]}}).startswith("backbone.depths: 1000000 is more than")
    assert refusal({"evals": {"knn": {"type": "knn", "blocks": 10**9}}}).startswith("evals.knn.blocks: 1000000000 is more than 1,000")


def test_sizes_that_are_possible_one_by_one():
    assert refusal({"backbone": {"depth": 1000, "embed_dim": 99_996, "num_heads": 1}}).startswith("backbone.depth: with embed_dim=99996 a")
    assert refusal({"backbone.patch_size": 1, "data.image_size": 9000}).startswith("data.image_size: 9000 px are 81,000,000 tokens")


def test_large_networks_are_not_in_the_way():
    config.check(config.merge(config.Run, {
        "data": {"shards": "x", "image_size": 896}, "objectives.classify": {}, "loop.epochs": 5000,
        "backbone": {"name": "vit_large", "depth": 48, "embed_dim": 6144, "num_heads": 48, "patch_size": 14},
    }))  # fmt: skip
