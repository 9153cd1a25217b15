"""A real browser without a window, told what to do over its DevTools protocol."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import websocket

from raw_client import PATIENCE, eventually, get

OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


class Page:
    """A tab of the browser."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, timeout=PATIENCE, suppress_origin=True)
        self._numbers = count(1)

    def visit(self, url: str) -> str:
        """Go there as the user would; the text that is shown."""
        self._ask("Page.navigate", url=url)
        eventually(lambda: self.run("document.readyState == 'complete' && location.href") == url)
        return str(self.run("document.documentElement.innerText"))

    def run(self, script: str) -> Any:
        """What an expression of a script on the page gives, when it is a promise what that is kept with."""
        answer = self._ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def close(self) -> None:
        self._socket.close()

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result


@contextmanager
def browsing(program: list[str], folder: Path, **names: str) -> Iterator[Page]:
    """A browser with a new profile in the folder, for which each of the names is the host at that address."""
    profile = folder / "profile"
    rules = ", ".join(f"MAP {name.replace('_', '.')} {address}" for name, address in names.items())
    command = [*program, *OPTIONS, f"--user-data-dir={profile}", f"--host-resolver-rules={rules}", "about:blank"]
    with (folder / "browser.log").open("wb") as log:
        browser = subprocess.Popen(command, stdout=log, stderr=log)
    page: Page | None = None
    try:
        noted = profile / "DevToolsActivePort"
        eventually(lambda: browser.poll() is not None or (noted.exists() and noted.read_text().count("\n")))
        assert browser.poll() is None, (folder / "browser.log").read_text()[-2000:]
        port = int(noted.read_text().splitlines()[0])
        pages = json.loads(get(port, "/json/list")[1])
        page = Page(next(each["webSocketDebuggerUrl"] for each in pages if each["type"] == "page"))
        yield page
    finally:
        if page is not None:
            page.close()
        browser.terminate()
        browser.wait(PATIENCE)
