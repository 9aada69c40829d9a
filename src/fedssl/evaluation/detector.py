"""An encoder under torchvision's Mask R-CNN with a feature pyramid (He et al. 2017, Lin et al. 2017)."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedssl.errors import ConfigError
from fedssl.models.resnet import ResNet
from fedssl.normalization import Levels, per_channel

if TYPE_CHECKING:
    from fedssl.evaluation.options import DetectionConfig
    from fedssl.evaluation.scenes import Scenes

MAX_LEVELS = 4  # the coarsest feature maps, as in the papers
MIN_STRIDE = 2  # a pyramid level at full resolution costs more than it finds
ANCHOR = 8  # side of an anchor in multiples of the stride: 32 pixels at stride 4, as in the papers


@dataclass(frozen=True)
class Level:
    """One feature map that the pyramid is built from."""

    place: int  # among the encoder's maps
    stride: int
    channels: int


class Maps(nn.Module):
    """The feature maps of an encoder at several scales, from fine to coarse."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self._seen: list[Tensor] = []
        if isinstance(encoder, ResNet):
            for stage in encoder.stages:
                encoder.get_submodule(stage).register_forward_hook(self._see)
        elif not hasattr(encoder, "forward_intermediates"):
            raise ConfigError(
                f"detection needs feature maps at several scales, which {type(encoder).__name__} does not "
                "provide: use resnet8, resnet18, resnet50, or timm:NAME with forward_intermediates"
            )

    def _see(self, module: nn.Module, inputs: object, output: Tensor) -> None:
        self._seen.append(output)

    def forward(self, images: Tensor) -> list[Tensor]:
        encoder: Any = self.encoder
        if not isinstance(encoder, ResNet):
            found: list[Tensor] = encoder.forward_intermediates(images, intermediates_only=True)
            return found
        self._seen.clear()
        encoder.forward_features(images)
        maps = list(self._seen)
        self._seen.clear()
        return maps

    @torch.no_grad()
    def levels(self, channels: int) -> list[Level]:
        """The feature maps for a pyramid: one of each stride, at most four."""
        side = 128
        training = self.training
        try:
            maps = self.eval()(torch.zeros(1, channels, side, side, device=_device(self)))
        except (RuntimeError, AssertionError, ValueError) as error:
            raise ConfigError(
                f"detection needs an encoder for images of any size, but this {type(self.encoder).__name__} "
                f"accepts one size only ({str(error).splitlines()[0]})"
            ) from None
        finally:
            self.train(training)
        by_stride = {
            side // each.shape[-1]: Level(place, side // each.shape[-1], each.shape[1])
            for place, each in enumerate(maps)
        }
        levels = [level for stride, level in sorted(by_stride.items()) if stride >= MIN_STRIDE][-MAX_LEVELS:]
        if len(levels) < 2:
            raise ConfigError(
                f"detection needs feature maps at several scales, but {type(self.encoder).__name__} has "
                "one scale: use a convolutional encoder"
            )
        return levels


class Pyramid(nn.Module):
    """A feature pyramid network on an encoder's maps, with one additional coarser map."""

    def __init__(self, maps: Maps, levels: list[Level], width: int) -> None:
        from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelMaxPool

        super().__init__()
        self.maps, self.places, self.out_channels = maps, [level.place for level in levels], width
        self.fpn = FeaturePyramidNetwork(
            [level.channels for level in levels], width, extra_blocks=LastLevelMaxPool()
        )

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        maps = self.maps(images)
        named = OrderedDict((str(order), maps[place]) for order, place in enumerate(self.places))
        pyramid: dict[str, Tensor] = self.fpn(named)
        return pyramid


def build_detector(
    encoder: nn.Module, scenes: Scenes, config: DetectionConfig, channels: int, mean: Levels, std: Levels
) -> nn.Module:
    """Build Mask R-CNN on a copy of the encoder (Faster R-CNN for data without masks).

    The other weights are drawn from torch's global generator. Pixels are normalized as in pre-training.

    Args:
        encoder: the backbone.
        scenes: the training scenes, for the classes and the image size.
        config: the options of detection.
        channels: of the encoder's images.
        mean: of their normalization.
        std: of their normalization.
    """
    from torchvision.models.detection import FasterRCNN, MaskRCNN
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
    from torchvision.ops import MultiScaleRoIAlign

    maps = Maps(copy.deepcopy(encoder).requires_grad_(True))
    levels, width, classes = maps.levels(channels), config.width, len(scenes.classes) + 1
    names = [str(order) for order in range(len(levels))]
    common: dict[str, Any] = {
        "min_size": config.size or scenes.side,
        "max_size": config.max_size,
        "image_mean": per_channel(mean, channels),
        "image_std": per_channel(std, channels),
        "rpn_anchor_generator": _anchors([level.stride for level in levels]),
        "box_roi_pool": MultiScaleRoIAlign(names, output_size=7, sampling_ratio=2),
        "box_head": TwoMLPHead(width * 7**2, 4 * width),
        "box_predictor": FastRCNNPredictor(4 * width, classes),
        "box_batch_size_per_image": config.regions,
    }
    backbone = Pyramid(maps, levels, width)
    build: Callable[..., nn.Module] = FasterRCNN
    if scenes.has_masks:
        build = MaskRCNN
        common |= {
            "mask_roi_pool": MultiScaleRoIAlign(names, output_size=14, sampling_ratio=2),
            "mask_head": MaskRCNNHeads(width, (width,) * 4, dilation=1),
            "mask_predictor": MaskRCNNPredictor(width, width, classes),
        }
    return build(backbone, **common)


def _anchors(strides: list[int]) -> nn.Module:
    """Three aspect ratios at every position of every level, with the additional one."""
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    sides = [ANCHOR * stride for stride in (*strides, 2 * strides[-1])]
    anchors: nn.Module = AnchorGenerator(tuple((side,) for side in sides), ((0.5, 1.0, 2.0),) * len(sides))
    return anchors


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device
