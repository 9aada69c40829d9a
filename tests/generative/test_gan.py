"""Gradients: discriminators learn from both kinds of images, the generator through both discriminators."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from fedssl.config import load
from fedssl.engines.network import build_network
from fedssl.errors import ConfigError, DataError
from fedssl.models.model import Model, Role
from fedssl.objectives.generative.adversarial import DISCRIMINATORS, GENERATORS, Adversarial, split_parameters
from fedssl.objectives.generative.gan import ConditionalGAN
from fedssl.objectives.generative.losses import Latents, draw_pairs
from tests.generative.small import KINDS

SILENT = {"objective.instance_noise": 0.0, "objective.channel_noise": 0.0}


def made(kind: str, **overrides: object) -> tuple[Adversarial, Model]:
    config = load(KINDS[kind], overrides)
    size = (2, 16) if kind == "linear-gan" else (8, 8)
    return config.objective, build_network(config, size, 1, 10).model


def batch(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    shape = (6, 1, 2, 16) if kind == "linear-gan" else (6, 1, 8, 8)
    return torch.randn(shape, generator=rng), torch.randint(10, (6,), generator=rng)


ADVERSARIAL = ["gan", "conditional-gan", "lens", "linear-gan"]


@pytest.mark.parametrize("kind", ADVERSARIAL)
def test_every_parameter_belongs_to_one_player(kind: str) -> None:
    _, model = made(kind)
    discriminators, generator = split_parameters(model)
    assert not discriminators.keys() & generator.keys()
    assert discriminators.keys() | generator.keys() == dict(model.named_parameters()).keys()
    assert set(model.roles) <= {*DISCRIMINATORS, *GENERATORS}


@pytest.mark.parametrize("kind", ADVERSARIAL)
def test_gradients_only_reach_the_player_that_trains(kind: str) -> None:
    objective, model = made(kind)
    images, labels = batch(kind)
    discriminators, generator = split_parameters(model)
    objective.discriminator_loss(model, images, labels, torch.Generator().manual_seed(0)).backward()
    assert all(value.grad is not None for value in discriminators.values())
    assert all(value.grad is None for value in generator.values())
    model.zero_grad()
    objective.generator_loss(model, 6, None, torch.Generator().manual_seed(0)).backward()
    assert all(value.grad is None for value in discriminators.values())
    moved = [
        name for name, value in generator.items() if value.grad is not None and value.grad.abs().sum() > 0
    ]
    assert set(moved) == set(generator)
    assert all(value.requires_grad for value in model.parameters())


@pytest.mark.parametrize("kind", ["gan", "conditional-gan"])
def test_the_discriminators_loss_is_the_sum_of_its_parts(kind: str) -> None:
    """A second implementation: real and generated images apart, network by network, Eq. 7 in loops."""
    objective, model = made(kind, **SILENT, **({"objective.drawn_labels": "all"} if kind != "gan" else {}))
    images, labels = batch(kind)
    model.eval()  # without power iteration and batch statistics, which depend on the order of passes
    loss = objective.discriminator_loss(model, images, labels, torch.Generator().manual_seed(3))
    latents = draw_pairs(6, 4, 10 if kind == "conditional-gan" else 0, torch.Generator().manual_seed(3))
    fakes = objective.generate(model, latents)
    expected = torch.zeros(())
    for prefix in ("", "style_"):
        phi, critic, g = (model.part(f"{prefix}{part}") for part in ("encoder", "critic", "projector"))
        known = (labels, latents.labels) if kind == "conditional-gan" and not prefix else (None, None)
        expected = expected + F.relu(1 - critic(phi(images), known[0])).mean()
        expected = expected + F.relu(1 + critic(phi(fakes), known[1])).mean()
        z = g(phi(fakes))
        # The same content: row i of both halves. The same style: row i, and row i + 1 of the second half.
        a, b = z[:3], z[[4, 5, 3]] if prefix else z[3:]
        a, b = ((each - each.mean(0)) / (each.var(0, correction=0) + 1e-5).sqrt() for each in (a, b))
        for i in range(8):
            for j in range(8):
                c = (a[:, i] * b[:, j]).mean()
                expected = expected + 0.1 * ((1 - c).square() if i == j else 0.005 * c.square())
    torch.testing.assert_close(loss, expected, rtol=1e-3, atol=1e-3)


def test_both_terms_of_the_regularizer_count() -> None:
    images, labels = batch("gan")
    plain, model = made("gan", **{"objective.regularizer": 0.0})
    with_both, _ = made("gan")
    rng = [torch.Generator().manual_seed(0) for _ in range(2)]
    losses = [
        each.discriminator_loss(model.eval(), images, labels, own)
        for each, own in zip((plain, with_both), rng, strict=True)
    ]
    model.zero_grad()
    (losses[1] - losses[0]).backward()
    for part in ("projector", "style_projector", "encoder", "style_encoder"):
        assert any(value.grad.abs().sum() > 0 for value in model.part(part).parameters()), part


@pytest.mark.parametrize("kind", ADVERSARIAL)
def test_both_players_can_train_together(kind: str) -> None:
    """For methods without alternating steps."""
    objective, model = made(kind)
    images, labels = batch(kind)
    objective.loss(model, [images], labels, torch.Generator().manual_seed(0)).backward()
    assert all(value.grad is not None for value in model.parameters())


def test_what_is_content_is_shared_and_what_is_style_is_private() -> None:
    for kind in KINDS:
        _, model = made(kind)
        private = {part for part, role in model.roles.items() if role is Role.PRIVATE}
        style = {part for part in model.roles if part.startswith("style_")} | {"vectorizer"}
        assert private == style | ({"modulation"} & set(model.roles)) | ({"lens"} & set(model.roles))
    _, model = made("conditional-gan")  # as by the authors
    assert model.roles["label_modulation"] is Role.SHARED
    _, model = made("conditional-gan", **{"objective.label_maps": "private"})  # §4.1
    assert model.roles["label_modulation"] is Role.PRIVATE


def test_noise_of_instances_is_on_the_scale_of_pixels_and_reaches_both_kinds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of pixels from −1 to 1; these images go from −2 to 2."""
    objective, model = made("gan", **{"data.std": 0.25, "objective.instance_noise": 0.1})
    clean, _ = made("gan", **{"data.std": 0.25, **SILENT})
    seen: list[torch.Tensor] = []
    model.part("encoder").register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    images, _ = batch("gan")
    for each in (objective, clean):
        each.discriminator_loss(model.eval(), images, None, torch.Generator().manual_seed(0))
    noise = seen[0] - seen[1]
    assert float(noise[: len(images)].std()) == pytest.approx(0.2, rel=0.15)
    assert float(noise[len(images) :].std()) == pytest.approx(0.2, rel=0.15)
    torch.testing.assert_close(seen[1][: len(images)], images)


