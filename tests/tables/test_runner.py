from __future__ import annotations

import json
import multiprocessing
import signal
from collections.abc import Callable
from io import StringIO
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from rich.console import Console

from fedssl.errors import RunError
from fedssl.papers.recipe import Recipe, load
from fedssl.tables import measure
from fedssl.tables.campaign import Campaign
from fedssl.tables.cells import cells
from fedssl.tables.measure import read_number
from fedssl.tables.runner import Outcome, lock_of, lock_run, run_cells
from fedssl.tables.table import Measure
from tests.suite.waiting import wait_until
from tests.tables.conftest import FakeTraining


def run(recipe: Recipe, runs: Path, seeds: int = 1) -> list[Outcome]:
    done = list(run_cells(cells(recipe.at("smoke"), seeds, {}), runs))
    assert [each.position for each in done] == list(range(len(done)))
    return [each.outcome for each in done]


def test_every_cell_is_run_once_and_then_reused(
    small: Recipe, training: FakeTraining, tmp_path: Path
) -> None:
    training.accuracy = lambda config: 0.5 + 0.1 * config.seed
    outcomes = run(small, tmp_path, seeds=2)
    assert [outcome.number for outcome in outcomes] == [50.0] * 4 + [60.0] * 4
    assert all(outcome.untrained == 25.0 for outcome in outcomes)
    assert len(training.trained) == 8
    again = run(small, tmp_path, seeds=2)
    assert [outcome.number for outcome in again] == [outcome.number for outcome in outcomes]
    assert len(training.trained) == 8


def test_every_cell_is_a_line_with_the_time_left(
    small: Recipe, training: FakeTraining, tmp_path: Path
) -> None:
    def lines() -> list[str]:
        out = StringIO()
        Campaign([small.at("smoke")], 2, out=tmp_path).run(Console(file=out, highlight=False, width=200))
        return out.getvalue().splitlines()

    first, *found = lines()
    assert first == "mine, scale smoke: 8 cells"
    assert found[0].startswith("1/8  SimCLR · iid · seed 0: 50.00  0s")
    assert found[7].startswith("8/8  BYOL · skewed · seed 1: 50.00  0s")
    assert "left" not in found[7]
    assert sum("reused" in line for line in lines()) == 8


def test_a_failed_cell_does_not_affect_others(small: Recipe, training: FakeTraining, tmp_path: Path) -> None:
    training.fails = lambda config: config.objective.name == "byol" and config.partition.scheme == "iid"
    outcomes = run(small, tmp_path)
    assert [bool(outcome.error) for outcome in outcomes] == [False, False, True, False]
    assert outcomes[2].error == "ValueError: no such luck"
    kept = outcomes[2].path / "error.txt"
    assert "Traceback" in kept.read_text()
    training.fails = lambda config: False
    outcomes = run(small, tmp_path)
    assert not any(outcome.error for outcome in outcomes)
    assert not kept.exists()


def test_a_run_that_failed_is_not_tried_again_for_the_next_cell_that_shares_it(
    training: FakeTraining, tmp_path: Path, write: Callable[..., Path]
) -> None:
    recipe = load(
        str(write('title = "t"\n[[column]]\nname = "x"\n[[column]]\nname = "y"\n[[row]]\nname = "r"\n'))
    )
    training.fails = lambda config: True
    outcomes = run(recipe, tmp_path)
    assert [outcome.error for outcome in outcomes] == ["ValueError: no such luck"] * 2
    assert len(training.trained) == 1


def test_a_missing_number_does_not_affect_others_of_the_run(
    training: FakeTraining, tmp_path: Path, write: Callable[..., Path]
) -> None:
    rows = '[[row]]\nname = "a"\nmeasure = { kind = "rounds-to", target = 0.5 }\n[[row]]\nname = "b"\n'
    outcomes = run(load(str(write(f'title = "t"\n{rows}'))), tmp_path)
    assert outcomes[0].path == outcomes[1].path
    assert "probe.every=1" in outcomes[0].error
    assert outcomes[1].number == 50.0


