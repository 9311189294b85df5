"""Test that mappers agree: in this process, in several, on Ray; with a folder and an S3 bucket."""

import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from hallmark.tasks.contract import (
    HallmarkError,
    ProcessMapper,
    Resources,
    SerialMapper,
    Session,
    StageContext,
    Store,
    UsageError,
    make_mapper,
    open_session,
    ray_mapper,
    stage,
)
from hallmark.tasks.contract.resources import DEFAULT_RESOURCES
from tests.tasks.contract.stages import COUNT, CountConfig, DropConfig, MakeConfig, drop, make


def square(number: int, offset: int) -> tuple[int, int]:
    return number * number + offset, os.getpid()


def refuse(number: int, offset: int) -> int:
    if number == 3:
        raise HallmarkError("three is refused; give another")
    return number


def die_once(number: int, folder: str) -> int:
    """Record the call, and kill the own process at the first call with 3."""
    note = Path(folder) / str(number)
    with note.open("a") as file:
        file.write("x")
    if number == 3 and note.read_text() == "x":
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die_at(number: int, at: int) -> int:
    if number == at:
        os._exit(1)
    return number


def stay(number: int) -> int:
    """Return 0 at once; wait with any other number until the process is killed."""
    if number:
        signal.pause()
    return number


def die(item: str, out) -> None:
    if item == "b":
        os.kill(os.getpid(), signal.SIGKILL)


def read_assigned_resources(number: int) -> dict[str, float]:
    """Return the resources that Ray assigned to this part."""
    import ray

    return dict(ray.get_runtime_context().get_assigned_resources())


@stage(name="needy", tables={"count": COUNT}, resources=Resources(cpus=2, memory_bytes=1 << 20))
def needy(config: CountConfig, context: StageContext) -> None:
    """Write the number of processors that each of two parts was assigned."""
    found = context.map_items(read_assigned_cpus, [0, 1])
    context.get_table_writer("count").write({"rows": [done.value for done in found]})


def read_assigned_cpus(number: int, out) -> int:
    return int(read_assigned_resources(number)["CPU"])


@pytest.fixture(scope="module")
def ray():
    """Start one cluster of two workers on this machine for all tests of the module."""
    with make_mapper("ray", 2) as mapper:
        yield mapper


@pytest.mark.slow
def test_results_from_other_processes_are_in_order(ray):
    calls = [(number, 7) for number in range(40)]
    found = list(ray(square, calls, Resources(cpus=1, memory_bytes=1 << 20)))
    assert [value for value, _ in found] == [n * n + 7 for n in range(40)]
    assert os.getpid() not in {process for _, process in found}


@pytest.mark.slow
def test_error_of_a_worker_is_raised_unchanged(ray):
    with pytest.raises(HallmarkError, match=r"^three is refused; give another$"):
        list(ray(refuse, [(n, 0) for n in range(6)], DEFAULT_RESOURCES))


@pytest.mark.slow
def test_part_is_assigned_its_resources(ray):
    needs = Resources(cpus=2, memory_bytes=1 << 20)
    assert (
        list(ray(read_assigned_resources, [(0,), (1,)], needs))
        == [{"CPU": 2.0, "memory": float(1 << 20)}] * 2
    )
    assert list(ray(read_assigned_resources, [(0,), (1,)], DEFAULT_RESOURCES)) == [{"CPU": 1.0}] * 2


