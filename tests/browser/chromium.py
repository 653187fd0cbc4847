"""A headless Chromium driven by its DevTools protocol over a pair of pipes: no driver, no socket, no package.

Messages are JSON, each ended by a zero byte (`--remote-debugging-pipe`: the browser reads descriptor 3 and writes 4).
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SECONDS = 30.0


def find() -> str | None:
    """The browser's program: of PHRASELOOM_CHROMIUM or the path; None where there is none."""
    return os.environ.get("PHRASELOOM_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class PageError(Exception):
    """What a page threw, or a command that the browser refused."""


class Tab:
    """One page. `errors` collects exceptions and messages of its console; `requests` every address that it asks for."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._buffer = b""
        self._next = 0
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its result; events that come before it are noted."""
        self._next += 1
        message = {"id": self._next, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        number, deadline = self._next, time.monotonic() + SECONDS
        while True:
            answer = self._receive(deadline)
            if answer.get("id") != number:
                self._note(answer)
            elif "error" in answer:
                raise PageError(f"{method}: {answer['error']['message']}")
            else:
                return answer["result"]

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                raise PageError(f"the browser has not answered for {SECONDS:.0f} s")
            data = os.read(self._read, 2**20)
            if not data:
                raise PageError("the browser has ended")
            self._buffer += data
        text, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(text)

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def downloads(self, folder: Path) -> None:
        """Where files go that a page saves."""
        session, self._session = self._session, None
        self.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        self._session = session

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression (of its promise, where it is one). Raises PageError for what it throws."""
        answer = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise PageError(answer["exceptionDetails"]["exception"].get("description", "exception"))
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 15.0) -> Any:
        """Until an expression is true. Raises PageError with what the page reported."""
        deadline = time.monotonic() + seconds
        while not (value := self.run(expression)):
            if time.monotonic() > deadline:
                raise PageError(f"not true after {seconds} s: {expression}; errors: {self.errors}")
            time.sleep(0.03)
        return value

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.wait(f"location.href.startsWith({json.dumps(url.split('#')[0])}) && document.readyState === 'complete'")

    def size(self, width: int, height: int) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def key(self, key: str, *, shift: bool = False) -> None:
        """A key as a person presses it: by name (`ArrowRight`, `Tab`, `Enter`, `Escape`) or by its character."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        rest: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": codes.get(key, 0), "modifiers": 8 if shift else 0}
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **rest)
        self.send("Input.dispatchKeyEvent", type="keyUp", **rest)

    def middle(self, selector: str, number: int = 0) -> tuple[float, float]:
        """The middle of the element, after scrolling it into sight."""
        code = f"""(() => {{ const node = document.querySelectorAll({json.dumps(selector)})[{number}];
            node.scrollIntoView({{block: "center", inline: "center"}});
            const box = node.getBoundingClientRect(); return [box.left + box.width / 2, box.top + box.height / 2]; }})()"""
        x, y = self.run(code)
        return x, y

    def hover(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str, number: int = 0) -> None:
        x, y = self.middle(selector, number)
        self.hover(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path, *, whole: bool = False) -> Path:
        answer = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def pdf(self, path: Path) -> Path:
        path.write_bytes(base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"]))
        return path


@contextmanager
def chromium(program: str, folder: Path) -> Iterator[Tab]:
    """A browser with its profile in `folder`, closed at the end."""
    to_browser, from_browser = os.pipe(), os.pipe()
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--mute-audio",
    ]
    options += [f"--user-data-dir={folder}", "--remote-debugging-pipe", "--window-size=1366,768"]
    options += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]

    def descriptors() -> None:
        read, write = os.dup(to_browser[0]), os.dup(from_browser[1])
        os.dup2(read, 3)
        os.dup2(write, 4)

    process = subprocess.Popen(
        [program, *options, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=descriptors,
        pass_fds=(3, 4),
    )  # fmt: skip
    os.close(to_browser[0])
    os.close(from_browser[1])
    try:
        yield Tab(from_browser[0], to_browser[1])
    finally:
        os.close(to_browser[1])
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(from_browser[0])
