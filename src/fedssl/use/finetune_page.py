"""The report of a fine-tuned classifier: one self-contained HTML file."""

from __future__ import annotations

import base64
import io
from html import escape

import torch
from PIL import Image
from torch import Tensor

from fedssl.use.finetune import Tuned

MISTAKES = 12

STYLE = """
:root { color-scheme: light dark; font-family: system-ui, sans-serif; line-height: 1.5 }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #8884 }
th:first-child, td:first-child { text-align: left }
figure { display: inline-block; margin: .4rem; text-align: center; font-size: .85rem }
figure img { width: 96px; height: 96px; image-rendering: pixelated; display: block; margin: auto }
.big { font-size: 2.2rem; font-weight: 600 }
"""


def page(tuned: Tuned) -> str:
    """Return the page."""
    scores = tuned.scores
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{escape(tuned.folder.name)}: a classifier of {len(tuned.classes)} classes</title>"
        f"<style>{STYLE}</style><body><h1>{escape(tuned.folder.name)}</h1>"
        f"<p><span class=big>{100 * scores.accuracy:.1f} %</span> of {len(tuned.test)} held-out images are "
        f"classified correctly after training on {tuned.labelled} labeled images of "
        f"{len(tuned.classes)} classes. The same "
        f"classifier on the untrained encoder: {100 * tuned.untrained.accuracy:.1f} %.</p>"
        f"<h2>By class</h2>{_by_class(tuned)}<h2>Confusion matrix</h2>{_confusion(tuned)}"
        f"<h2>Most confident mistakes</h2>{_mistakes(tuned)}</body></html>\n"
    )


def _by_class(tuned: Tuned) -> str:
    rows = "".join(
        f"<tr><td>{escape(row['class'])}<td>{row['count']}<td>{100 * row['precision']:.1f}"
        f"<td>{100 * row['recall']:.1f}<td>{100 * row['f1']:.1f}"
        for row in tuned.scores.per_class
    )
    return f"<table><tr><th>class<th>images<th>precision, %<th>recall, %<th>F1, %{rows}</table>"


def _confusion(tuned: Tuned) -> str:
    head = "".join(f"<th>{escape(name)}" for name in tuned.classes)
    rows = ""
    for name, counts in zip(tuned.classes, tuned.confusion.tolist(), strict=True):
        total = max(1, sum(counts))
        cells = "".join(
            f'<td style="background: rgb(70 130 180 / {count / total:.2f})">{count}' for count in counts
        )
        rows += f"<tr><td>{escape(name)}{cells}"
    return f"<table><tr><th>is \\ taken for{head}{rows}</table>"


def _mistakes(tuned: Tuned) -> str:
    assert tuned.test.y is not None
    sure, taken = tuned.probabilities.max(dim=1)
    wrong = (taken != tuned.test.y).nonzero().flatten()
    if not len(wrong):
        return "<p>None.</p>"
    worst = wrong[sure[wrong].argsort(descending=True)][:MISTAKES]
    return "".join(
        f'<figure><img alt="a test image" src="{_thumbnail(tuned.test.x[i])}"><figcaption>'
        f"{escape(tuned.classes[int(tuned.test.y[i])])}<br>predicted: {escape(tuned.classes[int(taken[i])])} "
        f"({100 * float(sure[i]):.0f} %)</figcaption></figure>"
        for i in worst.tolist()
    )


def _thumbnail(image: Tensor) -> str:
    pixels = image if image.shape[2] == 3 else image.expand(-1, -1, 3)
    file = io.BytesIO()
    Image.fromarray(pixels.to(torch.uint8).numpy()).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
