"""Generalization, personalization and style features of whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.small import small_run
from torch import nn

import fedssl
from fedssl.data.images import ImageSet
from fedssl.errors import ConfigError, DataError
from fedssl.evaluation import linear
from fedssl.evaluation.features import extract
from fedssl.evaluation.loaded import load_run
from fedssl.evaluation.options import ProbeConfig
from fedssl.evaluation.style_features import (
    StyleFeatures,
    nearest_is_same_client,
    nearest_is_same_style,
    style_features,
)
from fedssl.evaluation.styles import own_encoder
from fedssl.evaluation.tuned import fit_tuned
from fedssl.rng import torch_rng
from fedssl.state import ServerState

STYLES: dict[str, Any] = {
    "data": {"name": "digits+mnist5k", "limit": 80, "size": 8, "test_fraction": 0.02},
    "partition": {"scheme": "domain", "per_domain": 2},
    "train.lr": 0.02,
    "probe.epochs": 3,
}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory: pytest.TempPathFactory) -> fedssl.Run:
    return small_run(tmp_path_factory.mktemp("runs") / "fedavg", **STYLES)


@pytest.fixture(scope="module")
def fedstyle(tmp_path_factory: pytest.TempPathFactory) -> fedssl.Run:
    method = {"name": "fedstyle", "style_epochs": 2}
    return small_run(tmp_path_factory.mktemp("runs") / "fedstyle", method=method, **STYLES)


def accuracy(encoder: nn.Module, train: ImageSet, test: ImageSet) -> float:
    """The linear probe, step by step."""
    features = [extract(encoder, images, mean=0.5, std=0.25, device=CPU) for images in (train, test)]
    assert train.y is not None
    probe = linear.fit(features[0], train.y, len(train.classes))
    return float((probe.predict(features[1]) == test.y).double().mean())


def of_style(images: ImageSet | None, style: int) -> ImageSet:
    assert images is not None
    assert images.domain is not None
    return images.subset((images.domain == style).nonzero().flatten())


def test_generalization_is_a_probe_for_each_style_on_the_global_encoder(fedavg: fedssl.Run) -> None:
    found = fedavg.probe("generalization")
    run = load_run(fedavg.directory, {})
    encoder = run.models.exported(run.server, run.memory_rounds).module
    train, test = run.federation.train, run.federation.test
    expected = [accuracy(encoder, of_style(train, style), of_style(test, style)) for style in (0, 1)]
    assert [row["style"] for row in found["styles"]] == ["digits", "mnist5k"]
    assert [row["accuracy"] for row in found["styles"]] == pytest.approx(expected)
    assert found["accuracy"] == pytest.approx(sum(expected) / 2)
    assert found["model"] == "global"
    untrained = run.models.untrained()
    before = [accuracy(untrained, of_style(train, style), of_style(test, style)) for style in (0, 1)]
    assert [row["untrained"] for row in found["styles"]] == pytest.approx(before)


def test_personalization_is_a_probe_of_each_client_on_its_own_images(fedavg: fedssl.Run) -> None:
    found = fedavg.probe("personal")
    run = load_run(fedavg.directory, {})
    encoder = run.models.personal(run.server, run.memory_rounds, 3)
    own = run.federation.train.subset(run.federation.parts[3])
    expected = accuracy(encoder, own, of_style(run.federation.test, 1))
    assert [row["style"] for row in found["clients"]] == ["digits", "digits", "mnist5k", "mnist5k"]
    assert found["clients"][3]["accuracy"] == pytest.approx(expected)
    both = [row["accuracy"] for row in found["clients"][2:]]
    assert found["styles"][1] == pytest.approx(
        {**found["styles"][1], "style": "mnist5k", "clients": 2, "accuracy": sum(both) / 2}
    )
    assert found["accuracy"] == pytest.approx(sum(row["accuracy"] for row in found["clients"]) / 4)


def test_a_local_model_is_the_received_one_trained_by_its_client(fedavg: fedssl.Run) -> None:
    run = load_run(fedavg.directory, {"probe.local_epochs": 1.0})
    encoder = own_encoder(run, 0)
    trained = {name: value.clone() for name, value in encoder.state_dict().items()}
    received = run.models.personal(run.server, run.memory_rounds, 0).state_dict()
    assert not torch.equal(trained["conv1.weight"], received["conv1.weight"])
    again = load_run(fedavg.directory, {"probe.local_epochs": 1.0})
    own_encoder(again, 2)  # after another client on the same model
    repeated = own_encoder(again, 0).state_dict()
    assert all(torch.equal(value, trained[name]) for name, value in repeated.items())
    found = fedavg.probe("personal", **{"probe.local_epochs": 1.0})
    assert found["model"] == "personal, mean of 4 clients after 1 local epochs"


def test_fedstyle_tunes_its_generator_with_the_classifier(fedstyle: fedssl.Run) -> None:
    with_style = fedstyle.probe("personal")
    without = fedstyle.probe("personal", **{"method.stylized": False})
    run = load_run(fedstyle.directory, {})
    content = run.models._global(run.server.model, "global").module
    own = run.federation.train.subset(run.federation.parts[0])
    expected = accuracy(content, own, of_style(run.federation.test, 0))
    assert without["clients"][0]["accuracy"] == pytest.approx(expected)
    one, other = ([row["accuracy"] for row in found["clients"]] for found in (with_style, without))
    assert one != other
    assert fedstyle.probe("personal")["accuracy"] == with_style["accuracy"]  # nothing of the run is changed
    assert fedstyle.probe("generalization")["model"] == "global"


def test_the_command_shows_every_style(fedavg: fedssl.Run, capsys: pytest.CaptureFixture[str]) -> None:
    from fedssl.cli import main

    assert main(["eval", str(fedavg.path), "--protocol", "generalization"]) == 0
    shown = capsys.readouterr().out
    assert "generalization per style" in shown
    assert "mnist5k" in shown


def test_an_evaluation_changes_no_option_of_training(fedstyle: fedssl.Run, fedavg: fedssl.Run) -> None:
    with pytest.raises(ConfigError, match=r"method.infusion has no meaning.*method.stylized"):
        fedstyle.probe("personal", **{"method.infusion": 0.0})
    with pytest.raises(ConfigError, match=r"method.stylized has no meaning"):
        fedavg.probe("personal", **{"method.stylized": False})


def test_a_client_with_one_class_predicts_it_always(tmp_path: Path) -> None:
    run = small_run(tmp_path / "a", partition={"scheme": "one-class", "clients": 10}, rounds=1)
    found = run.probe("personal")
    finished = load_run(run.directory, {})
    test = finished.federation.test
    assert test is not None
    assert test.y is not None
    shares = (test.y.bincount().double() / len(test)).tolist()
    classes = [int(finished.federation.train.y[part[0]]) for part in finished.federation.parts]  # type: ignore[index]
    assert [row["accuracy"] for row in found["clients"]] == pytest.approx([shares[c] for c in classes])
    assert found["styles"] == []


def test_generalization_needs_styles(tmp_path: Path) -> None:
    run = small_run(tmp_path / "a", rounds=1)
    with pytest.raises(DataError, match=r"needs the style of each image, which digits does not have"):
        run.probe("generalization")


# --- the tuned part -------------------------------------------------------------------------------


class Product(nn.Module):
    """A part that can learn to make the sign of a product linear."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.hidden(x)


