"""Check requests to the application, and add the headers that confine its pages.

The application listens only on this machine, but every page that a browser has open can send
requests to it. Requests under another name of this machine are refused, and so are requests of
other sites that would write.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from hallmark.tasks.contract import HallmarkError

#: Largest number of bytes of a form: a statement of a review, encoded.
MAX_FORM_BYTES = 4 << 20

SAFE_METHODS = ("GET", "HEAD")

#: The drawings of charts have style attributes; a style element is refused.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; style-src-attr 'unsafe-inline'; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)

SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    # With "no-referrer", browsers would send no origin with a form.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

#: The fields of a form by name; of a repeated field, all values.
FormFields = dict[str, list[str]]


class InvalidRequestError(HallmarkError):
    """A request is refused; the message is the sentence that its sender sees.

    Attributes:
        status_code: The status of the response.
    """

    def __init__(self, message: str, status_code: int) -> None:
        super().__init__(message)
        self.status_code = status_code


class RequestGuard:
    """Refuse requests under another name or of another site, and add headers to all responses."""

    def __init__(self, app: Any, allowed_hosts: Collection[str]) -> None:
        self.app, self.allowed_hosts = app, allowed_hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._explain_refusal(scope["method"], Headers(scope=scope))
        answer = PlainTextResponse(f"{refusal}\n", 403) if refusal else self.app
        await answer(scope, receive, send_with_headers)

    def _explain_refusal(self, method: str, headers: Headers) -> str:
        """Return why a request is refused; empty if it is not."""
        host = headers.get("host", "")
        if host not in self.allowed_hosts:
            return (
                "This application responds only at its own address, "
                f"http://{min(self.allowed_hosts)}/."
            )
        if method in SAFE_METHODS:
            return ""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        is_own_origin = origin == f"http://{host}" if origin else site == "same-origin"
        if is_own_origin and site in (None, "same-origin"):
            return ""
        return "The request came from another site, so it was rejected."


async def read_form(request: Request) -> FormFields:
    """Read the fields of a form.

    Raises:
        InvalidRequestError: If it is too long or not encoded as a form.
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise InvalidRequestError(
                f"the form has more than {MAX_FORM_BYTES:,} bytes; shorten it", 413
            )
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, errors="strict")
    except ValueError as error:
        raise InvalidRequestError("the form is not encoded as UTF-8", 400) from error
    fields: FormFields = {}
    for name, value in pairs:
        # Browsers send the line ends of a text as CR LF.
        fields.setdefault(name, []).append(value.replace("\r\n", "\n"))
    return fields


def handle_form(
    handler: Callable[[Request, FormFields], Response],
) -> Callable[[Request], Awaitable[Response]]:
    """Turn a function of a request and its form into the handler of a route."""

    async def handle(request: Request) -> Response:
        try:
            fields = await read_form(request)
        except ClientDisconnect:  # nobody reads the response
            return Response(status_code=400)
        response: Response = await run_in_threadpool(handler, request, fields)
        return response

    return handle
