"""The Sobel filter, the style loss, and style features."""

import numpy as np
import pytest
import torch
from scipy import ndimage
from tests.onestep import naive_style_loss
from torch import nn

from fedssl.data.federation import ClientImages
from fedssl.data.shifts import Shift
from fedssl.data.view_recipes import build_recipe
from fedssl.data.views import Views
from fedssl.methods.style import (
    ConcatenatedFeatures,
    StyleViews,
    Stylize,
    build_generator,
    sobel,
    style_features,
    style_info_nce,
)
from fedssl.rng import torch_rng


def pictures(count=3, side=9, channels=3, seed=0):
    shape = (count, side, side + 2, channels)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch_rng(seed, "pictures"))


@pytest.mark.parametrize("channels", [1, 3])
def test_outlines_are_those_of_scipy(channels):
    images = pictures(channels=channels)
    found = sobel(images)
    assert found.shape == (3, channels, 9, 11)
    for image, outlines in zip(images.numpy().astype(float), found.numpy(), strict=True):
        gray = image @ [0.299, 0.587, 0.114] if channels == 3 else image[..., 0]
        magnitude = np.hypot(ndimage.sobel(gray, 0, mode="nearest"), ndimage.sobel(gray, 1, mode="nearest"))
        for plane in outlines:
            np.testing.assert_allclose(plane, magnitude / magnitude.max(), atol=1e-5)


def test_an_edge_by_hand():
    image = torch.zeros(1, 4, 4, 1, dtype=torch.uint8)
    image[:, :, 2:] = 10  # an upright edge: 0 0 10 10 in every row
    expected = torch.tensor([0.0, 1.0, 1.0, 0.0]).expand(4, 4)
    torch.testing.assert_close(sobel(image)[0, 0], expected)


def test_outlines_do_not_depend_on_brightness_or_contrast_and_a_plain_image_has_none():
    image = pictures(channels=1) // 4
    torch.testing.assert_close(sobel(image), sobel(image * 2 + 60))
    plain = torch.tensor([13, 201, 77], dtype=torch.uint8).expand(2, 5, 5, 3)
    assert not sobel(plain).any()
    whole = sobel(pictures())
    assert float(whole.min()) >= 0
    assert whole.amax(dim=(1, 2, 3)).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_the_style_loss_is_that_of_a_naive_implementation(temperature):
    z = torch.randn(10, 4, generator=torch_rng(0, "z"), dtype=torch.float64, requires_grad=False)
    torch.testing.assert_close(style_info_nce(z, temperature), naive_style_loss(z, temperature))
    torch.testing.assert_close(style_info_nce(3 * z, temperature), style_info_nce(z, temperature))


def test_the_style_loss_by_hand_and_its_least_value():
    apart = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
    # Each row: one positive at cos 1, two negatives at cos −1; τ = 1.
    expected = -1 + np.log(np.e + 2 / np.e)
    assert float(style_info_nce(apart, 1.0)) == pytest.approx(expected, abs=1e-6)
    mixed = apart[[0, 2, 1, 3]]
    assert float(style_info_nce(mixed, 1.0)) > float(style_info_nce(apart, 1.0))
    assert float(style_info_nce(apart, 0.07)) == pytest.approx(0.0, abs=1e-6)


def test_its_gradient_is_finite():
    z = torch.randn(6, 4, generator=torch_rng(0, "z"), requires_grad=True)
    style_info_nce(z, 0.07).backward()
    assert bool(z.grad.isfinite().all())
    assert bool(z.grad.any())


def test_style_views_are_the_image_and_its_outlines_normalized_alike():
    images = pictures()
    views = StyleViews(Views(build_recipe("simclr"), (9, 11), 3, mean=0.4, std=0.2))
    as_it_is, outlines = views(images)
    torch.testing.assert_close(as_it_is, (images.permute(0, 3, 1, 2) / 255 - 0.4) / 0.2)
    torch.testing.assert_close(outlines, (sobel(images) - 0.4) / 0.2)


def test_style_features_are_those_of_the_client_in_evaluation_mode():
    x = pictures(count=7)
    encoder = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten())
    encoder(torch.randn(5, 3, 9, 11))  # statistics that are not those of any batch below
    images = ClientImages(x, None, torch.tensor([6, 0, 0, 3]), Shift(), 0, 1)
    views = StyleViews(Views(build_recipe("simclr"), (9, 11), 3, mean=0.5, std=0.25))
    encoder.train()
    found = style_features(encoder, images, views, torch.device("cpu"))
    encoder.eval()
    for kind, view in enumerate(views(x[[6, 0, 0, 3]])):
        torch.testing.assert_close(found[:, kind], encoder(view))


def test_personal_features_by_hand():
    content, style = nn.Flatten(), nn.Sequential(nn.Flatten(), nn.ReLU())
    generator = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        generator.weight.copy_(torch.tensor([[1.0, 0.0, 10.0, 0.0], [0.0, 1.0, 0.0, 100.0]]))
    images = torch.tensor([[-1.0, 2.0]])
    both = ConcatenatedFeatures(content, style)(images)
    assert both.tolist() == [[-1.0, 2.0, 0.0, 2.0]]
    # h_c + (h_c + (10, 100)·h_s)
    assert Stylize(generator)(both).tolist() == [[-2.0, 204.0]]


def test_the_generator_gives_features_of_the_encoders_width():
    assert build_generator(6, 5)(torch.randn(3, 12)).shape == (3, 6)
