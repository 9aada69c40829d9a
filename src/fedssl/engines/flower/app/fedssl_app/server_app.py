"""The ServerApp: runs the round loop with the nodes of Flower's grid as clients."""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedssl.api import all_listeners
from fedssl.config import load, parse_overrides
from fedssl.engines.flower.engine import Flower, own_threads
from fedssl.engines.flower.journal import VARIABLE
from fedssl.errors import ConfigError, FedsslError
from fedssl.experiment import Experiment, free_path
from fedssl.report.journal import JournalListener
from fedssl.rundir import RunDir
from fedssl.storage import write_text
from fedssl.trust import trusting

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Start the run that the app's config names, or continue it."""
    given = {key: str(value) for key, value in context.run_config.items()}
    serve(grid, open_run(given.get("run", ""), given.get("config", ""), given.get("overrides", "")))


def open_run(run: str, config: str, overrides: str) -> RunDir:
    if run and (Path(run) / "config.toml").exists():
        return RunDir.open(run)
    settings = load(config or None, {"engine.name": "flower", **parse_overrides(overrides.split())})
    return RunDir.create(run or free_path(settings), settings)


def serve(grid: Grid, directory: RunDir) -> None:
    """Run all rounds, with the grid's nodes as clients."""
    # Under `fedssl server` events are printed there.
    journal = bool(os.environ.get(VARIABLE))
    listener = all_listeners(quiet=journal, own=[JournalListener()] if journal else [])
    if directory.result_file.exists():
        listener.note(f"{directory.path} has finished already")
        return
    with trusting():  # runs can only be submitted with the server's token
        config = own_threads(directory.config())
    if not isinstance(config.engine, Flower):
        raise ConfigError(f"{directory.path} is a run on engine.name={config.engine.name}, not on Flower")
    config.engine.attach(grid, listener.note)
    try:
        Experiment(directory, config, listener).execute()
    except FedsslError as error:
        write_text(directory.path / "flower" / "error", str(error))
        raise
