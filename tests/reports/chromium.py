"""A real browser for tests: headless chromium, driven by its DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def executable() -> str | None:
    """The browser on this machine, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


class Browser:
    """One tab of one browser process.  `events` holds what it has reported, in order."""

    def __init__(self, path: str, profile: Path, timeout: float = 60.0) -> None:
        self._timeout, self._counter, self._session, self._buffer = timeout, 0, "", b""
        self.events: list[dict[str, Any]] = []
        self.width = 0
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        silence = os.open(os.devnull, os.O_RDWR)
        # The browser reads commands from descriptor 3 and writes answers to 4.
        places = [(silence, 0), (silence, 1), (silence, 2), (theirs_in, 3), (theirs_out, 4)]
        high = {number: os.dup(number) for number in (silence, theirs_in, theirs_out)}
        while min(high.values()) < 10:
            high = {number: os.dup(copy) for number, copy in high.items()}
        self._pid = os.posix_spawn(
            path,
            [path, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            {**os.environ, "HOME": str(profile)},
            file_actions=[(os.POSIX_SPAWN_DUP2, high[number], place) for number, place in places],
            setpgroup=0,
        )
        for number in (silence, theirs_in, theirs_out, *high.values()):
            os.close(number)
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer."""
        self._counter += 1
        message = {"id": self._counter, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._counter:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self.events.append(answer)

    def wait_for(self, method: str) -> None:
        """Waits for an event that has not been seen yet."""
        while True:
            event = self._next()
            self.events.append(event)
            if event.get("method") == method:
                return

    def show(self, page: Path, width: int, height: int = 800, dark: bool = False) -> None:
        """Loads a page, in a window of this size and the reader's colours."""
        self.width, mobile = width, width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page.absolute().as_uri())
        if not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.wait_for("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> Path:
        """The whole page as a PNG file."""
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))
        return path

    def addresses(self) -> list[str]:
        """What the page has asked for since it was loaded."""
        requests = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in requests]

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and exceptions."""
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(parameters["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(str(parameters["entry"]["text"]))
            elif event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
                found.append(str(parameters["args"]))
        return found

    def close(self) -> None:
        """Ends the process and its children."""
        for descriptor in (self._in, self._out):
            os.close(descriptor)
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + self._timeout
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser has not answered for {self._timeout:g} s"
            piece = os.read(self._in, 1 << 20)
            assert piece, "the browser has gone"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))


@contextmanager
def browser(path: str) -> Iterator[Browser]:
    """A browser with a fresh profile, ended and removed afterwards."""
    profile = Path(tempfile.mkdtemp(prefix="browser-"))
    tab = None
    try:
        tab = Browser(path, profile)
        yield tab
    finally:
        if tab is not None:
            tab.close()
        shutil.rmtree(profile, ignore_errors=True)
