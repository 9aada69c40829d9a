"""FedStyle: extraction and infusion against naive implementations, with every supported objective."""

import copy

import pytest
import torch
from tests.onestep import METHODS, TOY, Federation, assert_close, descend, naive_style_loss, nt_xent
from tests.small import QUEUE, SMALL, small_run
from torch.nn import functional as F

from fedssl import experiment
from fedssl.config import load
from fedssl.errors import ConfigError
from fedssl.evaluation.loaded import load_run
from fedssl.listener import Listener
from fedssl.methods.fedstyle import FedStyle, Norms
from fedssl.methods.style import StyleViews, style_features
from fedssl.methods.training import Batch, batches
from fedssl.models.tuned import Tuned
from fedssl.rng import torch_rng

METHOD = METHODS["fedstyle"]  # one epoch of extraction, λ = 0.7


def naive_extraction(toy, client, model):
    style = model.part("style")
    images, _ = toy.views(client, "style")
    both = StyleViews(toy.runner.views)(images)
    z = style.part("projector")(style.part("encoder")(torch.cat(both)))
    descend(naive_style_loss(z, 0.07), [style.part("encoder"), style.part("projector")])


def naive_infusion(toy, client, model):
    style, generator = model.part("style.encoder"), model.part("generator")
    images, views = toy.views(client)
    as_they_are, outlines = StyleViews(toy.runner.views)(images)
    style.eval()
    with torch.no_grad():
        h_s, h_sobel = style(as_they_are), style(outlines)
    h1, h2 = model.part("encoder")(torch.cat(views)).chunk(2)
    z1, z2 = model.part("projector")(torch.cat((h1, h2))).chunk(2)
    infused = generator(torch.cat((h1, h_s), 1)), generator(torch.cat((h2, h_sobel), 1))
    s1, s2 = model.part("projector")(torch.cat(infused)).chunk(2)
    loss = nt_xent(z1, z2) + 0.7 * nt_xent(s1, s2)
    descend(loss, [model.part("encoder"), model.part("projector"), generator])


def test_a_step_of_two_clients_is_that_of_a_naive_implementation(tmp_path):
    toy = Federation(tmp_path, METHOD)
    for client in range(2):
        upload, expected = toy.run(client), toy.naive()
        naive_extraction(toy, client, expected)
        naive_infusion(toy, client, expected)
        values = expected.state_dict()
        found = {**upload, **toy.memories.load(client, 1).state}
        assert_close(found, values, rtol=1e-3, atol=1e-5)
        weights = [name for name in found if name.endswith("weight")]
        assert not [name for name in weights if torch.equal(found[name], toy.network.initial[name])]


# --- the infused loss with every objective ---------------------------------------------------------


def cosine(p, z):
    return -F.cosine_similarity(p, z, dim=1).mean()


def simsiam(model, target, queue, h1, h2):
    z1, z2 = model.part("projector")(h1), model.part("projector")(h2)
    p1, p2 = model.part("predictor")(z1), model.part("predictor")(z2)
    return (cosine(p1, z2.detach()) + cosine(p2, z1.detach())) / 2


def byol(model, target, queue, h1, h2):
    p1, p2 = (model.part("predictor")(model.part("projector")(h)) for h in (h1, h2))
    t1, t2 = (model.part("target.projector")(h).detach() for h in (h1, h2))
    return 4 + 2 * cosine(p1, t2) + 2 * cosine(p2, t1)


