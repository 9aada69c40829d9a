"""Properties of all objectives, on all encoders."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from tests.small import GENERATIVE
from torch import Tensor, nn

from fedssl.errors import ConfigError
from fedssl.models import ENCODERS
from fedssl.models.model import Model, Role
from fedssl.objectives import OBJECTIVES
from fedssl.objectives.objective import Objective
from fedssl.objectives.simclr import nt_xent
from fedssl.options import choose
from fedssl.state import restore, snapshot

LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
EVERY = [name for name in OBJECTIVES if name not in GENERATIVE]
MASKED = ("mae", "simmim")  # of transformers only
CONVOLUTIONAL = [name for name in EVERY if name not in MASKED]


def make(name: str, **options: object) -> Objective:
    if name.startswith("moco"):
        options.setdefault("queue", 16)
    if name == "mae":
        options.update(decoder_width=12, decoder_depth=1)
    objective: Objective = choose(OBJECTIVES, {"name": name, **options}, "objective")
    return objective


def measured(objective: Objective, model: Model, views: list[Tensor]) -> Tensor:
    """The loss with fixed random numbers; a queue or a center is not changed."""
    queue = snapshot(model, model.names_under(["queue", "center"]))
    loss = objective.loss(model, views[: objective.num_views], LABELS, torch.Generator().manual_seed(0))
    restore(model, queue)
    return loss


@pytest.mark.parametrize(
    ("name", "encoder"),
    [
        *((name, encoder) for name in CONVOLUTIONAL for encoder in (*ENCODERS, "timm:mobilenetv3_small_050")),
        *((name, "vit_tiny") for name in MASKED),
    ],
)
def test_loss_falls_on_a_fixed_batch(
    name: str, encoder: str, build: Callable[..., Model], views: list[Tensor]
) -> None:
    objective = make(name)
    model = build(objective, encoder)
    # At 0.01 this is no descent on all encoders.
    optimizer = torch.optim.SGD(objective.trained(model), lr=0.003, momentum=0.9)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = measured(objective, model, views)
        loss.backward()
        optimizer.step()
        objective.after_step(model)
        losses.append(float(loss.detach()))
    assert min(losses[-2:]) < losses[0]


@pytest.mark.parametrize("name", EVERY)
def test_every_trained_parameter_takes_part(
    name: str, build: Callable[..., Model], views: list[Tensor]
) -> None:
    objective = make(name)
    model = build(objective, "vit_tiny" if name in MASKED else "resnet8")
    measured(objective, model, views).backward()
    assert all(parameter.grad is not None for parameter in objective.trained(model))
    shared = set(map(id, model.parameters_under(["encoder", "projector", "predictor"]).values()))
    assert shared <= set(map(id, objective.trained(model)))


@pytest.mark.parametrize("name", EVERY)
def test_parts_and_roles(name: str, build: Callable[..., Model]) -> None:
    model = build(make(name), "vit_tiny" if name in MASKED else "resnet8")
    expected = {
        "encoder": Role.SHARED,
        "projector": Role.SHARED,
        "predictor": Role.SHARED,
        "classifier": Role.SHARED,
        "decoder": Role.SHARED,
        "target": Role.PRIVATE,
        "queue": Role.PRIVATE,
        "center": Role.PRIVATE,
        "positions": Role.DERIVED,
    }
    parts = {
        "simclr": "encoder projector",
        "dcl": "encoder projector",
        "align-uniform": "encoder projector",
        "vicreg": "encoder projector",
        "sigreg": "encoder projector",
        "moco-v1": "encoder projector target queue",
        "moco-v2": "encoder projector target queue",
        "simsiam": "encoder projector predictor",
        "byol": "encoder projector predictor target",
        "barlow-twins": "encoder projector",
        "dino": "encoder projector target center",
        "mae": "encoder decoder positions",
        "simmim": "encoder decoder",
        "supervised": "encoder classifier",
    }
    assert model.roles == {part: expected[part] for part in parts[name].split()}
    assert model.copies == ({"target": ("encoder", "projector")} if "target" in parts[name] else {})


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_the_order_of_images_does_not_matter(
    name: str, build: Callable[..., Model], views: list[Tensor]
) -> None:
    """Except for masked images, whose masks depend on the position in the batch."""
    objective = make(name)
    model = build(objective)
    order = torch.tensor([5, 3, 0, 1, 4, 2])
    loss = measured(objective, model, views)
    queue = snapshot(model, model.names_under(["queue", "center"]))
    shuffled = objective.loss(
        model,
        [view[order] for view in views][: objective.num_views],
        LABELS[order],
        torch.Generator().manual_seed(0),
    )
    restore(model, queue)
    torch.testing.assert_close(loss, shuffled, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_an_objective_has_no_state(name: str, build: Callable[..., Model], views: list[Tensor]) -> None:
    """A model's copy under another instance of the objective takes the same step, bit for bit."""
    model = build(make(name), "vit_tiny" if name in MASKED else "resnet8")
    twin = copy.deepcopy(model)
    states = []
    for own, objective in ((model, make(name)), (twin, make(name))):
        optimizer = torch.optim.SGD(objective.trained(own), lr=0.1)
        for seed in (1, 2):
            optimizer.zero_grad()
            rng = torch.Generator().manual_seed(seed)
            objective.loss(own, views[: objective.num_views], LABELS, rng).backward()
            optimizer.step()
            objective.after_step(own)
        states.append(own.state_dict())
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize("name", EVERY)
def test_bfloat16_networks_have_float32_losses(
    name: str, build: Callable[..., Model], views: list[Tensor]
) -> None:
    objective = make(name)
    model = build(objective, "vit_tiny" if name in MASKED else "resnet8")
    exact = measured(objective, copy.deepcopy(model), views)
    # Without oneDNN, whose bfloat16 kernels kill the process on virtual machines that announce AMX
    # and do not have it.
    with torch.backends.mkldnn.flags(enabled=False):
        with torch.autocast("cpu", torch.bfloat16):
            loss = measured(objective, model, views)
        loss.backward()
    assert loss.dtype == torch.float32
    assert float(loss.detach()) == pytest.approx(float(exact.detach()), rel=0.1)
    objective.after_step(model)
    assert all(torch.isfinite(parameter.grad).all() for parameter in objective.trained(model))


def test_full_precision_is_that_of_the_widened_numbers() -> None:
    """Under autocast a matrix product would be rounded to bfloat16 again; in a loss it is not."""
    z = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = nt_xent(z, 0.5)
    assert torch.equal(loss, nt_xent(z.float(), 0.5))
    loss.backward()
    assert z.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("name", EVERY)
def test_views_have_a_recipe(name: str) -> None:
    from fedssl.data import VIEWS

    assert make(name).views in VIEWS


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("byol", {"momentum": 1.5}, "objective.momentum=1.5"),
        ("simclr", {"temperature": 0}, "objective.temperature=0"),
        ("simclr", {"temprature": 0.1}, "did you mean temperature"),
        ("moco-v2", {"queue": 0}, "objective.queue=0"),
        ("barlow-twins", {"off_diagonal": -1}, "objective.off_diagonal=-1"),
        ("mae", {"mask_ratio": 1.0}, "objective.mask_ratio=1.0"),
    ],
)
def test_bad_options(name: str, options: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        choose(OBJECTIVES, {"name": name, **options}, "objective")


def test_heads_are_separate_modules_of_the_model(build: Callable[..., Model]) -> None:
    """An optimizer that walks the model meets every tensor once."""
    model = build(make("byol"))
    modules: list[nn.Module] = list(model.modules())
    assert len(set(map(id, modules))) == len(modules)
