"""The whole command: with a stand-in for training, then for real."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedssl import api, cli
from fedssl.engines.round_report import RoundReport
from fedssl.errors import ConfigError, RunError
from fedssl.experiment import Experiment
from fedssl.papers import reproduce
from fedssl.papers.recipe import load
from fedssl.storage import read_lines
from fedssl.tables.cells import cells
from fedssl.tables.cost import images, plan
from tests.tables.conftest import SMALL, FakeTraining

Write = Callable[..., Path]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_a_table_is_written_and_shown(
    write: Write, out: Path, training: FakeTraining, capsys: pytest.CaptureFixture[str]
) -> None:
    training.accuracy = lambda config: (0.6 if config.objective.name == "byol" else 0.5) + 0.01 * config.seed
    (results,) = reproduce(str(write(SMALL)), scale="smoke", seeds=6, out=out)
    page = (out / "mine-smoke.md").read_text()
    shown = capsys.readouterr().out
    for line in (
        "| BYOL              | 62.50 ± 1.87 (6) | 80.00 |",
        "| BYOL > SimCLR | iid    | +10.00 ± 0.00 |",
        "**0 of 2 held, 0 not held, 2 undecided.**",  # equal differences: 2 of 64 sign patterns, times two
    ):
        assert line in page
        assert line in shown
    assert json.loads((out / "mine-smoke.json").read_text())["cells"][0]["number"] == 50.0
    assert not results.failures


def test_more_seeds_run_only_what_is_missing(write: Write, out: Path, training: FakeTraining) -> None:
    file = str(write(SMALL))
    reproduce(file, seeds=1, out=out)
    reproduce(file, seeds=3, out=out)
    assert len(training.trained) == len(set(training.trained)) == 12


def test_rows_columns_and_the_first_seed_can_be_chosen(
    write: Write, out: Path, training: FakeTraining
) -> None:
    words = ["--rows", "BYOL", "--columns", "skewed,iid", "--first-seed", "1000", "--seeds", "2"]
    assert cli.main(["reproduce", str(write(SMALL)), *words, "--out", str(out)]) == 0
    assert len(training.trained) == 4
    assert [path.suffix for path in sorted(out.glob("mine*"))] == [".json", ".md"]
    found = json.loads((out / "mine-smoke-part-tuning.json").read_text())
    assert [(cell["row"], cell["column"], cell["seed"]) for cell in found["cells"]] == [
        ("BYOL", column, seed) for seed in (1000, 1001) for column in ("iid", "skewed")
    ]
    assert "(tuning)" in (out / "mine-smoke-part-tuning.md").read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("table", "options", "problem"),
    [
        ("fedema-table3", {"rows": "FedEMU"}, "unknown row 'FedEMU': did you mean FedU"),
        ("fedema-table12", {"columns": "K = 5, 10 %,K = 5, 11 %"}, "unknown column 'K = 5'"),
        (None, {"rows": "FedU"}, "--rows needs a single table"),
        ("fedema-table3", {"first_seed": 999, "seeds": 2}, "seeds 999 to 1000: seeds from 1000 on are for"),
        ("fedema-table3", {"first_seed": -1}, "--first-seed -1"),
    ],
)
def test_a_wrong_choice_of_rows_columns_or_seeds(
    out: Path, table: str | None, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError) as error:
        reproduce(*([table] if table else []), out=out, **options)
    assert problem in str(error.value)
    assert not out.exists()


def test_names_with_commas_can_be_chosen() -> None:
    chosen = load("fedema-table12").at("smoke").select(columns="K = 20, 25 %,K = 5, 10 %")
    assert [column.name for column in chosen.columns] == ["K = 5, 10 %", "K = 20, 25 %"]
    chosen = load("fedema-table3").at("midi").select(rows="FedEMA (autoscaler),FedBYOL, update-both")
    assert [row.name for row in chosen.rows] == ["FedBYOL, update-both", "FedEMA (autoscaler)"]
    chosen = load("fedema-table3").at("midi").select(rows="FedBYOL,FedEMA (autoscaler)")
    assert [row.name for row in chosen.rows] == ["FedBYOL", "FedEMA (autoscaler)"]


def test_failures_are_in_the_table_and_end_in_an_error(
    write: Write, out: Path, training: FakeTraining
) -> None:
    training.fails = lambda config: config.objective.name == "byol"
    with pytest.raises(RunError, match=r"2 cells failed \(mine\)"):
        reproduce(str(write(SMALL)), seeds=1, out=out)
    page = (out / "mine-smoke.md").read_text()
    assert "## Failed" in page
    assert "SimCLR            | 50.00 (1)" in page


def test_the_table_grows_run_by_run(
    write: Write, out: Path, training: FakeTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_at_the_third(config: object) -> bool:
        if len(training.trained) == 3:
            raise KeyboardInterrupt
        return False

    training.fails = stop_at_the_third
    with pytest.raises(KeyboardInterrupt):
        reproduce(str(write(SMALL)), seeds=1, out=out)
    assert "| BYOL              | –" in (out / "mine-smoke.md").read_text()
    assert len(json.loads((out / "mine-smoke.json").read_text())["cells"]) == 2


@pytest.mark.parametrize(
    ("table", "scale", "problem"),
    [
        ("fedema-table33", "smoke", "unknown recipe 'fedema-table33': did you mean fedema-table3"),
        ("fedema-table3", "smok", "unknown scale 'smok': did you mean smoke"),
        ("fedema-table7", "mini", "fedema-table7, scale mini needs cifar10_train.npz"),
        ("fedema-table7", "midi", "fedema-table7 has no scale midi, only smoke, mini, paper"),
        (
            "fedema-table3",
            "mini",
            "needs cifar10_train.npz, which is not at cifar10_train.npz: set data.root=FOLDER",
        ),
    ],
)
def test_wrong_commands_suggest_corrections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, scale: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        reproduce(table, scale=scale)
    assert problem in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_dry_run_lists_cells_and_hours_and_runs_nothing(
    write: Write, out: Path, training: FakeTraining, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(SMALL)
    done, partial = cells(load(str(file)).at("smoke"), 2, {})[0:2]
    training(done.config, out / "runs" / done.folder)
    (out / "runs" / partial.folder).mkdir()
    (out / "runs" / partial.folder / "config.toml").touch()
    (out / "runs" / partial.folder / "metrics.jsonl").write_text('{"round": 1}\n')
    code = cli.main(["reproduce", str(file), "--dry-run", "--seeds", "2", "--out", str(out), "rounds=2"])
    text = capsys.readouterr().out
    assert code == 0
    assert len(training.trained) == 1
    assert "| iid    | 2     | 2×1×5                 | 10            | 1 done, 1 missing    |" in text
    assert "| skewed | 2     | 2×1×5                 | 10            | 1 partial, 1 missing |" in text
    assert "7 runs to do: about 0.0 hours of training here. The estimate" in text
    assert not (out / "mine-smoke.md").exists()


def test_runs_that_tables_share_are_counted_once(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reproduce("fedema-table3", seeds=1, dry_run=True, out=out)
    text = capsys.readouterr().out
    unique = {cell.folder for cell in cells(load("fedema-table3").at("smoke"), 1, {})}
    assert f"{len(unique)} runs to do" in text


# --- for real -------------------------------------------------------------------------------------


@pytest.fixture
def no_pictures_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take a third of the time of runs this small."""
    monkeypatch.setattr("fedssl.data.partition_picture.save_picture", lambda *_: None)


