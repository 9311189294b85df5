"""Describe errors of an object store's client without the body of the server's reply.

The reply to a refused request may quote the key, the session token and what was signed with the
key. An error is recorded in run.json, in logs and in Prefect, so only the code of the reply is
shown, such as ``ExpiredToken``. The original error must not become the cause of another one,
because tracebacks would show it.
"""

from __future__ import annotations

import re

from obstore.exceptions import BaseError

from hallmark.tasks.contract.errors import get_first_error_line

#: The beginning of the client's message about a reply, up to the status, and the code in its body.
_REPLY = re.compile(r"(?s)(?P<status>[^\n]*?status code: \d{3}[^:<{\n]*)(?P<body>.*)")
_ERROR_CODE = re.compile(r"<Code>(\w{1,60})</Code>")

#: The query of an address, which may contain a signature.
_ADDRESS_QUERY = re.compile(r"(https?://[^\s?]+)\?\S+")

#: The codes for expired credentials. S3 and compatible servers send the first two, and Azure sends
#: the others for a shared access signature and for a token.
_EXPIRED_CODES = re.compile(
    "<Code>(ExpiredToken|ExpiredTokenException)</Code>"
    r"|<AuthenticationErrorDetail>(Signature not valid in the specified time frame)"
    "|<Code>(ExpiredAuthenticationToken)</Code>"
)


def describe_object_store_error(error: BaseException) -> str:
    """Describe an error in one line, without what a server's reply or an address may quote."""
    reply = _REPLY.match(str(error))
    if reply is None:
        description = get_first_error_line(error)
    else:
        code = _ERROR_CODE.search(reply["body"])
        description = reply["status"].rstrip() + (f": {code[1]}" if code else "")
    return _ADDRESS_QUERY.sub(r"\1?…", description)


def find_expiry_code(error: BaseException) -> str | None:
    """Return what a server sent if the credentials have expired; None for another error."""
    match = _EXPIRED_CODES.search(str(error))
    return match and next(filter(None, match.groups()))


def redact_object_store_error(error: Exception) -> Exception:
    """Return an error of the same type with the description only, to be the cause of another."""
    return (
        type(error)(describe_object_store_error(error)) if isinstance(error, BaseError) else error
    )
