"""Measure how long commands take to find a run in a store of many runs.

    python -m benchmarks.run_listing STORE [RUNS] [LATENCY_SECONDS]

Copies the record of the newest run of a local store, all stages cached, until the copy of the store
has RUNS runs. The commands read the copy twice: as a folder, and from a small S3 server in another
process that answers each request after LATENCY_SECONDS. (The server of moto needs so much processor
time for each request that it would hide the waiting time.)

Prints the seconds of each command, without the start of the interpreter, and the number of
requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from hallmark.flows.checkpoint_resolution import resolve_checkpoint
from hallmark.flows.commands.runs import list_runs
from hallmark.flows.commands.status import build_status_report
from hallmark.flows.runs import open_run
from hallmark.tasks.contract import Store

BUCKET = "listing"
MAX_KEYS = 1000


class SlowObjectStore:
    """Serve the files of a folder as the objects of one bucket, each reply after a delay."""

    def __init__(self, folder: Path, latency: float) -> None:
        self.latency, self.request_count = latency, 0
        self.objects = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }

    async def serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while request_line := (await reader.readline()).decode():
            method, target, _ = request_line.split()
            headers = {}
            while line := (await reader.readline()).decode().strip():
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            await asyncio.sleep(self.latency)
            status, reply = self.answer(method, target, body)
            length = len(reply)
            writer.write(
                f'HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nETag: "x"\r\n'
                f"Last-Modified: {formatdate(usegmt=True)}\r\n\r\n".encode()
                + (b"" if method == "HEAD" else reply)
            )
            await writer.drain()
        writer.close()

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        """Return the status and the body of the reply."""
        url = urlsplit(target)
        key = unquote(url.path).removeprefix(f"/{BUCKET}").lstrip("/")
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if key == "request-count":
            count, self.request_count = self.request_count, 0
            return 200, str(count).encode()
        self.request_count += 1
        if method == "PUT":
            self.objects[key] = body
            return 200, b""
        if not key:
            return 200, self.list_objects(query)
        return (200, self.objects[key]) if key in self.objects else (404, b"")

    def list_objects(self, query: dict[str, str]) -> bytes:
        """Return a page of a listing; the token of the next page is the last name of this one."""
        prefix, last_name = query.get("prefix", ""), query.get("continuation-token", "")
        sizes: dict[str, int | None] = {}  # None for the folders that the delimiter makes
        for key in sorted(key for key in self.objects if key.startswith(prefix)):
            head, separator, _ = key[len(prefix) :].partition("/")
            is_folder = "delimiter" in query and bool(separator)
            name = f"{prefix}{head}/" if is_folder else key
            if name > last_name:
                sizes[name] = None if is_folder else len(self.objects[key])
        names = [*sizes][:MAX_KEYS]
        has_more = len(sizes) > MAX_KEYS
        token = f"<NextContinuationToken>{escape(names[-1])}</NextContinuationToken>"
        return (
            f'<?xml version="1.0"?><ListBucketResult><Name>{BUCKET}</Name>'
            f"<IsTruncated>{str(has_more).lower()}</IsTruncated>{token if has_more else ''}"
            f"{''.join(format_list_entry(name, sizes[name]) for name in names)}</ListBucketResult>"
        ).encode()


def format_list_entry(name: str, size: int | None) -> str:
    """Format an object, or a folder without a size, as an element of a listing."""
    if size is None:
        return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
    return (
        f"<Contents><Key>{escape(name)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>x</ETag><Size>{size}</Size></Contents>"
    )


async def serve(folder: Path, latency: float) -> None:
    """Serve a folder on a free port, which is printed."""
    server = await asyncio.start_server(
        SlowObjectStore(folder, latency).serve_connection, "127.0.0.1", 0
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def copy_runs(store_folder: Path, run_count: int, target: Path) -> None:
    """Copy a store, without work areas and pages, and multiply its newest run."""
    for name in ("artifacts", "runs"):
        shutil.copytree(store_folder / name, target / name)
    record = open_run("latest", str(target)).record
    (target / "run-order").mkdir()
    for number in range(1, run_count + 1):
        run_id = f"20260101-{number:06}-0000"
        stages = [entry | {"cached": True} for entry in record["stages"]]
        folder = target / "runs" / run_id
        folder.mkdir()
        text = json.dumps(record | {"run": run_id, "stages": stages}, indent=1)
        (folder / "run.json").write_text(text)
        (target / "run-order" / f"{number:08d}-{run_id}").touch()


def measure(name: str, call: Callable[[], object], read_request_count: Callable[[], int]) -> None:
    read_request_count()
    start = time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    print(f"| {name} | {seconds:.2f} | {read_request_count() or ''} |", flush=True)


def measure_commands(uri: str, work_folder: Path, read_request_count: Callable[[], int]) -> None:
    for name, call in (
        ("find latest", lambda store: open_run("latest", store)),
        ("find the newest trained model", lambda store: resolve_checkpoint(store, "latest")),
        ("hallmark runs", lambda store: list_runs(uri)),
        ("hallmark status", lambda store: build_status_report(open_run("latest", store))),
    ):
        store = Store(uri, work_folder)
        measure(name, lambda call=call, store=store: call(store), read_request_count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("runs", type=int, nargs="?", default=1000)
    parser.add_argument("latency", type=float, nargs="?", default=0.03)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.store, arguments.latency))
        return
    with tempfile.TemporaryDirectory() as temporary_folder:
        folder = Path(temporary_folder, "store")
        copy_runs(arguments.store, arguments.runs, folder)
        resolve_checkpoint(Store(folder), "latest")  # imports what the commands import
        build_status_report(open_run("latest", str(folder)))
        print(f"| {arguments.runs} runs in a folder | seconds | requests |\n|---|---|---|")
        measure_commands(str(folder), folder / "work", lambda: 0)
        command = [sys.executable, "-m", "benchmarks.run_listing", "--serve", str(folder)]
        server = subprocess.Popen(
            [*command, "0", str(arguments.latency)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            os.environ |= {
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
                "AWS_ALLOW_HTTP": "true",
            }
            print(f"| in object storage, {arguments.latency} s a request | seconds | requests |")
            counter = Store(f"s3://{BUCKET}", Path(temporary_folder, "work"))

            def read_request_count() -> int:
                return int(counter.get("request-count") or 0)

            measure_commands(f"s3://{BUCKET}", Path(temporary_folder, "work"), read_request_count)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
