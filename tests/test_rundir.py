import pytest

from fedssl.config import load
from fedssl.errors import RunError
from fedssl.rundir import RunDir

LOG = '{"round": 1, "loss": 0.10}\n{"round": 2, "loss": 1e-2}\n{"round": 3, "lo'


def test_rounds_are_read_up_to_a_truncated_line(tmp_path):
    directory = RunDir(tmp_path)
    assert directory.metrics() == []
    directory.metrics_file.write_text(LOG)
    assert directory.metrics() == [{"round": 1, "loss": 0.1}, {"round": 2, "loss": 0.01}]


def test_rewinding_leaves_earlier_lines_as_they_were_written(tmp_path):
    directory = RunDir(tmp_path)
    for last, kept in ((2, LOG.splitlines(keepends=True)[:2]), (1, [LOG.splitlines(keepends=True)[0]])):
        directory.metrics_file.write_text(LOG)
        directory.rewind(last)
        assert directory.metrics_file.read_text() == "".join(kept)


def test_the_last_line_may_lack_only_its_end(tmp_path):
    directory = RunDir(tmp_path)
    directory.metrics_file.write_text('{"round": 1}\n{"round": 2}')
    directory.rewind(2)
    directory.append({"round": 3})
    assert [line["round"] for line in directory.metrics()] == [1, 2, 3]


@pytest.mark.parametrize(
    ("keys", "command"),
    [
        ({}, "`fedssl resume {}`"),
        ({"engine.name": "flower", "engine.sites": ["berlin"]}, "the `fedssl server` command with --out {}"),
    ],
)
def test_errors_name_the_command_that_continues_the_run(tmp_path, keys, command):
    run = RunDir.create(tmp_path / "run", load({}, keys))
    told = command.format(run.path)
    for read in (run.result, run.encoder_description, lambda: RunDir.create(run.path, load({}))):
        with pytest.raises(RunError) as error:
            read()
        assert told in str(error.value)


def test_an_unreadable_config_is_not_a_run_of_sites(tmp_path):
    (tmp_path / "config.toml").write_text("engine = [")
    assert RunDir(tmp_path).how_to_continue() == f"`fedssl resume {tmp_path}`"
