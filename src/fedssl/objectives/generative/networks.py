"""The networks of the GAN and the VAE (PaDPaF, appendix B).

An encoder halves the image until its side is at most 8 pixels; a generator starts from at most 7 and
doubles it. With `patch` above 1, blocks of patch × patch pixels are folded into channels, which is several
times faster at little loss of quality.

Where the paper gives no details, the networks follow the authors' code: LeakyReLU and average pooling in
discriminators, noise before every normalization of the generator, Xavier initialization, and a projector
with spectral and batch normalization.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.errors import ConfigError
from fedssl.models.options import ModelConfig
from fedssl.objectives.generative.canvas import Canvas
from fedssl.objectives.generative.layers import EqualLinear, SpectralConv, SpectralEmbedding, SpectralLinear

MAX_BASE = 16  # side of the smallest feature map; the generator's first linear layer grows with its square
MIN_CHANNELS = 8
STYLE_LAYERS = 8
LEAK = 0.01  # negative slope of the discriminators' LeakyReLU

# Normalizes a feature map, given the index of the generator's layer.
Normalize = Callable[[int, Tensor], Tensor]


def sides(side: int, most: int) -> list[int]:
    """The sides of the feature maps: side, side / 2, … down to at most `most`."""
    found = [side]
    while found[-1] > most and found[-1] % 2 == 0:
        found.append(found[-1] // 2)
    if found[-1] > MAX_BASE:
        raise ConfigError(
            f"images of side {side} can only be halved to {found[-1]}, but a generator starts from at most "
            f"{MAX_BASE}: set data.size to a multiple of 4 or more (28, 32, 64)"
        )
    return found


def widths(features: int, growth: int, levels: int) -> list[int]:
    """Channels of the feature maps from the largest to the smallest, which has `features`."""
    return [max(MIN_CHANNELS, features // growth**level) for level in reversed(range(levels))]


# --- discriminators -------------------------------------------------------------------------------


class Convolution(nn.Conv2d):
    """A convolution of an odd kernel that keeps the size of the image."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__(inputs, outputs, kernel, padding=kernel // 2)
        nn.init.xavier_uniform_(self.weight)


class Down(nn.Module):
    """A residual block of an encoder; `halve` pools its output, `first` omits the activation of its input."""

    def __init__(
        self, conv: type[SpectralConv | Convolution], inputs: int, outputs: int, halve: bool, first: bool
    ) -> None:
        super().__init__()
        self.halve, self.first = halve, first
        self.conv1, self.conv2 = conv(inputs, outputs, 3), conv(outputs, outputs, 3)
        self.shortcut = nn.Identity() if inputs == outputs else conv(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x if self.first else F.leaky_relu(x, LEAK))
        y = self.conv2(F.leaky_relu(y, LEAK))
        # Pooling commutes with a 1×1 convolution; convolving the smaller map is cheaper.
        x = self.shortcut(F.avg_pool2d(x, 2) if self.halve else x)
        return x + (F.avg_pool2d(y, 2) if self.halve else y)


