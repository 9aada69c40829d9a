"""The uses of trained generators, each on a run of a second."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.linalg import sqrtm
from sklearn.metrics import top_k_accuracy_score

import fedssl
from fedssl import experiment
from fedssl.data.federation import ClientImages
from fedssl.errors import ConfigError, DataError
from fedssl.evaluation import linear
from fedssl.evaluation.loaded import load_run
from fedssl.generative.diversity import precision_and_recall, variety
from fedssl.generative.fid import describe_features, frechet
from fedssl.generative.grids import cross, sheet
from fedssl.generative.probing import Labeled, Scalars
from fedssl.generative.reference_classifier import load_reference_classifier
from fedssl.generative.reidentify import Reidentify
from fedssl.generative.restyle import Restyle, predict_labels
from fedssl.generative.sampling import ClientGenerators, recompute_statistics
from fedssl.generative.use import USES, generate
from fedssl.listener import Listener
from fedssl.options import choose
from fedssl.rundir import RunDir
from fedssl.tensorfile import load_tensors
from fedssl.use.export import export
from tests.generative.small import run_of

FEW = {"steps": 5, "batch": 8, "hidden": 8}


def generators_of(run: fedssl.Run) -> ClientGenerators:
    return ClientGenerators(load_run(run.directory, {}))


def test_an_exported_encoder_describes_itself(
    gan: fedssl.Run, conditional: fedssl.Run, tmp_path: Path
) -> None:
    """Neither `model.encoder` nor timm has such an encoder."""
    export(gan.path, "safetensors", tmp_path / "drawn.safetensors")
    assert "It only needs torch, timm and fedssl" in (tmp_path / "drawn.py").read_text()
    page = (tmp_path / "drawn.md").read_text()
    assert "(content encoder, 8 features" in page
    assert "It was trained without labels" in page
    export(conditional.path, "safetensors", tmp_path / "told.safetensors")
    assert "It was trained with labels" in (tmp_path / "told.md").read_text()


# --- sampling ---------------------------------------------------------------------------------------


def test_a_client_generates_with_the_shared_generator_and_its_own_style(gan: fedssl.Run) -> None:
    generators = generators_of(gan)
    one, two = generators.model(0).state_dict(), generators.model(1).state_dict()
    assert torch.equal(one["generator.linear.weight"], two["generator.linear.weight"])
    assert not torch.equal(one["vectorizer.layers.0.weight"], two["vectorizer.layers.0.weight"])
    latents = generators.latents(5, "here")
    drawn = generators.draw(0, latents)
    assert (drawn.shape, drawn.dtype) == ((5, 8, 8, 1), torch.uint8)
    assert torch.equal(drawn, generators_of(gan).draw(0, latents))
    assert not torch.equal(drawn, generators.draw(1, latents))


def test_an_image_does_not_depend_on_its_batch(gan: fedssl.Run) -> None:
    generators = generators_of(gan)
    many = generators.latents(12, "here")
    alone = generators.draw(0, type(many)(many.content[3:5], many.style[3:5]))
    difference = generators.draw(0, many)[3:5].int() - alone.int()
    assert int(difference.abs().max()) <= 1


def test_statistics_are_recomputed_on_generated_images(gan: fedssl.Run) -> None:
    """With them, evaluation gives what a large batch with its own statistics gives."""
    generators = generators_of(gan)
    model = generators.model(0)
    latents = generators.latents(2000, "large")
    with torch.no_grad():
        running = generators.objective.generate(model, latents)
        model.train()
        batch = generators.objective.generate(model, latents)
    recompute_statistics(generators.objective, model, generators.rng("settle"))
    assert float((running - batch).abs().mean()) < 0.03
    assert not any(module.training for module in model.modules())


def test_ditto_generates_with_the_personal_model(tmp_path: Path) -> None:
    generators = generators_of(run_of("gan", tmp_path / "run", method="padpaf-ditto", rounds=1))
    assert not generators.model(0).has("personal")
    one, two = (generators.model(client).state_dict()["generator.linear.weight"] for client in (0, 1))
    assert not torch.equal(one, two)


def test_real_images_have_the_clients_shift(gan: fedssl.Run) -> None:
    generators = generators_of(gan)
    test = generators.run.federation.test
    x, y = generators.test_images(1, 3)
    assert torch.equal(x, generators.run.trained.shift.apply(test.x[1::2][:3], 1, 2))
    assert torch.equal(y, test.y[1::2][:3])
    x, y = generators.train_images(0, 10**6)
    assert len(x) == len(y) == 30
    assert generators.seen_labels(0) == sorted(set(y.tolist()))


def test_a_run_without_a_generator_is_an_error(tmp_path: Path) -> None:
    from tests.small import small_run

    run = small_run(tmp_path / "run", rounds=1)
    with pytest.raises(ConfigError, match=r"objective\.name=simclr generates no images"):
        generate(run.directory, "grid", {})


# --- pictures ---------------------------------------------------------------------------------------


def test_a_sheet_places_images_row_by_row() -> None:
    images = torch.arange(1, 6, dtype=torch.uint8).view(5, 1, 1, 1).expand(5, 2, 3, 1)
    page = sheet(images, 3)
    assert page.shape == (7, 13, 1)
    assert [int(page[1, left, 0]) for left in (1, 5, 9)] == [1, 2, 3]
    assert [int(page[4, left, 0]) for left in (1, 5, 9)] == [4, 5, 128]


def test_a_grid_crosses_styles_with_contents(conditional: fedssl.Run) -> None:
    latents = cross(generators_of(conditional), 3, 12)
    content, style = latents.content.view(3, 12, -1), latents.style.view(3, 12, -1)
    assert torch.equal(content[0], content[2])
    assert torch.equal(style[:, 0], style[:, 11])
    assert not torch.equal(style[0], style[1])
    assert latents.labels.tolist() == ([*range(10), 0, 1] * 3)


@pytest.mark.parametrize(("what", "numbers"), [("grid", ["content_kept"]), ("clients", ["content_kept"])])
def test_pictures_of_a_gan(gan: fedssl.Run, what: str, numbers: list[str]) -> None:
    found = generate(gan.directory, what, {"columns": 4})
    assert Image.open(found["picture"]).size[0] > 100
    assert all(0 <= found[number] <= 1 for number in numbers)
    line = json.loads((gan.path / "generated.jsonl").read_text().splitlines()[-1])
    assert (line["what"], line["options"], line["found"]) == (what, {"columns": 4}, found)


def test_labels_that_a_client_never_saw(conditional: fedssl.Run) -> None:
    found = generate(conditional.directory, "labels", {})
    assert Path(found["picture"]).exists()
    seen = [set(row["seen"]) for row in found["clients"]]
    assert all(1 <= len(own) <= 5 for own in seen)
    everything = [row["recognised"] for row in found["clients"]]
    known = [everything[client][label] for client in (0, 1) for label in seen[client]]
    unknown = [everything[client][label] for client in (0, 1) for label in set(range(10)) - seen[client]]
    assert found["seen"] == pytest.approx(sum(known) / len(known))
    assert found["unseen"] == pytest.approx(sum(unknown) / len(unknown))


def test_a_model_without_labels_has_no_label_grid(gan: fedssl.Run) -> None:
    with pytest.raises(ConfigError, match="conditional-gan"):
        generate(gan.directory, "labels", {})


# --- the classifier, and FID -----------------------------------------------------------------------------


def test_the_reference_classifier_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSSL_CACHE", str(tmp_path / "cache"))
    run = run_of("gan", tmp_path / "run", rounds=1, **{"data.limit": 1000})
    generators = generators_of(run)
    classifier = load_reference_classifier(generators)
    assert classifier.accuracy > 0.8
    (file,) = (tmp_path / "cache").glob("reference-classifier-*.safetensors")
    before = file.stat().st_mtime_ns
    again = load_reference_classifier(generators_of(run))
    assert file.stat().st_mtime_ns == before
    x, _ = generators.test_images(1, 20)
    assert torch.equal(classifier.labels(x, 1), again.labels(x, 1))
    # Another run on the same images has the same classifier.
    other = run_of("gan", tmp_path / "other", rounds=1, seed=0, **{"data.limit": 1000, "train.lr": 1e-4})
    load_reference_classifier(generators_of(other))
    assert len(list((tmp_path / "cache").glob("reference-classifier-*.safetensors"))) == 1


def test_fid_is_the_distance_between_normal_distributions(gan: fedssl.Run) -> None:
    generators = generators_of(gan)
    classifier = load_reference_classifier(generators)
    rng = torch.Generator().manual_seed(0)
    real = torch.randint(0, 256, (300, 8, 8, 1), dtype=torch.uint8, generator=rng)
    fake = (real.flip(0).float() * 0.7).to(torch.uint8)
    a, b = (classifier.features(x).double().numpy() for x in (real, fake))
    product = sqrtm(np.cov(a.T) @ np.cov(b.T)).real
    expected = ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(np.cov(a.T) + np.cov(b.T) - 2 * product)
    assert frechet(real, fake, classifier, torch.device("cpu")) == pytest.approx(expected, rel=1e-3)
    assert frechet(real, real, classifier, torch.device("cpu")) == pytest.approx(0, abs=1e-3 * expected)


def test_fid_names_its_features(gan: fedssl.Run) -> None:
    found = generate(gan.directory, "fid", {"count": 20, "features": "classifier"})
    assert len(found["clients"]) == 2
    assert found["images"] == [20, 20]
    assert found["mean"] == pytest.approx(sum(found["clients"]) / 2)
    assert all(math.isfinite(value) and value > 0 for value in found["clients"])
    assert found["features"].startswith("classifier trained on the data set")
    assert describe_features(None).startswith("Inception")


# --- probes -----------------------------------------------------------------------------------------


def test_probes_of_content_and_style(gan: fedssl.Run) -> None:
    found = generate(gan.directory, "probe", {"count": 50, "test": 40})
    assert all(0 <= found[name] <= 1 for name in ("content", "content_looks"))
    assert len(found["clients"]) == 2
    assert 0 <= found["content_untrained"] <= 1
    assert found["widths"] == {"content": 8, "style": 8}
    for name in ("style", "content_own", "style_own"):
        assert found[name] == pytest.approx(sum(row[name] for row in found["clients"]) / 2)
    assert found["images"].count("50 train, 40 test") == 2


def test_unshifted_images_equal_the_data_set(gan: fedssl.Run) -> None:
    generators = generators_of(gan)
    for split, images in (
        ("train", generators.run.federation.train),
        ("test", generators.run.federation.test),
    ):
        x, y = generators.plain_images(split, len(images))
        pairs = [
            sorted(zip(pixels.flatten(1).tolist(), labels.tolist(), strict=True))
            for pixels, labels in ((x, y), (images.x, images.y))
        ]
        assert pairs[0] == pairs[1]
        assert len(generators.plain_images(split, 7)[0]) == 7


def test_probes_find_labels_in_informative_features(gan: fedssl.Run, monkeypatch) -> None:
    """Content features that determine the label, style features that do not: 100 % against chance."""

    def told(self: ClientGenerators, client: int | None, pixels: torch.Tensor, kind: str) -> torch.Tensor:
        rng = torch.Generator().manual_seed((client or 0) + len(pixels))
        noise = torch.randn(len(pixels), 12, generator=rng)
        known = {tuple(x.flatten().tolist()): y for x, y in answers}
        labels = torch.tensor([known[tuple(x.flatten().tolist())] for x in pixels])
        hot = torch.nn.functional.one_hot(labels, 12).float()
        return noise + 50 * hot if kind == "content" else noise

    generators = generators_of(gan)
    sets = [generators.plain_images("train", 100), generators.plain_images("test", 100)]
    sets += [generators.train_images(client, 100) for client in range(2)]
    sets += [generators.test_images(client, 100) for client in range(2)]
    answers = [(x, int(y)) for images in sets for x, y in zip(*images, strict=True)]
    monkeypatch.setattr(ClientGenerators, "features", told)
    found = generate(gan.directory, "probe", {"count": 60, "test": 40})
    assert min(found["content"], found["content_looks"]) > 0.9
    assert found["style"] < 0.5
    assert found["content_own"] > 0.7 > 0.5 > found["style_own"]  # a client may have no image of a digit


def test_untrained_features_are_those_of_round_one(gan: fedssl.Run) -> None:
    """The encoders have the width of the trained ones and are the same for every client."""
    generators = generators_of(gan)
    x = generators.plain_images("train", 5)[0]
    expected = generators.run.models.untrained().eval()
    with torch.no_grad():
        torch.testing.assert_close(generators.features(None, x, "content"), expected(generators.normalize(x)))
    for kind in ("content", "style"):
        before, after = (generators.features(client, x, kind) for client in (None, 0))
        assert before.shape == after.shape
        assert not torch.equal(before, after)
    assert generators.shares_content


def test_a_probe_finds_a_label_among_the_most_probable() -> None:
    """Against scikit-learn's top-k accuracy of the same logits."""
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 6
    x = torch.randn(120, 4, generator=rng) + 0.7 * torch.eye(6)[y][:, :4]
    images = Labeled(x[:80], y[:80], x[80:], y[80:])
    logits = linear.fit(x[:80], y[:80], 6, l2=0.1).logits(x[80:])
    for top in (1, 2, 5):
        naive = top_k_accuracy_score(y[80:], logits, k=top, labels=range(6))
        assert images.accuracy(6, 0.1, top) == pytest.approx(naive)


def test_a_share_of_training_images_can_be_held_out(gan: fedssl.Run) -> None:
    found = generate(gan.directory, "probe", {"count": 40, "held_out": 0.25})
    assert found["images"].count("30 train, 10 test") == 2


def test_clients_can_be_predicted_if_their_shifts_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zoomed in, zoomed out, inverted: any features distinguish these."""
    run = run_of("gan", tmp_path / "run", rounds=1, **{"partition.clients": 3, "data.limit": 300})
    found = generate(run.directory, "predict-client", {"count": 80, "test": 20, "steps": 200})
    assert found["style_real"] > 0.8
    assert found["content_real"] > 0.8
    assert found["chance"] == pytest.approx(1 / 3)
    assert found["images"]["generated"] == "240 train, 60 test"
    # Every client's generator has its own color, so generated images are easy to tell apart.
    monkeypatch.setattr(
        ClientGenerators,
        "draw",
        lambda self, client, latents: torch.full((len(latents), 8, 8, 1), 100 * client).byte(),
    )
    found = generate(run.directory, "predict-client", {"count": 20, "test": 5, "steps": 200})
    assert found["content"] == found["style"] == 1


def test_both_classifiers_of_clients_are_linear() -> None:
    """The scalars are a linear map of all clients' features together."""
    torch.manual_seed(0)
    scalars, x = Scalars(3, 4), torch.randn(5, 3, 4)
    weight = torch.zeros(3, 12)
    for client in range(3):
        weight[:, 4 * client : 4 * client + 4] = torch.outer(
            scalars.joint.weight[:, client], scalars.each[client]
        )
    torch.testing.assert_close(scalars(x), x.flatten(1) @ weight.T + scalars.joint.bias)


# --- diversity --------------------------------------------------------------------------------------


def test_precision_and_recall_by_definition() -> None:
    """Image by image, as Kynkäänniemi et al. write it (Eq. 2)."""
    rng = np.random.default_rng(0)
    real, fake = rng.normal(size=(30, 3)), 0.6 * rng.normal(size=(40, 3)) + 0.5

    def inside(x: np.ndarray, manifold: np.ndarray, k: int) -> bool:
        for center in manifold:
            reach = sorted(np.linalg.norm(other - center) for other in manifold)[k]
            if np.linalg.norm(x - center) <= reach:
                return True
        return False

    for k in (1, 3):
        expected = (
            np.mean([inside(x, real, k) for x in fake]),
            np.mean([inside(x, fake, k) for x in real]),
        )
        assert 0.05 < expected[1] < expected[0]
        found = precision_and_recall(torch.from_numpy(real), torch.from_numpy(fake), k)
        assert found == pytest.approx(expected)
    same = torch.from_numpy(real)
    assert precision_and_recall(same, same, 1) == (1.0, 1.0)
    assert precision_and_recall(same, same + 100, 3) == (0.0, 0.0)


def test_variety_is_a_ratio_of_mean_distances_within_labels() -> None:
    rng = np.random.default_rng(0)
    real, fake = rng.normal(size=(20, 3)), rng.normal(size=(15, 3))
    a, b = rng.integers(0, 3, 20), rng.integers(0, 3, 15)

    def spread(x: np.ndarray) -> float:
        return float(np.mean([np.linalg.norm(p - q) for p, q in combinations(x, 2)]))

    expected = np.mean([spread(fake[b == label]) / spread(real[a == label]) for label in range(3)])
    tensors = [torch.from_numpy(each) for each in (real, a, fake, b)]
    assert variety(*tensors) == pytest.approx(expected)
    collapsed = torch.zeros(15, 3, dtype=torch.float64)
    assert variety(tensors[0], tensors[1], collapsed, tensors[3]) == 0


