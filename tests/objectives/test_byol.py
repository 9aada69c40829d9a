"""BYOL: its loss by hand, two steps of its target by hand, and its options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lightly.loss import NegativeCosineSimilarity
from tests.small import small_run
from torch import Tensor

import fedssl
from fedssl.models.model import Model, Role
from fedssl.objectives.byol import BYOL
from fedssl.state import snapshot
from fedssl.tensorfile import load_tensors


def step(objective: BYOL, model: Model, views: list[Tensor], rng: torch.Generator, lr: float = 0.1) -> None:
    optimizer = torch.optim.SGD(objective.trained(model), lr=lr)
    optimizer.zero_grad()
    objective.loss(model, views, None, rng).backward()
    optimizer.step()
    objective.after_step(model)


def targets(model: Model) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.parameters_under(["target"]).items()}


@pytest.mark.parametrize("predictor", [True, False])
def test_loss_is_the_papers(
    predictor: bool, build: Callable[..., Model], views: list[Tensor], rng: torch.Generator
) -> None:
    objective = BYOL(predictor=predictor)
    model = build(objective)
    with torch.no_grad():
        for parameter in model.part("target").parameters():
            parameter.mul_(0.9).add_(0.01)  # so that the target is another network
    loss = objective.loss(model, views, None, rng)
    cosine, expected = NegativeCosineSimilarity(), torch.zeros(())
    for one, other in ((0, 1), (1, 0)):
        z = model.part("projector")(model.part("encoder")(views[one]))
        p = model.part("predictor")(z) if predictor else z
        expected = expected + 2 + 2 * cosine(p, model.part("target")(views[other]))
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(objective.loss(model, views[::-1], None, rng), loss)


def test_the_target_is_a_copy_not_an_alias(build: Callable[..., Model]) -> None:
    model = build(BYOL())
    state = model.state_dict()
    places = {name: value.data_ptr() for name, value in state.items()}
    assert len(set(places.values())) == len(places)
    sources = model.sources()
    assert set(sources) == set(model.names_under(["target"]))
    assert set(sources.values()) == set(model.names_under(["encoder", "projector"]))
    assert all(torch.equal(state[copy], state[source]) for copy, source in sources.items())
    assert model.roles["target"] is Role.PRIVATE
    assert not any(name.startswith("target.") for name in model.names(Role.SHARED))


def test_two_steps_of_the_average_by_hand(
    build: Callable[..., Model], views: list[Tensor], rng: torch.Generator
) -> None:
    """Wᵗ ← 0.99·Wᵗ + 0.01·W after each step, with the W of that moment."""
    objective = BYOL()
    model = build(objective)
    expected = {name: value.double() for name, value in targets(model).items()}
    for _ in range(2):
        step(objective, model, views, rng)
        online = dict(model.named_parameters())
        for name in expected:
            expected[name] = 0.99 * expected[name] + 0.01 * online[name.removeprefix("target.")].double()
    for name, value in targets(model).items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("momentum", "same_as"), [(0.0, "online"), (1.0, "before")])
def test_extreme_momenta(
    momentum: float,
    same_as: str,
    build: Callable[..., Model],
    views: list[Tensor],
    rng: torch.Generator,
) -> None:
    objective = BYOL(momentum=momentum)
    model = build(objective)
    before = targets(model)
    step(objective, model, views, rng)
    online = dict(model.named_parameters())
    for name, value in targets(model).items():
        expected = online[name.removeprefix("target.")] if same_as == "online" else before[name]
        torch.testing.assert_close(value, expected.detach(), rtol=0, atol=1e-7)


def test_target_statistics_are_its_own(
    build: Callable[..., Model], views: list[Tensor], rng: torch.Generator
) -> None:
    objective = BYOL()
    model = build(objective)
    step(objective, model, views, rng)
    state = model.state_dict()
    assert int(state["target.encoder.bn1.num_batches_tracked"]) == 2
    step(objective, model, views, rng)
    online, own = (state[f"{place}encoder.bn1.running_mean"] for place in ("", "target."))
    assert not torch.equal(online, own)


@pytest.mark.parametrize("ema", [True, False])
@pytest.mark.parametrize("stop_gradient", [True, False])
def test_the_target_is_updated_as_configured(
    ema: bool,
    stop_gradient: bool,
    build: Callable[..., Model],
    views: list[Tensor],
    rng: torch.Generator,
) -> None:
    """The optimizer if there is no stop-gradient, the average if there is EMA; each on its own."""
    objective = BYOL(ema=ema, stop_gradient=stop_gradient, momentum=0.5)
    model = build(objective)
    own = set(map(id, model.part("target").parameters()))
    assert (own <= set(map(id, objective.trained(model)))) is not stop_gradient
    assert own.isdisjoint(map(id, objective.trained(model))) is stop_gradient

    before = targets(model)
    optimizer = torch.optim.SGD(objective.trained(model), lr=0.1)
    objective.loss(model, views, None, rng).backward()
    optimizer.step()
    trained = targets(model)
    moved = any(not torch.equal(before[name], trained[name]) for name in before)
    assert moved is not stop_gradient

    objective.after_step(model)
    followed = any(not torch.equal(trained[name], value) for name, value in targets(model).items())
    assert followed is ema


def test_stop_gradient_keeps_gradients_out_of_the_target(
    build: Callable[..., Model], views: list[Tensor], rng: torch.Generator
) -> None:
    for stop in (True, False):
        objective = BYOL(stop_gradient=stop)
        model = build(objective)
        objective.loss(model, views, None, rng).backward()
        assert all((parameter.grad is None) is stop for parameter in model.part("target").parameters())
        assert all(parameter.grad is not None for parameter in model.part("encoder").parameters())


def test_no_gradient_without_grad_mode(
    build: Callable[..., Model], views: list[Tensor], rng: torch.Generator
) -> None:
    objective = BYOL(stop_gradient=False)
    with torch.no_grad():
        assert not objective.loss(build(objective), views, None, rng).requires_grad


def test_the_optimizer_leaves_a_stopped_target_alone(
    build: Callable[..., Model], views: list[Tensor], rng: torch.Generator
) -> None:
    """Not even weight decay reaches it."""
    objective = BYOL(ema=False)
    model = build(objective)
    before = snapshot(model, model.parameters_under(["target"]))
    optimizer = torch.optim.SGD(objective.trained(model), lr=1.0, weight_decay=0.5)
    objective.loss(model, views, None, rng).backward()
    optimizer.step()
    objective.after_step(model)
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


# --- the target of FedEMA's code --------------------------------------------------------------------


def naive_first_round(model: Model, views: list[Tensor], stop_gradient: bool) -> Tensor:
    """Both sides are the online network."""
    cosine, loss = NegativeCosineSimilarity(), torch.zeros(())
    for one, other in ((0, 1), (1, 0)):
        p, t = (
            model.part("projector")(model.part("encoder")(views[one])),
            model.part("projector")(model.part("encoder")(views[other])),
        )
        loss = loss + 2 + 2 * cosine(model.part("predictor")(p), t.detach() if stop_gradient else t)
    return loss


@pytest.mark.parametrize("stop_gradient", [True, False])
def test_reference_code_the_first_target_is_the_online_network(
    stop_gradient: bool, build: Callable[..., Model], views: list[Tensor], rng: torch.Generator
) -> None:
    objective = BYOL(target="reference-code", stop_gradient=stop_gradient, momentum=0.99)
    model, other = build(objective), build(objective)
    objective.before_round(model)
    for _ in range(2):
        expected = naive_first_round(other, views, stop_gradient)
        torch.testing.assert_close(objective.loss(model, views, None, rng), expected)
        step(objective, model, views, rng)
        optimizer = torch.optim.SGD(objective.trained(other), lr=0.1)
        naive_first_round(other, views, stop_gradient).backward()
        optimizer.step()
        optimizer.zero_grad()
        online = dict(model.named_parameters())
        for name, value in dict(other.named_parameters()).items():
            if not name.startswith("target."):
                torch.testing.assert_close(online[name], value, rtol=1e-4, atol=1e-6)
        for name, value in targets(model).items():
            assert torch.equal(value, online[name.removeprefix("target.")])


@pytest.mark.parametrize("stop_gradient", [True, False])
@pytest.mark.parametrize("ema", [True, False])
def test_reference_code_later_targets_are_not_optimized(
    stop_gradient: bool, ema: bool, build: Callable[..., Model], views: list[Tensor], rng: torch.Generator
) -> None:
    """From the second round on it is BYOL with stop-gradient, whatever the option."""
    objective = BYOL(target="reference-code", stop_gradient=stop_gradient, ema=ema, momentum=0.5)
    plain = BYOL(ema=ema, momentum=0.5)
    model, other = build(objective), build(plain)
    for _ in range(2):
        objective.before_round(model)
    plain.before_round(other)
    for _ in range(2):
        step(objective, model, views, rng)
        step(plain, other, views, rng)
    state = model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in other.state_dict().items())
    assert set(state) - set(other.state_dict()) == {"rounds.count"}


def test_reference_code_rounds_are_counted_by_the_client(tmp_path: Path) -> None:
    """Without EMA the target stays what the first round left; with update-both it is the global model."""
    objective = {"name": "byol", "target": "reference-code", "ema": False}
    first, third = (
        memory_of(small_run(tmp_path / f"{rounds}", objective=objective, rounds=rounds)) for rounds in (1, 3)
    )
    assert (int(first["rounds.count"]), int(third["rounds.count"])) == (1, 3)
    targets = [name for name in first if name.endswith("conv1.weight")]
    assert targets
    assert all(torch.equal(first[name], third[name]) for name in targets)
    both = small_run(tmp_path / "both", objective=objective, **{"method.update_both": True})
    assert set(memory_of(both)) == {"rounds.count"}


def memory_of(run: fedssl.Run) -> dict[str, Tensor]:
    """The memory of client 0 after the last round."""
    (file,) = (run.path / "checkpoints" / "clients" / "0").glob("round-*")
    return load_tensors(file)[0]
