"""What holds for every rule: order, purity, memory layout, bad input."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch

from fedssl import vectors
from fedssl.aggregation import AGGREGATIONS
from fedssl.aggregation.fltrust import FLTrust
from fedssl.aggregation.scaled_sum import ScaledSum
from fedssl.errors import ConfigError, RunError
from fedssl.state import State, Upload

from .conftest import STATISTICS, build, clone

Make = Callable[..., list[Upload]]
every_rule = pytest.mark.parametrize("rule", list(AGGREGATIONS))


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@every_rule
def test_the_order_of_uploads_does_not_matter(rule: str, previous: State, make_uploads: Make) -> None:
    uploads = make_uploads(5)
    expected = build(rule)(previous, uploads, STATISTICS)
    assert same(expected, build(rule)(previous, uploads[::-1], STATISTICS))
    assert same(expected, build(rule)(previous, [uploads[i] for i in (3, 0, 4, 1, 2)], STATISTICS))


@every_rule
def test_renaming_clients_changes_nothing_but_rounding(
    rule: str, previous: State, make_uploads: Make
) -> None:
    uploads = make_uploads(5)
    expected = build(rule)(previous, uploads, STATISTICS)
    for upload, client in zip(uploads, (2, 4, 0, 3, 1), strict=True):
        upload.client = client
    torch.testing.assert_close(build(rule)(previous, uploads, STATISTICS), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", ["fedavg", "loss"])
def test_weights_known_in_advance_give_the_same_bits(
    rule: str, previous: State, make_uploads: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "PIECE", 7)  # layers of several pieces
    uploads, known = make_uploads(5), build(rule)
    assert isinstance(known, ScaledSum)
    expected, weigh = known(previous, uploads, STATISTICS), type(known).known
    monkeypatch.setattr(type(known), "weight", lambda self, layer, compared, upload: weigh(self, upload))
    monkeypatch.setattr(type(known), "known", lambda self, upload: None)
    assert same(expected, known(previous, uploads, STATISTICS))


@pytest.mark.parametrize(
    "rule", [name for name in AGGREGATIONS if issubclass(AGGREGATIONS.get(name), ScaledSum)]
)
def test_a_refused_upload_leaves_no_trace(rule: str, previous: State, make_uploads: Make) -> None:
    uploads = make_uploads(3)
    uploads[1].num_samples = -1
    fold = build(rule).start(previous, STATISTICS)
    fold.add(uploads[0])
    with pytest.raises(ValueError, match="num_samples is -1"):
        fold.add(uploads[1])
    fold.add(uploads[2])
    assert same(fold.finish(), build(rule)(previous, [uploads[0], uploads[2]], STATISTICS))


@every_rule
def test_inputs_are_neither_changed_nor_returned(rule: str, previous: State, make_uploads: Make) -> None:
    uploads = make_uploads(5)
    before, states = clone(previous), [clone(upload.state) for upload in uploads]
    new = build(rule)(previous, uploads, STATISTICS)
    assert same(previous, before)
    assert all(same(upload.state, state) for upload, state in zip(uploads, states, strict=True))
    for tensor in new.values():
        tensor.fill_(77)
    assert same(previous, before)
    assert all(same(upload.state, state) for upload, state in zip(uploads, states, strict=True))


@every_rule
def test_an_upload_may_be_overwritten_after_it_was_added(
    rule: str, previous: State, make_uploads: Make
) -> None:
    fold = build(rule).start(previous, STATISTICS)
    for upload in make_uploads(5):
        fold.add(upload)
        for tensor in upload.state.values():
            tensor.zero_()
    assert same(fold.finish(), build(rule)(previous, make_uploads(5), STATISTICS))


@pytest.mark.parametrize("rule", [name for name in AGGREGATIONS if isinstance(build(name), ScaledSum)])
def test_uploads_are_released(rule: str, previous: State, make_uploads: Make) -> None:
    """Memory does not grow with the number of clients: no tensor of an upload outlives its turn."""
    fold = build(rule).start(previous, STATISTICS)
    for upload in make_uploads(3):
        fold.add(upload)
        tensors = [weakref.ref(tensor) for tensor in upload.state.values()]
        upload.state = {}
        assert [tensor() for tensor in tensors] == [None] * len(tensors)


@every_rule
def test_memory_layout_does_not_change_bits(rule: str) -> None:
    """Tensors that come back from a file, as those of a resumed run do, are no longer channels-last."""
    rng = torch.Generator().manual_seed(0)
    shape = (24, 64, 5, 9)
    previous = torch.randn(shape, generator=rng)
    states = [torch.randn(shape, generator=rng) for _ in range(5)]

    def aggregate(layout: torch.memory_format) -> State:
        uploads = [Upload(i, {"w": w.to(memory_format=layout)}, 10 + i) for i, w in enumerate(states)]
        made = build(rule)
        made = made.anchored(uploads[0].state) if isinstance(made, FLTrust) else made
        return made({"w": previous.to(memory_format=layout)}, uploads)

    assert same(aggregate(torch.contiguous_format), aggregate(torch.channels_last))


@every_rule
def test_uploads_that_require_gradients(rule: str, previous: State, make_uploads: Make) -> None:
    uploads = make_uploads(5)
    for upload in uploads:
        upload.state["conv.weight"].requires_grad_()
    new = build(rule)(previous, uploads, STATISTICS)
    assert not any(tensor.requires_grad for tensor in new.values())


@every_rule
def test_the_report_contains_the_angles(rule: str, previous: State, make_uploads: Make) -> None:
    fold = build(rule).start(previous, STATISTICS)
    uploads = make_uploads(2)
    uploads[0].state = {name: tensor.clone() for name, tensor in previous.items()}
    for upload in uploads:
        fold.add(upload)
    layers = [name for name in previous if previous[name].is_floating_point() and name not in STATISTICS]
    one = pytest.approx(1.0)
    assert fold.report[0] == {"angle": one, "layer_angle": one, "angles": dict.fromkeys(layers, one)}
    expected = {
        name: float(torch.cosine_similarity(previous[name].flatten(), uploads[1].state[name].flatten(), 0))
        for name in layers
        if previous[name].any() and uploads[1].state[name].any()
    }
    assert expected
    assert {name: fold.report[1]["angles"][name] for name in expected} == pytest.approx(expected, abs=1e-6)
    a, b = (torch.cat([state[name].flatten() for name in layers]) for state in (previous, uploads[1].state))
    assert fold.report[1]["angle"] == pytest.approx(float(torch.cosine_similarity(a, b, dim=0)), abs=1e-6)


@every_rule
@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "conv.weight",
            torch.zeros(1, 3, 3, 3),
            r"client 1: conv\.weight has shape \(1, 3, 3, 3\), not \(4, 3",
        ),
        ("temperature", torch.zeros(1), r"temperature has shape \(1,\), not \(\)"),
        ("bn.bias", None, r"bn\.bias is missing"),
        ("stranger", torch.zeros(1), "stranger is not expected"),
        ("bn.bias", torch.zeros(4, dtype=torch.int64), r"bn\.bias is torch\.int64, not torch\.float32"),
    ],
)
def test_an_upload_with_other_tensors_is_refused(
    rule: str, name: str, tensor: torch.Tensor | None, message: str, previous: State, make_uploads: Make
) -> None:
    uploads = make_uploads(2)
    if tensor is None:
        del uploads[1].state[name]
    else:
        uploads[1].state[name] = tensor
    with pytest.raises(ValueError, match=message):
        build(rule)(previous, uploads, STATISTICS)


@every_rule
def test_a_round_without_uploads(rule: str, previous: State) -> None:
    with pytest.raises(RunError, match="without uploads"):
        build(rule)(previous, [])


@every_rule
def test_the_same_client_twice_and_a_finished_fold(rule: str, previous: State, make_uploads: Make) -> None:
    fold = build(rule).start(previous)
    uploads = make_uploads(5)
    for upload in uploads:
        fold.add(upload)
    with pytest.raises(ValueError, match="client 4 was added before"):
        fold.add(uploads[-1])
    fold.finish()
    with pytest.raises(ValueError, match="finished"):
        fold.finish()
    with pytest.raises(ValueError, match="finished"):
        fold.add(uploads[0])


@pytest.mark.parametrize("rule", ["loss", "l-dawa-loss"])
@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite(rule: str, loss: float, previous: State, make_uploads: Make) -> None:
    uploads = make_uploads(2)
    uploads[1].loss = loss
    with pytest.raises(ValueError, match="client 1: loss is"):
        build(rule)(previous, uploads)


def test_invalid_numbers_of_samples(previous: State, make_uploads: Make) -> None:
    uploads = make_uploads(3)
    uploads[0].num_samples = 0
    counted = build("fedavg")(previous, uploads)
    assert same(
        counted,
        build("fedavg")(previous, uploads[1:])
        | {"bn.num_batches_tracked": counted["bn.num_batches_tracked"]},
    )
    uploads[0].num_samples = -1
    with pytest.raises(ValueError, match="client 0: num_samples is -1"):
        build("fedavg")(previous, uploads)


@pytest.mark.parametrize("rule", ["m-dawa", "l-dawa", "l-dawa-fedavg", "l-dawa-loss"])
def test_warm_up_is_fedavg(rule: str, previous: State, make_uploads: Make) -> None:
    uploads = make_uploads(3)
    fedavg = build("fedavg")(previous, uploads, STATISTICS)
    warmed = build(rule, warmup=2)
    for early in (1, 2):
        assert same(warmed(previous, uploads, STATISTICS, early), fedavg)
    for late in (3, None):
        new = warmed(previous, uploads, STATISTICS, late)
        assert same(new, build(rule)(previous, uploads, STATISTICS))
        assert not same(new, fedavg)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "l-dawaa"}, "did you mean l-dawa"),
        ({"name": "l-dawa", "warmup": -1}, r"aggregation\.warmup=-1"),
        ({"name": "fedavg", "warmup": 1}, r"unknown key 'aggregation\.warmup'"),
        ({"name": "trimmed-mean", "trim": 0.5}, r"aggregation\.trim=0\.5"),
        ({"name": "krum", "keep": 0}, r"aggregation\.keep=0"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(**options)  # type: ignore[arg-type]
