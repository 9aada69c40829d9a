"""server, client, certs: train across machines with Flower."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedssl.commands.command import Command
from fedssl.errors import ConfigError, RunError

if TYPE_CHECKING:
    from fedssl.commands.checks import Check
    from fedssl.engines.flower.journal import Output


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


# --- certs ----------------------------------------------------------------------------------------


def _certs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", help="a new folder, or an existing one to which sites are added")
    parser.add_argument("--host", default="", help="the server's names or addresses: NAME,NAME")
    parser.add_argument("--sites", default="", help="the sites' names: NAME,NAME")
    parser.add_argument("--rotate", default="", metavar="NAME,NAME", help="sites that get new keys")
    parser.add_argument("--revoke", default="", metavar="NAME,NAME", help="sites that may no longer connect")


def _certs(options: argparse.Namespace) -> None:
    from fedssl.engines.flower.engine import needs_flower

    needs_flower()
    from fedssl.engines.flower.certs import make_certs, revoke, rotate

    out, changed = Path(options.out), [*_names(options.rotate), *_names(options.revoke)]
    if not changed or options.host or options.sites:
        for file in make_certs(out, _names(options.host), _names(options.sites)):
            print(file)
    for file in rotate(out, _names(options.rotate)):
        print(file)
    for file in revoke(out, _names(options.revoke)):
        print(f"{file}: removed")


# --- server ---------------------------------------------------------------------------------------


def _server_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="[CONFIG.toml] key=value", help="as for `fedssl run`")
    parser.add_argument("--out", required=True, help="the run's folder; an existing run is continued")
    parser.add_argument("--certs", help="the server's folder made by `fedssl certs`")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on (default: all)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (default 8000)")
    parser.add_argument("--insecure", action="store_true", help="no encryption, and accept any client")
    parser.add_argument("--sites", default="", help="with --insecure: the sites' names, NAME,NAME")
    _log_arguments(parser)
    parser.add_argument(
        "--check",
        "--dry-run",
        action="store_true",
        help="check config, keys, port and disk without starting anything",
    )
    parser.add_argument(
        "--metrics", type=int, default=0, metavar="PORT", help="port for /metrics and /health"
    )


def _log_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="log lines as JSON")
    parser.add_argument("--debug", action="store_true", help="also print Flower's own log")


def _output(options: argparse.Namespace) -> Output:
    from fedssl.engines.flower.journal import Output

    return Output(options.json, options.debug)


def _server(options: argparse.Namespace) -> None:
    from fedssl.config import parse_overrides, read_toml
    from fedssl.engines.flower.launch import Place, server, stop_on_signal

    _one_of(options)
    if options.sites and not options.insecure:
        raise ConfigError("--sites needs --insecure; otherwise the sites are those with keys in --certs")
    first = options.words[:1]
    file = first[0] if first and "=" not in first[0] else None
    values = read_toml(file) if file else {}
    overrides = parse_overrides(options.words[1:] if file else options.words)
    place = Place(options.host, options.port, Path(options.certs) if options.certs else None)
    if options.check:
        from fedssl.commands.checks import check_server

        _finish(check_server(Path(options.out), values, overrides, place, _names(options.sites)))
        return
    tell = _output(options)
    with stop_on_signal("stopped: the same command continues from the last round", tell), _metrics(options):
        server(Path(options.out), values, overrides, place, _names(options.sites), tell)


@contextmanager
def _metrics(options: argparse.Namespace) -> Iterator[None]:
    """Serve health and metrics during the run, if a port is given."""
    from fedssl.report import metrics

    if not options.metrics:
        yield
        return
    server = metrics.serve(Path(options.out), options.metrics)
    try:
        yield
    finally:
        server.close()


def _finish(found: Iterable[Check]) -> None:
    """Print checks as they finish; raises a RunError if one failed."""
    failed = 0
    for each in found:
        print(f"{'ok   ' if each.good else 'FAILS'}  {each.what}: {each.message}", flush=True)
        failed += not each.good
    if failed:
        raise RunError(f"{failed} check{'s' * (failed > 1)} failed")


def _one_of(options: argparse.Namespace) -> None:
    if bool(options.certs) == options.insecure:
        raise ConfigError("give --certs FOLDER (see `fedssl certs`) or --insecure")


# --- client ---------------------------------------------------------------------------------------


def _client_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--server", required=True, metavar="HOST:PORT", help="address of the server")
    parser.add_argument("--data", required=True, help="the site's images: a folder (or an .npz file)")
    parser.add_argument("--certs", help="the site's folder made by `fedssl certs`")
    parser.add_argument("--state", help="where the site stores its memory (default ~/.fedssl/sites/NAME)")
    parser.add_argument("--threads", type=int, default=0, help="threads for training (default: all cores)")
    parser.add_argument("--device", default="", help="device for training (default: the server's setting)")
    parser.add_argument("--insecure", action="store_true", help="no encryption, and trust any server")
    parser.add_argument("--name", default="", help="with --insecure: the site's name")
    _log_arguments(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="check key, server, images, disk and one training step, then exit",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run Python files on this machine that the server's config names (default: only built-in parts)",
    )


def _client(options: argparse.Namespace) -> None:
    from fedssl.engines.flower.certs import check_name
    from fedssl.engines.flower.join import Site, client, private_key
    from fedssl.engines.flower.launch import stop_on_signal
    from fedssl.trust import home

    _one_of(options)
    certs = Path(options.certs) if options.certs else None
    if bool(options.name) != options.insecure:
        raise ConfigError("--name needs --insecure; otherwise the site is named by its key")
    name = private_key(certs).stem if certs else options.name
    check_name(name)
    state = Path(options.state) if options.state else home() / "sites" / name
    site = Site(
        options.server,
        Path(options.data),
        state,
        certs,
        name,
        options.threads,
        options.device,
        options.trust,
    )
    tell = _output(options)
    if options.check:
        from fedssl.commands.checks import check_client

        _finish(check_client(site))
        return
    tell(f"{name}: {_count(site.data, tell):,} images in {options.data}; memory in {state}")
    with stop_on_signal("stopped", tell):
        client(site, tell)


def _count(data: Path, tell: Output) -> int:
    """Count the images without decoding them, so that errors show before anything is started."""
    from fedssl.data.folder import load as load_folder
    from fedssl.data.npz import load as load_npz
    from fedssl.data.options import DataConfig

    config = DataConfig(name="folder", root=str(data), size=1)
    images, _ = load_npz(config) if data.suffix == ".npz" else load_folder(config)
    for warning in images.warnings:
        tell(warning, "warning")
    return len(images)


COMMANDS = {
    "server": Command("run the server of a federation of sites", _server_arguments, _server),
    "client": Command("take part in a federation with the images of this site", _client_arguments, _client),
    "certs": Command("create certificates and keys for a trial", _certs_arguments, _certs),
}
