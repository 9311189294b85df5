"""Start the review application on this machine."""

from __future__ import annotations

import errno
import logging
import socket
from contextlib import suppress
from typing import Any

from hallmark.flows.application.application import HOST, create_application
from hallmark.flows.commands.options import (
    AllowedSignersOption,
    RevokedKeysOption,
    StoreOption,
    WholeNumber,
)
from hallmark.flows.runs import open_store
from hallmark.reports.review.signatures import SignerFiles
from hallmark.tasks.contract import HallmarkError, UsageError

DEFAULT_PORT, MAX_PORT = 8321, 65_535

#: Seconds after Ctrl-C in which answers that were begun are finished.
GRACEFUL_SHUTDOWN_SECONDS = 3


def view(
    *,
    port: WholeNumber = DEFAULT_PORT,
    allowed_signers: AllowedSignersOption = None,
    revoked_keys: RevokedKeysOption = None,
    store: StoreOption = None,
) -> None:
    """Show the runs in a store and their cards in a browser, trace texts, and review cards.

    The application answers only requests from this machine. It writes only signed reviews and, in
    the folder work, the index of a traced training text. It never reads a private key. Stop it with
    Ctrl-C.

    Parameters
    ----------
    port
        The port on which it listens; 0 lets the system choose one.
    """
    if not 0 <= port <= MAX_PORT:
        raise UsageError(f"--port {port}: the port must be a number from 0 to {MAX_PORT}")
    signer_files = SignerFiles(allowed_signers, revoked_keys)
    signer_files.check_readable()
    opened_store = open_store(store, create=False)
    with bind_port(port) as listener:
        bound_port: int = listener.getsockname()[1]
        application = create_application(
            opened_store, bound_port, signer_files, prepares_pages=True
        )
        print(
            f"serving {opened_store.uri} at http://{HOST}:{bound_port}/; press Ctrl-C to stop",
            flush=True,
        )
        serve_until_interrupted(application, listener)


def serve_until_interrupted(application: Any, listener: socket.socket) -> None:
    """Serve an ASGI application until Ctrl-C.

    Answers that are not finished GRACEFUL_SHUTDOWN_SECONDS later, or at a second Ctrl-C, are
    cancelled. A thread that computes a page cannot be cancelled, so it finishes first.
    """
    import uvicorn

    from hallmark.flows.application.http_protocol import ConfinedHttpProtocol

    # Warnings are about requests that any program can send, such as one for a web socket.
    config = uvicorn.Config(
        application,
        http=ConfinedHttpProtocol,
        log_level="error",
        server_header=False,
        timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_SECONDS,
        ws="none",
    )
    server = uvicorn.Server(config)
    logger = logging.getLogger("uvicorn.error")

    def is_error(record: logging.LogRecord) -> bool:  # what is cancelled at the end is none
        return not server.should_exit

    logger.addFilter(is_error)
    try:
        with suppress(KeyboardInterrupt):  # uvicorn raises it again after Ctrl-C stopped the server
            server.run(sockets=[listener])
    finally:
        logger.removeFilter(is_error)


def bind_port(port: int) -> socket.socket:
    """Return a socket that listens on a port of this machine.

    Raises:
        HallmarkError: If another process uses the port.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise HallmarkError(
                f"port {port} on this machine is in use, perhaps by another hallmark view process; "
                "stop that process or choose another port with --port"
            ) from error
        raise HallmarkError(
            f"hallmark view cannot listen on port {port} ({error.strerror}); choose another port "
            "with --port"
        ) from error
    return listener
