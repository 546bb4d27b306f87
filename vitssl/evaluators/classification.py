"""Accuracy of the Run's classifier.

Shapes: N images of all ranks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitssl import dist
from vitssl.config.evals import EARLY, FIRST
from vitssl.evaluators.base import Evaluator, Result, Subject, evaluation_mode, means, summed
from vitssl.evaluators.metrics import area_under_curve, of_predictions, top_k_correct


class Classification(Evaluator):
    """Top-1 and top-5 in percent and the mean cross-entropy (the negative log-likelihood) over the labelled images of all ranks, each
    counted once; when complete, also what `metrics.of_predictions` and `area_under_curve` give."""

    @torch.no_grad()
    def run(self, subject: Subject, complete: bool) -> Result:
        on_device: list[Tensor] = []  # what is fetched batch by batch would make the device wait
        kept: list[tuple[Tensor, ...]] = []
        with evaluation_mode(subject.network):
            for batch in subject.batches(self.cfg.split, self.cfg.shards):
                labels_B = batch.targets["main"]
                with dist.inference_autocast(subject.device, subject.run.loop.precision):
                    logits_BK = subject.network.predict(batch).float()
                first_B, top5_B = (top_k_correct(logits_BK, labels_B, k) for k in (1, FIRST))
                loss_B = F.cross_entropy(logits_BK, labels_B, reduction="none")
                on_device.append(summed(first_B, top5_B, loss_B))
                if complete:
                    kept.append(tuple(values.cpu() for values in (batch.index_B, labels_B, top5_B, loss_B, logits_BK.softmax(1))))
        metrics = means(on_device, EARLY)
        if not complete:
            return Result(metrics)
        # a rank may have no image
        whole, truth, real = (torch.empty(0, dtype=kind) for kind in (torch.int64, torch.bool, torch.float32))
        none = (whole, whole, truth, real, torch.empty(0, len(subject.classes)))
        index_N, *values = (dist.gather_rows(torch.cat(parts)) for parts in zip(none, *kept, strict=True))
        order_N = index_N.argsort()
        labels_N, top5_N, loss_N, probabilities_NK = (of_images[order_N].numpy() for of_images in values)
        arrays = {"labels": labels_N, "predicted": probabilities_NK.argmax(1), "confidence": probabilities_NK.max(1)}
        arrays |= {"top5": top5_N, "loss": loss_N}
        metrics |= of_predictions(probabilities_NK, labels_N)
        if (area_N := area_under_curve(probabilities_NK, labels_N)) is not None:
            metrics["auc"], arrays["auc"] = 100 * float(area_N.mean(dtype=float)), area_N
        return Result(metrics, arrays)
