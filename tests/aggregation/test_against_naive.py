"""Every rule against a second, plain implementation: NumPy, double precision, all uploads at hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fedssl.aggregation import AGGREGATIONS
from fedssl.state import State, Upload

from .conftest import STATISTICS, TYPES, build, random_state

Array = npt.NDArray[np.float64]


def array(tensor: torch.Tensor) -> Array:
    return tensor.double().numpy()


def cosine(a: Array, b: Array) -> float:
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    return float(np.sum(a * b) / lengths) if lengths else 1.0


def naive(rule: str, previous: State, uploads: list[Upload]) -> dict[str, Array]:
    """The definitions of the L-DAWA paper, tensor by tensor, with all clients at hand."""
    n = np.array([upload.num_samples for upload in uploads], dtype=float)
    losses = np.array([upload.loss for upload in uploads])
    by_samples = n / n.sum()
    softmax = np.exp(-(losses - losses.min())) / np.exp(-(losses - losses.min())).sum()
    layers = [name for name in previous if name not in STATISTICS and previous[name].is_floating_point()]
    flat = np.concatenate([array(previous[name]).ravel() for name in layers])
    whole = [
        cosine(flat, np.concatenate([array(upload.state[name]).ravel() for name in layers]))
        for upload in uploads
    ]
    new = {}
    for name in previous:
        w = np.stack([array(upload.state[name]) for upload in uploads])
        if not previous[name].is_floating_point():
            new[name] = w.max(axis=0)
            continue
        angles = np.array([cosine(array(previous[name]), client) for client in w])
        distances = np.array([np.linalg.norm(client - array(previous[name])) for client in w])
        unmoved = distances == 0
        closeness = unmoved.astype(float) if unmoved.any() else 1 / distances
        equal = np.full(len(w), 1 / len(w))
        betas = {
            "fedavg": by_samples,
            "loss": softmax,
            "euc": closeness / closeness.sum(),
            "m-dawa": np.array(whole) * equal,
            "l-dawa": angles * equal,
            "l-dawa-fedavg": angles * by_samples,
            "l-dawa-loss": angles * softmax,
        }
        if rule == "fixed-norms":
            new[name] = np.tensordot(by_samples, w, axes=1)
            if w.ndim > 2:  # a dimension for clients, and at least two of the tensor
                new[name] *= np.linalg.norm(array(previous[name])) / np.linalg.norm(new[name])
        elif rule in betas:
            new[name] = np.tensordot(by_samples if name in STATISTICS else betas[rule], w, axes=1)
        elif rule == "median":
            new[name] = np.median(w, axis=0)
        elif rule == "trimmed-mean":
            new[name] = np.mean(np.sort(w, axis=0)[1:-1], axis=0)  # a fifth of five
    if rule == "fedexp":
        new = extrapolated(previous, uploads, layers)
    if rule == "krum":
        new |= naive_krum(previous, uploads, layers)
    elif rule == "fltrust":
        new |= naive_fltrust(previous, uploads, layers)
    elif rule == "centered-clipping":
        new |= naive_centered_clipping(previous, uploads, layers)
    return new


def extrapolated(previous: State, uploads: list[Upload], layers: list[str]) -> dict[str, Array]:
    mean, n = naive("fedavg", previous, uploads), np.array([float(each.num_samples) for each in uploads])
    lengths = [
        sum(np.sum((array(each.state[i]) - array(previous[i])) ** 2) for i in layers) for each in uploads
    ]
    moved = sum(np.sum((mean[i] - array(previous[i])) ** 2) for i in layers)
    step = max(1.0, float(n @ lengths / n.sum() / (2 * (moved + 1e-3))))
    return {**mean, **{i: array(previous[i]) + step * (mean[i] - array(previous[i])) for i in layers}}


def naive_krum(
    previous: State, uploads: list[Upload], layers: list[str], malicious: int = 1
) -> dict[str, Array]:
    """The client with the best worst rank; its statistics within the range of all but the outermost."""
    floating = [name for name in previous if previous[name].is_floating_point()]
    ranks = [
        naive_ranks(uploads, names, malicious)
        for names in (layers, [name for name in floating if name not in layers])
        if names
    ]
    worst = [(max(own), sum(own), client) for client, own in enumerate(zip(*ranks, strict=True))]
    winner = uploads[min(worst)[2]].state
    new = {name: array(winner[name]) for name in floating}
    for name in STATISTICS & set(floating):
        ordered = np.sort(np.stack([array(upload.state[name]) for upload in uploads]), axis=0)
        new[name] = np.clip(new[name], ordered[malicious], ordered[-1 - malicious])
    return new


def naive_ranks(uploads: list[Upload], names: list[str], malicious: int) -> list[int]:
    vectors = [np.concatenate([array(upload.state[name]).ravel() for name in names]) for upload in uploads]
    scores = []
    for i, own in enumerate(vectors):
        others = sorted(np.sum((own - other) ** 2) for j, other in enumerate(vectors) if j != i)
        scores.append(sum(others[: len(vectors) - malicious - 2]))
    order = sorted(range(len(scores)), key=lambda client: (scores[client], client))
    return [order.index(client) for client in range(len(scores))]


def naive_fltrust(previous: State, uploads: list[Upload], layers: list[str]) -> dict[str, Array]:
    """Each kind of tensor separately; trust is the smaller cosine, or zero if it is negative."""
    root, floating = random_state(99, mixed=False), [n for n in previous if previous[n].is_floating_point()]
    kinds = [layers, [name for name in floating if name not in layers]]

    def change(state: State, names: list[str]) -> Array:
        return np.concatenate([(array(state[name]) - array(previous[name])).ravel() for name in names])

    own = [change(root, names) for names in kinds]
    changes = [[change(upload.state, names) for names in kinds] for upload in uploads]
    trust = np.array([max(0, min(map(cosine, each, own))) for each in changes])
    new = {}
    for kind, names in enumerate(kinds):
        length = np.linalg.norm(own[kind])
        scales = [length / np.linalg.norm(each[kind]) for each in changes]
        scales = [min(1, scale) for scale in scales] if kind else scales
        total = sum(t * s * each[kind] for t, s, each in zip(trust, scales, changes, strict=True))
        ends = np.cumsum([array(previous[name]).size for name in names])
        for name, part in zip(names, np.split(total / trust.sum(), ends[:-1]), strict=True):
            new[name] = array(previous[name]) + part.reshape(array(previous[name]).shape)
    return new


def naive_centered_clipping(previous: State, uploads: list[Upload], layers: list[str]) -> dict[str, Array]:
    floating = [name for name in previous if previous[name].is_floating_point()]
    new = {}
    for names in (layers, [name for name in floating if name not in layers]):
        if not names:
            continue
        vectors = np.stack(
            [np.concatenate([array(upload.state[name]).ravel() for name in names]) for upload in uploads]
        )
        center = np.median(vectors, axis=0)
        lengths = np.linalg.norm(vectors - center, axis=1)
        radius = np.sort(lengths)[(len(lengths) - 1) // 2]
        moves = [
            move * min(1.0, radius / length) if length else move
            for move, length in zip(vectors - center, lengths, strict=True)
        ]
        center = center + np.mean(moves, axis=0)
        ends = np.cumsum([array(previous[name]).size for name in names])
        for name, part in zip(names, np.split(center, ends[:-1]), strict=True):
            new[name] = part.reshape(array(previous[name]).shape)
    return new


def close(new: State, expected: dict[str, Array], previous: State) -> None:
    assert list(new) == list(previous)
    for name, tensor in new.items():
        assert tensor.dtype == previous[name].dtype
        assert tensor.shape == previous[name].shape
        tolerance = {torch.float64: 1e-6, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
        allowed = tolerance.get(tensor.dtype, 0.0)
        np.testing.assert_allclose(array(tensor), expected[name], rtol=allowed, atol=allowed, err_msg=name)


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "mixed"])
@pytest.mark.parametrize("odd", [False, True], ids=["random", "zero-and-opposite"])
@pytest.mark.parametrize("rule", list(AGGREGATIONS))
def test_rule_is_its_definition(
    rule: str, odd: bool, mixed: bool, make_uploads: Callable[..., list[Upload]]
) -> None:
    previous = random_state(0, mixed)
    if odd:
        previous["bn.weight"] = torch.zeros_like(previous["bn.weight"])
    uploads = make_uploads(5, previous, mixed, odd)
    close(build(rule)(previous, uploads, STATISTICS), naive(rule, previous, uploads), previous)


@pytest.mark.parametrize(
    "rule", ["fedavg", "loss", "euc", "m-dawa", "l-dawa", "l-dawa-fedavg", "l-dawa-loss", "median"]
)
def test_one_client(rule: str, previous: State, make_uploads: Callable[..., list[Upload]]) -> None:
    uploads = make_uploads(1)
    new = build(rule)(previous, uploads, STATISTICS)
    close(new, naive(rule, previous, uploads), previous)
    if "dawa" not in rule:
        assert all(torch.equal(new[name], uploads[0].state[name]) for name in new)


@pytest.mark.parametrize("rule", list(AGGREGATIONS))
def test_half_precision_uploads_of_a_single_precision_model(
    rule: str, previous: State, make_uploads: Callable[..., list[Upload]]
) -> None:
    uploads = make_uploads(5, mixed=True)
    assert uploads[0].state["head.weight"].dtype == TYPES["head.weight"] == torch.float16
    close(build(rule)(previous, uploads, STATISTICS), naive(rule, previous, uploads), previous)


@pytest.mark.parametrize("rule", ["loss", "l-dawa-loss"])
@pytest.mark.parametrize(
    "losses", [[1000.0, 1001.0, 1000.5], [-1000.0, -999.0, 0.0], [0.0, 1000.0, -1000.0], [3.0, 50.0, 1.0]]
)
def test_softmax_handles_any_loss(
    rule: str, losses: list[float], previous: State, make_uploads: Callable[..., list[Upload]]
) -> None:
    uploads = make_uploads(3)
    for upload, loss in zip(uploads, losses, strict=True):
        upload.loss = loss
    close(build(rule)(previous, uploads, STATISTICS), naive(rule, previous, uploads), previous)


@pytest.mark.parametrize("unmoved", [[0], [2], [0, 2], [0, 1, 2]])
def test_euc_with_a_client_at_distance_zero(
    unmoved: list[int], previous: State, make_uploads: Callable[..., list[Upload]]
) -> None:
    uploads = make_uploads(3)
    for client in unmoved:
        uploads[client].state["conv.weight"] = previous["conv.weight"].clone()
    new = build("euc")(previous, uploads, STATISTICS)
    close(new, naive("euc", previous, uploads), previous)
    torch.testing.assert_close(new["conv.weight"], previous["conv.weight"])
