"""embed, search, finetune, export: use a trained encoder; schema: for editors."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedssl.commands.command import Command, trust_argument
from fedssl.errors import ConfigError
from fedssl.progress import bar

SHOWN = 5  # largest number of skipped files to list


# --- embed ----------------------------------------------------------------------------------------


def _embed_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("images", help="a folder of images, at any depth")
    parser.add_argument("-o", "--out", required=True, metavar="FILE.parquet", help="columns path and vector")
    _device(parser)


def _device(parser: argparse.ArgumentParser) -> None:
    trust_argument(parser)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps (default auto)")


def _embed(options: argparse.Namespace) -> None:
    from fedssl.use.embed import write_parquet
    from fedssl.use.trained import load_trained

    with bar() as progress:
        trained = load_trained(options.run, options.device)
        found = write_parquet(trained, options.images, options.out, progress)
    _tell_skipped(found.skipped)
    print(f"{len(found):,} vectors of {trained.features} numbers: wrote {options.out}")


def _tell_skipped(skipped: dict[str, str]) -> None:
    for path, reason in list(skipped.items())[:SHOWN]:
        print(f"left out: {path}: {reason}")
    if len(skipped) > SHOWN:
        print(f"left out: {len(skipped) - SHOWN:,} more")


# --- search ---------------------------------------------------------------------------------------


def _search_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("image", nargs="?", help="the query image (not with --duplicates or --outliers)")
    parser.add_argument(
        "images", help="the images to search: a folder, or a .parquet file written by `fedssl embed`"
    )
    parser.add_argument("-k", type=int, default=10, help="number of results (default 10)")
    parser.add_argument("-o", "--out", metavar="FILE.png", help="write the results as a picture")
    parser.add_argument(
        "--duplicates",
        type=float,
        nargs="?",
        const=0.99,
        metavar="COSINE",
        help="pairs of images with at least this cosine (default 0.99)",
    )
    parser.add_argument("--outliers", action="store_true", help="images unlike the others")
    _device(parser)


def _search(options: argparse.Namespace) -> None:
    from fedssl.use.embed import embed, embed_one, read_parquet
    from fedssl.use.search import duplicates, nearest, outliers, strip
    from fedssl.use.trained import load_trained

    lists = options.duplicates is not None or options.outliers
    if lists == (options.image is not None):
        raise ConfigError("what to search for is missing: IMAGE, or --duplicates, or --outliers")
    if options.k < 1:
        raise ConfigError(f"-k {options.k}: must be at least 1")
    with bar() as progress:
        trained = load_trained(options.run, options.device)
        stored = options.images.endswith(".parquet")
        found = read_parquet(options.images) if stored else embed(trained, options.images, progress)
    _tell_skipped(found.skipped)
    if options.image is not None:
        hits = nearest(found, embed_one(trained, options.image), options.k)
        for hit in hits:
            print(f"{hit.similarity:7.4f}  {found.paths[hit.number]}")
        if options.out:
            strip(Path(options.image), found, hits, Path(options.out))
            print(f"wrote {options.out}")
    if options.duplicates is not None:
        pairs = duplicates(found, options.duplicates)
        print(f"{len(pairs):,} pairs with a cosine of at least {options.duplicates}")
        for pair in pairs[: options.k]:
            print(f"{pair.similarity:7.4f}  {found.paths[pair.first]}  {found.paths[pair.second]}")
    if options.outliers:
        print("mean cosine to the five nearest images, lowest first")
        for hit in outliers(found, options.k):
            print(f"{hit.similarity:7.4f}  {found.paths[hit.number]}")


# --- finetune -------------------------------------------------------------------------------------


def _finetune_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("images", help="labeled images: FOLDER/CLASS/IMAGE (or train/… and test/…)")
    parser.add_argument("-o", "--out", default="classifier", help="output folder (default: classifier)")
    parser.add_argument("--labels", type=int, default=0, help="number of labeled images per class (0: all)")
    parser.add_argument(
        "--how", choices=("linear", "full"), default="linear", help="linear: keep the encoder frozen"
    )
    parser.add_argument("--epochs", type=int, default=30, help="full: epochs (default 30)")
    parser.add_argument("--lr", type=float, default=1e-4, help="full: learning rate (default 1e-4)")
    parser.add_argument("--seed", type=int, default=0, help="seed for the choice of images (default 0)")
    _device(parser)


def _finetune(options: argparse.Namespace) -> None:
    from fedssl.storage import write_text
    from fedssl.use.finetune import finetune
    from fedssl.use.finetune_page import page

    with bar() as progress:
        tuned = finetune(
            options.run,
            options.images,
            options.out,
            labels=options.labels,
            how=options.how,
            epochs=options.epochs,
            lr=options.lr,
            seed=options.seed,
            device=options.device,
            progress=progress,
        )
    write_text(tuned.folder / "report.html", page(tuned))
    print(
        f"{tuned.scores.accuracy:.1%} of {len(tuned.test):,} held-out images, after {tuned.labelled:,} "
        f"labeled images of {len(tuned.classes)} classes "
        f"({tuned.untrained.accuracy:.1%} on the untrained encoder)"
    )
    print(f"wrote a classifier and report.html to {tuned.folder}; `fedssl export` accepts this folder")


# --- export ---------------------------------------------------------------------------------------


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run's folder, or one written by `fedssl finetune`")
    parser.add_argument("--to", required=True, help="safetensors (for timm) or onnx")
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="the output file")
    trust_argument(parser)


def _export(options: argparse.Namespace) -> None:
    from fedssl.use.export import export

    for file in export(options.run, options.to, options.out):
        print(f"wrote {file}")


# --- schema ---------------------------------------------------------------------------------------


def _schema_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--out", metavar="FILE.json", help="default: standard output")


def _schema(options: argparse.Namespace) -> None:
    import json

    from fedssl.commands.schema import schema
    from fedssl.storage import write_text

    text = json.dumps(schema(), indent=1) + "\n"
    if options.out:
        write_text(Path(options.out), text)
    else:
        print(text, end="")


COMMANDS = {
    "embed": Command("convert a folder of images to vectors", _embed_arguments, _embed),
    "search": Command("find similar images, near-duplicates or outliers", _search_arguments, _search),
    "finetune": Command("train a classifier from few labels", _finetune_arguments, _finetune),
    "export": Command("write the encoder for timm or ONNX", _export_arguments, _export),
    "schema": Command("print the JSON schema of config files", _schema_arguments, _schema),
}
