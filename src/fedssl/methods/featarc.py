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
FEATURES = 128  # batch size without a backward pass; larger ones exceed the processor's cache


class FeatARC(FedAvg):
    """Clustered training: each client trains the cluster model with the most similar features, aligned to it.

    `clusters=1` is the paper's "align only", `align=0` its "cluster only"; both together are FedAvg.
    """

    evaluates: ClassVar[Literal["cluster"]] = "cluster"
    effort: ClassVar[float] = 1.2  # a few additional forward passes per round

    clusters: int = Field(2, ge=1, le=1024, description="cluster models (C); 1: align only")
    align: float = Field(
        1.0, ge=0, description="weight of the alignment in the loss (λ), from round 2 on; 0: cluster only"
    )
    target: Literal["backbone", "projection"] = Field(
        "backbone",
        description="align the head's output with the cluster model's backbone feature "
        "(model.projector_out must equal its width) or with its projection",
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
        """Choose the cluster model that best agrees with the client's last model (Algorithm 1, line 6)."""
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
        # In round 1 the cluster models are untrained, and features hardly differ between images.
        if not self.align or client.round == 1:
            return train_locally(client)
        return train_locally(client, loss=aligned_loss(client, self.align, self.target))

    def aggregate(self, server: ServerState, round: int, tools: ServerTools) -> Aggregate:
        if self.clusters == 1:
            return super().aggregate(server, round, tools)
        tools.check_server_sees_uploads(
            "FeatARC clusters them; set method.clusters=1, or aggregation.client_side=false"
        )
        assigns = round == 1 and self.assignment == "similarity"
        return (FirstClusters if assigns else Clusters)(server, round, tools)

    # --- alignment ---------------------------------------------------------------------------

    def alignments(self, client: Client, models: list[State], own: Mapping[str, Tensor]) -> list[float]:
        """The mean cosine similarity of each cluster model's backbone features with the client's own.

        The client's own features come from the model it trained last, or, before its first round (only with
        `assignment=similarity`), from the initial model.
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
    """Features of all of the client's images without augmentation, from a network in evaluation mode."""
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

    p is the output of the objective's last head: predictor, projector or encoder. z_g is the cluster model's
    backbone feature of the image without augmentation (Algorithm 2: z_g = f_θ(x)), or its projection. It is
    computed once per round, before the client's model is trained.
    """
    model, fixed, objective = client.model, targets(client, target), objective_loss(client)

    def loss(batch: Batch) -> Tensor:
        with record_outputs(last_head(model)) as seen:
            value = objective(batch)
        p = torch.cat(seen) if seen else batch.views[0].new_empty(0)
        # MAE encodes no whole images, and MoCo no second views by the online network.
        if len(p) != len(batch.views) * len(batch.images):
            p = torch.cat([predict_projection(model, view) for view in batch.views])
        z = fixed[batch.positions.to(fixed.device)]
        return value + weight * negative_cosine(p, z.repeat(len(batch.views), 1))

    return loss


def last_head(model: Model) -> nn.Module:
    """The last part of the online network."""
    return model.part(next((name for name in reversed(HEADS) if model.has(name)), "encoder"))


def predict_projection(model: Model, images: Tensor) -> Tensor:
    """Pass images through the online network, up to its last head."""
    for name in ("encoder", *HEADS):
        if model.has(name):
            images = model.part(name)(images)
    return images
