"""HTTP: ambiguous requests, endless requests, and requests for other clients' data."""

from __future__ import annotations

import gzip
import os
import struct

from peeklock.atom.markup import ATOM, SERVICE_BUS
from tools.hostile.attack import attack, require
from tools.hostile.victim import HOST, OTHER, QUEUE, UPGRADE, Victim


def queue_entry(inner: str = "") -> bytes:
    return (
        f'<entry xmlns="{ATOM}"><content type="application/xml">'
        f'<QueueDescription xmlns="{SERVICE_BUS}">{inner}</QueueDescription></content></entry>'
    ).encode()


def _exists(victim: Victim, name: str) -> bool:
    return victim.ask(victim.request("GET", f"/{name}?api-version=2021-05"))[0] == 200


@attack(answer="answers 400 and closes the connection; the hidden request is not handled", log="request refused.*400")
def request_smuggling(victim: Victim) -> None:
    """Requests with two lengths, a length and chunks, misspelt chunks or odd line ends, with a hidden DELETE."""
    hidden = victim.request("DELETE", f"/{OTHER}?api-version=2021-05")
    token = victim.token()
    head = f"PUT /{QUEUE}x?api-version=2021-05 HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n"
    length = f"Content-Length: {len(hidden)}\r\n"
    chunked = "Transfer-Encoding: chunked\r\n"
    for lines in (
        length + chunked,
        chunked + length,
        "Content-Length: 0\r\n" + length,
        "Content-Length: 0, 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length: ٥\r\n",
        "Content-Length : 5\r\n",
        "Content-Length\r\n",
        "Transfer-Encoding: xchunked\r\n" + length,
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding:\x0bchunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        " Transfer-Encoding: chunked\r\n",
        "X: a\x00b\r\n",
        "X: a\rb\r\n",
        "X y: z\r\n",
    ):
        with victim.dial() as line:
            line.send((head + lines + "\r\n").encode(), b"0\r\n\r\n", hidden, hidden)
            status, _ = line.response()
            require(status in (0, 400), f"the headers {lines!r} were answered with {status}")
            require(_exists(victim, OTHER), f"the request that was hidden behind {lines!r} was obeyed")


@attack(answer="answers 400 and closes the connection", log="request refused.*400")
def broken_chunks(victim: Victim) -> None:
    """Chunks whose sizes exceed 64 bits, are negative or no numbers, without an end, and with endless extensions."""
    head = victim.request("PUT", "/chunks?api-version=2021-05", Transfer_Encoding="chunked")
    for body in (
        b"FFFFFFFFFFFFFFFFFF\r\nx\r\n0\r\n\r\n",
        b"-1\r\nx\r\n0\r\n\r\n",
        b"zz\r\nx\r\n0\r\n\r\n",
        b"0x1\r\nx\r\n0\r\n\r\n",
        b"1_0\r\n" + b"x" * 16 + b"\r\n0\r\n\r\n",
        b"1\r\nxx\r\n0\r\n\r\n",
        b"1;" + b"a" * 100_000 + b"\r\nx\r\n0\r\n\r\n",
        b"1\nx\n0\n\n",
    ):
        with victim.dial() as line:
            line.send(head, body)
            status, _ = line.response()
            require(status in (0, 400), f"the chunks {body[:30]!r} were answered with {status}")
    require(not _exists(victim, "chunks"), "a queue was made of broken chunks")


@attack(answer="answers 400 to lines above 8 KB and more than 128 headers", log="request refused.*400")
def endless_heads(victim: Victim) -> None:
    """Request lines and headers of a megabyte, 10,000 headers, and a header in 10,000 lines."""
    for head in (
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a" * 1_000_000 + b": x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: x\r\n" % each for each in range(10_000)) + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\r\n" + b" a\r\n" * 10_000 + b"\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET \r\n\r\n",
        b"POST" + b"T" * 100_000,
    ):
        with victim.dial() as line:
            line.send(head)
            status, _ = line.response()
            require(status in (0, 400), f"the head {head[:40]!r} was answered with {status}")


