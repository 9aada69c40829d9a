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


def far(distance):
    """A global model of norm 5, and an upload at this distance from it; counters do not count."""
    expected = {"w": torch.tensor([3.0, 4.0]), "n": torch.tensor(0)}
    state = {"w": torch.tensor([3.0, 4.0 + distance]), "n": torch.tensor(10**6)}
    return Upload(0, state, 1), expected


def test_the_distance_from_the_global_model_is_in_units_of_its_norm():
    assert problem_with(*far(49.9), max_change=10.0) == ""
    assert problem_with(*far(50.1), max_change=10.0) == (
        "is 10.0 global norms from the global model: participation.max_change is 10"
    )
    assert problem_with(*far(1e6)) == ""


def test_a_global_model_of_zeros_has_no_norm_to_compare_with():
    assert problem_with(upload(), EXPECTED, max_change=1.0) == ""


def test_claimed_images_and_other_numbers():
    assert problem_with(upload(num_samples=11), EXPECTED, max_images=10) == (
        "num_samples is 11, and participation.max_images is 10"
    )
    assert problem_with(upload(num_samples=10), EXPECTED, max_images=10) == ""
    odd = upload()
    odd.values = {"cluster": 1, "mu": float("nan")}
    assert problem_with(odd, EXPECTED) == "mu is nan"
