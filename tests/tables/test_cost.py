from __future__ import annotations

import time
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedssl.config import load
from fedssl.data.options import DataConfig
from fedssl.papers.recipe import load as load_recipe
from fedssl.tables import cost
from fedssl.tables.cells import cells
from fedssl.tables.cost import Images, Pace, Stopwatch, evaluation_steps, images, measure, plan
from fedssl.tables.dryrun import DryRun
from fedssl.tables.table import Measure, Table


def steps(recipe: str, row: str, column: str) -> int:
    planned = cells(load_recipe(recipe).at("paper"), 1, {})
    config = next(cell.config for cell in planned if (cell.row, cell.column) == (row, column))
    known = images(config.data)
    assert known is not None
    return plan(config, known.count).steps


def test_steps_of_the_paper_by_hand() -> None:
    # 10,000 images a client are 78 batches of 128; 5 epochs, 5 clients, 100 rounds.
    assert steps("fedema-table3", "FedBYOL", "CIFAR-10 non-IID") == 78 * 5 * 5 * 100
    assert steps("fedema-table3", "BYOL (centralized)", "CIFAR-10 IID") == 390 * 5 * 100
    assert steps("fedema-table6", "FedEMA (autoscaler)", "8 of 80, CIFAR-10 IID") == 4 * 2 * 8 * 800
    assert steps("fedema-table4", "FedBYOL", "CIFAR-10, 10 %") == 70 * 5 * 5 * 100


def test_images_are_counted_without_reading_them(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((7, 5, 6, 3), np.uint8))
    np.savez_compressed(tmp_path / "grey.npz", x=np.zeros((7, 5, 6), np.uint8))
    root = str(tmp_path / "a.npz")
    assert images(DataConfig(name="npz", root=root)) == Images(7, (5, 6, 3))
    assert images(DataConfig(name="npz", root=root, limit=4, size=8, channels=1)) == Images(4, (8, 8, 1))
    assert images(DataConfig(name="npz", root=str(tmp_path / "grey.npz"))) == Images(7, (5, 6, 1))
    assert images(DataConfig(name="folder", root="somewhere")) is None


@pytest.mark.parametrize("name", ["digits", "mnist5k"])
def test_the_sizes_written_down_are_those_of_the_sets(name: str) -> None:
    from fedssl.data.sets import load as load_images

    for fraction in (0.05, 0.2):
        data = DataConfig(name=name, test_fraction=fraction)
        train, _ = load_images(data, 0)
        assert images(data) == Images(len(train), (*train.size, train.channels))


@pytest.mark.parametrize("objective", ["simclr", "byol", "supervised"])
def test_timing_a_step_restores_the_threads(objective: str) -> None:
    import torch

    before = torch.get_num_threads()
    pace = measure(load({"objective": objective, "model": {"width": 4}, "engine": {"threads": 1}}), (8, 8, 1))
    assert pace.step >= 0
    assert pace.seconds(16) > 0
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("image", [0.25, 0.001])
def test_the_pace_is_a_line_through_two_sizes_of_batch(monkeypatch: pytest.MonkeyPatch, image: float) -> None:
    class Known:
        """Steps with given times, of which every second one is disturbed."""

        def __init__(self, *_: object) -> None:
            self.taken = 0

        def seconds(self, batch: int) -> float:
            self.taken += 1
            return 0.02 + image * batch + (self.taken % 2)

    monkeypatch.setattr(cost, "_Step", Known)
    pace = measure(load({"train": {"batch_size": 128}}), (32, 32, 3))
    assert pace.seconds(128) == pytest.approx(0.02 + 128 * image)


