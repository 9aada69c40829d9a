"""`fedssl server` and `fedssl client`, without starting processes."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("flwr")

from PIL import Image
from tests.engines.flower.grid import at_sites
from tests.small import SMALL

from fedssl.cli import main
from fedssl.config import load
from fedssl.engines.flower import join, launch, process
from fedssl.engines.flower.certs import make_certs
from fedssl.engines.flower.home import Home
from fedssl.engines.flower.journal import Output
from fedssl.engines.flower.launch import Place, open_run, server_defaults
from fedssl.errors import ConfigError
from fedssl.rundir import RunDir


def config(**keys):
    return at_sites(SMALL, [], **keys)


def test_server_defaults_can_be_overridden():
    assert server_defaults({}) == {
        "engine.name": "flower",
        "data.name": "none",
        "checkpoint.every": 1,
        "participation.max_change": 10.0,
        "log.audit": True,
    }
    said = {"checkpoint": {"every": 7}, "data": "digits", "participation": {"max_change": 0.0}}
    assert server_defaults(said) == {"engine.name": "flower", "log.audit": True}


def test_sites_keep_their_numbers_when_others_join(tmp_path):
    open_run(tmp_path / "run", config(), ["berlin", "paris"])
    assert RunDir(tmp_path / "run").config().engine.sites == ("berlin", "paris")
    open_run(tmp_path / "run", config(), ["amsterdam", "berlin"])
    assert RunDir(tmp_path / "run").config().engine.sites == ("berlin", "paris", "amsterdam")


def test_another_config_is_another_run(tmp_path):
    open_run(tmp_path / "run", config(), ["a"])
    with pytest.raises(ConfigError, match=r"holds a run with another config \(rounds: 3 → 99\)"):
        open_run(tmp_path / "run", config(rounds=99), ["a"])


@pytest.mark.parametrize(
    ("settings", "sites", "said"),
    [
        (lambda: config(), [], "no sites"),
        (lambda: load(SMALL), ["a"], "engine.name=local does not support sites"),
        (lambda: config(**{"data.channels": 0}), ["a"], "set data.size and data.channels"),
    ],
)
def test_invalid_server_settings(tmp_path, settings, sites, said):
    with pytest.raises(ConfigError, match=said):
        open_run(tmp_path / "run", settings(), sites)
    assert not (tmp_path / "run").exists()


def test_tls_and_keys_are_required_by_default(tmp_path):
    make_certs(tmp_path, [], ["a"])
    words = Place("0.0.0.0", 8000, tmp_path / "server").words()
    assert "--enable-supernode-auth" in words
    assert "--insecure" not in words
    assert Place("0.0.0.0", 8000, None).words() == ["--host", "0.0.0.0", "--port", "8000", "--insecure"]
    with pytest.raises(ConfigError, match=r"no .*ca\.crt: see `fedssl certs`"):
        Place("0.0.0.0", 8000, tmp_path / "a" / "nothing").words()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["server", "--out", "x"], "give --certs FOLDER"),
        (["server", "--out", "x", "--insecure", "--certs", "c"], "give --certs FOLDER"),
        (["server", "--out", "x", "--certs", "c", "--sites", "a"], "--sites needs --insecure"),
        (["server", "--out", "x", "--insecure", "data.size=8", "data.channels=1"], "no sites"),
        (["server", "--out", "x", "--insecure", "--sites", "a", "rouns=3"], "did you mean rounds"),
        (["server", "--out", "x", "--certs", "nowhere"], "holds no public keys of sites"),
        (["client", "--server", "h:1", "--data", "images"], "give --certs FOLDER"),
        (["client", "--server", "h:1", "--data", "images", "--insecure"], "--name needs --insecure"),
        (
            ["client", "--server", "h:1", "--data", "images", "--insecure", "--name", "a/b"],
            "invalid site name",
        ),
        (
            ["client", "--server", "h:1", "--data", "nowhere", "--insecure", "--name", "a"],
            "no folder nowhere",
        ),
        (["client", "--server", "h:1", "--data", "images", "--certs", "images"], "0 private keys"),
    ],
)
def test_invalid_commands(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "images" / "a.png")
    assert main(words) in (1, 2)
    assert said in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_keys_that_others_can_read_are_refused(tmp_path):
    make_certs(tmp_path, [], ["a"])
    for key in (tmp_path / "server" / "server.key", tmp_path / "a" / "a.key"):
        key.chmod(0o640)
    with pytest.raises(ConfigError, match=r"others can read .*server.key \(mode 640\): chmod 600"):
        Place("0.0.0.0", 8000, tmp_path / "server").words()
    with pytest.raises(ConfigError, match=r"others can read .*a.key"):
        join.private_key(tmp_path / "a")


def test_secrets_are_readable_by_the_user_only(tmp_path):
    state = tmp_path / "state"
    for _ in range(2):
        home = Home(state / "flower")
        home.connect("127.0.0.1:1", None)
    for file in ("control.token", "superexec.secret", "credentials.yaml"):
        assert (home.folder / file).stat().st_mode & 0o777 == 0o600
    assert home.folder.stat().st_mode & 0o777 == 0o700
    assert (home.folder / "control.token").read_text() not in str(home.environment)


def test_a_client_counts_its_images_and_has_the_name_of_its_key(tmp_path, monkeypatch, capsys):
    make_certs(tmp_path / "keys", [], ["berlin"])
    (tmp_path / "images" / "cats").mkdir(parents=True)
    for number in range(3):
        Image.new("L", (8, 8)).save(tmp_path / "images" / "cats" / f"{number}.png")
    started = []
    monkeypatch.setattr(join, "client", lambda site, tell: started.append(site))
    words = ["--data", str(tmp_path / "images"), "--certs", str(tmp_path / "keys" / "berlin")]
    assert main(["client", "--server", "host:8000", *words, "--state", str(tmp_path / "state")]) == 0
    assert "berlin: 3 images" in capsys.readouterr().out
    assert started[0].name == "berlin"
    assert "--insecure" not in started[0].words()


def a_site(tmp_path, **keys):
    return join.Site("localhost:1", tmp_path, tmp_path / "state", None, "a", **keys)


class Ended:
    """A process that has ended."""

    def wait(self):
        return 1

    def terminate(self):
        pass


def test_a_client_retries_forever_with_growing_delays(tmp_path, monkeypatch):
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(join.Home, "start", lambda *_, **__: Ended())
    monkeypatch.setattr(join.time, "sleep", sleep)
    said = []
    with pytest.raises(KeyboardInterrupt):
        join.client(a_site(tmp_path), Output(write=said.append))
    assert waits == [5, 10, 20, 40, 60, 60]
    assert said[0].endswith("WARNING  no connection to localhost:1 (exit code 1): retrying in 5 s")


def test_a_site_without_tls_is_refused_by_a_later_server_too(tmp_path, monkeypatch):
    tls = iter([False, True])
    monkeypatch.setattr(join, "speaks_tls", lambda server: next(tls))
    monkeypatch.setattr(join.Home, "start", lambda *_, **__: Ended())
    monkeypatch.setattr(join.time, "sleep", lambda seconds: None)
    with pytest.raises(ConfigError, match="refused: localhost:1 only accepts TLS"):
        join.client(a_site(tmp_path), Output(write=lambda text: None))


def test_sigterm_stops_processes_in_order():
    ended, said, before = [], [], signal.getsignal(signal.SIGTERM)

    def work():
        with launch.stop_on_signal("stopped", said.append):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(60)
            finally:
                ended.append("Flower's processes")

    with pytest.raises(SystemExit) as stopped:
        work()
    assert (stopped.value.code, ended, said) == (130, ["Flower's processes"], ["stopped"])
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("kind", ["superlink", "supernode", "superexec"])
def test_message_relays_do_not_load_pytorch(kind):
    """PyTorch would cost each of them seconds and 400 MB; three of a site's four processes are relays."""
    modules = {
        "superlink": "flwr.superlink.cli, fedssl.engines.audit_log, fedssl.engines.flower.gate",
        "supernode": "flwr.supernode.cli",
        "superexec": "flwr.supercore.cli",
    }
    code = (
        f"import sys, fedssl.engines.flower.process, {modules[kind]}; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'timm', 'numba')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture
def launched(monkeypatch):
    """Processes that an executor has started; they sleep, instead of running an app."""
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor.types import ExecutionSpec

    found = []

    def sleeper(kind, words, **options):
        found.append(
            subprocess.Popen(
                [sys.executable, "-c", "import time; time.sleep(600)"],
                **{name: value for name, value in options.items() if name == "stdin"},
            )
        )
        return found[-1]

    monkeypatch.setattr(process, "start", sleeper)
    executor = process._executor()

    def launch_one(kind):
        address, certificates, parent = "127.0.0.1:1", None, None
        executor.launch(ExecutionSpec(kind, address, "token", True, certificates, False, parent, True, 1))
        return found[-1]

    yield lambda kind=TaskType.CLIENT_APP: launch_one(kind)
    for each in found:
        each.kill()
        each.wait()


def test_a_site_ends_processes_that_flower_has_given_up(launched):
    """One that takes too long to start is given up by Flower, which starts another for the next message."""
    first, second = launched(), launched()
    assert first.poll() is None  # it may still be sending its answer
    third = launched()
    assert first.returncode == -signal.SIGKILL
    assert (second.poll(), third.poll()) == (None, None)


def test_a_process_that_has_ended_does_not_count(launched):
    first, second = launched(), launched()
    second.kill()
    second.wait()
    launched()
    assert first.poll() is None


def test_a_site_sends_heartbeats_before_it_loads_pytorch():
    """Flower gives up a process that has sent none for half a minute."""
    code = """
import sys
import flwr.supernode.cli
from fedssl.engines.flower import process

flwr.supernode.cli.flwr_clientapp = lambda: sys.exit("torch" in sys.modules)
sys.stdin = open("/dev/null")
process.clientapp()
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
