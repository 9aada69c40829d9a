import pytest
import torch
from tests.toys import byol_like

from fedssl.engines.check import problem_with
from fedssl.state import Upload

EXPECTED = {"w": torch.zeros(2, 3), "n": torch.tensor(0)}


def upload(**changes):
    state = {"w": torch.ones(2, 3), "n": torch.tensor(1)}
    numbers = {"num_samples": 5, "loss": 0.5}
    for key, value in changes.items():
        (numbers if key in numbers else state)[key] = value
    return Upload(0, {name: value for name, value in state.items() if value is not None}, **numbers)


def test_a_good_upload_has_no_problem():
    assert problem_with(upload(), EXPECTED) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"w": torch.full((2, 3), torch.nan)}, "w is not finite"),
        ({"w": torch.tensor([[torch.inf, -torch.inf, 0.0]] * 2)}, "w is not finite"),
        ({"w": torch.ones(3, 2)}, "shape (3, 2), not (2, 3)"),
        ({"w": torch.ones(2, 3, dtype=torch.float64)}, "float64"),
        ({"w": None}, "1 tensors are missing, among them w"),
        ({"secret": torch.ones(1)}, "are unexpected, among them secret"),
        ({"loss": float("nan")}, "loss is nan"),
        ({"num_samples": 0}, "num_samples is 0"),
        ({"loss": 1e308}, "loss is 1e+308"),
        ({"loss": -1e308}, "loss is -1e+308"),
        ({"w": torch.full((2, 3), 1e30)}, "w has values up to 1e+30"),
        ({"w": torch.tensor([[-1e30, 0, 0], [0, 0, 0]])}, "w has values up to 1e+30"),
        ({"n": torch.tensor(2**63 - 1)}, "n has counted to 9,223,372,036,854,775,807"),
        ({"n": torch.tensor(-(2**63))}, "n has counted to -9,223,372,036,854,775,808"),
    ],
)
def test_a_bad_upload_is_named_with_its_reason(changes, said):
    assert said in problem_with(upload(**changes), EXPECTED)


def test_a_variance_is_not_negative():
    """Under Krum, which chose by weights alone, one client of ten with running_var −1 took over the model."""
    negative = {"w": torch.tensor([[1.0, 2.0, -1e-3], [1.0, 1.0, 1.0]])}
    assert problem_with(upload(**negative), EXPECTED) == ""
    said = problem_with(upload(**negative), EXPECTED, variances={"w"})
    assert said == "w has a negative variance, -0.001"


def test_variances_are_found_by_module_type():
    model = byol_like()
    assert model.variances() == {
        f"{part}.norm.running_var" for part in ("encoder", "projector", "predictor")
    } | {f"target.{part}.norm.running_var" for part in ("encoder", "projector")}


def test_claimed_images_and_other_numbers():
    assert problem_with(upload(num_samples=11), EXPECTED, max_images=10) == (
        "num_samples is 11, but participation.max_images is 10"
    )
    assert problem_with(upload(num_samples=10), EXPECTED, max_images=10) == ""
    odd = upload()
    odd.values = {"cluster": 1, "mu": float("nan")}
    assert problem_with(odd, EXPECTED) == "mu is nan"
    for value in (1e308, -1e308, 2**80):
        odd.values = {"mu": value}
        assert problem_with(odd, EXPECTED) == f"mu is {value}"
