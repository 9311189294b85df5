"""Test that hosts meet, train together, and notice when one of them is lost."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from hallmark.model.config import RendezvousAddress, TrainConfig
from hallmark.model.training import hosts
from hallmark.model.training.hosts import OtherHosts, TrainingOffer, join_training
from hallmark.model.training.job import (
    JOIN_OPTION,
    PEER_ENDED_EXIT_CODE,
    WATCH_STDIN_OPTION,
    read_job,
)
from hallmark.model.training.run import MODULE
from hallmark.model.training.training_step import TrainingError
from hallmark.tasks.contract import PROJECT_ROOT
from tests.model.training.training import assert_same_run, finish, follow, write_job

OFFER = TrainingOffer("pretrain-0123", "0" * 64, 1, "cpu")


def find_free_address(host="127.0.0.1"):
    with socket.socket() as free:
        free.bind((host, 0))
        return RendezvousAddress(host, free.getsockname()[1])


@pytest.fixture
def store():
    return TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=5))


# The settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"hosts": 2},
            "hosts is 2, but rendezvous is not set: set rendezvous to the first host's address",
        ),
        ({"rendezvous": "10.0.0.1:1"}, "rendezvous is set, but hosts is 1"),
        ({"hosts": 0}, "hosts must be"),
        ({"hosts": 2, "rendezvous": "10.0.0.1"}, "rendezvous must be HOST:PORT"),
        ({"hosts": 2, "rendezvous": "10.0.0.1:0"}, "rendezvous must be HOST:PORT"),
        ({"hosts": 2, "rendezvous": "10.0.0.1:65536"}, "rendezvous must be HOST:PORT"),
        ({"hosts": 2, "rendezvous": "-h:1"}, "rendezvous must be HOST:PORT"),
        ({"hosts": 2, "rendezvous": "a b:1"}, "rendezvous must be HOST:PORT"),
        ({"hosts": 2, "rendezvous": "a:1\n"}, "rendezvous must be HOST:PORT"),
        (
            {"hosts": 3, "processes": 2, "rendezvous": "a:1", "batch_size": 8},
            "not divisible by accumulation_steps 1 x processes 2 x hosts 3",
        ),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**settings)


def test_an_address_is_parsed():
    config = TrainConfig(hosts=2, rendezvous="node-1.example:29500")
    assert config.parse_rendezvous() == ("node-1.example", 29500)
    assert str(config.parse_rendezvous()) == config.rendezvous


# The rendezvous ------------------------------------------------------------------------------


def test_the_first_host_listens_only_at_the_address():
    address = find_free_address("127.0.0.2")
    server = hosts.serve_store(address)
    assert hosts.is_listening(address)
    assert not hosts.is_listening(address._replace(host="127.0.0.1"))
    server.set("offer", json.dumps(asdict(OFFER)))
    assert hosts.read_offer(hosts.connect_to_store(address)) == OFFER


def test_an_address_that_is_in_use_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = RendezvousAddress("127.0.0.1", other.getsockname()[1])
        with pytest.raises(TrainingError, match=r"cannot listen on .*Address already in use"):
            hosts.serve_store(address)


def test_an_address_of_another_host_is_one_sentence():
    with pytest.raises(TrainingError, match=r"cannot listen on 192\.0\.2\.1:2"):
        hosts.serve_store(RendezvousAddress("192.0.2.1", 2))


def test_a_name_that_other_hosts_cannot_use_is_refused(monkeypatch):
    found = [(socket.AF_INET, None, None, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    with pytest.raises(TrainingError, match=r"node1 resolves to 127\.0\.1\.1 on this host"):
        hosts.serve_store(RendezvousAddress("node1", 2))


def test_a_server_of_another_kind_is_one_sentence(monkeypatch):
    monkeypatch.setattr(hosts, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = RendezvousAddress("127.0.0.1", other.getsockname()[1])
        with pytest.raises(TrainingError, match=f"No Hallmark training run responds at {address}"):
            hosts.connect_to_store(address)


def test_a_store_without_an_offer_is_one_sentence(store):
    store.set_timeout(timedelta(milliseconds=100))
    with pytest.raises(TrainingError, match="did not send a description of its training run"):
        hosts.read_offer(store)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 100_000,
        json.dumps(asdict(OFFER) | {"more": 1}).encode(),
        json.dumps(asdict(OFFER) | {"folder": "../etc"}).encode(),
        json.dumps(asdict(OFFER) | {"folder": 1}).encode(),
        json.dumps(asdict(OFFER) | {"job_sha256": "0"}).encode(),
        json.dumps(asdict(OFFER) | {"processes": True}).encode(),
        json.dumps(asdict(OFFER) | {"device": "tpu"}).encode(),
    ],
)
def test_an_invalid_offer_is_refused(data):
    with pytest.raises(TrainingError, match="is not running a Hallmark training run"):
        TrainingOffer.parse(data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"job_sha256": "1" * 64}, "The job file differs"),
        ({"processes": 2}, r"The number of processes differs between this host \(1\) and the"),
        ({"device": "cuda"}, r"The device differs between this host \(cpu\) and the first host"),
    ],
)
def test_an_offer_of_another_training_is_refused(changes, message):
    offer = TrainingOffer(**asdict(OFFER) | changes)
    with pytest.raises(TrainingError, match=message):
        OFFER.check_equal(offer)
    offer.check_equal(TrainingOffer(**asdict(offer) | {"folder": "another"}))


# What the first host sees of the others ------------------------------------------------------

ADDRESS = RendezvousAddress("10.0.0.1", 29500)


def test_a_host_that_does_not_come_ends_the_training(store, monkeypatch, capsys):
    monkeypatch.setattr(hosts, "JOIN_SECONDS", 0.1)
    store.add("places", 1)
    with pytest.raises(
        TrainingError, match=r"Only 2 of 3 hosts joined at 10\.0\.0\.1:29500 within 0\.1 seconds"
    ):
        OtherHosts(store, 2).wait_until_joined(ADDRESS)
    (event,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (event["event"], event["joined"], event["hosts"]) == ("hosts", 2, 3)


def test_a_host_that_is_lost_before_all_have_come_ends_the_training(store, monkeypatch):
    monkeypatch.setattr(hosts, "SILENCE_SECONDS", 0.1)
    store.add("places", 1)
    store.set("name/1", "b\x1b[31m" + "x" * 100)
    with pytest.raises(TrainingError, match=r"The host b\?\?31mx{58} no longer answers") as caught:
        OtherHosts(store, 2).wait_until_joined(ADDRESS)
    assert "x" * 59 not in str(caught.value)


def test_hosts_that_raise_their_counters_are_not_lost(store, monkeypatch):
    monkeypatch.setattr(hosts, "SILENCE_SECONDS", 0.3)
    others, joined = OtherHosts(store, 1), threading.Event()
    store.add("places", 1)

    def beat():
        other_connection = TCPStore("127.0.0.1", store.port, is_master=False)
        while not joined.wait(0.05):
            other_connection.add("alive/1", 1)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            assert others._list_silent_hosts(1, hosts.SILENCE_SECONDS) == []
            time.sleep(0.05)
    finally:
        joined.set()
        thread.join()
    while not others._list_silent_hosts(1, hosts.SILENCE_SECONDS):
        time.sleep(0.05)
    store.set("ended/1", "0")  # one that has ended is not lost
    assert others._list_silent_hosts(1, hosts.SILENCE_SECONDS) == []
    others.wait_until_ended()


@pytest.mark.parametrize(
    ("ended", "message"),
    [
        ({1: PEER_ENDED_EXIT_CODE, 2: 1}, "Training failed on host c with exit code 1. See"),
        ({1: 137, 2: PEER_ENDED_EXIT_CODE}, "failed on host b with exit code 137. See"),
        ({1: "\x1b[31m", 2: 0}, "failed on host b with exit code 1. See"),
        ({1: PEER_ENDED_EXIT_CODE}, "The host c no longer answers, so training has stopped"),
        ({}, "The hosts b, c do not answer, so training has stopped"),
        ({1: PEER_ENDED_EXIT_CODE, 2: 0}, None),
    ],
)
def test_the_host_that_failed_is_named(store, monkeypatch, ended, message):
    monkeypatch.setattr(hosts, "SHORT_SILENCE_SECONDS", 0.1)
    store.set("name/1", "b")
    store.set("name/2", "c")
    for host, code in ended.items():
        store.set(f"ended/{host}", str(code))
    explanation = OtherHosts(store, 2).explain_failure()
    assert explanation is None if message is None else re.search(message, explanation)


def test_a_host_that_joins_too_late_is_refused(inputs, tmp_path):
    address = find_free_address()
    job_path = write_job(inputs, tmp_path / "work", hosts=2, rendezvous=str(address))
    job = read_job(str(job_path))
    server = hosts.serve_store(address)
    server.set("offer", json.dumps(asdict(TrainingOffer.from_job(job, job_path, 1))))
    server.add("places", 1)
    with pytest.raises(TrainingError, match="All 2 hosts have already joined this training run"):
        join_training(job, job_path, 1, MODULE, [])
    job_path.write_text(job_path.read_text() + "\n")
    with pytest.raises(TrainingError, match="The job file differs between this host"):
        join_training(job, job_path, 1, MODULE, [])


# Real trainings on two "hosts" of this machine -----------------------------------------------


def start(job, *options, network=None):
    """Start a trainer, on this host or on one that has a network of its own and is named so."""
    host = []
    if network is not None:
        host = ["ip", "netns", "exec", network, "unshare", "--uts", "sh", "-c"]
        host += [f'hostname {network} && exec "$@"', "sh"]
    return subprocess.Popen(
        [*host, sys.executable, "-m", MODULE, str(job), WATCH_STDIN_OPTION, *options],
        cwd=PROJECT_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_two_hosts(job):
    """Start a training; return the trainers of both hosts when both have joined."""
    first = start(job)
    follow(first, lambda event: event["event"] == "hosts" and event["joined"] == 1)
    second = start(job, JOIN_OPTION)
    follow(second, lambda event: event["event"] == "joined" and event["host"] == 2)
    return first, second


@pytest.mark.slow
def test_two_hosts_give_the_bytes_of_one_host_with_two_processes(inputs, tmp_path):
    reference, work = tmp_path / "reference", tmp_path / "work"
    single = start(write_job(inputs, reference, model={"dropout": 0.1}, processes=2))
    settings = {"hosts": 2, "rendezvous": str(find_free_address()), "processes": 1}
    job = write_job(inputs, work, model={"dropout": 0.1}, **settings)
    assert finish(single)[0] == 0
    first, second = start_two_hosts(job)
    code, events = finish(first)
    assert code == 0 and events[-1]["event"] == "done"
    assert finish(second) == (0, [])
    assert_same_run(work, reference)
    (segment,) = events[-1]["history"]
    assert (segment["settings"]["hosts"], segment["settings"]["processes"]) == (2, 1)
    assert "rendezvous" not in segment["settings"]


@pytest.fixture
def networks():
    """Return the names of two network namespaces with the addresses 10.77.0.1 and 10.77.0.2."""
    token = secrets.token_hex(3)
    names = [f"first-{token}", f"second-{token}"]
    first_device, second_device = f"a{token}", f"b{token}"
    try:
        for name in names:
            if shutil.which("ip") is None or run_ip("netns", "add", name).returncode:
                pytest.skip("cannot create network namespaces")
        link = ["link", "add", first_device, "netns", names[0], "type", "veth", "peer", "name"]
        assert run_ip(*link, second_device, "netns", names[1]).returncode == 0
        for number, (name, device) in enumerate(
            zip(names, (first_device, second_device), strict=True), 1
        ):
            run_ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", device)
            for interface in ("lo", device):
                run_ip("-n", name, "link", "set", interface, "up")
        yield names, second_device
    finally:
        for name in names:
            run_ip("netns", "delete", name)


def run_ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True)


@pytest.mark.slow
def test_a_host_without_network_ends_the_training_on_both(inputs, tmp_path, networks):
    """The connections are cut without notice, as if a host lost its power."""
    (first_network, second_network), device = networks
    long = {"steps": 100_000, "checkpoint_every": 100_000, "validate_every": 100_000}
    settings = {"hosts": 2, "rendezvous": "10.77.0.1:29500"}
    job = write_job(inputs, tmp_path / "work", **long, **settings)
    first = start(job, network=first_network)
    follow(first, lambda event: event["event"] == "hosts" and event["joined"] == 1)
    second = start(job, JOIN_OPTION, network=second_network)
    follow(first, lambda event: event["event"] == "step")
    addresses = list_listening_addresses(first_network)
    assert addresses == {"10.77.0.1"}
    assert run_ip("-n", second_network, "link", "set", device, "down").returncode == 0
    message = follow(first, lambda event: event["event"] == "error")["message"]
    assert f"The host {second_network} no longer answers, so training" in message
    message = follow(second, lambda event: event["event"] == "error")["message"]
    assert "The first host, 10.77.0.1:29500, no longer responds" in message
    for process in (first, second):
        process.communicate()  # closes stdin, so that the processes of the training end
        assert process.returncode == 1


def list_listening_addresses(network):
    """Return the addresses at which anything listens in a network namespace."""
    command = ["ip", "netns", "exec", network, "cat", "/proc/net/tcp", "/proc/net/tcp6"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [line.split() for line in lines]
    listening = [row[1].split(":")[0] for row in rows if row[3] == "0A"]  # TCP_LISTEN
    return {
        socket.inet_ntoa(bytes.fromhex(address)[::-1]) if len(address) == 8 else address
        for address in listening
    }


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["first", "second"])
def test_a_killed_host_ends_the_training_which_one_host_continues(inputs, tmp_path, killed):
    long = {"steps": 5000, "checkpoint_every": 20, "validate_every": 5000, "sample_count": 0}
    settings = {"hosts": 2, "rendezvous": str(find_free_address())}
    first, second = start_two_hosts(write_job(inputs, tmp_path / "work", **long, **settings))
    follow(first, lambda event: event["event"] == "checkpoint" and event["step"] == 20)
    process, survivor = (first, second) if killed == "first" else (second, first)
    process.kill()
    process.communicate()
    events = [json.loads(line) for line in survivor.stdout]
    assert survivor.wait(timeout=60) == 1
    survivor.communicate()
    message = events[-1]["message"]
    if killed == "first":
        assert "See the run for the reason" in message
    else:
        assert f"The host {socket.gethostname()} no longer answers" in message
    alone = start(write_job(inputs, tmp_path / "work", **long))
    event = follow(alone, lambda event: event["event"] == "start")
    assert event["resumed"] and event["step"] >= 20 and event["processes"] == 1
    alone.kill()
    alone.communicate()
