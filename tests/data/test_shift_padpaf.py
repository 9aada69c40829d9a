"""The client transforms of PaDPaF are torchvision's, with the same parameters."""

from __future__ import annotations

import math

import pytest
import torch
from torchvision.transforms import functional as TF
from torchvision.transforms import transforms as T

from fedssl.data import SHIFTS, shift_padpaf
from fedssl.data.shift_padpaf import CIFARStyles, MNISTStyles, NewStyles, between, uniforms
from fedssl.options import choose


def smooth(count: int, side: int, channels: int, seed: int = 0) -> torch.Tensor:
    """Images that look like images: noise, blurred. Each differs from the others."""
    rng = torch.Generator().manual_seed(seed)
    planes = torch.rand(count, channels, side // 4, side // 4, generator=rng)
    planes = torch.nn.functional.interpolate(planes, (side, side), mode="bicubic").clamp(0, 1)
    return (planes * 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


MNIST, CIFAR = smooth(6, 28, 1), smooth(6, 32, 3, seed=1)


def planes(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 3, 1, 2)


def same(ours: torch.Tensor, theirs: torch.Tensor, most: int = 0) -> None:
    """Ours NHWC, torchvision's NCHW; they may differ by a rounding."""
    difference = (planes(ours).int() - theirs.int()).abs()
    assert int(difference.max()) <= most


def mnist(client: int) -> torch.Tensor:
    return MNISTStyles().apply(MNIST, client, 8)


def cifar(client: int) -> torch.Tensor:
    return CIFARStyles().apply(CIFAR, client, 10)


def test_deterministic_transforms_equal_torchvision():
    x, y = planes(MNIST), planes(CIFAR)
    same(mnist(0), TF.resize(TF.center_crop(x, 22), [28, 28], antialias=True))
    same(mnist(1), TF.resize(TF.pad(x, 14), [28, 28], antialias=True))
    same(mnist(2), T.RandomInvert(p=1.0)(x))
    same(mnist(4), T.RandomHorizontalFlip(p=1.0)(x))
    same(mnist(5), T.RandomVerticalFlip(p=1.0)(x))
    same(cifar(0), TF.resize(TF.center_crop(y, 22), [32, 32], antialias=True))
    same(cifar(1), T.RandomInvert(p=1.0)(y))
    same(cifar(3), T.Grayscale(3)(y))
    same(cifar(4), T.RandomVerticalFlip(p=1.0)(y))


def test_blur_with_each_images_own_sigma():
    for x in (MNIST, CIFAR):
        sigma = between(uniforms(x, 1), 0.1, 2.0)[:, 0]
        for own, image, s in zip(shift_padpaf.blur(x), planes(x), sigma, strict=True):
            same(own[None], TF.gaussian_blur(image[None], [5, 5], [float(s)] * 2), most=1)


def test_brightness_with_each_images_own_factor():
    factor = between(uniforms(CIFAR, 1), 0.2, 1.8)[:, 0]
    for own, image, f in zip(cifar(5), planes(CIFAR), factor, strict=True):
        same(own[None], TF.adjust_brightness(image[None], float(f)))
    assert torch.equal(mnist(7), shift_padpaf.brightness(MNIST))


def test_rotation_with_each_images_own_angle():
    angle = between(uniforms(MNIST, 1), -40, 40)[:, 0]
    for own, image, degrees in zip(mnist(6), planes(MNIST), angle, strict=True):
        theirs = TF.rotate(image[None], float(degrees), fill=[0.0])
        # A pixel that falls between two may go either way.
        assert ((planes(own[None]) != theirs).float().mean()) < 0.005


def test_affine_with_each_images_own_parameters():
    for x in (smooth(6, 28, 1), smooth(6, 24, 3)[:, :20]):
        height, width = x.shape[1:3]
        angle, right, down, scale = uniforms(x, 4).T
        angle, scale = between(angle, 30, 70), between(scale, 0.5, 0.75)
        right = between(right, -0.1 * width, 0.1 * width).round()
        down = between(down, -0.3 * height, 0.3 * height).round()
        for i, own in enumerate(NewStyles().apply(x, 0, 3)):
            shift = [int(right[i]), int(down[i])]
            theirs = TF.affine(planes(x)[i, None], float(angle[i]), shift, float(scale[i]), [0.0], fill=[0.0])
            assert ((planes(own[None]) != theirs).float().mean()) < 0.01


def test_perspective_with_each_images_own_corners():
    inward = (uniforms(CIFAR, 8).view(-1, 4, 2) * 7).floor()  # int(0.4 · 16) = 6 pixels at most
    starts = [[0, 0], [31, 0], [31, 31], [0, 31]]
    signs = torch.tensor([[1, 1], [-1, 1], [-1, -1], [1, -1]])
    for own, image, moved in zip(cifar(6), planes(CIFAR), inward, strict=True):
        ends = (torch.tensor(starts) + moved * signs).int().tolist()
        theirs = TF.perspective(image[None], starts, ends, fill=None)
        same(own[None], theirs, most=1)
    params = [T.RandomPerspective.get_params(32, 32, 0.4)[1] for _ in range(300)]
    reach = torch.tensor(params) - torch.tensor(starts)
    assert int(reach.abs().max()) == 6


def test_solarize_takes_half_of_the_images():
    x = smooth(400, 8, 1)
    done = shift_padpaf.solarize(x)
    inverted = TF.solarize(planes(x), 192.0).permute(0, 2, 3, 1)
    bright = (x >= 192).flatten(1).any(1)
    changed = (done != x).flatten(1).any(1)
    assert torch.equal(done[changed], inverted[changed])
    assert 0.4 < float(changed[bright].float().mean()) < 0.6


def test_color_transforms_follow_the_papers_code():
    add, times = uniforms(CIFAR, 6).float().view(6, 2, 3, 1, 1).unbind(1)
    unit = T.Normalize([0.5], [0.5])(planes(CIFAR).float() / 255)
    colored = (unit + 0.5 * add) * times
    for client, values in ((8, colored), (9, T.Normalize([0.5], [0.5])(colored))):
        same(cifar(client), ((values.clip(-1, 1) + 1) * 127.5).round().to(torch.uint8), most=1)


def test_erasing_is_as_torchvision_draws_it():
    x = torch.full((2000, 28, 28, 1), 255, dtype=torch.uint8)
    x[:, 0, 0, 0] = (torch.arange(2000) % 251).to(torch.uint8)  # 2000 images that differ
    x[:, 0, 1, 0] = (torch.arange(2000) // 251).to(torch.uint8)
    hidden = (NewStyles().apply(x, 2, 3)[:, :, :, 0] == 0) & (x[:, :, :, 0] != 0)
    area = hidden[:, 1:].sum((1, 2)) / 784
    torch.manual_seed(0)
    drawn = [T.RandomErasing.get_params(torch.empty(1, 28, 28), (0.02, 0.1), (0.3, 3.3)) for _ in range(2000)]
    theirs = torch.tensor([h * w / 784 for _, _, h, w, _ in drawn])
    assert float(area.mean()) == pytest.approx(float(theirs.mean()), abs=0.004)
    rows = hidden.any(2).sum(1).float()
    assert float(rows.mean()) == pytest.approx(sum(h for _, _, h, _, _ in drawn) / 2000, abs=0.3)
    for image in hidden[:20]:  # a rectangle
        height, width = int(image.any(1).sum()), int(image.any(0).sum())
        assert int(image.sum()) in (height * width, height * width - 1)


def test_draws_are_uniform_independent_and_the_images_own():
    x = smooth(4000, 8, 1, seed=3)
    u = uniforms(x, 4)
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    assert u.mean(0).tolist() == pytest.approx([0.5] * 4, abs=0.03)
    assert u.std(0).tolist() == pytest.approx([math.sqrt(1 / 12)] * 4, abs=0.02)
    off = torch.corrcoef(u.T) - torch.eye(4)
    assert float(off.abs().max()) < 0.06
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    assert torch.equal(uniforms(x[order], 4), u[order])
    assert len(u[:, 0].unique()) == len(x)
    near = x[:1].repeat(2, 1, 1, 1)
    near[1, 3, 3, 0] ^= 1
    a, b = uniforms(near, 1)[:, 0].tolist()
    assert a != pytest.approx(b, abs=1e-6)


@pytest.mark.parametrize("name", ["padpaf-mnist", "padpaf-cifar10", "padpaf-new"])
@pytest.mark.parametrize("shape", [(3, 8, 8, 1), (3, 28, 28, 1), (2, 32, 32, 3), (1, 5, 7, 3), (0, 8, 8, 1)])
def test_shape_type_and_input_are_kept(name, shape):
    shift = choose(SHIFTS, {"name": name}, "shift")
    x = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    for client in range(len(type(shift).transforms)):
        moved = shift.apply(x, client, 99)
        assert (moved.shape, moved.dtype) == (x.shape, torch.uint8)
        assert torch.equal(moved, shift.apply(x, client + len(type(shift).transforms), 99))
    assert torch.equal(x, before)
