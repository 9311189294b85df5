"""Test the probe misuse and its human ratings."""

import csv

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.audits.audit_tables import RESPONSES, SCORES, RequestBuilder
from hallmark.tasks.audits.audited_models.opening import open_audited_tokenizer
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.judging.measures import build_values_schema
from hallmark.tasks.audits.methods.human_ratings import hash_prompt_and_text, read_ratings
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.audits.probes.misuse import (
    PROBE,
    USER_PROVIDED,
    MisuseConfig,
    read_continuations_by_prompt,
)
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import UsageError, describe_columns, hash_texts
from tests.builders import item_rows, row_dicts
from tests.findings import findings_to_rows
from tests.tasks.audits.audit_runs import run_audit_stages, write_json_lines

PROMPTS = [
    {
        "prompt": f"Claim {n}:",
        "category": "rumour" if n % 2 else "health",
        "continuations": ["it is so", "it is not so"] if n < 4 else [],
    }
    for n in range(12)
]


@pytest.fixture
def prompts(tmp_path):
    return write_json_lines(tmp_path / "prompts.jsonl", PROMPTS)


def run_probe(
    folder, config, write_text=lambda prompt, draw: f"text {draw}", loss=lambda text: 2.0
):
    """Compute values and findings for a simulated model.

    The model writes ``write_text(prompt, draw)``; each token of a user's continuation has
    ``loss(continuation)``.
    """
    tokenizer, builder = open_audited_tokenizer(folder), RequestBuilder()
    PROBE.build_requests(builder, tokenizer, CorpusTables(), config)
    rows, texts = [], set()
    for request in row_dicts(builder.requests):
        item = item_rows(builder)[request["item"]]
        if request["kind"] == "generate":
            for draw in range(request["draws"]):
                text = write_text(item["text"], draw)
                texts.add(text)
                rows.append({"request": request["request"], "draw": draw, "text": text})
        else:
            for draw, ids in enumerate(request["target_ids"]):
                log_probs = [-loss(item["user_continuations"][draw])] * len(ids)
                rows.append({"request": request["request"], "draw": draw, "log_probs": log_probs})
    scored_texts = [text for text in texts if text.strip()]
    scores = {
        "text_hash": hash_texts(pa.array(scored_texts, pa.large_string())),
        "scorer": ["s"] * len(scored_texts),
        "head": ["toxicity"] * len(scored_texts),
        "score": [0.25] * len(scored_texts),
    }
    responses = Responses(
        builder.build_items_table(PROBE.item_schema),
        builder.build_requests_table(),
        pa.Table.from_pylist(rows, schema=RESPONSES),
        scores=pa.table(scores, schema=SCORES),
        tokenizer=pa.table(
            {
                "model_kind": [tokenizer.model_kind],
                "opening_description": [tokenizer.opening_description],
            }
        ),
        skipped=builder.build_skipped_table(),
    )
    values, found = PROBE.compute_values_and_findings(responses, config)
    finding_rows = findings_to_rows(found)
    findings = {(row["metric"], name_slice(row["slice"])): row for row in finding_rows}
    assert len(findings) == len(finding_rows)
    for row in finding_rows:
        evidence = select_evidence(values, row["evidence_filter"])
        if row["metric"] in ("nonempty_share", "label_share"):
            assert row["value"] == pytest.approx(np.mean(evidence["value"].to_pylist()))
            assert row["n"] == len(evidence)
    return values.to_pylist(), findings


def select_texts(values):
    """Return the values of the texts that the model wrote."""
    return [row for row in values if row["measure"] == "nonempty_share"]


def test_without_ratings_texts_are_kept_but_not_rated(prompts, own_folder):
    config = MisuseConfig(prompts=[prompts], max_new_tokens=8, continuations_per_prompt=3)
    write_text = lambda prompt, draw: f"text {draw}" if draw else " \n"  # noqa: E731
    values, findings = run_probe(own_folder, config, write_text)
    texts = select_texts(values)
    assert len(texts) == 36 and {row["toxicity"] for row in texts if row["value"]} == {0.25}
    assert {row["writer"] for row in texts} == {"model"}
    row = findings["nonempty_share", ""]
    assert row["value"] == pytest.approx(2 / 3) and row["n"] == 36 and row["clusters"] == 12
    assert findings["nonempty_share", "category=health"]["n"] == 18
    rating = findings["human_rating", ""]
    assert rating["value"] is None and "nobody has rated the texts" in rating["method"]
    assert {metric for metric, _ in findings} == {
        "nonempty_share",
        "continuation_perplexity",
        "human_rating",
    }


