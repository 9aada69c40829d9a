"""The Python interface: `run = fedssl.run(objective="byol", method="fedema", data="digits")`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fedssl import experiment
from fedssl.config import Config, load
from fedssl.evaluation.protocol import evaluate
from fedssl.listener import Listener, Listeners
from fedssl.models.describe import rebuild
from fedssl.report.console import ConsoleListener
from fedssl.report.trackers import MLflow, TensorBoard, WeightsAndBiases
from fedssl.rundir import RunDir
from fedssl.tensorfile import load_tensors
from fedssl.trust import trusting

if TYPE_CHECKING:
    from fedssl.report.html.images import Projection
    from fedssl.use.embed import Embedded
    from fedssl.use.finetune import Tuned


class Run:
    """A finished (or stopped) run directory.

    Args:
        path: the run's folder.
        trust: run Python files that its config names, also those that you have not run before.
    """

    def __init__(self, path: str | Path, trust: bool = False) -> None:
        self.directory, self.trust = RunDir.open(path), trust

    @property
    def path(self) -> Path:
        return self.directory.path

    @cached_property
    def config(self) -> Config:
        with trusting(self.trust):
            return self.directory.config()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """A mapping per round."""
        return self.directory.metrics()

    @property
    def result(self) -> dict[str, Any]:
        return self.directory.result()

    @cached_property
    def encoder(self) -> nn.Module:
        """The trained encoder as a plain timm module, in evaluation mode."""
        module = rebuild(self.directory.encoder_description())
        state, _ = load_tensors(self.path / "encoder.safetensors")
        module.load_state_dict(state)
        return module.eval()

    def probe(self, protocol: str = "linear", **options: Any) -> dict[str, Any]:
        """Evaluate the run.

        Args:
            protocol: a name in `fedssl list protocols`, or your own class: "./file.py:Class".
            **options: config keys, such as `**{"probe.form": "epochs"}`, and the protocol's own fields as
                `protocol.KEY`.

        Returns:
            The protocol's results, which are also appended to evaluations.jsonl.
        """
        with trusting(self.trust):
            return evaluate(self.directory, protocol, options)

    # --- using the run ----------------------------------------------------------------------------

    def report(
        self,
        file: str | Path | None = None,
        *,
        fast: bool = False,
        projection: Projection = "tsne",
        centralized: str | Path | None = None,
    ) -> Path:
        """Write the HTML report.

        Args:
            file: the output file; default: report.html in the run's folder.
            fast: skip the feature map and the nearest neighbors, which need the images.
            projection: of the feature map: "tsne", "umap" or "pca".
            centralized: a run on all images in one place (`method="centralized"`), to compare with.

        Returns:
            The file.
        """
        from fedssl.report.html.report import write_report

        return write_report(
            [self.path],
            file or self.path / "report.html",
            fast=fast,
            projection=projection,
            centralized=centralized,
        )

    def embed(self, images: str | Path, file: str | Path | None = None, *, device: str = "auto") -> Embedded:
        """Convert the images below a folder to vectors.

        Args:
            images: the folder, searched recursively.
            file: also write them to this Parquet file; the vectors are then not kept in memory.
            device: auto, cpu, cuda or mps.

        Returns:
            `paths`, their `vectors` [N, features], and the files that were `skipped`, with the reasons.
        """
        from fedssl.use.embed import embed, write_parquet
        from fedssl.use.trained import load_trained

        trained = load_trained(self.path, device)
        return embed(trained, images) if file is None else write_parquet(trained, images, file)

    def search(
        self, image: str | Path, images: str | Path | Embedded, count: int = 10, *, device: str = "auto"
    ) -> list[tuple[Path, float]]:
        """Find the images most similar to one.

        Args:
            image: the query.
            images: a folder, a Parquet file of vectors, or the result of `embed`.
            count: number of results.
            device: auto, cpu, cuda or mps.

        Returns:
            Files with their cosine, the most similar first.
        """
        from fedssl.use.embed import Embedded, embed, embed_one, read_parquet
        from fedssl.use.search import nearest
        from fedssl.use.trained import load_trained

        trained = load_trained(self.path, device)
        if not isinstance(images, Embedded):
            stored = str(images).endswith(".parquet")
            images = read_parquet(images) if stored else embed(trained, images)
        hits = nearest(images, embed_one(trained, image), count)
        return [(images.file(hit.number), hit.similarity) for hit in hits]

    def finetune(self, images: str | Path, out: str | Path, **options: Any) -> Tuned:
        """Train a classifier from few labels on top of the encoder.

        Args:
            images: a folder CLASS/IMAGE, or train/CLASS/IMAGE and test/CLASS/IMAGE.
            out: output folder.
            **options: `labels` (images of each class, 0: all), `how` ("linear" or "full"), `epochs`, `lr`,
                `seed`, `device`.

        Returns:
            The classifier's `scores` on held-out images, and those on the `untrained` encoder.
        """
        from fedssl.use.finetune import finetune

        return finetune(self.path, images, out, **options)

    def export(self, to: str, file: str | Path) -> list[Path]:
        """Write the encoder for other programs.

        Args:
            to: "safetensors" (for timm) or "onnx".
            file: the file to write; a model card is written next to it.

        Returns:
            All files that were written.
        """
        from fedssl.use.export import export

        return export(self.path, to, file)

    # --- in consoles and notebooks -------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """In notebooks: the results and curves."""
        from fedssl.report.html.notebook import notebook_html

        return notebook_html(self.path)


def run(
    config: str | Path | Mapping[str, Any] | Config | None = None,
    *,
    out: str | Path | None = None,
    quiet: bool = False,
    listeners: Sequence[Listener] = (),
    **overrides: Any,
) -> Run:
    """Train a federation and probe its encoder.

    Args:
        config: a TOML file, a mapping, or a `Config`.
        out: the run's folder; default: runs/DATA-OBJECTIVE-METHOD.
        quiet: print nothing.
        listeners: callbacks, called in this order after those of the console and of trackers.
        **overrides: sections and keys, such as `rounds=50`, `method={"name": "fedema", "tau": 0.5}` or
            `**{"train.lr": 0.1}`.

    Returns:
        The finished run.
    """
    settings = config.to_dict() if isinstance(config, Config) else config
    directory = experiment.run(load(settings, overrides), out, all_listeners(quiet, listeners))
    return Run(directory.path)


def resume(
    path: str | Path,
    *,
    rounds: int = 0,
    quiet: bool = False,
    listeners: Sequence[Listener] = (),
    trust: bool = False,
) -> Run:
    """Continue a run from its last checkpoint; a finished run is not changed.

    Args:
        path: the run's folder.
        rounds: train to this round instead of the last one of the run's config, even if it has finished.
        quiet: print nothing.
        listeners: callbacks; those passed to `run` are not stored, so pass them again.
        trust: run Python files that its config names, also those that you have not run before.
    """
    with trusting(trust):
        return Run(experiment.resume(path, all_listeners(quiet, listeners), rounds).path, trust)


def all_listeners(quiet: bool, own: Sequence[Listener] = ()) -> Listener:
    """Return the console's and the trackers' listeners, then the user's."""
    shown: list[Listener] = [] if quiet else [ConsoleListener()]
    return Listeners([*shown, TensorBoard(), WeightsAndBiases(), MLflow(), *own])
