"""The run directory, which contains everything about a run."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from fedssl.config import Config, from_values, read_toml
from fedssl.errors import ConfigError, RunError
from fedssl.locks import exclusive, remove_temporary
from fedssl.state import State
from fedssl.storage import (
    append_line,
    numbered_lines,
    parse_line,
    read_json,
    summed,
    write_atomic,
    write_json,
    write_sealed,
    write_text,
)
from fedssl.tensorfile import save_tensors
from fedssl.trust import names_from

LISTED = 100_000  # clients whose images partition.json lists; with more they are in PARTS
PARTS = "partition.npz"
WHOLE = re.compile(r"# whole: ([0-9a-f]{8})\n")  # the last line of a run's config.toml


class RunDir:
    """Paths and files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.memories = self.checkpoints / "clients"
        self.metrics_file = self.path / "metrics.jsonl"
        self.result_file = self.path / "result.json"
        self.picture = self.path / "partition.png"

    @staticmethod
    def open(path: str | Path) -> RunDir:
        """Open an existing run."""
        run = RunDir(path)
        if not (run.path / "config.toml").exists():
            raise RunError(f"{path} is not a run: it has no config.toml")
        return run

    @staticmethod
    def create(path: str | Path, config: Config) -> RunDir:
        """Create a new run; raises a RunError if the folder contains one."""
        run = RunDir(path)
        if (run.path / "config.toml").exists():
            raise RunError(
                f"{path} contains a run already: continue it with {run.how_to_continue()}, "
                "or choose another --out"
            )
        if run.path.exists() and not run.path.is_dir():
            raise RunError(f"{path} is a file; --out needs a folder")
        try:
            run.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot create the run's folder {path}: {error}") from error
        run.write_config(config)
        return run

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run against other processes, and remove temporary files of killed ones."""
        with exclusive(self.path / ".lock", str(self.path)):
            remove_temporary(self.path)
            yield

    def discard(self) -> None:
        """Remove the folder of a run that failed before its first round was finished."""
        if any(True for _ in self.lines()):
            return
        for name in ("config.toml", "partition.json", PARTS, "partition.png", "metrics.jsonl", ".lock"):
            (self.path / name).unlink(missing_ok=True)
        (self.checkpoints / "start.safetensors").unlink(missing_ok=True)
        for folder in (self.memories, self.checkpoints, self.path):
            with suppress(OSError):  # it does not exist, or contains other files
                folder.rmdir()

    def config(self) -> Config:
        """The run's config.

        Raises:
            ConfigError: it cannot be read, or names Python files that may not be run (`fedssl.trust`).
        """
        file = self.path / "config.toml"
        values = read_toml(file)
        *before, last = file.read_text(encoding="utf-8").splitlines(keepends=True) or [""]
        match = WHOLE.fullmatch(last)
        if match and f"{zlib.crc32(''.join(before).encode()):08x}" != match[1]:
            raise ConfigError(
                f"{file} is damaged, or was edited: {last.strip()!r} is not its checksum. "
                "If you have edited it, remove that line"
            )
        if not match and not ("log" in values and last.endswith("\n")):
            raise ConfigError(f"{file} is truncated: its last section is missing")
        with names_from(self.path):
            return from_values(values)

    def how_to_continue(self) -> str:
        """Describe the command that continues this run; with sites, it is their server's."""
        engine: Any = {}
        with suppress(ConfigError):
            engine = read_toml(self.path / "config.toml").get("engine")
        return how_to_continue(self.path, isinstance(engine, Mapping) and bool(engine.get("sites")))

    def write_config(self, config: Config) -> None:
        """Write the config with a checksum, which detects accidental changes."""
        text = tomli_w.dumps(config.to_dict())
        write_text(self.path / "config.toml", f"{text}# whole: {zlib.crc32(text.encode()):08x}\n")

    # --- metrics.jsonl -----------------------------------------------------------------------

    def metrics(self) -> list[dict[str, Any]]:
        """One mapping per round."""
        return [values for _, values in self.lines()]

    def lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Return the rounds as text and as values; a truncated last line is ignored.

        Raises:
            RunError: another line is damaged; names it.
        """
        for number, line in numbered_lines(self.metrics_file):
            try:
                values = parse_line(line)
            except ValueError as error:
                raise RunError(f"{self.metrics_file}, line {number} is damaged: {error}") from None
            yield line.rstrip("\n") + "\n", values

    def whole_rounds(self) -> tuple[int, str]:
        """Return the number of valid rounds from the first on, and the problem of the next line."""
        whole = 0
        for number, line in numbered_lines(self.metrics_file):
            try:
                round = parse_line(line).get("round")
            except ValueError as error:
                return whole, f"{self.metrics_file}, line {number} is damaged: {error}"
            if round != number:
                return whole, f"{self.metrics_file}, line {number} is of round {round}, not {number}"
            whole = number
        return whole, ""

    def append(self, line: dict[str, Any]) -> None:
        append_line(self.metrics_file, summed(line))

    def sync(self) -> None:
        """Flush the metrics to disk, since a checkpoint must not be ahead of them."""
        with open(self.metrics_file, "rb") as file:
            os.fsync(file.fileno())

    def rewind(self, round: int) -> None:
        """Remove the metrics of rounds that will be repeated."""
        kept = [
            line.rstrip("\n") + "\n" for number, line in numbered_lines(self.metrics_file) if number <= round
        ]
        write_text(self.metrics_file, "".join(kept))

    def client_sizes(self) -> list[int]:
        """Images of each client; those of sites are known once a site has taken part."""
        file = self.path / "partition.json"
        return client_sizes(self.partition() if file.exists() else {}, self.metrics())

    # --- runs with a changed number of rounds ------------------------------------------------

    def change_rounds(self, config: Config, after: int) -> None:
        """Change the last round; the result of a finished run is kept as result-ROUNDS.json."""
        before = self.config().rounds
        extensions = [*self.extensions(), {"after": after, "from": before, "to": config.rounds}]
        write_json(self.path / "extensions.json", extensions)
        self.write_config(config)
        if self.result_file.exists():
            self.result_file.rename(self.path / f"result-{before}.json")
        lines = self.metrics()
        if lines and lines[-1].pop("stopped", None) is not None:  # by a listener
            write_text(self.metrics_file, "".join(map(summed, lines)))

    def extensions(self) -> list[dict[str, int]]:
        """The changes of the number of rounds, with the round after which each was made."""
        file = self.path / "extensions.json"
        try:
            text = file.read_text(encoding="utf-8") if file.exists() else "[]"
            found: list[dict[str, int]] = json.loads(text)
        except ValueError as error:
            raise RunError(f"{file} cannot be read: {error}") from error
        return found

    # --- files that are written once ---------------------------------------------------------

    def write_partition(
        self,
        parts: Sequence[NDArray[np.int64]],
        distance: float | None,
        holdings: Callable[[], dict[str, dict[str, Any]]],
    ) -> None:
        """Write the partition: indices into the training set, and numbers of images by class and style.

        With more than 100,000 clients, indices and sizes are in partition.npz, and the numbers are left out.
        """
        sizes = np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))
        found: dict[str, Any] = {"clients": len(parts)}
        if len(parts) <= LISTED:
            found["sizes"] = sizes.tolist()
        found["earth_movers_distance"] = distance
        if len(parts) <= LISTED:
            found |= {"holdings": holdings(), "indices": [part.tolist() for part in parts]}
        else:
            arrays = {"indices": np.concatenate(list(parts)), "sizes": sizes}
            write_atomic(self.path / PARTS, lambda file: _save_arrays(file, arrays))
        write_sealed(self.path / "partition.json", found)

    def partition(self) -> dict[str, Any]:
        found = read_json(self.path / "partition.json")
        if "sizes" not in found and (self.path / PARTS).exists():
            with np.load(self.path / PARTS) as arrays:
                found["sizes"] = arrays["sizes"].tolist()
        return found

    def write_encoder(self, state: State, description: dict[str, Any]) -> None:
        save_tensors(self.path / "encoder.safetensors", state, {"format": "pt"})
        write_sealed(self.path / "encoder.json", description)

    def encoder_description(self) -> dict[str, Any]:
        file = self.path / "encoder.json"
        if not file.exists():
            raise RunError(f"{self.path} has no encoder yet: continue it with {self.how_to_continue()}")
        found = read_json(file)
        for key in ("factory", "kwargs", "changes", "input"):
            if key not in found:
                raise RunError(f"{file} does not describe an encoder: it has no {key!r}")
        return found

    def append_evaluation(self, entry: dict[str, Any]) -> None:
        """The results of `fedssl eval`, one per line."""
        append_line(self.path / "evaluations.jsonl", json.dumps(entry) + "\n")

    def write_result(self, result: dict[str, Any]) -> None:
        write_sealed(self.result_file, result)

    def result(self) -> dict[str, Any]:
        if not self.result_file.exists():
            raise RunError(f"{self.path} has not finished: continue it with {self.how_to_continue()}")
        return read_json(self.result_file)


def _save_arrays(file: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    with open(file, "wb") as opened:  # `savez` adds a suffix to a name
        small = {name: values.astype(np.uint32) for name, values in arrays.items()}
        np.savez_compressed(opened, allow_pickle=False, **small)


def how_to_continue(path: Path, at_sites: bool) -> str:
    """Describe the command that continues a run."""
    return f"the `fedssl server` command with --out {path}" if at_sites else f"`fedssl resume {path}`"


def client_sizes(partition: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> list[int]:
    """Images of each client; those of sites are known once a site has taken part."""
    sizes = [int(size) for size in partition.get("sizes", [])]
    for line in metrics if not any(sizes) else []:
        for client in line["clients"]:
            sizes += [0] * (client["client"] + 1 - len(sizes))
            sizes[client["client"]] = int(client.get("images", 0))  # withheld from the server: 0
    return sizes