@pytest.mark.parametrize("kind", ["gan", "conditional"])
def test_diversity_of_a_run(kind: str, request: pytest.FixtureRequest) -> None:
    found = generate(request.getfixturevalue(kind).directory, "diversity", {"count": 20})
    assert len(found["clients"]) == 2
    for name in ("precision", "recall", "variety"):
        assert found[name] == pytest.approx(sum(row[name] for row in found["clients"]) / 2)


# --- re-identification ------------------------------------------------------------------------------


def test_re_styled_images_reveal_their_client_if_they_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zoomed in, zoomed out, inverted; re-styled to themselves, or to blank images."""
    run = run_of("gan", tmp_path / "run", rounds=1, **{"partition.clients": 3, "data.limit": 300})
    options = {"count": 60, "test": 10, "fit": 60, **FEW}
    monkeypatch.setattr(Reidentify, "_redrawn", lambda self, generators, maps, x: x)
    found = generate(run.directory, "reidentify", options, tmp_path)
    assert found["before"] == found["after"] == found["after_adapted"] > 0.8
    monkeypatch.setattr(Reidentify, "_redrawn", lambda self, generators, maps, x: torch.zeros_like(x))
    found = generate(run.directory, "reidentify", options, tmp_path)
    assert found["before"] > 0.8
    assert found["after"] == pytest.approx(found["chance"], abs=0.1)
    assert found["after_adapted"] == pytest.approx(found["chance"], abs=0.1)


def test_reidentification_uses_the_reference_style(conditional: fedssl.Run, tmp_path: Path) -> None:
    options = {"count": 10, "test": 4, "fit": 3, "reference": 1, **FEW}
    found = generate(conditional.directory, "reidentify", options, tmp_path)
    assert found["reference"] == 1
    assert all(0 <= found[name] <= 1 for name in ("before", "after", "after_adapted", "kept"))
    with pytest.raises(ConfigError, match="no client 7"):
        generate(conditional.directory, "reidentify", {**options, "reference": 7}, tmp_path)


def test_restyling_needs_no_real_images(
    conditional: fedssl.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for the maps nor for the labels of re-styled images, unless `real` is set."""

    def refuse(*given: object) -> None:
        raise AssertionError("a client's images were asked for")

    taken = generators_of(conditional).test_images(0, 5)[0]
    monkeypatch.setattr(ClientImages, "batch", refuse)
    generators = generators_of(conditional)
    Restyle(name="restyle", steps=3, batch=8, hidden=8).load_maps(generators, tmp_path)
    assert len(predict_labels(generators, taken)) == len(taken)
    with pytest.raises(AssertionError, match="asked for"):
        Restyle(name="restyle", steps=30, batch=8, hidden=8, real=0.9).load_maps(generators, tmp_path)


