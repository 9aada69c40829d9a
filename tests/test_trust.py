"""A run's folder may come from somebody else: opening it does not run the code that it names."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import tomli_w

import fedssl
from fedssl import cli, trust
from fedssl.config import load
from fedssl.data import DATASETS
from fedssl.errors import ConfigError
from fedssl.methods import METHODS
from fedssl.models import ENCODERS
from fedssl.models.rebuild import rebuild
from fedssl.rundir import RunDir
from tests.small import SMALL, arguments

METHOD = """
from pathlib import Path

from fedssl.methods.fedavg import FedAvg

Path("code-was-run").touch()


class Mine(FedAvg):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSSL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(METHOD)
    return tmp_path


@pytest.fixture
def received(folder: Path) -> Path:
    """A received run, with the code that it names."""
    config = load(SMALL).to_dict()
    config["method"]["name"] = "./mine.py:Mine"
    run = folder / "run"
    run.mkdir()
    (run / "config.toml").write_text(tomli_w.dumps(config))
    return run


@pytest.mark.parametrize(
    "words",
    [["resume"], ["eval"], ["report", "--fast", "-o", "page.html"], ["generate", "grid"]],
    ids=lambda words: words[0],
)
def test_opening_a_run_does_not_run_what_it_names(
    received: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.main([words[0], "run", *words[1:]])
    assert not Path("code-was-run").exists()
    if words[0] == "report":  # what the files say is shown; what needs the code is left out
        assert code == 0
        assert "repeat the command with --trust" in Path("page.html").read_text()
    else:
        assert code == 2
        said = capsys.readouterr().err
        assert "run names method './mine.py:Mine'" in said
        assert "mine.py is not yours: it is not run" in said


@pytest.mark.parametrize(
    "words",
    [
        ["export", "run", "--to", "safetensors", "-o", "encoder.safetensors"],
        ["embed", "run", "images", "-o", "features.parquet"],
        ["audit", "run"],
        ["status", "run"],
        ["audit-log", "verify", "run"],
        ["finetune", "run", "images"],
        ["run", "model.init=run", *arguments()],
    ],
    ids=lambda words: words[0],
)
def test_no_other_command_runs_the_code_of_a_run_either(
    received: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(words)
    assert not Path("code-was-run").exists()
    assert "Traceback" not in capsys.readouterr().err


def test_trust_holds_for_one_command(received: Path) -> None:
    assert cli.main(["eval", "run", "--trust"]) == 1  # it has no checkpoint yet
    assert Path("code-was-run").exists()


def test_files_run_by_the_user_are_trusted_until_they_change(folder: Path) -> None:
    words = [*arguments(**{"method.name": "./mine.py:Mine", "rounds": 1}), "--out", "run", "--quiet"]
    assert cli.main(["run", *words]) == 0
    record = folder / "home" / "trusted.json"
    assert json.loads(record.read_text()).keys() == {str(folder / "mine.py")}
    assert record.stat().st_mode & 0o077 == 0
    assert fedssl.Run("run").config.method.name == "./mine.py:Mine"
    with open("mine.py", "a") as file:
        file.write("\n# changed\n")
    with pytest.raises(ConfigError, match=r"mine.py has changed since you ran it: .* with --trust"):
        _ = fedssl.Run("run").config


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("method", "name", "antigravity:Mine"),
        ("objective", "name", "antigravity:Loss"),
        ("attack", "name", "antigravity:Attack"),
        ("data", "name", "antigravity:load"),
        ("model", "encoder", "antigravity:net"),
        ("views", "recipe", "x.y.z:Views"),
        ("engine", "name", "./nothing.py:Engine"),
    ],
)
def test_no_name_of_an_opened_run_is_imported(received: Path, section: str, key: str, value: str) -> None:
    text = (received / "config.toml").read_text().replace("./mine.py:Mine", "fedavg")
    old = load(SMALL).to_dict()[section][key]
    before, _, own = text.partition(f"[{section}]\n")
    (received / "config.toml").write_text(
        f"{before}[{section}]\n" + own.replace(f'{key} = "{old}"', f'{key} = "{value}"', 1)
    )
    with pytest.raises(ConfigError, match="is not yours"):
        RunDir.open(received).config()
    assert "antigravity" not in sys.modules


def test_a_module_is_found_without_running_its_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("1 / 0\n")
    (folder / "package" / "module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(folder))
    assert trust.find("package.module") == (folder / "package" / "module.py").resolve()
    assert trust.find("package.none") is None


@pytest.mark.parametrize("name", ["os:system", "subprocess:Popen", "os:popen"])
def test_only_registered_kinds_are_called(name: str) -> None:
    for registry in (METHODS, ENCODERS, DATASETS):
        with pytest.raises(ConfigError, match="must be a"):
            registry.get(name)


@pytest.mark.parametrize(
    ("factory", "kwargs"),
    [
        ("os.system", {"command": "touch code-was-run"}),
        ("torch.load", {"f": "x"}),
        ("torch.hub.load", {}),
        ("timm.create_model", {"model_name": "resnet18", "checkpoint_path": "x.pt"}),
        ("timm.create_model", {"model_name": "resnet18", "pretrained": True}),
    ],
)
def test_encoder_json_names_networks_and_nothing_else(factory: str, kwargs: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"is not a network|in a file that encoder.json names"):
        rebuild({"factory": factory, "kwargs": kwargs, "changes": []})


def test_the_python_interface_checks_trust_too(received: Path) -> None:
    with pytest.raises(ConfigError, match="with --trust"):
        _ = fedssl.Run(received).config
    assert fedssl.Run(received, trust=True).config.method.name == "./mine.py:Mine"
    assert cli.main(["eval", str(received)]) == 1  # no checkpoint yet; the code is this process's by now


def test_a_module_of_a_package_without_init_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    file = tmp_path / "outer" / "inner" / "deep.py"
    file.touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert trust.find("outer.inner.deep") == file
    assert trust.find("outer.inner.other") is None
    (tmp_path / "outer" / "__init__.py").touch()
    assert trust.find("outer.inner.deep") == file
    assert "outer" not in sys.modules
