"""The teacher: a copy that follows by a moving average, never trained."""

from __future__ import annotations

import torch
from torch import nn

from vitssl.objectives.teacher import Teacher


def student() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))


def test_it_starts_as_a_copy_that_does_not_move_by_itself():
    theirs = student()
    teacher = Teacher(net=theirs)
    assert all(torch.equal(a, b) for a, b in zip(teacher.parameters(), theirs.parameters(), strict=True))
    nn.init.zeros_(theirs[0].weight)
    assert teacher["net"][0].weight.abs().min() > 0
    assert not any(p.requires_grad for p in teacher.parameters()) and all(p.requires_grad for p in theirs.parameters())


def test_it_stays_in_evaluation_mode():
    whole = nn.ModuleDict({"student": student(), "teacher": Teacher(net=student())}).train()
    assert whole["student"].training
    assert not any(part.training for part in whole["teacher"].modules())


def test_batch_norms_of_named_parts_take_the_batchs_statistics_while_the_student_trains():
    theirs, values = student(), torch.randn(8, 3) + 5
    whole = nn.ModuleDict({"teacher": Teacher(["head"], head=theirs, net=theirs)})
    head, net = (whole["teacher"][name] for name in ("head", "net"))
    expected = nn.functional.batch_norm(theirs[0](values), None, None, training=True)
    torch.testing.assert_close(head(values), theirs.eval()(values))  # before anybody trains
    whole.train()
    torch.testing.assert_close(head(values), expected)
    torch.testing.assert_close(net(values), theirs.eval()(values))
    assert not head[2].training, "no dropout"
    whole["teacher"].ema_update(0.5, head=theirs, net=theirs)
    assert torch.equal(head[1].running_mean, theirs[1].running_mean), "the averages are the student's"
    whole.eval()
    torch.testing.assert_close(head(values), theirs.eval()(values))


def test_it_follows_by_the_moving_average_and_copies_buffers():
    theirs, (momentum, steps) = student(), (0.9, 5)
    teacher = Teacher(net=theirs)
    expected = theirs[0].weight.detach().clone()
    for step in range(steps):
        nn.init.constant_(theirs[0].weight, float(step))
        theirs(torch.randn(8, 3))
        teacher.ema_update(momentum, net=theirs)
        expected = momentum * expected + (1 - momentum) * step
    torch.testing.assert_close(teacher["net"][0].weight, nn.Parameter(expected, requires_grad=False))
    assert torch.equal(teacher["net"][1].running_mean, theirs[1].running_mean)
    assert teacher["net"][1].num_batches_tracked == steps


def test_momentum_at_its_ends():
    theirs, other = student(), student()
    teacher = Teacher(net=theirs)
    teacher.ema_update(1.0, net=other)
    assert torch.equal(teacher["net"][0].weight, theirs[0].weight)
    teacher.ema_update(0.0, net=other)
    assert torch.equal(teacher["net"][0].weight, other[0].weight)
