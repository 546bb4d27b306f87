"""Evaluation by weighted nearest neighbours on frozen features.

Shapes: B test images, N training images, k neighbours.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitssl.config.evals import KnnConfig
from vitssl.config.metrics import TOP_K
from vitssl.evaluators.base import Evaluator, Result, Subject, means, metric_sums, over_classes
from vitssl.evaluators.metrics import top_k_correct

TEST_AT_ONCE, TRAIN_AT_ONCE = 512, 65536  # rows and columns of the similarity matrix in memory at a time


def votes(test_BD: Tensor, train_ND: Tensor, labels_N: Tensor, k: int, temperature: float, num_classes: int) -> Tensor:
    """Return votes (B, K), in which each of an image's k most similar training images votes for its class with exp(cosine / temperature).

    This is the method of Wu et al. 2018 (section 3.4), as in DINO's code. Votes are relative to that of the nearest image, so that they do
    not overflow at any temperature.
    """
    best_Bk, label_Bk = test_BD.new_empty(len(test_BD), 0), labels_N.new_empty(len(test_BD), 0)
    test_BD = F.normalize(test_BD, dim=1)
    for train, labels in zip(train_ND.split(TRAIN_AT_ONCE), labels_N.split(TRAIN_AT_ONCE), strict=True):
        similarity = torch.cat([best_Bk, test_BD @ F.normalize(train, dim=1).T], dim=1)
        label = torch.cat([label_Bk, labels.expand(len(test_BD), -1)], dim=1)
        best_Bk, place = similarity.topk(min(k, similarity.shape[1]), dim=1)
        label_Bk = label.gather(1, place)
    weight_Bk = ((best_Bk - best_Bk[:, :1]) / temperature).exp()
    return torch.zeros(len(test_BD), num_classes, device=test_BD.device).scatter_add_(1, label_Bk, weight_Bk)


class Knn(Evaluator):
    """Evaluator of features: the votes of the nearest labelled training images."""

    cfg: KnnConfig

    def run(self, subject: Subject, complete: bool) -> Result:
        subject.check_images(self.cfg)
        train_ND, labels_N = subject.training_features(self.cfg)
        test_ND, test_labels_N = subject.features(self.cfg, self.cfg.split, self.cfg.shards)
        sums, predicted, num_classes = [], [], len(subject.classes_of(self.cfg))
        for test_BD, labels_B in zip(test_ND.split(TEST_AT_ONCE), test_labels_N.split(TEST_AT_ONCE), strict=True):
            votes_BK = votes(test_BD, train_ND, labels_N, self.cfg.k, self.cfg.temperature, num_classes)
            sums.append(metric_sums(*(top_k_correct(votes_BK, labels_B, n) for n in (1, TOP_K))))
            predicted.append(votes_BK.topk(1).indices[:, 0])  # as top-1 breaks ties
        return Result(means(sums, ("top1", "top5")) | over_classes(torch.cat(predicted), test_labels_N, num_classes))
