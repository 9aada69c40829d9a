"""The wheel contains everything that an installed fedssl needs, and runs without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from this checkout, offline and in this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where the wheel is unpacked, which is all that installing a pure Python wheel does."""
    folder = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def python(installed: Path, cwd: Path, *arguments: str) -> str:
    """The output of Python with the unpacked wheel ahead of any other fedssl."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def fedssl(installed: Path, cwd: Path, *arguments: str) -> str:
    return python(installed, cwd, "-m", "fedssl.cli", *arguments)


def files_below(folder: Path) -> set[str]:
    files = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    return {file.as_posix() for file in files if "__pycache__" not in file.parts}


def test_contains_the_package_and_the_recipes_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        contents = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = {f"fedssl/{name}" for name in files_below(ROOT / "src" / "fedssl")}
    recipes = {f"fedssl/recipes/{name}" for name in files_below(ROOT / "recipes")}
    assert contents == package | recipes | {"fedssl/fedssl.schema.json"}
    assert "fedssl/py.typed" in contents
    assert "fedssl/recipes/fedema-table1.toml" in contents
    assert any(name.endswith("assets/page.html") for name in contents)


def test_metadata_names_the_command_and_the_license(installed: Path) -> None:
    (folder,) = installed.glob("fedssl-*.dist-info")
    (command,) = Distribution.at(folder).entry_points
    assert (command.group, command.name, command.value) == ("console_scripts", "fedssl", "fedssl.cli:main")
    assert (folder / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_reproduces_a_figure_and_writes_a_report_away_from_the_checkout(
    installed: Path, tmp_path: Path
) -> None:
    where = python(installed, tmp_path, "-c", "import fedssl; print(fedssl.__file__)")
    assert Path(where.strip()) == installed / "fedssl" / "__init__.py"

    assert "fedema-figure6" in fedssl(installed, tmp_path, "list", "recipes")

    smoke = ["--scale", "smoke", "--seeds", "1", "--out", "tables"]
    table = fedssl(installed, tmp_path, "reproduce", "fedema-figure6", *smoke)
    assert "83.34" in table  # the paper's number, read from the recipe

    (run,) = (file.parent for file in (tmp_path / "tables" / "runs").glob("*/result.json"))
    fedssl(installed, tmp_path, "report", str(run), "-o", "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.rstrip().endswith("</html>")
    assert run.name in page