def test_noise_of_channels_is_drawn_by_pixel_and_scaled_by_channel() -> None:
    """Only during training; later, images depend on the latents only."""
    objective, model = made("gan", **{"objective.channel_noise": 0.5})
    generator, seen = model.part("generator"), []

    def record(layer: int, x: torch.Tensor) -> torch.Tensor:
        seen.append(x.detach())
        return x

    z = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        generator.scales[0][3] = -2.0
        generator(z, record)
        generator(z, record, None, torch.Generator().manual_seed(0))
    noise = seen[len(seen) // 2] - seen[0]
    torch.testing.assert_close(noise[:, 3], -2 * noise[:, 0])
    torch.testing.assert_close(noise[:, 1], noise[:, 0])
    naive = torch.randn(noise[:, :1].shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(noise[:, :1], 0.5 * naive)
    latents = draw_pairs(4, 4, 0, torch.Generator().manual_seed(0))
    assert torch.equal(objective.generate(model.eval(), latents), objective.generate(model, latents))


def test_pixels_are_drawn_on_the_scale_of_the_data() -> None:
    objective, model = made("gan", **{"data.mean": 0.5, "data.std": 0.25})
    with torch.no_grad():
        model.part("generator").pixels.bias.fill_(100)  # all white
        drawn = objective.generate(model, draw_pairs(4, 4, 0, torch.Generator()))
    assert drawn.unique().tolist() == [2.0]


@pytest.mark.parametrize("private_weight", [False, True])
def test_the_linear_gan_draws_points_and_a_background(private_weight: bool) -> None:
    objective, model = made("linear-gan", **{"objective.private_weight": private_weight})
    rng = torch.Generator().manual_seed(0)
    latents = draw_pairs(4000, 1, 0, rng)
    line, own = model.part("generator"), model.part("vectorizer")
    assert ("weight" in dict(own.named_parameters())) == private_weight
    with torch.no_grad():
        own.bias.copy_(torch.tensor([3.0, -1.0]))
    expected = latents.content * line.weight + line.bias + latents.style * own.weight + own.bias
    drawn = objective.generate(model, latents)
    torch.testing.assert_close(drawn[:, 0, :, 7], expected)
    shown = objective.fakes(model, latents, rng)
    same = (shown == drawn).flatten(1).all(1)
    assert 0.45 < float(same.float().mean()) < 0.55
    assert float(shown[~same][..., 0].detach().std()) == pytest.approx(1, abs=0.05)


def test_data_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(ConfigError, match="at least 2 classes"):
        build_network(load(KINDS["conditional-gan"]), (8, 8), 1, 0)
    with pytest.raises(ConfigError, match=r"points of a plane.*data\.name=simpson"):
        build_network(load(KINDS["linear-gan"]), (8, 8), 1, 0)
    with pytest.raises(ConfigError, match="square images"):
        build_network(load(KINDS["gan"]), (8, 10), 1, 0)
    from fedssl.data.federation import federate

    with pytest.raises(DataError, match="needs labels"):
        federate(load(KINDS["conditional-gan"], {"data": KINDS["linear-gan"]["data"], "partition": "iid"}))


@pytest.mark.parametrize(("which", "expected"), [("all", set(range(10))), ("own", {3, 7})])
def test_labels_are_drawn_from_all_or_from_the_clients_own(
    which: str, expected: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For both players; pairs still share their content."""
    objective, model = made("conditional-gan", **{"objective.drawn_labels": which})
    drawn: list[torch.Tensor] = []
    generate = ConditionalGAN.generate

    def watched(self: ConditionalGAN, model: Model, latents: Latents, *noise: object) -> torch.Tensor:
        assert latents.labels is not None
        drawn.append(latents.labels)
        return generate(self, model, latents, *noise)

    monkeypatch.setattr(ConditionalGAN, "generate", watched)
    rng = torch.Generator().manual_seed(0)
    labels = torch.tensor([3, 3, 3, 7]).repeat(20)
    objective.discriminator_loss(model, torch.randn(80, 1, 8, 8, generator=rng), labels, rng)
    objective.generator_loss(model, 80, labels, rng)
    assert [set(each.tolist()) for each in drawn] == [expected, expected]
    assert torch.equal(*drawn[0].chunk(2))
    if which == "own":  # as frequent as they are
        assert 0.6 < float((drawn[0] == 3).float().mean()) < 0.9


@pytest.mark.parametrize("augmented", [False, True])
def test_a_label_enters_the_latent_only_with_augmented(augmented: bool) -> None:
    """Without gains and biases from labels, a label has no other way to affect images."""
    objective, model = made("conditional-gan", **{"objective.augmented": augmented})
    torch.nn.init.zeros_(model.part("label_modulation").maps.weight)
    latents = draw_pairs(4, 4, 10, torch.Generator().manual_seed(0))
    model.eval()
    drawn = [objective.generate(model, replace(latents, labels=torch.full((4,), label))) for label in (2, 5)]
    assert torch.equal(*drawn) != augmented
    assert ("generator.labels.weight" in model.names(Role.SHARED)) == augmented


def test_without_label_maps_the_style_conditions_all_channels() -> None:
    objective, model = made(
        "conditional-gan", **{"objective.label_maps": "none", "objective.augmented": True}
    )
    _, plain = made("gan")
    assert not model.has("label_modulation")
    assert model.part("modulation").widths == plain.part("modulation").widths
    assert objective.classes(model) == 10
    latents = draw_pairs(4, 4, 10, torch.Generator().manual_seed(0))
    drawn = [
        objective.generate(model.eval(), replace(latents, labels=torch.full((4,), label))) for label in (2, 5)
    ]
    assert not torch.equal(*drawn)
    with pytest.raises(ConfigError, match=r"leaves the generator without labels.*objective\.augmented=true"):
        made("conditional-gan", **{"objective.label_maps": "none"})
