"""A proxy between an object store's client and its server that loses, delays and repeats replies.

A request always reaches the server; what fails is the reply, as it does when a load balancer gives
up or a connection breaks. ``benchmarks.lost_replies`` and the tests of the store use it.
"""

from __future__ import annotations

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
from typing import Literal
from urllib.parse import parse_qs, urlsplit

Fault = Literal["lost", "reset", "delay", "duplicate", "truncate"]
Kind = tuple[str, str]  # operation and object type

#: Seconds that a reply is held back by the fault "delay".
DELAY = 0.2

#: Headers that belong to one connection and are not passed on.
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "expect"}


@dataclass(frozen=True)
class Request:
    """One request of the client, as far as a fault may depend on it.

    Attributes:
        operation: "get", "head", "list", "put", "create" (put only if absent), "delete", or one of
            "multipart start", "multipart part", "multipart complete", "multipart abort".
        object_type: What the key holds: "manifest", "data", "run record", "tombstones", "denied
            list", "secret", "listing", "keys" (of a bulk deletion) or "other".
        key: Path and query.
        attempt: How often this very request came before, from 0.
    """

    operation: str
    object_type: str
    key: str
    attempt: int

    @property
    def kind(self) -> Kind:
        return self.operation, self.object_type


class LossyProxy:
    """An HTTP proxy on loopback, as a context.

    Args:
        upstream: URL of the object store's server.
        choose_fault: Called with each request; the fault of its reply, None for none. May be
            replaced while the proxy runs.
    """

    def __init__(self, upstream: str, choose_fault: Callable[[Request], Fault | None]) -> None:
        self.upstream = urlsplit(upstream).netloc
        self.choose_fault = choose_fault
        #: Requests by kind, and faults by kind and fault.
        self.requests: Counter[Kind] = Counter()
        self.faults: Counter[tuple[Kind, Fault]] = Counter()
        self._attempts: Counter[tuple[str, str, bool]] = Counter()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> LossyProxy:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def record(self, method: str, key: str, conditional: bool) -> tuple[Request, Fault | None]:
        """Count a request and choose the fault of its reply."""
        operation, object_type = classify(method, key, conditional)
        with self._lock:
            identity = method, key, conditional
            request = Request(operation, object_type, key, self._attempts[identity])
            self._attempts[identity] += 1
            self.requests[request.kind] += 1
            fault = self.choose_fault(request)
            if fault is not None:
                self.faults[request.kind, fault] += 1
        return request, fault

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_request(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                conditional = "If-None-Match" in self.headers
                _, fault = proxy.record(self.command, self.path, conditional)
                reply = self.forward(body)
                if fault == "duplicate":
                    reply = self.forward(body)
                elif fault == "delay":
                    time.sleep(DELAY)
                if fault == "lost":
                    reply = 504, [("Content-Length", "0")], b""
                elif fault == "reset":
                    self.break_connection()
                    return
                self.answer(*reply, truncate=fault == "truncate")

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request

            def forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
                headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_BY_HOP}
                connection = http.client.HTTPConnection(proxy.upstream, timeout=60)
                try:
                    connection.request(self.command, self.path, body, headers)
                    response = connection.getresponse()
                    data = response.read()
                    sent = [(k, v) for k, v in response.getheaders() if k.lower() not in HOP_BY_HOP]
                    return response.status, sent, data
                finally:
                    connection.close()

            def answer(
                self, status: int, headers: list[tuple[str, str]], data: bytes, *, truncate: bool
            ) -> None:
                self.send_response_only(status)
                for name, value in headers:
                    if name.lower() != "content-length" or self.command == "HEAD":
                        self.send_header(name, value)
                if self.command != "HEAD":
                    self.send_header("Content-Length", str(len(data)))
                if truncate and not data:  # the head of the reply breaks off
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


def classify(method: str, key: str, conditional: bool) -> Kind:
    """The operation and the object type of a request to an S3 server."""
    parts = urlsplit(key)
    query = parse_qs(parts.query, keep_blank_values=True)
    if "list-type" in query:
        return "list", "listing"
    if "delete" in query:
        return "delete", "keys"
    if "uploads" in query or "uploadId" in query:
        steps = {"PUT": "part", "DELETE": "abort", "POST": "complete"}
        step = "start" if "uploads" in query else steps[method]
        return f"multipart {step}", object_type(parts.path)
    operation = "create" if conditional and method == "PUT" else method.lower()
    return operation, object_type(parts.path)


#: Object types by the end of a key; the first that matches.
OBJECT_TYPES = {
    "manifest": r"/manifest\.json$",
    "tombstones": r"/tombstones\.json$",
    "run record": r"/run\.json$",
    "denied list": r"/purged\.json$",
    "secret": r"/secret$",
    "data": r"/artifacts/",
}


def object_type(path: str) -> str:
    found = (name for name, pattern in OBJECT_TYPES.items() if re.search(pattern, path))
    return next(found, "other")
