"""Probes at sites, compared with an independent calculation; sites without labels or with false numbers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from tests.small import SMALL

from fedssl.config import load
from fedssl.engines.tasks import Outcome
from fedssl.errors import ConfigError
from fedssl.evaluation.sites import Answers, read_answers, split
from fedssl.state import Upload

pytest.importorskip("flwr")

from tests.engines.flower.grid import FakeGrid, FakeNode, at_sites, run_with

import fedssl
from fedssl.engines.flower import messages, nodes

NAMES = ["berlin", "paris", "rome"]
BASE = {**SMALL, "partition": {"scheme": "iid", "clients": 3}, "rounds": 2}
PROBES = {"probe.at_sites": True, "probe.every": 1, "probe.protocol": "linear"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(nodes, "GRID_RUNS", 0.01)


def make_sites(folder, labeled=(True, True, False)):
    """Sites with digits; with labels, each image is in a folder of its class."""
    digits, found = load_digits(), []
    for number, (name, known) in enumerate(zip(NAMES, labeled, strict=True)):
        for index in range(60 * number, 60 * number + 60):
            place = folder / name / (str(digits.target[index]) if known else "")
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray((digits.images[index] * 15).astype(np.uint8)).save(place / f"{index:04d}.png")
        about = {"data": str(folder / name), "state": str(folder / "state" / name), "name": name}
        found.append(FakeNode(100 + number, about, name))
    return found


# --- against a second calculation -----------------------------------------------------------------


def naive_knn(train, train_classes, test, test_classes, k=20, temperature=0.1):
    """Accuracy of k nearest neighbors by cosine, weighted by exp(cos/T)."""
    right = 0
    for vector, truth in zip(test, test_classes, strict=True):
        cosines = [
            (float(vector @ other), int(kind)) for other, kind in zip(train, train_classes, strict=True)
        ]
        votes: dict[int, float] = {}
        for cosine, kind in sorted(cosines, reverse=True)[:k]:
            votes[kind] = votes.get(kind, 0.0) + math.exp(cosine / temperature)
        right += max(votes, key=lambda kind: votes[kind]) == int(truth)
    return right / len(test)


def naive_site_knn(run, folder, tested):
    """kNN accuracy of a run's encoder on the files of a site; test images are given by number."""
    files = sorted(folder.rglob("*.png"))
    pixels = np.stack([np.asarray(Image.open(file), dtype=np.float32)[None] / 255 for file in files])
    about = json.loads((run.path / "encoder.json").read_text())["input"]
    mean, std = (torch.tensor(about[name]).view(1, -1, 1, 1) for name in ("mean", "std"))
    encoder = run.encoder.eval().cpu()
    with torch.no_grad():
        features = encoder((torch.from_numpy(pixels) - mean) / std)
    features = torch.nn.functional.normalize(features).numpy()
    classes = np.array([int(file.parent.name) for file in files])
    held = np.isin(np.arange(len(files)), tested)
    return naive_knn(features[~held], classes[~held], features[held], classes[held])


def test_accuracies_equal_an_independent_calculation(tmp_path, monkeypatch):
    from fedssl.evaluation import sites

    seen = []
    real = sites.split
    monkeypatch.setattr(sites, "split", lambda *given: seen.append(real(*given)) or seen[-1])
    config = at_sites(BASE, NAMES, **PROBES)
    notes = run_with(FakeGrid(make_sites(tmp_path / "images")), config, tmp_path / "run")
    run = fedssl.Run(tmp_path / "run")
    linear, knn = run.result["probes"]
    assert (linear["protocol"], knn["protocol"]) == ("linear at sites", "knn at sites")
    assert [site["site"] for site in knn["sites"]] == ["berlin", "paris"]
    for site, (_, tested) in zip(knn["sites"], seen[-2:], strict=True):
        expected = naive_site_knn(run, tmp_path / "images" / site["site"], tested.numpy())
        assert site["accuracy"] == pytest.approx(expected)
        assert site["images"] == len(tested)
    accuracies = [site["accuracy"] for site in knn["sites"]]
    assert knn["accuracy"] == pytest.approx(np.mean(accuracies))
    assert knn["spread"] == pytest.approx(np.std(accuracies, ddof=1))
    reason = "no probe: the images have no labels (one folder for each class)"
    assert knn["left_out"] == [{"site": "rome", "reason": reason}]
    assert f"rome sent no accuracies: {reason}" in notes.said
    assert run.result["why_no_probes"] == ""
    assert run.metrics[-1]["probe"]["site_knn"] == pytest.approx(knn["accuracy"])


