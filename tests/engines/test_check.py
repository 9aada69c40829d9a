import pytest
import torch

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
        ({"secret": torch.ones(1)}, "do not belong there, among them secret"),
        ({"loss": float("nan")}, "loss is nan"),
        ({"num_samples": 0}, "num_samples is 0"),
    ],
)
def test_a_bad_upload_is_named_with_its_reason(changes, said):
    assert said in problem_with(upload(**changes), EXPECTED)
