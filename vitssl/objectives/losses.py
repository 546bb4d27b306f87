"""Losses between the views of an image, in float32 for any precision of the step.

Shapes: S rows of all ranks, V views of the student, G of the teacher.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitssl.backbones.layers import upcast


def nt_xent(own_RD: Tensor, all_SD: Tensor, rank: int, temperature: float) -> Tensor:
    """NT-Xent (Chen et al. 2020, Eq. 1): every row finds its partner among the rows of all ranks; mean over this rank's rows.

    Args:
        own_RD: unit vectors, a row for the first view of each image and then one for the second of each.
        all_SD: the rows of all ranks, this one's being the ``rank``-th R of them.
        rank: this process's.
        temperature: of the cosine similarities.
    """
    with torch.autocast(own_RD.device.type, enabled=False):
        similarity_RS = upcast(own_RD) @ upcast(all_SD).T / temperature
    R = len(own_RD)
    row_R = torch.arange(R, device=own_RD.device)
    similarity_RS = similarity_RS.scatter(1, rank * R + row_R[:, None], -torch.inf)  # no row is its own negative
    return F.cross_entropy(similarity_RS, rank * R + (row_R + R // 2) % R)


def info_nce(own_BD: Tensor, keys_SD: Tensor, rank: int, temperature: float) -> Tensor:
    """Every row finds its image's key among the keys of all ranks (van den Oord et al. 2018; MoCo's form); mean over this rank's rows.

    Args:
        own_BD: unit vectors.
        keys_SD: unit vectors of all ranks, this one's being the ``rank``-th B of them.
        rank: this process's.
        temperature: of the cosine similarities.
    """
    with torch.autocast(own_BD.device.type, enabled=False):
        similarity_BS = upcast(own_BD) @ upcast(keys_SD).T / temperature
    return F.cross_entropy(similarity_BS, rank * len(own_BD) + torch.arange(len(own_BD), device=own_BD.device))


def token_contrast(own_BJD: Tensor, all_SJD: Tensor, rank: int, temperature: float) -> Tensor:
    """Two tokens of one image among all tokens of the other images (Hu et al. 2022, Eq. 12 and 13, with the logarithm where it belongs).

    The mean over images and ordered pairs of its J tokens of -log(e^s / (e^s + sum of e^n)), where s is the pair's cosine similarity and n
    the first token's to each token of another image; the image's further tokens are not among them.

    Args:
        own_BJD: unit vectors.
        all_SJD: those of all ranks, this one's being the ``rank``-th B of them.
        rank: this process's.
        temperature: of the cosine similarities; the paper has 1.
    """
    B, J, _ = own_BJD.shape
    image_B = rank * B + torch.arange(B, device=own_BJD.device)
    with torch.autocast(own_BJD.device.type, enabled=False):
        own_BJD, all_SJD = upcast(own_BJD), upcast(all_SJD)
        to_all_BJSJ = (own_BJD.flatten(0, 1) @ all_SJD.flatten(0, 1).T / temperature).view(B, J, len(all_SJD), J)
        pairs_BJJ = own_BJD @ own_BJD.transpose(1, 2) / temperature
    others_BS = torch.arange(len(all_SJD), device=own_BJD.device) != image_B[:, None]
    # of one image alone, which has no others, the sum is 0, and its gradient too
    negatives_BJ = to_all_BJSJ.masked_fill(~others_BS[:, None, :, None], -1e4).flatten(2).logsumexp(-1)
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
    with torch.autocast(student_VBK.device.type, enabled=False):
        scores_VBK = upcast(student_VBK) / temperature
        # -sum_k p log softmax(s) = logsumexp(s) - p.s, so that no tensor holds K values for each pair
        expected_BGV = upcast(teacher_GBK).transpose(0, 1) @ scores_VBK.permute(1, 2, 0)
        entropy_BGV = scores_VBK.logsumexp(-1).T[:, None] - expected_BGV
    others_GV = 1 - torch.eye(G, V, device=student_VBK.device)
    return (entropy_BGV * others_GV).sum() / (B * G * (V - 1))
