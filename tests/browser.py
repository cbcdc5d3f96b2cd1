"""Headless Chromium through chromedriver, by the standard library: both are Debian's packages."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element in the WebDriver protocol
KEYS = {"tab": "\ue004", "enter": "\ue007", "escape": "\ue00c", "left": "\ue012", "up": "\ue013",
        "right": "\ue014", "down": "\ue015", "home": "\ue011", "end": "\ue010"}  # fmt: skip
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]


def program(*names: str) -> str:
    """Return the path of the first program there is. Raises: FileNotFoundError if there is none."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        what = f"{names[0]} is not installed: run tests/debian-packages.sh chromium chromium-driver"
        raise FileNotFoundError(what)
    return found


class Browser:
    """One window. Everything that a page logs or asks for is kept until it is asked for."""

    def __init__(self) -> None:
        binary = program("chromium", "google-chrome")
        self.home = tempfile.mkdtemp()
        self.width = 1280
        self.driver = subprocess.Popen(
            [program("chromedriver"), "--port=0"], stdout=subprocess.PIPE, text=True
        )
        self.base = f"http://127.0.0.1:{self.port()}/session"
        try:
            self.start(binary)
        except BaseException:
            self.close()
            raise

    def port(self) -> int:
        assert self.driver.stdout is not None
        for line in self.driver.stdout:
            found = re.search(r"started successfully on port (\d+)", line)
            if found:
                return int(found[1])
        raise RuntimeError("chromedriver does not start")

    def start(self, binary: str) -> None:
        options = {"binary": binary, "args": [*ARGUMENTS, f"--user-data-dir={self.home}"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options,
                  "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}  # fmt: skip
        made = self.ask("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        self.base += f"/{made['sessionId']}"

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def tool(self, command: str, **params: Any) -> Any:
        """Send a command of the DevTools protocol."""
        return self.ask("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def show(self, width: int, *, dark: bool = False, scripts: bool = True) -> None:
        """Set the window as a reader may have it. A page is as wide as this once it is opened."""
        self.width = width
        self.tool("Emulation.setFocusEmulationEnabled", enabled=True)
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self.tool("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.tool("Emulation.setEmulatedMedia", features=[scheme])
        self.tool("Emulation.setScriptExecutionDisabled", value=not scripts)

    def open(self, page: Path) -> None:
        """Open a page and wait until it is as wide as `show` said: a new width comes late."""
        self.ask("POST", "/url", {"url": page.as_uri()})
        for _ in range(200):
            if self.tool("Page.getLayoutMetrics")["cssLayoutViewport"]["clientWidth"] == self.width:
                return
            time.sleep(0.05)
        raise RuntimeError(f"{page.name} is not {self.width} pixels wide after ten seconds")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.ask("POST", "/execute/sync", {"script": script, "args": [*arguments]})

    def enter(self) -> None:
        """Press Tab until something has the focus. Keys before a page's first frame are lost."""
        frames = "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
        self.ask("POST", "/execute/async", {"script": frames, "args": []})
        for _ in range(20):
            self.press("tab")
            if self.run("return document.activeElement !== document.body"):
                return
            time.sleep(0.2)
        raise RuntimeError("Tab gives nothing the focus")

    def press(self, *keys: str) -> None:
        """Press keys one after another, as on a keyboard."""
        typed = [KEYS.get(key, key) for key in keys]
        actions = [{"type": kind, "value": key} for key in typed for kind in ("keyDown", "keyUp")]
        source = {"type": "key", "id": "keyboard", "actions": actions}
        self.ask("POST", "/actions", {"actions": [source]})

    def picture(self, *, whole: bool = False) -> bytes:
        """Return what is seen as PNG, or the whole page."""
        taken = self.tool("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(taken["data"])

    def messages(self) -> list[str]:
        """Return what the console has said since it was asked last: errors and refusals."""
        return [line["message"] for line in self.ask("POST", "/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Return the addresses that pages have asked for since this was asked last."""
        lines = self.ask("POST", "/se/log", {"type": "performance"})
        said = [json.loads(line["message"])["message"] for line in lines]
        return [one["params"]["request"]["url"] for one in said
                if one["method"] == "Network.requestWillBeSent"]  # fmt: skip

    def close(self) -> None:
        """End the session and its processes."""
        with suppress(OSError):
            self.ask("DELETE", "")
        self.driver.terminate()
        self.driver.wait(timeout=20)
        if self.driver.stdout is not None:
            self.driver.stdout.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
