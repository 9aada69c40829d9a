"""Engines, which run the round loop, and the state of runs on disk."""

from fedssl.registry import Registry

ENGINES = Registry(
    "engine",
    {
        "local": "fedssl.engines.local:Local",
        "flower": "fedssl.engines.flower.engine:Flower",
        "gossip": "fedssl.engines.gossip:Gossip",
    },
    base="fedssl.engines.engine:Engine",
)
