"""Where Flower has the same rule, it gives the same numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fedssl.aggregation import build
from fedssl.state import State, Upload

flower = pytest.importorskip("flwr.server.strategy.aggregate")
Make = Callable[..., list[Upload]]


def check(new: State, theirs: list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]) -> None:
    floating = [tensor.numpy() for tensor in new.values() if tensor.is_floating_point()]
    assert len(floating) == len(theirs)
    for mine, other in zip(floating, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def results(uploads: list[Upload]) -> list[tuple[list[object], int]]:
    return [
        (
            [tensor.numpy() for tensor in upload.state.values() if tensor.is_floating_point()],
            upload.num_samples,
        )
        for upload in uploads
    ]


def test_fedavg(previous: State, make_uploads: Make) -> None:
    uploads = make_uploads(7)
    check(build("fedavg")(previous, uploads), flower.aggregate(results(uploads)))


def test_fedavg_on_records(previous: State, make_uploads: Make) -> None:
    app = pytest.importorskip("flwr.app")
    utils = pytest.importorskip("flwr.serverapp.strategy.strategy_utils")
    uploads = make_uploads(7)
    records = [
        app.RecordDict(
            {
                "arrays": app.ArrayRecord(list(arrays)),
                "metrics": app.MetricRecord({"num-examples": samples}),
            }
        )
        for arrays, samples in results(uploads)
    ]
    theirs = utils.aggregate_arrayrecords(records, "num-examples").to_numpy_ndarrays()
    check(build("fedavg")(previous, uploads), theirs)


@pytest.mark.parametrize("clients", [5, 6])
def test_median(clients: int, previous: State, make_uploads: Make) -> None:
    uploads = make_uploads(clients)
    check(build("median")(previous, uploads), flower.aggregate_median(results(uploads)))


def test_trimmed_mean(previous: State, make_uploads: Make) -> None:
    uploads = make_uploads(10)
    check(
        build("trimmed-mean", trim=0.2)(previous, uploads),
        flower.aggregate_trimmed_avg(results(uploads), 0.2),
    )


def test_krum(previous: State, make_uploads: Make) -> None:
    uploads = make_uploads(7)
    check(build("krum", malicious=2)(previous, uploads), flower.aggregate_krum(results(uploads), 2, 0))
