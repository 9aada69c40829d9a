"""Styles are fixed, distinct and keep the position of content."""

from __future__ import annotations

import itertools

import pytest
import torch
from sklearn.datasets import load_digits, load_sample_image

from fedssl.data import SHIFTS
from fedssl.data.shift_stylization import Style, Stylization, canvas, palette
from fedssl.errors import ConfigError
from fedssl.options import choose


@pytest.fixture(scope="module")
def photo() -> torch.Tensor:
    """Sixteen 32×32 pieces of a photograph."""
    whole = torch.from_numpy(load_sample_image("china.jpg").copy())[:256:2, :256:2]
    return (
        whole.unfold(0, 32, 32).unfold(1, 32, 32).permute(0, 1, 3, 4, 2).reshape(-1, 32, 32, 3).contiguous()
    )


def test_shape_type_and_input_are_kept(photo):
    before = photo.clone()
    for x in (photo, photo[..., :1].contiguous(), photo[:, :, :19].contiguous(), photo[:0]):
        styled = Stylization().apply(x, 3, 5)
        assert styled.shape == x.shape
        assert styled.dtype == torch.uint8
        assert styled.is_contiguous()
    assert torch.equal(photo, before)


def test_a_style_is_fixed_and_images_do_not_touch_each_other(photo):
    many = photo.repeat(5, 1, 1, 1)  # more than one chunk
    styled = Stylization().apply(many, 2, 5)
    assert torch.equal(styled, Stylization().apply(many, 2, 5))
    for place in (0, 63, 64, 79):
        assert torch.equal(styled[place], Stylization().apply(many[place : place + 1], 2, 5)[0])


@pytest.mark.parametrize("clients", [2, 9])
def test_no_two_clients_have_the_same_style_and_none_has_none(photo, clients):
    seen = torch.stack([photo, *(Stylization().apply(photo, client, clients) for client in range(clients))])
    apart = torch.pdist(seen.float().flatten(1), p=1) / photo.numel()
    assert apart.min() > 3  # of 255


def test_gray_images_have_distinct_styles_too():
    digits = torch.from_numpy(load_digits().images[:20] / 16 * 255).to(torch.uint8)[..., None]
    seen = [Stylization().apply(digits, client, 5).float() for client in range(5)]
    assert min((a - b).abs().mean() for a, b in itertools.combinations(seen, 2)) > 3


def test_color_statistics_are_those_of_the_palette(photo):
    """With full strength the mean of a channel is the palette's, up to clipping and the canvas."""
    for client in range(5):
        mean, _ = palette(Style.of(client, 5), 3)
        styled = Stylization(strength=1.0).apply(photo, client, 5).float() / 255
        assert (styled.mean(dim=(0, 1, 2)) - mean.flatten()).abs().max() < 0.05


def test_content_stays_where_it_was(photo):
    """A bright half remains the brighter one, and an image is still most like itself."""
    half = torch.zeros(1, 32, 32, 3, dtype=torch.uint8)
    half[:, :, 16:] = 200
    for client in range(5):
        styled = Stylization().apply(half, client, 5).float()
        assert styled[:, :, 18:].mean() > styled[:, :, :14].mean() + 30
        painted = Stylization().apply(photo, client, 5).float().mean(-1).flatten(1)
        original = photo.float().mean(-1).flatten(1)
        found = torch.corrcoef(torch.cat([painted, original]))[:16, 16:].argmax(dim=1)
        assert (found == torch.arange(16)).float().mean() > 0.9


def test_strength_interpolates_between_image_and_style(photo):
    steps = [
        (Stylization(strength=strength).apply(photo, 1, 5).float() - photo.float()).abs().mean()
        for strength in (0.1, 0.5, 1.0)
    ]
    assert steps == sorted(steps)
    assert steps[0] < 10


def test_the_canvas_is_stripes_about_one():
    stripes = canvas(Style.of(0, 5), 30, 30)
    assert stripes.mean() == pytest.approx(1.0, abs=0.01)
    assert torch.allclose(stripes[0], stripes[17])  # across an upright brush: the same in every row
    assert torch.allclose(stripes[:, :27], stripes[:, 3:], atol=1e-5)  # a thread every three pixels


def test_bad_options_are_named():
    with pytest.raises(ConfigError, match=r"shift\.strength=0"):
        choose(SHIFTS, {"name": "stylization", "strength": 0}, "shift")
    assert choose(SHIFTS, {"name": "stylization"}, "shift") == Stylization()
