"""The contents of documentation pages: code blocks, the commands in them, and inline code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
FILES = {
    str(file.relative_to(ROOT)).removeprefix("docs/"): file
    for file in (
        ROOT / "README.md",
        ROOT / "examples" / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    )
}
PROGRAMS = ("fedssl", "make", "pip", "python", "flwr", "ssh")
SHELL = ("", "bash", "console")  # without a language: lines starting with one of these programs are commands


@dataclass(frozen=True)
class Block:
    """A fenced or indented block."""

    page: str
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str:
        """The file that a block represents, by its first line: `# shy.py: …`."""
        named = re.match(r"# ([\w-]+\.(?:py|toml))\b", self.text)
        return named[1] if named else ""


@dataclass
class Command:
    """One line for a shell and, in a `console` block, what it prints."""

    where: str
    words: list[str]
    output: list[str] = field(default_factory=list)
    transcript: bool = False

    @property
    def text(self) -> str:
        return " ".join(self.words)


def blocks(page: str) -> list[Block]:
    tokens = MarkdownIt().parse(FILES[page].read_text(encoding="utf-8"))
    return [
        Block(page, (token.map or [0])[0] + 1, token.info.strip(), token.content)
        for token in tokens
        if token.type in ("fence", "code_block")
    ]


def inline(page: str) -> Iterator[str]:
    """All inline code in the text."""
    for token in MarkdownIt("commonmark").enable("table").parse(FILES[page].read_text(encoding="utf-8")):
        for child in token.children or ():
            if child.type == "code_inline":
                yield child.content


def commands(block: Block) -> list[Command]:
    """Of a block for a shell; of a `console` block with their output."""
    found: list[Command] = []
    transcript = block.language == "console"
    for line in block.text.replace("\\\n", " ").splitlines():
        shown = line.removeprefix("$ ") if transcript else line
        if transcript and shown == line:
            assert found, f"{block.where}: output before the first command"
            found[-1].output.append(line)
            continue
        words = shown.split("#")[0].split()
        if words and (block.language != "" or words[0] in PROGRAMS):
            exact = [word for word in shlex.split(shown, comments=True) if word != "…"]
            found.append(Command(block.where, exact, transcript=transcript))
    return found
