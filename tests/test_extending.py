"""The README's method and the classes of docs/extending.md, each in one short file outside of the package."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import fedssl
from fedssl import cli
from fedssl.config import parse_overrides
from tests.docs.pages import blocks
from tests.methods.readme import write_readme_method

FILES = {block.file: block.text for block in blocks("extending.md") if block.file}
SMALL = [
    "data.limit=100",
    "rounds=2",
    "train.epochs=1.0",
    "train.batch_size=8",
    "model.width=4",
    "model.projector_hidden=16",
    "engine.threads=1",
    "probe.protocol=none",
    "log.tensorboard=false",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of docs/extending.md and the README's method, and nothing of fedssl."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    write_readme_method(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(out: str, *words: str) -> fedssl.Run:
    assert cli.main(["run", *SMALL, *words, "--out", out, "--quiet"]) == 0
    found = fedssl.Run(out)
    assert not any(line["failed"] for line in found.metrics)
    return found


def encoder(found: fedssl.Run) -> bytes:
    return (found.path / "encoder.safetensors").read_bytes()


def test_each_part_is_one_short_file(folder: Path) -> None:
    assert len(FILES) == 7
    assert all(len(file.read_text().splitlines()) <= 25 for file in folder.iterdir())


TOGETHER = [
    "method.name=./shy.py:Shy",  # the README's
    "method.keep=0.3",
    "objective.name=./alignment.py:Alignment",
    "aggregation.name=./equal.py:Equal",
    "partition.scheme=./halves.py:Large",
    "partition.share=0.7",
    "views.recipe=./noise.py:Noise",
    "views.strength=0.2",
]


@pytest.mark.usefixtures("warm_workers")
def test_all_parts_together(folder: Path) -> None:
    """From Python, with a callback; by the command in two workers; and with a protocol."""
    budget = load_class(folder / "budget.py", "Budget")(1.0)
    keys = parse_overrides([*SMALL, *TOGETHER, "rounds=5"])
    stopped = fedssl.run(out="stopped", quiet=True, listeners=[budget], **keys)
    assert stopped.result["rounds"] == 1
    found = run("workers", *TOGETHER, "rounds=1", "engine.workers=2")
    assert encoder(found) == encoder(stopped)
    assert {client["kept"] for client in found.metrics[0]["clients"]} == {0.3}
    sizes = json.loads((found.path / "partition.json").read_text())["sizes"]
    assert sizes[0] == round(0.7 * sum(sizes))
    assert found.probe("./rank.py:Rank")["rank"] > 1


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return encoder(run(str(tmp_path_factory.mktemp("plain") / "run")))


@pytest.mark.parametrize(
    "words",
    [
        ["method.name=./proximal.py:Proximal", "method.mu=5"],
        ["objective.name=./alignment.py:Alignment"],
        ["aggregation.name=./equal.py:Equal", "partition.scheme=dirichlet"],
        ["partition.scheme=./halves.py:Large", "partition.share=0.7"],
        ["views.recipe=./noise.py:Noise", "views.strength=0.2"],
    ],
    ids=lambda words: words[0],
)
def test_a_part_takes_effect(folder: Path, plain: bytes, words: list[str]) -> None:
    same = [word for word in words[1:] if word == "partition.scheme=dirichlet"]
    assert encoder(run("changed", *words)) != (encoder(run("plain", *same)) if same else plain)


def test_a_protocol(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run("run")
    assert cli.main(["eval", "run", "--protocol", "./rank.py:Rank"]) == 0
    assert "untrained" in capsys.readouterr().out
    (line,) = (json.loads(text) for text in (found.path / "evaluations.jsonl").read_text().splitlines())
    assert line["protocol"] == "./rank.py:Rank"
    assert 1 < line["rank"] <= 32  # features of an encoder of this width
    assert cli.main(["eval", "run", "--protocol", "./noise.py:Noise"]) == 2
    assert "must be a subclass of fedssl.evaluation.protocol.Protocol" in capsys.readouterr().err


def load_class(file: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def test_a_callback_stops_a_run(folder: Path) -> None:
    full = run("full")
    budget = load_class(folder / "budget.py", "Budget")(1.5 * full.metrics[0]["bytes_up"])
    keys = full.config.to_dict() | {"rounds": 5}
    found = fedssl.run(keys, out="stopped", quiet=True, listeners=[budget])
    assert [line["round"] for line in found.metrics] == [1, 2]
    assert found.result["rounds"] == 2
    assert found.result["stopped"] == "the upload budget is used up"
    assert found.encoder is not None
