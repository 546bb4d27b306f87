"""Losses between the views of an image, in float32 also where the step is in bf16 (tf32 is of their matrix products too).

Shapes: S rows of all ranks, V views of the student, G of the teacher.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitssl import dist
from vitssl.backbones.layers import no_autocast, upcast


class Gathered(NamedTuple):
    """Vectors of all ranks, among which each of this rank's is compared.

    Rows of one image are no negatives of each other: an image is in a batch several times under ``data.repeats``, or where epochs meet.
    """

    rows: Tensor  # (S, ...), rank by rank
    images_S: Tensor  # int64, which image each is of
    first: int  # the place of this rank's first row

    @classmethod
    def of(cls, own: Tensor, images_R: Tensor, together: bool) -> Gathered:
        """Of all ranks if these run side by side, else of this one alone (outside of training: one rank counts the costs)."""
        if together:
            return cls(dist.gather(own), dist.gather(images_R), dist.rank() * len(own))
        return cls(own, images_R, 0)

    def of_one_image(self, R: int) -> Tensor:
        """Are this rank's R rows (dim 0) and all rows (dim 1) of the same image?"""
        return self.images_S[self.first : self.first + R, None] == self.images_S


def nt_xent(own_RD: Tensor, among: Gathered, temperature: float) -> Tensor:
    """NT-Xent (Chen et al. 2020, Eq. 1): every row finds its partner among the rows of all ranks; mean over this rank's rows.

    Args:
        own_RD: unit vectors, a row for the first view of each image and then one for the second of each.
        among: the rows of all ranks.
        temperature: of the cosine similarities.
    """
    R = len(own_RD)
    partner_R = among.first + (torch.arange(R, device=own_RD.device) + R // 2) % R
    return _found(own_RD, among, partner_R, temperature)


def info_nce(own_BD: Tensor, keys: Gathered, temperature: float) -> Tensor:
    """Every row finds its image's key among the keys of all ranks (van den Oord et al. 2018; MoCo's form); mean over this rank's rows.

    Args:
        own_BD: unit vectors.
        keys: unit vectors of all ranks.
        temperature: of the cosine similarities.
    """
    return _found(own_BD, keys, keys.first + torch.arange(len(own_BD), device=own_BD.device), temperature)


def _found(own_RD: Tensor, among: Gathered, target_R: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of finding a row each; other rows of the same image, its own too, do not count."""
    with no_autocast(own_RD):
        similarity_RS = upcast(own_RD) @ upcast(among.rows).T / temperature
    other_RS = torch.arange(len(among.rows), device=own_RD.device) != target_R[:, None]
    return F.cross_entropy(similarity_RS.masked_fill(among.of_one_image(len(own_RD)) & other_RS, -torch.inf), target_R)


def token_contrast(own_BJD: Tensor, among: Gathered, temperature: float) -> Tensor:
    """Two tokens of one image among all tokens of the other images (Hu et al. 2022, Eq. 12 and 13, with the logarithm where it belongs).

    The mean over images and ordered pairs of its J tokens of -log(e^s / (e^s + sum of e^n)), where s is the pair's cosine similarity and n
    the first token's to each token of another image; the image's further tokens are not among them.

    Args:
        own_BJD: unit vectors.
        among: those of all ranks, (S, J, D).
        temperature: of the cosine similarities; the paper has 1.
    """
    B, J, _ = own_BJD.shape
    with no_autocast(own_BJD):
        own_BJD, all_SJD = upcast(own_BJD), upcast(among.rows)
        to_all_BJSJ = (own_BJD.flatten(0, 1) @ all_SJD.flatten(0, 1).T / temperature).view(B, J, len(all_SJD), J)
        pairs_BJJ = own_BJD @ own_BJD.transpose(1, 2) / temperature
    # of one image alone, which has no others, the sum is 0, and its gradient too
    negatives_BJ = to_all_BJSJ.masked_fill(among.of_one_image(B)[:, None, :, None], -1e4).flatten(2).logsumexp(-1)
    loss_BJJ = F.softplus(negatives_BJ[..., None] - pairs_BJJ)
    different_JJ = ~torch.eye(J, dtype=torch.bool, device=own_BJD.device)
    return (loss_BJJ * different_JJ).sum() / (B * J * (J - 1))


def self_distillation(student_VBK: Tensor, teacher_GBK: Tensor, temperature: float) -> Tensor:
    """DINO (Caron et al. 2021, Eq. 3): cross-entropy, mean over images and pairs of a teacher's view and another one of the student.

    Args:
        student_VBK: scores, the teacher's views first.
        teacher_GBK: probabilities.
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
