"""FedStyle (Yang et al.: More generalized and personalized unsupervised representation learning in a
distributed system)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from fedssl.errors import ConfigError
from fedssl.methods.client import Client
from fedssl.methods.latent import record_outputs, replace_parts
from fedssl.methods.method import Method
from fedssl.methods.style import (
    ConcatenatedFeatures,
    StyleContrast,
    StyleViews,
    Stylize,
    build_generator,
    style_features,
)
from fedssl.methods.training import Batch, Loss, Training, train_locally
from fedssl.models.encoders import Encoder
from fedssl.models.model import Model, Part, Role
from fedssl.models.options import ModelConfig
from fedssl.models.tuned import Tuned
from fedssl.objectives.target import Target
from fedssl.state import Broadcast, State

DIVERGED = 3.0  # ‖G‖/‖h_c‖; about 1 in stable training


class FedStyle(Method):
    """Clients infuse content features with features of their style, which never leave the client.

    Content model f_c, g_c is shared. Style model f_s, g_s (part `style`) and generator G are private.
    """

    effort: ClassVar[float] = 1.4
    when_evaluated: ClassVar[tuple[str, ...]] = ("stylized",)

    style_epochs: int = Field(
        10, ge=0, description="epochs of style extraction, once per client (E_s); 0: noise (ablation)"
    )
    infusion: float = Field(0.5, ge=0, description="weight of the loss on style-infused features (λ)")
    temperature: float = Field(0.07, gt=0, description="temperature of the style loss (τ)")
    generator_hidden: int = Field(256, ge=1, le=1 << 16, description="hidden width of the generator G")
    stylized: bool = Field(
        True, description="personal features are h_c + G([h_c, h_s]); false: h_c alone (ablation)"
    )

    def parts(self, model: Model, encoder: Callable[[], Encoder], config: ModelConfig) -> dict[str, Part]:
        if not model.has("projector"):
            raise ConfigError(
                "method.name=fedstyle infuses style into projections: choose objective.name=simclr, "
                "simsiam, byol, barlow-twins or moco-v2, not an objective with the parts "
                f"{', '.join(model.roles)}"
            )
        style = encoder()
        parts = {
            "style": Part(self._contrast.build(style.module, style.features, config), Role.PRIVATE),
            "generator": Part(build_generator(style.features, self.generator_hidden), Role.PRIVATE),
        }
        if model.has("queue"):  # infused keys have their own negatives
            parts["infused_queue"] = Part(copy.deepcopy(model.part("queue")), Role.PRIVATE)
        return parts

    def personal_encoder(self, model: Model) -> nn.Module:
        content = model.part("encoder")
        if not self.stylized:
            return content
        return Tuned(
            ConcatenatedFeatures(content, model.part("style.encoder")), Stylize(model.part("generator"))
        )

    def receive(self, client: Client, broadcast: Broadcast, memory: State) -> dict[str, float]:
        """Load content from the server, style and generator from memory; extract the style if new."""
        client.start_from(broadcast.model, memory)
        if not self.style_epochs or "style_loss" in client.notes:
            return {}
        extraction = self.extract(client)
        client.notes["style_loss"] = extraction.loss
        return {"style_loss": extraction.loss}

    def extract(self, client: Client) -> Training:
        """Extract the style (Algorithm 2), as in round 1 whenever the client first takes part.

        The result depends on the client's images only.
        """
        newcomer = replace(
            client,
            round=1,
            model=cast(Model, client.model.part("style")),
            objective=self._contrast,
            views=StyleViews(client.views),
        )
        return train_locally(newcomer, epochs=self.style_epochs, purpose="style")

    def train(self, client: Client) -> Training:
        """Algorithm 3; with λ = 0 it is FedAvg."""
        if not self.infusion:
            return train_locally(client)
        generator, norms = list(client.model.part("generator").parameters()), Norms()
        training = train_locally(
            client,
            loss=self.infused_loss(client, norms),
            parameters=[*client.objective.trained(client.model), *generator],
        )
        return replace(training, values={"generator_ratio": norms.ratio()})

    def warning(self, line: Mapping[str, Any]) -> str:
        """Warn if the generator, which is not normalized, diverges and dominates the content features."""
        ratios = {row["client"]: row.get("generator_ratio", 0.0) for row in line["clients"]}
        diverged = [f"client {client} ({ratio:.3g})" for client, ratio in ratios.items() if ratio > DIVERGED]
        if not diverged:
            return ""
        more = f" and {len(diverged) - 3} more" if len(diverged) > 3 else ""
        return (
            f"warning: round {line['round']}: the generator diverges: ‖G‖/‖h_c‖ exceeds {DIVERGED:g} at "
            f"{', '.join(diverged[:3])}{more}; try plain SGD (train.momentum=0), a smaller train.lr or "
            "method.infusion"
        )

    def infused_loss(self, client: Client, norms: Norms | None = None) -> Loss:
        """The objective on two views, + λ times the same on their features infused with the style (Eq. 3).

        Args:
            client: the client; its style encoder is frozen.
            norms: collects the norms of content features and of the generator's outputs.
        """
        model, objective = client.model, client.objective
        generator, heads = model.part("generator"), infuse_heads(model)
        styles = style_features(
            model.part("style.encoder"), client.images, StyleViews(client.views), client.device
        )
        slow = model.part("target.encoder") if model.has("target") else nn.Identity()

        def loss(batch: Batch) -> Tensor:
            with record_outputs(model.part("encoder")) as online, record_outputs(slow) as target:
                content_loss = objective.loss(model, batch.views, batch.labels, batch.rng)
            first, second = features_of_both(online, target, len(batch.images))
            style, outlines = styles[batch.positions.to(styles.device)].unbind(dim=1)
            infused = [
                generator(torch.cat((first, style), dim=1)),
                generator(torch.cat((second, outlines), dim=1)),
            ]
            if norms is not None:
                norms.add(infused, (first, second))
            return content_loss + self.infusion * objective.loss(heads, infused, batch.labels, batch.rng)

        return loss

    @property
    def _contrast(self) -> StyleContrast:
        return StyleContrast(temperature=self.temperature)


class Norms:
    """Norms of generated and of content features, summed over the steps of a round."""

    def __init__(self) -> None:
        self.generated = self.content = torch.zeros(())

    @torch.no_grad()
    def add(self, generated: Sequence[Tensor], content: Sequence[Tensor]) -> None:
        self.generated = self.generated + torch.cat(list(generated)).float().norm(dim=1).sum()
        self.content = self.content + torch.cat(list(content)).float().norm(dim=1).sum()

    def ratio(self) -> float:
        """The ratio ‖G‖/‖h_c‖ of the mean norms."""
        return float(self.generated / self.content)


def features_of_both(online: list[Tensor], target: list[Tensor], images: int) -> tuple[Tensor, Tensor]:
    """h_c¹ and h_c²; with MoCo, the latter come from the target, which alone encodes the keys."""
    features = torch.cat(online)
    if len(features) == images:
        return features, torch.cat(target)
    first, second = features.chunk(2)
    return first, second


def infuse_heads(model: Model) -> Model:
    """The objective's model for features instead of images: encoders are replaced by identities."""
    instead: dict[str, nn.Module] = {"encoder": nn.Identity()}
    if model.has("target"):
        instead["target"] = Target(nn.Identity(), model.part("target.projector"))
    if model.has("infused_queue"):
        instead["queue"] = model.part("infused_queue")
    return replace_parts(model, **instead)
