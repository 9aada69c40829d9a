"""A headless Chromium, controlled by its DevTools protocol through a pair of pipes."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.suite.waiting import cpu_seconds, wait_for_exit, wait_until


def find() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


class Chromium:
    """One browser with one page; errors on the page are collected in `errors`."""

    def __init__(self, program: str) -> None:
        self.folder = tempfile.mkdtemp(prefix="chromium-")
        (to_read, self._to), (self._from, to_write) = os.pipe(), os.pipe()

        def pipes() -> None:  # the browser reads commands from 3 and writes answers to 4
            reading, writing = os.dup(to_read), os.dup(to_write)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        self.process = subprocess.Popen(
            [
                program,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--remote-debugging-pipe",
                f"--user-data-dir={self.folder}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=pipes,
            close_fds=False,
        )
        os.close(to_read)
        os.close(to_write)
        self.errors: list[str] = []
        self._ids, self._rest, self._session = itertools.count(1), b"", None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    # --- the protocol ------------------------------------------------------------------------

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            wait_until(self._answers, "the browser should answer", progress=self._cpu_seconds, poll=0.0)
            read = os.read(self._from, 1 << 16)
            if not read:
                raise RuntimeError("the browser has ended")
            self._rest += read
        text, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        self._listen(message.get("method", ""), message.get("params", {}))
        return message

    def _answers(self) -> bool:
        return bool(select.select([self._from], [], [], 0.2)[0])

    def _cpu_seconds(self) -> float:
        return cpu_seconds(self.process)

    def _listen(self, event: str, about: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            details = about["exceptionDetails"]
            self.errors.append(str(details.get("exception", {}).get("description", details["text"])))
        elif event == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning"):
            self.errors.append(str([each.get("value") for each in about["args"]]))
        elif event == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.errors.append(about["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])

    # --- what a person does ------------------------------------------------------------------

    def open(self, url: str, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        self.errors, self.requests = [], []
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        self.until(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")
        # Charts are drawn when their size is known: after the next frame.
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, expression: str) -> None:
        wait_until(lambda: bool(self.value(expression)), expression)

    def point(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        """Move the mouse over an element."""
        box = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center', behavior: 'instant'}); const b = e.getBoundingClientRect();"
            " return [b.left, b.top, b.width, b.height]; })()"
        )
        x, y = box[0] + across * box[2], box[1] + down * box[3]
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, *keys: str) -> None:
        for key in keys:
            for kind in ("keyDown", "keyUp"):
                self.call(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key=key,
                    code=key,
                    windowsVirtualKeyCode=CODES[key],
                    **({"text": " "} if key == " " and kind == "keyDown" else {}),
                )

    def picture(self, file: Path) -> None:
        """The whole page as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        self._session = None
        try:
            self.call("Browser.close")
            wait_for_exit(self.process, "the browser should end")
        except (RuntimeError, OSError, AssertionError):
            self.process.kill()
            self.process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self.folder, ignore_errors=True)


CODES = {
    "Tab": 9,
    "Escape": 27,
    " ": 32,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}
