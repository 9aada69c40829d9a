"""Simpson's paradox: what a partially federated line sees that one line for all cannot (Figs. 3, 9)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedssl.data.partition_picture import PALETTE
from fedssl.errors import ConfigError
from fedssl.generative.sampling import Studio
from fedssl.generative.use import Use
from fedssl.methods.optimizers import Optimizer
from fedssl.methods.options import TrainConfig
from fedssl.models.model import Model
from fedssl.papers.simpson.model import COORDINATES, Line, LinearGAN, Place, as_images, as_points

REACH = 3.0  # standard deviations of x along a client's line that its discriminator looks at


@dataclass(frozen=True)
class Expert:
    """A client: its line, and how sure it is that a point is its own."""

    slope: float
    middle: Tensor  # the point that its line goes through
    model: Model

    def predict(self, x: Tensor) -> Tensor:
        """E[y given x] of the client's generator."""
        return self.middle[1] + self.slope * (x - self.middle[0])

    @torch.no_grad()
    def confidence(self, x: Tensor) -> Tensor:
        """The private discriminator's score of (x, ŷ(x))."""
        return _score(self.model, torch.stack((x, self.predict(x)), 1))


class Simpson(Use):
    """The clients' lines with routing by discriminator confidence, against one line for all, and a picture.

    The generators are frozen as they are; each client alone then goes on to train its private
    discriminator, to tell where on its line its points are from elsewhere on it, and from N(0, I)
    (appendix C.1 freezes the models and trains a router, too).
    """

    steps: int = Field(800, ge=0, description="further steps of each client's private discriminator")
    rate: float = Field(0.05, gt=0, description="learning rate of the first of them; it falls to 0")

    def do(self, studio: Studio, folder: Path) -> dict[str, Any]:
        if not isinstance(studio.run.trained.objective, LinearGAN):
            raise ConfigError("simpson is for runs with objective.name=linear-gan and data.name=simpson")
        federation = studio.run.federation
        test = federation.test
        assert test is not None
        points = [
            as_points(studio.normalised(studio.train_images(c, 10**9)[0])).cpu()
            for c in range(studio.clients)
        ]
        fresh = as_points(studio.normalised(test.x)).cpu()
        everything = torch.cat(points)
        shared = cast(Line, studio.model(0).part("generator")).weight.detach()
        experts = [self._expert(studio, client, own) for client, own in enumerate(points)]
        slope, intercept = least_squares(everything)
        errors = {
            name: {
                "global": _error(slope * data[:, 0] + intercept, data),
                "routed": _error(route(experts, data[:, 0]), data),
            }
            for name, data in (("points", everything), ("fresh", fresh))
        }
        file = folder / "simpson.png"
        draw(file, points, experts, (slope, intercept))
        return {
            "picture": str(file),
            "shared_slope": float(shared[1] / shared[0]),
            "slopes": [expert.slope for expert in experts],
            "global_slope": slope,
            "mse": errors["points"]["routed"],
            "mse_global": errors["points"]["global"],
            "gain": errors["points"]["global"] / errors["points"]["routed"],
            "mse_fresh": errors["fresh"]["routed"],
            "mse_fresh_global": errors["fresh"]["global"],
        }

    def _expert(self, studio: Studio, client: int, points: Tensor) -> Expert:
        model = copy.deepcopy(studio.model(client)).cpu()
        content, style = (cast(Line | Place, model.part(part)) for part in ("generator", "vectorizer"))
        with torch.no_grad():
            spread = torch.outer(content.weight, content.weight) + torch.outer(style.weight, style.weight)
            middle = content.bias + style.bias
        expert = Expert(float(spread[0, 1] / spread[0, 0]), middle, model)
        self._sharpen(expert, points, float(spread[0, 0].sqrt()), studio.rng("simpson", client))
        return expert

    def _sharpen(self, expert: Expert, points: Tensor, deviation: float, rng: torch.Generator) -> None:
        """As many fakes on the client's own line, evenly spread, as from N(0, I).

        The client's points are moved onto its line, where confidence is asked for: else how far they are
        from it would give them away.
        """
        parts = [expert.model.part("style_encoder"), expert.model.part("style_critic")]
        parameters = [value for part in parts for value in part.parameters()]
        optimizer = Optimizer(parameters, TrainConfig(optimizer="adam", weight_decay=0.0), self.rate)
        count = len(points)
        own = torch.stack((points[:, 0], expert.predict(points[:, 0])), 1)
        for step in range(self.steps):
            optimizer.lr = self.rate * (1 - step / self.steps)
            x = expert.middle[0] + (2 * torch.rand(count, generator=rng) - 1) * REACH * deviation
            on_line = torch.stack((x, expert.predict(x)), 1)
            elsewhere = torch.randn(count, COORDINATES, generator=rng)
            score = _score(expert.model, torch.cat((own, on_line, elsewhere)))
            loss = F.softplus(-score[:count]).mean() + F.softplus(score[count:]).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def route(experts: list[Expert], x: Tensor) -> Tensor:
    """The prediction of whoever is the most confident."""
    confident = torch.stack([expert.confidence(x) for expert in experts]).argmax(0)
    return torch.stack([expert.predict(x) for expert in experts]).gather(0, confident[None])[0]


def least_squares(points: Tensor) -> tuple[float, float]:
    """Slope and intercept of the one line that fits all points best."""
    x, y = points.double().unbind(1)
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
    return slope, float(y.mean()) - slope * float(x.mean())


def draw(file: Path, points: list[Tensor], experts: list[Expert], line: tuple[float, float]) -> None:
    """The points; one line for all; every client's own; and what routing makes of them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.2), dpi=110, layout="tight")
    FigureCanvasAgg(figure)
    titles = (
        f"one line for all: slope {line[0]:.2f}",
        "shared weight, private bias: each client's line",
        "routed to the most confident client",
    )
    for number, title in enumerate(titles, start=1):
        axes = figure.add_subplot(1, 3, number)
        for client, own in enumerate(points):
            colour = PALETTE[client % len(PALETTE)]
            axes.scatter(own[:, 0], own[:, 1], s=4, color=colour)
            if number == 2:
                ends = torch.stack((own[:, 0].min() - 0.15, own[:, 0].max() + 0.15))
                axes.plot(ends, experts[client].predict(ends), color=colour, linewidth=1.5)
        low, high = torch.cat(points)[:, 0].aminmax()
        x = torch.linspace(float(low), float(high), 400)
        if number == 1:
            axes.plot(x, line[0] * x + line[1], color="black", linewidth=1.5)
        if number == 3:
            axes.plot(x, route(experts, x), ".", markersize=1.5, color="black")
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("x")
        axes.set_ylabel("y")
    figure.savefig(file)


def _score(model: Model, points: Tensor) -> Tensor:
    score: Tensor = model.part("style_critic")(model.part("style_encoder")(as_images(points)))
    return score


def _error(predicted: Tensor, points: Tensor) -> float:
    return float((predicted - points[:, 1]).square().mean())
