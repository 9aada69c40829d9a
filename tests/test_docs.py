"""What the README and the docs show works as shown."""

import re
from pathlib import Path

import fedssl
from tests.small import SMALL

ROOT = Path(__file__).parent.parent


def blocks(file, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / file).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_method_of_the_readme_runs(tmp_path):
    source = next(block for block in blocks("README.md", "python") if "class Shy" in block)
    (tmp_path / "shy.py").write_text(source)
    keys = {"method.name": f"{tmp_path / 'shy.py'}:Shy", "method.keep": 0.3, "objective": "byol"}
    run = fedssl.run(SMALL, out=tmp_path / "run", quiet=True, **keys)
    assert run.metrics[1]["failed"] == []
    assert all(client["kept"] == 0.3 for client in run.metrics[1]["clients"])


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    source = next(block for block in blocks("README.md", "python") if "fedssl.run(" in block)
    monkeypatch.chdir(tmp_path)
    real = fedssl.run
    monkeypatch.setattr(fedssl, "run", lambda **keys: real(SMALL, quiet=True, **keys))
    names: dict[str, object] = {}
    exec(source, names)
    assert isinstance(names["run"], fedssl.Run)


def test_commands_of_the_readme_exist():
    from fedssl.cli import COMMANDS
    from fedssl.config import load, parse_overrides

    shown = [line.split("#")[0].split() for block in blocks("README.md", "") for line in block.splitlines()]
    commands = [words for words in shown if words[:1] == ["fedssl"]]
    assert {"run", "resume", "eval", "list", "reproduce"} <= {words[1] for words in commands} <= set(COMMANDS)
    files = [ROOT / "README.md", *ROOT.glob("docs/*.md")]
    pages = "".join(file.read_text(encoding="utf-8") for file in files)
    assert [name for name in COMMANDS if f"fedssl {name}" not in pages] == []
    for words in commands:
        keys = [word for word in words[2:] if "=" in word and "shy" not in word and "method.keep" not in word]
        load(None, parse_overrides(keys))


def test_links_of_the_docs_lead_somewhere():
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for file in files:
        for link in re.findall(r"\]\((?!https?://)([^)#]+)", file.read_text(encoding="utf-8")):
            assert (file.parent / link).exists(), f"{file.name}: {link}"
