"""Join the training of a run that was started on another host."""

from __future__ import annotations

import logging
import re
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from hallmark.flows.commands.options import StoreOption
from hallmark.flows.config import load_config
from hallmark.flows.notices import NOTICE
from hallmark.flows.runs import Run, open_run
from hallmark.model.config import RendezvousAddress
from hallmark.tasks.contract import HallmarkError, UsageError

log = logging.getLogger("hallmark")

#: Seconds between two attempts to reach the first host.
POLL_SECONDS = 1.0


def join_training(run: str = "latest", *, store: StoreOption = None) -> None:
    """Join the training of a run that was started on another host.

    The command waits until the training of the run begins, and ends with the training. The setting
    pretrain.train.hosts of the run says how many hosts train together.

    Parameters
    ----------
    run
        A run id, the start of one, or "latest": the newest run.
    """
    from hallmark.model.training.job import JOIN_OPTION
    from hallmark.tasks.training.trainer_process import iter_trainer_events

    opened_run = open_run(run, store)
    rendezvous = read_rendezvous(opened_run)
    job_path = wait_for_job(opened_run, rendezvous)
    with TemporaryDirectory() as folder:
        stderr_path = Path(folder, "trainer.stderr")
        with closing(
            iter_trainer_events(job_path, stderr_path, JOIN_OPTION, max_restarts=0)
        ) as trainer_events:
            for event in trainer_events:
                match event["event"]:
                    case "joined":
                        print(
                            f"joined the training of run {opened_run.id} at {rendezvous} as host "
                            f"{event['host']} of {event['hosts']}",
                            flush=True,
                        )
                    case "error":
                        raise HallmarkError(event["message"].rstrip("."))
    print(f"the training of run {opened_run.id} is complete")


def read_rendezvous(run: Run) -> RendezvousAddress:
    """Return the address at which hosts join the training of a run.

    Raises:
        UsageError: The run trains on one host, or its store is no folder.
    """
    train_config = load_config(run.record["config"]).pretrain.train
    if train_config.hosts == 1:
        raise UsageError(
            f"run {run.id} trains on one host; to train on several hosts, set pretrain.train.hosts "
            "and pretrain.train.rendezvous in its config"
        )
    if run.store.root_folder is None:
        raise UsageError(
            f"the store {run.store.uri} is not a folder, but hosts that train together must share "
            "a store folder"
        )
    return train_config.parse_rendezvous()


def wait_for_job(run: Run, rendezvous: RendezvousAddress) -> Path:
    """Wait until the first host waits for others, and return the path of its job.

    Raises:
        HallmarkError: The run has ended or has trained already, or its training is another one than
            here: it has another store, code, or version of a library.
    """
    from hallmark.model.training.hosts import connect_to_store, is_listening, read_offer
    from hallmark.model.training.training_step import TrainingError

    log.log(
        NOTICE, "waiting for the first host of run %s to start training at %s", run.id, rendezvous
    )
    while not is_listening(rendezvous):
        run = open_run(run.id, run.store)
        if "pretrain" in run.stages:
            raise HallmarkError(f"the training of run {run.id} is complete, so no host can join it")
        if run.status != "running":
            raise HallmarkError(
                f"run {run.id} is {run.status}, so no host can join its training; start it again "
                "on the first host, then run this command with the new run's id"
            )
        time.sleep(POLL_SECONDS)
    try:
        folder_name = read_offer(connect_to_store(rendezvous)).folder
    except TrainingError as error:
        raise HallmarkError(str(error).rstrip(".")) from error
    return find_job(run, folder_name)


def find_job(run: Run, folder_name: str) -> Path:
    """Find the job that the first host trains, and check that this host has the same versions.

    Args:
        run: The run.
        folder_name: Name of the work area, which the first host sent.
    """
    from hallmark.model.training.job import read_job
    from hallmark.tasks.training.pretrain import read_training_versions
    from hallmark.tasks.training.training_resumption import JOB_FILE

    job_path = run.store.work_folder / folder_name / JOB_FILE
    if not re.fullmatch(r"pretrain-[0-9a-f]+", folder_name) or not job_path.is_file():
        raise HallmarkError(
            f"the store {run.store.uri} does not contain the first host's training; all hosts must "
            "access the same store at the same path"
        )
    try:
        job = read_job(str(job_path))
    except ValueError as error:
        raise HallmarkError(str(error).rstrip(".")) from error
    if job.work_folder.parent != job_path.parent:
        raise HallmarkError(
            f"the first host trains in {job.work_folder.parent}, but this host's training folder "
            f"is {job_path.parent}; all hosts must access the same store at the same path"
        )
    versions = job.versions
    own_versions = read_training_versions()
    for name in sorted(own_versions.keys() | versions.keys()):
        own_version, version = own_versions.get(name, "absent"), versions.get(name, "absent")
        if own_version != version:
            raise HallmarkError(
                f"{name} differs between this host ({own_version[:16]}) and the first host "
                f"({version[:16]}); install the same version on all hosts"
            )
    return job_path
