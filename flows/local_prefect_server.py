"""Run a Prefect server for the duration of one command, if the user has configured none.

Prefect could start such a server itself, but too late (the command would wait for it), in the
process group of the terminal (Ctrl-C would stop it before the end of the run is reported), and it
would outlive a killed command. This server starts while the command imports its stages, ignores
Ctrl-C, and ends with the command in every case: its standard input is a pipe that only the command
keeps open. If it is killed, it is started again with its port and its database. This file is also
the program of the server process.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from typing import ClassVar

log = logging.getLogger("hallmark")

#: Number of times that a killed server is started again.
MAX_RESTARTS = 3

#: Seconds to wait for the server, which needs 4 to 6 on an idle machine.
STARTUP_TIMEOUT = 180


class LocalPrefectServer:
    """A server process that starts immediately and stops with this process.

    Call ``connect_prefect_or_stop``, then ``wait_until_ready`` before the first use.
    """

    #: The server that this process has started, if any.
    started: ClassVar[LocalPrefectServer | None] = None

    def __init__(self) -> None:
        with socket.socket() as listening_socket:
            listening_socket.bind(("127.0.0.1", 0))
            listening_socket.listen(128)  # requests wait here until the server has started
            self.url = f"http://127.0.0.1:{listening_socket.getsockname()[1]}/api"
            # At least 3, in case this process was started without standard streams. It stays open
            # here, so that requests also wait for a server that is started again.
            self._socket_fd = fcntl.fcntl(listening_socket.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
        LocalPrefectServer.started = self
        self.error_log = tempfile.TemporaryFile()  # noqa: SIM115  read if the server fails
        self._lock = threading.Lock()
        self._is_stopped = False
        try:
            self.process = self._start_process()
        except BaseException:
            os.close(self._socket_fd)
            raise
        self._watcher = threading.Thread(target=self._restart_if_killed, daemon=True)
        self._watcher.start()
        # Registered before Prefect's exit handler, so it runs after Prefect has sent its last logs.
        atexit.register(self.stop)

    def _start_process(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            # -P: do not import modules from the folder of this file.
            [sys.executable, "-P", __file__, str(self._socket_fd)],
            stdin=subprocess.PIPE,
            stdout=self.error_log,
            stderr=self.error_log,
            pass_fds=[self._socket_fd],
            start_new_session=True,
        )

    def _restart_if_killed(self) -> None:
        """Wait for the end of the server, and start it again if a signal ended it."""
        for _ in range(MAX_RESTARTS):
            exit_code = self.process.wait()
            with self._lock:
                if self._is_stopped or exit_code >= 0:  # an error of the server would be repeated
                    break
                log.warning("this command's Prefect server was killed and is being restarted")
                self.process = self._start_process()
        self.process.wait()
        os.close(self._socket_fd)  # who waits for the server now gets an error

    def connect_prefect_or_stop(self) -> bool:
        """Make Prefect in this process use this server.

        Returns:
            False if the user's profile or settings file names another server; this one then stops.
        """
        from prefect.context import refresh_global_settings_context
        from prefect.settings import PREFECT_API_URL

        if PREFECT_API_URL.value() == self.url:
            return True
        if PREFECT_API_URL.value():
            self.stop()
            return False
        os.environ["PREFECT_API_URL"] = self.url
        refresh_global_settings_context()
        return True

    def wait_until_ready(self) -> None:
        """Wait until the server answers.

        Raises:
            HallmarkError: If it does not.
        """
        import httpx

        from hallmark.tasks.contract import HallmarkError

        try:
            httpx.get(f"{self.url}/health", timeout=STARTUP_TIMEOUT).raise_for_status()
        except httpx.HTTPError as error:
            self.error_log.seek(0)
            log_lines = self.error_log.read().decode("utf-8", "replace").split("\n")
            last_line = next(
                (line.strip() for line in reversed(log_lines) if line.strip()), str(error)
            )
            raise HallmarkError(
                f"the Prefect server did not start ({last_line[:300]}); check that PREFECT_HOME "
                "(by default ~/.prefect) is writable and its settings are valid, or set "
                "PREFECT_API_URL to a running server"
            ) from error

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            assert self.process.stdin is not None
            self.process.stdin.close()
        self._watcher.join()
        atexit.unregister(self.stop)
        LocalPrefectServer.started = None


def connect_prefect() -> None:
    """Make Prefect in this process use the server that the user configured, else a local one.

    The local server is the one that this process has started, or a new one.
    """
    from prefect.settings import PREFECT_API_URL

    if LocalPrefectServer.started is None and PREFECT_API_URL.value():
        return
    server = LocalPrefectServer.started or LocalPrefectServer()
    if server.connect_prefect_or_stop():
        server.wait_until_ready()


def _run_server(socket_fd: int) -> None:
    """Run Prefect's app on a socket that is already listening, as the server process."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    import uvicorn
    from prefect.server.api.server import create_app

    app = create_app(ephemeral=True, final=True)
    config = uvicorn.Config(app, log_level="critical", lifespan="on", timeout_graceful_shutdown=0)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=socket_fd)])


def _exit_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    _run_server(int(sys.argv[1]))
