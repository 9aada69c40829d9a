"""The order of the packages: imports go downwards only, wherever in a file they are written."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import fedssl

SOURCE = Path(fedssl.__file__).parent

# Top to bottom. A module imports from its own room and from those below.
ROOMS = (
    ("cli", "__init__"),
    ("commands",),
    ("papers",),
    ("tables",),
    ("api",),
    ("generative",),
    ("report",),
    ("use",),
    ("audit",),
    ("experiment", "listener", "rounds"),
    ("evaluation",),
    ("engines",),
    ("privacy",),
    ("attacks",),
    ("methods",),
    ("objectives",),
    ("aggregation",),
    ("data",),
    ("models",),
    ("rundir",),
    ("config",),
    # Primitives: they know nothing of federated learning, or only its words.
    (
        "progress",
        "storage",
        "tensorfile",
        "threads",
        "transfer",
        "allocator",
        "state",
        "vectors",
        "statistics",
        "extras",
        "normalization",
        "locks",
    ),
    ("options",),
    ("registry", "rng"),
    ("trust",),
    ("errors", "_version", "openmp", "limits"),
)

# The exceptions: (importing module, imported room) -> why.
EXCEPTIONS = {
    ("fedssl.config", "*"): "names the type of every section, for the type checker alone",
    ("fedssl.engines.flower.app", "*"): "an entry point that Flower loads, like the command line",
}

LEVEL = {room: len(ROOMS) - place for place, rooms in enumerate(ROOMS) for room in rooms}


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def modules() -> Iterator[tuple[str, Path]]:
    for file in sorted(SOURCE.rglob("*.py")):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(("fedssl", *(part for part in parts if part != "__init__"))), file


def imports(file: Path) -> Iterator[str]:
    """Every fedssl module that is imported anywhere in the file: at the top, in functions, for types."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fedssl":
            whole = node.module == "fedssl"
            yield from (f"fedssl.{name.name}" if whole else node.module for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "fedssl")


def excepted(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name, _ in EXCEPTIONS)


def test_every_module_is_in_a_room() -> None:
    assert {room_of(module) for module, _ in modules()} == LEVEL.keys()


def test_imports_go_downwards() -> None:
    upwards = [
        f"{module} imports {target}"
        for module, file in modules()
        if not excepted(module)
        for target in imports(file)
        if LEVEL[room_of(target)] > LEVEL[room_of(module)]
    ]
    assert not upwards, "\n".join(upwards)


def test_an_upward_import_is_detected(tmp_path: Path) -> None:
    file = tmp_path / "method.py"
    file.write_text("def late():\n    from fedssl.report.html import page\n    import fedssl.api\n")
    assert sorted(imports(file)) == ["fedssl.api", "fedssl.report.html"]
    assert LEVEL["report"] > LEVEL["methods"]


def test_exceptions_are_few_and_needed() -> None:
    assert len(EXCEPTIONS) <= 3
    for name, _ in EXCEPTIONS:
        assert any(
            LEVEL[room_of(target)] > LEVEL[room_of(module)]
            for module, file in modules()
            if module == name or module.startswith(f"{name}.")
            for target in imports(file)
        ), f"{name} needs no exception any more"