def barlow(model, target, queue, h1, h2):
    a, b = (model.part("projector")(h) for h in (h1, h2))
    a, b = ((z - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt() for z in (a, b))
    c = a.T @ b / len(a)
    on = (1 - c.diagonal()).square().sum()
    return on + 0.005 * (c.square().sum() - c.diagonal().square().sum())


def simclr(model, target, queue, h1, h2):
    return nt_xent(*model.part("projector")(torch.cat((h1, h2))).chunk(2))


def moco(model, target, queue, h1, h2):
    q = F.normalize(model.part("projector")(h1), dim=1)
    k = F.normalize(model.part("target.projector")(h2).detach(), dim=1)
    positive = (q * k).sum(1, keepdim=True)
    logits = torch.cat((positive, q @ queue.T), 1) / 0.2
    return -logits.log_softmax(1)[:, 0].mean()


@pytest.mark.parametrize(
    ("objective", "naive"),
    [("simclr", simclr), ("simsiam", simsiam), ("byol", byol), ("barlow-twins", barlow), ("moco-v2", moco)],
)
def test_the_infused_loss_of_every_objective(tmp_path, objective, naive):
    toy = Federation(tmp_path, METHOD, objective=objective, **QUEUE.get(objective, {}))
    client = toy.runner.client(toy.task(0))
    method = toy.config.method
    toy.runner.model.load_state_dict(toy.network.initial)
    toy.runner.model.train()
    images, views = toy.views(0)
    positions = torch.randperm(8, generator=torch_rng(0, 1, 0, "train/order"))
    batch = Batch(images, views, None, torch_rng(0, "loss"), positions)
    with_style = method.infused_loss(client)
    toy.runner.model.train()
    content, model = copy.deepcopy(toy.runner.model), copy.deepcopy(toy.runner.model)
    found = with_style(batch)

    own = toy.config.objective.loss(content, views, None, torch_rng(0, "loss"))
    style = model.part("style.encoder").eval()
    with torch.no_grad():
        h_s, h_sobel = (style(view) for view in StyleViews(toy.runner.views)(images))
    if objective == "simclr":
        h1, h2 = model.part("encoder")(torch.cat(views)).chunk(2)
    else:
        second = "target.encoder" if objective == "moco-v2" else "encoder"
        h1, h2 = model.part("encoder")(views[0]), model.part(second)(views[1])
    infused = [model.part("generator")(torch.cat(pair, 1)) for pair in ((h1, h_s), (h2, h_sobel))]
    queue = model.part("queue").keys if model.has("queue") else None
    expected = own + 0.7 * naive(model, None, queue, *infused)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    found.backward()
    assert all(bool(value.grad.any()) for value in toy.runner.model.part("generator").parameters())
    assert all(value.grad is None for value in toy.runner.model.part("style").parameters())


# --- the generator's length -----------------------------------------------------------------------


def test_norm_ratios_by_hand():
    """Content of length 5 and 13, generated 10, 10, 20 and 5: 45 over 2·18."""
    content, norms = torch.tensor([[3.0, 4.0], [5.0, 12.0]]), Norms()
    norms.add([torch.tensor([[6.0, 8.0], [0.0, 10.0]])], [content])
    norms.add([torch.tensor([[20.0, 0.0], [-3.0, 4.0]])], [content])
    assert norms.ratio() == pytest.approx(45 / 36)


def test_every_client_and_round_has_the_ratio_of_lengths(tmp_path):
    run = small_run(tmp_path / "a", method=METHOD, **TOY)
    for line in run.metrics:
        ratios = [client["generator_ratio"] for client in line["clients"]]
        assert line["generator_ratio"] == pytest.approx(sum(ratios) / 2)
        assert all(0 < ratio < 3 for ratio in ratios)
    plain = small_run(tmp_path / "b", method={**METHOD, "infusion": 0.0}, **TOY)
    assert "generator_ratio" not in plain.metrics[0]


def test_a_generator_that_diverges_is_named(tmp_path):
    class Notes(Listener):
        def __init__(self):
            self.said = []

        def note(self, text):
            self.said.append(text)

    notes = Notes()
    keys = {**TOY, "method": METHOD, "rounds": 1, "train.epochs": 10, "train.lr": 1.0}
    experiment.run(load(SMALL, keys), tmp_path / "a", notes)
    (warning,) = [text for text in notes.said if "generator" in text]
    assert "round 1: the generator diverges: ‖G‖/‖h_c‖ exceeds 3 at client 0 (" in warning
    assert "train.momentum=0" in warning


def test_the_warning_counts_clients():
    rows = [{"client": client, "generator_ratio": ratio} for client, ratio in enumerate((3.0, 4, 5, 9, 7))]
    assert FedStyle().warning({"round": 2, "clients": rows[:1]}) == ""
    text = FedStyle().warning({"round": 2, "clients": rows})
    assert "client 1 (4), client 2 (5), client 3 (9) and 1 more" in text


def test_infused_keys_have_their_own_queue(tmp_path):
    toy = Federation(tmp_path, METHOD, objective="moco-v2", **QUEUE["moco-v2"])
    upload = toy.run(0)
    kept = toy.memories.load(0, 1).state
    assert not torch.equal(kept["queue.keys"], kept["infused_queue.keys"])
    assert int(kept["queue.position"]) == int(kept["infused_queue.position"]) == 8
    assert not [name for name in upload if "queue" in name]


@pytest.mark.parametrize("objective", ["simsiam", "byol", "barlow-twins", "moco-v1"])
def test_without_infusion_every_objective_is_fedavg(tmp_path, objective):
    queue = QUEUE.get(objective, {})
    plain = Federation(tmp_path / "a", {"name": "fedavg"}, objective=objective, **queue)
    off = Federation(tmp_path / "b", {**METHOD, "infusion": 0.0}, objective=objective, **queue)
    one, other = plain.run(0), off.run(0)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("objective", "keys"),
    [("supervised", {}), ("mae", {"model.encoder": "vit_tiny", "model.patch": 4})],
)
def test_objectives_without_a_projector_are_refused(tmp_path, objective, keys):
    with pytest.raises(ConfigError, match="simclr, simsiam, byol, barlow-twins or moco-v2"):
        Federation(tmp_path, METHOD, objective=objective, **keys)


