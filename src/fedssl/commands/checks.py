"""`fedssl server --check` and `fedssl client --check`: find problems before anything starts."""

from __future__ import annotations

import datetime
import shutil
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssl.config import Config, load
from fedssl.engines.flower.engine import needs_flower
from fedssl.engines.flower.join import Site
from fedssl.engines.flower.launch import Place, answers, differences, server_defaults, with_sites
from fedssl.engines.flower.sites import read_keys
from fedssl.engines.flower.versions import versions
from fedssl.errors import ConfigError, FedsslError

if TYPE_CHECKING:
    from fedssl.data.cache import Listing
    from fedssl.data.images import ImageSet
    from fedssl.data.options import DataConfig

GIGABYTE = 2**30
FREE = 1.0  # gigabytes of free disk space to recommend
DAYS = 14  # days of validity of a certificate to recommend
LOOKED_AT = 64  # images to decode


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    what: str
    good: bool
    message: str


def run_check(what: str, look: Callable[[], str]) -> Check:
    """Run `look`; an exception means that the check failed."""
    try:
        return Check(what, True, look())
    except (FedsslError, OSError, ValueError) as error:
        return Check(what, False, " ".join(str(error).split()) or type(error).__name__)


def _words(place: Place | Site, message: str) -> str:
    """Return `message` if the files for Flower exist and are private."""
    place.words()
    return message


# --- server ---------------------------------------------------------------------------------------


def check_server(
    out: Path, values: Mapping[str, Any], overrides: Mapping[str, Any], place: Place, sites: list[str]
) -> Iterator[Check]:
    """Check config, keys, certificate, port, disk, and the size of messages."""
    needs_flower()
    yield run_check("versions", lambda: ", ".join(f"{name} {own}" for name, own in versions().items()))
    names = list(sites)
    if place.certs is not None:
        certs = place.certs
        found = run_check("keys of sites", lambda: ", ".join(read_keys(certs / "sites")))
        yield found
        names = found.message.split(", ") if found.good else names
        yield run_check("certificate", lambda: certificate(certs / "server.crt"))
        yield run_check("key and authority", lambda: _words(place, "key and certificate authority"))
    config = run_check("config", lambda: _config(out, values, overrides, names))
    yield config
    if config.good:
        given = load(values, {**server_defaults(values), **overrides})
        yield run_check("upload", lambda: _upload(given, names))
    yield run_check("port", lambda: _port(place))
    yield run_check("disk", lambda: _disk(out))


def _config(out: Path, values: Mapping[str, Any], overrides: Mapping[str, Any], sites: list[str]) -> str:
    from fedssl.engines.flower.engine import Flower
    from fedssl.rundir import RunDir

    config = load(values, {**server_defaults(values), **overrides})
    if not isinstance(config.engine, Flower):
        raise ConfigError(
            f"engine.name={config.engine.name} does not support sites: leave it out, or set flower"
        )
    if not sites:
        raise ConfigError("no sites: give --sites NAME,NAME, or a folder with their keys, --certs")
    config = with_sites(config, sites)
    config.engine.federation(config)
    if not (out / "config.toml").exists():
        return f"a new run of {config.rounds} rounds in {out}"
    directory = RunDir.open(out)
    changed = differences(directory.config(), config)
    if changed:
        raise ConfigError(f"{out} is a run with another config ({changed})")
    return f"continues {out} after round {len(directory.metrics())} of {config.rounds}"


def _upload(config: Config, sites: list[str]) -> str:
    from fedssl.engines import wire
    from fedssl.engines.network import build_network
    from fedssl.methods.boundary import Boundary

    size = (config.data.size, config.data.size)
    model = build_network(config, size, config.data.channels, 0).model
    shared = Boundary.of(config.method, model).travels
    state = {name: value for name, value in model.state_dict().items() if name in shared}
    megabytes = wire.num_bytes(state, config.wire.dtype) / wire.MEGABYTE
    if megabytes > config.wire.max_mb:
        raise ConfigError(f"{megabytes:,.1f} MB, more than wire.max_mb={config.wire.max_mb}")
    return f"{megabytes:,.2f} MB in each direction per site and round, {len(sites)} sites"


def _port(place: Place) -> str:
    if answers(place.port):
        raise ConfigError(f"port {place.port} is taken: choose another --port")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((place.host, place.port))
    return f"{place.host}:{place.port} is free"


# --- client ---------------------------------------------------------------------------------------


def check_client(site: Site) -> Iterator[Check]:
    """Check versions, key, certificate, server, images, disk, and one training step."""
    needs_flower()
    yield run_check("versions", lambda: ", ".join(f"{name} {own}" for name, own in versions().items()))
    yield run_check("key", lambda: _words(site, f"this site is {site.name}"))
    yield run_check("server", lambda: reach(site))
    yield run_check("images", lambda: _images(site))
    yield run_check("disk", lambda: _disk(site.state))
    yield run_check("training step", lambda: _step(site))


