"""The mean of late models: by hand, in a run, and after a stop."""

from __future__ import annotations

import pytest
import torch

from fedssl.aggregation.late_average import average_late
from fedssl.engines.checkpoint import load_checkpoint
from fedssl.state import ServerState
from tests.small import digest, small_run


def after(share: float, values: list[float]) -> list[float]:
    """The server's model after every round, for given global models."""
    found, memory = [], {}
    for round, value in enumerate(values, start=1):
        server = ServerState({"w": torch.tensor([value]), "n": torch.tensor(round)}, memory=memory)
        server = average_late(server, round, len(values), share)
        memory = server.memory
        found.append(server.model["w"].item())
        assert server.model["n"].item() == round
    assert not memory
    return found


@pytest.mark.parametrize(
    ("share", "last"),
    [(0.0, 32.0), (0.2, 32.0), (0.4, 24.0), (0.6, 56 / 3), (1.0, 62 / 5), (0.01, 32.0)],
)
def test_by_hand(share: float, last: float) -> None:
    """Models 2, 4, 8, 16, 32: only the last one is changed, to the mean of the last one, two, three, five."""
    found = after(share, [2.0, 4.0, 8.0, 16.0, 32.0])
    assert found == pytest.approx([2, 4, 8, 16, last])


def test_clusters_have_means_of_their_own() -> None:
    first = ServerState(clusters=[{"w": torch.tensor(1.0)}, {"w": torch.tensor(10.0)}])
    second = ServerState(clusters=[{"w": torch.tensor(3.0)}, {"w": torch.tensor(30.0)}])
    second.memory = average_late(first, 1, 2, 1.0).memory
    assert [model["w"].item() for model in average_late(second, 2, 2, 1.0).clusters] == [2.0, 20.0]


def test_a_run_ends_with_the_mean_of_its_checkpoints(tmp_path) -> None:
    keys = {"rounds": 4, "checkpoint.every": 1, "checkpoint.keep": 0, "train.schedule": "constant"}
    plain = small_run(tmp_path / "plain", **keys)
    averaged = small_run(tmp_path / "averaged", **keys, **{"server.average": 0.5})
    folder = plain.path / "checkpoints"
    third, fourth = (load_checkpoint(folder / f"round-00000{n}.safetensors", n).server.model for n in (3, 4))
    for name, value in averaged.encoder.state_dict().items():
        both = [state[f"encoder.{name}"] for state in (third, fourth)]
        expected = sum(both) / 2 if value.is_floating_point() else both[1]
        torch.testing.assert_close(value, expected)
    assert digest(plain) != digest(averaged)
    assert [line["loss"] for line in plain.metrics] == [line["loss"] for line in averaged.metrics]
