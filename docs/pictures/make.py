"""Makes the pictures of README and documentation from a real run.

    python docs/pictures/make.py record runs/demo   # trains the demo in this folder and records the terminal
    python docs/pictures/make.py draw runs/demo     # demo.gif, report.png and neighbours.png

`record` writes demo.cast, in the format of asciinema, which `asciinema play` shows too. `draw` needs Chromium
and the font DejaVu Sans Mono.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

HERE = Path(__file__).resolve().parent
COLUMNS, ROWS = 100, 32
SECONDS, LONGEST_PAUSE = 20.0, 0.6  # of the recording, and between two lines of it
FONT = "/usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf"
INK, PAPER, PROMPT = (236, 236, 240), (21, 22, 26), (147, 173, 255)


def record(run: Path) -> None:
    """Train, and note when which line appeared."""
    words = ["run", "data.name=digits", "--report", "--out", str(run)]
    command = [sys.executable, "-u", "-m", "fedssl.cli", *words]
    began = time.monotonic()
    events: list[tuple[float, str]] = [(0.0, f"$ fedssl {' '.join(words)}\r\n")]
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            events.append((time.monotonic() - began, line.rstrip("\n") + "\r\n"))
    if process.returncode:
        raise SystemExit("the run failed")
    head = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "fedssl run"}
    lines = [json.dumps(head), *(json.dumps([round(at, 3), "o", text]) for at, text in compressed(events))]
    (HERE / "demo.cast").write_text("\n".join(lines) + "\n", encoding="utf-8")


def compressed(events: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """The same lines within SECONDS: pauses are cut, then all are scaled alike."""
    at, before, found = 0.0, 0.0, []
    for moment, text in events:
        at += min(moment - before, LONGEST_PAUSE)
        before = moment
        found.append((at, text))
    scale = min(1.0, (SECONDS - 3) / max(at, 1e-9))
    return [(moment * scale, text) for moment, text in found]


def draw_recording() -> None:
    """A GIF of the recording: a frame for each line, and the last one for three seconds."""
    events = [json.loads(line) for line in (HERE / "demo.cast").read_text(encoding="utf-8").splitlines()[1:]]
    font = ImageFont.truetype(FONT, 13)
    wide, high = round(font.getlength("m")), 17
    size = (COLUMNS * wide + 24, ROWS * high + 24)
    frames, times, shown = [], [], []
    for number, (at, _, text) in enumerate(events):
        shown.append(text.rstrip("\r\n"))
        picture = Image.new("RGB", size, PAPER)
        pen = ImageDraw.Draw(picture)
        for row, line in enumerate(shown[-ROWS:]):
            paint = PROMPT if line.startswith("$ ") else INK
            pen.text((12, 12 + row * high), line[:COLUMNS], font=font, fill=paint)
        frames.append(picture.quantize(palette=palette(), dither=Image.Dither.NONE))
        until = events[number + 1][0] if number + 1 < len(events) else at + 3.0
        times.append(max(20, round(1000 * (until - at))))
    frames[0].save(
        HERE / "demo.gif", save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=True
    )


def palette() -> Image.Image:
    """Few colors, the same in all frames: from the paper to each of the inks in four steps."""
    ramps = [
        [round(low + (high - low) * step / 4) for low, high in zip(PAPER, ink, strict=True)]
        for ink in (INK, PROMPT)
        for step in range(5)
    ]
    found = Image.new("P", (1, 1))
    found.putpalette([value for color in ramps for value in color])
    return found


def draw_report(run: Path) -> None:
    """What one sees first of the report, and its nearest neighbors."""
    sys.path.insert(0, str(HERE.parents[1]))
    from tests.report.chromium import Chromium, find

    program = find()
    if program is None:
        raise SystemExit("Chromium is needed: apt-get install chromium")
    browser = Chromium(program)
    try:
        browser.open((run / "report.html").resolve().as_uri(), width=1400, height=900)
        save(browser.call("Page.captureScreenshot")["data"], "report.png")
        strips = "[...document.querySelectorAll('#neighbours .strip')]"
        left, top, right, bottom = browser.value(
            f"((first, last) => [first.left, first.top, first.right, last.bottom])"
            f"(...[0, 2].map(number => {strips}[number].getBoundingClientRect()))"
        )
        clip = {"x": left - 8, "y": top, "width": right - left, "height": bottom - top - 2, "scale": 1}
        save(browser.call("Page.captureScreenshot", clip=clip)["data"], "neighbours.png")
    finally:
        browser.close()


def save(data: str, name: str) -> None:
    """A picture with few colors: small enough for a repository."""
    file = HERE / name
    file.write_bytes(base64.b64decode(data))
    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(256)
    small.save(file, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("record", "draw"))
    parser.add_argument("run", type=Path)
    options = parser.parse_args()
    if options.what == "record":
        record(options.run)
    else:
        draw_recording()
        draw_report(options.run)


if __name__ == "__main__":
    main()
