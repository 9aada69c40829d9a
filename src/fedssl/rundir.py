"""A run directory: all there is to a run, and it stands on its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedssl.config import Config, from_values, read_toml
from fedssl.errors import RunError
from fedssl.state import State
from fedssl.storage import save_tensors, write_json, write_text, write_toml


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
        """An existing run."""
        run = RunDir(path)
        if not (run.path / "config.toml").exists():
            raise RunError(f"{path} is not a run: it has no config.toml")
        return run

    @staticmethod
    def create(path: str | Path, config: Config) -> RunDir:
        """A new run; a folder that holds one already is left alone."""
        run = RunDir(path)
        if (run.path / "config.toml").exists():
            raise RunError(f"{path} holds a run already: `fedssl resume {path}`, or choose another --out")
        if run.path.exists() and not run.path.is_dir():
            raise RunError(f"{path} is a file; --out wants a folder")
        try:
            run.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the run's folder {path}: {error}") from error
        write_toml(run.path / "config.toml", config.to_dict())
        return run

    def discard(self) -> None:
        """Take back the folder of a run that could not begin; one that has finished a round stays."""
        if any(True for _ in self.lines()):
            return
        for name in ("config.toml", "partition.json", "partition.png", "metrics.jsonl"):
            (self.path / name).unlink(missing_ok=True)
        (self.checkpoints / "start.safetensors").unlink(missing_ok=True)
        for folder in (self.memories, self.checkpoints, self.path):
            with suppress(OSError):  # it is not there, or something else is in it
                folder.rmdir()

    def config(self) -> Config:
        return from_values(read_toml(self.path / "config.toml"))

    # --- metrics.jsonl -----------------------------------------------------------------------

    def metrics(self) -> list[dict[str, Any]]:
        """One mapping a round."""
        return [values for _, values in self.lines()]

    def lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The rounds as text and as values; a truncated last line is ignored."""
        if not self.metrics_file.exists():
            return
        with open(self.metrics_file, encoding="utf-8") as file:
            for line in file:
                try:
                    values = json.loads(line)
                except json.JSONDecodeError:
                    return
                yield line.rstrip("\n") + "\n", values

    def append(self, line: dict[str, Any]) -> None:
        with open(self.metrics_file, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def rewind(self, round: int) -> None:
        """Forget the metrics of rounds that will run again."""
        kept = [text for text, values in self.lines() if values["round"] <= round]
        write_text(self.metrics_file, "".join(kept))

    def client_sizes(self) -> list[int]:
        """Images of each client; those of sites are known once a site has taken part."""
        file = self.path / "partition.json"
        return client_sizes(self.partition() if file.exists() else {}, self.metrics())

    # --- a run that got more rounds ----------------------------------------------------------

    def change_rounds(self, config: Config, after: int) -> None:
        """Another last round; the result of a run that had finished is kept as result-ROUNDS.json."""
        before = self.config().rounds
        extensions = [*self.extensions(), {"after": after, "from": before, "to": config.rounds}]
        write_json(self.path / "extensions.json", extensions)
        write_toml(self.path / "config.toml", config.to_dict())
        if self.result_file.exists():
            self.result_file.rename(self.path / f"result-{before}.json")
        lines = self.metrics()
        if lines and lines[-1].pop("stopped", None) is not None:  # by a listener
            write_text(self.metrics_file, "".join(json.dumps(line) + "\n" for line in lines))

    def extensions(self) -> list[dict[str, int]]:
        """After which round the number of rounds was changed, from what to what."""
        file = self.path / "extensions.json"
        found: list[dict[str, int]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        return found

    # --- what is written once ----------------------------------------------------------------

    def write_partition(
        self, parts: list[NDArray[np.int64]], distance: float | None, holdings: dict[str, dict[str, Any]]
    ) -> None:
        """Who had which images, as indices into the training set; and how many of each class and style."""
        write_json(
            self.path / "partition.json",
            {
                "clients": len(parts),
                "sizes": [len(part) for part in parts],
                "earth_movers_distance": distance,
                "holdings": holdings,
                "indices": [part.tolist() for part in parts],
            },
        )

    def partition(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.path / "partition.json").read_text(encoding="utf-8"))
        return loaded

    def write_encoder(self, state: State, description: dict[str, Any]) -> None:
        save_tensors(self.path / "encoder.safetensors", state, {"format": "pt"})
        write_json(self.path / "encoder.json", description)

    def encoder_description(self) -> dict[str, Any]:
        file = self.path / "encoder.json"
        if not file.exists():
            raise RunError(f"{self.path} has no encoder yet: `fedssl resume {self.path}`")
        loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return loaded

    def append_evaluation(self, entry: dict[str, Any]) -> None:
        """What `fedssl eval` found, one line each."""
        with open(self.path / "evaluations.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def write_result(self, result: dict[str, Any]) -> None:
        write_json(self.result_file, result)

    def result(self) -> dict[str, Any]:
        if not self.result_file.exists():
            raise RunError(f"{self.path} has not finished: `fedssl resume {self.path}`")
        loaded: dict[str, Any] = json.loads(self.result_file.read_text(encoding="utf-8"))
        return loaded


def client_sizes(partition: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> list[int]:
    """Images of each client; those of sites are known once a site has taken part."""
    sizes = [int(size) for size in partition.get("sizes", [])]
    for line in metrics if not any(sizes) else []:
        for client in line["clients"]:
            sizes += [0] * (client["client"] + 1 - len(sizes))
            sizes[client["client"]] = int(client["images"])
    return sizes
