"""The page in a real browser: it draws, reacts to mouse and keyboard, and logs no errors."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from fedssl.report.html import watch
from fedssl.report.html.data import document
from fedssl.report.html.page import page
from fedssl.report.html.pictures import encoded
from tests.report.chromium import Chromium, find
from tests.report.handmade import METRICS, entry, finished, partition, result, run_dir

pytestmark = pytest.mark.skipif(find() is None, reason="chromium is not installed")

EVIL = "<img src=x onerror=\"document.title='hacked'\">"


@pytest.fixture(scope="module")
def browser():
    program = find()
    assert program is not None
    browser = Chromium(program)
    yield browser
    browser.close()


def drawn(path):
    """A map of four images and one strip, as `images.look` gives them."""
    uri = encoded(Image.new("L", (8, 8), 128), "PNG")
    kinds = {
        "class": {"of": [0, 1, 0, 1], "names": ["cat", EVIL]},
        "client": {"of": [0, 0, 1, 1], "names": ["client 0", "client 1"]},
        "style": {"of": [0, 0, 0, 1], "names": ["photo", "sketch"]},
    }
    sprite = {"uri": encoded(Image.new("RGB", (16, 16)), "JPEG"), "side": 8, "columns": 2}
    near = [{"class": kind, "client": 1, "cosine": 0.9, "uri": uri} for kind in ("cat", EVIL)]
    return {
        "whose": "global",
        "map": {
            "how": "t-SNE",
            "x": [0.0, 1.0, 0.0, 1.0],
            "y": [0.0, 0.0, 1.0, 1.0],
            "kinds": kinds,
            "of": 40,
        }
        | {"sprite": sprite},
        "strips": [{"query": {"class": "cat", "uri": uri}, "nearest": near}],
    }


def write(file, paths, images=drawn):
    file.write_text(page(document(paths, images)), encoding="utf-8")
    return file.as_uri()


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """A finished run with a class name that is markup."""
    folder = tmp_path_factory.mktemp("single")
    classes = ("cat", EVIL)
    run = run_dir(
        folder / "run",
        metrics=METRICS,
        result=result(entry("linear", 0.75, classes=classes), entry("knn", 0.6, classes=classes)),
        partition=partition(classes),
    )
    return write(folder / "page.html", [run])


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    runs = [
        finished(folder / f"{method}{seed}", accuracy + 0.01 * seed, seed=seed, method=method)
        for method, accuracy in (("fedema", 0.8), ("fedavg", 0.7))
        for seed in (0, 1)
    ]
    return write(folder / "page.html", runs)


def texts(browser, selector):
    found = browser.value(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)")
    assert isinstance(found, list)
    return found


def tip(browser):
    return browser.value("(t => t.hidden ? null : t.innerText)(document.getElementById('tip'))")


def click(browser, selector):
    browser.value(f"document.querySelector({json.dumps(selector)}).click()")


def settle(browser):
    """Wait until charts are drawn, which is after the next frame, when their size is known."""
    browser.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def chart(title):
    """A selector of the chart with this title, found by its accessible name."""
    return f'svg[aria-label^="{title} over rounds"]'


# --- one run ----------------------------------------------------------------------------------------


def test_every_chart_is_drawn_and_nothing_is_wrong(browser, single):
    browser.open(single)
    assert texts(browser, "h2") == [
        "Result",
        "Feature map",
        "Nearest neighbors",
        "Probes",
        "The run",
        "Curves",
        "Clients",
        "Failures",
        "Configuration",
    ]
    assert texts(browser, "nav a") == texts(browser, "h2")
    charts = browser.value(
        "[...document.querySelectorAll('svg[data-chart]')].map(e => [e.dataset.chart,"
        " e.querySelectorAll('path, rect, circle').length, e.getBoundingClientRect().height])"
    )
    curves = [each for each in charts if each[0] == "line"]
    assert len(curves) == len(texts(browser, "#curves figcaption")) == 9
    assert {kind for kind, _, _ in charts} == {"line", "partition", "confusion", "map"}
    assert all(marks > 0 and height > 100 for _, marks, height in charts)
    assert browser.value("document.querySelectorAll('svg[data-chart=map] circle').length") == 4
    unnamed = (
        "[...document.querySelectorAll('svg, img, select, input, table')].filter(e => !(e.ariaLabel || e.alt"
    )
    unnamed += " || e.labels?.length || e.caption))"
    assert browser.value(f"{unnamed}.map(e => e.outerHTML.slice(0, 80))") == []
    assert browser.errors == []
    assert browser.requests[0] == single
    assert all(url.startswith("data:") for url in browser.requests[1:])


def test_markup_in_names_is_escaped(browser, single):
    browser.open(single)
    assert EVIL in texts(browser, "#results td")
    assert browser.value("document.title") == "run · fedssl"
    assert browser.value("[...document.images].every(e => e.src.startsWith('data:'))")


def test_hover_shows_the_numbers_of_the_file(browser, single):
    browser.open(single)
    browser.point(chart("loss"), across=0.97)
    assert tip(browser) == "round 3\n2.5"
    browser.point(chart("kNN accuracy"), across=0.97)
    assert tip(browser) == "round 3\n75.0 %"
    browser.point("svg[data-chart=partition]", across=0.8)
    assert tip(browser) == f"client 1: 10 images\ncat: 5 images\n{EVIL}: 5 images"
    browser.point("svg[data-chart=map]", across=0.5, down=0.5)
    assert tip(browser) is None  # between the points
    browser.point("svg[data-chart=map] circle")
    assert "client 0" in tip(browser)
    browser.point("h1")
    assert tip(browser) is None
    assert browser.errors == []


def test_arrow_keys_show_values(browser, single):
    browser.open(single)
    browser.value(f"document.querySelector({json.dumps(chart('loss'))}).focus()")
    spoken = "document.getElementById('spoken').textContent"
    browser.press("ArrowRight")
    assert browser.value(spoken) == "round 1: 4.5"
    browser.press("ArrowRight")
    assert browser.value(spoken) == "round 2: 3"
    browser.press("End")
    assert browser.value(spoken) == "round 3: 2.5"
    assert "2.5" in tip(browser)
    browser.press("Escape")
    assert tip(browser) is None
    browser.value("document.querySelector('svg[data-chart=confusion]').focus()")
    browser.press("ArrowRight", "ArrowRight")
    assert browser.value(spoken) == f"cat, predicted as {EVIL}: 3 of 10 images (30.0 %)"
    browser.press("ArrowDown")
    assert browser.value(spoken) == f"{EVIL}, correct: 8 of 10 images (80.0 %)"
    browser.value("document.querySelector('svg[data-chart=map]').focus()")
    browser.press("End")
    assert "client 1" in browser.value(spoken)
    browser.value("document.querySelector('svg[data-chart=partition]').focus()")
    browser.press("ArrowRight")
    assert browser.value(spoken) == "client 0: cat: 30 images"


def test_the_page_can_be_used_by_keyboard(browser, single):
    browser.open(single)
    browser.press("Tab")
    assert browser.value("document.activeElement.className") == "skip"
    browser.press("Tab")
    assert browser.value("document.activeElement.getAttribute('href')") == "#summary"


def test_toggles(browser, single):
    browser.open(single)
    lines = f"document.querySelectorAll({json.dumps(chart('loss') + ' .line')}).length"
    assert browser.value(lines) == 1
    click(browser, "#curves input[type=checkbox]")
    settle(browser)
    assert browser.value(lines) == 3
    assert browser.value("document.querySelector('#curves input[type=checkbox]').checked")
    points = "[...document.querySelectorAll('svg[data-chart=map] circle')]"
    colors = f"Object.fromEntries({points}.map(e => [[e.cx, e.cy].map(c => c.baseVal.value), e.style.fill]))"
    by_class = browser.value(colors)
    browser.value("document.querySelector('#map input[value=client]').focus()")
    click(browser, "#map input[value=client]")
    settle(browser)
    assert browser.value(colors) != by_class
    assert browser.value("document.activeElement.value") == "client"  # the focus stays
    browser.press("ArrowRight")
    settle(browser)
    assert browser.value("document.querySelector('#map input:checked').value") == "style"
    click(browser, "#map .keys li:nth-child(2) button")
    settle(browser)
    faint = f"{points}.filter(e => e.getAttribute('fill-opacity') < 0.5)"
    assert browser.value(f"{faint}.length") == 3  # only the sketch is left
    tall = "document.querySelector('svg[data-chart=partition] path').getBBox().height"
    before = browser.value(tall)
    click(browser, "#clients input[value=shares]")
    settle(browser)
    assert texts(browser, "svg[data-chart=partition] text")[0] == "0.0 %"
    assert browser.value(tall) == pytest.approx(
        before, abs=1
    )  # the largest client fills the chart either way
    assert browser.errors == []


def test_tables_sort(browser, single):
    browser.open(single)
    first = "[...document.querySelectorAll('#clients tbody tr')].map(e => e.cells[1].textContent)"
    assert browser.value(first) == ["30", "10"]
    head = "#clients thead th:nth-child(2)"
    browser.value(f"document.querySelector('{head} button').focus()")
    browser.press(" ")
    assert browser.value(f"document.querySelector('{head}').ariaSort") == "descending"
    browser.press(" ")
    assert browser.value(f"document.querySelector('{head}').ariaSort") == "ascending"
    assert browser.value(first) == ["10", "30"]
    assert browser.value("document.activeElement.textContent") == "images"


@pytest.mark.parametrize("dark", [False, True])
def test_phone_and_dark_mode(browser, several, dark):
    browser.open(several, width=390, height=844, dark=dark)
    assert browser.value("document.documentElement.scrollWidth") <= 390
    background = browser.value("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(21, 22, 26)" if dark else "rgb(255, 255, 255)")
    widths = browser.value(
        "[...document.querySelectorAll('svg[data-chart]')].map(e => e.getBoundingClientRect().right)"
    )
    assert widths
    assert max(widths) <= 390
    assert browser.errors == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1400, 420])
@pytest.mark.parametrize("page_of", ["single", "several"])
def test_the_layout_at_a_glance(browser, page_of, width, dark, request, tmp_path):
    browser.open(request.getfixturevalue(page_of), width=width, height=900, dark=dark)
    assert browser.value("document.documentElement.scrollWidth") <= width
    box = "(selector => { const b = document.querySelector(selector).getBoundingClientRect();"
    box += " return {left: b.left, right: b.right, top: b.top, bottom: b.bottom}; })"
    summary, field, strips, matrix = (
        browser.value(f"{box}({json.dumps(selector)})")
        for selector in ("#summary", "svg[data-chart=map]", ".strip", "svg[data-chart=confusion]")
    )
    if width == 1400:
        cut = (
            "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
        )
        assert browser.value(cut) == 0
        assert field["left"] >= summary["right"]  # side by side
        assert field["top"] < 900
        assert strips["bottom"] < 900  # above the fold
        beside = browser.value(f"{box}('#results .beside > :last-child')")
        assert beside["left"] >= matrix["right"]
    else:
        assert field["top"] >= summary["bottom"]  # below each other
    picture = tmp_path / f"{page_of}-{width}-{'dark' if dark else 'light'}.png"
    browser.picture(picture)
    with Image.open(picture) as shot:
        assert width - 20 <= shot.width <= width  # a scroll bar takes its part
        assert shot.getpixel((2, shot.height - 2)) == ((21, 22, 26) if dark else (255, 255, 255))
    assert browser.errors == []


def test_the_headline_is_compared_with_untrained_and_centralized(browser, tmp_path):
    run = finished(tmp_path / "run", 0.75)
    central = finished(tmp_path / "central", 0.9, method="centralized")
    file = tmp_path / "page.html"
    file.write_text(page(document([run], None, centralized=central)), encoding="utf-8")
    browser.open(file.as_uri())
    assert texts(browser, ".headline b") == ["75.0 %"]
    assert texts(browser, ".gain") == ["+25.0 points over the untrained encoder"]
    assert texts(browser, "#summary .bars .number") == ["75.0 %", "90.0 %", "50.0 %"]
    widths = browser.value("[...document.querySelectorAll('.track span')].map(e => e.style.width)")
    assert widths == ["75%", "90%", "50%"]


def test_sites_have_their_names(browser, tmp_path):
    keys = {"engine.name": "flower", "engine.sites": ["berlin", "paris"], "data.name": "none"}
    keys |= {"data.limit": 0, "data.size": 8, "data.channels": 1}
    run = run_dir(tmp_path / "run", metrics=METRICS, result=result(why="no labels"), **keys)
    browser.open(write(tmp_path / "page.html", [run], None))
    told = browser.value("document.body.innerText")
    assert "berlin" in texts(browser, "#clients td")
    assert texts(browser, "#failures tbody td")[2] == "paris"
    assert {"berlin", "paris"} <= set(texts(browser, "svg[data-chart=partition] text"))
    assert "images at 2 sites" in told
    assert "client 0" not in told


def test_probes_of_sites_are_listed_with_their_spread(browser, tmp_path):
    keys = {"engine.name": "flower", "engine.sites": ["berlin", "paris"], "data.name": "none"}
    keys |= {"data.limit": 0, "data.size": 8, "data.channels": 1}
    rows = [
        {"site": "berlin", "images": 20, "accuracy": 0.8, "untrained": 0.5},
        {"site": "paris", "images": 30, "accuracy": 0.7, "untrained": 0.5},
    ]
    left_out = [{"site": "rome", "reason": "the images have no labels"}]
    probe = entry("linear at sites", 0.75, classes=()) | {
        "spread": 0.0707,
        "sites": rows,
        "left_out": left_out,
    }
    run = run_dir(tmp_path / "run", metrics=METRICS, result=result(probe), **keys)
    browser.open(write(tmp_path / "page.html", [run], None))
    assert texts(browser, ".headline b") == ["75.0 %"]
    assert "a linear probe of each site (mean ± 7.1 over 2 sites)" in texts(browser, ".headline > span")[0]
    assert "75.0 % ± 7.1" in texts(browser, "#results td")
    assert texts(browser, "#results tbody tr td")[-8:] == [
        "berlin",
        "20",
        "80.0 %",
        "50.0 %",
        "paris",
        "30",
        "70.0 %",
        "50.0 %",
    ]
    assert "Without: rome (the images have no labels)." in texts(browser, "#results p")
    assert browser.errors == []


# --- several runs -----------------------------------------------------------------------------------


def test_a_comparison_starts_with_a_ranking(browser, several):
    browser.open(several)
    names = texts(browser, "#summary .bars .what")
    assert names == ["fedema", "fedavg", "untrained encoder"]
    assert texts(browser, "#summary .bars .number")[0] == "80.5 % ± 0.7"
    assert "fedema (seed 0)" in texts(browser, "#run option")


def test_a_comparison(browser, several):
    browser.open(several)
    assert "80.5 ± 0.7 %" in texts(browser, "#comparison td")
    assert texts(browser, "#comparison td.best")[0] == "80.5 ± 0.7 %"
    lines = f"document.querySelectorAll({json.dumps(chart('loss') + ' .line')}).length"
    assert browser.value(lines) == 2
    click(browser, "#curves input[value=runs]")
    settle(browser)
    assert browser.value(lines) == 4
    click(browser, "#curves .keys button")
    settle(browser)
    assert browser.value(lines) == 2
    assert browser.value("document.querySelector('#curves .keys button').ariaPressed") == "false"
    assert "-10.0 ± 0.0" in texts(browser, "#comparison td")  # fedavg less fedema
    select = "s => { s.selectedIndex = 1; s.dispatchEvent(new Event('change')); }"
    browser.value(f"({select})(document.querySelector('#comparison select'))")
    assert "+10.0 ± 0.0" in texts(browser, "#comparison td")
    assert texts(browser, "#results td")[2] == "80.0 %"
    assert (
        texts(browser, "#map h2 a") == texts(browser, "#results h2 a") == ["fedema (seed 0)"]
    )  # whose it is
    browser.value(
        "(s => { s.selectedIndex = 3; s.dispatchEvent(new Event('change')); })"
        "(document.querySelector('#run select'))"
    )
    settle(browser)
    assert texts(browser, "#results td")[2] == "71.0 %"
    assert texts(browser, "#results h2 a") == ["fedavg (seed 1)"]
    assert browser.errors == []


# --- other runs -------------------------------------------------------------------------------------


def test_a_run_before_its_first_round(browser, tmp_path):
    run = run_dir(tmp_path / "run")
    browser.open(write(tmp_path / "page.html", [run], None))
    assert "unfinished" in browser.value("document.getElementById('header').innerText")
    assert "No round has ended yet." in browser.value("document.getElementById('failures').innerText")
    assert browser.errors == []


def test_a_live_page_follows_the_run(browser, tmp_path):
    path = run_dir(tmp_path / "run", rounds=3)
    server = watch.serve(path, 0)
    try:
        browser.open(server.url)
        header = "document.getElementById('header').innerText"
        assert "starting" in browser.value(header)
        browser.value("window.same = true")
        (path / "partition.json").write_text(json.dumps(partition()))
        (path / "metrics.jsonl").write_text(json.dumps(METRICS[0]) + "\n")
        browser.until(f"{header}.includes('round 1 of 3')")
        browser.until(f"document.querySelector({json.dumps(chart('loss'))}) !== null")
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in METRICS))
        browser.until(f"{header}.includes('probing')")
        (path / "result.json").write_text(json.dumps(result(entry("linear", 0.75))))
        browser.until(f"{header}.includes('finished')")
        assert "75.0 %" in browser.value("document.getElementById('results').innerText")
        assert browser.value("window.same")  # it was never loaded again
        assert browser.errors == []
    finally:
        server.close()
    browser.until(f"{header}.includes('no answer')")
