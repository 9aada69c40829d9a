"""The files of `fedssl certs` work for TLS and for Flower, and existing files are kept."""

import ssl
import stat

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.hazmat.primitives.serialization.ssh import load_ssh_private_key, load_ssh_public_key
from flwr.cli.supernode.register import try_load_public_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedssl.cli import main
from fedssl.engines.flower.certs import make_certs
from fedssl.errors import ConfigError


def handshake(server_folder, authority, host):
    """TLS in memory, between OpenSSL and OpenSSL."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(server_folder / "server.crt", server_folder / "server.key")
    client = ssl.create_default_context(cafile=str(authority))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue
    assert not ends


@pytest.mark.parametrize("host", ["server.example.org", "10.1.2.3", "localhost", "127.0.0.1"])
def test_a_site_trusts_the_server_by_each_of_its_names(tmp_path, host):
    make_certs(tmp_path, ["server.example.org", "10.1.2.3"], ["site-a"])
    handshake(tmp_path / "server", tmp_path / "site-a" / "ca.crt", host)


def test_a_site_does_not_trust_another_host_or_another_authority(tmp_path):
    make_certs(tmp_path / "mine", ["server.example.org"], ["site-a"])
    make_certs(tmp_path / "other", ["server.example.org"], ["site-a"])
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(tmp_path / "mine" / "server", tmp_path / "mine" / "ca.crt", "evil.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path / "other" / "server", tmp_path / "mine" / "ca.crt", "server.example.org")


def test_keys_are_pairs_that_flower_takes_and_secrets_are_for_their_owner(tmp_path):
    make_certs(tmp_path, [], ["site-a", "site-b"])
    for name in ("site-a", "site-b"):
        private = load_ssh_private_key((tmp_path / name / f"{name}.key").read_bytes(), None)
        public = tmp_path / "server" / "sites" / f"{name}.pub"
        assert try_load_public_key(public) == public_key_to_bytes(private.public_key())
        assert load_ssh_public_key(public.read_bytes()).public_bytes(
            Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
        ) == private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    secrets = [tmp_path / "ca.key", tmp_path / "server" / "server.key", *tmp_path.glob("site-*/*.key")]
    assert len(secrets) == 4
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in secrets)
    assert not list(tmp_path.glob("site-*/ca.key"))


def test_a_site_is_added_later_and_nothing_else_changes(tmp_path, capsys):
    assert main(["certs", str(tmp_path / "keys"), "--host", "a.org", "--sites", "one,two"]) == 0
    before = {file: file.read_bytes() for file in (tmp_path / "keys").rglob("*") if file.is_file()}
    assert main(["certs", str(tmp_path / "keys"), "--sites", "one,three"]) == 0
    assert all(file.read_bytes() == data for file, data in before.items())
    new = {file for file in (tmp_path / "keys").rglob("*") if file.is_file()} - before.keys()
    assert {file.name for file in new} == {"three.key", "ca.crt", "three.pub"}
    assert main(["certs", str(tmp_path / "keys"), "--host", "b.org"]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "../up", "a b", "server", "x" * 33, "-x", "é"])
def test_invalid_names_are_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="invalid site name"):
        make_certs(tmp_path, [], [name])
    assert not list(tmp_path.iterdir())
