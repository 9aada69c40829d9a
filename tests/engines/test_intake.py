"""Limits on the effect of one upload, with numbers that can be checked on paper."""

import pytest
import torch
from tests.small import digest, small_run

from fedssl.engines.intake import Intake
from fedssl.engines.options import ParticipationConfig
from fedssl.engines.tasks import Outcome
from fedssl.state import Upload

LIMITS = ParticipationConfig(max_change=10.0)
GLOBAL = {"w": torch.tensor([3.0, 4.0]), "n": torch.tensor(0)}  # norm 5


def outcome(client: int, distance: float = 1.0, images: int = 10, **others: torch.Tensor) -> Outcome:
    state = {"w": torch.tensor([3.0, 4.0 + distance]), "n": torch.tensor(10**6), **others}
    return Outcome(client, Upload(client, state, images))


def receive(intake: Intake, *outcomes: Outcome, sent=(GLOBAL,)) -> tuple[list[int], list[int]]:
    """The clients that are added immediately, and those at the end."""
    at_once = [ready.client for each in outcomes for ready in intake.receive(each, list(sent))]
    return at_once, [ready.client for ready in intake.finish() if not ready.failure]


def test_unlimited_uploads_pass_immediately():
    intake = Intake(LIMITS, sizes=[10, 10, 100])
    first = outcome(0)
    state = first.upload.state
    assert receive(intake, first, outcome(1), outcome(2, images=100)) == ([0, 1, 2], [])
    assert first.upload.state is state


def test_a_client_counts_for_at_most_ten_median_clients():
    outcomes = [outcome(0, images=8), outcome(1, images=10**12), outcome(2, images=12), outcome(3, images=20)]
    assert receive(Intake(LIMITS, sizes=[0, 0, 0, 0]), *outcomes) == ([0], [1, 2, 3])
    # Sizes 8, 12, 20, 10¹²: the lower median is 12.
    assert [each.upload.num_samples for each in outcomes] == [8, 120, 12, 20]
    assert outcomes[1].upload.values == {"claimed_images": 10**12}
    assert outcomes[2].upload.values == {}


def test_the_weight_limit_can_be_turned_off():
    outcomes = [outcome(0, images=1), outcome(1, images=10**12)]
    assert receive(Intake(ParticipationConfig(max_weight=0), [1, 10**12]), *outcomes) == ([0, 1], [])
    assert outcomes[1].upload.num_samples == 10**12


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_single_upload_that_is_too_far_is_refused(place):
    outcomes = [outcome(client, distance=50.1 if client == place else 1.0) for client in range(3)]
    at_once, later = receive(Intake(LIMITS, [10, 10, 10]), *outcomes)
    assert at_once + later == [client for client in range(3) if client != place]
    assert outcomes[place].failure == (
        "is 10.0 global norms from the global model: participation.max_change is 10"
    )


def test_a_distance_within_the_limit():
    assert receive(Intake(LIMITS, [10, 10]), outcome(0, 49.9), outcome(1)) == ([0, 1], [])
    assert receive(Intake(ParticipationConfig(max_change=0), [10]), outcome(0, 1e6)) == ([0], [])


def test_a_single_client_is_compared_with_the_global_model():
    assert receive(Intake(LIMITS, [10]), outcome(0, 50.1)) == ([], [])


def test_honest_clients_are_accepted_after_a_hijacked_round():
    """All of them are far from the global model; a client that is ten times further is refused."""
    outcomes = [outcome(0, 800), outcome(1, 1000), outcome(2, 900), outcome(3, 9001), outcome(4, 8999)]
    assert receive(Intake(LIMITS, [10] * 5), *outcomes) == ([], [0, 1, 2, 4])


def test_a_global_model_of_zeros_has_no_norm_to_compare_with():
    zeros = {"w": torch.zeros(2), "n": torch.tensor(0)}
    assert receive(Intake(LIMITS, [10]), outcome(0), sent=(zeros,)) == ([0], [])