class Trunk(nn.Module):
    """The features φ(x) of a discriminator: spectrally normalized residual blocks, averaged over pixels."""

    canvas: Canvas  # of the model's generator; set on the content encoder only
    conv: type[SpectralConv | Convolution] = SpectralConv

    def __init__(
        self, side: int, channels: int, features: int, growth: int = 1, blocks: int = 2, patch: int = 1
    ) -> None:
        super().__init__()
        self.patch = patch
        if side % patch:
            raise ConfigError(f"objective.patch={patch} does not divide images of {side} pixels a side")
        levels = sides(side // patch, 8)
        halve, self.smallest = len(levels) > 1, levels[-1]
        halving = max(1, len(levels) - 1)
        wide = widths(features, growth, halving + (blocks > 0))[:halving]
        chain = [channels * patch**2, *wide, *[features] * blocks]
        self.body = nn.Sequential(
            *(
                Down(type(self).conv, a, b, halve=halve and index < len(wide), first=index == 0)
                for index, (a, b) in enumerate(pairwise(chain))
            )
        )

    def maps(self, images: Tensor) -> Tensor:
        x = F.pixel_unshuffle(images, self.patch) if self.patch > 1 else images
        return F.leaky_relu(self.body(x), LEAK)

    def forward(self, images: Tensor) -> Tensor:
        return self.maps(images).mean((2, 3))


class FlatTrunk(Trunk):
    """The features of a VAE's encoder: residual blocks, then a linear layer on the flattened map."""

    conv = Convolution

    def __init__(
        self, side: int, channels: int, features: int, growth: int = 1, blocks: int = 2, patch: int = 1
    ) -> None:
        super().__init__(side, channels, features, growth, blocks, patch)
        self.linear = nn.Linear(features * self.smallest**2, features)

    def forward(self, images: Tensor) -> Tensor:
        return F.leaky_relu(self.linear(self.maps(images).flatten(1)), LEAK)


class Critic(nn.Module):
    """ψ(φ), plus yᵀVφ if conditional: the projection discriminator (Eq. 5)."""

    def __init__(self, features: int, classes: int = 0) -> None:
        super().__init__()
        self.linear = SpectralLinear(features, 1)
        self.labels = SpectralEmbedding(classes, features) if classes else None

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        score: Tensor = self.linear(features).squeeze(1)
        if self.labels is not None and labels is not None:
            score = score + (self.labels(labels) * features).sum(1)
        return score


def build_projector(features: int, config: ModelConfig) -> nn.Module:
    """Build the projector for the Barlow Twins terms: one hidden layer with ReLU, or none.

    Linear layers are spectrally normalized, and each is followed by batch normalization.
    """
    hidden, outputs = config.projector_hidden, config.projector_out
    layers: list[nn.Module] = []
    if config.projector != "linear":
        layers += [
            SpectralLinear(features, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
        ]
        features = hidden
    layers += [SpectralLinear(features, outputs, bias=False), nn.BatchNorm1d(outputs, affine=False)]
    return nn.Sequential(*layers)


# --- generator ------------------------------------------------------------------------------------


class Vectorizer(nn.Module):
    """The private style map z^s → s: eight equalized linear layers (Karras et al. 2019)."""

    def __init__(self, latent: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EqualLinear(latent, latent) for _ in range(STYLE_LAYERS))

    def forward(self, z: Tensor) -> Tensor:
        z = z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-8)
        for layer in self.layers:
            z = F.leaky_relu(layer(z), 0.2)
        return z


class Up(nn.Module):
    """A residual block of a generator that doubles the image."""

    def __init__(self, inputs: int, outputs: int, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.conv1, self.conv2 = Convolution(inputs, outputs, 3), Convolution(outputs, outputs, 3)
        self.shortcut = nn.Identity() if inputs == outputs else Convolution(inputs, outputs, 1)

    def forward(self, x: Tensor, normalize: Normalize) -> Tensor:
        y = F.relu(normalize(self.layer, x))
        y = self.conv1(F.interpolate(y, scale_factor=2))
        y = self.conv2(F.relu(normalize(self.layer + 1, y)))
        out: Tensor = y + F.interpolate(self.shortcut(x), scale_factor=2)
        return out


class Generator(nn.Module):
    """The shared content generator: a ResNet whose normalization is passed to `forward` with the style.

    With `classes`, the content latent is concatenated with a label embedding of the same length (§4.2).
    With `noise`, one Gaussian number per pixel with this standard deviation is added to all channels before
    every normalization during training, scaled by a learned factor per channel.
    """

    def __init__(
        self,
        side: int,
        channels: int,
        features: int,
        latent: int,
        growth: int = 1,
        patch: int = 1,
        classes: int = 0,
        noise: float = 0.0,
    ) -> None:
        super().__init__()
        self.labels = nn.Embedding(classes, latent) if classes else None
        if self.labels is not None:  # smaller than z^c, which would otherwise be ignored
            nn.init.normal_(self.labels.weight, std=0.5)
        levels = sides(side // patch, 7)
        wide = widths(features, growth, len(levels))[::-1]
        self.patch, self.base, self.features = patch, levels[-1], features
        self.linear = nn.Linear(2 * latent if classes else latent, features * self.base**2)
        nn.init.xavier_uniform_(self.linear.weight)
        self.blocks = nn.ModuleList(Up(a, b, 2 * i) for i, (a, b) in enumerate(pairwise(wide)))
        self.pixels = Convolution(wide[-1], channels * patch**2, 3)
        # Channels of each normalization: two in every block, and one before the last convolution.
        self.norm_widths = [width for pair in pairwise(wide) for width in pair] + [wide[-1]]
        self.noise = noise
        self.scales = nn.ParameterList(torch.ones(width, 1, 1) for width in self.norm_widths if noise)

    def forward(
        self,
        z: Tensor,
        normalize: Normalize,
        labels: Tensor | None = None,
        rng: torch.Generator | None = None,
    ) -> Tensor:
        """Generate images in [−1, 1]; without `rng` no noise is added."""
        if self.labels is not None and labels is not None:
            z = torch.cat((z, self.labels(labels)), dim=1)
        if self.noise and rng is not None:
            normalize = self._with_noise(normalize, rng)
        x = self.linear(z).view(len(z), self.base, self.base, self.features).permute(0, 3, 1, 2)
        for block in self.blocks:
            x = block(x, normalize)
        x = self.pixels(F.relu(normalize(len(self.norm_widths) - 1, x)))
        return torch.tanh(F.pixel_shuffle(x, self.patch) if self.patch > 1 else x)

    def _with_noise(self, normalize: Normalize, rng: torch.Generator) -> Normalize:
        def noisy(layer: int, x: Tensor) -> Tensor:
            drawn = torch.randn(len(x), 1, *x.shape[2:], generator=rng).to(x)
            return normalize(layer, torch.addcmul(x, self.scales[layer], drawn, value=self.noise))

        return noisy


class Modulation(nn.Module):
    """The private part of conditional batch normalization: statistics, and maps from style to gain and bias.

    In a conditional generator, the second half of the channels is conditioned on the label (appendix B).
    """

    def __init__(self, norm_widths: list[int], style: int, conditional: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(width, affine=False) for width in norm_widths)
        self.widths = [style_channels(width, conditional) for width in norm_widths]
        self.maps = nn.Linear(style, 2 * sum(self.widths))
        # Start near gain 1 and bias 0 but not at it: a style without effect receives almost no gradient.
        nn.init.normal_(self.maps.weight, std=0.5 * style**-0.5)
        nn.init.zeros_(self.maps.bias)

    def forward(self, style: Tensor) -> list[Tensor]:
        """Gain − 1 and bias of every layer: [B, 2, its channels]."""
        return _by_layer(self.maps(style), self.widths)


class LabelModulation(nn.Module):
    """Gain and bias of the channels that are conditioned on the label."""

    def __init__(self, norm_widths: list[int], classes: int) -> None:
        super().__init__()
        self.widths = [width - style_channels(width, conditional=True) for width in norm_widths]
        self.maps = nn.Embedding(classes, 2 * sum(self.widths))
        nn.init.normal_(self.maps.weight, std=0.5)

    def forward(self, labels: Tensor) -> list[Tensor]:
        return _by_layer(self.maps(labels), self.widths)


def style_channels(width: int, conditional: bool) -> int:
    """The number of channels that the style conditions; the label conditions the rest."""
    return width - width // 2 if conditional else width


def _by_layer(values: Tensor, wide: list[int]) -> list[Tensor]:
    parts = torch.split(values, [2 * width for width in wide], dim=1)
    return [part.view(len(values), 2, width) for part, width in zip(parts, wide, strict=True)]


def conditional_norm(norms: nn.ModuleList, by_style: list[Tensor], by_label: list[Tensor]) -> Normalize:
    """Batch normalization followed by the gain and bias from the style (and the label)."""

    def normalize(layer: int, x: Tensor) -> Tensor:
        affine = by_style[layer]
        if by_label:
            affine = torch.cat((affine, by_label[layer]), dim=2)
        gain, bias = affine[..., None, None].unbind(1)
        return torch.addcmul(bias, norms[layer](x), 1 + gain)

    return normalize
