"""The federated methods: one file each."""

from fedssl.registry import Registry

METHODS = Registry(
    "method",
    {
        "fedavg": "fedssl.methods.fedavg:FedAvg",
        "standalone": "fedssl.methods.standalone:Standalone",
        "centralized": "fedssl.methods.centralized:Centralized",
    },
)
