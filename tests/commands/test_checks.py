"""`fedssl server --check` and `fedssl client --check`."""

import datetime
import socket
import ssl
import threading

import pytest

pytest.importorskip("flwr")

from PIL import Image

from fedssl.cli import main
from fedssl.commands import checks
from fedssl.engines.flower.certs import make_certs
from fedssl.errors import ConfigError

SHAPE = ["data.size=8", "data.channels=1", "rounds=3"]


@pytest.fixture
def keys(tmp_path):
    make_certs(tmp_path / "keys", ["localhost"], ["berlin", "paris"])
    return tmp_path / "keys"


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(24):
        Image.new("RGB", (12, 12), (number, 2 * number, 3)).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def port():
    """A port that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def listening(keys):
    """The port of a TLS server that shows the federation's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server" / "server.crt", keys / "server" / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet():
            while True:
                try:
                    connection, _ = server.accept()
                    context.wrap_socket(connection, server_side=True).close()
                except ssl.SSLError:
                    continue
                except OSError:
                    return

        threading.Thread(target=greet, daemon=True).start()
        yield server.getsockname()[1]


def test_a_server_is_checked_and_nothing_starts(tmp_path, keys, port, capsys) -> None:
    words = ["--out", str(tmp_path / "run"), "--certs", str(keys / "server"), "--port", str(port)]
    assert main(["server", *words, "--check", *SHAPE]) == 0
    said = capsys.readouterr().out
    for found in (
        "fedssl 0.",
        "berlin, paris",
        "valid until",
        "a new run of 3 rounds",
        "MB in each",
        "is free",
    ):
        assert found in said
    assert "FAILS" not in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", ["--check", "--dry-run"])
def test_all_problems_of_a_server_are_reported_together(tmp_path, keys, capsys, option) -> None:
    (keys / "server" / "server.key").chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["--out", str(tmp_path / "run"), "--certs", str(keys / "server"), "--port", str(port)]
        assert main(["server", *words, option, "rounds=3", "data.channels=0"]) == 1
    said = capsys.readouterr()
    assert "others can read" in said.out
    assert "set data.size and data.channels" in said.out
    assert f"port {port} is taken" in said.out
    assert "checks failed" in said.err


def test_a_certificate_must_name_the_servers_own_address_and_be_valid(keys, monkeypatch) -> None:
    file = keys / "server" / "server.crt"
    assert "for localhost, 127.0.0.1" in checks.certificate(file)
    with pytest.raises(ConfigError, match="only valid for 3 more days"):
        checks._valid(datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=3, hours=1))
    with pytest.raises(ConfigError, match="has been invalid since"):
        checks._valid(datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=2))


def test_a_site_is_checked_up_to_a_training_step(tmp_path, keys, images, listening, capsys) -> None:
    words = ["--server", f"localhost:{listening}", "--data", str(images), "--certs", str(keys / "berlin")]
    code = main(["client", *words, "--state", str(tmp_path / "state"), "--threads", "1", "--check"])
    said = capsys.readouterr().out
    assert code == 0, said
    for found in (
        "this site is berlin",
        "the certificate is valid",
        "24 images, without labels, 24 of them read",
        "loss ",
    ):
        assert found in said
    assert not (tmp_path / "state").exists()


def test_all_problems_of_a_site_are_reported_together(
    tmp_path, keys, images, port, monkeypatch, capsys
) -> None:
    (images / "broken.png").write_bytes(b"no image")
    monkeypatch.setattr(checks, "FREE", 1e9)
    words = ["--server", f"localhost:{port}", "--data", str(images), "--certs", str(keys / "berlin")]
    assert main(["client", *words, "--state", str(tmp_path / "state"), "--threads", "1", "--check"]) == 1
    said = capsys.readouterr()
    assert f"FAILS  server: localhost:{port} does not answer" in said.out
    assert "broken.png" in said.out
    assert "GB are recommended" in said.out
    assert "2 checks failed" in said.err


def test_a_server_with_another_certificate_authority_is_refused(
    tmp_path, keys, images, listening, capsys
) -> None:
    make_certs(tmp_path / "others", ["localhost"], ["berlin"])
    words = ["--server", f"localhost:{listening}", "--data", str(images)]
    words += ["--certs", str(tmp_path / "others" / "berlin"), "--threads", "1"]
    assert main(["client", *words, "--state", str(tmp_path / "state"), "--check"]) == 1
    assert "another authority or name" in capsys.readouterr().out