@pytest.mark.usefixtures("no_pictures_of_partitions")
def test_a_stopped_run_continues_with_the_same_result(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = SMALL.index("[[column]]"), SMALL.index('[[row]]\nname = "BYOL"'), SMALL.index("[[ordering]]")
    file = str(
        write(
            SMALL[: cut[0]].replace("rounds = 2", "rounds = 4")
            + SMALL[cut[1] : cut[2]].replace("iid", "accuracy")
        )
    )
    overrides = {"checkpoint.every": 1}
    whole = reproduce(file, seeds=1, out=tmp_path / "whole", overrides=overrides)[0]

    after = Experiment._after_round

    def killed_in_round_three(self: Experiment, report: RoundReport) -> bool:
        stopped = after(self, report)
        if report.round == 3:
            raise KeyboardInterrupt
        return stopped

    monkeypatch.setattr(Experiment, "_after_round", killed_in_round_three)
    with pytest.raises(KeyboardInterrupt):
        reproduce(file, seeds=1, out=tmp_path / "stopped", overrides=overrides)
    monkeypatch.setattr(Experiment, "_after_round", after)

    resumed = []
    resume = api.resume
    monkeypatch.setattr(api, "resume", lambda path, quiet: resumed.append(path) or resume(path, quiet=quiet))
    stopped = reproduce(file, seeds=1, out=tmp_path / "stopped", overrides=overrides)[0]
    assert [path.name for path in resumed] == [stopped.outcomes[0].cell.folder]
    assert [outcome.number for outcome in stopped.outcomes] == [outcome.number for outcome in whole.outcomes]


@pytest.mark.usefixtures("no_pictures_of_partitions")
def test_the_estimate_counts_the_steps_that_are_trained(write: Write, out: Path) -> None:
    text = SMALL.replace("epochs = 1, batch_size = 16", "epochs = 2, batch_size = 8")
    (results,) = reproduce(str(write(text)), seeds=1, out=out)
    for outcome in results.outcomes:
        config = outcome.cell.config
        known = images(config.data)
        assert known is not None
        views = sum(line["views"] for line in read_lines(outcome.path / "metrics.jsonl"))
        assert views == plan(config, known.count).steps * 8 * 2  # two views of eight images a step
