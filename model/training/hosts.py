"""Train on several hosts, which meet at an address of the first one.

The first host serves a ``TCPStore`` at the address of the ``rendezvous`` setting, and nowhere else.
The others join there, and torchrun uses the same store through its static rendezvous: that of the
kind c10d would unpickle what it reads. Whoever reaches the address may write to the store, so all
that is read from it is checked.

    offer        what the first host trains, as JSON; see ``TrainingOffer``
    places       number of hosts that have joined
    name/<n>     name of host n, counted from 1
    alive/<n>    a counter, which host n raises while its trainer runs
    complete     exists as soon as all hosts have joined
    ended/<n>    exit code of the trainer on host n

The first host knows from the counters, by its own clock, whether another host still works. The
others know it from the answers of the first host.
"""

from __future__ import annotations

import fcntl
import hashlib
import ipaddress
import json
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

from hallmark.model.config import RendezvousAddress, TrainConfig
from hallmark.model.training import parallel
from hallmark.model.training.job import PEER_ENDED_EXIT_CODE, TrainingJob, emit_event
from hallmark.model.training.training_step import TrainingError

#: Seconds that the first host waits for the others.
JOIN_SECONDS = 600.0

#: Seconds between two signs of life of a host.
HEARTBEAT_SECONDS = 3.0

#: Seconds without a sign of life after which a host counts as lost.
SILENCE_SECONDS = 30.0

#: Seconds without a sign of life after which a host is named as lost if the training has failed.
SHORT_SILENCE_SECONDS = 4 * HEARTBEAT_SECONDS

#: Seconds in which the store must answer.
ANSWER_SECONDS = 20.0

MAX_NAME_CHARACTERS = 64

#: Of Linux (linux/sockios.h): read the address of a network interface.
SIOCGIFADDR = 0x8915

RERUN_ADVICE = (
    "run the command again, and hallmark join-training on the other hosts, to continue from the "
    "last saved state"
)


@dataclass(frozen=True)
class TrainingOffer:
    """What the first host trains; the others must have the same.

    Attributes:
        folder: Name of the folder of the job.
        job_sha256: SHA-256 of the job file.
        processes: Number of processes on each host.
        device: Type of the device.
    """

    folder: str
    job_sha256: str
    processes: int
    device: str

    @classmethod
    def from_job(cls, job: TrainingJob, job_path: Path, process_count: int) -> TrainingOffer:
        is_cuda = job.train_config.device != "cpu" and torch.cuda.is_available()
        return cls(
            job_path.absolute().parent.name,
            hashlib.sha256(job_path.read_bytes()).hexdigest(),
            process_count,
            "cuda" if is_cuda else "cpu",
        )

    @classmethod
    def parse(cls, data: bytes) -> TrainingOffer:
        """Parse an offer that another host sent.

        Raises:
            TrainingError: It is no offer.
        """
        try:
            fields = json.loads(data)
            offer = cls(**fields)
            is_valid = (
                re.fullmatch(r"\w[\w.-]{0,199}", offer.folder)
                and re.fullmatch(r"[0-9a-f]{64}", offer.job_sha256)
                and type(offer.processes) is int
                and offer.device in ("cpu", "cuda")
            )
        except (ValueError, TypeError, RecursionError):
            is_valid = None
        if not is_valid:
            raise TrainingError(
                "The first host is not running a Hallmark training run: check the rendezvous "
                "setting."
            )
        return offer

    def check_equal(self, other: TrainingOffer) -> None:
        """Raise TrainingError if another host offers something else; ``self`` is of this host."""
        differences = {
            "job file": (self.job_sha256, other.job_sha256),
            "number of processes": (self.processes, other.processes),
            "device": (self.device, other.device),
        }
        for name, (own_value, offered_value) in differences.items():
            if own_value != offered_value:
                raise TrainingError(
                    f"The {name} differs between this host ({own_value}) and the first host "
                    f"({offered_value}): all hosts must use the same store and have the same "
                    "devices."
                )


