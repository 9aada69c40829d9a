"""The project is a Flower app: valid, thin, and a whole run from `flwr run`."""

import importlib
import io
import sys
import zipfile

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from tests.engines.flower.grid import FakeGrid, FakeNode
from tests.small import SMALL, digest, small_run

import fedssl
from fedssl.engines.flower.launch import APP
from fedssl.errors import ConfigError
from fedssl.rundir import RunDir
from fedssl.storage import write_toml


@pytest.fixture
def server_app(monkeypatch):
    monkeypatch.syspath_prepend(str(APP))
    yield importlib.import_module("fedssl_app.server_app")
    for name in ("fedssl_app.server_app", "fedssl_app"):
        sys.modules.pop(name, None)


def test_flower_accepts_the_app():
    config, warnings = load_and_validate(APP / "pyproject.toml")
    assert warnings == []
    assert config["project"]["dependencies"] == []  # what is installed is used: nothing is fetched


def test_the_shipped_app_is_a_few_lines():
    fab = build_fab_from_disk(APP)
    names = zipfile.ZipFile(io.BytesIO(fab)).namelist()
    assert {"pyproject.toml", "fedssl_app/server_app.py", "fedssl_app/client_app.py"} <= set(names)
    assert len(fab) < 10_000


def run_app(server_app, **settings):
    nodes = [FakeNode(number + 1, {"partition-id": number}) for number in range(5)]
    context = Context(1, 1, node_config={}, state=RecordDict(), run_config=settings)
    server_app.app(FakeGrid(nodes), context)


def test_a_run_from_a_config_file_is_the_run_on_one_machine(tmp_path, server_app, capsys):
    local = small_run(tmp_path / "local", rounds=2)
    write_toml(tmp_path / "run.toml", SMALL)
    settings = {"run": str(tmp_path / "run"), "config": str(tmp_path / "run.toml"), "overrides": "rounds=2"}
    run_app(server_app, **settings)
    assert digest(tmp_path / "run") == digest(local)
    assert "round 2/2" in capsys.readouterr().out  # Flower shows what the app prints
    run_app(server_app, **settings)
    assert "has finished already" in capsys.readouterr().out


def test_a_run_continues_where_it_stopped(tmp_path, server_app):
    keys = {"rounds": 2, "checkpoint.every": 1}
    local = small_run(tmp_path / "local", **keys)
    overrides = "engine.name=flower rounds=2 checkpoint.every=1"
    write_toml(tmp_path / "run.toml", SMALL)
    directory = server_app.open_run(str(tmp_path / "run"), str(tmp_path / "run.toml"), overrides)
    assert directory.config().engine.name == "flower"
    run_app(server_app, run=str(tmp_path / "run"))
    assert digest(tmp_path / "run") == digest(local)


def test_a_run_of_another_engine_is_refused(tmp_path, server_app):
    RunDir.create(tmp_path / "run", fedssl.config.load(SMALL))
    with pytest.raises(ConfigError, match=r"engine\.name=local, not on Flower"):
        run_app(server_app, run=str(tmp_path / "run"))
