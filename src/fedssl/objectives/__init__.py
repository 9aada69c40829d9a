"""What local training minimises: one file each."""

from fedssl.registry import Registry

OBJECTIVES = Registry(
    "objective",
    {
        "simclr": "fedssl.objectives.simclr:SimCLR",
        "moco-v1": "fedssl.objectives.moco:MoCoV1",
        "moco-v2": "fedssl.objectives.moco:MoCoV2",
        "simsiam": "fedssl.objectives.simsiam:SimSiam",
        "byol": "fedssl.objectives.byol:BYOL",
        "barlow-twins": "fedssl.objectives.barlow_twins:BarlowTwins",
        "mae": "fedssl.objectives.mae:MAE",
        "supervised": "fedssl.objectives.supervised:Supervised",
        "gan": "fedssl.generative.gan:GAN",
        "conditional-gan": "fedssl.generative.gan:ConditionalGAN",
        "linear-gan": "fedssl.generative.linear:LinearGAN",
        "vae": "fedssl.generative.vae:VAE",
    },
    base="fedssl.objectives.objective:Objective",
)
