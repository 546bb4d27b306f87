"""Evaluation by a linear classifier on frozen features.

Shapes: N images.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitssl.config.evals import LinearConfig
from vitssl.config.metrics import TOP_K
from vitssl.evaluators.base import Evaluator, Result, Subject, means, metric_sums, over_classes
from vitssl.evaluators.metrics import top_k_correct


def standardised(train_ND: Tensor, *others: Tensor) -> list[Tensor]:
    """Standardise all features by the mean and standard deviation of ``train_ND``, like a batch norm without affine parameters."""
    std_D, mean_D = torch.std_mean(train_ND, dim=0, correction=0)
    return [(features - mean_D) / (std_D + 1e-6) for features in (train_ND, *others)]


@torch.enable_grad()
def logistic_regression(features_ND: Tensor, labels_N: Tensor, num_classes: int, l2: float, max_iter: int) -> nn.Linear:
    """Minimise the mean cross-entropy plus l2 / 2 times the squared norm of the weights, by L-BFGS over all images at once."""
    layer = nn.Linear(features_ND.shape[1], num_classes, device=features_ND.device, dtype=features_ND.dtype)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=max_iter, tolerance_grad=1e-6, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(layer(features_ND), labels_N) + l2 / 2 * layer.weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return layer.requires_grad_(False)


class Linear(Evaluator):
    """Evaluator of features: a logistic regression that learns from the labelled training images."""

    cfg: LinearConfig

    def run(self, subject: Subject, complete: bool) -> Result:
        subject.check_images(self.cfg)
        (train_ND, train_labels_N), num_classes = subject.training_features(self.cfg), len(subject.classes_of(self.cfg))
        test_ND, labels_N = subject.features(self.cfg, self.cfg.split, self.cfg.shards)
        train_ND, test_ND = standardised(train_ND, test_ND)
        layer = logistic_regression(train_ND, train_labels_N, num_classes, self.cfg.l2, self.cfg.max_iter)
        logits_NK = layer(test_ND)
        hits = [top_k_correct(logits_NK, labels_N, k) for k in (1, TOP_K)]
        predicted_N = logits_NK.topk(1).indices[:, 0]  # as top-1 breaks ties
        sums = metric_sums(*hits, F.cross_entropy(logits_NK, labels_N, reduction="none"))
        return Result(means([sums], ("top1", "top5", "loss")) | over_classes(predicted_N, labels_N, num_classes))