# --- extraction: once, before the first infusion, whenever that is ----------------------------------


def style_of(state):
    return {name: value for name, value in state.items() if name.startswith("style.")}


def test_style_is_extracted_once_and_does_not_depend_on_the_round(tmp_path):
    early, late = Federation(tmp_path / "a", METHOD), Federation(tmp_path / "b", METHOD)
    early.run(0, round=1)
    late.run(0, round=3)
    first, third = early.memories.load(0, 1), late.memories.load(0, 3)
    assert all(torch.equal(value, third.state[name]) for name, value in style_of(first.state).items())
    early.run(0, round=2, memory_round=1)
    second = early.memories.load(0, 2)
    assert all(torch.equal(value, second.state[name]) for name, value in style_of(first.state).items())
    assert second.values == first.values
    assert not torch.equal(second.state["generator.0.weight"], first.state["generator.0.weight"])


def test_every_client_has_its_own_style_logged_when_it_is_learned(tmp_path):
    run = small_run(tmp_path / "a", method=METHOD, **TOY)
    lines = run.metrics
    assert all("style_loss" in client for client in lines[0]["clients"])
    assert not any("style_loss" in client for line in lines[1:] for client in line["clients"])
    finished = load_run(run.directory, {})
    one, other = (finished.models.runner.memories.load(k, 4).state for k in (0, 1))
    assert not torch.equal(one["style.encoder.conv1.weight"], other["style.encoder.conv1.weight"])


def test_more_epochs_separate_styles_better(tmp_path):
    losses = []
    for epochs in (1, 20):
        keys = {**TOY, "rounds": 1, "train.lr": 0.02}
        run = small_run(tmp_path / str(epochs), method={**METHOD, "style_epochs": epochs}, **keys)
        losses.append(run.metrics[0]["clients"][0]["style_loss"])
    assert losses[1] < losses[0]


def test_without_extraction_the_style_is_fixed_noise(tmp_path):
    toy = Federation(tmp_path, {**METHOD, "style_epochs": 0})
    toy.run(0)
    kept = style_of(toy.memories.load(0, 1).state)
    assert kept
    assert all(torch.equal(value, toy.network.initial[name]) for name, value in kept.items())


def test_a_client_that_never_took_part_still_has_a_style(tmp_path):
    toy = Federation(tmp_path, METHOD)
    asked = toy.runner.receive(toy.task(1, round=5)).state_dict()
    asked = {name: value.clone() for name, value in style_of(asked).items()}
    toy.run(1)
    kept = style_of(toy.memories.load(1, 1).state)
    assert all(torch.equal(value, asked[name]) for name, value in kept.items())


# --- personal features ----------------------------------------------------------------------------


def test_personal_features_are_content_plus_stylized_content(tmp_path):
    toy = Federation(tmp_path, METHOD)
    toy.run(0)
    model = toy.runner.receive(toy.task(0, round=2, memory_round=1))
    encoder = toy.config.method.personal_encoder(model)
    assert isinstance(encoder, Tuned)
    model.eval()
    encoder.eval()
    images = torch.rand(3, 1, 8, 8)
    h_c, h_s = model.part("encoder")(images), model.part("style.encoder")(images)
    expected = h_c + model.part("generator")(torch.cat((h_c, h_s), 1))
    torch.testing.assert_close(encoder(images), expected)
    assert FedStyle(stylized=False).personal_encoder(model) is model.part("encoder")


def test_views_and_positions_belong_together(tmp_path):
    """A batch's style features are those of its own images."""
    toy = Federation(tmp_path, METHOD)
    client = toy.runner.client(toy.task(0))
    style = toy.runner.model.part("style.encoder").eval()
    features = style_features(style, client.images, StyleViews(client.views), client.device)
    positions = next(iter(batches(len(client.images), 4, 1, torch_rng(0, "x"))))
    images, _ = client.images.batch(positions)
    with torch.no_grad():
        torch.testing.assert_close(features[positions, 0], style(StyleViews(client.views)(images)[0]))
