"""Simpson's paradox: what a partially federated line sees that one line for all cannot (Figs. 3, 9)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedssl.data.partition_picture import PALETTE
from fedssl.errors import ConfigError
from fedssl.evaluation import linear
from fedssl.generative.sampling import Studio
from fedssl.generative.use import Use
from fedssl.methods.optimizers import Optimizer
from fedssl.methods.options import TrainConfig
from fedssl.models.model import Model
from fedssl.papers.simpson.model import COORDINATES, Line, LinearGAN, Place, as_images, as_points
from fedssl.papers.simpson.points import SPREADS, sample
from fedssl.papers.simpson.regression import Intercept, LinearRegression, Slope

REACH = 3.0  # standard deviations of x along a client's line that its discriminator looks at
PENALTY = 1e-6  # of the linear router's weight: x separates the clients nearly perfectly


@dataclass(frozen=True)
class Expert:
    """A client's line: its slope, and a point that it goes through."""

    slope: float
    middle: Tensor

    def predict(self, x: Tensor) -> Tensor:
        """ŷ(x)."""
        return self.middle[1] + self.slope * (x - self.middle[0])


@dataclass(frozen=True)
class ConfidentExpert(Expert):
    """A client with a private discriminator, which says how sure it is that a point is its own."""

    model: Model

    @torch.no_grad()
    def confidence(self, x: Tensor) -> Tensor:
        """The private discriminator's score of (x, ŷ(x))."""
        return _score(self.model, torch.stack((x, self.predict(x)), 1))


Router = Callable[[Tensor], Tensor]  # from x [N] to the clients that answer [N]


class Simpson(Use):
    """The clients' lines and a router, against one line for all; on points seen and on new ones. A picture.

    Linear regression (Figure 9, and 3 bottom right): the lines are frozen, then a linear classifier of
    clients is fitted to the x of all clients' points; a new x is answered by the client it names.

    The linear GAN: the generators are frozen as they are; each client alone then goes on to train its
    private discriminator, to tell where on its line its points are from elsewhere on it, and from N(0, I).
    A new x is answered by the most confident client.
    """

    steps: int = Field(800, ge=0, description="GAN: further steps of each client's private discriminator")
    rate: float = Field(0.05, gt=0, description="learning rate of the first of them; it falls to 0")

    def do(self, studio: Studio, folder: Path) -> dict[str, Any]:
        objective = studio.run.trained.objective
        name = studio.run.trained.data.name
        if not isinstance(objective, LinearGAN | LinearRegression) or name not in SPREADS:
            raise ConfigError(
                "simpson is for runs with objective.name=linear-regression or linear-gan "
                "and data.name=simpson"
            )
        drawn = sample(name, studio.run.trained.seed)
        points, test = _points(studio)
        everything = torch.cat(points)
        if isinstance(objective, LinearGAN):
            weight = cast(Line, studio.model(0).part("generator")).weight.detach()
            shared = float(weight[1] / weight[0])
            confident = [self._expert(studio, client, own) for client, own in enumerate(points)]
            experts: Sequence[Expert] = confident
            router = most_confident(confident)
        else:
            experts = [_regression(studio.model(client)) for client in range(studio.clients)]
            shared, router = experts[0].slope, linear_router(points)
        line = least_squares(everything)
        found: dict[str, Any] = {
            "true_slope": drawn.slope,
            "shared_slope": shared,
            "slopes": [expert.slope for expert in experts],
            "global_slope": line[0],
        }
        for suffix, data in (("", everything), ("_fresh", test)):
            routed = _error(route(experts, router, data[:, 0]), data)
            whole = _error(line[0] * data[:, 0] + line[1], data)
            found |= {f"mse{suffix}": routed, f"mse{suffix}_global": whole, f"gain{suffix}": whole / routed}
        file = self.file(folder, "simpson")
        draw(file, points, experts, router, line)
        return {"picture": str(file), **found}

    def _expert(self, studio: Studio, client: int, points: Tensor) -> ConfidentExpert:
        model = copy.deepcopy(studio.model(client)).cpu()
        content, style = (cast(Line | Place, model.part(part)) for part in ("generator", "vectorizer"))
        with torch.no_grad():
            spread = torch.outer(content.weight, content.weight) + torch.outer(style.weight, style.weight)
            middle = content.bias + style.bias
        expert = ConfidentExpert(float(spread[0, 1] / spread[0, 0]), middle, model)
        self._sharpen(expert, points, float(spread[0, 0].sqrt()), studio.rng("simpson", client))
        return expert

    def _sharpen(
        self, expert: ConfidentExpert, points: Tensor, deviation: float, rng: torch.Generator
    ) -> None:
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


def route(experts: Sequence[Expert], router: Router, x: Tensor) -> Tensor:
    """The prediction of the client that the router names."""
    return torch.stack([expert.predict(x) for expert in experts]).gather(0, router(x)[None])[0]


def most_confident(experts: Sequence[ConfidentExpert]) -> Router:
    """The client whose private discriminator has the highest score."""
    return lambda x: torch.stack([expert.confidence(x) for expert in experts]).argmax(0)


def linear_router(points: Sequence[Tensor]) -> Router:
    """Logistic regression from x to the client whose point it is."""
    owner = torch.cat([torch.full((len(own),), client) for client, own in enumerate(points)])
    x = torch.cat(list(points))[:, :1].double()
    probe = linear.fit(x, owner, len(points), l2=PENALTY)
    return lambda x: probe.predict(x[:, None].double())


def least_squares(points: Tensor) -> tuple[float, float]:
    """Slope and intercept of the one line that fits all points best."""
    x, y = points.double().unbind(1)
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
    return slope, float(y.mean()) - slope * float(x.mean())


def draw(
    file: Path, points: list[Tensor], experts: Sequence[Expert], router: Router, line: tuple[float, float]
) -> None:
    """The points; one line for all; every client's own; and what routing makes of them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.2), dpi=110, layout="tight")
    FigureCanvasAgg(figure)
    titles = (
        f"one line for all: slope {line[0]:.2f}",
        "shared weight, private bias: each client's line",
        "routed to one client",
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
            axes.plot(x, route(experts, router, x), ".", markersize=1.5, color="black")
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("x")
        axes.set_ylabel("y")
    figure.savefig(file)


def _points(studio: Studio) -> tuple[list[Tensor], Tensor]:
    """Each client's points, and new ones of all clients."""
    test = studio.run.federation.test
    assert test is not None
    own = [studio.train_images(client, 10**9)[0] for client in range(studio.clients)]
    return [as_points(studio.normalised(x)).cpu() for x in own], as_points(studio.normalised(test.x)).cpu()


@torch.no_grad()
def _regression(model: Model) -> Expert:
    slope, intercept = cast(Slope, model.part("encoder")), cast(Intercept, model.part("intercept"))
    return Expert(float(slope.weight), torch.stack((torch.zeros(()), intercept.bias.cpu())))


def _score(model: Model, points: Tensor) -> Tensor:
    score: Tensor = model.part("style_critic")(model.part("style_encoder")(as_images(points)))
    return score


def _error(predicted: Tensor, points: Tensor) -> float:
    return float((predicted - points[:, 1]).square().mean())
