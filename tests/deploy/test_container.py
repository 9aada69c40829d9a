"""The container image and the compose file: safe by their settings, and their commands train a federation.

No container is started here: the same commands run as processes, with folders in place of the volumes. The
workflow of the repository starts the containers.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedssl.rundir import RunDir
from tests.suite.waiting import wait_until

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
COMPOSE = yaml.safe_load((ROOT / "deploy" / "compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SITES = ("berlin", "paris")


def instructions() -> list[tuple[str, str]]:
    """(FROM, python:3.12 AS wheel), …; lines are joined, comments left out."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines if line.strip())]


# --- the image ------------------------------------------------------------------------------------


def test_the_image_runs_unprivileged_and_is_built_from_the_wheel():
    found = instructions()
    last = [name for name, _ in found].index("FROM", 1)
    final = found[last:]
    assert ("USER", "fedssl") in final
    names = [name for name, _ in final]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert not [rest for name, rest in final if name == "COPY" and "src" in rest]
    assert dict(final)["ENTRYPOINT"] == '["fedssl"]'


def test_the_image_follows_the_usual_rules():
    found = instructions()
    assert {name for name, _ in found} <= {
        "FROM",
        "WORKDIR",
        "COPY",
        "RUN",
        "ARG",
        "ENV",
        "USER",
        "ENTRYPOINT",
        "CMD",
    }
    for name, rest in found:
        if name == "FROM":
            assert re.match(r"[\w./-]+:\d[\w.-]+( AS \w+)?$", rest), f"{rest}: no fixed version"
        if name == "RUN" and "pip " in rest:
            assert "--no-cache-dir" in rest
        if name == "WORKDIR":
            assert rest.startswith("/")
    installs = [rest for name, rest in found if name == "RUN" and "pip install" in rest]
    assert all("--constraint /wheels/constraints.txt" in rest for rest in installs)
    if shutil.which("hadolint"):
        subprocess.run(["hadolint", str(DOCKERFILE)], check=True)


def test_the_image_has_the_python_and_the_extras_that_fedssl_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    least = tuple(map(int, project["requires-python"].removeprefix(">=").split(".")))
    text = DOCKERFILE.read_text(encoding="utf-8")
    for version in re.findall(r"^FROM python:(\d+)\.(\d+)", text, flags=re.MULTILINE):
        assert tuple(map(int, version)) >= least
    (extras,) = re.findall(r"\}\[([\w,]+)\]", text)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_the_build_context_has_all_files_of_the_wheel():
    """The list of `.dockerignore` has every file that pyproject.toml names."""
    wanted = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sent = {line[1:] for line in wanted if line.startswith("!")}
    assert all((ROOT / name).exists() for name in sent)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    needed |= set(wheel["force-include"]) | {name.split("/")[0] for name in wheel["packages"]}
    assert needed <= sent
    copied = [rest.split()[0] for name, rest in instructions() if name == "COPY" and "--from" not in rest]
    assert set(copied) - {"."} <= sent


# --- compose --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_write_its_volumes_only(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"] not in ("root", "0", "0:0")
    assert "privileged" not in service
    assert "network_mode" not in service


def test_only_the_server_has_a_port_and_its_metrics_stay_inside():
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"server": ["8000:8000"]}


def test_services_do_not_share_keys_or_images():
    for name in ("server", *SITES):
        at = mounts(name)
        assert at["/keys"] == ("keys", name, True)
        others = [each for each in SITES if each != name]
        assert not [source for source, _, _ in at.values() if source.startswith(tuple(others))]
    assert mounts("berlin")["/images"] == ("berlin-images", "", True)
    assert {source for name in SERVICES for source, _, _ in mounts(name).values()} - {"./trial.py"} == set(
        COMPOSE["volumes"]
    )


def mounts(service: str) -> dict[str, tuple[str, str, bool]]:
    """By path in the container: the volume or file, the folder in it, and whether it is read-only."""
    found = {}
    for mount in SERVICES[service].get("volumes", []):
        if isinstance(mount, str):
            source, target, *options = mount.split(":")
            found[target] = (source, "", options == ["ro"])
        else:
            folder = mount.get("volume", {}).get("subpath", "")
            found[mount["target"]] = (mount["source"], folder, mount["read_only"])
    return found


class Folders:
    """The folders that replace the volumes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def words(self, service: str) -> list[str]:
        """The command of a service with folders of this machine in it."""
        command = SERVICES[service]["command"]
        return [
            self.place(service, word)
            for word in (shlex.split(command) if isinstance(command, str) else command)
        ]

    def place(self, service: str, word: str) -> str:
        for target, (source, folder, _) in mounts(service).items():
            if word == target or word.startswith(f"{target}/"):
                place = self.root / source / folder / word.removeprefix(target).lstrip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                return str(place)
        return word


def make_trial(folders: Folders) -> None:
    """What the service `trial` does; its images are a folder for each of two volumes."""
    images = folders.root / "images"
    keys = folders.place("trial", "/keys")
    command = [sys.executable, str(ROOT / "deploy" / "trial.py"), keys, str(images), *SITES]
    for _ in range(2):  # the second time everything is there
        subprocess.run(command, check=True, capture_output=True)
    for site in SITES:
        (folders.root / f"{site}-images").symlink_to(images / site)


def test_the_commands_of_the_services_train_a_federation(tmp_path, monkeypatch):
    pytest.importorskip("flwr")
    from tests.engines.flower.processes import Process, free_port

    for name, value in environment().items():
        monkeypatch.setenv(name, value.replace("/tmp", str(tmp_path / "tmp")))
    (tmp_path / "tmp").mkdir()
    folders, port = Folders(tmp_path), str(free_port())
    make_trial(folders)
    rounds = {"rounds=5": "rounds=2", "8000": port, "9090": "0", "server:8000": f"localhost:{port}"}
    started = [
        Process(tmp_path / f"{name}.log", *(rounds.get(word, word) for word in folders.words(name)))
        for name in ("server", *SITES)
    ]
    server, *clients = started
    try:
        wait_until(
            lambda: server.popen.poll() is not None,
            "the run should end",
            running=[client.popen for client in clients],
            progress=lambda: [process.log.stat().st_size for process in started],
            details=lambda: "\n".join(process.said() for process in started),
        )
        assert server.popen.returncode == 0, server.said()
        run = RunDir(tmp_path / "runs" / "trial")
        assert len(run.metrics()) == 2
        assert [client["images"] for client in run.metrics()[-1]["clients"]] == [899, 898]
        probes = run.result()["probes"]
        assert [site["site"] for site in probes[0]["sites"]] == list(SITES)
        assert "probe linear at sites: " in server.said()
        assert all("Traceback" not in process.said() for process in started)
    finally:
        for process in started:
            process.kill()


def environment() -> dict[str, str]:
    (line,) = [rest for name, rest in instructions() if name == "ENV"]
    return dict(word.split("=", 1) for word in line.split())


def test_the_health_check_uses_the_servers_port():
    command = SERVICES["server"]["command"]
    (port,) = re.findall(r"--metrics (\d+)", command)
    assert f"127.0.0.1:{port}/health" in json.dumps(SERVICES["server"]["healthcheck"])