def test_the_perplexity_of_the_user_s_continuations(prompts, own_folder):
    def loss(text):
        return 1.0 if "not" in text else 3.0

    config = MisuseConfig(prompts=[prompts], max_new_tokens=8, continuations_per_prompt=1)
    values, findings = run_probe(own_folder, config, loss=loss)
    row = findings["continuation_perplexity", ""]
    assert row["value"] == pytest.approx(np.exp(2.0)) and row["n"] == 8 and row["clusters"] == 4
    user_values = [row for row in values if row["writer"] == USER_PROVIDED]
    assert {row["continuation"]: row["value"] for row in user_values} == {
        " it is so": pytest.approx(3.0),
        " it is not so": pytest.approx(1.0),
    }
    assert all(row["toxicity"] is None and row["mean_rating"] is None for row in user_values)


def write_ratings(path, values, rate_text, raters=("ann", "ben")):
    """Write a file in which each rater gives each text the fields ``rate_text(row, rater)``."""
    rows = [
        {"sample_id": row["sample_id"], "rater": rater} | rate_text(row, rater)
        for row in select_texts(values)
        for rater in raters
    ]
    return write_json_lines(path, rows)


def test_ratings_give_a_mean_and_an_agreement(prompts, own_folder, tmp_path):
    config = MisuseConfig(prompts=[prompts], max_new_tokens=8, continuations_per_prompt=2)
    values, _ = run_probe(own_folder, config)

    def rate_text(row, rater):
        base = 0.8 if row["category"] == "rumour" else 0.2
        return {"rating": base + 0.01 * row["draw"] + (0.1 if rater == "ben" else 0.0)}

    ratings = write_ratings(tmp_path / "ratings.jsonl", values, rate_text)
    rated, findings = run_probe(own_folder, config.model_copy(update={"ratings": (ratings,)}))
    assert findings["human_rating", "category=rumour"]["value"] == pytest.approx(0.855)
    assert findings["human_rating", "category=health"]["value"] == pytest.approx(0.255)
    row = findings["human_rating", ""]
    assert row["n"] == 24 and row["clusters"] == 12 and row["low"] < row["value"] < row["high"]
    assert "2 people" in row["method"]
    alpha = findings["rater_agreement", ""]
    assert 0.9 < alpha["value"] < 1 and alpha["n"] == 24 and alpha["clusters"] == 12
    assert {row["rater_count"] for row in select_texts(rated)} == {2}
    single_ratings = [row for row in rated if row["measure"] == "rating"]
    assert len(single_ratings) == 48 and len({row["rater_index"] for row in single_ratings}) == 2


def test_labels_give_shares_by_category(prompts, own_folder, tmp_path):
    config = MisuseConfig(prompts=[prompts], max_new_tokens=8, continuations_per_prompt=1)
    values, _ = run_probe(own_folder, config)
    ratings = write_ratings(
        tmp_path / "ratings.jsonl",
        values,
        lambda row, rater: {"label": "persuades" if row["category"] == "rumour" else "refuses"},
    )
    _, findings = run_probe(own_folder, config.model_copy(update={"ratings": (ratings,)}))
    assert findings["label_share", "label=persuades"]["value"] == 0.5
    assert findings["label_share", "category=rumour, label=persuades"]["value"] == 1
    assert findings["rater_agreement", ""]["value"] == pytest.approx(1)
    assert ("human_rating", "") not in findings


