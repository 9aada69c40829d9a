"""Assembles the parts of a run, and runs it."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from fedssl._version import NUMERICS
from fedssl.allocator import keep_freed_memory
from fedssl.config import Config
from fedssl.data.federation import Federation
from fedssl.data.partitions import earth_movers_distance
from fedssl.engines.attacked import check_attack
from fedssl.engines.audit_log import AuditLog
from fedssl.engines.checkpoint import Checkpoint, Checkpoints, rounds_in
from fedssl.engines.export import write_encoder
from fedssl.engines.live import ServerRun
from fedssl.engines.recalibration import recalibrates
from fedssl.engines.round_report import RoundReport
from fedssl.engines.start import with_start_defaults
from fedssl.errors import ConfigError, DataError, StopRun
from fedssl.evaluation.models import Models
from fedssl.evaluation.probes import Prober, make_prober
from fedssl.evaluation.sites import SiteProbes, final_protocols
from fedssl.evaluation.spread import Spread, warn_of_collapse
from fedssl.listener import Listener, RunInfo
from fedssl.openmp import sleep_when_busy
from fedssl.privacy.refusals import check_config
from fedssl.rounds import change_rounds
from fedssl.rundir import RunDir
from fedssl.threads import with_threads


def run(config: Config, out: str | Path | None, listener: Listener) -> RunDir:
    """Start a new run in `out` (default: runs/DATA-OBJECTIVE-METHOD-N)."""
    config = with_start_defaults(with_machine_defaults(config))
    directory = RunDir.create(out or free_path(config), config)
    try:
        Experiment(directory, config, listener).execute()
    except (ConfigError, DataError):
        directory.discard()  # so that the corrected command can use the same folder
        raise
    return directory


def resume(path: str | Path, listener: Listener, rounds: int = 0) -> RunDir:
    """Continue a run from its last checkpoint; a finished run is only changed if it gets more rounds.

    Args:
        path: the run's folder.
        listener: reports the progress.
        rounds: total number of rounds; 0: as in the run's config.
    """
    directory = RunDir.open(path)
    if rounds and rounds != directory.config().rounds:
        listener.note(change_rounds(directory, rounds))
    if directory.result_file.exists():
        listener.note(f"{path} has finished already; `fedssl resume {path} rounds=N` continues it to round N")
        return directory
    if not rounds_in(directory.checkpoints):
        listener.note(f"{path} has no checkpoint: it starts again from round 1")
    Experiment(directory, directory.config(), listener).execute()
    return directory


def with_machine_defaults(config: Config) -> Config:
    """Fill in the threads of this machine, so that another machine can repeat the run."""
    return config.model_copy(update={"engine": config.engine.with_machine_defaults(os.cpu_count() or 1)})


def free_path(config: Config) -> Path:
    """Return runs/digits-simclr-fedavg, with a number appended if it exists; FILE:Class is `class`."""
    given = (config.data.name, config.objective.name, config.method.name)
    name = "-".join(each.rpartition(":")[2].lower() if ":" in each else each for each in given)
    name = name.replace("/", "_")
    path, number = Path("runs") / name, 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{name}-{number}"
    return path


class Experiment:
    """A run, from its first round or last checkpoint to its result."""

    def __init__(self, directory: RunDir, config: Config, listener: Listener) -> None:
        self.directory, self.config, self.listener = directory, config, listener
        self.audit = AuditLog(directory.path) if config.log.audit else None
        self.names: tuple[str, ...] = getattr(config.engine, "sites", ())
        self.site_probes: list[dict[str, Any]] = []

    def execute(self) -> None:
        engine = self.config.engine
        try:
            check_config(self.config)
            check_attack(self.config)
            with (
                self.directory.locked(),
                keep_freed_memory(),
                sleep_when_busy(),
                with_threads(engine.threads),
            ):
                try:
                    self._set_up()
                    self._train()
                    with with_threads(engine.all_threads):
                        self._finish()
                except KeyboardInterrupt:
                    raise KeyboardInterrupt(self._save_last_round()) from None
        finally:
            self.listener.close()

    def _save_last_round(self) -> str:
        """Write a checkpoint of the last complete round of an interrupted run; returns how to continue."""
        live, path, lines = getattr(self, "live", None), self.directory.path, self.directory.metrics()
        if live is not None and lines and lines[-1]["round"] == live.round:  # else it is not recorded yet
            live.save()
            live.checkpoints.wait()
        done = max(rounds_in(self.directory.checkpoints), default=0)
        if not done:
            return f"stopped before the end of round 1; `fedssl resume {path}` starts from the beginning"
        return f"stopped after round {done} of {self.config.rounds}; continue: fedssl resume {path}"

    def _set_up(self) -> None:
        config, directory = self.config, self.directory
        self.live = ServerRun(
            config,
            directory.checkpoints,
            config.checkpoint.keep,
            self.listener.progress,
            self._last_whole,
        )
        self.federation, runner = self.live.federation, self.live.runner
        runner.check_privacy()
        if config.engine.sees_clients:
            runner.views.get_ready(self.listener.progress)
        self.models = Models(runner, self.live.recalibration if recalibrates(config) else None)
        images = self.federation.train
        self.prober = make_prober(
            images, self.federation.test, config.data, config.probe, runner.device, config.seed
        )
        self.sites = SiteProbes.of(config, self.live)
        self.spread = Spread.over(self.federation, config.data, runner.device)
        self.distance = _distance(self.federation) if config.engine.sees_clients else None
        directory.write_partition(self.federation.parts, self.distance, self.federation.holdings)

    def _last_whole(self, checkpoints: Checkpoints) -> Checkpoint | None:
        """Load the last complete checkpoint, up to the last round with complete metrics."""
        rounds, problem = self.directory.whole_rounds()
        if problem:
            self.listener.note(f"{problem}; later rounds are repeated")
        return checkpoints.latest_whole(rounds, self.listener.note)

    def _train(self) -> None:
        start, directory = self.live.round, self.directory
        directory.rewind(start)
        self.listener.started(self._info(start))
        if self.audit:
            self.audit.note_start(directory.path / "config.toml", start)
        if not self._stopped():  # else only the probes are missing
            self.live.train(self._after_round, self._probe_sites)

    def _probe_sites(self) -> None:
        """Run probes at the sites after the last round; sites without results are reported."""
        self.site_probes = self.sites.final() if self.sites is not None else []
        for left_out in self.site_probes[0]["left_out"] if self.site_probes else []:
            self.listener.note(f"{left_out['site']} sent no accuracies: {left_out['reason']}")

    def _stopped(self) -> str:
        """Why a listener ended training after the last round; empty if none did."""
        lines = self.directory.metrics()
        return str(lines[-1].get("stopped", "")) if lines else ""

    def _after_round(self, report: RoundReport) -> bool:
        """Probe, report and save a round; returns whether a listener stops the run."""
        config, number = self.config, report.round
        line = {**report.line(), **self._monitor(number, last=number == config.rounds)}
        stopped, warning = report.stop, config.method.warning(line)
        if warning:
            self.listener.note(warning)
        try:
            self.listener.round(line)
        except StopRun as reason:
            stopped = str(reason) or "by a listener"
        if stopped:
            if "probe" not in line:
                line |= self._monitor(number, last=True)
            line["stopped"] = stopped
            self.listener.note(f"stopped after round {number}: {stopped}")
        self.directory.append(line)
        if self.audit:
            self.audit.note_round(report, self.live.server, self.names)
        if number % config.checkpoint.every == 0 or number == config.rounds or stopped:
            self.directory.sync()
            self.live.save()
        return bool(stopped)

    def _monitor(self, number: int, last: bool) -> dict[str, Any]:
        """Probe a round: kNN (with labels) and feature spread of the method's encoders.

        The last round has at least the spread, so every run reports whether its encoder has collapsed.
        """
        every = self.config.probe.every
        due = bool(every) and number % every == 0
        at_sites = self.sites.monitor() if due and self.sites is not None else {}
        probe = {**self._own_monitor(number, due, last), **at_sites}
        return {"probe": probe} if probe else {}

    def _own_monitor(self, number: int, due: bool, last: bool) -> dict[str, float]:
        """Run the kNN monitor on images of this machine; empty without images, or in other rounds."""
        if not len(self.federation.train) or (not due and not last):
            return {}
        began = time.monotonic()
        with with_threads(self.config.engine.all_threads):  # no client trains at this moment
            numbers = self.models.each(
                self.prober.monitor if due and self.prober is not None else self.spread.measure,
                self.live.server,
                self.live.memory_rounds,
                self.config.probe.clients,
            )
        mean = {name: sum(each[name] for each in numbers) / len(numbers) for name in numbers[0]}
        warning = warn_of_collapse(mean["feature_std"], number)
        if warning:
            self.listener.note(warning)
        return {**mean, "seconds": time.monotonic() - began}

    def _finish(self) -> None:
        directory, config = self.directory, self.config
        if config.engine.sees_clients:
            self._draw_partition()
        probes = [*self._final_probes(), *self.site_probes]
        encoder = self.models.exported(self.live.server, self.live.memory_rounds)
        write_encoder(
            directory, config, self.live.network.encoder, encoder.module, self.federation.train, encoder.owner
        )
        rounds = [(line["seconds"], line["views"], len(line["failed"])) for _, line in directory.lines()]
        seconds, views, failures = (sum(column) for column in zip(*rounds, strict=True))
        result = {
            "probes": probes,
            "why_no_probes": "" if probes else self._why_no_probes(),
            "rounds": self.live.round,
            "stopped": self._stopped(),
            **({"extended": directory.extensions()} if directory.extensions() else {}),
            "failures": failures,
            "views_per_second": views / seconds if seconds else 0.0,
            "seconds": seconds,
            "peak_memory_mb": peak_memory_mb(),
            "earth_movers_distance": self.distance,
            "versions": versions(),
        }
        directory.write_result(result)
        self.listener.finished(result, directory.path)

    def _why_no_probes(self) -> str:
        """Why there are no probes; empty if none are configured."""
        if self.sites is not None:
            return "no site sent accuracies"
        return Prober.why_not(self.federation.train, self.federation.test) if self.prober is None else ""

    def _final_probes(self) -> list[dict[str, Any]]:
        if self.prober is None or self.config.probe.protocol == "none":
            return []
        self.listener.note("probing the trained and the untrained encoder")
        protocols = final_protocols(self.config.probe)
        protocols += ["classifier"] if self.models.classifies else []
        return self.models.probe(
            self.prober,
            protocols,
            self.live.server,
            self.live.memory_rounds,
            self.config.probe.clients,
        )

    def _draw_partition(self) -> None:
        from fedssl.data.partition_picture import save_picture

        images = self.federation.train
        labels = None if images.y is None else images.y.numpy()
        save_picture(self.directory.picture, self.federation.parts, labels, images.classes)

    def _info(self, start: int) -> RunInfo:
        images, runner = self.federation.train, self.live.runner
        return RunInfo(
            config=self.config,
            path=self.directory.path,
            federation=self.federation,
            earth_movers_distance=self.distance,
            encoder_parameters=sum(p.numel() for p in runner.model.part("encoder").parameters()),
            shared_parameters=sum(runner.initial[name].numel() for name in runner.boundary.travels),
            device=str(runner.device),
            start=start,
            warnings=images.warnings
            + (self.federation.test.warnings if self.federation.test else ())
            + self.live.network.notes,
        )


def _distance(federation: Federation) -> float | None:
    labels = federation.train.y
    return None if labels is None else earth_movers_distance(labels.numpy(), federation.parts)


def peak_memory_mb() -> float:
    """Return the peak memory of this process and of its largest child."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return round((own + children) / unit, 1)


def versions() -> dict[str, str]:
    """Return the versions of everything that may change the numbers of a run."""
    packages = ("fedssl", "torch", "torchvision", "timm", "numpy", "scikit-learn")
    return {
        "python": platform.python_version(),
        "machine": platform.platform(),
        "processor": processor(),
        "numerics": str(NUMERICS),
    } | {name: metadata.version(name) for name in packages}


def processor() -> str:
    """Return the processor's name from Linux, else from Python."""
    file = Path("/proc/cpuinfo")
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
