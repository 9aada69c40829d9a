"""Reports a run on a server of sites as events, which `fedssl server` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedssl.engines.flower.journal import emit
from fedssl.listener import Listener, RunInfo


class JournalListener(Listener):
    """Reports rounds, failures and notes, with the names of sites."""

    def __init__(self) -> None:
        self._rounds = 0
        self._sites: tuple[str, ...] = ()
        self._unreadable: dict[int, int] = {}

    def started(self, info: RunInfo) -> None:
        config = info.config
        self._rounds, self._sites = config.rounds, tuple(getattr(config.engine, "sites", ()))
        for warning in info.warnings:
            emit("note", "warning", text=warning)
        begun = f", resumed after round {info.start}" if info.start else ""
        emit(
            "note",
            text=f"{config.objective.name} with {config.method.name}, {config.rounds} rounds, "
            f"{len(self._sites)} sites ({', '.join(self._sites)}), "
            f"{info.shared_parameters:,} numbers shared per site and round{begun}",
        )

    def round(self, line: dict[str, Any]) -> None:
        clients = line["clients"]
        known = all("images" in client for client in clients)  # privacy settings withhold them
        emit(
            "round",
            round=line["round"],
            rounds=self._rounds,
            sites=len(clients),
            of=len(self._sites),
            **({"images": sum(client["images"] for client in clients)} if known else {}),
            seconds=line["seconds"],
            **({"loss": line["loss"]} if "loss" in line else {}),
            **({"knn": line["probe"]["knn"]} if "knn" in line.get("probe", {}) else {}),
            **({"site_knn": line["probe"]["site_knn"]} if "site_knn" in line.get("probe", {}) else {}),
            **({"received": line["bytes_up"], "sent": line["bytes_down"]} if "bytes_up" in line else {}),
        )
        for failure in line["failed"]:
            emit("failed", "warning", who=self._name(failure["client"]), reason=failure["reason"])
        for client in clients:
            count = round(client.get("unreadable", 0))
            if count and self._unreadable.get(client["client"]) != count:  # said once
                self._unreadable[client["client"]] = count
                what = "1 image" if count == 1 else f"{count:,} images"
                emit("note", "warning", text=f"{self._name(client['client'])}: {what} cannot be read")

    def note(self, text: str) -> None:
        emit("note", text=text)

    def finished(self, result: dict[str, Any], path: Path) -> None:
        for probe in result["probes"]:
            accuracy, before = probe["accuracy"], probe["untrained"]
            spread = f" ± {probe['spread']:.1%}" if probe.get("spread") is not None else ""
            emit("note", text=f"probe {probe['protocol']}: {accuracy:.1%}{spread} (untrained: {before:.1%})")
            for site in probe.get("sites", []):
                text = f"{site['site']}: {site['accuracy']:.1%} of {site['images']:,} images"
                emit("note", text=f"  {text} (untrained: {site['untrained']:.1%})")
        emit("note", text=f"finished after {result['rounds']} rounds; wrote {path}/encoder.safetensors")

    def _name(self, client: int) -> str:
        return self._sites[client] if client < len(self._sites) else f"client {client}"
