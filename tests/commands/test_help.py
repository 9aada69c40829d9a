"""`fedssl run --help`: sections, keys, and those of a user's class."""

import json
import subprocess
import sys

import pytest

from fedssl.cli import main
from fedssl.commands import help
from fedssl.commands.schema import schema

OWN = '''
from pydantic import Field

from fedssl.methods.fedavg import FedAvg


class Proximal(FedAvg):
    """FedAvg with a penalty."""

    mu: float = Field(0.1, ge=0, description="weight of the penalty")
'''


def test_help_answers_without_heavy_imports():
    code = (
        "import sys; from fedssl.cli import main; main(['run', '--help']); main(['run', '--help', 'all']); "
        "assert not {'torch', 'pydantic', 'numpy', 'rich'} & set(sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "train.lr = 0.05" in shown


def test_the_overview_names_sections_without_their_keys(capsys):
    assert main(["run", "--help"]) == 0
    shown = capsys.readouterr().out
    for section, entry in schema()["properties"].items():
        assert section in shown
        assert entry["description"] in shown
    assert "train.lr" not in shown
    assert len(shown.splitlines()) < 60


def test_a_section_lists_its_keys_only(capsys):
    assert main(["run", "--help", "train"]) == 0
    shown = capsys.readouterr().out
    assert "train.lr = 0.05" in shown
    assert "method.tau" not in shown


def test_keys_of_an_implementation_are_listed_under_its_name(capsys):
    assert main(["run", "--help", "method"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("    with method.name=fedema:")
    assert "    method.tau = 0.7" in lines[start:]
    assert "  method.name = fedavg" in lines


def test_an_unknown_section_is_an_error_that_names_the_nearest(capsys):
    assert main(["run", "--help", "trian"]) == 2
    assert "did you mean train" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["--help", "method"]])
def test_keys_of_a_users_class(words, tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    assert main(["run", f"method.name={file}:Proximal", *words]) == 0
    shown = capsys.readouterr().out
    assert f"with method={file}:Proximal:" in shown
    assert "method.mu = 0.1\n" in shown
    assert "weight of the penalty" in shown


def test_help_shows_every_default_as_the_schema_has_it():
    shown = help.describe()
    for section, entry in schema()["properties"].items():
        for option in entry.get("anyOf", [entry]):
            for key, about in option.get("properties", {}).items():
                default = about.get("default")
                text = default if isinstance(default, str) and default else json.dumps(default)
                if default is not None:
                    assert f"{section}.{key} = {text}" in shown