def test_stopping_stops(small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedssl.tables.runner.train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(small, tmp_path)


# --- numbers --------------------------------------------------------------------------------------


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    probes = [{"protocol": "linear", "accuracy": 0.8, "untrained": 0.3}]
    (tmp_path / "result.json").write_text(json.dumps({"probes": probes, "why_no_probes": ""}))
    lines = [{"round": number, "probe": {"knn": 0.1 * number}} for number in (2, 4, 6)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"round": 8, "pro')
    return tmp_path


def test_a_probe_is_read_from_the_result(finished: Path) -> None:
    reading = read_number(finished, Measure(kind="linear"))
    assert (reading.number, reading.untrained) == (80.0, 30.0)


def test_another_protocol_is_evaluated_once_and_kept(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def evaluate(path: Path, protocol: str, options: dict[str, object]) -> dict[str, object]:
        asked.append((protocol, options))
        entry = {"protocol": protocol, "accuracy": 0.5, "untrained": 0.1, "overrides": options}
        with open(path / "evaluations.jsonl", "a") as file:
            file.write(json.dumps(entry) + "\n")
        return entry

    monkeypatch.setattr(measure, "evaluate", evaluate)
    wanted = Measure(kind="transfer", config={"data": {"limit": 0}})
    assert [read_number(finished, wanted).number for _ in range(2)] == [50.0, 50.0]
    assert read_number(finished, Measure(kind="semi")).number == 50.0
    assert read_number(finished, Measure(kind="linear", config={"probe": {"labels": 0.1}})).number == 50.0
    assert asked == [("transfer", {"data.limit": 0}), ("semi", {}), ("linear", {"probe.labels": 0.1})]


def test_rounds_until_a_target(finished: Path) -> None:
    assert read_number(finished, Measure(kind="rounds-to", target=0.4)).number == 4
    assert read_number(finished, Measure(kind="rounds-to", target=0.7)).number == float("inf")
    (finished / "metrics.jsonl").write_text('{"round": 1}\n')
    with pytest.raises(RunError, match=r"probe.every=1"):
        read_number(finished, Measure(kind="rounds-to", target=0.4))


def test_a_run_without_labels_says_why_it_has_no_number(finished: Path) -> None:
    (finished / "result.json").write_text(json.dumps({"probes": [], "why_no_probes": "folder has no labels"}))
    with pytest.raises(RunError, match="folder has no labels"):
        read_number(finished, Measure(kind="knn"))


# --- two commands at once -------------------------------------------------------------------------


def _hold(lock: Path, held: Path) -> None:
    with lock_run(lock):
        held.touch()
        signal.pause()


def start(target: Callable[[Path, Path], None], lock: Path, file: Path) -> BaseProcess:
    """Spawned, not forked, so that the guard of tests finds it."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=(lock, file))
    process.start()
    return process


def start_holder(lock: Path, held: Path) -> BaseProcess:
    process = start(_hold, lock, held)
    wait_until(lambda: held.exists() or not process.is_alive(), "the lock should be held")
    assert process.is_alive()
    return process


def test_a_lock_is_waited_for_and_released_with_its_owner(tmp_path: Path) -> None:
    lock, held = tmp_path / "locks" / "run", tmp_path / "held"
    process = start_holder(lock, held)
    waiter = start(_enter, lock, tmp_path / "entered")
    wait_until(lambda: (tmp_path / "comes").exists() or not waiter.is_alive(), "the other should come")
    waiter.join(0.2)
    assert waiter.is_alive()
    assert not (tmp_path / "entered").exists()
    process.kill()
    wait_until(lambda: not waiter.is_alive(), "the lock should be free")
    assert (tmp_path / "entered").exists()


def test_a_run_locked_by_another_command_comes_last(
    small: Recipe, training: FakeTraining, tmp_path: Path
) -> None:
    planned = cells(small.at("smoke"), 1, {})
    held = tmp_path / "held"
    process = start_holder(lock_of(tmp_path / planned[0].folder), held)
    done = []
    for each in run_cells(planned, tmp_path):
        done.append(each.position)
        if len(done) == len(planned) - 1:
            process.kill()
    assert done == [*range(1, len(planned)), 0]
    assert training.trained[-1] == tmp_path / planned[0].folder


def _enter(lock: Path, entered: Path) -> None:
    (entered.parent / "comes").touch()
    with lock_run(lock):
        entered.touch()
