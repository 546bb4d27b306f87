"""Accuracy of the Run's classifier.

Shapes: N images of all ranks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitssl import dist
from vitssl.evaluators.base import Evaluator, Result, Subject, evaluation_mode, shares
from vitssl.evaluators.metrics import of_predictions, top_k_correct


class Classification(Evaluator):
    """Top-1 and top-5 in percent and the mean cross-entropy (the negative log-likelihood) over the labelled images of all ranks, each
    counted once; when complete, also what `metrics.of_predictions` gives."""

    @torch.no_grad()
    def run(self, subject: Subject, complete: bool) -> Result:
        on_device: list[Tensor] = []  # what is fetched batch by batch would make the device wait
        kept: list[tuple[Tensor, ...]] = []
        with evaluation_mode(subject.network):
            for batch, labels_B in subject.batches(self.cfg):
                with dist.autocast(subject.device, subject.run.loop.precision):
                    logits_BK = subject.network.predict(batch).float()
                hits = [top_k_correct(logits_BK, labels_B, k).sum() for k in (1, 5)]
                loss = F.cross_entropy(logits_BK, labels_B, reduction="sum")
                on_device.append(torch.stack([*hits, loss, torch.full_like(loss, len(labels_B))]).double())
                if complete:
                    kept.append(tuple(values.cpu() for values in (batch.index_B, labels_B, logits_BK.softmax(1))))
        metrics = shares(on_device, ("top1", "top5", "loss"))
        if not complete:
            return Result(metrics)
        # a rank may have no image
        none = (torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64), torch.empty(0, len(subject.classes)))
        index_N, labels_N, probabilities_NK = (dist.gather_rows(torch.cat(parts)) for parts in zip(none, *kept, strict=True))
        order_N = index_N.argsort()
        labels_N, probabilities_NK = labels_N[order_N].numpy(), probabilities_NK[order_N].numpy()
        arrays = {"labels": labels_N, "predicted": probabilities_NK.argmax(1), "confidence": probabilities_NK.max(1)}
        return Result(metrics | of_predictions(probabilities_NK, labels_N), arrays)
