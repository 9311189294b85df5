"""A Prefect server for the length of one command, where the user has configured none.

Prefect would start such a server itself, but late (a command would wait for it with nothing to
do), in the terminal's process group (Ctrl-C would end it before it hears of the run's end), and it
would outlive a command that is killed. This one starts while the command imports its stages, hears
no Ctrl-C, and ends with the command, however that ends: its standard input is a pipe that only the
command holds open. The same file is the server's program.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading

#: Seconds for the server to answer: 4 to 6 where nothing else runs, more on a busy machine.
STARTUP_TIMEOUT = 180


class LocalPrefectServer:
    """Started at once; ``adopt`` it, ``wait`` before the first use. It stops with this process."""

    def __init__(self) -> None:
        with socket.socket() as listening_socket:
            listening_socket.bind(("127.0.0.1", 0))
            listening_socket.listen(128)  # requests queue from now on
            self.url = f"http://127.0.0.1:{listening_socket.getsockname()[1]}/api"
            # Above the standard streams, of which this process may have been started without.
            socket_fd = fcntl.fcntl(listening_socket.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
        self.error_log = tempfile.TemporaryFile()  # noqa: SIM115  read when it does not start
        try:
            self.process = subprocess.Popen(
                # -P: the folder of this file is no place for imports.
                [sys.executable, "-P", __file__, str(socket_fd)],
                stdin=subprocess.PIPE,
                stdout=self.error_log,
                stderr=self.error_log,
                pass_fds=[socket_fd],
                start_new_session=True,
            )
        finally:
            os.close(socket_fd)
        # Registered before Prefect's own: its last log lines are sent before this.
        atexit.register(self.stop)

    def connect_prefect(self) -> bool:
        """Let Prefect of this process use it; False, and it stops, where the user's profile or
        settings file names another."""
        from prefect.context import refresh_global_settings_context
        from prefect.settings import PREFECT_API_URL

        if PREFECT_API_URL.value():
            self.stop()
            return False
        os.environ["PREFECT_API_URL"] = self.url
        refresh_global_settings_context()
        return True

    def wait_until_ready(self) -> None:
        """Until the server answers; HallmarkError if it does not."""
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
                f"Prefect's server did not start ({last_line[:300]}); its home PREFECT_HOME "
                f"(~/.prefect) must be writable and its settings in order; or name a server that "
                f"runs in PREFECT_API_URL"
            ) from error

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        atexit.unregister(self.stop)


def _run_server(socket_fd: int) -> None:
    """The server's process: Prefect's own app behind a socket that listens already."""
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
