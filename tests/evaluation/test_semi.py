"""Fine-tuning trains a copy of the whole model, from explicit seeds."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedssl.data.images import ImageSet
from fedssl.data.views import plain
from fedssl.errors import ConfigError, DataError
from fedssl.evaluation.scores import Scores
from fedssl.evaluation.semi import batches, fine_tune

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS: dict[str, Any] = {
    "hidden": 8,
    "epochs": 3,
    "batch_size": 8,
    "lr": 0.01,
    "augment": None,
    "mean": 0.5,
    "std": 0.25,
    "seed": 0,
    "device": torch.device("cpu"),
}


def striped(count: int, seed: int) -> ImageSet:
    """Horizontal or vertical stripes in noise, which a linear layer on mean colors cannot distinguish."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 2
    stripes = (torch.arange(8) % 2 * 120)[None, :].expand(8, 8)
    x = torch.stack([stripes if label else stripes.T for label in y.tolist()])
    noise = torch.randint(0, 100, (count, 8, 8), generator=rng)
    return ImageSet(
        (x + noise).to(torch.uint8)[..., None], y, ("horizontal", "vertical"), name=f"stripes {seed}"
    )


@pytest.fixture
def encoder() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 6, 3),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.1),
        )


def tune(encoder: nn.Module, labeled: ImageSet, test: ImageSet, **changes: Any) -> Scores:
    return fine_tune(encoder, 6, labeled, test, **{**SETTINGS, **changes})


def test_fine_tuning_learns_new_features(encoder: nn.Module) -> None:
    found = tune(encoder, striped(40, 1), striped(60, 2), epochs=15)
    assert found.accuracy > 0.9
    assert [row["count"] for row in found.per_class] == [30, 30]
    assert [row["class"] for row in found.per_class] == ["horizontal", "vertical"]


def test_the_whole_model_is_trained(encoder: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the encoder was frozen, every parameter and statistic of the copy changes."""
    models: list[nn.Module] = []

    def keep(model: nn.Module, images: ImageSet, **_: Any) -> Tensor:
        models.append(model)
        return torch.zeros(len(images), 2)

    monkeypatch.setattr("fedssl.evaluation.semi.extract", keep)
    encoder.requires_grad_(False)
    tune(encoder, striped(20, 1), striped(4, 2))
    before = encoder.state_dict()
    after = models[0].get_submodule("0").state_dict()
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert not torch.equal(value, after[name]), name
    head = models[0].get_submodule("1")
    kinds = [type(layer) for layer in head.children()]
    assert kinds == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]


def test_the_callers_encoder_is_untouched(encoder: nn.Module) -> None:
    encoder.eval()
    encoder[0].requires_grad_(False)  # type: ignore[index]
    state = copy.deepcopy(encoder.state_dict())
    tune(encoder, striped(20, 1), striped(4, 2))
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert not encoder.training
    assert [parameter.requires_grad for parameter in encoder.parameters()] == [False, False, True, True]
    assert all(parameter.grad is None for parameter in encoder.parameters())


def test_depends_on_the_seed_alone(encoder: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout, the head and the batches included; torch's global generator is not touched."""
    weights: list[Tensor] = []

    def keep(model: nn.Module, images: ImageSet, **_: Any) -> Tensor:
        weights.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
        return torch.zeros(len(images), 2)

    monkeypatch.setattr("fedssl.evaluation.semi.extract", keep)
    labeled, test = striped(20, 1), striped(4, 2)
    torch.manual_seed(123)
    tune(encoder, labeled, test)
    first = torch.rand(1)
    torch.rand(50)
    tune(encoder, labeled, test)
    tune(encoder, labeled, test, seed=1)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    torch.manual_seed(123)
    assert torch.equal(first, torch.rand(1))


@pytest.mark.parametrize(("count", "batch_size"), [(9, 8), (17, 4), (2, 8), (3, 2), (2, 2)])
def test_a_single_last_image_does_not_break_batch_norm(
    encoder: nn.Module, count: int, batch_size: int
) -> None:
    found = tune(encoder, striped(count, 1), striped(4, 2), batch_size=batch_size, epochs=1)
    assert 0 <= found.accuracy <= 1


@pytest.mark.parametrize(
    ("count", "size", "sizes"),
    [(9, 8, [9]), (17, 8, [8, 9]), (18, 8, [8, 8, 2]), (16, 8, [8, 8])],
)
def test_batches_are_all_images_once(count: int, size: int, sizes: list[int]) -> None:
    parts = batches(count, size, torch.Generator().manual_seed(0))
    assert [len(part) for part in parts] == sizes
    assert sorted(torch.cat(parts).tolist()) == list(range(count))


def test_augmentation_sees_every_batch_and_fresh_numbers(encoder: nn.Module) -> None:
    shapes: list[tuple[int, ...]] = []
    draws: list[float] = []

    def augment(images: Tensor, rng: torch.Generator) -> Tensor:
        assert images.dtype == torch.uint8
        shapes.append(tuple(images.shape))
        draws.append(float(torch.rand(1, generator=rng)))
        return plain(images, 0.5, 0.25)

    tune(encoder, striped(20, 1), striped(4, 2), augment=augment, epochs=2)
    assert shapes == [(8, 8, 8, 1), (8, 8, 8, 1), (4, 8, 8, 1)] * 2
    assert len(set(draws)) == 6


def test_progress_counts_epochs(encoder: nn.Module) -> None:
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int, what: str) -> None:
        seen.append((done, total))

    tune(encoder, striped(8, 1), striped(4, 2), progress=progress)
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_bad_input(encoder: nn.Module) -> None:
    labeled, test = striped(8, 1), striped(4, 2)
    bare = ImageSet(test.x, name="bare")
    with pytest.raises(DataError, match="bare has none"):
        tune(encoder, labeled, bare)
    with pytest.raises(DataError, match="bare has none"):
        tune(encoder, bare, test)
    with pytest.raises(ConfigError, match="1 labeled images with batch size 8"):
        tune(encoder, labeled.subset(torch.tensor([0])), test)
    with pytest.raises(ConfigError, match="with batch size 1"):
        tune(encoder, labeled, test, batch_size=1)
    with pytest.raises(DataError, match="label 1 needs 2 class names"):
        tune(encoder, ImageSet(labeled.x, labeled.y, ("only",)), test)
    with pytest.raises(DataError, match="NaN"):
        tune(encoder, labeled, test, lr=1e30)