def test_equal_texts_are_rated_once(prompts, own_folder, tmp_path):
    """Each prompt has five texts, four of which are equal, so two are rated."""
    config = MisuseConfig(prompts=[prompts], max_new_tokens=8, continuations_per_prompt=5)
    write_text = lambda prompt, draw: "bad" if draw < 4 else "fine"  # noqa: E731
    values, _ = run_probe(own_folder, config, write_text)
    ratings = write_ratings(
        tmp_path / "ratings.jsonl",
        values,
        lambda row, rater: {"label": row["continuation"]},
        raters=["ann"],
    )
    lines = dict.fromkeys(ratings.read_text().splitlines())
    ratings.write_text("\n".join(lines))
    _, findings = run_probe(
        own_folder, config.model_copy(update={"ratings": (ratings,)}), write_text
    )
    row = findings["label_share", "label=bad"]
    assert (row["value"], row["n"], row["clusters"]) == (0.5, 24, 12)


def test_rows_without_a_rating_are_skipped(prompts, own_folder, tmp_path):
    config = MisuseConfig(prompts=[prompts], max_new_tokens=8, continuations_per_prompt=1)
    values, _ = run_probe(own_folder, config)
    path = tmp_path / "ratings.csv"
    with path.open("w", newline="") as file:
        names = ["prompt", "continuation", "toxicity", "rater", "rating"]
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        for row in select_texts(values):
            is_rated = row["cluster"] in [f"prompt {n}" for n in range(6)]
            row["prompt"] = row["text"]
            writer.writerow(row | ({"rater": "ann", "rating": "0.5"} if is_rated else {}))
    _, findings = run_probe(own_folder, config.model_copy(update={"ratings": (path,)}))
    assert findings["human_rating", ""]["n"] == 6 and findings["human_rating", ""]["value"] == 0.5
    agreement = findings["rater_agreement", ""]
    assert agreement["value"] is None and "no text was rated by two people" in agreement["method"]


def test_ratings_of_another_checkpoint_s_texts_are_ignored(prompts, own_folder, tmp_path):
    config = MisuseConfig(prompts=[prompts], max_new_tokens=8, continuations_per_prompt=2)
    values, _ = run_probe(own_folder, config)
    ratings = write_ratings(tmp_path / "ratings.jsonl", values, lambda row, rater: {"rating": 1.0})
    config = config.model_copy(update={"ratings": (ratings,)})
    write_text = lambda prompt, draw: f"text {draw}" if draw else "another"  # noqa: E731
    _, findings = run_probe(own_folder, config, write_text)
    assert findings["unmatched_ratings", ""]["value"] == 24
    assert findings["human_rating", ""]["n"] == 12
    _, findings = run_probe(own_folder, config, lambda prompt, draw: "another")
    assert findings["human_rating", ""]["value"] is None
    assert "none of 48 ratings is for a text" in findings["human_rating", ""]["method"]


VALID_RATING = {"sample_id": "0" * 32, "rater": "ann", "rating": 0.5}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"rating": 1.5}, "line 2 has the value 1.5 in 'rating'; use a number from 0"),
        ({"rating": "bad"}, "has the value 'bad' in 'rating'"),
        ({"rating": True}, "has the value True in 'rating'"),
        ({"rating": float("nan")}, "has the value nan in 'rating'"),
        ({"rating": [0.5]}, "in 'rating'"),
        ({"label": "bad"}, "has both a rating and a label"),
        ({"rating": None, "label": "bad"}, "has a label, but the first rated row has a rating"),
        ({"rater": ""}, "must have text in 'rater'"),
        ({"rater": "a\nb"}, r"has the value 'a\\nb' in 'rater'; use at most 100 printable"),
        ({"rater": "ann", "sample_id": "0" * 32}, "has already rated this text in .*line 1"),
        ({"sample_id": "xyz"}, "has the value 'xyz' in 'sample_id'; use a text id"),
        ({"sample_id": None}, "does not identify a text"),
        ({"sample_id": None, "prompt": "p"}, "must have text in 'continuation'"),
        ({"sample_id": None, "prompt": "p", "continuation": "\ud800"}, "invalid Unicode"),
    ],
)
def test_errors_name_the_line_of_an_invalid_rating(tmp_path, row, message):
    second = VALID_RATING | {"sample_id": "1" * 32} | row
    path = write_json_lines(tmp_path / "ratings.jsonl", [VALID_RATING, second])
    with pytest.raises(UsageError, match=message):
        read_ratings([path])


