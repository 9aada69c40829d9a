"""FeatARC (Wang et al.: Does learning from decentralized non-IID unlabeled data benefit from
self supervision?, ICLR 2023, §5 and Algorithms 1 and 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.data.views import plain
from fedssl.errors import ConfigError
from fedssl.methods.client import Client
from fedssl.methods.clusters import Clusters, FirstClusters
from fedssl.methods.fedavg import FedAvg
from fedssl.methods.latent import record_outputs
from fedssl.methods.method import Aggregate, ServerTools
from fedssl.methods.training import Batch, Loss, Training, objective_loss, train_locally
from fedssl.models.encoders import Encoder
from fedssl.models.model import Model, Part
from fedssl.models.options import ModelConfig
from fedssl.objectives.losses import negative_cosine
from fedssl.state import Broadcast, ServerState, State, restore

HEADS = ("projector", "predictor")
FEATURES = 128  # images at a time, where only features are asked for: more would leave the cache


class FeatARC(FedAvg):
    """C cluster models: a client trains the one whose features are most like its own, and aligned with it.

    `clusters=1` is the paper's "align only", `align=0` its "cluster only"; both together are FedAvg.
    """

    evaluates: ClassVar[Literal["cluster"]] = "cluster"
    effort: ClassVar[float] = 1.2  # networks see each image a few times a round without a backward pass

    clusters: int = Field(2, ge=1, description="cluster models (C); 1: align only")
    align: float = Field(
        1.0, ge=0, description="weight of the alignment in the loss (λ), from round 2 on; 0: cluster only"
    )
    target: Literal["backbone", "projection"] = Field(
        "backbone",
        description="what the head's output is aligned with: the cluster model's backbone feature "
        "(model.projector_out must be its width) or its projection",
    )
    assignment: Literal["round-robin", "similarity"] = Field(
        "round-robin",
        description="round-robin: C random initializations, client k starts with model k mod C; similarity: "
        "C equal models, after round 1 the server clusters the updates by direction",
    )

    def parts(self, model: Model, encoder: Callable[[], Encoder], config: ModelConfig) -> dict[str, Part]:
        if self.align and self.target == "backbone" and model.has("projector"):
            width = encoder().features
            if width != config.projector_out:
                raise ConfigError(
                    "method.name=featarc aligns projector outputs with backbone features, which have "
                    f"{width} dimensions: set model.projector_out={width} (it is {config.projector_out}), "
                    "or method.target=projection"
                )
        return {}

    def keeps(self, model: Model) -> list[str]:
        own = model.names_under(["encoder"]) if self.clusters > 1 else []
        return list(dict.fromkeys([*super().keeps(model), *own]))

    def first_server(self, shared: State, another: Callable[[int], State]) -> ServerState:
        if self.clusters == 1:
            return ServerState(shared)
        if self.assignment == "similarity":
            return ServerState(clusters=[shared] * self.clusters)
        return ServerState(clusters=[shared, *map(another, range(1, self.clusters))])

    # --- the four steps ----------------------------------------------------------------------

    def receive(self, client: Client, broadcast: Broadcast, memory: State) -> dict[str, float]:
        """Algorithm 1, lines 6–14: the cluster model that agrees best with the client's last model."""
        if not broadcast.clusters:
            client.start_from({**memory, **broadcast.model})
            return {"cluster": 0}
        log: dict[str, float] = {}
        if self.assignment == "round-robin" and "cluster" not in client.notes:
            chosen = client.id % len(broadcast.clusters)  # a newcomer has no features to compare
        else:
            alignments = self.alignments(client, broadcast.clusters, memory)
            chosen = max(range(len(alignments)), key=lambda cluster: alignments[cluster])  # ties: the first
            log["alignment"] = alignments[chosen]
        client.notes["cluster"] = chosen
        client.start_from({**memory, **broadcast.clusters[chosen]})
        return {"cluster": chosen, **log}

    def reference_model(self, client: Client, broadcast: Broadcast) -> State:
        return broadcast.clusters[int(client.notes["cluster"])] if broadcast.clusters else broadcast.model

    def train(self, client: Client) -> Training:
        # In round 1 the cluster models are untrained, and all images have nearly the same feature.
        if not self.align or client.round == 1:
            return train_locally(client)
        return train_locally(client, loss=aligned_loss(client, self.align, self.target))

    def aggregate(self, server: ServerState, round: int, tools: ServerTools) -> Aggregate:
        if self.clusters == 1:
            return super().aggregate(server, round, tools)
        tools.check_server_sees_uploads(
            "they are which FeatARC clusters; set method.clusters=1, or aggregation.client_side=false"
        )
        deals = round == 1 and self.assignment == "similarity"
        return (FirstClusters if deals else Clusters)(server, round, tools)

    # --- alignment ---------------------------------------------------------------------------

    def alignments(self, client: Client, models: list[State], own: Mapping[str, Tensor]) -> list[float]:
        """For each cluster model, the mean cosine of its backbone features with the client's own.

        The client's own are those of the model it trained last; before its first round (only with
        `assignment=similarity`), of the model that all clients started from.
        """
        encoder, names = client.model.part("encoder"), client.model.names_under(["encoder"])
        restore(client.model, {name: own.get(name, client.initial[name]) for name in names})
        before = backbone_features(client, encoder)
        found = []
        for model in models:
            restore(client.model, {name: model[name] for name in names})
            cosines = F.cosine_similarity(backbone_features(client, encoder), before, dim=1)
            found.append(float(cosines.double().mean()))
        return found