def serve_store(address: RendezvousAddress) -> TCPStore:
    """Serve a store at an address of this host, and only there.

    Raises:
        TrainingError: This host cannot listen there.
    """
    try:
        ip_address = str(socket.getaddrinfo(address.host, None, socket.AF_INET)[0][4][0])
        is_loopback = ipaddress.ip_address(ip_address).is_loopback
        if is_loopback and address.host not in ("localhost", ip_address):
            raise TrainingError(
                f"{address.host} resolves to {ip_address} on this host, which other hosts cannot "
                "reach: set train.rendezvous to an address that other hosts can reach."
            )
        listener = socket.create_server((ip_address, address.port), backlog=512)
    except OSError as error:
        raise TrainingError(
            f"This host cannot listen on {address} ({error.strerror or error}): set "
            "train.rendezvous to an address of this host and a free port, and run the command here."
        ) from error
    # torchrun looks for a server of its process with this port before it starts its own.
    return TCPStore(
        address.host,
        address.port,
        is_master=True,
        timeout=timedelta(seconds=ANSWER_SECONDS),
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )


def connect_to_store(address: RendezvousAddress) -> TCPStore:
    """Connect to the store of the first host.

    Raises:
        TrainingError: There is no store at the address.
    """
    stores: list[TCPStore] = []

    def connect() -> None:
        timeout = timedelta(seconds=ANSWER_SECONDS)
        with suppress(RuntimeError):
            stores.append(TCPStore(address.host, address.port, is_master=False, timeout=timeout))

    # In a thread, because a server of another kind may never answer.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS + 1)
    if not stores:
        raise TrainingError(
            f"No Hallmark training run responds at {address}: check the rendezvous setting and "
            "the network."
        )
    return stores[0]


def read_offer(store: TCPStore) -> TrainingOffer:
    """Read what the first host trains.

    Raises:
        TrainingError: There is no valid offer.
    """
    try:
        data = store.get("offer")
    except RuntimeError as error:
        raise TrainingError(
            "The first host did not send a description of its training run."
        ) from error
    return TrainingOffer.parse(data)


def is_listening(address: RendezvousAddress) -> bool:
    """Return whether something listens at an address."""
    try:
        with socket.create_connection((address.host, address.port), timeout=2.0):
            return True
    except OSError:
        return False


def _use_interface_to(address: RendezvousAddress) -> None:
    """Let the processes exchange gradients through the interface that leads to an address.

    Otherwise gloo uses the address of the name of the host, which often is a loopback address. The
    user's own choice takes precedence.
    """
    try:
        with socket.create_connection((address.host, address.port), ANSWER_SECONDS) as connection:
            ip_address = connection.getsockname()[0]
    except OSError as error:
        raise TrainingError(_describe_lost_first_host(address)) from error
    for _, interface_name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
            request = struct.pack("256s", interface_name.encode())
            reply = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
            if socket.inet_ntoa(reply[20:24]) == ip_address:
                for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                    os.environ.setdefault(variable, interface_name)


