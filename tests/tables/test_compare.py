"""`fedssl compare`: rows with the user's names, every format, and nothing trained twice."""

import csv
import json

import pytest

from fedssl.cli import main
from fedssl.commands.comparing import comparison_of
from fedssl.errors import ConfigError
from fedssl.tables.compare import Comparison, combinations, from_file, nested, split_values
from tests.small import SMALL

WORDS = [
    f"{section}.{key}={str(value).lower() if isinstance(value, bool) else value}"
    for section, keys in SMALL.items()
    if isinstance(keys, dict)
    for key, value in keys.items()
]


class Options:
    def __init__(self, *words, columns="", against="", measure=""):
        self.words, self.columns, self.against, self.measure = list(words), columns, against, measure


def test_values_are_split_at_commas_outside_of_brackets():
    assert split_values("fedavg,fedema") == ["fedavg", "fedema"]
    assert split_values("[1,2],[3]") == ["[1,2]", "[3]"]
    assert split_values('"a,b",c') == ['"a,b"', "c"]
    assert split_values("0.1") == ["0.1"]


def test_names_are_values_of_main_keys_and_other_keys_with_their_value():
    found = combinations({"method.name": ["fedavg", "fedema"], "train.lr": [0.1, 0.03]})
    assert [name for name, _ in found] == [
        "fedavg · train.lr=0.1",
        "fedavg · train.lr=0.03",
        "fedema · train.lr=0.1",
        "fedema · train.lr=0.03",
    ]
    assert found[3][1] == {"method.name": "fedema", "train.lr": 0.03}
    assert combinations({"partition": ["iid"]})[0][0] == "iid"
    assert nested({"method": "fedema", "method.tau": 0.5}) == {"method": {"name": "fedema", "tau": 0.5}}


def test_the_command_line_becomes_rows_and_columns():
    table = comparison_of(
        Options(
            "method.name=fedavg,fedema",
            "rounds=2",
            "partition.scheme=iid,classes",
            columns="partition.scheme",
        )
    ).table()
    assert [row.name for row in table.rows] == ["fedavg", "fedema"]
    assert [column.name for column in table.columns] == ["iid", "classes"]
    assert table.base == {"rounds": 2}
    (ordering,) = table.orderings
    assert (ordering.better, ordering.worse) == (("fedema",), ("fedavg",))


def test_a_file_names_its_rows(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'title = "ours"\nseeds = 5\nmeasure = "knn"\nagainst = "plain"\n'
        "[base]\nrounds = 2\n"
        '[sweep]\n"train.lr" = [0.1, 0.03]\n'
        '[[row]]\nname = "plain"\nconfig = { method = "fedavg" }\n'
        '[[row]]\nname = "with a moving average"\nconfig = { method = { name = "fedema", tau = 0.5 } }\n'
    )
    comparison = from_file(file)
    assert comparison.seeds == 5
    with pytest.raises(ConfigError, match=r"--against 'plain': known: plain · train.lr"):
        comparison.table()
    table = comparison_of(Options(str(file), "train.lr=0.1", against="plain")).table()
    assert [row.name for row in table.rows] == ["plain", "with a moving average"]
    assert table.measure == {"kind": "knn"}
    assert table.base == {"rounds": 2, "train": {"lr": 0.1}}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rounds=2"], "nothing to compare"),
        (["method.name=fedavg,fedemma"], "did you mean fedema"),
        (["method.name=fedavg,fedema", "--against", "fedprox"], "--against 'fedprox'"),
        (["method.name=fedavg,fedema", "-o", "table.xlsx"], "the file must end in .csv"),
        (["method.name=fedavg,fedema", "--columns", "partition.scheme"], "also give its values"),
        (["method.name=fedavg,fedema", "seed=3"], "choose seeds with"),
    ],
)
def test_invalid_comparisons_are_refused_before_anything_runs(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_comparison_from_command_to_files(tmp_path, capsys):
    words = [*WORDS, "probe.protocol=knn", "rounds=1", "method.name=fedavg,constant-mu", "--seeds", "2"]
    files = [str(tmp_path / name) for name in ("table.csv", "table.tex", "table.md", "page.html")]
    outputs = [word for file in files for word in ("-o", file)]
    place = ["--measure", "knn", "--out", str(tmp_path / "out")]
    assert main(["compare", *words, *place, *outputs]) == 0
    shown = capsys.readouterr().out
    assert "4/4" in shown  # a line for each run, with the time that is left
    assert "Compared with fedavg, paired over seeds" in shown
    assert "| untrained encoder |" in shown
    page = (tmp_path / "out" / "compare.md").read_text(encoding="utf-8")
    assert "rounds=1 method.name=fedavg,constant-mu --measure knn --seeds 2\n" in page
    with open(files[0], newline="", encoding="utf-8") as file:
        records = list(csv.DictReader(file))
    numbers = {each["row"]: each for each in records if each["mean"]}
    assert set(numbers) == {"fedavg", "constant-mu"}
    runs = {path.parent: json.loads(path.read_text()) for path in (tmp_path / "out").rglob("result.json")}
    accuracies = sorted(
        100 * result["probes"][0]["accuracy"] for path, result in runs.items() if "fedavg" in path.name
    )
    found = sorted(float(numbers["fedavg"][f"seed {seed}"]) for seed in (0, 1))
    assert found == pytest.approx(accuracies)
    assert float(numbers["fedavg"]["mean"]) == pytest.approx(sum(accuracies) / 2)
    (verdict,) = [each for each in records if each["verdict"]]
    assert (verdict["row"], verdict["against"], verdict["n"]) == ("constant-mu", "fedavg", "2")
    difference = float(numbers["constant-mu"]["mean"]) - float(numbers["fedavg"]["mean"])
    assert float(verdict["difference"]) == pytest.approx(difference)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"name":"constant-mu"' in page
    # once more: nothing is trained again
    written = {path: path.stat().st_mtime_ns for path in runs}
    assert main(["compare", *words, *place]) == 0
    assert "reused" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in runs} == written


def test_an_empty_comparison_has_nothing_to_compare():
    with pytest.raises(ConfigError, match="nothing to compare"):
        Comparison().table()
