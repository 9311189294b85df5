"""A server that refuses the credentials is described in one sentence that quotes no credential."""

import json
import threading
import time
import traceback
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hallmark.tasks.contract import HallmarkError, Store, TemporaryError, UsageError
from hallmark.tasks.corpus.reading.object_storage import find_remote_files

#: What real servers send back: the key, the session token, and what was signed with the key.
QUOTED = "<Token-0>SESSION+TOKEN</Token-0><AWSAccessKeyId>ACCESS+KEY</AWSAccessKeyId>"
BODY = (
    '<?xml version="1.0" encoding="UTF-8"?>{newline}<Error><Code>{code}</Code>'
    f"<Message>The token SESSION+TOKEN is refused.</Message>{QUOTED}</Error>"
)


@contextmanager
def serve(answer):
    """Serve replies on loopback: ``answer`` gets each request and returns a status and a body."""

    class Handler(BaseHTTPRequestHandler):
        def reply(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body = answer(self)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Mon, 30 Nov 2026 00:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = reply

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def environment(monkeypatch):
    for name, value in {
        "AWS_ACCESS_KEY_ID": "ACCESS+KEY",
        "AWS_SECRET_ACCESS_KEY": "key",
        "AWS_SESSION_TOKEN": "SESSION+TOKEN",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


REQUESTS = [
    lambda store: store.get("key"),
    lambda store: store.put("key", b"data"),
    lambda store: store.create_if_absent("key", b"data"),
    lambda store: store.list_keys("folder"),
    lambda store: store.delete(["key"]),
]


@pytest.mark.parametrize("status", [400, 403])
@pytest.mark.parametrize("newline", ["", "\n"])
def test_expired_credentials_are_named_at_once_and_not_quoted(
    environment, tmp_path, status, newline
):
    body = BODY.format(code="ExpiredToken", newline=newline).encode()
    attempts = []

    def refuse(request):
        attempts.append(request.command)
        return status, body

    with serve(refuse) as url:
        environment.setenv("AWS_ENDPOINT_URL", url)
        store = Store("s3://bucket/prefix", tmp_path)
        for send in REQUESTS:
            with pytest.raises(HallmarkError) as error:
                send(store)
            assert str(error.value) == (
                "the store s3://bucket/prefix cannot be used, because the credentials have expired "
                "(ExpiredToken); renew them, then run again to resume from the last commit"
            )
            assert not isinstance(error.value, TemporaryError)
            printed = "".join(traceback.format_exception(error.value))
            assert "ACCESS+KEY" not in printed and "SESSION+TOKEN" not in printed
    assert len(attempts) <= 2 * len(REQUESTS)  # a failed upload is compared with what is stored


@pytest.mark.parametrize("newline", ["", "\n"])
def test_other_refusals_show_the_code_only(environment, tmp_path, newline):
    body = BODY.format(code="InvalidAccessKeyId", newline=newline).encode()
    with serve(lambda request: (403, body)) as url:
        environment.setenv("AWS_ENDPOINT_URL", url)
        for send in REQUESTS[:3]:
            with pytest.raises(
                HallmarkError, match=r"403 Forbidden: InvalidAccessKeyId; "
            ) as error:
                send(Store("s3://bucket/prefix", tmp_path))
            printed = "".join(traceback.format_exception(error.value))
            assert "ACCESS+KEY" not in printed and "SESSION+TOKEN" not in printed


def test_a_source_that_refuses_the_credentials_quotes_none(environment):
    body = BODY.format(code="ExpiredToken", newline="").encode()
    with serve(lambda request: (403, body)) as url:
        environment.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(UsageError, match="403 Forbidden: ExpiredToken") as error:
            find_remote_files("notes", "s3://bucket/folder", (".txt",))
    printed = "".join(traceback.format_exception(error.value))
    assert "ACCESS+KEY" not in printed and "SESSION+TOKEN" not in printed


def test_credentials_of_the_container_are_renewed_before_they_expire(environment, tmp_path):
    """AWS_CONTAINER_CREDENTIALS_FULL_URI, as on EKS and ECS; the same holds for instances."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        environment.delenv(name)
    issued, used = [], []

    def issue(request):
        issued.append(f"TOKEN{len(issued)}")
        expiration = datetime.now(UTC) + timedelta(seconds=1)
        return 200, json.dumps(
            {
                "AccessKeyId": "ID",
                "SecretAccessKey": "KEY",
                "Token": issued[-1],
                "Expiration": f"{expiration:%Y-%m-%dT%H:%M:%SZ}",
            }
        ).encode()

    def answer(request):
        used.append(request.headers["x-amz-security-token"])
        return 200, b"data"

    (tmp_path / "token").write_text("authorization")
    with serve(issue) as provider, serve(answer) as url:
        environment.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", provider)
        environment.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
        environment.setenv("AWS_ENDPOINT_URL", url)
        store = Store("s3://bucket/prefix", tmp_path)
        end = time.monotonic() + 30
        while len(set(used)) < 3 and time.monotonic() < end:
            assert store.get("key") == b"data"
    assert list(dict.fromkeys(used)) == issued[:3]
