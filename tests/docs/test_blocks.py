"""Every block of code in the documentation works as shown.

Python is executed, TOML is validated, and commands are run, page by page from top to bottom in a separate
folder. The files that a page assumes are in WORLD, commands that are not run in NOT_RUN; these must parse,
too, and their keys must exist.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import re
import runpy
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedssl
from fedssl import cli
from fedssl.commands import help, keys
from fedssl.commands.comparing import comparison_of
from fedssl.config import Config, load, parse_overrides
from fedssl.errors import FedsslError
from fedssl.evaluation import PROTOCOLS
from fedssl.generative.use import USES
from fedssl.options import build
from fedssl.papers import recipe as recipes
from fedssl.tables.cells import values_of
from fedssl.tables.compare import from_file
from tests.docs.pages import FILES, ROOT, SHELL, Block, Command, blocks, commands, inline

# Files that a page assumes, and what they are here (see `stock`).
WORLD: dict[str, dict[str, str]] = {
    "README.md": {"photos": "photos"},
    "aggregation.md": {"runs/digits-simclr-fedavg": "run"},
    "data.md": {"hospitals": "photos", "scans.csv": "scans.csv"},
    "encoder.md": {
        "encoder.json": "run/encoder.json",
        "encoder.safetensors": "run/encoder.safetensors",
        "rebuild.py": "rebuild.py",
        "digit.png": "flat/0.png",
        "runs/first": "run",
        "photos": "photos",
    },
    "faq.md": {
        "photos": "photos",
        "flat": "flat",
        "empty": "empty",
        "mixed": "mixed",
        "runs/a": "run",
        "runs/half": "half",
    },
    "report.md": {"runs/a": "run", "runs/b": "run", "runs/c": "run"},
    "use.md": {"runs/RUN": "run", "PHOTOS": "photos", "LABELED": "photos", "query.jpg": "flat/0.png"},
}

# Added to a command so that it takes a second; the page's own values of these keys are still checked.
FAST_RUN = [
    "rounds=2",
    "train.epochs=0.05",
    "model.width=4",
    "model.projector_hidden=16",
    "engine.threads=1",
    "log.tensorboard=false",
]
FEW = ["data.limit=100"]  # not where the number of images is part of what is printed
FAST = {"run": FAST_RUN, "report": ["--map", "pca"], "theory": ["--dimensions", "30"]}

# Commands that are only parsed, by page and beginning, and why.
NOT_RUN: dict[tuple[str, str], str] = {
    ("*", "make"): "installs an environment or runs all tests",
    ("*", "pip install"): "needs a package index",
    ("*", "fedssl reproduce"): "many runs; tests/papers runs recipes at scale smoke",
    ("*", "fedssl compare"): "many runs; tests/tables/test_compare.py runs small ones",
    ("gpu.md", "fedssl check experiment.toml"): "needs two GPUs; tests/commands/test_device_check.py",
    ("data.md", "fedssl run data.name=omniglot"): "needs Omniglot; tests/data/test_natural.py",
    ("decentralized.md", "fedssl eval RUN --protocol det"): "minutes; tests/evaluation/test_detection.py",
    ("*", "fedssl run method.name=featarc"): "the full width; tests/methods/test_featarc.py",
    ("report.md", "fedssl report runs/study"): "a folder of several runs; tests/report/test_sheets.py",
    ("deploy.md", "fedssl server"): "runs until sites are done; tests/engines/flower/test_processes.py",
    ("deploy.md", "fedssl client"): "runs until it is stopped; tests/engines/flower/test_processes.py",
    ("deploy.md", "fedssl status"): "needs that run; tests/report/test_status.py",
    ("deploy.md", "fedssl watch"): "serves until it is stopped; tests/report/test_html_watch.py",
    ("deploy.md", "flwr"): "needs a SuperLink; tests/engines/flower/test_app.py",
    ("deploy.md", "fedssl run engine.name=flower"): "starts Ray; tests/engines/flower/test_simulation.py",
    ("deploy.md", "fedssl certs"): "tests/engines/flower/test_certs.py",
    ("encoder.md", "fedssl run model.encoder=timm:vit"): "needs weights; tests/models/test_weights.py",
    ("generative.md", "fedssl run"): "needs MNIST; tests/generative run such configs on digits",
    ("generative.md", "fedssl generate"): "needs that run; tests/generative/test_uses.py",
    ("methods.md", "fedssl run method.name=fedstyle"): "needs MNIST, SVHN and USPS",
    ("methods.md", "fedssl eval"): "needs that run; tests/evaluation/test_by_style.py",
    ("report.md", "fedssl watch"): "serves until it is stopped; tests/report/test_html_watch.py",
    ("results/mini.md", "fedssl run"): "needs CIFAR-10",
    ("results/privacy.md", "fedssl run"): "250 clients; tests/audit runs small ones",
    ("results/privacy.md", "fedssl audit"): "needs that run; tests/audit",
    ("results/privacy.md", "python -m tests"): "six minutes; tests/privacy/test_dropouts.py has three sites",
}
NOT_CODE = ("text", "ini")  # languages of blocks that are not run


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run, one that never began, and folders of tiny images."""
    root, rng = tmp_path_factory.mktemp("stock"), np.random.default_rng(0)
    places = {f"photos/{name}": 64 for name in ("cats", "dogs")} | {"flat": 12, "mixed": 3, "mixed/a": 3}
    for place, count in places.items():
        (root / place).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / place / f"{number}.png")
    (root / "empty").mkdir()
    rows = [f"hospitals/{site}/{number}.png,{site}" for site in ("cats", "dogs") for number in range(64)]
    (root / "scans.csv").write_text("\n".join(["path,site", *rows]), encoding="utf-8")
    words = [*FEW, "checkpoint.every=1", "checkpoint.keep=0"]
    fedssl.run(out=root / "run", quiet=True, **parse_overrides([*FAST_RUN, *words]))
    (root / "half").mkdir()
    shutil.copy(root / "run" / "config.toml", root / "half")
    shutil.copy(ROOT / "src/fedssl/models/rebuild.py", root)
    return root