def test_files_without_ratings_or_with_too_many_labels_are_refused(tmp_path):
    with pytest.raises(UsageError, match="no row has a value in"):
        read_ratings([write_json_lines(tmp_path / "none.jsonl", [{"sample_id": "0" * 32}])])
    with pytest.raises(UsageError, match="there is no file"):
        read_ratings([tmp_path / "absent.csv"])
    labelled_ratings = [
        VALID_RATING | {"sample_id": f"{n:032x}", "rating": None, "label": f"l{n}"}
        for n in range(30)
    ]
    with pytest.raises(UsageError, match="contain 30 different labels, but at most 20"):
        read_ratings([write_json_lines(tmp_path / "many.jsonl", labelled_ratings)])
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"sample_id"')
    with pytest.raises(UsageError, match="line 1 is not valid JSON"):
        read_ratings([broken])
    assert read_ratings([]) == []


def test_prompts_are_read_from_text_and_tables(tmp_path):
    lines = tmp_path / "prompts.txt"
    lines.write_text("One prompt\n\nOne prompt\n  Another \n")
    assert read_continuations_by_prompt([lines]) == {("One prompt", ""): [], ("Another", ""): []}
    table = tmp_path / "prompts.csv"
    table.write_text("prompt,category,continuation\nA,x,yes\nA,x,no\nB,,\n")
    assert read_continuations_by_prompt([table]) == {("A", "x"): [" yes", " no"], ("B", ""): []}
    for row, message in (
        ({"text": "x"}, "line 1 must have text in 'prompt'"),
        (
            {"prompt": "x", "category": 3},
            "has the value 3 in 'category'; use at most 100 printable",
        ),
        (
            {"prompt": "x", "continuations": "y"},
            "has the value 'y' in 'continuations'; provide a list",
        ),
        ({"prompt": "x", "continuations": [""]}, "must have text in 'continuation'"),
    ):
        with pytest.raises(UsageError, match=message):
            read_continuations_by_prompt([write_json_lines(tmp_path / "bad.jsonl", [row])])


def test_findings_follow_the_ratings_in_a_file(prompts, own_folder, session, tmp_path):
    config = MisuseConfig(prompts=[prompts], max_new_tokens=8, continuations_per_prompt=2)
    *_, earlier, (values, findings) = run_audit_stages("misuse", own_folder, config)
    rows = values.to_pylist()
    texts = select_texts(rows)
    assert len(texts) == 24 and len(rows) == 24 + 8
    assert all(row["value"] > 0 for row in rows if row["writer"] == USER_PROVIDED)
    assert all(
        row["sample_id"] == hash_prompt_and_text(row["text"], row["continuation"]) for row in rows
    )
    ratings = tmp_path / "ratings.jsonl"
    rated_config = config.model_copy(update={"ratings": (ratings,)})
    for value in (0.25, 0.75):  # the content of the file counts, not its name
        write_json_lines(
            ratings,
            [{"sample_id": row["sample_id"], "rater": "ann", "rating": value} for row in texts],
        )
        *_, later, (_, findings) = run_audit_stages("misuse", own_folder, rated_config)
        by_slice = {(row["metric"], name_slice(row["slice"])): row for row in findings.to_pylist()}
        assert by_slice["human_rating", ""]["value"] == value
        assert later.fingerprint != earlier.fingerprint
        earlier = later


def test_a_masked_model_is_not_measured(prompts, bert_folder, session):
    values, findings = run_audit_stages("misuse", bert_folder, MisuseConfig(prompts=[prompts]))[-1]
    rows = [row for row in findings.to_pylist() if row["control_target"] != "scorer"]
    assert not len(values) and {row["value"] for row in rows} == {None}


def test_columns_of_texts_and_raters_are_redacted():
    schema = build_values_schema(PROBE.item_schema, PROBE.value_fields)
    columns = {column.name: column for column in describe_columns(schema)}
    assert columns["continuation"].judged_by == "toxicity"
    assert columns["text"].judged_by == "prompt_toxicity"
    assert columns["user_continuations"].kind == "personal" == columns["rater_index"].kind
    assert "rater" not in columns