def test_probes_send_numbers_only_and_do_not_change_the_model(tmp_path):
    grid = FakeGrid(make_sites(tmp_path / "images"))
    run_with(grid, at_sites(BASE, NAMES, **PROBES), tmp_path / "with")
    plain = FakeGrid(make_sites(tmp_path / "others"))
    run_with(plain, at_sites(BASE, NAMES, **{"probe.every": 0}), tmp_path / "without")
    first, second = (fedssl.Run(tmp_path / name).encoder.state_dict() for name in ("with", "without"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    asked = [
        message.metadata.message_id
        for message in grid.down
        if json.loads(message.content["text"]["json"]).get("measure") in ("monitor", "probes")
    ]
    answers = [reply for reply in grid.up if reply.metadata.reply_to_message_id in asked]
    assert len(asked) == len(answers) == 3 * 3  # two monitors and the end, three sites
    for answer in answers:
        assert sum(map(len, messages.read_tensors(answer.content))) < 32  # no tensor
        assert len(answer.content["text"]["json"]) < 600


def test_a_site_with_an_encoder_of_its_own_probes_that(tmp_path):
    grid = FakeGrid(make_sites(tmp_path / "images", (True, True, True)))
    run_with(grid, at_sites(BASE, NAMES, method="fedbn", **PROBES), tmp_path / "run")
    (linear, _) = fedssl.Run(tmp_path / "run").result["probes"]
    assert linear["model"] == "each site's own"
    assert len(linear["sites"]) == 3


# --- sites without probes, or with false numbers --------------------------------------------------


def test_an_absent_site_only_misses_in_the_mean(tmp_path):
    found = make_sites(tmp_path / "images", (True, True, True))

    class Leaving(FakeGrid):
        def push_messages(self, pushed):
            if any(json.loads(each.content["text"]["json"]).get("measure") for each in pushed):
                found[1].online = False
            return super().push_messages(pushed)

    keys = {"participation.min_clients": 2, "rounds": 1, "probe.every": 0}
    run_with(Leaving(found), at_sites(BASE, NAMES, **{**PROBES, **keys}), tmp_path / "run")
    (linear, _) = fedssl.Run(tmp_path / "run").result["probes"]
    assert [site["site"] for site in linear["sites"]] == ["berlin", "rome"]
    assert [left["site"] for left in linear["left_out"]] == ["paris"]


def test_without_labels_anywhere_the_result_says_so(tmp_path):
    grid = FakeGrid(make_sites(tmp_path / "images", (False, False, False)))
    run_with(grid, at_sites(BASE, NAMES, **PROBES), tmp_path / "run")
    result = fedssl.Run(tmp_path / "run").result
    assert (result["probes"], result["why_no_probes"]) == ([], "no site sent accuracies")


def sent(client, **values):
    return Outcome(client, Upload(client, {}, 10, values=values))


def test_numbers_that_cannot_be_accuracies_are_refused():
    outcomes = [
        sent(2, knn=0.5, tested=9),
        sent(0, knn=1.5, tested=9),
        sent(1, knn=float("nan"), tested=9),
        sent(3, tested=9),
        Outcome(4, failure="out of memory"),
    ]
    refused = "sent numbers that cannot be accuracies"
    assert read_answers(outcomes, ["knn"]) == Answers(
        {2: {"knn": 0.5, "tested": 9.0}}, {0: refused, 1: refused, 3: refused, 4: "out of memory"}
    )


def test_test_images_are_a_share_of_each_class():
    labels = torch.tensor([0] * 10 + [1] * 5 + [2])
    train, test = split(labels, 0.2, seed=3)
    assert labels[test].tolist() == [0, 0, 1]  # of one image none can be tested
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(16))
    assert all(torch.equal(a, b) for a, b in zip(split(labels, 0.2, seed=3), (train, test), strict=True))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "is for `fedssl server`"),
        ({"engine.name": "flower", "engine.sites": NAMES, "privacy.mode": "client"}, "without the noise"),
    ],
)
def test_settings_without_probes_at_sites(keys, said):
    from fedssl.evaluation.sites import SiteProbes

    with pytest.raises(ConfigError, match=said):
        SiteProbes.of(load(BASE, {**PROBES, **keys}), None)  # type: ignore[arg-type]
