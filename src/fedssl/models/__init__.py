"""Encoders, heads, and the model of named parts."""

from fedssl.registry import Registry

# Each entry is a function (config, size, channels) -> Encoder; `timm:NAME` is also accepted.
ENCODERS = Registry(
    "encoder",
    {
        "resnet8": "fedssl.models.encoders:resnet8",
        "resnet18": "fedssl.models.encoders:resnet18",
        "resnet50": "fedssl.models.encoders:resnet50",
        "vit_tiny": "fedssl.models.encoders:vit_tiny",
        "vit_small": "fedssl.models.encoders:vit_small",
    },
    parameters=("config", "size", "channels"),
)
