"""Dec-SL, the classifier trained end to end with the encoder; Dec-SLRep; fewer labels."""

import pytest
import torch
from tests.small import small_run

from fedssl.data.views import plain
from fedssl.errors import ConfigError
from fedssl.evaluation.loaded import load_run

SUPERVISED = {
    "objective": "supervised",
    "data": {"name": "digits", "limit": 200},
    "partition": {"scheme": "iid", "clients": 2},
    "train": {"epochs": 4, "batch_size": 20, "lr": 0.05},
    "rounds": 2,
    "probe.protocol": "linear",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("runs") / "a", **SUPERVISED)


def test_the_result_contains_classifier_and_probes(run):
    entries = {entry["protocol"]: entry for entry in run.result["probes"]}
    assert list(entries) == ["linear", "knn", "classifier"]
    classifier = entries["classifier"]
    assert classifier["model"] == "global"
    assert classifier["accuracy"] > 0.25 > classifier["untrained"]  # of ten classes
    assert classifier["accuracy"] != entries["linear"]["accuracy"]


def test_its_accuracy_is_that_of_the_network_on_test_images(run):
    finished = load_run(run.directory, {})
    owned = finished.models.exported(finished.server, finished.memory_rounds)
    encoder, classifier = owned.module.eval(), owned.classifier
    test = finished.federation.test
    with torch.no_grad():
        predicted = classifier(encoder(plain(test.x, 0.5, 0.25))).argmax(dim=1)
    assert run.result["probes"][2]["accuracy"] == pytest.approx(float((predicted == test.y).float().mean()))
    assert torch.equal(classifier.weight, finished.server.model["classifier.weight"])


def test_personal_encoders_have_personal_classifiers(tmp_path):
    """Like FedPer: classifiers are not shared, so every client has its own."""
    keys = {**SUPERVISED, "rounds": 1, "train": {"epochs": 1, "batch_size": 20}}
    run = small_run(tmp_path / "a", **keys, method="standalone")
    finished = load_run(run.directory, {})
    test, accuracies = finished.federation.test, []
    for client in (0, 1):
        owned = finished.models.personal_encoder(finished.server, finished.memory_rounds, client)
        encoder = owned.module.eval()
        with torch.no_grad():
            logits = owned.classifier(encoder(plain(test.x, 0.5, 0.25)))
        accuracies.append(float((logits.argmax(dim=1) == test.y).float().mean()))
    entry = run.result["probes"][2]
    assert entry["accuracy"] == pytest.approx(sum(accuracies) / 2)
    assert entry["model"] == "personal, mean of 2 clients"


def test_centralized_counterparts_come_from_the_same_command(tmp_path):
    run = small_run(tmp_path / "a", **{**SUPERVISED, "rounds": 1}, method="centralized")
    assert [entry["protocol"] for entry in run.result["probes"]] == ["linear", "knn", "classifier"]
    assert len(run.metrics[0]["clients"]) == 1


def test_an_objective_without_a_classifier_has_no_such_number(run, tmp_path):
    other = small_run(tmp_path / "a", rounds=1)
    finished = load_run(other.directory, {})
    assert not finished.models.classifies
    prober = load_run(run.directory, {}).prober(finished.federation.train, finished.federation.test)
    with pytest.raises(ConfigError, match=r"only objective\.name=supervised trains a classifier"):
        prober.run_all(finished.models.untrained(), ["classifier"])


def test_transfer_uses_the_share_of_labels_that_it_is_given(run):
    other = {"data.name": "mnist5k", "data.limit": 300, "data.test_fraction": 0.05}
    found = {share: run.probe("transfer", **other, **{"probe.labels": share}) for share in (1.0, 0.1, 0.01)}
    trained_on = {share: int(entry["images"].split()[1]) for share, entry in found.items()}
    assert trained_on == {1.0: 300, 0.1: 30, 0.01: 10}  # at least one of each class
    assert all(entry["pretrained_on"] == "digits" for entry in found.values())
    assert len({entry["images"].split(", ")[1] for entry in found.values()}) == 1  # the same test images
    assert found[1.0]["accuracy"] > found[0.01]["accuracy"]
