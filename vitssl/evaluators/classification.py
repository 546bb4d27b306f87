"""Evaluation of the Run's classifier.

Shapes: N images of all ranks; C of the K classes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitssl import dist
from vitssl.config.evals import ClassificationConfig
from vitssl.config.metrics import EARLY, TOP_K
from vitssl.data.index import load_index
from vitssl.data.loading.batch import Batch
from vitssl.evaluators.base import Evaluator, Result, Subject, evaluation_mode, means, metric_sums
from vitssl.evaluators.metrics import area_under_curve, prediction_metrics, top_k_correct


class Classification(Evaluator):
    """Evaluator of the classifier: top-1 and top-5 in percent, and the mean cross-entropy (the negative log-likelihood).

    Means are over the labelled images of all ranks, each counted once. A complete evaluation also includes the metrics of
    `metrics.prediction_metrics` and `area_under_curve`.
    """

    cfg: ClassificationConfig

    @torch.no_grad()
    def run(self, subject: Subject, complete: bool) -> Result:
        batch_sums: list[Tensor] = []  # stays on the device, which would have to wait if every batch were fetched
        image_values: list[tuple[Tensor, ...]] = []
        classes_C = self._classes(subject)  # those that it chooses from
        with evaluation_mode(subject.network):
            for batch in self.batches(subject):
                labels_B = batch.targets["main"]
                with dist.inference_autocast(subject.device, subject.run.loop.precision):
                    scores_BK = subject.network.predict(batch)
                assert scores_BK is not None, "config refuses this evaluator where nothing classifies"
                logits_BK = scores_BK.float()
                if len(classes_C) < len(subject.classes):
                    logits_BK = torch.full_like(logits_BK, -torch.inf).index_copy(1, classes_C, logits_BK[:, classes_C])
                first_B, top5_B = (top_k_correct(logits_BK, labels_B, k) for k in (1, TOP_K))
                loss_B = F.cross_entropy(logits_BK, labels_B, reduction="none")
                batch_sums.append(metric_sums(first_B, top5_B, loss_B))
                if complete:
                    image_values.append(tuple(values.cpu() for values in (batch.index_B, labels_B, top5_B, loss_B, logits_BK.softmax(1))))
        metrics = means(batch_sums, EARLY)
        if not complete:
            return Result(metrics)
        # rows for ranks without images
        no_ints, no_bools, no_floats = (torch.empty(0, dtype=kind) for kind in (torch.int64, torch.bool, torch.float32))
        no_rows = (no_ints, no_ints, no_bools, no_floats, torch.empty(0, len(subject.classes)))
        index_N, *values = (dist.gather_rows(torch.cat(parts)) for parts in zip(no_rows, *image_values, strict=True))
        order_N = index_N.argsort()
        labels_N, top5_N, loss_N, probabilities_NK = (rows[order_N].numpy() for rows in values)
        arrays = {"labels": labels_N, "predicted": probabilities_NK.argmax(1), "confidence": probabilities_NK.max(1)}
        arrays |= {"top5": top5_N, "loss": loss_N}
        metrics |= prediction_metrics(probabilities_NK, labels_N)
        classes = classes_C.cpu().numpy()  # in rising order
        if (area_N := area_under_curve(probabilities_NK[:, classes], np.searchsorted(classes, labels_N))) is not None:
            metrics["auc"], arrays["auc"] = 100 * float(area_N.mean(dtype=float)), area_N
        return Result(metrics, arrays)

    def _classes(self, subject: Subject) -> Tensor:
        """Return the numbers of the Run's classes that the evaluator chooses from, rising; int64 (C,)."""
        allowed = {*load_index(self.cfg.shards).classes} if self.cfg.classes == "shards" and self.cfg.shards else {*subject.classes}
        return torch.tensor([k for k, name in enumerate(subject.classes) if name in allowed], device=subject.device)

    def batches(self, subject: Subject) -> Iterator[Batch]:
        """Return the batches of this rank's part of the images."""
        return subject.batches(self.cfg.split, self.cfg.shards)