@pytest.fixture
def place(tmp_path: Path, stock: Path, request: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a page is tested, with the files that it assumes."""
    for name, kind in WORLD.get(request.param, {}).items():
        source, target = stock / kind, tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    real = fedssl.run
    fast = parse_overrides([*FAST_RUN, *FEW])
    monkeypatch.setattr(fedssl, "run", lambda *given, **keys: real(*given, **{"quiet": True} | keys | fast))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


WITH_CODE = [page for page in FILES if blocks(page)]


@pytest.mark.parametrize(("page", "place"), [(page, page) for page in WITH_CODE], indirect=["place"])
def test_code_blocks_of_a_page_work(page: str, place: Path) -> None:
    listed = blocks(page)
    for block in listed:
        assert block.language in (*SHELL, *NOT_CODE, "python", "toml"), f"{block.where}: {block.language}?"
        if block.file:
            (place / block.file).write_text(block.text, encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in listed:
        if block.language == "python" and not block.file:
            exec(compile(block.text, block.where, "exec"), names)
        elif block.language == "toml":
            validate(block)
        elif block.language in SHELL:
            for command in commands(block):
                check(command)
                if not reason_not_to_run(command, page):
                    run(command, place)
    for file in place.glob("runs/*/metrics.jsonl"):
        assert [line["failed"] for line in map(json.loads, file.open()) if line["failed"]] == [], file
    files = [block.file for block in listed if block.file]
    assert [file for file in files if not is_used(file, listed)] == [], "nobody uses it"


def is_used(file: str, listed: list[Block]) -> bool:
    """Whether a command names the file of a page, or its Python imports it."""
    in_commands = any(
        file in command.text for block in listed if block.language in SHELL for command in commands(block)
    )
    return in_commands or any(
        f"from {Path(file).stem} import" in block.text
        for block in listed
        if block.language == "python" and not block.file
    )


def reason_not_to_run(command: Command, page: str) -> str:
    if command.transcript:
        return ""
    found = [
        why
        for (where, beginning), why in NOT_RUN.items()
        if where in ("*", page) and command.text.startswith(beginning)
    ]
    return found[0] if found else ""


def test_commands_that_are_not_run_exist() -> None:
    """Every reason belongs to an existing command."""
    shown = {
        (page, command.text)
        for page in WITH_CODE
        for block in blocks(page)
        if block.language in SHELL
        for command in commands(block)
    }
    for where, beginning in NOT_RUN:
        assert any(where in ("*", page) and text.startswith(beginning) for page, text in shown), beginning


def test_things_in_the_world_are_for_pages_that_exist() -> None:
    assert WORLD.keys() <= FILES.keys()


# --- keys that are named in the text ---------------------------------------------------------------

KEYS = set(re.findall(r"^\s+([a-z_]+(?:\.[a-z_0-9]+)?) = ", help.describe(), flags=re.MULTILINE))
KEYS |= {"probe.knn", "probe.feature_std"}  # of metrics.jsonl
FILE_TYPES = ("json", "png", "md", "py", "toml", "crt", "key", "parquet")


@pytest.mark.parametrize("page", FILES)
def test_keys_commands_and_files_in_the_text_exist(page: str) -> None:
    sections = "|".join(Config.model_fields)
    for code in inline(page):
        for section, key in re.findall(rf"(?<![\w./-])({sections})\.([a-z_0-9]+)\b(?!\()", code):
            assert f"{section}.{key}" in KEYS or key in FILE_TYPES, f"{page}: `{code}`"
        for name in re.findall(r"(?<![\w./])fedssl ([a-z][a-z-]*)", code):
            assert name in cli.COMMANDS, f"{page}: `{code}`"
        for file in re.findall(r"\b(?:benchmarks|examples|src|tests)/[\w/]+\.py", code):
            assert (ROOT / file).exists(), f"{page}: `{code}`"


# --- checking --------------------------------------------------------------------------------------


def validate(block: Block) -> None:
    values = tomllib.loads(block.text)
    if "row" in values:
        file = Path(block.file or "shown.toml")
        file.write_text(block.text, encoding="utf-8")
        if "seeds" in values:  # a comparison
            from_file(file).table()
        else:
            recipes.load(f"./{file}")
    else:
        load(values)


def check(command: Command) -> None:
    """Parse it and look every key up, without running it."""
    program, *words = command.words
    if command.transcript:
        return
    if program == "fedssl":
        check_fedssl(command)
    elif program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE), command.where
    elif program == "pip":
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        asked = [extra for word in words for extra in re.findall(r"\[(.*)\]", word)]
        assert {name for extra in asked for name in extra.split(",")} <= known.keys(), command.where
    else:
        assert program in ("python", "flwr", "ssh"), f"{command.where}: {program}?"


def check_fedssl(command: Command) -> None:
    name, *words = command.words[1:]
    assert name in cli.COMMANDS, f"{command.where}: fedssl {name}"
    parser = argparse.ArgumentParser(prog=f"{command.where}: fedssl {name}", add_help=name != "run")
    cli.COMMANDS[name].arguments(parser)
    options = parser.parse_intermixed_args(words)
    if name in ("run", "server"):
        first = options.words[0] if options.words and "=" not in options.words[0] else None
        there = first is not None and Path(first).exists()  # a config of the reader's own is not
        load(first if there else None, parse_overrides(options.words[1:] if first else options.words))
    elif name == "eval":
        own = {f"protocol.{key}" for key in PROTOCOLS.get(options.protocol).model_fields}
        assert parse_overrides(options.overrides).keys() <= KEYS | {"method.stylized"} | own, command.where
    elif name == "generate":
        build(USES.get(options.what), {"name": options.what, **parse_overrides(options.options)}, "options")
    elif name == "list":
        assert options.kind is None or options.kind in keys.LISTS, command.where
    elif name == "compare":
        comparison_of(options).table()
    elif name == "reproduce":
        overrides = [word for word in options.words if "=" in word]
        for asked in set(options.words) - set(overrides):
            recipe = recipes.load(asked)
            assert options.scale in recipe.scales, command.where
            table = recipe.at(options.scale)
            load(values_of(table, table.rows[0], table.columns[0]), parse_overrides(overrides))


# --- running ---------------------------------------------------------------------------------------


def run(command: Command, place: Path) -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = execute(command, place)
    printed = [line for line in said.getvalue().splitlines() if line.strip()]
    told = f"{command.where}: {command.text}\n{said.getvalue()}"
    if command.output:
        right = "\n".join(command.output)
        pattern = re.escape(right).replace("…", ".*")
        assert re.fullmatch(pattern, "\n".join(printed)), told
    assert (code != 0) == any(line.startswith("fedssl: ") for line in command.output), told


def execute(command: Command, place: Path) -> int:
    program, *rest = command.words
    if program == "fedssl":
        few = FEW if rest[0] == "run" and not command.transcript else []
        return cli.main([*rest, *FAST.get(rest[0], []), *few])
    assert program == "python", program
    if rest[:2] == ["-m", "pytest"]:
        tests = runpy.run_path(rest[2])
        for name, test in tests.items():
            if name.startswith("test_"):
                (place / name).mkdir()
                test(place / name)
    elif rest[0] == "-c":
        exec(rest[1], {})
    else:
        importlib.invalidate_caches()
        runpy.run_path(rest[0], run_name="__main__")
    return 0


# --- and these tests can fail ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "fedssl rnu",
        "fedssl run train.lrr=1",
        "fedssl run method.tau=0.5",
        "fedssl eval RUN --protocols knn",
        "fedssl eval RUN probe.lables=0.1",
        "fedssl generate RUN grid columms=3",
        "fedssl list method",
        "fedssl reproduce fedema-table33",
        "fedssl reproduce fedema-table3 trian.lr=1",
        "make demos",
        "pip install 'fedssl[onxx]'",
        "rm -rf runs",
    ],
)
def test_a_wrong_command_is_detected(text: str) -> None:
    (command,) = commands(Block("page.md", 1, "bash", text))
    with pytest.raises((AssertionError, FedsslError, SystemExit)):
        check(command)


@pytest.mark.parametrize(
    "text",
    [
        "$ fedssl list engines\nengines:\n  …",  # fewer lines than are printed
        "$ fedssl run method.name=fedemo\nfedssl: unknown method 'fedemo'",
        "$ fedssl run method.name=fedemo",  # an error that the page does not show
    ],
)
def test_a_wrong_transcript_is_detected(text: str, tmp_path: Path) -> None:
    (command,) = commands(Block("page.md", 1, "console", text))
    with pytest.raises(AssertionError):
        run(command, tmp_path)
