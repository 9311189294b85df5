"""Mappers agree: in this process, in several, and on Ray, into a folder and an S3 bucket."""

import os
import signal
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.contract import (
    HallmarkError,
    InProcess,
    Needs,
    Processes,
    Session,
    Store,
    UsageError,
    Work,
    make_mapper,
    open_session,
)
from tasks.contract.mappers import ONE
from tests.tasks.contract.stages import COUNT, DropConfig, MakeConfig, drop, make


def square(number: int, offset: int) -> tuple[int, int]:
    return number * number + offset, os.getpid()


def refuse(number: int, offset: int) -> int:
    if number == 3:
        raise HallmarkError("three is refused; give another")
    return number


def die_once(number: int, flag: str) -> int:
    """Kills its own process the first time that it is asked for 3."""
    if number == 3 and not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.fixture(scope="module")
def ray():
    """One cluster of two workers on this machine, for all tests of the module."""
    with make_mapper("ray", 2) as mapper:
        yield mapper


def test_results_come_in_order_from_other_processes(ray):
    calls = [(number, 7) for number in range(40)]
    found = list(ray(square, calls, Needs(processors=1, memory=1 << 20)))
    assert [value for value, _ in found] == [n * n + 7 for n in range(40)]
    assert os.getpid() not in {process for _, process in found}


def test_an_error_comes_as_it_was_raised(ray):
    with pytest.raises(HallmarkError, match=r"^three is refused; give another$"):
        list(ray(refuse, [(n, 0) for n in range(6)], ONE))


def test_a_killed_ray_worker_costs_its_part(ray, tmp_path):
    calls = [(n, str(tmp_path / "flag")) for n in range(6)]
    assert list(ray(die_once, calls, ONE)) == list(range(6))
    assert (tmp_path / "flag").exists()


def test_without_ray_the_setting_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"hallmark\[ray\]"):
        list(make_mapper("ray", 1)(square, [(1, 0), (2, 0)], ONE))


def test_every_mapper_leaves_the_same_bytes(ray, tmp_path):
    found = set()
    mappers = {"here": InProcess(), "two": Processes(2), "seven": Processes(7)}
    for name, mapper in mappers.items():
        with open_session(Session(Store(tmp_path / name), mapper)):
            found.add(drop(make(MakeConfig(parts=8)), DropConfig()).content)
    session = Session(Store(tmp_path / "ray"), ray)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(ray), "__exit__", lambda *_: None)  # the cluster serves other tests too
        with open_session(session):
            made = drop(make(MakeConfig(parts=8)), DropConfig())
    found.add(made.content)
    assert len(found) == 1
    assert len(made["documents"].parts) == 8


def count_part(number: int, out) -> None:
    out.table("count").write(pa.table({"rows": [number]}))


def test_parts_on_ray_are_left_where_they_stay(ray, tmp_path):
    work = Work(tmp_path, {"count": COUNT}, ray)
    work.map(count_part, range(5))
    entry = work.assemble(["count"])["count"]
    assert [part["name"] for part in entry["parts"]] == [f"count/{n:05d}.parquet" for n in range(5)]
    assert all((work.out / part["name"]).exists() for part in entry["parts"])


def test_workers_see_the_environment_as_it_is_when_they_start(monkeypatch):
    """Also where what they are forks of was started before it changed."""
    for value in ("before", "behind"):
        monkeypatch.setenv("HALLMARK_SAID", value)
        with Processes(2) as mapper:
            assert list(mapper(os.getenv, [("HALLMARK_SAID",)] * 2, ONE)) == [value] * 2
