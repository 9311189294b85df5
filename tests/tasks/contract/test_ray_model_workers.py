"""Test the Ray actors for items that share a model: their life, resources, errors and deaths."""

import functools
import os
import signal
import time
from concurrent.futures import BrokenExecutor
from pathlib import Path

import psutil
import pytest

from hallmark.tasks.contract import HallmarkError, Resources, StageContext, make_mapper
from hallmark.tasks.contract.resources import DEFAULT_RESOURCES
from tests.tasks.contract.test_mappers import die_once

pytestmark = pytest.mark.slow

ON_CPU = Resources(shares_model=True)


@pytest.fixture(scope="module")
def ray():
    """Start one cluster with two processors and two GPUs, which only Ray believes in."""
    import ray as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "init", functools.partial(module.init, num_gpus=2))
        with make_mapper("ray", 2) as mapper:
            yield mapper


def get_process(number: int) -> int:
    return os.getpid()


def meet(number: int, folder: str, process_count: int) -> int:
    """Return the process once as many processes as that run an item."""
    (Path(folder) / str(os.getpid())).touch()
    while len(os.listdir(folder)) < process_count:
        time.sleep(0.01)
    return os.getpid()


def describe_worker(number: int, folder: str, process_count: int) -> dict:
    """Return the resources, the GPUs and the threads of the process."""
    import ray
    import torch

    meet(number, folder, process_count)
    context = ray.get_runtime_context()
    return {
        "resources": dict(context.get_assigned_resources()),
        "gpus": (*context.get_accelerator_ids()["GPU"], os.environ.get("CUDA_VISIBLE_DEVICES")),
        "threads": torch.get_num_threads(),
    }


def stay(number: int) -> int:
    """Return the process at once for 0; for other numbers, run until the process is killed."""
    while number:
        time.sleep(0.1)
    return os.getpid()


def refuse(number: int) -> int:
    if number == 3:
        raise HallmarkError("three is refused; give another")
    return number


def die(item: str, out) -> None:
    if item == "b":
        os.kill(os.getpid(), signal.SIGKILL)


def find_processes(ray, folder: Path, resources: Resources = ON_CPU, count: int = 2) -> set[int]:
    """Return the processes of as many workers, which run items at the same time."""
    folder.mkdir()
    calls = [(number, str(folder), count) for number in range(6)]
    return {*ray(meet, calls, resources)}


@pytest.mark.slow
def test_processes_last_until_items_with_other_resources_run(ray, tmp_path):
    """Otherwise the other items would wait for processors that nobody uses.

    Also a single item runs in these processes, so that the main process never opens the model.
    """
    processes = find_processes(ray, tmp_path / "first")
    assert len(processes) == 2 and os.getpid() not in processes
    assert find_processes(ray, tmp_path / "again") == processes
    assert {*ray(get_process, [(0,)], ON_CPU)} < processes
    assert find_processes(ray, tmp_path / "others", DEFAULT_RESOURCES).isdisjoint(processes)
    wait_until_gone(processes)
    processes = find_processes(ray, tmp_path / "whole", Resources(cpus=2, shares_model=True), 1)
    assert find_processes(ray, tmp_path / "last").isdisjoint(processes)
    wait_until_gone(processes)


def wait_until_gone(processes: set[int]) -> None:
    end = time.monotonic() + 60
    while any(map(psutil.pid_exists, processes)):
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(("threads", "cpus"), [(1, 1), (5, 2)])
def test_a_worker_on_cpus_has_the_threads_of_the_main_process(
    ray, tmp_path, monkeypatch, threads, cpus
):
    """Otherwise, sums would have other last bits. More threads take a whole machine."""
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    resources = ray.choose_model_resources("cpu")
    assert resources == Resources(cpus=cpus, shares_model=True)
    (worker,) = ray(describe_worker, [(0, str(tmp_path), 1)], resources)
    assert worker["resources"] == {"CPU": cpus} and worker["threads"] == threads


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:1"])
def test_each_worker_on_a_gpu_has_its_own(ray, tmp_path, device):
    """Ray decides which one; the worker sees no other."""
    resources = ray.choose_model_resources(device)
    assert resources == Resources(gpus=1, shares_model=True)
    calls = [(number, str(tmp_path), 2) for number in range(6)]
    workers = list(ray(describe_worker, calls, resources))
    assert {worker["gpus"] for worker in workers} == {("0", "0"), ("1", "1")}
    assert all(worker["resources"] == {"CPU": 1, "GPU": 1} for worker in workers)


@pytest.mark.parametrize(
    ("setting", "device"), [("cpu", "cpu"), ("auto", "cuda"), ("cuda:7", "cuda")]
)
def test_a_stage_opens_the_model_on_the_device_of_its_worker(ray, tmp_path, setting, device):
    context = StageContext(tmp_path, {}, ray)
    assert context.share_model_between_items(setting) == device
    assert context.mapper is ray and context.resources.gpus == (device == "cuda")


def test_without_ray_the_main_process_shares_its_model(tmp_path):
    with make_mapper("processes", 2) as mapper:
        context = StageContext(tmp_path, {}, mapper)
        assert context.share_model_between_items("auto") == "auto"
        assert list(context.mapper(get_process, [(0,), (1,)], ON_CPU)) == [os.getpid()] * 2


def test_an_error_is_raised_in_its_place(ray):
    results = ray(refuse, [(number,) for number in range(6)], ON_CPU)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(HallmarkError, match=r"^three is refused; give another$"):
        next(results)


@pytest.mark.slow
def test_an_interrupt_ends_the_processes(ray):
    """Otherwise their items would run on, and the next call would wait for them."""
    results = ray(stay, [(number,) for number in range(4)], ON_CPU)
    process = next(results)
    with pytest.raises(KeyboardInterrupt):
        results.throw(KeyboardInterrupt)
    wait_until_gone({process})
    assert list(ray(refuse, [(1,)], ON_CPU)) == [1]


def test_a_killed_worker_repeats_only_its_item(ray, tmp_path):
    calls = [(number, str(tmp_path)) for number in range(6)]
    assert list(ray(die_once, calls, ON_CPU)) == list(range(6))
    runs = [len((tmp_path / str(number)).read_text()) for number in range(6)]
    assert runs == [1, 1, 1, 2, 1, 1]


@pytest.mark.slow
def test_workers_that_die_between_calls_are_replaced(ray, tmp_path):
    processes = find_processes(ray, tmp_path / "before")
    for process in processes:
        os.kill(process, signal.SIGKILL)
    assert find_processes(ray, tmp_path / "after").isdisjoint(processes)


@pytest.mark.slow
def test_an_item_that_kills_each_worker_is_named(ray, tmp_path):
    sentence = r"^b: the worker process .* was killed, .*; run again with fewer workers"
    context = StageContext(tmp_path, {}, ray, resources=ON_CPU, max_retries=0)
    with pytest.raises(HallmarkError, match=sentence) as error:
        context.map_items(die, ["a", "b"])
    assert isinstance(error.value.__cause__, BrokenExecutor)
    assert str(error.value.__cause__) == "a Ray worker died 4 times"
    assert list(ray(refuse, [(1,)], ON_CPU)) == [1]
