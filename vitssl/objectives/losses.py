"""Losses between the views of an image, computed in float32 even if the step uses bf16 (tf32 applies to their matrix products too).

Shapes: S rows of all ranks, V views of the student, G views of the teacher.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitssl import dist
from vitssl.backbones.layers import no_autocast, upcast


class Gathered(NamedTuple):
    """Vectors of all ranks, with which each vector of this rank is compared.

    Rows of the same image are not negatives of each other. A batch can contain an image several times with ``data.repeats``, or at the
    boundary of two epochs.
    """

    rows: Tensor  # (S, ...), rank by rank
    images_S: Tensor  # int64, the image that each row belongs to
    first: int  # index of this rank's first row

    @classmethod
    def gather(cls, rows: Tensor, images_R: Tensor, all_ranks: bool) -> Gathered:
        """Collect the rows of all ranks, or if not ``all_ranks``, of this rank alone (outside of training one rank counts the costs)."""
        if all_ranks:
            return cls(dist.gather(rows), dist.gather(images_R), dist.rank() * len(rows))
        return cls(rows, images_R, 0)

    def same_image_mask(self, R: int) -> Tensor:
        """Return which of this rank's R rows (dim 0) and all rows (dim 1) belong to the same image, bool (R, S)."""
        return self.images_S[self.first : self.first + R, None] == self.images_S


def nt_xent(query_RD: Tensor, keys: Gathered, temperature: float) -> Tensor:
    """Return the NT-Xent loss (Chen et al. 2020, Eq. 1), averaged over this rank's rows.

    Each row must find its partner, the other view of its image, among the rows of all ranks.

    Args:
        query_RD: unit vectors: the first view of every image, then the second view of every image.
        keys: the rows of all ranks.
        temperature: of the cosine similarities.
    """
    R = len(query_RD)
    partner_R = keys.first + (torch.arange(R, device=query_RD.device) + R // 2) % R
    return _key_cross_entropy(query_RD, keys, partner_R, temperature)


def info_nce(query_BD: Tensor, keys: Gathered, temperature: float) -> Tensor:
    """Return the InfoNCE loss (van den Oord et al. 2018, in MoCo's form), averaged over this rank's rows.

    Each row must find its image's key among the keys of all ranks.

    Args:
        query_BD: unit vectors.
        keys: unit vectors of all ranks.
        temperature: of the cosine similarities.
    """
    return _key_cross_entropy(query_BD, keys, keys.first + torch.arange(len(query_BD), device=query_BD.device), temperature)


def _key_cross_entropy(query_RD: Tensor, keys: Gathered, target_R: Tensor, temperature: float) -> Tensor:
    """Return the cross-entropy of finding row ``target_R`` among all rows, leaving out all other rows of the same image."""
    with no_autocast(query_RD):
        similarity_RS = upcast(query_RD) @ upcast(keys.rows).T / temperature
    other_RS = torch.arange(len(keys.rows), device=query_RD.device) != target_R[:, None]
    return F.cross_entropy(similarity_RS.masked_fill(keys.same_image_mask(len(query_RD)) & other_RS, -torch.inf), target_R)


def token_contrast(tokens_BJD: Tensor, keys: Gathered, temperature: float) -> Tensor:
    """Return the contrastive loss between the tokens of an image, whose negatives are the tokens of all other images.

    It is the mean over images and ordered pairs of an image's J tokens of -log(e^s / (e^s + sum of e^n)). Here s is the cosine similarity
    of the pair, and n that of the first token with each token of another image. The image's further tokens are not negatives. This is
    Eq. 12 and 13 of Hu et al. 2022 with the minus moved from the ratio to its logarithm, which the printed one lacks.

    Args:
        tokens_BJD: unit vectors.
        keys: unit vectors of all ranks, (S, J, D).
        temperature: of the cosine similarities; 1 in the paper.
    """
    B, J, _ = tokens_BJD.shape
    with no_autocast(tokens_BJD):
        tokens_BJD, all_SJD = upcast(tokens_BJD), upcast(keys.rows)
        to_all_BJSJ = (tokens_BJD.flatten(0, 1) @ all_SJD.flatten(0, 1).T / temperature).view(B, J, len(all_SJD), J)
        pairs_BJJ = tokens_BJD @ tokens_BJD.transpose(1, 2) / temperature
    # with a single image there are no negatives, and their sum and its gradient are 0
    negatives_BJ = to_all_BJSJ.masked_fill(keys.same_image_mask(B)[:, None, :, None], -1e4).flatten(2).logsumexp(-1)
    loss_BJJ = F.softplus(negatives_BJ[..., None] - pairs_BJJ)
    different_JJ = ~torch.eye(J, dtype=torch.bool, device=tokens_BJD.device)
    return (loss_BJJ * different_JJ).sum() / (B * J * (J - 1))


def self_distillation(student_VBK: Tensor, teacher_GBK: Tensor, temperature: float) -> Tensor:
    """Return DINO's loss (Caron et al. 2021, Eq. 3): the mean cross-entropy over images and pairs of different views.

    Each pair consists of a view of the teacher and another view of the student.

    Args:
        student_VBK: the student's scores, with the views that the teacher sees first.
        teacher_GBK: the teacher's probabilities.
        temperature: of the student's scores.
    """
    V, B, _ = student_VBK.shape
    G = len(teacher_GBK)
    with no_autocast(student_VBK):
        scores_VBK = upcast(student_VBK) / temperature
        # -sum_k p log softmax(s) = logsumexp(s) - p.s, so that no tensor holds K values for each pair
        expected_BGV = upcast(teacher_GBK).transpose(0, 1) @ scores_VBK.permute(1, 2, 0)
        entropy_BGV = scores_VBK.logsumexp(-1).T[:, None] - expected_BGV
    others_GV = 1 - torch.eye(G, V, device=student_VBK.device)
    return (entropy_BGV * others_GV).sum() / (B * G * (V - 1))