def test_steps_are_measured_once_and_estimated_after_the_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = []

    def fake(config: object, shape: object) -> Pace:
        measured.append(config)
        return Pace(1.0, float(len(measured)))

    monkeypatch.setattr(cost, "measure", fake)
    byol, simclr = (load({"objective": name, "train": {"batch_size": 2}}) for name in ("byol", "simclr"))
    larger = load({"objective": "byol", "rounds": 99, "seed": 5, "train": {"batch_size": 10}})
    watch = Stopwatch()
    assert [watch.seconds(config, (8, 8, 1)) for config in (byol, larger, simclr)] == [3.0, 11.0, 5.0]
    late = Stopwatch(budget=-1)
    assert late.seconds(byol, (8, 8, 1)) == 7.0  # nothing like it is known
    assert late.seconds(simclr, (8, 8, 1)) == 7.0
    assert late.seconds(simclr, (32, 32, 3)) == 9.0
    assert len(measured) == 4


# --- work other than plain training ---------------------------------------------------------------

GAN = {
    "objective": {"name": "gan", "features": 8, "latent": 8},
    "model": {"width": 4},
    "data": {"name": "digits", "mean": 0.5, "std": 0.5},
    "partition": {"scheme": "iid", "clients": 4},
    "train": {"epochs": 1, "batch_size": 10},
    "engine": {"threads": 1},
}


@pytest.mark.parametrize(("method", "expected"), [("padpaf", 3 + 3 / 3), ("padpaf-ditto", 3 + 3 / 2)])
def test_a_gan_step_has_a_share_of_the_generators_turn(
    method: str, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = {"padpaf": 3, "padpaf-ditto": 2}[method]
    config = load({**GAN, "method": {"name": method, "discriminator_steps": turns}})
    step = cost._Step(config, (8, 8, 1))
    clock = iter((10.0, 13.0, 16.0))  # three seconds for each player
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    assert step.seconds(4) == pytest.approx(expected)


def test_methods_that_train_two_models_count_twice() -> None:
    assert [load({"method": name}).method.effort for name in ("ditto", "apfl", "padpaf-ditto", "padpaf")] == [
        2.0,
        2.0,
        2.0,
        1.0,
    ]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        # 4 clients, 100 images of each kind, 10 a batch, a third of a step for each.
        ({"what": "fid", "number": "mean", "config": {"count": 100}}, 4 * 2 * 100 / 10 / 3),
        ({"what": "fid", "number": "mean"}, 4 * 2 * 250 / 10 / 3),  # a client has no more
        # 5 rounds of 2 clients with 500 images each.
        ({"what": "adapt", "number": "seen", "config": {"rounds": 5, "clients": 2}}, 5 * 2 * 50),
        ({"what": "restyle", "number": "kept", "config": {"steps": 60, "batch": 20}}, 60 * 20 / 10 / 3),
        ({"what": "grid", "number": "content_kept"}, 0.0),
    ],
)
def test_the_cost_of_generate_by_hand(asked: dict[str, Any], expected: float) -> None:
    config = load({**GAN, "method": "padpaf", "rounds": 3})
    assert evaluation_steps(config, Measure(kind="generate", **asked), 1000) == pytest.approx(expected)
    assert evaluation_steps(config, Measure(), 1000) == 0.0


def test_a_dry_run_counts_an_evaluation_once_per_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two columns are two numbers of one FID; the third asks for another."""
    monkeypatch.setattr(Stopwatch, "seconds", lambda *_: 1.0)
    measure = {"kind": "generate", "what": "fid", "config": {"count": 300}}
    columns = [
        {"name": "mean", "measure": {"number": "mean"}},
        {"name": "first", "measure": {"number": "clients.0"}},
        {"name": "few", "measure": {"number": "mean", "config": {"count": 30}}},
    ]
    base = {**GAN, "method": "padpaf", "rounds": 3}
    table = Table(
        name="t", origin="t", title="t", measure=measure, base=base, columns=columns, rows=[{"name": "a"}]
    )
    listing = DryRun(tmp_path, Console(file=StringIO()))
    listing.show(table, cells(table, 1, {}))
    count = round(1797 * 0.8)  # digits
    trained = 3 * 4 * (round(count / 4) // 10)
    asked = 4 * 2 * (300 + 30) / 10 / 3
    assert listing.seconds == pytest.approx(trained + asked)
