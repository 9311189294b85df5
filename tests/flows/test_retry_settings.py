"""The retry policy of a stage comes from its own settings, then from those of all stages."""

from __future__ import annotations

import pytest

from hallmark.flows.config import load_config
from hallmark.flows.run_recording import record_run
from hallmark.tasks.contract import RetryPolicy, Store, UsageError, get_current_session

OVERRIDES = [
    "retry.count=2",
    "retry.delay_seconds=30",
    "retry.stages.pretrain.count=5",
    "retry.stages.select.delay_seconds=0",
    "retry.stages.select_scored.count=0",
]


@pytest.mark.parametrize(
    ("label", "stage_name", "policy"),
    [
        ("ingest", "ingest", RetryPolicy(2, 30)),
        ("pretrain", "pretrain", RetryPolicy(5, 30)),
        ("select", "select", RetryPolicy(2, 0)),
        ("select_scored", "select", RetryPolicy(0, 30)),
        ("select_again", "select", RetryPolicy(2, 0)),
    ],
)
def test_a_stage_has_its_own_policy_or_that_of_all(label, stage_name, policy):
    assert load_config("smoke", OVERRIDES).retry.get_policy(label, stage_name) == policy


def test_without_settings_a_stage_is_retried_once_at_once():
    assert load_config("smoke").retry.get_policy("ingest", "ingest") == RetryPolicy(1, 0)


def test_the_settings_reach_the_session_of_a_run_and_change_no_section(tmp_path):
    config, plain = load_config("smoke", OVERRIDES), load_config("smoke")
    assert config != plain and config.model_copy(update={"retry": plain.retry}) == plain
    with record_run("corpus", config, Store(tmp_path)):
        policy = get_current_session().get_retry_policy("pretrain", "pretrain")
    assert policy == RetryPolicy(5, 30)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("retry.stages.pretrian.count=1", "there is no stage 'pretrian' (did you mean pretrain?)"),
        ("retry.stages.reporters.count=1", "there is no stage 'reporters'"),
        ("retry.count=-1", "retry.count"),
        ("retry.count=21", "retry.count"),
        ("retry.delay_seconds=inf", "retry.delay_seconds"),
        ("retry.delay_seconds=nan", "retry.delay_seconds"),
        ("retry.stages.pretrain.delay=3", "retry.stages.pretrain"),
    ],
)
def test_a_wrong_policy_is_refused_with_its_name(override, problem):
    with pytest.raises(UsageError) as error:
        load_config("smoke", [override])
    assert problem in str(error.value) and "\n" not in str(error.value)
