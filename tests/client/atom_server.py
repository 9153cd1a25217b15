"""An HTTP server that answers with prepared documents and remembers what it was asked."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Asked(NamedTuple):
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    status: int = 200
    body: str | bytes = ""
    hang_up: bool = False
    """After the answer, without a word."""


class AtomServer:
    """A context manager. Answers are given in their order, the last one for ever."""

    def __init__(self, *answers: Answer) -> None:
        self.asked: list[Asked] = []
        self.connections = 0
        left = list(answers)
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                server.connections += 1

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.asked.append(Asked(self.command, self.path, dict(self.headers.items()), body))
                answer = left.pop(0) if len(left) > 1 else left[0]
                data = answer.body.encode() if isinstance(answer.body, str) else answer.body
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
                self.close_connection = answer.hang_up

            do_GET = do_PUT = do_DELETE = answer

            def log_message(self, *_: object) -> None:
                """Nothing for the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> AtomServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def connection_string(self) -> str:
        return (
            f"Endpoint=sb://127.0.0.1:{self._server.server_address[1]};SharedAccessKeyName=Root;SharedAccessKey=secret;"
            "UseDevelopmentEmulator=true"
        )
