"""Residual networks for small images, tensor for tensor those of timm (and torchvision).

They are defined here because timm imports torchvision and torch's compiler, which takes longer (2.7 s) than
importing torch itself (2.0 s). `encoders.py` describes each one as a `timm.models.resnet.ResNet`, which loads
the weights and gives bit-identical features.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.models.pointwise import replace_narrow_strides


class Basic(nn.Module):
    """Two 3×3 convolutions and a shortcut (He et al. 2016, Fig. 5 left)."""

    expansion = 1
    inplace = True  # not if per-image gradients are needed (fedssl.privacy.example)

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=self.inplace)
        out = self.bn2(self.conv2(out))
        skip = x if self.downsample is None else self.downsample(x)
        out = out.add_(skip) if self.inplace else out + skip
        return F.relu(out, inplace=self.inplace)


class Bottleneck(nn.Module):
    """1×1, 3×3 (with the stride), 1×1, and a shortcut (Fig. 5 right)."""

    expansion = 4
    inplace = True

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=self.inplace)
        out = F.relu(self.bn2(self.conv2(out)), inplace=self.inplace)
        out = self.bn3(self.conv3(out))
        skip = x if self.downsample is None else self.downsample(x)
        out = out.add_(skip) if self.inplace else out + skip
        return F.relu(out, inplace=self.inplace)


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """The identity where shapes agree, else a strided 1×1 convolution."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """3×3 stem without max-pool, stages that double the width and halve the map, average pool."""

    inplace = True

    def __init__(
        self,
        block: type[Basic] | type[Bottleneck],
        depths: Sequence[int],
        width: int,
        channels: int,
        stem_stride: int,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stem_stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.stages = [f"layer{stage + 1}" for stage in range(len(depths))]
        inputs = width
        for stage, (name, depth) in enumerate(zip(self.stages, depths, strict=True)):
            blocks = []
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(block(inputs, width * 2**stage, stride))
                inputs = width * 2**stage * block.expansion
            self.add_module(name, nn.Sequential(*blocks))
        self.num_features = inputs
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        replace_narrow_strides(self)

    def forward_features(self, x: Tensor) -> Tensor:
        """The last feature map, before pooling."""
        x = F.relu(self.bn1(self.conv1(x)), inplace=self.inplace)
        for name in self.stages:
            x = self.get_submodule(name)(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(self.forward_features(x), 1).flatten(1)