@attack(answer="answers 413 after 1 MiB, compressed or not", log="request refused.*413")
def endless_bodies(victim: Victim) -> None:
    """Bodies of 8 MiB, with a Content-Length of 10 GiB, in endless chunks, and gzip that expands 1,000 times."""
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    bomb = gzip.compress(b"<" * (64 * 1024 * 1024), 9)
    path = "/large?api-version=2021-05"
    for head, body in (
        (victim.request("PUT", path, Content_Length=str(8 << 20)), b"x" * (8 << 20)),
        (victim.request("PUT", path, Content_Length=str(10 << 30)), b"x" * (4 << 20)),
        (victim.request("PUT", path, Transfer_Encoding="chunked"), chunk * 64),
        (victim.request("PUT", path, Content_Encoding="gzip", Content_Length=str(len(bomb))), bomb),
    ):
        with victim.dial() as line:
            line.send(head, body)
            status, _ = line.response()
            require(status in (0, 400, 413), f"a body that is too large was answered with {status}")
    require(not _exists(victim, "large"), "a queue was made of a body that is too large")


@attack(answer="answers 401 or 404 and opens no file", log="request refused.*(401|404|400)")
def path_tricks(victim: Victim) -> None:
    """Paths with `..`, double slashes, encoded slashes and nulls, and reserved words in wrong places."""
    for path in (
        "/../../../../etc/passwd",
        "/..%2f..%2f..%2fetc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/%252e%252e/etc/passwd",
        "/....//....//etc/passwd",
        "//etc/passwd",
        "///",
        "/%00",
        "/a%00b",
        "/%0d%0aSet-Cookie:%20a=b",
        "/%ff%fe",
        "/%",
        "/%zz",
        "/\\..\\..\\windows",
        "/" + "a/" * 3000,
        "/" + "%2f" * 2000,
        "/$Resources/../other",
        "/$Resources/files",
        "/$namespaceinfo/..",
        "/$cbs",
        "/$management",
        "/topic/Subscriptions/all/Rules/../../../other",
        "/topic/Subscriptions/all/Rules/a/b/c",
        "/Subscriptions/Subscriptions/Subscriptions",
        f"/{QUEUE}/$deadletterqueue",
        "/health/../metrics",
        "/peeklock-data/messages.db",
        "/tls/authority.key",
    ):
        status, body = victim.ask(victim.request("GET", path + "?api-version=2021-05"))
        require(status in (0, 400, 401, 404), f"{path[:60]} was answered with {status}")
        require(b"root:" not in body and b"PRIVATE KEY" not in body, f"{path[:60]} showed a file")


@attack(answer="escapes control characters: one request is one line", log="request refused")
def forged_log_lines(victim: Victim) -> None:
    """Paths, names and tokens with line ends, terminal escapes, and text that looks like the broker's log lines."""
    forged = "2026-01-01T00:00:00.000Z INFO  peeklock.server forged peer=127.0.0.2"
    for text in (
        f"%0A{forged.replace(' ', '%20')}",
        "%1b[2J%1b[31m",
        "%E2%80%A8" + forged.replace(" ", "%20"),
        "%7f%08%08",
    ):
        victim.ask(victim.request("GET", f"/{text}"))
        victim.ask(victim.request("GET", "/x", Authorization=f"SharedAccessSignature sr=x&sig=y&se=9&skn={text}"))


@attack(answer="answers 400 or 405; closes connections that do not send HTTP", log="request refused")
def strange_methods(victim: Victim) -> None:
    """Unknown methods, methods with control characters, and methods of 900 characters."""
    for method in ("POST", "PATCH", "OPTIONS", "HEAD", "DELETED", "PUT\x01", "GET" * 300, "POSTx"):
        status, _ = victim.ask(victim.request(method, f"/{QUEUE}?api-version=2021-05", Connection="close"))
        require(status in (0, 400, 405), f"the method {method[:20]} was answered with {status}")
    require(_exists(victim, QUEUE), "the queue was deleted")


@attack(answer="answers 400; ignores unknown parameters", log="request refused.*400")
def strange_queries(victim: Victim) -> None:
    """Page parameters of -1, 0, 10^30 and text, invalid versions, and 800 parameters."""
    for query in (
        "$skip=-1",
        "$top=0",
        "$top=" + "9" * 30,
        "$skip=1e3",
        "$skip=%00",
        "api-version=" + "9" * 5000,
        "api-version=<script>",
    ):
        status, _ = victim.ask(victim.request("GET", f"/$Resources/queues?{query}"))
        require(status == 400, f"the query {query[:40]} was answered with {status}")
    many = "&".join(f"p{each}=x" for each in range(800))
    status, _ = victim.ask(victim.request("GET", f"/$Resources/queues?{many}"))
    require(status == 200, f"800 parameters were answered with {status}")