class OtherHosts:
    """The other hosts of a training, as the first one sees them.

    Args:
        store: A connection that only this object uses.
        count: Number of the other hosts.
    """

    def __init__(self, store: TCPStore, count: int) -> None:
        self.store, self.count = store, count
        #: The counter of each host, and when it rose.
        self._signs_of_life: dict[int, tuple[int, float]] = {}
        self._is_watched = True

    def wait_until_joined(self, rendezvous: RendezvousAddress) -> None:
        """Wait for all hosts.

        Raises:
            TrainingError: Not all came in time, or one is lost.
        """
        deadline, reported_count = time.monotonic() + JOIN_SECONDS, -1
        while True:
            joined_count = min(self.store.add("places", 0), self.count)
            if joined_count != reported_count:
                reported_count = joined_count
                emit_event(
                    "hosts",
                    joined=joined_count + 1,
                    hosts=self.count + 1,
                    rendezvous=str(rendezvous),
                )
            if joined_count == self.count:
                return
            if lost_names := self._list_silent_hosts(joined_count, SILENCE_SECONDS):
                raise TrainingError(_describe_lost_hosts(lost_names))
            if time.monotonic() > deadline:
                raise TrainingError(
                    f"Only {joined_count + 1} of {self.count + 1} hosts joined at {rendezvous} "
                    f"within {JOIN_SECONDS:g} seconds: start hallmark join-training on the other "
                    "hosts, and run the command again."
                )
            time.sleep(min(0.2, JOIN_SECONDS))

    def watch_in_background(self) -> None:
        """End this process with an event if a host is lost."""

        def watch() -> None:
            while self._is_watched:
                lost_names = self._list_silent_hosts(self.count, SILENCE_SECONDS)
                if lost_names and self._is_watched:
                    emit_event("error", message=_describe_lost_hosts(lost_names))
                    os._exit(1)
                time.sleep(HEARTBEAT_SECONDS)

        self._thread = threading.Thread(target=watch, daemon=True)
        self._thread.start()

    def stop_watching(self) -> None:
        self._is_watched = False
        self._thread.join()

    def wait_until_ended(self) -> None:
        """Wait until the trainers of all hosts have ended, or until the others are lost."""
        while not all(
            self._has_ended(host) or self._is_silent(host, SHORT_SILENCE_SECONDS)
            for host in range(1, self.count + 1)
        ):
            time.sleep(0.1)

    def explain_failure(self) -> str | None:
        """Name the host on which the training failed; None if it was no other host."""
        self._signs_of_life.clear()
        deadline = time.monotonic() + SHORT_SILENCE_SECONDS + 1
        while time.monotonic() < deadline:
            if lost_names := self._list_silent_hosts(self.count, SHORT_SILENCE_SECONDS):
                return _describe_lost_hosts(lost_names)
            for host in range(1, self.count + 1):
                exit_code = self._read_exit_code(host)
                if exit_code not in (None, 0, PEER_ENDED_EXIT_CODE):
                    return (
                        f"Training failed on host {self._read_name(host)} with exit code "
                        f"{exit_code}. See the output of hallmark join-training on that host for "
                        f"the reason, then {RERUN_ADVICE}."
                    )
            time.sleep(0.5)
        return None

    def _list_silent_hosts(self, joined_count: int, limit_seconds: float) -> list[str]:
        return [
            self._read_name(host)
            for host in range(1, joined_count + 1)
            if not self._has_ended(host) and self._is_silent(host, limit_seconds)
        ]

    def _is_silent(self, host: int, limit_seconds: float) -> bool:
        counter, now = self.store.add(f"alive/{host}", 0), time.monotonic()
        last_counter, rose_at = self._signs_of_life.setdefault(host, (counter, now))
        if counter != last_counter:
            self._signs_of_life[host] = counter, now
            return False
        return now - rose_at > limit_seconds

    def _has_ended(self, host: int) -> bool:
        return bool(self.store.check([f"ended/{host}"]))

    def _read_exit_code(self, host: int) -> int | None:
        if not self._has_ended(host):
            return None
        text = self.store.get(f"ended/{host}")[:8]
        return int(text) if re.fullmatch(rb"\d{1,3}", text) else 1

    def _read_name(self, host: int) -> str:
        key = f"name/{host}"
        data = self.store.get(key)[:MAX_NAME_CHARACTERS] if self.store.check([key]) else b""
        return re.sub(r"[^\w.-]", "?", data.decode(errors="replace")) or f"number {host + 1}"


def _describe_lost_hosts(names: Sequence[str]) -> str:
    label, verb = ("host", "no longer answers") if len(names) == 1 else ("hosts", "do not answer")
    return f"The {label} {', '.join(names)} {verb}, so training has stopped: {RERUN_ADVICE}."


def lead_training(
    job: TrainingJob, job_path: Path, process_count: int, module: str, arguments: Sequence[str]
) -> int:
    """Train on this host, the first one, together with those that join.

    Args:
        job: The job.
        job_path: Its file.
        process_count: Number of processes on this host.
        module: Module that each process runs.
        arguments: Arguments of the module.

    Returns:
        The exit code; see ``parallel.launch_with_torchrun``.

    Raises:
        TrainingError: A host did not come, was lost, or failed.
    """
    address = job.train_config.parse_rendezvous()
    server = serve_store(address)
    server.set("offer", json.dumps(asdict(TrainingOffer.from_job(job, job_path, process_count))))
    other_hosts = OtherHosts(connect_to_store(address), job.train_config.hosts - 1)
    other_hosts.wait_until_joined(address)
    server.set("complete", "yes")
    other_hosts.watch_in_background()
    exit_code = _launch(job.train_config, 0, process_count, module, arguments)
    other_hosts.stop_watching()
    if exit_code == PEER_ENDED_EXIT_CODE:
        raise TrainingError(
            other_hosts.explain_failure()
            or f"The connection between the hosts has failed: {RERUN_ADVICE}."
        )
    if exit_code == 0:
        other_hosts.wait_until_ended()
    return exit_code


