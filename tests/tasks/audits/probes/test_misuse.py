"""Misuse: prompts of a user, texts kept for people, and what people say of them, read back."""

import csv
import json

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.audits.audit_tables import REQUESTS, RESPONSES, SCORES, SKIPPED, RequestBuilder
from hallmark.tasks.audits.audited_models.opening import open_audited_tokenizer
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.judging.measures import build_values_schema
from hallmark.tasks.audits.methods.human_ratings import hash_prompt_and_text, read_ratings
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.audits.probes.misuse import (
    PROBE,
    USER_PROVIDED,
    MisuseConfig,
    read_misuse_prompts,
)
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.contract import UsageError, describe_columns, hash_texts
from tests.tasks.audits.asking import stages_of, written

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
    return written(tmp_path / "prompts.jsonl", PROMPTS)


def asked(folder, config):
    reader, questions = open_audited_tokenizer(folder), RequestBuilder()
    PROBE.build_requests(questions, reader, CorpusTables(), config)
    return reader, questions


def judged(folder, config, says=lambda prompt, draw: f"text {draw}", loss=lambda text: 2.0):
    """Values and findings where the model writes ``says``, and of a token given loses ``loss``."""
    reader, questions = asked(folder, config)
    responses, texts = [], set()
    for row in questions.requests:
        item = questions.items[row["item"]]
        if row["kind"] == "generate":
            for draw in range(row["draws"]):
                text = says(item["text"], draw)
                texts.add(text)
                responses.append({"request": row["request"], "draw": draw, "text": text})
        else:
            for draw, ids in enumerate(row["target_ids"]):
                losses = [-loss(item["user_continuations"][draw])] * len(ids)
                responses.append({"request": row["request"], "draw": draw, "log_probs": losses})
    names = [text for text in texts if text.strip()]
    scores = {
        "text_hash": hash_texts(pa.array(names, pa.large_string())),
        "scorer": ["s"] * len(names),
        "head": ["toxicity"] * len(names),
        "score": [0.25] * len(names),
    }
    answers = Responses(
        pa.Table.from_pylist([*questions.items.values()], schema=PROBE.item_schema),
        pa.Table.from_pylist(questions.requests, schema=REQUESTS),
        pa.Table.from_pylist(responses, schema=RESPONSES),
        pa.table(scores, schema=SCORES),
        tokenizer=pa.table(
            {"model_kind": [reader.model_kind], "opening_description": [reader.opening_description]}
        ),
        skipped=pa.Table.from_pylist(questions.skipped, schema=SKIPPED),
    )
    values, rows = PROBE.compute_values_and_findings(answers, config)
    made = {(row["metric"], row["slice"]): row for row in rows}
    assert len(made) == len(rows)
    for row in rows:
        behind = select_evidence(values, row["evidence_filter"])
        if row["metric"] in ("nonempty_share", "label_share"):
            assert row["value"] == pytest.approx(np.mean(behind["value"].to_pylist()))
            assert row["n"] == len(behind)
    return values.to_pylist(), made


def texts_of(values):
    """What the model wrote."""
    return [row for row in values if row["measure"] == "nonempty_share"]


def test_texts_behind_prompts_are_kept_and_nothing_is_scored(prompts, own_folder):
    config = MisuseConfig(prompts=[prompts], max_new_tokens=8, continuations_per_prompt=3)
    says = lambda prompt, draw: f"text {draw}" if draw else " \n"  # noqa: E731
    values, found = judged(own_folder, config, says)
    texts = texts_of(values)
    assert len(texts) == 36 and {row["toxicity"] for row in texts if row["value"]} == {0.25}
    assert {row["writer"] for row in texts} == {"model"}
    row = found["nonempty_share", ""]
    assert row["value"] == pytest.approx(2 / 3) and row["n"] == 36 and row["clusters"] == 12
    assert found["nonempty_share", "category=health"]["n"] == 18
    unscored = found["human_rating", ""]
    assert unscored["value"] is None and "unscored until a person scores it" in unscored["method"]
    assert {metric for metric, _ in found} == {
        "nonempty_share",
        "continuation_perplexity",
        "human_rating",
    }


def test_perplexity_of_what_was_given(prompts, own_folder):
    def loss(text):
        return 1.0 if "not" in text else 3.0

    config = MisuseConfig(prompts=[prompts], max_new_tokens=8, continuations_per_prompt=1)
    values, found = judged(own_folder, config, loss=loss)
    row = found["continuation_perplexity", ""]
    assert row["value"] == pytest.approx(np.exp(2.0)) and row["n"] == 8 and row["clusters"] == 4
    given = [row for row in values if row["writer"] == USER_PROVIDED]
    assert {row["continuation"]: row["value"] for row in given} == {
        " it is so": pytest.approx(3.0),
        " it is not so": pytest.approx(1.0),
    }
    assert all(row["toxicity"] is None and row["mean_rating"] is None for row in given)


def rate(path, values, say, raters=("ann", "ben")):
    rows = [
        {"sample_id": row["sample_id"], "rater": rater} | say(row, rater)
        for row in texts_of(values)
        for rater in raters
    ]
    return written(path, rows)