# --- re-styling and anonymization -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gan", "conditional"])
def test_restyling(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    run = request.getfixturevalue(kind)
    found = generate(run.directory, "restyle", {"source": 0, "target": 1, "count": 12, **FEW}, tmp_path)
    assert found["images"] == 12
    assert 0 <= found["kept"] <= 1
    assert Path(found["picture"]).exists()
    file = tmp_path / "maps.safetensors"
    before = file.stat().st_mtime_ns
    everywhere = generate(run.directory, "restyle", {"count": 6, **FEW}, tmp_path)
    assert file.stat().st_mtime_ns == before  # the same maps, for other images
    assert len(everywhere["clients"]) == 2
    generate(run.directory, "restyle", {"count": 6, **FEW, "steps": 6}, tmp_path)
    assert file.stat().st_mtime_ns != before


def test_maps_learn_to_find_the_latents(gan: fedssl.Run, tmp_path: Path) -> None:
    generators = generators_of(gan)
    latents = generators.latents(400, "unseen")
    features = generators.features(0, generators.draw(0, latents), "content")

    def error(steps: int) -> float:
        maps = Restyle(name="restyle", steps=steps, real=0.0).load_maps(generators, tmp_path / str(steps))
        with torch.no_grad():
            return float((maps.content(features) - latents.content).square().mean())

    assert error(150) < 0.9 * error(1)
    assert error(150) < 1  # what zeros would have


def test_a_run_that_goes_on_has_new_maps(tmp_path: Path) -> None:
    run = run_of("gan", tmp_path / "run", rounds=1)
    generate(run.directory, "restyle", {"count": 4, **FEW}, tmp_path)
    file = tmp_path / "maps.safetensors"
    first = load_tensors(file)[0]
    generate(run.directory, "restyle", {"count": 4, **FEW}, tmp_path)
    again = load_tensors(file)[0]
    assert all(torch.equal(first[name], again[name]) for name in first)
    experiment.resume(run.path, Listener(), rounds=2)
    generate(run.directory, "restyle", {"count": 4, **FEW}, tmp_path)
    later = load_tensors(file)[0]
    assert not all(torch.equal(first[name], later[name]) for name in first)


def test_anonymizing_a_folder(gan: fedssl.Run, tmp_path: Path) -> None:
    root, rng = tmp_path / "photos", np.random.default_rng(0)
    (root / "deep").mkdir(parents=True)
    for name in ("a.png", "deep/b.jpg"):
        Image.fromarray(rng.integers(0, 255, (20, 24, 3), dtype=np.uint8)).save(root / name)
    (root / "broken.png").write_bytes(b"no picture")
    options = {"images": str(root), "reference": 1, "to": str(tmp_path / "out"), **FEW}
    found = generate(gan.directory, "anonymize", options, tmp_path / "work")
    assert (found["images"], list(found["skipped"])) == (2, ["broken.png"])
    for name in ("a.png", "deep/b.png"):
        assert Image.open(tmp_path / "out" / name).size == (8, 8)
    assert not (tmp_path / "out" / "broken.png").exists()


def test_a_conditional_model_anonymizes_by_predicted_labels(conditional: fedssl.Run, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    Image.new("L", (8, 8), 40).save(tmp_path / "in" / "x.png")
    found = generate(conditional.directory, "anonymize", {"images": str(tmp_path / "in"), **FEW}, tmp_path)
    assert found["labels"] == "predicted from content features"


# --- new clients ------------------------------------------------------------------------------------


def test_new_clients_start_from_the_trained_model(conditional: fedssl.Run, tmp_path: Path) -> None:
    found = generate(conditional.directory, "adapt", {"rounds": 1}, tmp_path)
    assert {"seen", "unseen", "content_kept"} <= set(found)
    new = fedssl.Run(found["run"])
    assert (new.config.rounds, new.config.shift.name, new.config.partition.clients) == (1, "padpaf-new", 3)
    assert len(new.metrics[0]["clients"]) == 3
    # One Adam step of 0.01 away from the trained server, and far from where training began.
    trained = load_run(conditional.directory, {})
    after = load_run(RunDir.open(found["run"]), {})
    name = "generator.linear.weight"
    moved = (after.server.model[name] - trained.server.model[name]).abs().max()
    assert 0 < float(moved) <= 0.0101
    assert generate(conditional.directory, "adapt", {"rounds": 1}, tmp_path)["seen"] == found["seen"]


# --- what can go wrong ------------------------------------------------------------------------------


def test_pictures_with_other_options_are_other_files(conditional: fedssl.Run, tmp_path: Path) -> None:
    """Tables share runs, and request pictures with different options."""
    found = [
        generate(conditional.directory, what, options, tmp_path)["picture"]
        for what, options in (
            ("labels", {}),
            ("labels", {"rows": 2}),
            ("labels", {"rows": 1}),  # the default
            ("restyle", FEW),
            ("restyle", {**FEW, "source": 1}),
            ("grid", {}),
        )
    ]
    before = Path(found[-1]).read_bytes()
    adapted = generate(conditional.directory, "adapt", {"rounds": 1, "clients": 2}, tmp_path)
    assert found[0] == found[2]
    pictures = {*found, adapted["picture"]}
    assert len(pictures) == 6
    assert all(Path(picture).is_file() for picture in pictures)
    assert Path(found[-1]).read_bytes() == before
    other = generate(conditional.directory, "adapt", {"rounds": 1, "clients": 3}, tmp_path)
    assert other["run"] != adapted["run"]


def test_wrong_options_are_named(gan: fedssl.Run) -> None:
    for what, options, text in (
        ("gird", {}, "did you mean grid"),
        ("grid", {"row": 3}, "did you mean rows"),
        ("fid", {"features": "inceptoin"}, "did you mean inception"),
        ("restyle", {"source": 7, **FEW}, "no client 7: the run has clients 0 to 1"),
        ("anonymize", {}, "images=FOLDER"),
    ):
        with pytest.raises(ConfigError, match=text):
            generate(gan.directory, what, options)
    with pytest.raises(DataError, match="no folder"):
        generate(gan.directory, "anonymize", {"images": "/nowhere", **FEW})


def test_every_use_has_a_line_of_explanation_and_described_options() -> None:
    for name in USES:
        assert USES.summary(name)
        use = choose(USES, {"name": name}, name)
        assert all(field.description for field in type(use).model_fields.values())


def test_the_command(gan: fedssl.Run, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from fedssl.cli import main

    words = ["generate", str(gan.path), "probe", "count=20", "test=10", "-o", str(tmp_path)]
    assert main(words) == 0
    assert "content" in json.loads(capsys.readouterr().out)
    assert main(["generate", str(gan.path), "prob"]) == 2
    assert "did you mean probe" in capsys.readouterr().err
