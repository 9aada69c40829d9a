"""The partially federated GAN of PaDPaF (Almansoori, Horváth, Takáč): content is shared, style is private."""

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
from fedssl.objectives.generative.lens import Lens, agreement, means
from fedssl.objectives.generative.losses import Latents, draw_latents
from fedssl.objectives.generative.networks import Critic, Generator, LabelModulation, build_projector

COMPARED = 256  # images that say how to hold a lens


class GAN(ImageModel, Adversarial):
    """GAN with shared content and private style (PaDPaF); its encoder is the content discriminator's trunk.

    | part | where it lives |
    |---|---|
    | encoder, critic, projector | shared: φ^c, the rest of D^c, and g^c |
    | style_encoder, style_critic, style_projector | private: the same of D^s |
    | generator | shared: G^c |
    | vectorizer, modulation | private: G^s, and the conditional batch normalisation it speaks through |
    """

    instance_noise: float = Field(
        0.02,
        ge=0,
        description="deviation of the noise on all images that discriminators see, real or generated, with "
        "pixels from −1 to 1; 0: none",
    )

    def drawn(self, model: Model, latents: Latents, rng: torch.Generator) -> Tensor:
        return self.generate(model, latents, rng)

    def blurred(self, model: Model, images: Tensor, rng: torch.Generator) -> Tensor:
        if not self.instance_noise:
            return images
        canvas = canvas_of(model)
        noise = torch.randn(images.shape, generator=rng).to(images)
        return torch.add(images, noise, alpha=self.instance_noise * (canvas.white - canvas.black) / 2)

    def augmented_by(self, classes: int) -> int:
        """How many labels the content latent is augmented with."""
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
            **self.drawing_parts(canvas_of(encoder), self.augmented_by(classes)),
        }
        return Model(**parts)


class ConditionalGAN(GAN):
    """The GAN with labels: a projection discriminator; half of the generator's channels go by the label."""

    conditional: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = True

    label_maps: Literal["private", "shared", "none"] = Field(
        "shared",
        description="where the label's half of conditional batch normalisation is kept: shared, as by the "
        "authors, or private (§4.1); none: there is no such half, all channels are the style's",
    )
    augmented: bool = Field(False, description="the label joins z^c at the generator's input (§4.2)")
    drawn_labels: Literal["all", "own"] = Field(
        "own",
        description="labels of the images that a client draws in training: as often as among its own images, "
        "as by the authors, or all alike (§4.2)",
    )
    lens: int = Field(
        0,
        ge=0,
        description="a style also turns, zooms and flips what is drawn, through a private lens; from this "
        "round on the client looks for the right way to hold it; 0: no lens",
    )

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        if classes < 2:
            raise ConfigError(
                f"objective.name={self.name} needs labels of at least 2 classes, and the data have "
                f"{classes}; choose a labelled data set, or objective.name=gan"
            )
        if self.label_maps == "none" and not self.augmented:
            raise ConfigError(
                "objective.label_maps=none leaves the generator without labels: set objective.augmented=true"
            )
        if self.lens and not self.augmented:
            raise ConfigError(
                "objective.lens compares what is drawn of each label without a style, and only "
                "objective.augmented=true tells the generator the label then"
            )
        model = super().build(encoder, features, config, classes)
        if self.shares_normalisation:
            normalised = cast(Generator, model.part("generator")).normalised
            role = Role.PRIVATE if self.label_maps == "private" else Role.SHARED
            model.add("label_modulation", Part(LabelModulation(normalised, classes), role))
        if self.lens:
            model.add("lens", Part(Lens(self.latent), Role.PRIVATE))
        return model

    @torch.no_grad()
    def prepare(
        self, model: Model, images: ClientImages, round: int, rng: torch.Generator
    ) -> dict[str, float]:
        """Hold the lens so that what the shared generator draws looks like the client's own images.

        It draws without the client's style, which has learned to do what a lens held wrongly does not.
        """
        if not model.has("lens"):
            return {}
        lens = cast(Lens, model.part("lens"))
        if round >= self.lens:
            x, labels = images.batch(torch.randint(len(images), (COMPARED,), generator=rng))
            device = lens.way.device
            latents = replace(draw_latents(COMPARED, self.latent, 0, rng), labels=labels).to(device)
            drawn = model.part("generator")(latents.content, _without_style, latents.labels)
            seen = lens.placed(drawn, lens.said(model.part("vectorizer")(latents.style)))
            real = x.to(device, torch.float32).permute(0, 3, 1, 2)
            assert latents.labels is not None  # the objective needs them
            lens.hold(agreement(*(means(each, latents.labels) for each in (drawn, seen, real))))
        return {"lens": float(lens.way)}

    @property
    def shares_normalisation(self) -> bool:
        return self.label_maps != "none"

    def augmented_by(self, classes: int) -> int:
        return classes if self.augmented else 0

    def choices(self, labels: Tensor | None) -> Tensor | None:
        return labels if self.drawn_labels == "own" else None

    def classes(self, model: Model) -> int:
        embedding = cast(Critic, model.part("critic")).labels
        return 0 if embedding is None else embedding.num_embeddings


def _without_style(layer: int, x: Tensor) -> Tensor:
    """Batch normalisation as every style begins: gain 1, bias 0, and statistics of this batch alone."""
    return F.batch_norm(x, None, None, training=True)
