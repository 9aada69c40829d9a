"""The documentation as a site: complete, without dead links, and without anything from another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedssl.cli import COMMANDS
from fedssl.papers.recipe import titles
from tests.docs.pages import FILES, ROOT
from tests.report.chromium import Chromium, find

LOADING = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "video": "src"}
PAPERS = {
    "decssl": "dec-ssl",
    "fedema": "fedema",
    "fedstyle": "fedstyle",
    "ldawa": "l-dawa",
    "padpaf": "padpaf",
}


class Loads(HTMLParser):
    """What a browser fetches for a page, and what would make the theme's own script fetch more."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.tempting: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        if tag in LOADING and given.get("rel") != "canonical":
            self.addresses.append(given.get(LOADING[tag], ""))
        # Diagrams are drawn by a script from elsewhere; the badge of a repository asks its host for numbers.
        if "mermaid" in given.get("class", "") or given.get("data-md-component") == "source":
            self.tempting.append(str(given))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return folder, built.stderr


def test_every_page_is_in_the_navigation(site: tuple[Path, str]) -> None:
    folder, said = site
    assert "not included in the" not in said, f"add to nav in mkdocs.yml:\n{said}"
    pages = [name for name in FILES if not name.endswith("README.md")]
    assert [name for name in pages if not (folder / name).with_suffix(".html").exists()] == []


def test_nothing_is_loaded_from_another_host(site: tuple[Path, str]) -> None:
    folder, _ = site
    pages = list(folder.rglob("*.html"))
    assert len(pages) >= 20
    for page in pages:
        seen = Loads()
        seen.feed(page.read_text(encoding="utf-8"))
        assert len(seen.addresses) > 3, page.name  # at least the theme's own files
        elsewhere = [at for at in seen.addresses if re.match(r"(https?:)?//", at)]
        assert (elsewhere, seen.tempting) == ([], []), page.name
    for sheet in folder.rglob("*.css"):
        style = sheet.read_text(encoding="utf-8")
        assert not re.search(r"(url\(|@import )[\"']?(https?:)?//", style), sheet.name


def test_external_links_point_to_existing_files() -> None:
    for name in ("README.md", "examples/README.md"):
        file = FILES[name]
        for link in re.findall(r"\]\((?!https?://)([^)#]+)", file.read_text(encoding="utf-8")):
            if not link.startswith("../../actions/"):  # on the pages of the repository's host
                assert (file.parent / link).exists(), f"{name}: {link}"


def test_every_command_is_documented() -> None:
    pages = "".join(file.read_text(encoding="utf-8") for file in FILES.values())
    assert [name for name in COMMANDS if f"fedssl {name}" not in pages] == []


@pytest.mark.parametrize("prefix", PAPERS)
def test_the_page_of_a_paper_names_all_of_its_recipes(prefix: str) -> None:
    page = FILES[f"papers/{PAPERS[prefix]}.md"].read_text(encoding="utf-8")
    rows = "\n".join(re.findall(rf"^\| `{prefix}-.*$", page, flags=re.MULTILINE))
    named = set(re.findall(rf"`({prefix}-[\w-]+)`", rows))
    assert named == {name for name in titles() if name.startswith(f"{prefix}-")}


@pytest.mark.skipif(find() is None, reason="chromium is not installed")
def test_the_search_works_in_pages_opened_from_a_folder(site: tuple[Path, str]) -> None:
    folder, _ = site
    program = find()
    assert program is not None
    browser = Chromium(program)
    box = "document.querySelector('[data-md-component=search-query]')"
    try:
        for page in ("index.html", "results/speed.html"):
            browser.open((folder / page).as_uri())
            browser.value("document.querySelector('label[for=__search]').click()")
            browser.value(
                f"{box}.value = 'krum'; {box}.focus(); {box}.dispatchEvent(new KeyboardEvent('keyup'))"
            )
            browser.until("document.querySelectorAll('.md-search-result__item').length > 0")
            found = "[...document.querySelectorAll('.md-search-result__item a')].map(e => e.href)"
            assert any("/aggregation.html" in link for link in browser.value(found))
            assert browser.errors == []
            assert all(url.startswith(("file:", "data:")) for url in browser.requests)
    finally:
        browser.close()


@pytest.mark.skipif(find() is None, reason="chromium is not installed")
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1400, 420])
def test_the_home_page_shows_pictures_and_three_paths(
    site: tuple[Path, str], width: int, dark: bool, tmp_path: Path
) -> None:
    folder, _ = site
    program = find()
    assert program is not None
    browser = Chromium(program)
    try:
        browser.open((folder / "index.html").as_uri(), width=width, dark=dark)
        cards = browser.value(
            "[...document.querySelectorAll('.grid.cards > ul > li strong')].map(e => e.textContent)"
        )
        assert cards == ["Study", "Deploy", "Extend"]
        assert browser.value("[...document.querySelectorAll('article img')].every(e => e.naturalWidth > 0)")
        assert browser.value("document.documentElement.scrollWidth") <= width
        tops = browser.value("[...document.querySelectorAll('.grid.cards > ul > li')].map(e => e.offsetTop)")
        assert len(set(tops)) < 3 if width == 1400 else len(set(tops)) == 3  # in one row, or stacked
        browser.picture(tmp_path / "home.png")
        assert (tmp_path / "home.png").stat().st_size > 20_000
    finally:
        browser.close()