def test_ratings_of_people_are_read_back(prompts, own_folder, tmp_path):
    config = MisuseConfig(prompts=[prompts], max_new_tokens=8, continuations_per_prompt=2)
    values, _ = judged(own_folder, config)

    def say(row, rater):
        base = 0.8 if row["category"] == "rumour" else 0.2
        return {"rating": base + 0.01 * row["draw"] + (0.1 if rater == "ben" else 0.0)}

    ratings = rate(tmp_path / "ratings.jsonl", values, say)
    rated, found = judged(own_folder, config.model_copy(update={"ratings": (ratings,)}))
    assert found["human_rating", "category=rumour"]["value"] == pytest.approx(0.855)
    assert found["human_rating", "category=health"]["value"] == pytest.approx(0.255)
    row = found["human_rating", ""]
    assert row["n"] == 24 and row["clusters"] == 12 and row["low"] < row["value"] < row["high"]
    assert "2 people" in row["method"]
    alpha = found["rater_agreement", ""]
    assert 0.9 < alpha["value"] < 1 and alpha["n"] == 24 and alpha["clusters"] == 12
    assert {row["rater_count"] for row in texts_of(rated)} == {2}
    each = [row for row in rated if row["measure"] == "rating"]
    assert len(each) == 48 and len({row["rater_index"] for row in each}) == 2


def test_labels_become_shares(prompts, own_folder, tmp_path):
    config = MisuseConfig(prompts=[prompts], max_new_tokens=8, continuations_per_prompt=1)
    values, _ = judged(own_folder, config)
    ratings = rate(
        tmp_path / "ratings.jsonl",
        values,
        lambda row, rater: {"label": "persuades" if row["category"] == "rumour" else "refuses"},
    )
    _, found = judged(own_folder, config.model_copy(update={"ratings": (ratings,)}))
    assert found["label_share", "label=persuades"]["value"] == 0.5
    assert found["label_share", "category=rumour, label=persuades"]["value"] == 1
    assert found["rater_agreement", ""]["value"] == pytest.approx(1)
    assert ("human_rating", "") not in found


def test_texts_that_are_alike_are_rated_once(prompts, own_folder, tmp_path):
    """Of five texts of a prompt four are alike: two are rated."""
    config = MisuseConfig(prompts=[prompts], max_new_tokens=8, continuations_per_prompt=5)
    says = lambda prompt, draw: "bad" if draw < 4 else "fine"  # noqa: E731
    values, _ = judged(own_folder, config, says)
    ratings = rate(
        tmp_path / "ratings.jsonl",
        values,
        lambda row, rater: {"label": row["continuation"]},
        raters=["ann"],
    )
    lines = dict.fromkeys(ratings.read_text().splitlines())
    ratings.write_text("\n".join(lines))
    _, found = judged(own_folder, config.model_copy(update={"ratings": (ratings,)}), says)
    row = found["label_share", "label=bad"]
    assert (row["value"], row["n"], row["clusters"]) == (0.5, 24, 12)


def test_a_table_of_a_spreadsheet_may_have_rows_that_nobody_rated(prompts, own_folder, tmp_path):
    config = MisuseConfig(prompts=[prompts], max_new_tokens=8, continuations_per_prompt=1)
    values, _ = judged(own_folder, config)
    path = tmp_path / "ratings.csv"
    with path.open("w", newline="") as file:
        names = ["prompt", "continuation", "toxicity", "rater", "rating"]
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        for row in texts_of(values):
            done = row["cluster"] in [f"prompt {n}" for n in range(6)]
            row["prompt"] = row["text"]
            writer.writerow(row | ({"rater": "ann", "rating": "0.5"} if done else {}))
    _, found = judged(own_folder, config.model_copy(update={"ratings": (path,)}))
    assert found["human_rating", ""]["n"] == 6 and found["human_rating", ""]["value"] == 0.5
    alone = found["rater_agreement", ""]
    assert alone["value"] is None and "no text was rated by two people" in alone["method"]


def test_ratings_of_another_checkpoints_texts_do_not_count(prompts, own_folder, tmp_path):
    config = MisuseConfig(prompts=[prompts], max_new_tokens=8, continuations_per_prompt=2)
    values, _ = judged(own_folder, config)
    ratings = rate(tmp_path / "ratings.jsonl", values, lambda row, rater: {"rating": 1.0})
    config = config.model_copy(update={"ratings": (ratings,)})
    half = lambda prompt, draw: f"text {draw}" if draw else "another"  # noqa: E731
    _, found = judged(own_folder, config, half)
    assert found["unmatched_ratings", ""]["value"] == 24
    assert found["human_rating", ""]["n"] == 12
    _, found = judged(own_folder, config, lambda prompt, draw: "another")
    assert found["human_rating", ""]["value"] is None
    assert "of 48 ratings none" in found["human_rating", ""]["method"]


