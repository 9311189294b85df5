"""Prefect's concurrency limit of a store, on a real Prefect server."""

import os
import subprocess
import sys
from contextvars import copy_context
from threading import Event, Thread

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from hallmark.flows.run_request import RunRequest
from hallmark.flows.store_concurrency import (
    get_limit_name,
    occupy_store,
    read_run_limit,
    set_concurrency_limit,
)
from hallmark.tasks.contract import Store
from tests.flows.test_serve import api, created, prefect_server, wait_for

__all__ = ["prefect_server"]


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store", create_missing=True)


@pytest.fixture
def connected(server):
    """Connect Prefect of this process to the server that the tests share."""
    with temporary_settings({PREFECT_API_URL: server}):
        yield


def read_active_slots(store):
    with get_client(sync_client=True) as client:
        return client.read_global_concurrency_limit_by_name(get_limit_name(store)).active_slots


def test_a_second_flow_run_waits_and_says_so(connected, store, caplog):
    set_concurrency_limit(store, 2)
    set_concurrency_limit(store, 1)  # changes the limit
    first_occupies, may_end, order = Event(), Event(), []

    @flow
    def first():
        with occupy_store(store):
            order.append("first starts")
            first_occupies.set()
            assert may_end.wait(60)
            order.append("first ends")

    @flow
    def second():
        with occupy_store(store):
            order.append("second starts")

    threads = [Thread(target=copy_context().run, args=(each,)) for each in (first, second)]
    threads[0].start()
    assert first_occupies.wait(60)
    threads[1].start()
    waiting = (
        f"waiting for a slot: the concurrency limit {get_limit_name(store)} is 1 for flow runs "
        f"using the store {store.uri}"
    )
    while waiting not in caplog.text:
        assert threads[1].is_alive()
        threads[1].join(0.1)
    may_end.set()
    for thread in threads:
        thread.join(60)
    assert order == ["first starts", "first ends", "second starts"]
    assert f"a slot of the concurrency limit {get_limit_name(store)} is now free" in caplog.text
    assert read_active_slots(store) == 0


def test_a_failed_run_gives_its_place_back(connected, store):
    set_concurrency_limit(store, 1)

    @flow
    def fail():
        with occupy_store(store):
            raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            fail()
    assert read_active_slots(store) == 0


def test_a_store_without_a_limit_never_waits(connected, store, caplog):
    @flow
    def run():
        with occupy_store(store), occupy_store(store):
            return "done"

    assert run() == "done"
    with pytest.raises(ObjectNotFound):
        read_active_slots(store)
    assert "concurrency limit" not in caplog.text


def test_an_absent_server_stops_no_run(store, caplog):
    settings = {PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES: 0}
    with temporary_settings(settings):
        assert read_run_limit(get_limit_name(store)) is None
    assert "the store's concurrency limit cannot be read from the Prefect server" in caplog.text


def test_serve_refuses_an_impossible_limit(smoke):
    done = smoke("serve", "smoke", "--concurrent-runs", "0", code=2)
    assert "--concurrent-runs is 0; it must be at least 1" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_runs_of_served_deployments_take_turns(prefect_server, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("Words of the corpus.")
    source = '[[ingest.sources]]\nkind = "text"\nname = "notes"\npath = "notes"\n'
    (tmp_path / "turns.toml").write_text(f'name = "turns"\nstore = "store"\n{source}')
    environment = {
        **os.environ,
        "PREFECT_API_URL": prefect_server,
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
    }
    command = [sys.executable, "-m", "hallmark.flows.cli", "serve", "turns.toml"]
    log_path = tmp_path / "serve.log"
    with log_path.open("w") as log:
        serve = subprocess.Popen(
            [*command, "--concurrent-runs", "1"],
            env=environment,
            cwd=tmp_path,
            stdout=log,
            stderr=log,
        )

    def find_deployment():
        found = api.get(f"{prefect_server}/deployments/name/pipeline/turns")
        return found.json() if found.is_success else None

    try:
        deployment = wait_for("the deployment", find_deployment, serve)
        limit_name = get_limit_name(Store(tmp_path / "store"))
        assert (
            f"concurrent flow runs using the store: 1 (Prefect concurrency limit {limit_name})"
            in log_path.read_text()
        )
        # The only place is taken, so that every run must wait, however fast the others are.
        place = {"names": [limit_name], "slots": 1}
        limits = f"{prefect_server}/v2/concurrency_limits"

        def change_places(action):
            answer = api.post(f"{limits}/{action}", json=place | {"mode": "concurrency"})
            assert answer.is_success or answer.status_code == 503, answer.text  # it is busy
            return answer.is_success

        wait_for("the only place", lambda: change_places("increment"), serve)
        url = f"{prefect_server}/deployments/{deployment['id']}/create_flow_run"
        request = RunRequest(flow="pipeline", config="turns.toml", until="ingest")
        flow_runs = [
            created(url, {"parameters": request.given_parameters}, serve) for _ in range(3)
        ]
        query = {"logs": {"flow_run_id": {"any_": flow_runs}}}

        def read_waiting():
            logs = api.post(f"{prefect_server}/logs/filter", json=query).json()
            return [one for one in logs if one["message"].startswith("waiting for a slot: ")]

        # Prefect sends its logs with a delay.
        waiting = wait_for("a run that says that it waits", read_waiting, serve)
        assert limit_name in waiting[0]["message"]
        states = [api.get(f"{prefect_server}/flow_runs/{each}").json() for each in flow_runs]
        assert not any(one["state"]["type"] == "COMPLETED" for one in states)
        wait_for("the end of the wait", lambda: change_places("decrement"), serve)

        def read_ended():
            ended = [api.get(f"{prefect_server}/flow_runs/{each}").json() for each in flow_runs]
            return ended if all(one["state"]["type"] == "COMPLETED" for one in ended) else None

        ended = wait_for("the end of the runs", read_ended, serve)
        records = [Store(tmp_path / "store").get(f"runs/{one['name']}/run.json") for one in ended]
        assert all(records)
    finally:
        serve.terminate()
        serve.wait(timeout=60)
