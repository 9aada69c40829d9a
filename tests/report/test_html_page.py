"""The page is self-contained, whatever names and paths contain."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedssl.cli import main
from fedssl.errors import RunError
from fedssl.report.html.data import document
from fedssl.report.html.page import as_json, check, page
from fedssl.report.html.pictures import LARGE, collect
from tests.report.handmade import METRICS, entry, finished, partition, result, run_dir

EVIL = "</script><script>alert(1)</script><!-- {{title}} & \u2028 'x' \"y\""


class Elements(HTMLParser):
    """The elements of a page, its attributes and the text of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.scripts = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        if self.tags[-1:] == ["script"] and data.strip():
            self.scripts.append(data)


def embedded(text):
    return json.loads(Elements(text).scripts[0])


def test_markup_in_names_stays_text(tmp_path):
    evil = (EVIL, "dog")
    line = {**METRICS[0], "failed": [{"client": 0, "reason": EVIL}]}
    path = run_dir(
        tmp_path / "<img src=x onerror=alert(1)>",
        metrics=[line],
        result=result(entry("linear", 0.5, classes=evil)),
        partition=partition(evil),
        **{"data.root": EVIL},
    )
    text = page(document([path]))
    found = Elements(text)
    assert found.tags.count("script") == 2
    assert "img" not in found.tags
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    (run,) = embedded(text)["runs"]
    assert run["probes"][0]["per_class"][0]["class"] == EVIL
    assert run["failures"]["each"][0]["reason"] == EVIL
    assert run["name"] == "<img src=x onerror=alert(1)>"


def test_json_is_safe_inside_of_a_script_and_the_same_outside():
    value = {"a": EVIL, "b": [1.5, None, "\u2029"]}
    assert not set(as_json(value)) & set("<>&\u2028\u2029")
    assert json.loads(as_json(value)) == value


def test_the_page_loads_nothing_from_other_hosts(tmp_path):
    text = page(document([finished(tmp_path / "a")]))
    found = Elements(text)
    assert not {"link", "iframe", "object", "embed", "base"} & set(found.tags)
    links = [value for name, value in found.attributes if name in ("src", "href", "srcset", "action")]
    assert all(value.startswith("#") for value in links)
    addresses = set(re.findall(r"https?://[\w./-]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of SVG, never loaded
    assert "connect-src &#x27;none&#x27;" in text
    assert "connect-src &#x27;self&#x27;" in page(document([tmp_path / "a"]), live=2.0)
    assert "{{" not in text.replace("{{title}}", "")
    assert len(text) < 150_000


def test_the_summary_is_there_without_scripts(tmp_path):
    text = page(document([finished(tmp_path / "a")]))
    noscript = re.search("<noscript>(.*?)</noscript>", text, flags=re.DOTALL)
    assert noscript is not None
    assert "classifies 75.0 % of test images" in noscript.group(1)


def test_report_by_command(tmp_path, capsys):
    first, second = finished(tmp_path / "a"), finished(tmp_path / "b", 0.8, seed=1)
    out = tmp_path / "new" / "page.html"
    assert main(["report", str(first), str(second), "-o", str(out), "--fast"]) == 0
    assert f"wrote {out}" in capsys.readouterr().out
    shown = embedded(out.read_text(encoding="utf-8"))
    assert [run["name"] for run in shown["runs"]] == ["a", "b"]
    assert "--fast" in shown["runs"][0]["images"]["why_not"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere", "--fast"], "not a run"),
        (["{run}", "-o", "{run}", "--fast"], "is a folder"),
        (["{run}", "-o", "{run}/config.toml/x.html", "--fast"], "cannot write"),
    ],
)
def test_errors_are_one_line(tmp_path, capsys, words, said):
    run = finished(tmp_path / "run")
    assert main(["report", *(word.format(run=run) for word in words)]) == 1
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_missing_umap_is_reported_before_the_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["report", str(finished(tmp_path / "a")), "--map", "umap"]) == 2
    assert "fedssl[umap]" in capsys.readouterr().err


def test_a_folder_is_not_an_output_file(tmp_path):
    check(tmp_path / "a.html")
    with pytest.raises(RunError, match=r"report\.html"):
        check(tmp_path)


# --- pictures ---------------------------------------------------------------------------------------


def test_samples_are_sorted_resized_and_checked(tmp_path):
    folder = tmp_path / "samples"
    (folder / "client-1").mkdir(parents=True)
    for name in ("round-2", "round-10", "client-1/x"):
        Image.new("RGB", (8, 8), "red").save(folder / f"{name}.png")
    noise = np.random.default_rng(0).integers(0, 255, (400, 1500, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "round-11.png")
    (folder / "round-12.png").write_text("not a picture")
    found = collect(folder)
    assert [each["name"] for each in found] == ["client-1/x", "round-2", "round-10", "round-11", "round-12"]
    assert found[0]["uri"].startswith("data:image/png;base64,")
    assert found[3]["uri"].startswith("data:image/jpeg;base64,")
    assert len(found[3]["uri"]) < (folder / "round-11.png").stat().st_size
    assert (folder / "round-11.png").stat().st_size > LARGE
    assert (found[4]["uri"], bool(found[4]["why_not"])) == ("", True)
    assert collect(tmp_path / "none") == []


def test_the_python_of_the_docs_runs(tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    finished(Path("runs/a"))
    finished(Path("runs/b"), seed=1)
    exec(source, {})
    assert embedded((tmp_path / "compared.html").read_text(encoding="utf-8"))["title"] == "2 runs"
