"""What of Prefect's messages is printed."""

import asyncio
import io
import logging

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.concurrency._asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.asyncio import concurrency
from prefect.flow_engine import run_flow
from prefect.logging.handlers import PrefectConsoleHandler
from prefect.settings import PREFECT_API_URL, temporary_settings

from hallmark.flows import prefect_logging
from hallmark.flows.prefect_logging import print_prefect_warnings_as_lines
from hallmark.tasks.contract import PolicyViolationError, UsageError


@pytest.fixture
def console():
    """What Prefect's handler prints on the terminal."""
    stream = io.StringIO()
    handler = PrefectConsoleHandler(stream=stream, level=logging.WARNING)
    logging.getLogger().addHandler(handler)
    print_prefect_warnings_as_lines()
    yield stream
    logging.getLogger().removeHandler(handler)


@task
def fail_in_task():
    raise ValueError("the disk is full")


@flow
def fail():
    fail_in_task()


def test_the_error_of_a_flow_is_not_repeated(server, console):
    with temporary_settings({PREFECT_API_URL: server}), pytest.raises(ValueError):
        fail()
    logging.getLogger("hallmark").warning("printed by main")
    assert console.getvalue() == ""


@flow
def raise_error(error):
    raise error


@pytest.mark.parametrize(
    ("error", "printed"),
    [
        (PolicyViolationError("policy failed: 1 of 1 rule failed"), ""),
        (UsageError("unknown setting"), "prefect: Engine execution exited with unexpected"),
    ],
)
def test_only_the_error_of_a_failed_policy_is_known_from_the_run(server, console, error, printed):
    logger = logging.getLogger("prefect.engine")
    with temporary_settings({PREFECT_API_URL: server}), pytest.raises(type(error)):
        run_flow(raise_error, parameters={"error": error}, error_logger=logger)
    assert console.getvalue()[: len(printed) or None] == printed


def test_waiting_for_a_slot_is_not_repeated(server, console):
    async def acquire_two_slots():
        async with get_client() as client:
            await client.upsert_global_concurrency_limit_by_name("full", 1)
        async with concurrency("full"):
            with pytest.raises(ConcurrencySlotAcquisitionError):
                async with concurrency("full", max_retries=0):
                    pass

    with temporary_settings({PREFECT_API_URL: server}):
        asyncio.run(acquire_two_slots())
    assert console.getvalue() == ""


def test_other_messages_are_one_line(console):
    logger = logging.getLogger("prefect.FlowRunCancellingObserver")
    try:
        raise ConnectionError("refused\nby the server")
    except ConnectionError:
        logger.warning("The websocket failed.\nSwitching to %s\u202e", "polling", exc_info=True)
    assert console.getvalue() == (
        "prefect: The websocket failed. Switching to polling‹U+202E› "
        "(ConnectionError: refused by the server)\n"
    )


def test_a_message_is_printed_once_a_minute(console, monkeypatch):
    logger = logging.getLogger("prefect.events.clients")
    for address in ("first", "second"):
        logger.error("Unable to connect to %s", address)
    assert console.getvalue() == "prefect: Unable to connect to first\n"
    logger.error("Another message")
    assert console.getvalue().endswith("\nprefect: Another message\n")
    monkeypatch.setattr(prefect_logging, "REPETITION_SECONDS", 0.0)
    logger.error("Unable to connect to %s", "third")
    assert console.getvalue().endswith("\nprefect: Unable to connect to third\n")


def test_a_process_without_main_prints_the_messages_of_hallmark(console):
    print_prefect_warnings_as_lines(with_hallmark=True)
    logging.getLogger("hallmark").warning("the server does not answer")
    print_prefect_warnings_as_lines()
    assert console.getvalue() == "hallmark: the server does not answer\n"