def test_a_tuned_part_solves_a_nonlinear_problem() -> None:
    x = torch.randn(400, 2, generator=torch_rng(0, "xor"))
    y = (x.prod(dim=1) > 0).long() * 2  # class 1 does not occur
    torch.manual_seed(0)
    part = Product()
    before = {name: value.clone() for name, value in part.state_dict().items()}
    config = ProbeConfig(epochs=60, batch_size=50, lr=0.02)
    tuned, probe = fit_tuned(part, x, y, 3, config, torch_rng(0, "fit"), CPU)
    with torch.no_grad():
        right = (probe.predict(tuned(x)) == y).double().mean()
    alone = (linear.fit(x, y, 3).predict(x) == y).double().mean()
    assert float(alone) < 0.7
    assert float(right) > 0.95
    after = part.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())  # a copy is tuned
    _, again = fit_tuned(part, x, y, 3, config, torch_rng(0, "fit"), CPU)
    assert torch.equal(again.weight, probe.weight)


def test_without_a_tuned_part_it_is_the_papers_linear_probe() -> None:
    x = torch.randn(60, 5, generator=torch_rng(0, "x"))
    y = torch.arange(60) % 3
    config = ProbeConfig(epochs=4, batch_size=16, lr=0.05)
    _, probe = fit_tuned(nn.Identity(), x, y, 3, config, torch_rng(0, "fit"), CPU)
    expected = linear.fit_epochs(
        x, y, 3, epochs=4, batch_size=16, lr=0.05, optimizer="adam", rng=torch_rng(0, "fit")
    )
    torch.testing.assert_close(probe.weight, expected.weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(probe.bias, expected.bias, rtol=1e-4, atol=1e-5)


# --- style features -------------------------------------------------------------------------------


def test_style_features_are_those_of_each_clients_own_encoder(fedstyle: fedssl.Run) -> None:
    run = load_run(fedstyle.directory, {})
    seen = style_features(run)
    assert seen.clients.bincount().tolist() == [20, 20, 20, 20]
    assert seen.styles is not None
    assert seen.styles.tolist() == [0] * 40 + [1] * 40
    run.models.load_client(run.server, run.memory_rounds, 2)
    own = run.federation.train.subset(run.federation.parts[2])
    encoder = run.models.runner.model.part("style.encoder")
    expected = extract(encoder, own, mean=0.5, std=0.25, device=CPU)
    torch.testing.assert_close(seen.features[40:60], expected)
    found = fedstyle.probe("style")
    assert found["accuracy"] == nearest_is_same_client(seen).accuracy
    assert found["gain"] == pytest.approx(found["accuracy"] - found["untrained"])


def test_the_nearest_neighbor_identifies_the_client() -> None:
    features = torch.tensor([[1.0, 0.0], [1.0, -0.2], [0.0, 1.0], [0.1, 3.0], [1.0, 0.09]])
    seen = StyleFeatures(features, torch.tensor([0, 0, 1, 1, 1]), None, ())
    # The last one is near client 0: it and the first are each other's nearest. The others are correct.
    assert nearest_is_same_client(seen).accuracy == pytest.approx(3 / 5)


def test_one_encoder_for_the_images_of_all_by_hand() -> None:
    features = torch.tensor([[1.0, 0.0], [1.0, -0.2], [0.0, 1.0], [0.1, 3.0], [1.0, 0.09]])
    styles = torch.tensor([0, 0, 1, 1, 0])
    seen = StyleFeatures(features, torch.tensor([0, 0, 1, 1, 1]), styles, ("a", "b"))
    assert nearest_is_same_style(seen).accuracy == 1.0
    with pytest.raises(ConfigError, match="images with styles, or a shift"):
        nearest_is_same_style(StyleFeatures(features, seen.clients, None, ()))


def test_one_encoder_is_that_of_each_client_in_turn(fedstyle: fedssl.Run) -> None:
    found = fedstyle.probe("style", **{"protocol.encoder": "one"})
    run = load_run(fedstyle.directory, {})
    train, parts = run.federation.train, run.federation.parts
    assert train.domain is not None
    chosen = torch.cat([torch.from_numpy(part) for part in parts])
    styles = train.domain[chosen]

    def accuracy_of(encoder: nn.Module) -> float:
        x = extract(encoder, train.subset(chosen), mean=0.5, std=0.25, device=CPU)
        unit = torch.nn.functional.normalize(x.double(), dim=1)
        similar = unit @ unit.T - 3 * torch.eye(len(x), dtype=torch.float64)
        return float((styles[similar.argmax(1)] == styles).double().mean())

    by_client = []
    for client in range(4):
        run.models.load_client(run.server, run.memory_rounds, client)
        by_client.append(accuracy_of(run.models.runner.model.part("style.encoder")))
    assert found["accuracy"] == pytest.approx(sum(by_client) / 4)
    assert found["model"] == "one client's style encoder, mean of 4 clients"
    assert found["content"] == pytest.approx(accuracy_of(run.models._global(run.server.model, "").module))
    run.models.untrained()
    assert found["untrained"] == pytest.approx(accuracy_of(run.models.runner.model.part("style.encoder")))


def test_only_fedstyle_has_style_features(fedavg: fedssl.Run) -> None:
    with pytest.raises(ConfigError, match="method fedavg has no style features"):
        fedavg.probe("style")


def test_the_server_state_contains_no_style(fedstyle: fedssl.Run) -> None:
    run = load_run(fedstyle.directory, {})
    assert isinstance(run.server, ServerState)
    assert {name.split(".")[0] for name in run.server.model} == {"encoder", "projector"}
