"""A real browser for tests: headless Chromium, spoken to over two pipes (the DevTools protocol)."""

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--no-first-run", "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One page of a browser whose profile is in a folder. Use it as a context."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None, "needs a browser: apt-get install chromium"
        here, to_browser = os.pipe()
        from_browser, there = os.pipe()
        # The browser reads file descriptor 3 and writes 4; dash cannot name descriptors above 9.
        script = f'exec "$0" "$@" 3<&{here} 4>&{there}'
        words = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", script, *words], pass_fds=(here, there), stderr=subprocess.DEVNULL
        )
        os.close(here)
        os.close(there)
        self._out = os.fdopen(to_browser, "wb", buffering=0)
        self._in = os.fdopen(from_browser, "rb")
        self._buffer = b""
        self._id = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.call("Page.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._out.close()
        self._in.close()

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """Call a method and wait for its result; events that come meanwhile are dropped."""
        self._id += 1
        message: dict[str, object] = {"id": self._id, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._id:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def resize(self, width: int) -> None:
        """Give the page this width; a narrow one is a telephone's."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900,
                  deviceScaleFactor=1, mobile=width < 600)  # fmt: skip

    def open(self, url: str, width: int, scripts: bool = True) -> None:
        """Load a page at this width, and wait until it is drawn."""
        self.resize(width)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives; a promise is awaited."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until an expression holds, also in a page that is loaded meanwhile; ten seconds at most."""
        deadline = time.monotonic() + 10
        while not self._holds(expression):
            assert time.monotonic() < deadline, f"not within 10 s: {expression}"
            time.sleep(0.02)

    def _holds(self, expression: str) -> bool:
        try:
            return self.value(expression) is True
        except AssertionError:  # the page that was asked has gone
            return False

    def picture(self, path: Path) -> None:
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = self._in.read1(65536)
            assert data, "the browser has ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer
