"""The partially federated GAN of PaDPaF (Almansoori, Horváth, Takáč): shared content, private style."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.data.federation import ClientImages
from fedssl.errors import ConfigError
from fedssl.models.model import Model, Part, Role
from fedssl.models.options import ModelConfig
from fedssl.objectives.generative.adversarial import Adversarial
from fedssl.objectives.generative.image import ImageModel, canvas_of
from fedssl.objectives.generative.lens import Lens, class_means, compare_means
from fedssl.objectives.generative.losses import Latents, draw_latents
from fedssl.objectives.generative.networks import Critic, Generator, LabelModulation, build_projector

COMPARED = 256  # real and generated images compared to choose the lens's orientation


class GAN(ImageModel, Adversarial):
    """GAN with shared content and private style (PaDPaF); its encoder is the content discriminator's trunk.

    | part | role |
    |---|---|
    | encoder, critic, projector | shared: φ^c, the rest of D^c, and g^c |
    | style_encoder, style_critic, style_projector | private: the same for D^s |
    | generator | shared: G^c |
    | vectorizer, modulation | private: G^s, and the conditional batch normalization that applies it |
    """

    instance_noise: float = Field(
        0.02,
        ge=0,
        description="standard deviation of the noise added to real and generated images before the "
        "discriminators, for pixels in [−1, 1]; 0: none",
    )

    def training_images(self, model: Model, latents: Latents, rng: torch.Generator) -> Tensor:
        return self.generate(model, latents, rng)

    def add_noise(self, model: Model, images: Tensor, rng: torch.Generator) -> Tensor:
        if not self.instance_noise:
            return images
        canvas = canvas_of(model)
        noise = torch.randn(images.shape, generator=rng).to(images)
        return torch.add(images, noise, alpha=self.instance_noise * (canvas.white - canvas.black) / 2)

    def label_inputs(self, classes: int) -> int:
        """The number of classes that the content latent is augmented with."""
        return 0

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        labels = classes if self.conditional else 0
        style, own = self.style_encoder(canvas_of(encoder))
        parts = {
            "encoder": Part(encoder),
            "critic": Part(Critic(features, labels)),
            "projector": Part(build_projector(features, config)),
            "style_encoder": Part(style, Role.PRIVATE),
            "style_critic": Part(Critic(own), Role.PRIVATE),
            "style_projector": Part(build_projector(own, config), Role.PRIVATE),
            **self.generator_parts(canvas_of(encoder), self.label_inputs(classes)),
        }
        return Model(**parts)


class ConditionalGAN(GAN):
    """Conditional GAN: projection discriminator, and half of the generator's channels depend on the label."""

    conditional: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = True

    label_maps: Literal["private", "shared", "none"] = Field(
        "shared",
        description="where the label's half of conditional batch normalization is kept: shared, as in the "
        "authors' code, or private (§4.1); none: the style conditions all channels",
    )
    augmented: bool = Field(False, description="concatenate a label embedding with z^c (§4.2)")
    drawn_labels: Literal["all", "own"] = Field(
        "own",
        description="labels of generated images during training: distributed like the client's own, as in "
        "the authors' code, or uniform over all classes (§4.2)",
    )
    lens: int = Field(
        0,
        ge=0,
        le=64,
        description="add a private lens that rotates, zooms and flips generated images; its orientation is "
        "updated from this round on; 0: no lens",
    )

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        if classes < 2:
            raise ConfigError(
                f"objective.name={self.name} needs labels of at least 2 classes, but the data have "
                f"{classes}; choose a labeled data set, or objective.name=gan"
            )
        if self.label_maps == "none" and not self.augmented:
            raise ConfigError(
                "objective.label_maps=none leaves the generator without labels: set objective.augmented=true"
            )
        if self.lens and not self.augmented:
            raise ConfigError(
                "objective.lens compares generated images of each class without style, which needs the label "
                "at the generator's input: set objective.augmented=true"
            )
        model = super().build(encoder, features, config, classes)
        if self.conditions_on_labels:
            widths = cast(Generator, model.part("generator")).norm_widths
            role = Role.PRIVATE if self.label_maps == "private" else Role.SHARED
            model.add("label_modulation", Part(LabelModulation(widths, classes), role))
        if self.lens:
            model.add("lens", Part(Lens(self.latent), Role.PRIVATE))
        return model

    @torch.no_grad()
    def prepare(
        self, model: Model, images: ClientImages, round: int, rng: torch.Generator
    ) -> dict[str, float]:
        """Choose the lens's orientation by comparing generated images with the client's own.

        Images are generated without the client's style, since a style can learn to compensate for a wrong
        orientation.
        """
        if not model.has("lens"):
            return {}
        lens = cast(Lens, model.part("lens"))
        if round >= self.lens:
            x, labels = images.batch(torch.randint(len(images), (COMPARED,), generator=rng))
            device = lens.orientation.device
            latents = replace(draw_latents(COMPARED, self.latent, 0, rng), labels=labels).to(device)
            drawn = model.part("generator")(latents.content, _plain_norm, latents.labels)
            seen = lens.warp(drawn, lens.params(model.part("vectorizer")(latents.style)))
            real = x.to(device, torch.float32).permute(0, 3, 1, 2)
            known = latents.labels
            assert known is not None  # the objective needs them
            means = (class_means(images, known) for images in (drawn, seen, real))
            lens.update_orientation(compare_means(*means))
        return {"lens": float(lens.orientation)}

    @property
    def conditions_on_labels(self) -> bool:
        return self.label_maps != "none"

    def label_inputs(self, classes: int) -> int:
        return classes if self.augmented else 0

    def choices(self, labels: Tensor | None) -> Tensor | None:
        return labels if self.drawn_labels == "own" else None

    def classes(self, model: Model) -> int:
        embedding = cast(Critic, model.part("critic")).labels
        return 0 if embedding is None else embedding.num_embeddings


def _plain_norm(layer: int, x: Tensor) -> Tensor:
    """Batch normalization with gain 1, bias 0 and the statistics of this batch."""
    return F.batch_norm(x, None, None, training=True)
