"""A lens transforms images like torchvision, and adopts the orientation of the client's images."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as tv

from fedssl.config import load
from fedssl.data.federation import federate
from fedssl.engines.network import build_network
from fedssl.errors import ConfigError
from fedssl.objectives.generative.lens import (
    FLIPS,
    MIRRORED,
    NEGATIVE,
    UPSIDE_DOWN,
    Lens,
    class_means,
    compare_means,
    orient,
    warp,
)
from tests.generative.small import KINDS, run_of

OPTIONS = {"objective.lens": 2, "objective.augmented": True, "objective.drawn_labels": "own"}


def images(count: int = 3, side: int = 12) -> torch.Tensor:
    return torch.rand(count, 1, side, side, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("turn", "zoom", "right", "down"), [(0, 1, 0, 0), (25, 1, 0, 0), (-50, 0.5, 0, 0), (0, 1.25, 3, -2)]
)
def test_an_image_is_placed_as_by_torchvision(turn: float, zoom: float, right: float, down: float) -> None:
    """Degrees clockwise, a factor of the size, and pixels at a side of 12."""
    x = images()
    params = [
        math.atanh(math.radians(turn) / (math.pi / 3)),
        math.atanh(math.log(zoom)),
        math.atanh(right / zoom / 6 / 0.5),
        math.atanh(down / zoom / 6 / 0.5),
    ]
    ours = warp(x, torch.tensor([params] * len(x)))
    theirs = tv.affine(x, turn, [right, down], zoom, [0.0, 0.0], InterpolationMode.BILINEAR)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_orientations_by_hand() -> None:
    x = images().numpy()
    expected = {
        0: x,
        MIRRORED: x[..., ::-1],
        UPSIDE_DOWN: x[..., ::-1, :],
        MIRRORED | UPSIDE_DOWN: np.rot90(x, 2, (2, 3)),
        NEGATIVE | MIRRORED: 1 - x[..., ::-1],
    }
    for orientation, picture in expected.items():
        np.testing.assert_array_equal(orient(torch.from_numpy(x), orientation).numpy(), picture)


def test_a_new_lens_is_near_identity_and_depends_on_the_style() -> None:
    torch.manual_seed(0)
    lens, x = Lens(16), images(2)
    style = torch.randn(2, 16)
    seen = lens(x * 2 - 1, style).detach()
    moved = lens(x * 2 - 1, 10 * style).detach()
    assert (seen - (x * 2 - 1)).abs().mean() < (moved - (x * 2 - 1)).abs().mean() / 2
    lens(x, style).square().sum().backward()
    assert all(float(value.grad.abs().sum()) > 0 for value in lens.parameters())


def test_a_negative_tone_inverts_the_image() -> None:
    lens, x = Lens(4), images(2)
    with torch.no_grad():
        lens.weight.zero_()
        lens.bias[4], lens.bias[5] = -0.05, 0.02  # times 10: gain 1 − 0.5, bias 0.2
    torch.testing.assert_close(lens(x * 2 - 1, torch.zeros(2, 4)), (0.5 * x + 0.2) * 2 - 1)


def test_similarity_by_hand() -> None:
    """Two labels of one row of three pixels: a stroke left and in the middle; real ones are mirrored."""
    drawn = torch.tensor([[1.0, 0, 0], [0, 1, 0]]).view(2, 1, 1, 3)
    real = torch.tensor([[0, 0, 5.0], [0, 5, 0]]).view(2, 1, 1, 3)
    found = compare_means(drawn, drawn, real)
    # Mirrored they are the same; a negative of that is as unlike as can be.
    assert found.tone == pytest.approx(1.0)
    assert compare_means(drawn, drawn, -real).tone == pytest.approx(-1.0)
    # About the mean of both labels: ±(1, −1, 0)/2 against ±(0, −1, 1)/2, mirrored they are the same.
    assert found.flips.tolist() == pytest.approx([0.5, 1.0, 0.5, 1.0])


@pytest.mark.parametrize("orientation", [0, MIRRORED, UPSIDE_DOWN | NEGATIVE, MIRRORED | UPSIDE_DOWN, 7])
def test_a_lens_adopts_the_orientation_of_real_images(orientation: int) -> None:
    lens, drawn = Lens(4), images(5)
    real = orient(drawn, orientation)
    for _ in range(12):
        lens.update_orientation(compare_means(drawn, drawn, real))
    assert int(lens.orientation) == orientation


def test_one_outlier_round_does_not_change_the_orientation() -> None:
    lens, drawn = Lens(4), images(5)
    for _ in range(12):
        lens.update_orientation(compare_means(drawn, drawn, drawn))
    lens.update_orientation(compare_means(drawn, drawn, orient(drawn, MIRRORED)))
    assert int(lens.orientation) == 0


def test_blank_images_do_not_change_the_orientation() -> None:
    lens, flat = Lens(4), torch.zeros(5, 1, 8, 8)
    for _ in range(12):
        lens.update_orientation(compare_means(flat, flat, images(5, 8)))
    assert int(lens.orientation) == 0
    assert torch.isfinite(lens.flips).all()


def test_means_by_label() -> None:
    x, y = images(4), torch.tensor([7, 2, 7, 2])
    torch.testing.assert_close(class_means(x, y), torch.stack((x[[1, 3]].mean(0), x[[0, 2]].mean(0))))


def test_orientation_updates_start_in_the_given_round_with_their_own_random_numbers(tmp_path: Path) -> None:
    run = run_of("conditional-gan", tmp_path / "lens", **OPTIONS, rounds=3)
    for line in run.metrics:
        assert all(client["lens"] in range(8) for client in line["clients"])
    config = load(KINDS["conditional-gan"], OPTIONS)
    federation = federate(config)
    model = build_network(config, (8, 8), 1, 10).model
    own = federation.images_of(0, config, 1)
    lens = model.part("lens")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config.objective.prepare(model, own, 1, torch.Generator().manual_seed(0))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    config.objective.prepare(model, own, 2, torch.Generator().manual_seed(0))
    assert float(lens.flips.abs().sum()) > 0
    changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    assert set(changed) <= {"lens.orientation", "lens.tone", "lens.flips"}


def test_a_lens_needs_labels_at_the_generators_input() -> None:
    config = load(KINDS["conditional-gan"], {"objective.lens": 1})
    with pytest.raises(ConfigError, match=r"objective.augmented=true"):
        build_network(config, (8, 8), 1, 10)


def test_every_flip_is_its_own_inverse() -> None:
    x = images()
    for orientation in (*FLIPS, NEGATIVE, 7):
        torch.testing.assert_close(orient(orient(x, orientation), orientation), x)
