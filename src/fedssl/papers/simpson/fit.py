"""Simpson's paradox: partially federated lines against one line for all clients (Figs. 3, 9)."""

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
from fedssl.generative.sampling import ClientGenerators
from fedssl.generative.use import Use
from fedssl.methods.optimizers import Optimizer
from fedssl.methods.options import TrainConfig
from fedssl.models.model import Model
from fedssl.papers.simpson.model import COORDINATES, Line, LinearGAN, Offset, as_images, as_points
from fedssl.papers.simpson.points import SPREADS, sample
from fedssl.papers.simpson.regression import Intercept, LinearRegression, Slope

REACH = 3.0  # fakes on a client's line are within this many standard deviations of x
PENALTY = 1e-6  # on the linear router's weights: x separates the clients almost perfectly


@dataclass(frozen=True)
class Expert:
    """A client's line, given by its slope and a point on it."""

    slope: float
    middle: Tensor

    def predict(self, x: Tensor) -> Tensor:
        """Predict y from x."""
        return self.middle[1] + self.slope * (x - self.middle[0])


@dataclass(frozen=True)
class ConfidentExpert(Expert):
    """A client's line with the private discriminator, which scores whether a point is the client's own."""

    model: Model

    @torch.no_grad()
    def confidence(self, x: Tensor) -> Tensor:
        """The private discriminator's score of (x, ŷ(x))."""
        return _score(self.model, torch.stack((x, self.predict(x)), 1))


Router = Callable[[Tensor], Tensor]  # maps x [N] to the clients that predict it [N]


class Simpson(Use):
    """The clients' lines with a router against one line for all, on training points and on new ones.

    Linear regression (Figure 9, and 3 bottom right): with the lines frozen, a linear classifier of clients
    is fitted to the x of all clients' points. A new x is predicted by the client that it names.

    Linear GAN: with the generators frozen, each client continues to train its private discriminator to
    distinguish its points from others on its line and from N(0, I). A new x is predicted by the client with
    the highest score.
    """

    steps: int = Field(800, ge=0, description="GAN: further steps of each client's private discriminator")
    rate: float = Field(0.05, gt=0, description="their initial learning rate; it decays linearly to 0")

    def apply(self, generators: ClientGenerators, folder: Path) -> dict[str, Any]:
        objective = generators.run.trained.objective
        name = generators.run.trained.data.name
        if not isinstance(objective, LinearGAN | LinearRegression) or name not in SPREADS:
            raise ConfigError(
                "simpson needs a run with objective.name=linear-regression or linear-gan "
                "and data.name=simpson"
            )
        drawn = sample(name, generators.run.trained.seed)
        points, test = _points(generators)
        everything = torch.cat(points)
        if isinstance(objective, LinearGAN):
            weight = cast(Line, generators.model(0).part("generator")).weight.detach()
            shared = float(weight[1] / weight[0])
            confident = [self._expert(generators, client, own) for client, own in enumerate(points)]
            experts: Sequence[Expert] = confident
            router = most_confident(confident)
        else:
            experts = [_regression(generators.model(client)) for client in range(generators.clients)]
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

    def _expert(self, generators: ClientGenerators, client: int, points: Tensor) -> ConfidentExpert:
        model = copy.deepcopy(generators.model(client)).cpu()
        content, style = (cast(Line | Offset, model.part(part)) for part in ("generator", "vectorizer"))
        with torch.no_grad():
            spread = torch.outer(content.weight, content.weight) + torch.outer(style.weight, style.weight)
            middle = content.bias + style.bias
        expert = ConfidentExpert(float(spread[0, 1] / spread[0, 0]), middle, model)
        self._train_discriminator(
            expert, points, float(spread[0, 0].sqrt()), generators.rng("simpson", client)
        )
        return expert

    def _train_discriminator(
        self, expert: ConfidentExpert, points: Tensor, deviation: float, rng: torch.Generator
    ) -> None:
        """Train against fakes of two kinds in equal numbers: uniform on the client's line, and from N(0, I).

        The client's points are projected onto its line, so that the discriminator cannot use their distance
        from it; it is only evaluated on the line.
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
    """Predict y from x by the clients that the router chooses."""
    return torch.stack([expert.predict(x) for expert in experts]).gather(0, router(x)[None])[0]


def most_confident(experts: Sequence[ConfidentExpert]) -> Router:
    """Route to the client whose private discriminator has the highest score."""
    return lambda x: torch.stack([expert.confidence(x) for expert in experts]).argmax(0)


def linear_router(points: Sequence[Tensor]) -> Router:
    """Route by a logistic regression from x to the client."""
    owner = torch.cat([torch.full((len(own),), client) for client, own in enumerate(points)])
    x = torch.cat(list(points))[:, :1].double()
    probe = linear.fit(x, owner, len(points), l2=PENALTY)
    return lambda x: probe.predict(x[:, None].double())


def least_squares(points: Tensor) -> tuple[float, float]:
    """Slope and intercept of the least-squares line."""
    x, y = points.double().unbind(1)
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
    return slope, float(y.mean()) - slope * float(x.mean())


def draw(
    file: Path, points: list[Tensor], experts: Sequence[Expert], router: Router, line: tuple[float, float]
) -> None:
    """Draw the points with one line for all, with each client's line, and with the routed prediction."""
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
            color = PALETTE[client % len(PALETTE)]
            axes.scatter(own[:, 0], own[:, 1], s=4, color=color)
            if number == 2:
                ends = torch.stack((own[:, 0].min() - 0.15, own[:, 0].max() + 0.15))
                axes.plot(ends, experts[client].predict(ends), color=color, linewidth=1.5)
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


def _points(generators: ClientGenerators) -> tuple[list[Tensor], Tensor]:
    """Each client's training points, and the test points of all clients."""
    test = generators.run.federation.test
    assert test is not None
    own = [generators.train_images(client, 10**9)[0] for client in range(generators.clients)]
    return [as_points(generators.normalize(x)).cpu() for x in own], as_points(
        generators.normalize(test.x)
    ).cpu()


@torch.no_grad()
def _regression(model: Model) -> Expert:
    slope, intercept = cast(Slope, model.part("encoder")), cast(Intercept, model.part("intercept"))
    return Expert(float(slope.weight), torch.stack((torch.zeros(()), intercept.bias.cpu())))


def _score(model: Model, points: Tensor) -> Tensor:
    score: Tensor = model.part("style_critic")(model.part("style_encoder")(as_images(points)))
    return score


def _error(predicted: Tensor, points: Tensor) -> float:
    return float((predicted - points[:, 1]).square().mean())