def test_the_distance_is_from_the_closest_of_several_clusters():
    other = {"w": torch.tensor([3.0, 104.0]), "n": torch.tensor(0)}
    assert receive(Intake(LIMITS, [10]), outcome(0, 100.0), sent=(GLOBAL, other)) == ([0], [])


def test_long_updates_are_clipped_to_a_multiple_of_the_median():
    outcomes = [outcome(0, 1.0), outcome(1, 2.0), outcome(2, 10.0), outcome(3, 4.0)]
    limits = ParticipationConfig(clip=1.5)
    assert receive(Intake(limits, [10] * 4), *outcomes) == ([], [0, 1, 2, 3])
    # Lengths 1, 2, 4, 10: the lower median is 2, and the longest update may be 3.
    assert [each.upload.state["w"].tolist() for each in outcomes] == [[3, 5], [3, 6], [3, 7], [3, 7]]
    assert outcomes[2].upload.values == pytest.approx({"clipped_to": 0.3})
    assert outcomes[0].upload.values == {}
    assert outcomes[2].upload.state["n"] == 10**6


def test_statistics_are_clipped_separately():
    """Central weights do not let through statistics that are far from those of the others."""
    sent = {**GLOBAL, "var": torch.tensor([1.0])}
    outcomes = [outcome(client, var=torch.tensor([1.0 + v])) for client, v in enumerate((1.0, 2.0, 40.0))]
    intake = Intake(ParticipationConfig(clip=2.0), [10] * 3, frozenset({"var"}))
    receive(intake, *outcomes, sent=(sent,))
    assert [each.upload.state["var"].item() for each in outcomes] == [2.0, 3.0, 5.0]
    assert outcomes[2].upload.state["w"].tolist() == [3.0, 5.0]


def test_waiting_uploads_are_copies():
    """Clients trained in this process reuse the tensors of one model."""
    waiting = outcome(0, images=1000)
    tensors = waiting.upload.state
    intake = Intake(LIMITS, [1, 1000])
    assert intake.receive(waiting, [GLOBAL]) == []
    tensors["w"].zero_()
    assert next(iter(intake.finish())).upload.state["w"].tolist() == [3.0, 5.0]


def test_sums_and_masked_uploads_pass():
    intake = Intake(ParticipationConfig(clip=1.0), [0, 0], sees_models=False)
    assert receive(intake, outcome(0, 1e9, 10**12), outcome(1)) == ([0, 1], [])


LARGE = "./large.py:Large"
CODE = """
from fedssl.methods.fedavg import FedAvg


class Large(FedAvg):
    def train(self, client):
        training = super().train(client)
        if client.id == 0:
            client.images = Many(client.images)
        return training


class Many:
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return 10**12

    def __getattr__(self, name):
        return getattr(self.images, name)
"""


def test_a_run_with_a_client_that_claims_a_trillion_images(tmp_path, monkeypatch):
    (tmp_path / "large.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    keys = {"method": LARGE, "rounds": 2}
    bounded = small_run(tmp_path / "bounded", **keys)
    owned = small_run(tmp_path / "owned", **keys, **{"participation.max_weight": 0.0})
    sizes = [client["images"] for client in bounded.metrics[0]["clients"]]
    assert bounded.metrics[0]["clients"][0]["claimed_images"] == 10**12
    assert sizes[0] == 10 * sorted(sizes)[(len(sizes) - 1) // 2]
    assert not any(line["failed"] for line in bounded.metrics)
    assert digest(bounded) != digest(owned)


def test_waiting_does_not_change_bits(tmp_path):
    """A limit that no update reaches makes all uploads wait and changes nothing."""
    keys = {"partition": {"scheme": "dirichlet", "clients": 4, "alpha": 0.5}, "rounds": 2}
    free = small_run(tmp_path / "free", **keys)
    held = small_run(tmp_path / "held", **keys, **{"participation.clip": 1e6})
    assert digest(free) == digest(held)
