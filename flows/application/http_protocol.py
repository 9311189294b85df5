"""Answer requests that are no valid HTTP, with the headers that all other responses have."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from hallmark.flows.application.requests import SECURITY_HEADERS

#: Seconds within which a request must arrive completely; uvicorn itself has no such limit.
MAX_RECEIVING_SECONDS = 30.0


class ConfinedHttpProtocol(H11Protocol):  # type: ignore[misc]
    """The protocol of the server, whose own answers have the security headers, too.

    The server answers an invalid request itself, before the application sees it. It does not wait
    longer than MAX_RECEIVING_SECONDS for a request, and not at all when it shuts down.
    """

    _receiving_limit: asyncio.TimerHandle | None = None
    """Ends the connection; None unless a request, or the rest of one, is awaited."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._limit_receiving()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        super().connection_lost(exc)
        self._cancel_receiving_limit()

    def handle_events(self) -> None:
        """Handle what has arrived."""
        super().handle_events()
        self._limit_receiving()

    def shutdown(self) -> None:
        """Close the connection, unless a request that arrived completely is being answered."""
        if self.conn.their_state is h11.SEND_BODY:
            self.transport.close()
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request, and close the connection."""
        self._refuse(400, "Bad Request", msg)

    def _limit_receiving(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY) or self.transport.is_closing():
            self._cancel_receiving_limit()
        elif self._receiving_limit is None:
            self._receiving_limit = self.loop.call_later(
                MAX_RECEIVING_SECONDS, self._end_slow_request
            )

    def _cancel_receiving_limit(self) -> None:
        if self._receiving_limit is not None:
            self._receiving_limit.cancel()
            self._receiving_limit = None

    def _end_slow_request(self) -> None:
        has_begun = self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]
        if has_begun and not self.transport.is_closing():
            seconds = f"{MAX_RECEIVING_SECONDS:g} seconds"
            self._refuse(408, "Request Timeout", f"The request did not arrive within {seconds}.")
        self.transport.close()

    def _refuse(self, status_code: int, reason: str, message: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [
                ("Content-Type", "text/plain; charset=utf-8"),
                ("Connection", "close"),
                *SECURITY_HEADERS.items(),
            ]
            response: Any = h11.Response(
                status_code=status_code, headers=headers, reason=reason.encode()
            )
            for event in (response, h11.Data(data=message.encode()), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()
