"""The systemd units: systemd finds nothing wrong, they are confined, and their commands are fedssl's."""

from __future__ import annotations

import argparse
import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedssl.commands.deploying import COMMANDS

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNITS = ("fedssl-server.service", "fedssl-client@.service")
PROGRAM = "/opt/fedssl/bin/fedssl"
EXPOSED = 2.0  # of 10, by `systemd-analyze security`


def service(name: str) -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(FOLDER / name, encoding="utf-8")
    return unit["Service"]


def test_there_are_no_other_units():
    assert {file.name for file in FOLDER.iterdir()} == set(UNITS)


@pytest.mark.parametrize("name", UNITS)
def test_the_command_is_a_fedssl_command(name):

    program, command, *words = service(name)["ExecStart"].split()
    assert program == PROGRAM
    parser = argparse.ArgumentParser(exit_on_error=False)
    COMMANDS[command].arguments(parser)
    parser.parse_args(words)


@pytest.mark.parametrize("name", UNITS)
def test_it_writes_below_its_state_folder_only(name):
    found = service(name)
    assert found["User"] == "fedssl"
    assert found["ProtectSystem"] == "strict"
    (state,) = re.findall(r"--(?:out|state) (\S+)", found["ExecStart"])
    assert Path(state).is_relative_to(f"/var/lib/{found['StateDirectory']}")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_nothing_wrong(name, tmp_path):
    program = tmp_path / "fedssl"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / name.replace("@.", "@berlin.")
    unit.write_text(
        (FOLDER / name).read_text(encoding="utf-8").replace(PROGRAM, str(program)), encoding="utf-8"
    )
    verified = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")
    checked = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", str(unit)], capture_output=True, text=True
    )
    (exposure,) = re.findall(r"Overall exposure level for .*: ([\d.]+)", checked.stdout)
    assert float(exposure) < EXPOSED