def reach(site: Site) -> str:
    """Connect like the site, and describe the server."""
    host, _, port = site.server.rpartition(":")
    if not port.isdigit():
        raise ConfigError(f"--server {site.server}: must be HOST:PORT")
    began = time.monotonic()
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), timeout=10)
    except OSError as error:
        raise ConfigError(
            f"{site.server} does not answer ({error}): is the server running, and the port open?"
        ) from None
    with connection:
        if site.certs is None:
            return f"{site.server} answers in {1000 * (time.monotonic() - began):.0f} ms, without encryption"
        context = ssl.create_default_context(cafile=str(site.certs / "ca.crt"))
        try:
            with context.wrap_socket(connection, server_hostname=host.strip("[]")) as secure:
                shown = secure.getpeercert() or {}
        except ssl.SSLError as error:
            raise ConfigError(f"{site.server}: {error.reason or error}: another authority or name") from None
    until = datetime.datetime.fromtimestamp(ssl.cert_time_to_seconds(str(shown["notAfter"])), datetime.UTC)
    return f"{site.server} answers in {1000 * (time.monotonic() - began):.0f} ms; {_valid(until)}"


def _listed(site: Site) -> tuple[DataConfig, ImageSet | Listing]:
    """Load the site's images: unchanged from an .npz file, at 32×32 pixels from a folder, not decoded yet."""
    from fedssl.data.folder import load as load_folder
    from fedssl.data.npz import load as load_npz
    from fedssl.data.options import DataConfig

    if site.data.suffix == ".npz":
        config = DataConfig(name="npz", root=str(site.data))
        return config, load_npz(config)[0]
    config = DataConfig(name="folder", root=str(site.data), size=32)
    return config, load_folder(config)[0]


def _images(site: Site) -> str:
    """Count all images, and decode a few."""
    from fedssl.data.cache import Listing, decode

    _, images = _listed(site)
    message = f"{len(images):,} images, {'without' if images.y is None else 'with'} labels"
    if isinstance(images, Listing):
        import numpy as np

        few = images.subset(np.unique(np.linspace(0, len(images) - 1, LOOKED_AT).round().astype(int)))
        warnings = decode(replace(few, warnings=()), memory_mb=1024).warnings
        message += f", {len(few):,} of them read"
        message += "".join(f"; {warning}" for warning in warnings)
    return message + "".join(f"; {warning}" for warning in images.warnings)


def _step(site: Site) -> str:
    """Run one training step on a few of the site's images, with the default network."""
    from fedssl.experiment import run
    from fedssl.listener import Listener

    config, images = _listed(site)
    data = config.model_copy(update={"limit": LOOKED_AT if len(images) > LOOKED_AT else 0}).model_dump()
    values = {
        "data": data,
        "rounds": 1,
        "partition": {"scheme": "iid", "clients": 1},
        "train": {"batch_size": 16, "epochs": 0.1},
        "probe": {"every": 0, "protocol": "none"},
        "log": {"tensorboard": False},
        "engine": {"threads": site.threads},
        **({"device": site.device} if site.device else {}),
    }
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        directory = run(load(values), Path(folder) / "run", Listener())
        (line,) = directory.metrics()
        return f"loss {line['loss']:.3g} after {time.monotonic() - began:.1f} s, with images of 32×32 pixels"


# --- both -----------------------------------------------------------------------------------------


def certificate(file: Path) -> str:
    """Check names and expiry of a certificate; Flower's own processes need the name 127.0.0.1."""
    from cryptography import x509

    found = x509.load_pem_x509_certificate(file.read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    hosts = list(dict.fromkeys(hosts))
    if "127.0.0.1" not in hosts:
        raise ConfigError(f"{file} does not name 127.0.0.1, which the server's own processes need")
    return f"for {', '.join(hosts)}; {_valid(found.not_valid_after_utc)}"


def _valid(until: datetime.datetime) -> str:
    left = (until - datetime.datetime.now(datetime.UTC)).days
    if left < 0:
        raise ConfigError(f"the certificate has been invalid since {until.date()}")
    if left < DAYS:
        raise ConfigError(f"the certificate is only valid for {left} more days, until {until.date()}")
    return f"the certificate is valid until {until.date()}"


def _disk(folder: Path) -> str:
    place = folder.resolve()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free / GIGABYTE
    if free < FREE:
        raise ConfigError(f"{free:.2f} GB are free at {place}; at least {FREE:g} GB are recommended")
    return f"{free:,.0f} GB are free at {place}"
