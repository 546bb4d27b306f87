"""Export of a run's network as an ONNX file, with the packages onnx and onnxscript, which this project does not depend on."""

from __future__ import annotations

import importlib.util
import json
import logging
import re
from pathlib import Path

import torch
from torch import Tensor, nn

from vitssl.atomic import replacing
from vitssl.config import ConfigError
from vitssl.data.loading.batch import Batch
from vitssl.model import Model
from vitssl.trained import Trained

NEEDED = ("onnx", "onnxscript")


class Network(nn.Module):
    """A network from normalised images (B, 3, S, S) to logits (B, K), or to the backbone's prefix and patch tokens."""

    def __init__(self, model: Model, classifier: bool):
        super().__init__()
        self.model, self.classifier = model, classifier

    def forward(self, images_BCHW: Tensor) -> tuple[Tensor, ...]:
        if self.classifier:
            logits_BK = self.model.predict(Batch.of_images(images_BCHW))
            assert logits_BK is not None, "the run classifies"
            return (logits_BK,)
        features = self.model.backbone(self.model.backbone.embed(images_BCHW))
        return (features.prefix_BPD, features.tokens_BND) if features.prefix_BPD.shape[1] else (features.tokens_BND,)


def write(trained: Trained, out: Path, classifier: bool) -> None:
    """Write a network for batches of any size to an ONNX file, with channel statistics, image size and classes as metadata.

    Raises:
        ConfigError: a package is not installed, or ONNX has no operation for a part of the network.
    """
    if absent := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"--to onnx needs {' and '.join(absent)}; pip install {' '.join(absent)}")
    network, size = Network(trained.model, classifier).eval(), trained.run.data.image_size
    outputs = ["logits"] if classifier else ["prefix", "tokens"] if trained.model.backbone.num_prefix_tokens else ["tokens"]
    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    example, shapes = (torch.zeros(2, 3, size, size),), {"images_BCHW": {0: torch.export.Dim("batch")}}
    try:
        # strict: otherwise len(tensor) would fix the number of images
        exported = torch.export.export(network, example, dynamic_shapes=shapes, strict=True)
        # onnxscript 0.7's optimiser changes the function of T2T-ViT's linear attention; runtimes optimise what they load anyway
        program = torch.onnx.export(exported, input_names=["images"], output_names=outputs, dynamo=True, verbose=False, optimize=False)
    except torch.onnx.OnnxExporterError as error:
        reason = re.sub(r"\x1b\[\d+m", "", str(error)).strip().splitlines()[0]
        raise ConfigError(f"ONNX cannot have this {trained.run.backbone.network} ({reason}); export --to safetensors") from None
    assert program is not None
    facts = {"image_size": size, "mean": trained.mean, "std": trained.std, "classes": trained.classes if classifier else []}
    program.model.metadata_props.update({name: json.dumps(value) for name, value in facts.items()})
    with replacing(out) as temporary:
        program.save(temporary, external_data=False)
