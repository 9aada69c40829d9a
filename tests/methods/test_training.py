import math
from types import SimpleNamespace

import pytest
import torch
from tests.small import small_run

from fedssl.config import load
from fedssl.data.federation import ClientImages
from fedssl.data.shifts import Shift
from fedssl.data.view_recipes import build_recipe
from fedssl.data.views import Views
from fedssl.errors import ConfigError
from fedssl.methods.optimizers import Optimizer
from fedssl.methods.options import TrainConfig
from fedssl.methods.training import batches, learning_rate, prepare_batches
from fedssl.rng import torch_rng


def taken(images, batch_size, epochs, seed=0):
    return [positions.tolist() for positions in batches(images, batch_size, epochs, torch_rng(seed, "order"))]


def test_an_epoch_takes_every_image_at_most_once_and_all_that_fill_batches():
    for step in (0, 3):
        epoch = taken(10, 3, 2)[step : step + 3]
        seen = [position for batch in epoch for position in batch]
        assert len(seen) == len(set(seen)) == 9
    assert taken(10, 3, 2)[:3] != taken(10, 3, 2)[3:]  # reshuffled


@pytest.mark.parametrize(("epochs", "steps"), [(1, 4), (0.5, 2), (0.01, 1), (2.25, 9)])
def test_a_fraction_of_an_epoch_is_a_fraction_of_its_steps(epochs, steps):
    assert len(taken(16, 4, epochs)) == steps


def test_a_small_client_trains_on_all_of_its_images_at_once():
    assert sorted(taken(5, 64, 1)[0]) == [0, 1, 2, 3, 4]


def test_one_image_makes_a_batch_of_two():
    assert taken(1, 64, 2) == [[0, 0], [0, 0]]


def test_learning_rates_by_hand():
    cosine = TrainConfig(lr=0.2, schedule="cosine")
    assert learning_rate(cosine, 1, 10) == 0.2
    assert learning_rate(cosine, 6, 10) == pytest.approx(0.1)
    assert learning_rate(cosine, 10, 10) == pytest.approx(0.1 * (1 + math.cos(0.9 * math.pi)))
    step = TrainConfig(lr=1.0, schedule="step")
    found = [learning_rate(step, number, 10) for number in (6, 7, 8, 9)]
    assert found == pytest.approx([1.0, 0.1, 0.1, 0.01])
    assert learning_rate(TrainConfig(lr=0.3, schedule="constant"), 9, 10) == 0.3


def test_a_rate_that_falls_within_the_round_by_hand():
    """The rate falls from 0.2 by three quarters, half of them by the middle of the round."""
    config = TrainConfig(lr=0.2, schedule="constant", round_decay=0.75)
    rates = [learning_rate(config, 3, 10, done) for done in (0, 0.5, 1)]
    assert rates == pytest.approx([0.2, 0.125, 0.05])
    falling = TrainConfig(lr=0.2, schedule="cosine", round_decay=0.75)
    assert learning_rate(falling, 6, 10, 0.5) == pytest.approx(0.0625)  # half of it in the sixth round of ten


def rates_by_epoch(rounds, epochs, **keys):
    """The rate of the only step of every local epoch, over all rounds."""
    config = TrainConfig(lr=1.0, schedule="step", **keys)
    steps = [(number, epoch) for number in range(1, rounds + 1) for epoch in range(epochs)]
    return [learning_rate(config, number, rounds, epoch / epochs) for number, epoch in steps]


@pytest.mark.parametrize(("rounds", "epochs"), [(500, 1), (100, 5), (20, 25), (10, 50), (2, 250), (1, 500)])
def test_steps_of_the_rate_count_local_epochs_however_they_are_cut_into_rounds(rounds, epochs):
    """500 epochs, ×0.3 at 30, 60 and 90 %: 150 epochs, 150, 150 and the last 50."""
    expected = [1.0] * 150 + [0.3] * 150 + [0.09] * 150 + [0.027] * 50
    found = rates_by_epoch(rounds, epochs, milestones=(0.3, 0.6, 0.9), gamma=0.3)
    assert found == pytest.approx(expected)


def test_the_rate_of_a_run_changes_within_a_round(tmp_path, monkeypatch):
    """Two rounds of two epochs of two steps; ×0.5 after a quarter and after five eighths of them."""
    rates, step = [], Optimizer.step
    monkeypatch.setattr(Optimizer, "step", lambda self: rates.append(self.lr) or step(self))
    schedule = {"schedule": "step", "milestones": [0.25, 0.625], "gamma": 0.5, "lr": 0.08}
    small_run(
        tmp_path / "run",
        rounds=2,
        partition={"scheme": "iid", "clients": 1},
        train={**schedule, "epochs": 2, "batch_size": 50},
    )
    assert rates == pytest.approx([0.08] * 2 + [0.04] * 3 + [0.02] * 3)


@pytest.mark.parametrize("milestones", [[0.0], [1.0], [0.5, 30]])
def test_milestones_are_shares(milestones):
    with pytest.raises(ConfigError, match=r"train\.milestones"):
        load({"train": {"schedule": "step", "milestones": milestones}})


def test_equal_purposes_give_equal_batches():
    assert taken(50, 8, 1) == taken(50, 8, 1)
    assert taken(50, 8, 1) != taken(50, 8, 1, seed=1)
    assert torch.is_tensor(next(iter(batches(4, 2, 1, torch_rng(0, "x")))))


def client_of(images, side, labels=True):
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (images + 3, side, side, 3), generator=rng, dtype=torch.uint8)
    y = torch.arange(images + 3) if labels else None
    own = ClientImages(x, y, torch.arange(3, images + 3), Shift(name="none"), 0, 1)
    views = Views(build_recipe("simclr"), (side, side), 3, 0.5, 0.25)
    return SimpleNamespace(images=own, views=views, device=torch.device("cpu"))


@pytest.mark.parametrize("labels", [True, False])
def test_a_batch_has_its_images_their_labels_and_views_of_them(labels):
    client, rng = client_of(45, 32, labels), torch_rng(0, "views")
    chosen = list(batches(len(client.images), 10, 1, torch_rng(0, "order")))
    made = list(prepare_batches(client, iter(chosen), torch_rng(0, "views"), torch_rng(0, "loss")))
    assert [batch.positions.tolist() for batch in made] == [positions.tolist() for positions in chosen]
    for batch in made:
        pictures = client.images.x[3:][batch.positions]
        assert torch.equal(batch.images, pictures)
        assert (batch.labels is None) if not labels else torch.equal(batch.labels, batch.positions + 3)
        for ours, theirs in zip(batch.views, client.views(pictures, rng), strict=True):
            assert torch.equal(ours, theirs)
            assert ours.is_contiguous(memory_format=torch.channels_last)
