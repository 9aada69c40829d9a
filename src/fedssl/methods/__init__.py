"""The federated methods: one file each."""

from fedssl.registry import Registry

METHODS = Registry(
    "method",
    {
        "fedavg": "fedssl.methods.fedavg:FedAvg",
        "relay": "fedssl.methods.relay:Relay",
        "fedbn": "fedssl.methods.fedbn:FedBN",
        "featarc": "fedssl.methods.featarc:FeatARC",
        "standalone": "fedssl.methods.standalone:Standalone",
        "centralized": "fedssl.methods.centralized:Centralized",
        "fedprox": "fedssl.methods.fedprox:FedProx",
        "fedper": "fedssl.methods.fedper:FedPer",
        "fedrep": "fedssl.methods.fedrep:FedRep",
        "ditto": "fedssl.methods.ditto:Ditto",
        "apfl": "fedssl.methods.apfl:APFL",
        "fedstyle": "fedssl.methods.fedstyle:FedStyle",
        "padpaf": "fedssl.methods.padpaf:PaDPaF",
        "padpaf-shared": "fedssl.methods.padpaf_ablations:PaDPaFShared",
        "padpaf-alone": "fedssl.methods.padpaf_ablations:PaDPaFAlone",
        "padpaf-ditto": "fedssl.methods.padpaf_ditto:PaDPaFDitto",
        "feddecorr": "fedssl.methods.feddecorr:FedDecorr",
        "fedsc": "fedssl.methods.fedsc:FedSC",
        "fedx": "fedssl.methods.fedx:FedX",
        "ssd": "fedssl.methods.ssd:SSD",
        "user-verification": "fedssl.methods.user_verification:UserVerification",
        "fedema": "fedssl.methods.fedema:FedEMA",
        "fedu": "fedssl.methods.fedu:FedU",
        "constant-mu": "fedssl.methods.constant_mu:ConstantMu",
    },
    base="fedssl.methods.method:Method",
)
