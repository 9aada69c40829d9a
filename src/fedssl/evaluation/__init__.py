"""Evaluation of encoders: kNN, linear probes, fine-tuning, detection."""

from fedssl.registry import Registry

PROTOCOLS = Registry(
    "protocol",
    {
        "knn": "fedssl.evaluation.protocols:KNN",
        "linear": "fedssl.evaluation.protocols:Linear",
        "semi": "fedssl.evaluation.protocols:Semi",
        "transfer": "fedssl.evaluation.protocols:Transfer",
        "local": "fedssl.evaluation.local:Local",
        "drift": "fedssl.evaluation.drift:Drift",
        "generalization": "fedssl.evaluation.styles:Generalization",
        "personal": "fedssl.evaluation.styles:Personal",
        "style": "fedssl.evaluation.style_features:Style",
        "backdoor": "fedssl.evaluation.backdoor:BackdoorSuccess",
        "detection": "fedssl.evaluation.detection:Detection",
    },
    base="fedssl.evaluation.protocol:Protocol",
)