def join_training(
    job: TrainingJob, job_path: Path, process_count: int, module: str, arguments: Sequence[str]
) -> int:
    """Train on this host together with the first one, which must be waiting for others.

    Args:
        job: The job.
        job_path: Its file, the same as that of the first host.
        process_count: Number of processes on this host.
        module: Module that each process runs.
        arguments: Arguments of the module.

    Returns:
        The exit code; see ``parallel.launch_with_torchrun``.

    Raises:
        TrainingError: The first host is lost, trains something else, or has enough hosts; or the
            training failed on another host.
    """
    config = job.train_config
    address = config.parse_rendezvous()
    store = connect_to_store(address)
    TrainingOffer.from_job(job, job_path, process_count).check_equal(read_offer(store))
    try:
        host = store.add("places", 1)
        if not 0 < host < config.hosts:
            raise TrainingError(
                f"All {config.hosts} hosts have already joined this training run, so no more "
                "hosts are needed."
            )
        store.set(f"name/{host}", socket.gethostname())
        heartbeat = _Heartbeat(store, address, host)
        emit_event("joined", host=host + 1, hosts=config.hosts)
        while not store.check(["complete"]):
            time.sleep(0.2)
    except RuntimeError as error:
        raise TrainingError(_describe_lost_first_host(address)) from error
    exit_code = _launch(config, host, process_count, module, arguments)
    heartbeat.stop()
    with suppress(RuntimeError):
        store.set(f"ended/{host}", str(exit_code))
    if exit_code == PEER_ENDED_EXIT_CODE:
        raise TrainingError("Training has ended on another host. See the run for the reason.")
    return exit_code


class _Heartbeat:
    """Raise the counter of a host; end this process with an event if the first host is lost.

    A connection that is cut without notice answers nothing and raises no error, so a second thread
    watches the first one.
    """

    def __init__(self, store: TCPStore, address: RendezvousAddress, host: int) -> None:
        self.store, self.address, self.key = store, address, f"alive/{host}"
        self._stopped = threading.Event()
        self._answered_at = time.monotonic()
        for work in (self._beat_until_stopped, self._watch_answers):
            threading.Thread(target=work, daemon=True).start()

    def _beat_until_stopped(self) -> None:
        while not self._stopped.is_set():
            try:
                self.store.add(self.key, 1)
            except RuntimeError:
                if self._stopped.is_set():
                    return
                self._end_process()
            self._answered_at = time.monotonic()
            self._stopped.wait(HEARTBEAT_SECONDS)

    def _watch_answers(self) -> None:
        while time.monotonic() - self._answered_at < SILENCE_SECONDS:
            time.sleep(HEARTBEAT_SECONDS)
        self._end_process()

    def _end_process(self) -> None:
        emit_event("error", message=_describe_lost_first_host(self.address))
        os._exit(1)

    def stop(self) -> None:
        """Stop raising the counter; the answers are watched until this process ends."""
        self._stopped.set()


def _describe_lost_first_host(address: RendezvousAddress) -> str:
    return (
        f"The first host, {address}, no longer responds. See the run for the reason why training "
        "ended."
    )


def _launch(
    config: TrainConfig, host: int, process_count: int, module: str, arguments: Sequence[str]
) -> int:
    """Start the processes of a host; return the exit code."""
    address = config.parse_rendezvous()
    _use_interface_to(address)
    torchrun_options = [
        f"--nnodes={config.hosts}",
        f"--node-rank={host}",
        "--rdzv-backend=static",
        f"--master-addr={address.host}",
        f"--master-port={address.port}",
        "--max-restarts=0",
    ]
    return parallel.launch_with_torchrun(process_count, module, arguments, torchrun_options)
