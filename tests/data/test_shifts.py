"""Shifts keep shape and type, and turn by the angle they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image

from fedssl.data import SHIFTS
from fedssl.data.shifts import Rotation, Shift
from fedssl.errors import ConfigError
from fedssl.options import choose


def noise(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_no_shift_is_the_identity():
    x = noise(3, 8, 8, 3)
    assert choose(SHIFTS, {"name": "none"}, "shift").apply(x, 2, 5) is x


@pytest.mark.parametrize("side", [1, 2, 7, 8, 28, 31, 32, 96])
def test_quarter_turns_are_exact(side):
    x = noise(3, side, side, 3)
    for client in range(4):
        turned = Rotation().apply(x, client, 4)
        assert torch.equal(turned, torch.rot90(x, client, dims=(1, 2)))
        assert torch.equal(turned, Rotation().apply(x, 2 * client, 8))


def test_half_turn_of_an_oblong_image_is_exact():
    x = noise(2, 20, 33, 1)
    assert torch.equal(Rotation().apply(x, 1, 2), x.flip(1, 2))


def test_shape_type_layout_and_input_are_kept():
    x = noise(130, 9, 12, 3)
    before = x.clone()
    for client in range(5):
        turned = Rotation().apply(x, client, 5)
        assert turned.shape == x.shape
        assert turned.dtype == torch.uint8
        assert turned.is_contiguous()
    assert torch.equal(x, before)
    assert Rotation().apply(x[:0], 1, 5).shape == (0, 9, 12, 3)


def test_images_of_a_batch_do_not_touch_each_other():
    x = noise(130, 10, 10, 3)
    whole = Rotation().apply(x, 1, 5)
    for i in (0, 63, 64, 129):
        assert torch.equal(whole[i], Rotation().apply(x[i : i + 1], 1, 5)[0])


def test_client_zero_and_a_whole_turn_are_the_identity():
    x = noise(2, 8, 8, 1)
    assert torch.equal(Rotation().apply(x, 0, 5), x)
    assert torch.equal(Rotation().apply(x, 5, 5), x)


@pytest.mark.parametrize(("height", "width"), [(64, 64), (48, 80)])
def test_a_spot_moves_along_its_circle(height, width):
    """A bright spot at (dx, dy) from the center ends up at that vector turned counter-clockwise."""
    center_x, center_y, dx, dy = (width - 1) / 2, (height - 1) / 2, 12.5, 3.5
    x = torch.zeros(1, height, width, 1, dtype=torch.uint8)
    x[0, int(center_y - dy), int(center_x + dx), 0] = 255
    for clients in (3, 5, 7):
        for client in range(clients):
            turned = Rotation().apply(x, client, clients)[0, :, :, 0].double()
            rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            angle = 2 * math.pi * client / clients
            found_x = float((turned * columns).sum() / turned.sum()) - center_x
            found_y = center_y - float((turned * rows).sum() / turned.sum())
            assert found_x == pytest.approx(dx * math.cos(angle) - dy * math.sin(angle), abs=0.25)
            assert found_y == pytest.approx(dx * math.sin(angle) + dy * math.cos(angle), abs=0.25)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (24, 40)])
def test_agrees_with_pillow(height, width):
    """Pillow too turns counter-clockwise, bilinearly, with black corners; only rims differ."""
    rows, columns = np.mgrid[0:height, 0:width]
    smooth = 128 + 60 * np.sin(rows / 4) + 60 * np.cos(columns / 5)
    image = np.stack([smooth, smooth[::-1], 255 - smooth], axis=2).astype(np.uint8)
    for client in range(1, 5):
        ours = Rotation().apply(torch.from_numpy(image)[None], client, 5)[0].numpy()
        turned = Image.fromarray(image).rotate(72 * client, resample=Image.Resampling.BILINEAR)
        solid = Image.fromarray(np.full((height, width), 255, np.uint8))
        shadow = np.asarray(solid.rotate(72 * client, resample=Image.Resampling.BILINEAR))
        ours_shadow = Rotation().apply(torch.full((1, height, width, 1), 255, dtype=torch.uint8), client, 5)
        inside = (shadow == 255) & (ours_shadow[0, :, :, 0].numpy() == 255)
        assert inside.mean() > 0.4
        difference = np.abs(ours.astype(int) - np.asarray(turned).astype(int))[inside]
        assert difference.max() <= 2


def test_corners_are_black():
    turned = Rotation().apply(torch.full((1, 32, 32, 3), 255, dtype=torch.uint8), 1, 8)
    assert turned[0, 0, 0].tolist() == [0, 0, 0]
    assert turned[0, 16, 16].tolist() == [255, 255, 255]


def test_shifts_are_registered_and_unknown_keys_refused():
    for name, kind in {"none": Shift, "rotation": Rotation}.items():
        assert type(choose(SHIFTS, {"name": name}, "shift")) is kind
    assert all(SHIFTS.get(name)().name == name for name in SHIFTS)
    with pytest.raises(ConfigError, match=r"shift\.angle"):
        choose(SHIFTS, {"name": "rotation", "angle": 3}, "shift")
