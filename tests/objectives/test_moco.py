"""MoCo: its loss against lightly and a loop, and its queue by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from lightly.loss import NTXentLoss
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.models.model import Model, Role
from fedssl.objectives.moco import MoCoV1, MoCoV2, Queue, info_nce


def test_info_nce_is_the_papers_and_lightlys() -> None:
    query, key, negatives = torch.randn(4, 6), torch.randn(4, 6), F.normalize(torch.randn(9, 6), dim=1)
    value = float(info_nce(query, F.normalize(key, dim=1), negatives, 0.2))
    total = 0.0
    for q, k in zip(F.normalize(query, dim=1), F.normalize(key, dim=1), strict=True):
        scores = [math.exp(float(q @ other) / 0.2) for other in [k, *negatives]]
        total -= math.log(scores[0] / sum(scores))
    assert value == pytest.approx(total / 4, rel=1e-5)
    lightly = NTXentLoss(temperature=0.2, memory_bank_size=(9, 6))
    lightly.memory_bank.bank = negatives
    lightly.memory_bank.bank_ptr = torch.zeros(1, dtype=torch.long)
    assert value == pytest.approx(float(lightly(query, key)), rel=1e-5)


def contents(queue: Queue) -> list[int]:
    return [int(value) for value in queue.keys[:, 0]]


def numbered(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32).unsqueeze(1).expand(-1, 2)


def test_the_queue_is_a_ring() -> None:
    """Batches of 3 in a ring of 5: the second one wraps around, the third overwrites the oldest."""
    queue = Queue(5, 2)
    queue.keys.zero_()
    queue.push(numbered(1, 2, 3))
    assert contents(queue) == [1, 2, 3, 0, 0]
    assert int(queue.position) == 3
    queue.push(numbered(4, 5, 6))
    assert contents(queue) == [6, 2, 3, 4, 5]
    assert int(queue.position) == 1
    queue.push(numbered(7, 8, 9))
    assert contents(queue) == [6, 7, 8, 9, 5]
    assert int(queue.position) == 4


@pytest.mark.parametrize("count", [4, 5, 7, 11])
def test_a_batch_larger_than_the_ring_leaves_its_last_keys(count: int) -> None:
    """As if its keys had been added one by one."""
    whole, single = Queue(4, 2), Queue(4, 2)
    for queue in (whole, single):
        queue.push(numbered(100, 101, 102))
    whole.push(numbered(*range(count)))
    for number in range(count):
        single.push(numbered(number))
    assert contents(whole) == contents(single)
    assert int(whole.position) == int(single.position)
    assert whole.position.dtype == torch.int64


def test_a_new_queue_holds_unit_vectors_of_the_callers_seed() -> None:
    queues = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        queues.append(Queue(50, 8).keys)
    torch.testing.assert_close(queues[0].norm(dim=1), torch.ones(50))
    assert torch.equal(queues[0], queues[1])
    assert not torch.equal(queues[0], queues[2])


@pytest.mark.parametrize("kind", [MoCoV1, MoCoV2])
def test_a_step_pushes_the_targets_keys(
    kind: type[MoCoV2], build: Callable[..., Model], views: list[Tensor], rng: torch.Generator
) -> None:
    objective = kind(queue=8)
    model = build(objective)
    queue = model.part("queue")
    before = queue.keys.clone()
    expected = F.normalize(model.part("target")(views[1]), dim=1)
    query = model.part("projector")(model.part("encoder")(views[0]))
    loss = objective.loss(model, views, None, rng)
    torch.testing.assert_close(loss, info_nce(query, expected, before, objective.temperature))
    torch.testing.assert_close(queue.keys[:6], expected)
    assert torch.equal(queue.keys[6:], before[6:])
    assert int(queue.position) == 6
    assert not queue.keys.requires_grad
    loss.backward()  # the queue changed after the loss was computed, and that does not matter


def test_only_training_fills_the_queue(
    build: Callable[..., Model], views: list[Tensor], rng: torch.Generator
) -> None:
    model = build(MoCoV2(queue=8)).eval()
    before = model.part("queue").keys.clone()
    MoCoV2(queue=8).loss(model, views, None, rng)
    assert torch.equal(model.part("queue").keys, before)


def test_versions_differ_as_published(build: Callable[..., Model]) -> None:
    first, second = MoCoV1(), MoCoV2()
    assert (first.temperature, second.temperature) == (0.07, 0.2)
    assert (first.views, second.views) == ("moco-v1", "simclr")
    assert isinstance(build(first).part("projector"), nn.Linear)
    assert isinstance(build(second).part("projector"), nn.Sequential)


def test_target_and_queue_stay_with_the_client(build: Callable[..., Model]) -> None:
    model = build(MoCoV2(queue=8))
    assert model.roles["target"] is model.roles["queue"] is Role.PRIVATE
    assert {name.split(".")[0] for name in model.names(Role.SHARED)} == {"encoder", "projector"}
    assert model.names_under(["queue"]) == ["queue.keys", "queue.position"]
