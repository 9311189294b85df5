"""Credentials that expire during a training end the run, and the next run continues."""

import os
import re
import subprocess
import sys

import pytest

from benchmarks.lossy_proxy import EXPIRED_REPLY, LossyProxy
from hallmark.flows.runs import open_run
from hallmark.flows.store_copy import copy_runs
from hallmark.tasks.contract import Store
from tests.flows.test_store_key import contains_key

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run_hallmark(environment, *arguments):
    command = [sys.executable, "-m", "hallmark.flows.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)


def list_keys(bucket, prefix):
    pages = bucket.get_paginator("list_objects_v2").paginate(Bucket="hallmark", Prefix=prefix)
    return {listed["Key"] for page in pages for listed in page["Contents"]}


def test_a_training_continues_when_its_expired_credentials_are_renewed(
    apart, bucket, tmp_path, monkeypatch
):
    monkeypatch.setenv("PREFECT_API_URL", apart.server)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    local, uri = Store(apart.store), f"s3://hallmark/{tmp_path.name}"
    copy_runs(local, Store(uri), [apart.first])
    copied_keys = list_keys(bucket, tmp_path.name)
    # Only the training is computed.
    training = ["run", "smoke", "--until", "pretrain", "--set", "pretrain.train.seed=9"]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the number of threads changes the last bits
    undisturbed = run_hallmark({**os.environ}, *training, "--store", str(apart.store))
    assert undisturbed.returncode == 0, undisturbed.stderr

    commits = []

    def expire_at_second_checkpoint(request):
        if "/artifacts/checkpoint/" in request.key and request.operation == "create":
            commits.append(request.key)
        return "expire" if len(commits) >= 2 else None

    with LossyProxy(bucket.meta.endpoint_url, expire_at_second_checkpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        environment = {**os.environ}
        failed = run_hallmark(environment, *training, "--store", uri)
        assert failed.returncode == 1, failed.stderr
        sentence = (
            f"the store {uri} cannot be used, because the credentials have expired (ExpiredToken); "
            "renew them, then run again to resume from the last commit"
        )
        assert failed.stderr.rstrip().splitlines()[-1].endswith(sentence), failed.stderr
        assert "Traceback" not in failed.stderr and "session token" not in failed.stderr
        assert b"session token" in EXPIRED_REPLY

        shown = run_hallmark(environment, "runs", "--store", uri, "--debug")
        assert shown.returncode == 1 and "Traceback" in shown.stderr
        assert sentence in shown.stderr and "session token" not in shown.stderr

        proxy.choose_fault = lambda request: None
        continued = run_hallmark(environment, *training, "--store", uri, "--debug")
        opened_store = Store(uri)
        results = [open_run("latest", store)["pretrain"] for store in (local, opened_store)]
        key = opened_store.secret
    assert continued.returncode == 0, continued.stderr
    [step] = re.findall(r"from step (\d+) of 60", " ".join(continued.stderr.split()))
    assert int(step) > 0
    assert results[0].content_digest == results[1].content_digest
    # No copy of the store's key is in the cache of this host or in another object.
    for path in (tmp_path / "cache").rglob("*"):
        assert not path.is_file() or not contains_key(path.read_bytes(), key), path
    for name in list_keys(bucket, tmp_path.name) - copied_keys:
        content = bucket.get_object(Bucket="hallmark", Key=name)["Body"].read()
        assert not contains_key(content, key), name