GOOD = {"sample_id": "0" * 32, "rater": "ann", "rating": 0.5}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"rating": 1.5}, "line 2 has 1.5 in 'rating'; write a number from 0"),
        ({"rating": "bad"}, "has 'bad' in 'rating'"),
        ({"rating": True}, "has True in 'rating'"),
        ({"rating": float("nan")}, "has nan in 'rating'"),
        ({"rating": [0.5]}, "in 'rating'"),
        ({"label": "bad"}, "has a rating and a label"),
        ({"rating": None, "label": "bad"}, "has a label where the first has a rating"),
        ({"rater": ""}, "no text in 'rater'"),
        ({"rater": "a\nb"}, "has no name in 'rater'"),
        ({"rater": "ann", "sample_id": "0" * 32}, "has rated this text in .*line 1"),
        ({"sample_id": "xyz"}, "has 'xyz' in 'sample_id', which is none"),
        ({"sample_id": None}, "names no text"),
        ({"sample_id": None, "prompt": "p"}, "no text in 'continuation'"),
        ({"sample_id": None, "prompt": "p", "continuation": "\ud800"}, "no valid Unicode"),
    ],
)
def test_ratings_that_are_none_are_refused_with_their_line(tmp_path, row, why):
    second = GOOD | {"sample_id": "1" * 32} | row
    path = written(tmp_path / "ratings.jsonl", [GOOD, second])
    with pytest.raises(UsageError, match=why):
        read_ratings([path])


def test_files_without_any_rating_are_refused(tmp_path):
    with pytest.raises(UsageError, match="no row has anything in"):
        read_ratings([written(tmp_path / "none.jsonl", [{"sample_id": "0" * 32}])])
    with pytest.raises(UsageError, match="there is no file"):
        read_ratings([tmp_path / "absent.csv"])
    many = [GOOD | {"sample_id": f"{n:032x}", "rating": None, "label": f"l{n}"} for n in range(30)]
    with pytest.raises(UsageError, match="30 labels"):
        read_ratings([written(tmp_path / "many.jsonl", many)])
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"sample_id"')
    with pytest.raises(UsageError, match="line 1 is not valid JSON"):
        read_ratings([broken])
    assert read_ratings([]) == []


def test_prompts_come_as_text_or_with_categories(tmp_path):
    lines = tmp_path / "prompts.txt"
    lines.write_text("One prompt\n\nOne prompt\n  Another \n")
    assert read_misuse_prompts([lines]) == {("One prompt", ""): [], ("Another", ""): []}
    table = tmp_path / "prompts.csv"
    table.write_text("prompt,category,continuation\nA,x,yes\nA,x,no\nB,,\n")
    assert read_misuse_prompts([table]) == {("A", "x"): [" yes", " no"], ("B", ""): []}
    for row, why in (
        ({"text": "x"}, "line 1 has no text in 'prompt'"),
        ({"prompt": "x", "category": 3}, "in 'category', which names none"),
        ({"prompt": "x", "continuations": "y"}, "no list in 'continuations'"),
        ({"prompt": "x", "continuations": [""]}, "no text in 'continuation'"),
    ):
        with pytest.raises(UsageError, match=why):
            read_misuse_prompts([written(tmp_path / "bad.jsonl", [row])])


def test_an_audit_from_one_end_to_the_other(prompts, own_folder, session, tmp_path):
    config = MisuseConfig(prompts=[prompts], max_new_tokens=8, continuations_per_prompt=2)
    *_, before, (values, findings) = stages_of("misuse", own_folder, config)
    rows = values.to_pylist()
    texts = texts_of(rows)
    assert len(texts) == 24 and len(rows) == 24 + 8
    assert all(row["value"] > 0 for row in rows if row["writer"] == USER_PROVIDED)
    assert all(
        row["sample_id"] == hash_prompt_and_text(row["text"], row["continuation"]) for row in rows
    )
    ratings = tmp_path / "ratings.jsonl"
    for value in (0.25, 0.75):  # in the same file: what it says counts, not what it is called
        some = [{"sample_id": row["sample_id"], "rater": "ann", "rating": value} for row in texts]
        ratings.write_text("".join(json.dumps(row) + "\n" for row in some))
        again = config.model_copy(update={"ratings": (ratings,)})
        *_, after, (_, findings) = stages_of("misuse", own_folder, again)
        found = {(row["metric"], row["slice"]): row for row in findings.to_pylist()}
        assert found["human_rating", ""]["value"] == value
        assert after.fingerprint != before.fingerprint
        before = after


def test_a_masked_model_writes_nothing(prompts, bert_folder, session):
    values, findings = stages_of("misuse", bert_folder, MisuseConfig(prompts=[prompts]))[-1]
    assert not len(values) and {row["value"] for row in findings.to_pylist()} == {None}


def test_pages_show_only_what_was_scored_and_not_by_whom():
    schema = build_values_schema(PROBE.item_schema, PROBE.value_fields)
    columns = {column.name: column for column in describe_columns(schema)}
    assert columns["continuation"].judged_by == "toxicity"
    assert columns["text"].judged_by == "prompt_toxicity"
    assert columns["user_continuations"].kind == "personal" == columns["rater_index"].kind
    assert "rater" not in columns
