"""Lose, delay and repeat the replies of an object store, with a proxy between client and server.

A request reaches the server; only the reply fails, as it does when a load balancer gives up or a
connection breaks. The exception is the fault "expire": the request is refused as S3 refuses expired
credentials. ``benchmarks.lost_replies`` and the tests of the store use this proxy.
As a program it passes on all replies, until it is killed:

    python -m benchmarks.lossy_proxy UPSTREAM PORT
"""

from __future__ import annotations

import argparse
import http.client
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, NamedTuple
from urllib.parse import parse_qs, urlsplit

Fault = Literal["lost", "reset", "delay", "duplicate", "truncate", "expire"]
#: Operation and object type of a request.
Kind = tuple[str, str]

#: Seconds by which the fault "delay" delays a reply.
DELAY = 0.2

#: The body of S3's reply to a request with expired credentials.
EXPIRED_REPLY = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>ExpiredToken</Code>'
    b"<Message>The provided token has expired.</Message><Token-0>session token</Token-0></Error>"
)

#: Headers that belong to one connection and are not passed on.
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "expect"}


@dataclass(frozen=True)
class Request:
    """The properties of a client's request on which a fault may depend.

    Attributes:
        operation: "get", "head", "list", "put", "create" (put only if absent), "delete", or one of
            "multipart start", "multipart part", "multipart complete", "multipart abort".
        object_type: What is stored under the key: "manifest", "data", "run record", "tombstones",
            "denied list", "secret", "listing", "keys" (of a bulk deletion) or "other".
        key: Path and query.
        attempt: Number of earlier requests that are identical.
    """

    operation: str
    object_type: str
    key: str
    attempt: int

    @property
    def kind(self) -> Kind:
        return self.operation, self.object_type


class Reply(NamedTuple):
    """The server's reply to a request."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class LossyProxy:
    """An HTTP proxy on loopback; a context manager.

    Args:
        upstream: URL of the object store's server.
        choose_fault: Called with each request; the fault of its reply, None for none. May be
            replaced while the proxy runs.
        port: The port of the proxy; 0 for any free one.
    """

    def __init__(
        self, upstream: str, choose_fault: Callable[[Request], Fault | None], port: int = 0
    ) -> None:
        self.upstream = urlsplit(upstream).netloc
        self.choose_fault = choose_fault
        self.requests: Counter[Kind] = Counter()
        """Number of requests of each kind."""
        self.faults: Counter[tuple[Kind, Fault]] = Counter()
        """Number of faults, by kind of request and fault."""
        self._attempts: Counter[tuple[str, str, bool]] = Counter()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._define_handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> LossyProxy:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def record_request(self, method: str, key: str, *, conditional: bool) -> Fault | None:
        """Count a request and choose the fault of its reply.

        Args:
            method: The HTTP method.
            key: Path and query.
            conditional: Whether the request is executed only if the key does not exist.
        """
        operation, object_type = classify_request(method, key, conditional=conditional)
        with self._lock:
            identity = method, key, conditional
            request = Request(operation, object_type, key, self._attempts[identity])
            self._attempts[identity] += 1
            self.requests[request.kind] += 1
            fault = self.choose_fault(request)
            if fault is not None:
                self.faults[request.kind, fault] += 1
        return fault

    def _define_handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_request(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                conditional = "If-None-Match" in self.headers
                fault = proxy.record_request(self.command, self.path, conditional=conditional)
                reply = (
                    Reply(400, [("Content-Type", "application/xml")], EXPIRED_REPLY)
                    if fault == "expire"
                    else self.forward(body)
                )
                if fault == "duplicate":
                    reply = self.forward(body)
                elif fault == "delay":
                    time.sleep(DELAY)
                if fault == "lost":
                    reply = Reply(504, [("Content-Length", "0")], b"")
                elif fault == "reset":
                    self.break_connection()
                    return
                self.send_reply(reply, truncate=fault == "truncate")

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request

            def forward(self, body: bytes) -> Reply:
                """Send the request to the server and return its reply."""
                headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_BY_HOP}
                connection = http.client.HTTPConnection(proxy.upstream, timeout=60)
                try:
                    connection.request(self.command, self.path, body, headers)
                    response = connection.getresponse()
                    data = response.read()
                    sent = [(k, v) for k, v in response.getheaders() if k.lower() not in HOP_BY_HOP]
                    return Reply(response.status, sent, data)
                finally:
                    connection.close()

            def send_reply(self, reply: Reply, *, truncate: bool) -> None:
                data = reply.body
                self.send_response_only(reply.status)
                for name, value in reply.headers:
                    if name.lower() != "content-length" or self.command == "HEAD":
                        self.send_header(name, value)
                if self.command != "HEAD":
                    self.send_header("Content-Length", str(len(data)))
                if truncate and not data:  # break off in the headers
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Le")
                    self.break_connection()
                    return
                self.end_headers()
                self.wfile.write(data[: len(data) // 2] if truncate else data)
                if truncate:
                    self.break_connection()

            def break_connection(self) -> None:
                """Close with a reset instead of an orderly end."""
                self.wfile.flush()
                no_linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
                self.close_connection = True
                self.connection.close()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def classify_request(method: str, key: str, *, conditional: bool) -> Kind:
    """Return the operation and the object type of a request to an S3 server."""
    parts = urlsplit(key)
    query = parse_qs(parts.query, keep_blank_values=True)
    if "list-type" in query:
        return "list", "listing"
    if "delete" in query:
        return "delete", "keys"
    if "uploads" in query or "uploadId" in query:
        steps = {"PUT": "part", "DELETE": "abort", "POST": "complete"}
        step = "start" if "uploads" in query else steps[method]
        return f"multipart {step}", classify_object(parts.path)
    operation = "create" if conditional and method == "PUT" else method.lower()
    return operation, classify_object(parts.path)


#: Patterns of the keys of each object type; the first that matches counts.
KEY_PATTERNS = {
    "manifest": r"/manifest\.json$",
    "tombstones": r"/tombstones\.json$",
    "run record": r"/run\.json$",
    "denied list": r"/purged\.json$",
    "secret": r"/secret$",
    "data": r"/artifacts/",
}


def classify_object(path: str) -> str:
    matches = (name for name, pattern in KEY_PATTERNS.items() if re.search(pattern, path))
    return next(matches, "other")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("upstream", help="URL of the object store's server")
    parser.add_argument("port", type=int, help="port of the proxy on loopback")
    options = parser.parse_args()
    with LossyProxy(options.upstream, lambda request: None, options.port) as proxy:
        print(proxy.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