@pytest.mark.slow
def test_parts_are_assigned_the_resources_of_their_stage(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(type(ray), "__exit__", lambda *_: None)  # it serves other tests too
    with open_session(Session(Store(tmp_path), ray)):
        assert needy(CountConfig())["count"].read()["rows"].to_pylist() == [2, 2]


@pytest.mark.slow
def test_killed_ray_worker_repeats_only_its_part(ray, tmp_path):
    calls = [(n, str(tmp_path)) for n in range(6)]
    assert list(ray(die_once, calls, DEFAULT_RESOURCES)) == list(range(6))
    runs = [len((tmp_path / str(n)).read_text()) for n in range(6)]
    assert runs == [1, 1, 1, 2, 1, 1]


def test_part_that_kills_a_worker_is_not_run_in_main_process(tmp_path):
    """It is not run there even as the only part, because it could kill the main process."""
    with ProcessMapper(2) as mapper:
        assert list(mapper(square, [(1, 0)], DEFAULT_RESOURCES)) == [(1, os.getpid())]
        with pytest.raises(BrokenExecutor):
            list(mapper(die_once, [(n, str(tmp_path)) for n in (2, 3)], DEFAULT_RESOURCES))
        ((_, process),) = mapper(square, [(1, 0)], DEFAULT_RESOURCES)
        assert process != os.getpid()


@pytest.mark.parametrize("where", ["waits for a part", "works on what a part gave"])
def test_stopped_mapper_reports_no_killed_workers(monkeypatch, where):
    """A pool reports a dead worker to each waiting part, but not to cancelled ones.

    Here the cancellation arrives late.
    """
    heard = []
    monkeypatch.setattr(threading, "excepthook", heard.append)
    shutdown = ProcessPoolExecutor.shutdown

    def late(pool, **how):
        for worker in list(pool._processes.values()):
            worker.join(0.2)  # none ends by itself
        shutdown(pool, **how)

    monkeypatch.setattr(ProcessPoolExecutor, "shutdown", late)
    with pytest.raises(KeyboardInterrupt), ProcessMapper(2) as mapper:
        results = mapper(stay, [(number,) for number in range(40)], DEFAULT_RESOURCES)
        assert next(results) == 0
        if where == "waits for a part":
            results.throw(KeyboardInterrupt)
        results.close()
        raise KeyboardInterrupt
    assert not heard
    assert not [worker for worker in multiprocessing.active_children() if worker.is_alive()]


def test_dead_worker_fails_all_waiting_parts(monkeypatch):
    """The pool reports it to thousands of parts, one after another."""
    heard = []
    monkeypatch.setattr(threading, "excepthook", heard.append)
    with ProcessMapper(2) as mapper:
        with pytest.raises(BrokenExecutor):
            list(mapper(die_at, [(number, 300) for number in range(20_000)], DEFAULT_RESOURCES))
        for worker in multiprocessing.active_children():
            worker.join(30)
            assert not worker.is_alive()
        assert list(mapper(die_at, [(1, 0), (2, 0)], DEFAULT_RESOURCES)) == [1, 2]
    assert not heard


def test_workers_that_die_between_calls_cost_one_try():
    calls = [(number, 0) for number in range(4)]
    with ProcessMapper(2) as mapper:
        for process in {process for _, process in mapper(square, calls, DEFAULT_RESOURCES)}:
            os.kill(process, signal.SIGKILL)
        while not mapper._pool._broken:  # until the pool has noticed
            time.sleep(0.01)
        with pytest.raises(BrokenExecutor):
            list(mapper(square, calls, DEFAULT_RESOURCES))
        assert [value for value, _ in mapper(square, calls, DEFAULT_RESOURCES)] == [0, 1, 4, 9]


def test_part_whose_process_is_killed_again_is_named_with_remedy(tmp_path):
    """A neighbouring part may be named: a pool does not say which process ran which part."""
    sentence = r"^[ab]: the worker process .* was killed, .*; run again with fewer workers"
    with ProcessMapper(2) as mapper, pytest.raises(HallmarkError, match=sentence):
        StageContext(tmp_path, {"count": COUNT}, mapper).map_items(die, ["a", "b"])


def test_missing_ray_is_reported_with_package_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"hallmark\[ray\]"):
        list(make_mapper("ray", 1)(square, [(1, 0), (2, 0)], DEFAULT_RESOURCES))


@pytest.mark.slow
def test_every_mapper_writes_the_same_bytes(ray, tmp_path):
    found = set()
    mappers = {"here": SerialMapper(), "two": ProcessMapper(2), "seven": ProcessMapper(7)}
    for name, mapper in mappers.items():
        with open_session(Session(Store(tmp_path / name), mapper)):
            found.add(drop(make(MakeConfig(parts=8)), DropConfig()).content_digest)
    session = Session(Store(tmp_path / "ray"), ray)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(ray), "__exit__", lambda *_: None)  # the cluster serves other tests too
        with open_session(session):
            made = drop(make(MakeConfig(parts=8)), DropConfig())
    found.add(made.content_digest)
    assert len(found) == 1
    assert len(made["documents"].parts) == 8


