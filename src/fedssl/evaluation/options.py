"""Config sections `probe`, `semi` and `detection`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from fedssl.options import Options

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fedssl.data.images import ImageSet
    from fedssl.data.options import DataConfig


class ProbeConfig(Options):
    every: int = Field(5, ge=0, description="rounds between kNN monitors; 0: only at the end")
    protocol: Literal["linear", "knn", "none"] = Field("linear", description="the final probe")
    limit: int = Field(0, ge=0, description="number of training images of the probes; 0: all")
    labels: float = Field(1.0, gt=0, le=1, description="share of the training labels that the probes use")
    recalibrate: bool | None = Field(
        None,
        description="recompute BatchNorm's statistics of the global encoder on the clients' images before it "
        "is probed or exported; none: if the aggregation rule scales weights",
    )
    at_sites: bool = Field(
        False,
        description="`fedssl server`: sites with labels probe the encoder on their own images and send the "
        "accuracies",
    )
    features: Literal["pooled", "map"] = Field(
        "pooled",
        description="knn, linear: pooled features, or the encoder's last feature map before pooling",
    )
    clients: int = Field(10, ge=1, description="largest number of personal encoders that are probed")
    local_epochs: float = Field(
        0.0,
        ge=0,
        description="personal: epochs of local training before a client's encoder is probed",
    )
    neighbours: int = Field(20, ge=1, description="k of the kNN monitor")
    temperature: float = Field(0.1, gt=0, description="T of the kNN weights exp(cos/T)")
    form: Literal["fast", "epochs"] = Field(
        "fast", description="linear: converged logistic regression, or the papers' epochs and optimizer"
    )
    l2: float = Field(1e-3, gt=0, description="linear, fast: penalty on the weights of standardized features")
    epochs: int = Field(200, ge=1, description="linear, form=epochs: number of epochs")
    batch_size: int = Field(512, ge=2, description="linear, form=epochs: batch size")
    lr: float = Field(3e-3, gt=0, description="linear, form=epochs: learning rate")
    optimizer: Literal["adam", "sgd"] = Field("adam", description="linear, form=epochs: optimizer")
    milestones: tuple[int, ...] = Field(
        (), description="linear, form=epochs: epochs after which the learning rate is ×0.1"
    )

    def at_site(
        self,
        encoder: nn.Module,
        untrained: nn.Module | None,
        images: ImageSet,
        data: DataConfig,
        device: torch.device,
        seed: int,
    ) -> dict[str, float]:
        """Probes on a site's own images (`fedssl.evaluation.sites.probe_own_images`)."""
        from fedssl.evaluation.sites import probe_own_images

        return probe_own_images(encoder, untrained, images, self, data, device, seed)


class SemiConfig(Options):
    """`fedssl eval --protocol semi`: fine-tuning of the whole model on few labels (FedEMA, appendix B.3)."""

    labels: float = Field(
        0.0, ge=0, lt=1, description="labeled share of the training images; 0: data.holdout"
    )
    hidden: int = Field(512, ge=1, le=1 << 16, description="hidden width of the new two-layer head")
    epochs: int = Field(100, ge=1, description="epochs of fine-tuning")
    batch_size: int = Field(128, ge=2, description="batch size of fine-tuning")
    lr: float = Field(1e-3, gt=0, description="learning rate of Adam")


class DetectionConfig(Options):
    """`fedssl eval --protocol detection`: the encoder under Mask R-CNN with FPN (Dec-SSL, section 3.1)."""

    data: Literal["shapes", "npz", "coco", "pennfudan"] = Field(
        "shapes", description="images with boxes and masks; shapes is synthetic, npz has boxes only"
    )
    root: str = Field(
        "",
        description="npz: NAME_train.npz (a bare name: next to data.root); coco, pennfudan: the folder",
    )
    images: str = Field("train2017", description="coco: the folder of training images in root")
    annotations: str = Field(
        "annotations/instances_train2017.json", description="coco: the annotations of training images"
    )
    test_images: str = Field("val2017", description="coco: the folder of test images in root")
    test_annotations: str = Field(
        "annotations/instances_val2017.json",
        description="coco: annotations of test images; empty: split off training images",
    )
    test_fraction: float = Field(0.2, gt=0, lt=1, description="test share of data without a test split")
    limit: int = Field(0, ge=0, description="number of training images; 0: all (shapes: 300)")
    test_limit: int = Field(0, ge=0, description="number of test images; 0: all (shapes: 100)")
    labels: float = Field(1.0, gt=0, le=1, description="share of the training images that is labeled")
    size: int = Field(
        0, ge=0, le=16384, description="shorter side in pixels; 0: unchanged, at most 800 (shapes: 96)"
    )
    max_size: int = Field(1333, ge=1, le=16384, description="longer side in pixels, at most")
    width: int = Field(
        256, ge=4, le=8192, description="channels of FPN and heads; fully connected layers: 4 times"
    )
    regions: int = Field(
        512, ge=1, le=1 << 16, description="regions per image that the heads are trained on in a step"
    )
    steps: int = Field(
        500, ge=1, description="steps of fine-tuning; the learning rate is ×0.1 at 2/3 and 8/9"
    )
    batch_size: int = Field(4, ge=1, description="images per step")
    lr: float = Field(
        0.02, gt=0, description="learning rate, after a warm-up of a tenth of the steps, at most 1,000"
    )
    optimizer: Literal["sgd", "adamw"] = Field("sgd", description="optimizer; sgd has momentum 0.9")
    weight_decay: float = Field(1e-4, ge=0, description="L2 penalty on all trained parameters")
    clip: float = Field(10.0, ge=0, description="largest gradient norm; 0: no limit")
    flip: float = Field(0.5, ge=0, le=1, description="probability of a horizontal flip")