@torch.no_grad()
def backbone_features(client: Client, encoder: nn.Module) -> Tensor:
    """Features of all of the client's images, as they are, from a network in evaluation mode."""
    encoder.eval()
    found = []
    for positions in torch.split(torch.arange(len(client.images)), FEATURES):
        images = client.images.batch(positions)[0].to(client.device)
        found.append(encoder(plain(images, client.views.mean, client.views.std)).float())
    return torch.cat(found)


def targets(client: Client, kind: Literal["backbone", "projection"]) -> Tensor:
    """z_g of all of the client's images, from the model that it received."""
    features, model = backbone_features(client, client.model.part("encoder")), client.model
    if kind == "backbone" or not model.has("projector"):
        return features
    with torch.no_grad():
        projected: Tensor = model.part("projector").eval()(features)
    return projected


def aligned_loss(client: Client, weight: float, target: Literal["backbone", "projection"]) -> Loss:
    """The objective + λ·½·(D(p⁺¹, z_g) + D(p⁺², z_g)) with D = −cos (Algorithm 2, line 10).

    p is the output of predictor, projector or encoder, whichever is the last that the objective has. z_g, of
    the image without augmentation, is the cluster model's backbone feature (Algorithm 2: z_g = f_θ(x)) or its
    projection. It stays the same for a round, and is computed while the client's model still is the cluster
    model.
    """
    model, given, objective = client.model, targets(client, target), objective_loss(client)

    def loss(batch: Batch) -> Tensor:
        with record_outputs(last_head(model)) as seen:
            value = objective(batch)
        p = torch.cat(seen) if seen else batch.views[0].new_empty(0)
        # MAE has no pass over whole images, MoCo none of its second views through the online network.
        if len(p) != len(batch.views) * len(batch.images):
            p = torch.cat([predict_projection(model, view) for view in batch.views])
        z = given[batch.positions.to(given.device)]
        return value + weight * negative_cosine(p, z.repeat(len(batch.views), 1))

    return loss


def last_head(model: Model) -> nn.Module:
    """The part of the online network whose output is compared."""
    return model.part(next((name for name in reversed(HEADS) if model.has(name)), "encoder"))


def predict_projection(model: Model, images: Tensor) -> Tensor:
    """Images through the online network, up to its last head."""
    for name in ("encoder", *HEADS):
        if model.has(name):
            images = model.part(name)(images)
    return images
