import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fedssl.cli import main, next_commands
from tests.small import arguments, small_run
from tests.suite.waiting import cpu_seconds, wait_until


def fedssl(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "fedssl.cli", *words], capture_output=True, text=True, **options
    )


def test_a_misspelled_value_exits_2_and_names_the_right_one():
    done = fedssl("run", "objective.name=simclrr")
    assert done.returncode == 2
    assert "did you mean simclr" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runn"], "did you mean run"),
        (["run", "rounds"], "no config file rounds; to set a key, write KEY=VALUE"),
        (["run", "none.toml"], "no config file"),
        (["run", "data.name=digitss"], "did you mean digits"),
        (["run", "model.encoder=resnet9"], "resnet"),
        (["run", "method.name=l-dawa"], "it is an aggregation: aggregation.name=l-dawa"),
        (["run", "objective.name=FedEMA"], "it is a method: method.name=fedema"),
        (["run", "aggregation.name=fedema"], "it is a method: method.name=fedema"),
        (["eval", "nowhere", "--protocol", "simclr"], "not a run"),
        (["run", "device=gpu"], "device"),
        (["list", "methodss"], "did you mean methods"),
        (["eval", "nowhere", "--protocol", "linear"], "not a run"),
        (["resume", "nowhere"], "not a run"),
        (["reproduce", "fedema-table99"], "did you mean fedema-table"),
    ],
)
def test_errors_are_one_line(words, said, capsys):
    assert main(words) in (1, 2)
    said_so = capsys.readouterr().err
    assert said in said_so
    assert said_so.count("\n") == 1


def test_help_answers_without_pytorch():
    code = "import sys; from fedssl.cli import main; main(['--help']); assert 'torch' not in sys.modules"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "fedssl COMMAND" in shown


def test_list_shows_everything(capsys):
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    for name in (
        "fedema",
        "barlow-twins",
        "l-dawa",
        "mnist5k",
        "dirichlet-bounded",
        "resnet18",
        "fedema-table1",
    ):
        assert name in shown


def test_list_has_a_line_for_everything(capsys):
    assert main(["list"]) == 0
    bare = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("  ") and len(line.split()) < 2
    ]
    assert bare == []


def test_run_and_eval_by_command(tmp_path, capsys):
    out = str(tmp_path / "run")
    words = arguments(**{"probe.protocol": "linear", "rounds": 2})
    assert main(["run", *words, "--out", out]) == 0
    shown = capsys.readouterr().out
    for part in ("earth mover's distance", "round 2/2", "untrained", "wrote", "next\n  fedssl report"):
        assert part in shown
    assert main(["eval", out, "--protocol", "knn", "probe.neighbours=5"]) == 0
    assert "per class" in capsys.readouterr().out
    stored = json.loads((tmp_path / "run" / "evaluations.jsonl").read_text())
    assert stored["protocol"] == "knn"
    assert stored["overrides"] == {"probe.neighbours": 5}


def test_a_run_ends_with_its_report_and_three_commands_that_work(tmp_path, capsys):
    run = tmp_path / "my run"
    assert (
        main(["run", *arguments(rounds=1, **{"probe.protocol": "knn"}), "--report", "--out", str(run)]) == 0
    )
    told, _, after = capsys.readouterr().out.partition("\nnext\n")
    assert f"wrote {run}/report.html" in told
    commands = [line.split("  ")[1] for line in after.splitlines()]
    assert [command.split()[1] for command in commands] == ["eval", "embed", "export"]
    assert main(shlex.split(commands[0])[1:]) == 0


def test_no_probe_is_proposed_without_labels():
    shown = next_commands(Path("runs/a"), reported=False, labeled=False).splitlines()
    assert [line.split()[1] for line in shown] == ["report", "embed", "export"]
    shown = next_commands(Path("runs/a"), reported=True, labeled=False).splitlines()
    assert [line.split()[1] for line in shown] == ["embed", "export", "search"]


def test_eval_refuses_keys_without_effect(tmp_path, capsys):
    run = small_run(tmp_path / "run", rounds=1)
    assert main(["eval", str(run.path), "train.lr=1"]) == 2
    assert "no meaning in an evaluation" in capsys.readouterr().err


def test_quiet_says_nothing(tmp_path, capsys):
    assert main(["run", *arguments(rounds=1), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def rounds_of(out):
    file = out / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def test_an_interrupt_leaves_a_run_that_resumes(tmp_path):
    import signal

    out = tmp_path / "run"
    words = arguments(rounds=500, **{"checkpoint.every": 1})
    process = subprocess.Popen(
        [sys.executable, "-m", "fedssl.cli", "run", *words, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # Shells start background jobs with interrupts ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_until(
        lambda: rounds_of(out) >= 1,
        "a round should end",
        running=[process],
        progress=lambda: cpu_seconds(process),
    )
    # An interrupt during a destructor is lost, as in any Python program: then the run continues, and
    # the second round after it shows that. Another one sooner could fall into the handling of the first.
    while process.poll() is None:
        before = rounds_of(out)
        process.send_signal(signal.SIGINT)
        wait_until(
            lambda before=before: process.poll() is not None or rounds_of(out) >= before + 2,
            "the run should end",
            progress=lambda: cpu_seconds(process),
        )
    _, said = process.communicate()
    assert process.returncode == 130
    assert "resume" in said
    assert "Traceback" not in said


def test_an_interrupt_before_the_run_starts_has_a_message(monkeypatch, capsys):
    def interrupted(words):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedssl.cli.dispatch", interrupted)
    assert main(["run"]) == 130
    assert capsys.readouterr().err == "\nfedssl: stopped\n"


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"objective": "byol"}, "digits-byol-fedavg"),
        ({"method": "fedssl.methods.fedavg:FedAvg"}, "digits-simclr-fedavg"),
        ({"data": "mnist+svhn"}, "mnist+svhn-simclr-fedavg"),
    ],
)
def test_runs_have_readable_names(values, name, tmp_path, monkeypatch):
    from fedssl.config import load
    from fedssl.experiment import free_path

    monkeypatch.chdir(tmp_path)
    assert free_path(load(values)) == Path("runs") / name
    free_path(load(values)).mkdir(parents=True)
    assert free_path(load(values)) == Path("runs") / f"{name}-2"
