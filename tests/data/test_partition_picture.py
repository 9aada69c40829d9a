"""Pictures of a partition: the numbers shown are the numbers of the partition."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fedssl.data import partition
from fedssl.data.partition_picture import PALETTE, save_picture, text_bars

LABELS = np.repeat(np.arange(3), [40, 30, 10])
NAMES = ("ant", "bee", "cat")


def blocks(line: str) -> str:
    return "".join(letter for letter in line if letter in "█▓")


def test_a_line_shows_id_size_bar_and_main_classes():
    parts = [np.arange(0, 40), np.arange(40, 80)]
    lines = [line.plain for line in text_bars(parts, LABELS, NAMES, width=8)]
    assert lines == ["0  40  ████████  ant 100%", "1  40  ██████▓▓  bee 75%, cat 25%"]


def test_bars_are_as_long_as_clients_are_large():
    parts = [np.arange(64), np.arange(64, 80), np.array([0]), np.array([], dtype=np.int64)]
    lines = [line.plain for line in text_bars(parts, LABELS, NAMES, width=32)]
    assert [len(blocks(line)) for line in lines] == [32, 8, 1, 0]
    # Columns line up, whatever the length of the bar.
    assert lines[0].index("ant") == lines[1].index("cat") == lines[2].index("ant")


def test_colors_are_those_of_the_classes():
    (line,) = text_bars([np.array([0, 40, 70])], LABELS, NAMES, width=3)
    assert [span.style for span in line.spans[:3]] == list(PALETTE[:3])


def test_largest_remainders_fill_the_bar():
    """Shares 5/9, 3/9, 1/9 of four cells are 2.2, 1.3 and 0.4: the last has the largest remainder."""
    own = np.concatenate([np.arange(0, 5), np.arange(40, 43), np.arange(70, 71)])
    (line,) = text_bars([own], LABELS, NAMES, width=4)
    assert blocks(line.plain) == "██▓█"


def test_small_shares_and_many_classes_are_summarized():
    labels = np.repeat(np.arange(5), [1000, 300, 200, 100, 1])
    (line,) = text_bars([np.arange(1601)], labels, [f"c{i}" for i in range(5)])
    assert line.plain.endswith("c0 62%, c1 19%, c2 12%, +2 more")
    (line,) = text_bars([np.array([*range(1000), 1600])], labels, [f"c{i}" for i in range(5)])
    assert line.plain.endswith("c0 100%, c4 <1%")


def test_many_clients_are_cut_short():
    labels = np.arange(400) % 4
    lines = text_bars(partition(labels, "iid", clients=100), labels, ("a", "b", "c", "d"))
    assert len(lines) == 13
    assert lines[-1].plain == "… and 88 more"
    assert len(text_bars(partition(labels, "iid", clients=12), labels, ("a", "b", "c", "d"))) == 12


def test_unlabeled_bars_show_sizes_only():
    lines = [line.plain for line in text_bars([np.arange(10), np.arange(5)], None, (), width=10)]
    assert lines == ["0  10  ██████████", "1   5  █████"]


@pytest.mark.parametrize("classes", [(), ("only one name",)])
def test_classes_without_names_are_called_by_their_label(classes):
    (line,) = text_bars([np.arange(3)], np.array([-1, 7, 7]), classes, width=3)
    assert line.plain.endswith("7 67%, -1 33%")


def test_names_are_escaped():
    console = Console(width=80, record=True, file=io.StringIO())
    for line in text_bars([np.array([0])], np.array([0]), ("[red]x[/red]",)):
        console.print(line)
    assert "[red]x[/red]" in console.export_text()


@pytest.mark.parametrize("clients", [1, 5, 100])
def test_picture_has_bars_of_the_right_area(tmp_path, clients):
    """Pixels of a class's color are as many as its images are, compared with another class."""
    labels = np.repeat(np.arange(2), [900, 300])
    path = tmp_path / "new" / "partition.png"
    save_picture(path, partition(labels, "iid", clients=clients), labels, ("ant", "bee"))
    pixels = np.asarray(Image.open(path).convert("RGB"))[:, :-180]  # without the legend
    ant, bee = (
        np.all(pixels == [int(c[i : i + 2], 16) for i in (1, 3, 5)], axis=2).sum() for c in PALETTE[:2]
    )
    assert ant / bee == pytest.approx(3, rel=0.05)


def test_picture_of_many_clients_and_classes_and_of_unlabeled_images(tmp_path):
    labels = np.arange(6000) % 30
    parts = partition(labels, "dirichlet", clients=300, alpha=1.0)
    names = [f"class {i}" for i in range(30)]
    save_picture(tmp_path / "many.png", parts, labels, names)
    save_picture(tmp_path / "unlabeled.png", parts, None, ())
    many, unlabeled = (Image.open(tmp_path / name).convert("RGB") for name in ("many.png", "unlabeled.png"))
    assert many.size == unlabeled.size == (1800, 570)
    assert len(many.getcolors(10**6)) > 30
    indigo = tuple(int(PALETTE[0][i : i + 2], 16) for i in (1, 3, 5))
    assert max(unlabeled.getcolors(10**6), key=lambda c: c[0] if c[1] != (255, 255, 255) else 0)[1] == indigo


def test_same_partition_same_picture(tmp_path):
    for name in ("a.png", "b.png"):
        save_picture(tmp_path / name, partition(LABELS, "iid", clients=5), LABELS, NAMES)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
