"""DINO against loops, lightly, and numbers worked out by hand; crops of several sizes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from lightly.loss import DINOLoss
from tests.small import SMALL
from torch import Tensor

import fedssl
from fedssl.data.view_recipes import build_recipe
from fedssl.data.views import Views
from fedssl.models.encoders import build_encoder
from fedssl.models.options import ModelConfig
from fedssl.objectives.dino import DINO, Center, self_distillation


def outputs(crops: int, seed: int) -> Tensor:
    return torch.randn(crops, 3, 5, generator=torch.Generator().manual_seed(seed))


def test_by_hand() -> None:
    """Two crops, one image, two prototypes. Each teacher is certain; a student's odds are 1 : 3."""
    students = torch.tensor([[[0.0, math.log(3)]], [[0.0, 0.0]]])
    teachers = torch.tensor([[[100.0, 0.0]], [[0.0, 100.0]]])
    value = self_distillation(students, teachers, torch.zeros(2), 1.0, 1.0)
    # Teacher 1 wants prototype 1 of student 2: log 2. Teacher 2 wants prototype 2 of student 1: −log(3/4).
    assert float(value) == pytest.approx((math.log(2) + math.log(4 / 3)) / 2)


def test_the_loss_is_the_loop_and_lightly_s() -> None:
    students, teachers, center = outputs(4, 1), outputs(2, 2), torch.linspace(-1, 1, 5)
    value = float(self_distillation(students, teachers, center, 0.1, 0.04))
    total, terms = 0.0, 0
    for t in range(2):
        for s in range(4):
            for image in range(3):
                if s == t:
                    continue
                p = torch.softmax((teachers[t, image] - center) / 0.04, dim=0)
                q = torch.softmax(students[s, image] / 0.1, dim=0)
                total -= float((p * q.log()).sum())
                terms += 1
    assert value == pytest.approx(total / terms, rel=1e-5)
    theirs = DINOLoss(5, student_temp=0.1, teacher_temp=0.04)
    theirs.center.data = center.view(1, 1, 5)
    assert value == pytest.approx(float(theirs(list(teachers), list(students))), rel=1e-5)
    ours = Center(5)
    ours.value.copy_(center)
    ours.move(teachers, 0.9)
    assert torch.allclose(ours.value, theirs.center.flatten(), atol=1e-6)


def test_the_center_is_a_running_mean() -> None:
    center = Center(1)
    center.move(torch.tensor([[[2.0], [4.0]]]), 0.5)
    center.move(torch.tensor([[[5.5], [5.5]]]), 0.5)
    assert center.value.tolist() == [3.5]  # (0 + 3) / 2, then (1.5 + 5.5) / 2


def test_only_the_student_takes_gradients_and_sees_small_crops() -> None:
    torch.manual_seed(0)
    objective = DINO(local_views=1, prototypes=8)
    config = ModelConfig(encoder="vit_tiny", patch=4, projector_hidden=8, projector_out=4)
    encoder = build_encoder(config, (16, 16), 3)
    before = encoder.module.eval()(torch.ones(2, 3, 16, 16))
    model = objective.build(encoder.module, encoder.features, config)
    assert torch.allclose(encoder.module(torch.ones(2, 3, 16, 16)), before, atol=1e-6)
    model.train()
    views = [torch.randn(4, 3, side, side) for side in (16, 16, 8)]
    objective.loss(model, views, None, torch.Generator()).backward()
    assert all(value.grad is None for value in model.part("target").parameters())
    assert all(value.grad is not None for value in model.part("projector").parameters())
    assert model.part("center").value.abs().sum() > 0


def test_crops_have_their_sizes_and_areas() -> None:
    images = torch.arange(32, dtype=torch.uint8).view(1, 32, 1, 1).expand(64, 32, 32, 1) * 8
    recipe = build_recipe("dino", jitter=0.0, blur=0.0, solarize=0.0, local_min=0.05, local_side=0.25)
    views = Views(recipe, (32, 32), 1, 0.0, 1.0, DINO(local_views=3).num_views)
    made = views(images, torch.Generator().manual_seed(0))
    assert [tuple(x.shape[2:]) for x in made] == [(32, 32)] * 2 + [(8, 8)] * 3
    # The gradient's range over a crop is the crop's height: at most 0.4 of the area with ratio 3/4.
    spans = [(x.amax(dim=(1, 2, 3)) - x.amin(dim=(1, 2, 3))) * 255 / 248 for x in made]
    assert max(float(span.max()) for span in spans[2:]) <= math.sqrt(0.4 / (3 / 4)) + 0.02
    assert min(float(span.min()) for span in spans[:2]) >= math.sqrt(0.4 * 3 / 4) - 0.1


def test_a_run_learns_from_crops_of_two_sizes(tmp_path: Path) -> None:
    run = fedssl.run(
        {**SMALL, "objective": {"name": "dino", "local_views": 2, "prototypes": 32}},
        out=tmp_path / "run",
        quiet=True,
        rounds=2,
    )
    assert run.metrics[0]["failed"] == []
    assert run.metrics[0]["views"] % 4 == 0
    assert run.metrics[0]["loss"] != run.metrics[1]["loss"]
