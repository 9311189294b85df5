"""Test local processes as a mapper: when they start, that they are reused, and how they end."""

import os
import signal

import psutil
import pytest

from hallmark.tasks.contract import ProcessMapper, Resources, SerialMapper, make_mapper
from hallmark.tasks.contract.resources import DEFAULT_RESOURCES


def pair(number, offset):
    return number + offset, os.getpid()


def refuse(number):
    if number == 2:
        raise ValueError("two is refused")
    return number


def end(number):
    os.kill(os.getpid(), signal.SIGKILL)


def test_mapper_depends_on_kind_and_worker_count():
    assert isinstance(make_mapper("processes", 0), SerialMapper)
    assert isinstance(make_mapper("processes", 1), SerialMapper)
    many = make_mapper("processes", 2)
    assert isinstance(many, ProcessMapper) and many.worker_count == 2
    assert Resources() == DEFAULT_RESOURCES == Resources(cpus=1, memory_bytes=0, gpus=0)


def test_single_item_runs_here_and_several_run_in_reused_workers():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with ProcessMapper(2) as mapper:
        assert list(mapper(pair, [], DEFAULT_RESOURCES)) == []
        assert list(mapper(pair, [(3, 4)], DEFAULT_RESOURCES)) == [(7, os.getpid())]
        found = [
            list(mapper(pair, [(n, 1) for n in range(9)], DEFAULT_RESOURCES)) for _ in range(2)
        ]
        for values in found:
            assert [value for value, _ in values] == list(range(1, 10))
        workers = {process for values in found for _, process in values}
        assert os.getpid() not in workers and 1 <= len(workers) <= 2
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
        with pytest.raises(ValueError, match="two is refused"):
            list(mapper(refuse, [(n,) for n in range(4)], DEFAULT_RESOURCES))
        with pytest.raises(Exception, match="terminated abruptly"):
            list(mapper(end, [(0,), (1,)], DEFAULT_RESOURCES))
        again = list(mapper(pair, [(0, 0), (1, 0)], DEFAULT_RESOURCES))
        assert [value for value, _ in again] == [0, 1]
        workers |= {process for _, process in again}
    assert not any(map(psutil.pid_exists, workers))


def test_items_in_this_process_run_lazily():
    done = []
    with SerialMapper() as mapper:
        results = mapper(done.append, [(1,), (2,)], DEFAULT_RESOURCES)
        assert done == []
        assert next(results) is None and done == [1]
        assert list(results) == [None] and done == [1, 2]
