"""The federated methods: one file each."""

from fedssl.registry import Registry

METHODS = Registry(
    "method",
    {
        "fedavg": "fedssl.methods.fedavg:FedAvg",
        "standalone": "fedssl.methods.standalone:Standalone",
        "centralized": "fedssl.methods.centralized:Centralized",
        "fedema": "fedssl.methods.fedema:FedEMA",
        "fedu": "fedssl.methods.fedu:FedU",
        "constant-mu": "fedssl.methods.constant_mu:ConstantMu",
    },
)
