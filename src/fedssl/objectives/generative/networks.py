"""The networks of the GAN and the VAE (PaDPaF, appendix B).

Sides: a trunk halves the image until it is at most 8 pixels wide, a generator doubles it from at most 7.
With `patch` above 1 both see blocks of so many pixels a side as channels of one, which costs little and
saves most of the time.

Where the paper gives no details, the networks follow its authors' code: LeakyReLU and average pooling in
discriminators, noise before every normalisation of the generator, Xavier initialization, and a projector
with spectral and batch normalisation.
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

LARGEST = 16  # side of the smallest feature map; more, and its first linear layer is most of the model
NARROWEST = 8  # channels
STYLE_LAYERS = 8
LEAK = 0.01  # slope of the discriminators' LeakyReLU below 0

# Normalises a feature map: told which of the generator's layers it is.
Normalise = Callable[[int, Tensor], Tensor]


def sides(side: int, most: int) -> list[int]:
    """side, side / 2, … until at most `most`."""
    found = [side]
    while found[-1] > most and found[-1] % 2 == 0:
        found.append(found[-1] // 2)
    if found[-1] > LARGEST:
        raise ConfigError(
            f"images of {side} pixels a side can be halved to {found[-1]} only, and a generator begins with "
            f"at most {LARGEST}: set data.size to a multiple of 4 or more (28, 32, 64)"
        )
    return found


def widths(features: int, growth: int, levels: int) -> list[int]:
    """Channels from the largest map to the smallest, which has `features`."""
    return [max(NARROWEST, features // growth**level) for level in reversed(range(levels))]


# --- discriminators -------------------------------------------------------------------------------


class Convolution(nn.Conv2d):
    """A convolution of an odd kernel that keeps the size of the image."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__(inputs, outputs, kernel, padding=kernel // 2)
        nn.init.xavier_uniform_(self.weight)


class Down(nn.Module):
    """A residual block of an encoder; `halve` pools its output, `first` leaves pixels as they are."""

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
        # Pooling and a 1×1 convolution can change places: the smaller map is the cheaper one.
        x = self.shortcut(F.avg_pool2d(x, 2) if self.halve else x)
        return x + (F.avg_pool2d(y, 2) if self.halve else y)


class Trunk(nn.Module):
    """The features φ(x) of a discriminator: spectrally normalised residual blocks, averaged over pixels."""

    canvas: Canvas  # what the generator beside it draws on; set on the trunk of content
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
    """The features of a VAE's encoder: plain residual blocks, then a linear layer that knows places."""

    conv = Convolution

    def __init__(
        self, side: int, channels: int, features: int, growth: int = 1, blocks: int = 2, patch: int = 1
    ) -> None:
        super().__init__(side, channels, features, growth, blocks, patch)
        self.linear = nn.Linear(features * self.smallest**2, features)

    def forward(self, images: Tensor) -> Tensor:
        return F.leaky_relu(self.linear(self.maps(images).flatten(1)), LEAK)