def count_part(number: int, out) -> None:
    out.get_table_writer("count").write(pa.table({"rows": [number]}))


@pytest.mark.slow
def test_parts_on_ray_are_kept_in_their_place(ray, tmp_path):
    work = StageContext(tmp_path, {"count": COUNT}, ray)
    work.map_items(count_part, range(5))
    entry = work.assemble_tables(["count"])["count"]
    assert [part["name"] for part in entry["parts"]] == [f"count/{n:05d}.parquet" for n in range(5)]
    assert all((work.output_folder / part["name"]).exists() for part in entry["parts"])


def test_workers_have_the_environment_of_their_start(monkeypatch):
    """This also holds if the server that forks them was started before it changed."""
    for value in ("before", "behind"):
        monkeypatch.setenv("HALLMARK_SAID", value)
        with ProcessMapper(2) as mapper:
            assert (
                list(mapper(os.getenv, [("HALLMARK_SAID",)] * 2, DEFAULT_RESOURCES)) == [value] * 2
            )


@pytest.mark.slow
def test_a_tokenizer_starts_no_threads_in_a_worker(ray, monkeypatch):
    """Unless the user decides otherwise."""
    call = ("TOKENIZERS_PARALLELISM",)
    monkeypatch.delenv(*call, raising=False)
    assert [*ray(os.getenv, [call] * 2, DEFAULT_RESOURCES)] == ["false"] * 2
    with ProcessMapper(2) as mapper:
        assert [*mapper(os.getenv, [call] * 2, DEFAULT_RESOURCES)] == ["false"] * 2
    monkeypatch.setenv(*call, "true")
    with ProcessMapper(2) as mapper:
        assert [*mapper(os.getenv, [call] * 2, DEFAULT_RESOURCES)] == ["true"] * 2


@pytest.mark.parametrize("address", ["{}", "ray://127.0.0.1:9", "127.0.0.1:9", "127.0.0.1:99999"])
def test_an_address_without_a_ray_cluster_fails_soon(monkeypatch, address):
    """Also where a server accepts connections and never answers."""
    monkeypatch.setattr(ray_mapper, "ANSWER_TIMEOUT_SECONDS", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = address.format(f"127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("RAY_ADDRESS", address)
        start = time.monotonic()
        sentence = f"no Ray cluster responds at '{address}' (the address in RAY_ADDRESS); correct"
        with pytest.raises(HallmarkError, match=re.escape(sentence)), make_mapper("ray", 2):
            pass
        assert time.monotonic() - start < 30


@pytest.mark.parametrize("address", ["auto", "local", ""])
def test_a_cluster_of_this_machine_is_left_to_ray(address):
    ray_mapper.check_ray_cluster_answers(address)


@pytest.mark.slow
def test_without_an_address_no_running_cluster_is_used(monkeypatch):
    """Ray itself would connect to the cluster that ``ray start`` noted in its folder."""
    folder = tempfile.mkdtemp(prefix="ray")  # its sockets need a short path
    Path(folder, "ray").mkdir()
    Path(folder, "ray", "ray_current_cluster").write_text("127.0.0.1:9")
    monkeypatch.setenv("RAY_TMPDIR", folder)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code = (
        "from hallmark.tasks.contract import Resources, make_mapper\n"
        "def double(number):\n"
        "    return 2 * number\n"
        "with make_mapper('ray', 1) as mapper:\n"
        "    print([*mapper(double, [(1,), (2,)], Resources())])\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.stdout == "[2, 4]\n", process.stderr


@pytest.mark.slow
def test_a_running_cluster_answers(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    start = ["start", "--head", "--port", f"{port}", "--num-cpus", "1", "--include-dashboard=false"]
    start += ["--temp-dir", tempfile.mkdtemp(prefix="ray")]  # its sockets need a short path
    process = subprocess.Popen([*ray, *start, "--block"], stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while True:
            try:
                ray_mapper.check_ray_cluster_answers(f"127.0.0.1:{port}")
                break
            except HallmarkError:
                assert time.monotonic() < end
                time.sleep(0.5)
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        with pytest.raises(HallmarkError, match=r"requires a token; set RAY_AUTH_MODE=token"):
            ray_mapper.check_ray_cluster_answers(f"127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(timeout=60)
