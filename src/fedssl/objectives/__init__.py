"""Training objectives: one file each."""

from fedssl.registry import Registry

OBJECTIVES = Registry(
    "objective",
    {
        "simclr": "fedssl.objectives.simclr:SimCLR",
        "dcl": "fedssl.objectives.dcl:DCL",
        "moco-v1": "fedssl.objectives.moco:MoCoV1",
        "moco-v2": "fedssl.objectives.moco:MoCoV2",
        "simsiam": "fedssl.objectives.simsiam:SimSiam",
        "byol": "fedssl.objectives.byol:BYOL",
        "align-uniform": "fedssl.objectives.align_uniform:AlignUniform",
        "vicreg": "fedssl.objectives.vicreg:VICReg",
        "sigreg": "fedssl.objectives.sigreg:SIGReg",
        "barlow-twins": "fedssl.objectives.barlow_twins:BarlowTwins",
        "dino": "fedssl.objectives.dino:DINO",
        "mae": "fedssl.objectives.mae:MAE",
        "simmim": "fedssl.objectives.simmim:SimMIM",
        "supervised": "fedssl.objectives.supervised:Supervised",
        "gan": "fedssl.objectives.generative.gan:GAN",
        "conditional-gan": "fedssl.objectives.generative.gan:ConditionalGAN",
        "linear-gan": "fedssl.papers.simpson.model:LinearGAN",
        "linear-regression": "fedssl.papers.simpson.regression:LinearRegression",
        "vae": "fedssl.objectives.generative.vae:VAE",
    },
    base="fedssl.objectives.objective:Objective",
)
