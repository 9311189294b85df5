"""Answer requests that are no valid HTTP, with the headers that all other responses have."""

from __future__ import annotations

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from hallmark.flows.application.requests import SECURITY_HEADERS


class ConfinedHttpProtocol(H11Protocol):  # type: ignore[misc]
    """The protocol of the server, whose own answers have the security headers, too.

    The server answers an invalid request itself, before the application sees it.
    """

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request, and close the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [
                ("Content-Type", "text/plain; charset=utf-8"),
                ("Connection", "close"),
                *SECURITY_HEADERS.items(),
            ]
            response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
            for event in (response, h11.Data(data=msg.encode()), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()
