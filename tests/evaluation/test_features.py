"""Features do not depend on the batch, and extracting them changes nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fedssl.data.images import ImageSet
from fedssl.errors import DataError
from fedssl.evaluation.features import check_features, check_labeled, extract, feature_std

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


class Small(nn.Module):
    """Convolutions, BatchNorm, dropout and a linear layer: everything whose mode matters."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(16, 12),
        )

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(x)
        return features


@pytest.fixture
def encoder() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Small()
        net.train()(torch.randn(64, 3, 8, 8))  # statistics that are not those of a fresh layer
    return net


@pytest.fixture
def images() -> ImageSet:
    rng = torch.Generator().manual_seed(1)
    return ImageSet(torch.randint(0, 256, (33, 8, 8, 3), generator=rng, dtype=torch.uint8), name="noise")


def test_features_are_those_of_one_image_at_a_time(
    encoder: nn.Module, images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five batches, the last of one image."""
    monkeypatch.setattr("fedssl.evaluation.features.BATCH", 8)
    features = extract(encoder, images, mean=0.4, std=0.3, device=CPU)
    reference = copy.deepcopy(encoder).eval()
    with torch.no_grad():
        for i in range(33):
            pixels = (images.x[i].permute(2, 0, 1)[None] / 255 - 0.4) / 0.3
            torch.testing.assert_close(features[i], reference(pixels)[0], atol=1e-5, rtol=1e-5)
    assert features.shape == (33, 12)
    assert features.dtype == torch.float32
    assert features.device == CPU


def test_same_bits_every_time(encoder: nn.Module, images: ImageSet) -> None:
    first, second = (extract(encoder, images, mean=0.5, std=0.25, device=CPU) for _ in range(2))
    assert torch.equal(first, second)


def test_the_encoder_is_not_changed(encoder: nn.Module, images: ImageSet) -> None:
    encoder.train()
    batch_norm = encoder.get_submodule("body.1").eval()  # modes are mixed, and stay so
    encoder.get_submodule("body.9").requires_grad_(False)
    state = copy.deepcopy(encoder.state_dict())
    modes = [module.training for module in encoder.modules()]
    takes_gradients = [parameter.requires_grad for parameter in encoder.parameters()]
    extract(encoder, images, mean=0.5, std=0.25, device=CPU)
    assert [module.training for module in encoder.modules()] == modes
    assert not batch_norm.training
    assert [parameter.requires_grad for parameter in encoder.parameters()] == takes_gradients
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, state[name])


def test_modes_are_restored_after_an_error(images: ImageSet) -> None:
    encoder = nn.Sequential(nn.Conv2d(1, 2, 3)).train()  # for gray images: these are color
    with pytest.raises(RuntimeError):
        extract(encoder, images, mean=0.5, std=0.25, device=CPU)
    assert encoder.training
    assert encoder[0].training


def test_features_can_be_trained_on(encoder: nn.Module, images: ImageSet) -> None:
    features = extract(encoder, images, mean=0.5, std=0.25, device=CPU)
    weight = torch.ones(12, requires_grad=True)
    (features @ weight).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(weight.grad, features.sum(dim=0))


def test_progress_counts_images(
    encoder: nn.Module, images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedssl.evaluation.features.BATCH", 16)
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int, what: str) -> None:
        seen.append((done, total))

    extract(encoder, images, mean=0.5, std=0.25, device=CPU, progress=progress)
    assert seen == [(16, 33), (32, 33), (33, 33)]


def test_no_images_is_an_error(encoder: nn.Module, images: ImageSet) -> None:
    with pytest.raises(DataError, match="no images"):
        extract(encoder, images.subset(torch.arange(0)), mean=0.5, std=0.25, device=CPU)


def test_feature_std_of_known_features() -> None:
    assert feature_std(torch.randn(20_000, 32, generator=torch.Generator().manual_seed(0))) == pytest.approx(
        1, abs=0.02
    )
    assert feature_std(torch.tensor([[3.0, 4.0]]).expand(10, 2)) == 0
    # Half at (1, 0), half at (0, 1): both dimensions deviate by ½, times √2.
    assert feature_std(torch.eye(2).repeat(5, 1) * 7) == pytest.approx(0.5 * 2**0.5)
    # Lengths do not matter, only directions do.
    assert feature_std(torch.tensor([[1.0, 1.0], [100.0, 100.0]])) == pytest.approx(0, abs=1e-9)


def test_bad_features_are_counted() -> None:
    features = torch.zeros(5, 4)
    features[1, 2] = torch.nan
    features[1, 3] = torch.inf
    features[4, 0] = -torch.inf
    with pytest.raises(DataError, match=r"3 of 20 feature values .* in 2 of 5 images"):
        check_features(features)
    check_features(torch.full((4, 3), 3e38))  # large numbers are numbers
    with pytest.raises(DataError, match="shape"):
        check_features(torch.zeros(5))
    with pytest.raises(DataError, match="shape"):
        check_features(torch.zeros(0, 3))


def test_bad_labels_are_named() -> None:
    with pytest.raises(DataError, match=r"5 rows of features, but labels of shape \[4\]"):
        check_labeled(torch.zeros(5, 2), torch.zeros(4, dtype=torch.int64), 2)
    with pytest.raises(DataError, match="from 0 to 3, but there are 3 classes"):
        check_labeled(torch.zeros(2, 2), torch.tensor([0, 3]), 3)
    with pytest.raises(DataError, match="from -1 to 0"):
        check_labeled(torch.zeros(2, 2), torch.tensor([-1, 0]), 3)