class Critic(nn.Module):
    """ψ(φ), and of a conditional one + yᵀVφ: the projection discriminator (Eq. 5)."""

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
    """From features to where Barlow Twins compares them: one hidden layer with ReLU, or none.

    Linear layers are spectrally normalised, and each is followed by batch normalisation.
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
    """The private style map z^s → s: eight equalised linear layers (Karras et al. 2019)."""

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

    def forward(self, x: Tensor, normalise: Normalise) -> Tensor:
        y = F.relu(normalise(self.layer, x))
        y = self.conv1(F.interpolate(y, scale_factor=2))
        y = self.conv2(F.relu(normalise(self.layer + 1, y)))
        out: Tensor = y + F.interpolate(self.shortcut(x), scale_factor=2)
        return out


class Generator(nn.Module):
    """The shared content generator: a ResNet whose normalisation comes from outside, with the style.

    With `classes`, the content latent is augmented by a vector of the same length for the label (§4.2).
    With `noise`, noise of this deviation, one number for each pixel, is added to all channels before every
    normalisation while the generator trains; how much of it a channel takes is learned.
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
        if self.labels is not None:  # weaker than z^c, which would otherwise not be listened to
            nn.init.normal_(self.labels.weight, std=0.5)
        levels = sides(side // patch, 7)
        wide = widths(features, growth, len(levels))[::-1]
        self.patch, self.base, self.features = patch, levels[-1], features
        self.linear = nn.Linear(2 * latent if classes else latent, features * self.base**2)
        nn.init.xavier_uniform_(self.linear.weight)
        self.blocks = nn.ModuleList(Up(a, b, 2 * i) for i, (a, b) in enumerate(pairwise(wide)))
        self.pixels = Convolution(wide[-1], channels * patch**2, 3)
        # Channels of what is normalised, layer by layer: twice in every block, and once before the pixels.
        self.normalised = [width for pair in pairwise(wide) for width in pair] + [wide[-1]]
        self.noise = noise
        self.scales = nn.ParameterList(torch.ones(width, 1, 1) for width in self.normalised if noise)

    def forward(
        self,
        z: Tensor,
        normalise: Normalise,
        labels: Tensor | None = None,
        rng: torch.Generator | None = None,
    ) -> Tensor:
        """Images from −1 to 1; without `rng` there is no noise."""
        if self.labels is not None and labels is not None:
            z = torch.cat((z, self.labels(labels)), dim=1)
        if self.noise and rng is not None:
            normalise = self._with_noise(normalise, rng)
        x = self.linear(z).view(len(z), self.base, self.base, self.features).permute(0, 3, 1, 2)
        for block in self.blocks:
            x = block(x, normalise)
        x = self.pixels(F.relu(normalise(len(self.normalised) - 1, x)))
        return torch.tanh(F.pixel_shuffle(x, self.patch) if self.patch > 1 else x)

    def _with_noise(self, normalise: Normalise, rng: torch.Generator) -> Normalise:
        def noisy(layer: int, x: Tensor) -> Tensor:
            drawn = torch.randn(len(x), 1, *x.shape[2:], generator=rng).to(x)
            return normalise(layer, torch.addcmul(x, self.scales[layer], drawn, value=self.noise))

        return noisy


class Modulation(nn.Module):
    """The private half of conditional batch normalisation: statistics, and maps from style to gain and bias.

    Of a conditional generator, the second half of the channels is left to the label (appendix B).
    """

    def __init__(self, normalised: list[int], style: int, conditional: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(width, affine=False) for width in normalised)
        self.widths = [style_channels(width, conditional) for width in normalised]
        self.maps = nn.Linear(style, 2 * sum(self.widths))
        # Begins near gain 1 and bias 0, but not at it: a style without any effect would take long to get one.
        nn.init.normal_(self.maps.weight, std=0.5 * style**-0.5)
        nn.init.zeros_(self.maps.bias)

    def forward(self, style: Tensor) -> list[Tensor]:
        """Gain − 1 and bias of every layer: [B, 2, its channels]."""
        return _by_layer(self.maps(style), self.widths)


class LabelModulation(nn.Module):
    """Gain and bias of the channels that are conditioned on the label."""

    def __init__(self, normalised: list[int], classes: int) -> None:
        super().__init__()
        self.widths = [width - style_channels(width, conditional=True) for width in normalised]
        self.maps = nn.Embedding(classes, 2 * sum(self.widths))
        nn.init.normal_(self.maps.weight, std=0.5)

    def forward(self, labels: Tensor) -> list[Tensor]:
        return _by_layer(self.maps(labels), self.widths)


def style_channels(width: int, conditional: bool) -> int:
    """How many channels the style conditions; the label has the rest."""
    return width - width // 2 if conditional else width


def _by_layer(values: Tensor, wide: list[int]) -> list[Tensor]:
    parts = torch.split(values, [2 * width for width in wide], dim=1)
    return [part.view(len(values), 2, width) for part, width in zip(parts, wide, strict=True)]


def conditional_norm(norms: nn.ModuleList, by_style: list[Tensor], by_label: list[Tensor]) -> Normalise:
    """Batch normalisation, then the gain and bias that the style (and the label) ask for."""

    def normalise(layer: int, x: Tensor) -> Tensor:
        wanted = by_style[layer]
        if by_label:
            wanted = torch.cat((wanted, by_label[layer]), dim=2)
        gain, bias = wanted[..., None, None].unbind(1)
        return torch.addcmul(bias, norms[layer](x), 1 + gain)

    return normalise
