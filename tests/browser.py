"""Small driver of headless Chromium, over the pipe of the DevTools protocol."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
)
# Chromium reads from 3 and writes to 4; ours lie above them, so that neither is lost in the exchange.
_LAUNCH = "import os, sys; a = sys.argv[1:]; os.dup2(int(a[0]), 3); os.dup2(int(a[1]), 4); os.execv(a[2], a[2:])"
DESKTOP, PHONE = (1280, 900), (390, 844)


def chromium() -> str | None:
    """Return the path of the browser, None if it is not installed."""
    return next((path for path in map(shutil.which, PROGRAMS) if path is not None), None)


class Browser:
    """Page of a headless Chromium with a fresh profile.

    Attributes:
        requests: addresses that the page asked for since `open`, data: and blob: ones left out.
        errors: errors of the console since `open`, with uncaught exceptions.
        warnings: warnings of the console since `open`.
    """

    def __init__(self, program: str) -> None:
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self._profile = tempfile.mkdtemp(prefix="hlorank-browser-")
        self._number, self._buffer = 0, b""
        ours, theirs = os.pipe(), os.pipe()
        reads, writes = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (ours[0], theirs[1]))
        launch = [sys.executable, "-c", _LAUNCH, str(reads), str(writes), program, *_FLAGS]
        launch.append(f"--user-data-dir={self._profile}")
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(launch, pass_fds=(reads, writes), stdout=quiet, stderr=quiet)
        for end in (reads, writes, ours[0], theirs[1]):
            os.close(end)
        self._write, self._read = ours[1], theirs[0]
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command of the protocol, and return its result.

        Raises:
            RuntimeError: the browser refuses the command.
        """
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(60)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self, seconds: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], seconds)[0]:
                raise TimeoutError(f"the browser has said nothing for {seconds} s")
            if not (part := os.read(self._read, 1 << 20)):
                raise RuntimeError("the browser has ended")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        about = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                url = about["request"]["url"]
                if not url.startswith(("data:", "blob:", "about:")):
                    self.requests.append(url)
            case "Runtime.exceptionThrown":
                details = about["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", details["text"]))
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "assert", "warning"):
                said = " ".join(str(one.get("value", one)) for one in about["args"])
                (self.warnings if about["type"] == "warning" else self.errors).append(said)
            case "Log.entryAdded" if about["entry"]["level"] in ("error", "warning"):
                said = f"{about['entry']['text']} {about['entry'].get('url', '')}"
                (self.warnings if about["entry"]["level"] == "warning" else self.errors).append(said)

    def look(self, size: tuple[int, int] = DESKTOP, dark: bool = False, media: str = "screen") -> None:
        """Set the size of the window in CSS pixels, the colour scheme, and the medium, screen or print."""
        width, height = size
        phone = width < 600
        metrics = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def open(self, url: str | Path) -> None:
        """Open a page, or a file, and wait until it has loaded.

        Raises:
            RuntimeError: the page does not exist.
        """
        for kept in (self.requests, self.errors, self.warnings):
            kept.clear()
        answer = self.call("Page.navigate", url=url.resolve().as_uri() if isinstance(url, Path) else url)
        if "errorText" in answer:
            raise RuntimeError(f"{url}: {answer['errorText']}")
        self.wait_for("document.readyState === 'complete'")

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, awaited if it is a promise.

        Raises:
            RuntimeError: the expression throws.
        """
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", expression))
        return answer["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 60) -> None:
        """Wait until an expression is true.

        Raises:
            TimeoutError: the expression stays false.
        """
        deadline = time.monotonic() + seconds
        while not self.ask(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not true within {seconds} s: {condition}; {self.errors}")
            time.sleep(0.1)

    def press(self, key: str) -> None:
        """Press a key, such as Enter or Tab."""
        codes = {"Enter": 13, "Tab": 9, " ": 32}
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes[key], text=text)
