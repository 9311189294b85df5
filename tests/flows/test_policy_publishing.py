"""The outcome of a policy in the pages of Prefect."""

import httpx
import pyarrow as pa
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings

from hallmark.flows import policy_publishing
from hallmark.flows.policy_publishing import publish_policy_outcome, verdicts_to_markdown
from hallmark.tasks.audits.judging.policy import VERDICTS
from hallmark.tasks.contract import EmptyConfig, StageContext, stage

ROWS = [
    {"rule": rule, "audit": "bias", "metric": "m", "slice": {}, "bound": "< 1"}
    | {"verdict": verdict, "distance": distance, "reason": reason}
    for rule, verdict, distance, reason in (
        ("kind", "pass", -0.25, "well"),
        ("safe", "not_shown", None, "no interval: a | b"),
        ("fair", "fail", 0.5, "too high\u202e"),
    )
]


@stage(name="published", tables={"verdicts": VERDICTS})
def write_verdicts(config: EmptyConfig, context: StageContext) -> None:
    context.get_table_writer("verdicts").write(pa.Table.from_pylist(ROWS, schema=VERDICTS))


def test_each_verdict_has_a_line_with_distance_and_reason_the_worst_first():
    title, _, _, _, *lines = verdicts_to_markdown(ROWS).splitlines()
    assert title == "# policy failed: 1 of 3 rules failed, 1 could not be judged"
    assert lines == [
        "| fair | bias.m | failed | 0.5 | too high‹U+202E› |",
        "| safe | bias.m | not shown | – | no interval: a \\| b |",
        "| kind | bias.m | passed | -0.25 | well |",
    ]


def test_names_from_audit_files_are_no_markup():
    name = "[x](javascript:alert(1))\n| a <img src=x>"
    row = ROWS[0] | {"slice": {"group": name}, "reason": name}
    *_, line = verdicts_to_markdown([row]).splitlines()
    escaped = r"\[x\](javascript:alert(1)) \| a \<img src=x\>"
    assert line == rf"| kind | bias.m\[group={escaped}\] | passed | -0.25 | {escaped} |"


def list_policy_pages():
    asked = {"sort": "UPDATED_DESC", "artifacts": {"key": {"any_": ["policy"]}}}
    return httpx.post(f"{PREFECT_API_URL.value()}/artifacts/filter", json=asked).json()


def test_a_flow_run_has_a_page_about_its_policy(session, server, monkeypatch, caplog):
    verdicts = write_verdicts(EmptyConfig())

    @flow
    def publish():
        publish_policy_outcome(verdicts)

    with temporary_settings({PREFECT_API_URL: server}):
        earlier = len(list_policy_pages())
        publish_policy_outcome(verdicts)  # outside a flow there is no page
        assert len(list_policy_pages()) == earlier
        publish()
        newest, *others = list_policy_pages()
        assert len(others) == earlier and newest["flow_run_id"]
        assert newest["description"] == "policy failed: 1 of 3 rules failed, 1 could not be judged"
        assert newest["data"] == verdicts_to_markdown(ROWS)

        def refuse(*_, **__):
            raise ConnectionError("the server is gone")

        monkeypatch.setattr(policy_publishing, "create_markdown_artifact", refuse)
        publish()
    assert "the server is gone; the run continues without it" in caplog.text


def test_a_policy_that_passed_is_called_so():
    assert verdicts_to_markdown(ROWS[:1]).startswith("# policy passed: 1 rule\n")
