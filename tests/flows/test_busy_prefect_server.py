"""Test how requests are sent to a Prefect server that is too busy to answer them."""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

CHECK_HEALTH = """
from prefect.client.orchestration import get_client

from hallmark.flows.deployment_runner import repeat_failed_requests

repeat_failed_requests()
with get_client(sync_client=True) as client:
    print(client.api_healthcheck())
"""


@pytest.fixture
def busy_server():
    """Start a server that answers only every third request; it counts the requests."""

    class Handler(BaseHTTPRequestHandler):
        request_count = 0

        def do_GET(self):
            Handler.request_count += 1
            is_busy = Handler.request_count % 3
            self.send_response(500 if is_busy else 200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"true")

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/api", Handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_request_that_a_busy_server_fails_to_answer_is_repeated(busy_server, tmp_path):
    url, handler = busy_server
    environment = {
        **os.environ,
        "PREFECT_API_URL": url,
        "PREFECT_HOME": str(tmp_path),
        "PREFECT_CLIENT_RETRY_JITTER_FACTOR": "0",
    }
    environment.pop("PREFECT_CLIENT_RETRY_EXTRA_CODES", None)
    ended = subprocess.run(
        [sys.executable, "-c", CHECK_HEALTH],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert ended.stdout.strip() == "None", ended.stdout  # no error
    assert handler.request_count == 3
