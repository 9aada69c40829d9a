"""Builds the page: template, style, scripts and document in one self-contained file."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedssl.errors import RunError
from fedssl.storage import write_text

SCRIPTS = ("basics.js", "chart.js", "lines.js", "fields.js", "tables.js", "sections.js", "page.js")


def page(document: dict[str, Any], live: float = 0.0) -> str:
    """Return the HTML of a document. With `live`, the page reloads the document every `live` seconds."""
    # A Content-Security-Policy prevents the page from loading anything from elsewhere.
    own = "'self'" if live else "'none'"
    inline = "'unsafe-inline'"
    policy = f"default-src 'none'; img-src data:; style-src {inline}; script-src {inline}; connect-src {own}"
    parts = {
        "title": escape(f"{document['title']} · fedssl"),
        "policy": escape(policy),
        "style": _asset("page.css"),
        "script": "\n".join(_asset(name) for name in SCRIPTS),
        "summary": "".join(f"<p>{escape(sentence)}</p>" for sentence in document["summary"]),
        "document": as_json({**document, "live": live}),
    }
    text = _asset("page.html")
    pieces = text.split("{{")
    # Replace each placeholder once, in the template only, not in inserted text.
    return pieces[0] + "".join(
        parts[piece[: piece.index("}}")]] + piece[piece.index("}}") + 2 :] for piece in pieces[1:]
    )


def check(file: Path) -> None:
    """Raise a RunError before the work starts if no file can be written there."""
    if file.is_dir():
        raise RunError(f"{file} is a folder; -o needs a file, such as {file / 'report.html'}")


def write(document: dict[str, Any], file: Path) -> None:
    """Write the page atomically."""
    try:
        write_text(file, page(document))
    except OSError as error:
        raise RunError(f"cannot write {file}: {error}") from error


def as_json(value: Any) -> str:
    """Serialize JSON such that it is safe inside a script element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _asset(name: str) -> str:
    return files("fedssl.report.html").joinpath("assets", name).read_text(encoding="utf-8")
