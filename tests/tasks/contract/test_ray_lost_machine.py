"""Test that the work of a machine that leaves a Ray cluster is done by the others."""

import os
import threading
import time
from pathlib import Path

import psutil
import pytest

from hallmark.tasks.contract import Resources, make_mapper


def wait_for_file(number: int, folder: str) -> int:
    """Write a file with the id of the process, wait for the file ``go``, and return the id."""
    (Path(folder) / str(os.getpid())).touch()
    while not (Path(folder) / "go").exists():
        time.sleep(0.01)
    return os.getpid()


@pytest.mark.slow
def test_items_of_a_lost_machine_run_on_the_others(tmp_path, monkeypatch):
    """No machine has processors for another worker in place of the lost one."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    lost_processes = []
    try:
        _, lost_machine = (cluster.add_node(num_cpus=1) for _ in range(2))
        cluster.wait_for_nodes()
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)

        def lose_machine():
            while len(processes := [int(path.name) for path in tmp_path.iterdir()]) < 2:
                time.sleep(0.01)
            cluster.remove_node(lost_machine, allow_graceful=False)
            while all(map(psutil.pid_exists, processes)):
                time.sleep(0.01)
            lost_processes.extend(set(processes) - set(psutil.pids()))
            (tmp_path / "go").touch()

        with make_mapper("ray", 1) as mapper:
            thread = threading.Thread(target=lose_machine)
            thread.start()
            calls = [(number, str(tmp_path)) for number in range(5)]
            processes = list(mapper(wait_for_file, calls, Resources(shares_model=True)))
            thread.join()
    finally:
        cluster.shutdown()
    (remaining_process,) = {*processes}
    assert len(processes) == 5 and lost_processes and remaining_process not in lost_processes