def _masked(opcode: int, data: bytes, *, length: int | None = None) -> bytes:
    return bytes((opcode, 0xFF)) + struct.pack(">Q", len(data) if length is None else length) + b"\0\0\0\0" + data


@attack(answer="closes the WebSocket", log="websocket")
def websocket_abuse(victim: Victim) -> None:
    """Text messages, unmasked frames, frames of 2^63 bytes, reserved opcodes, wrong fragments, and 10,000 pings."""
    for said in (
        _masked(0x81, b"text"),
        b"\x82\x08nonsense",
        _masked(0x82, b"x", length=(1 << 63) - 1),
        _masked(0x82, b"x" * (5 << 20), length=64 << 20),
        _masked(0xF2, b"x"),
        _masked(0x83, b"x"),
        _masked(0x80, b"x"),
        _masked(0x02, b"x") + _masked(0x82, b"y"),
        b"\x89\xfe\x04\x00" + b"\0" * 1028,
        b"\x88\x81\0\0\0\0\x03",
        _masked(0x82, os.urandom(4096)),
    ):
        with victim.dial() as line:
            line.send(UPGRADE, said)
            line.answer()
    with victim.dial() as line:
        line.send(UPGRADE)
        line.wait(0.5)
        for _ in range(100):
            line.send(b"\x89\x80\0\0\0\0" * 100)
            line.wait(0.001)
        line.send(b"\x88\x82\0\0\0\0\x03\xe8")
        line.answer()


@attack(answer="answers 400 or 426", log="request refused|websocket")
def websocket_handshakes(victim: Victim) -> None:
    """Handshakes with wrong keys, wrong versions or other subprotocols, and requests without an upgrade."""
    for old, new in (
        (b"AAAAAAAAAAAAAAAAAAAAAA==", b"short"),
        (b"AAAAAAAAAAAAAAAAAAAAAA==", b"A" * 5000),
        (b"Version: 13", b"Version: 0"),
        (b"AMQPWSB10", b"mqtt"),
        (b"Upgrade: websocket", b"Upgrade: h2c"),
        (b"GET ", b"PUT "),
    ):
        status, _ = victim.ask(UPGRADE.replace(old, new).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        require(status in (0, 400, 401, 405, 426), f"an upgrade with {new[:20]!r} was answered with {status}")
    victim.ask(b"GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")


@attack(answer="answers 403, also with the right key", log="request refused.*403")
def web_pages(victim: Victim) -> None:
    """Upgrades and requests with the origins of web pages, and with host names of DNS rebinding."""
    own = f"Host: {HOST}"
    for name in ("evil.example", f"{HOST}.evil.example", f"localhost:{victim.port}.evil.example", "", "0.0.0.0", "[::"):
        status, _ = victim.ask(UPGRADE.replace(own.encode(), f"Host: {name}".encode()))
        require(status in (400, 403), f"an upgrade under the name {name!r} was answered with {status}")
        for method, path in (("GET", "/metrics"), ("GET", "/$Resources/queues"), ("DELETE", f"/{OTHER}")):
            asked = victim.request(method, f"{path}?api-version=2021-05", Connection="close")
            status, _ = victim.ask(asked.replace(f"{own}:{victim.port}".encode(), f"Host: {name}".encode()))
            require(status in (400, 403), f"{method} {path} under the name {name!r} was answered with {status}")
    for origin in (
        "https://evil.example",
        "null",
        f"http://{HOST}:3000",
        f"http://{HOST}:{victim.port}@evil.example",
        "",
    ):
        status, _ = victim.ask(UPGRADE.replace(b"\r\n\r\n", f"\r\nOrigin: {origin}\r\n\r\n".encode()))
        require(status == 403, f"an upgrade of the origin {origin!r} was answered with {status}")
    require(_exists(victim, OTHER), "a web page deleted a queue")
