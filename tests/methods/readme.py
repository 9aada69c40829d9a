"""The README's method, as a separate file."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def write_readme_method(folder: Path) -> str:
    """Write the README's method into a folder; returns its `method.name`."""
    blocks = re.findall(r"```python\n(# (\w+)\.py.*?)```", README.read_text(), flags=re.DOTALL)
    ((text, stem),) = [(text, stem) for text, stem in blocks if "fedssl.methods" in text]
    file = folder / f"{stem}.py"
    file.write_text(text)
    (name,) = re.findall(r"^class (\w+)", text, flags=re.MULTILINE)
    return f"{file}:{name}"
