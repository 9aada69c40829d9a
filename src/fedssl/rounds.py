"""Changing the number of rounds of a run: `fedssl resume RUN rounds=200`."""

from __future__ import annotations

from fedssl.config import Config
from fedssl.engines.checkpoint import rounds_in
from fedssl.errors import ConfigError, RunError
from fedssl.methods.training import learning_rate
from fedssl.rundir import RunDir


def change_rounds(directory: RunDir, rounds: int) -> str:
    """Change the last round of a run.

    Finished rounds are not changed. A learning rate that depends on the number of rounds follows the new
    number from here on, so the run differs from one with that number from the start.

    Args:
        directory: the run.
        rounds: its last round.

    Returns:
        A description of how the learning rate continues.

    Raises:
        ConfigError: the run has completed more rounds than that.
        RunError: there is no checkpoint to continue from.
    """
    config, done = directory.config(), len(directory.metrics())
    kept = max(rounds_in(directory.checkpoints), default=0)
    if directory.result_file.exists():
        done = int(directory.result()["rounds"])
        if kept < done:
            raise RunError(
                f"{directory.path} has no checkpoint of its last round, {done}, to continue from: "
                "start a new run with more rounds"
            )
    if rounds < done:
        raise ConfigError(f"rounds={rounds}: {directory.path} has done {done} rounds already")
    changed = config.model_copy(update={"rounds": rounds})
    directory.change_rounds(changed, after=kept)
    return _explain(config, changed, kept)


def _explain(old: Config, new: Config, done: int) -> str:
    change = f"{old.rounds} → {new.rounds} rounds"
    if new.train.schedule == "constant":
        return f"{change}, at a constant learning rate: the same as {new.rounds} rounds from the start"
    rate = f"{change}; the learning rate ({new.train.schedule}) now follows {new.rounds} rounds"
    if not done or done >= new.rounds:
        return rate
    before, after = learning_rate(old.train, done, old.rounds), learning_rate(new.train, done + 1, new.rounds)
    return (
        f"{rate}: {before:.3g} in round {done}, {after:.3g} in round {done + 1}. "
        f"A run of {new.rounds} rounds from the start would differ; train.schedule=constant avoids that"
    )
