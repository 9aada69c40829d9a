"""A run in a notebook: results and curves. Without scripts, which many viewers remove."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from fedssl.report.html import words
from fedssl.report.html.curves import Curve, curves
from fedssl.report.html.files import RunFiles, read

SHOWN = ("loss", "probe.knn", "divergence", "probe.feature_std")
WIDTH, HEIGHT, MARGIN = 240, 90, 6


def notebook_html(path: str | Path) -> str:
    """Return HTML for a notebook cell."""
    run = read(path)
    summary = "".join(f"<p style='margin:.3em 0'>{escape(sentence)}</p>" for sentence in words.summary(run))
    drawn = {curve.key: curve for curve in curves(run.metrics)}
    pictures = "".join(_picture(drawn[key]) for key in SHOWN if key in drawn)
    return (
        f"<div style='max-width:72em'><h4 style='margin:.3em 0'>{escape(str(run.path))}</h4>"
        f"{summary}{_table(run)}"
        f"<div style='display:flex;flex-wrap:wrap;gap:1em'>{pictures}</div></div>"
    )


def _table(run: RunFiles) -> str:
    if not run.probes:
        return ""
    rows = "".join(
        f"<tr><td>{escape(probe['protocol'])}</td><td>{escape(probe['model'])}</td>"
        f"<td>{escape(probe['images'])}</td><td><b>{100 * probe['accuracy']:.1f} %</b></td>"
        f"<td>{100 * probe['untrained']:.1f} %</td><td>{100 * probe['gain']:+.1f}</td></tr>"
        for probe in run.probes
    )
    names = ("probe", "encoder", "images", "accuracy", "untrained", "gain")
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _picture(curve: Curve) -> str:
    """Return a curve over rounds as SVG, with its first and last value."""
    document = curve.document()
    points = [
        (number, value)
        for number, value in zip(document["rounds"], document["values"], strict=True)
        if value is not None
    ]
    if len(points) < 2:
        return ""
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in _scaled(points))
    label = escape(str(document["label"]))
    first, last = points[0], points[-1]
    return (
        f"<figure style='margin:0'><figcaption style='font-size:.85em'>{label}: {first[1]:.3g} in round "
        f"{first[0]}, {last[1]:.3g} in round {last[0]}</figcaption>"
        f"<svg role='img' aria-label='{label}' width='{WIDTH}' height='{HEIGHT}' "
        f"viewBox='0 0 {WIDTH} {HEIGHT}'><polyline fill='none' stroke='currentColor' stroke-width='1.5' "
        f"points='{line}'/></svg></figure>"
    )


def _scaled(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    wide, high = (max(xs) - min(xs)) or 1, (max(ys) - min(ys)) or 1.0
    return [
        (
            MARGIN + (WIDTH - 2 * MARGIN) * (x - min(xs)) / wide,
            HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (y - min(ys)) / high,
        )
        for x, y in points
    ]
