"""`fedssl certs`: certificates and keys for a trial. A real federation uses its own authority.

    OUT/ca.key            signs certificates; keep it in a safe place
    OUT/server/           for the server: its certificate and key, and the public keys of the sites
    OUT/SITE/             for a site: its private key, and the authority's certificate

Existing files are not changed, so that sites can be added later. A running server applies changed and
removed public keys without a restart.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedssl.errors import ConfigError, did_you_mean
from fedssl.storage import write_private, write_text

DAYS = 365
LOCAL = ("localhost", "127.0.0.1")  # Flower's own processes on the server talk to each other there
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")

Key = ec.EllipticCurvePrivateKey


def make_certs(out: Path, hosts: Sequence[str], sites: Sequence[str]) -> list[Path]:
    """Create missing keys and certificates; returns the new files."""
    for name in sites:
        check_name(name)
    made: list[Path] = []
    server = out / "server"
    if (server / "server.crt").exists():
        if hosts:
            raise ConfigError(f"{server / 'server.crt'} exists already, for the hosts it was made for")
    else:
        made += _authority(out, [*hosts, *LOCAL])
    for name in sites:
        if not (out / name / f"{name}.key").exists():
            made += _site(out, name)
    return made


def rotate(out: Path, names: Sequence[str]) -> list[Path]:
    """Replace the keys of sites, so that the server refuses the old ones; returns the new files."""
    for name in names:
        _existing(out, name)
    return [file for name in names for file in _key_pair(out, name)]


def revoke(out: Path, names: Sequence[str]) -> list[Path]:
    """Remove the public keys of sites from the server's folder, so that they cannot connect."""
    files = [_existing(out, name) for name in names]
    for file in files:
        file.unlink()
    return files


def _existing(out: Path, name: str) -> Path:
    file = out / "server" / "sites" / f"{name}.pub"
    if not file.exists():
        known = (found.stem for found in file.parent.glob("*.pub"))
        raise ConfigError(f"no key of a site {name!r} in {file.parent}: {did_you_mean(name, known)}")
    return file


def check_name(name: str) -> None:
    if not NAME.fullmatch(name) or name == "server":
        raise ConfigError(f"invalid site name {name!r}: use letters, digits and . _ - (at most 32)")


def _authority(out: Path, hosts: list[str]) -> list[Path]:
    """Create a certificate authority, and the server's certificate signed by it."""
    key, own = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = _name("fedssl trial authority")
    authority = (
        _builder(issuer, issuer, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    certificate = (
        _builder(_name(hosts[0]), issuer, own.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA384())
    )
    server = out / "server"
    return [
        _write(out / "ca.key", _private(key, serialization.PrivateFormat.PKCS8), secret=True),
        _write(out / "ca.crt", authority.public_bytes(serialization.Encoding.PEM)),
        _write(server / "ca.crt", authority.public_bytes(serialization.Encoding.PEM)),
        _write(server / "server.crt", certificate.public_bytes(serialization.Encoding.PEM)),
        _write(server / "server.key", _private(own, serialization.PrivateFormat.PKCS8), secret=True),
    ]


def _site(out: Path, name: str) -> list[Path]:
    return [*_key_pair(out, name), _write(out / name / "ca.crt", (out / "ca.crt").read_bytes())]


def _key_pair(out: Path, name: str) -> list[Path]:
    """Create a key pair in Flower's format: the private key for the site, the public key for the server."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    private, shared = out / name / f"{name}.key", out / "server" / "sites" / f"{name}.pub"
    write_private(private, _private(key, serialization.PrivateFormat.OpenSSH).decode())
    write_text(shared, public.decode() + f" {name}\n")  # atomically, because a running server may read it now
    return [private, shared]


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: Key, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write(path: Path, data: bytes, secret: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644), "wb") as file:
        file.write(data)
    return path
