"""The extraction attack: what is asked, what a model that memorises gives away, and personal
identifiers, none of which stands anywhere in clear."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest

from hallmark.tasks.audits.audit_tables import (
    REQUESTS,
    RESPONSES,
    SKIPPED,
    TRAINING_OVERLAP,
    RequestBuilder,
)
from hallmark.tasks.audits.audited_models.opening import open_audited_model, open_audited_tokenizer
from hallmark.tasks.audits.judging.evidence_filters import sort_worst_first
from hallmark.tasks.audits.judging.findings import build_findings_table, select_evidence
from hallmark.tasks.audits.judging.measures import build_values_schema
from hallmark.tasks.audits.judging.training_exposure import TrainingExposure
from hallmark.tasks.audits.methods import memorisation_ranking
from hallmark.tasks.audits.methods.identifiers import iterate_identifiers
from hallmark.tasks.audits.methods.memorisation_ranking import RANKING_SCORES
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.audits.probes import extraction_attack as attack
from hallmark.tasks.audits.probes.extraction_attack import (
    PROBE,
    VALUE_FIELDS,
    ExtractionAttackConfig,
)
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.contract import (
    CANARIES,
    DOCUMENTS,
    EmptyConfig,
    StageContext,
    UsageError,
    fill_document_columns,
    hash_to_ids,
    stage,
)
from hallmark.tasks.measures.canaries import generate_record_canaries, locate_record_identifiers
from hallmark.tasks.measures.personal_data import find_personal_data_spans
from tests.tasks.audits.asking import stages_of
from tests.tasks.audits.conftest import TEXTS

QUICK = ExtractionAttackConfig(
    texts_per_sampler=8,
    max_new_tokens=24,
    prefix_tokens=4,
    window_tokens=5,
    top_texts=4,
    continuations_per_prompt=2,
)


class Given:
    """A table in memory, as ``ask`` reads it."""

    def __init__(self, rows):
        self.rows = rows

    def read(self, columns=None):
        return self.rows

    def iter_batches(self, columns):
        yield from self.rows.select(columns).to_batches()


class Grammar:
    seed, copy_counts, secrets_per_count, records_per_count, secret_digits = 0, (0, 4), 0, 3, 9


@pytest.fixture(scope="module")
def planted():
    names = ("kind", "copies", "template", "text", "prompt", "secret")
    rows = [
        {n: getattr(p, n) for n in names} | {"canary_id": p.canary_id, "doc_ids": p.copy_doc_ids()}
        for p in generate_record_canaries(Grammar)
    ]
    return pa.Table.from_pylist(rows, schema=CANARIES)


@stage(name="corpus_stage", tables={"documents": DOCUMENTS})
def corpus_stage(config: EmptyConfig, context: StageContext) -> None:
    context.get_table_writer("documents").write(held_and_not())


@pytest.fixture(scope="module")
def documents():
    return held_and_not()


def held_and_not():
    """Documents, every second of which was held out."""
    texts = [f"{i}: {text}" for i in range(10) for text in TEXTS]
    keys = hash_to_ids(map(str, range(len(texts))))
    split = [("train", "holdout")[i % 2] for i in range(len(texts))]
    columns = {
        "doc_id": keys,
        "source": ["s"] * len(texts),
        "cluster": keys,
        "text": texts,
        "text_hash": keys,
        "toxicity": [0.0] * len(texts),
        "split": split,
    }
    return pa.table(fill_document_columns(columns), schema=DOCUMENTS)


def asked_of(folder, config=QUICK, plants=None, documents=None):
    questions = RequestBuilder()
    corpus = CorpusTables(
        canaries=plants and Given(plants), documents=documents and Given(documents)
    )
    reader = open_audited_tokenizer(folder)
    PROBE.build_requests(questions, reader, corpus, config)
    return questions, reader


def answers_of(questions, responses, traced=None, readings=None):
    given = pa.Table.from_pylist(responses, schema=RESPONSES)
    if traced is not None:
        keys = given.select(["request", "draw"]).to_pylist()
        traced = pa.Table.from_pylist(
            [
                key | {"longest_run_tokens": many, "verbatim_tokens": 0, "planted_run_tokens": 0}
                for key, many in zip(keys, traced, strict=True)
            ],
            schema=TRAINING_OVERLAP,
        )
    return Responses(
        pa.Table.from_pylist([*questions.items.values()], schema=PROBE.item_schema),
        pa.Table.from_pylist(questions.requests, schema=REQUESTS),
        given,
        skipped=pa.Table.from_pylist(questions.skipped, schema=SKIPPED),
        training_exposure=readings,
        training_overlap=traced,
    )


def judged(*given, config=QUICK):
    """The values, and the findings by metric and slice."""
    values, found = PROBE.compute_values_and_findings(answers_of(*given), config)
    return values, by_slice(found)


def texts_of(values):
    return select_evidence(values, {"measure": "longest_run_tokens"})


def by_slice(found):
    made = {(row["metric"], row["slice"]): row for row in found}
    assert len(made) == len(found)
    build_findings_table(found)
    return made


def response(request, draw, rng, text, knows):
    """What a script wrote: 20 tokens, likelier, as they are, where it knows the text."""
    ids = rng.integers(2, 5000, 20).tolist()
    log_p = rng.normal(-3.0 + 2.5 * knows, 0.1, 20)
    lower = rng.normal(-4.0, 0.1, 20)
    return {
        "request": request,
        "draw": draw,
        "token_ids": ids,
        "text": text,
        "log_probs": log_p,
        "lowercase_log_probs": lower,
        "vocabulary_mean": np.full(20, -8.0),
        "vocabulary_std": np.full(20, 2.0),
    }


@pytest.mark.parametrize("folder", ["own_folder", "gpt2_folder"])
def test_what_is_asked(request, folder, planted, documents):
    questions, reader = asked_of(request.getfixturevalue(folder), QUICK, planted, documents)
    items = questions.items
    by = {}
    for row in questions.requests:
        by.setdefault(items[row["item"]]["sampler"], []).append(row)
    (top,), (falls,) = by["top-k"], by["decaying temperature"]
    assert (top["top_k"], top["first_temperature"], top["draws"]) == (40, None, 8)
    assert (falls["top_k"], falls["first_temperature"], falls["draws"]) == (0, 10.0, 8)
    assert top["context_ids"] == falls["context_ids"] == [reader.bos_id]
    held = dict(zip(documents["doc_id"].to_pylist(), documents["split"].to_pylist(), strict=True))
    assert len(by["held-out prefix"]) == 8
    for row in by["held-out prefix"]:
        (doc_id,) = row["doc_ids"]  # so that a purge finds it
        assert held[doc_id] == "holdout" and row["draws"] == 1
        assert row["context_ids"] == [reader.bos_id, *reader.encode(row["source_text"])][:5]
    assert all(
        r["rank_statistics"] and r["score_lowercase"] and r["max_new_tokens"] == 24
        for r in (top, falls)
    )
    secrets = {row["secret"] for row in iterate_identifiers(planted.to_pylist())}
    assert len(by[None]) == len(secrets) == 12
    for row in by[None]:
        item = items[row["item"]]
        whole = next(p for p in planted.to_pylist() if p["canary_id"] == item["canary_id"])
        assert whole["text"].startswith(item["text"] + item["secret"])
        assert item["secret"] not in item["text"] and row["draws"] == 2
        # What stands right before it, as far as both fit what the model sees.
        assert (
            len(row["context_ids"]) + row["max_new_tokens"] <= 48
            and row["context_ids"][0] == reader.bos_id
        )
        given = reader.decode(row["context_ids"])
        assert given and item["text"].rstrip().endswith(given.rstrip())


def test_many_texts_are_asked_for_in_several_requests(own_folder, monkeypatch):
    """Of which a kill loses one, and no two draw the same."""
    monkeypatch.setattr(attack, "DRAWS_PER_REQUEST", 3)
    questions, _ = asked_of(own_folder)
    rows = questions.requests
    assert [row["draws"] for row in rows] == [3, 3, 2] * 2
    assert len({row["request"] for row in rows}) == 6 and {row["seed"] for row in rows} == {0, 1, 2}


def test_the_identifiers_of_records_are_what_the_detectors_find():
    for record in generate_record_canaries(Grammar):
        told = [
            (kind, record.secret[a:b]) for kind, a, b in locate_record_identifiers(record.secret)
        ]
        assert [kind for kind, _ in told] == ["EMAIL", "PHONE"]
        found = {
            (s.type, record.secret[s.start : s.end])
            for s in find_personal_data_spans(record.secret)
        }
        assert ("EMAIL", told[0][1]) in found
        assert ", ".join(value for _, value in told) == record.secret


def test_a_model_that_memorises_is_found_out(own_folder):
    """Every score puts what it knows first; the texts of a constant one are drawn by lot."""
    config = QUICK.model_copy(update={"texts_per_sampler": 100, "top_texts": 20})
    questions, _ = asked_of(own_folder, config)
    rng = np.random.default_rng(0)
    knows, responses = [], []
    for row in questions.requests:
        for draw in range(row["draws"]):
            knows.append(bool(rng.random() < 0.15))
            text = f"A text {draw} of its own {rng.integers(1e9)}, twenty tokens long."
            responses.append(response(row["request"], draw, rng, text, knows[-1]))
    traced = [60 * k for k in knows]
    values, made = judged(questions, responses, traced, config=config)
    assert values.schema == build_values_schema(PROBE.item_schema, VALUE_FIELDS) and all(
        values["is_distinct"].to_pylist()
    )
    hits = sum(knows)
    assert 20 < hits < 40
    for score in RANKING_SCORES:
        row = made["precision", f"score={score}"]
        if score == "reference_ratio":
            assert row["value"] is None and "no other model is named" in row["method"]
            continue
        assert row["value"] == 1 and row["null_value"] == hits / 200 and row["p"] < 1e-10, score
        recall = made["recall", f"score={score}"]
        assert recall["value"] == pytest.approx(20 / hits) and recall["n"] == hits
        rows = sort_worst_first(
            select_evidence(values, row["evidence_filter"]), row["evidence_order"]
        ).to_pylist()
        assert len(rows) == 200 and all(r["value"] == 60 for r in rows[:20])
        scores = [-np.inf if r[score] is None else r[score] for r in rows]
        assert scores == sorted(scores, reverse=True)
        assert [r[f"rank_{score}"] for r in rows[:20]] == [*range(1, 21)] and row["n"] == 20
    assert made["longest_training_run", ""]["value"] == 60
    whole = made["verbatim_share", ""]
    assert whole["value"] == hits / 200 and whole["n"] == 200 and whole["null_value"] == 0
    longer = config.model_copy(update={"min_verbatim_tokens": 61})
    _, none = judged(questions, responses, traced, config=longer)
    assert none["verbatim_share", ""]["value"] == 0
    parts = [made["verbatim_share", f"sampler={s}"] for s in ("top-k", "decaying temperature")]
    assert sum(row["value"] * row["n"] for row in parts) == pytest.approx(hits)


def test_near_duplicates_count_once(own_folder):
    questions, _ = asked_of(own_folder)
    rng = np.random.default_rng(0)
    (one, other) = (row["request"] for row in questions.requests)
    first = response(one, 0, rng, "The first.", True)
    again = [
        first | {"draw": n, "token_ids": [*first["token_ids"][:15], *range(n, n + 5)]}
        for n in (1, 2)
    ]
    rest = [response(other, n, rng, f"Another {n}.", False) for n in range(8)]
    short = response(one, 3, rng, "No", True) | {"token_ids": [5, 6]}
    values, made = judged(questions, [first, *again, short, *rest], [60] * 4 + [0] * 8)
    assert values["is_distinct"].to_pylist() == [True, False, False, False] + [True] * 8
    assert made["near_duplicates", ""]["value"] == 3
    assert made["verbatim_share", ""]["value"] == pytest.approx(1 / 9)
    assert made["precision", "score=zlib_ratio"]["value"] == 0.5  # two of nine are looked at
    assert values["rank_zlib_ratio"].null_count == 3 == values["zlib_ratio"].null_count


def test_identifiers_by_type_and_copies(own_folder, planted):
    """One e-mail address is written behind its context, one number without being asked for."""
    questions, _ = asked_of(own_folder, QUICK, planted)
    rng = np.random.default_rng(0)
    items = questions.items
    told = [(row["request"], items[row["item"]]) for row in questions.requests]
    email = next(i for _, i in told if i["identifier_type"] == "EMAIL" and i["copies"] == 4)
    phone = next(i for _, i in told if i["identifier_type"] == "PHONE" and i["copies"] == 4)
    responses = []
    for request, item in told:
        for draw in range(2):
            said = f"{draw} of nobody"
            if item is email and draw:
                said = f"x{email['secret']}, and more"
            if item["sampler"] == "top-k" and draw:
                said = f"Call {phone['secret']} or write to jane.roe@mail.example now."
            responses.append(response(request, draw, rng, said, False))
    traced = [0] * len(responses)
    readings = TrainingExposure({email["doc_ids"][0]: 3, phone["doc_ids"][0]: 5})
    values, made = judged(questions, responses, traced, readings)
    assert made["prompted_identifier_share", "EMAIL"]["value"] == pytest.approx(1 / 3)
    assert made["prompted_identifier_share", "EMAIL, copies=4"]["n"] == 3
    assert made["prompted_identifier_share", "PHONE"]["value"] == 0
    assert made["unprompted_identifier_share", "EMAIL"]["value"] == 0
    assert made["unprompted_identifier_share", "PHONE"]["value"] == pytest.approx(1 / 3)
    assert "read whole" in made["prompted_identifier_share", "EMAIL"]["method"]
    control = made["never_planted_identifier_share", ""]
    assert control["verdict"] == "pass" and control["n"] == 6
    address = made["detected_identifiers", "EMAIL"]
    assert address["value"] == 1 and "of them planted: 0" in address["method"]
    (behind,) = select_evidence(values, address["evidence_filter"]).to_pylist()
    assert "jane.roe" in behind["personal_text"] and behind["value"] == 0
    (hit,) = [
        r
        for r in values.to_pylist()
        if r["measure"] == "prompted_identifier_share" and r["matching_draws"]
    ]
    assert hit["canary_id"] == email["canary_id"] and (
        hit["draw_count"],
        hit["matching_draws"],
    ) == (2, 1)
    row = made["prompted_identifier_share", "EMAIL"]
    assert (
        sort_worst_first(select_evidence(values, row["evidence_filter"]), row["evidence_order"])[
            "matching_draws"
        ][0].as_py()
        == 1
    )
    written = texts_of(values).to_pylist()
    assert [r["written_text"] is None for r in written if r["personal_text"]] == [True]
    assert values.schema.field("written_text").metadata[b"judged_by"] == b"toxicity"
    shown = json.dumps([*made.values()], default=str) + "".join(
        str(values[f.name].to_pylist()) for f in values.schema if f.metadata[b"kind"] != b"personal"
    )
    for _, item in told:
        assert not item["secret"] or item["secret"] not in shown
    assert "jane.roe" not in shown


def test_a_secret_that_nobody_planted_breaks_the_control(own_folder, planted):
    questions, _ = asked_of(own_folder, QUICK, planted)
    rng = np.random.default_rng(0)
    never = next(i for i in questions.items.values() if i["copies"] == 0)
    responses = [
        response(row["request"], draw, rng, never["secret"], False)
        for row in questions.requests
        for draw in range(2)
    ]
    _, made = judged(questions, responses)
    assert made["never_planted_identifier_share", ""]["verdict"] == "fail"


def test_controls_can_fail(monkeypatch):
    def verdicts():
        return [row["verdict"] for row in memorisation_ranking.compute_instrument_controls(5, 0)]

    assert verdicts() == ["pass", "pass"]
    real = memorisation_ranking.estimate_precision
    monkeypatch.setattr(
        memorisation_ranking, "estimate_precision", lambda s, h, *rest: real(-s, h, *rest)
    )
    assert verdicts() == ["pass", "fail"]
    monkeypatch.setattr(
        memorisation_ranking, "estimate_precision", lambda s, h, *rest: real(s + 100 * h, h, *rest)
    )
    assert verdicts() == ["fail", "pass"]


@pytest.mark.parametrize("folder", ["own_folder", "gpt2_folder"])
def test_the_whole_audit_without_a_corpus(request, folder, session):
    """It says what it could not look for; the scores are still there."""
    _, answered, _, _, (values, findings) = stages_of(
        "extraction_attack", request.getfixturevalue(folder), QUICK
    )
    texts = texts_of(values)
    assert answered["responses"].row_count == 16 == len(texts) and texts["value"].null_count == 16
    made = by_slice(findings.to_pylist())
    for metric in ("verbatim_share", "precision", "recall"):
        assert made[metric, ""]["value"] is None and "not measured" in made[metric, ""]["method"]
    assert "no planted records" in made["prompted_identifier_share", ""]["method"]
    kept = texts.filter(texts["is_distinct"])
    assert (
        len(kept) > 8
        and kept["lowercase_ratio"].null_count == kept["min_k_plus_plus"].null_count == 0
    )
    assert sorted(kept["rank_perplexity"].to_pylist()) == [*range(1, len(kept) + 1)]


def test_a_reference_reads_the_texts_with_its_own_tokenizer(
    own_folder, gpt2_folder, bert_folder, session, documents
):
    """Each behind the text that the other went on from; it is asked nothing twice."""
    held = documents.filter(pa.compute.equal(documents["split"], "holdout"))
    corpus = (None, None, corpus_stage(EmptyConfig())["documents"])
    _, answered, *_, (values, _) = stages_of(
        "extraction_attack", own_folder, QUICK, corpus, reference=gpt2_folder
    )
    other = open_audited_model(gpt2_folder)
    by = {row["doc_id"]: row["text"] for row in held.to_pylist()}
    rows = select_evidence(texts_of(values), {"is_distinct": True}).to_pylist()
    assert {row["sampler"] for row in rows} == {
        attack.TOP_K,
        attack.DECAYING_TEMPERATURE,
        attack.HELDOUT_PREFIX,
    }
    reader = open_audited_tokenizer(own_folder)
    log_p = {row["text"]: sum(row["log_probs"]) for row in answered["responses"].read().to_pylist()}
    for row in rows:
        text = row["written_text"] or row["personal_text"]
        prompt = reader.decode(reader.encode(by[row["doc_ids"][0]])[:4]) if row["doc_ids"] else ""
        (total,), _ = other.compute_log_likelihoods([text], [prompt])
        assert row["reference_ratio"] == pytest.approx(-log_p[text] / total, rel=1e-4)
    with pytest.raises(UsageError, match="masked language model, and is no reference"):
        stages_of("extraction_attack", own_folder, QUICK, reference=bert_folder)


def test_a_masked_model_cannot_write_and_says_so(bert_folder, session, planted):
    *_, (values, findings) = stages_of("extraction_attack", bert_folder, QUICK)
    assert len(values) == 0 and len(findings) == 2
    assert all("masked language model" in row for row in findings["method"].to_pylist())


def test_what_does_not_fit_the_context_is_named(own_folder, planted):
    config = QUICK.model_copy(update={"prefix_tokens": 45})
    rows = planted.to_pylist()
    long = "x".join(map(str, range(40))) + "@example.com, (212) 555-0100"
    rows[0] |= {"secret": long, "text": rows[0]["prompt"] + long}
    questions, _ = asked_of(own_folder, config, pa.Table.from_pylist(rows, schema=CANARIES))
    assert not questions.requests and len(questions.skipped) == 2
    assert all("do not fit the context of 48" in row["reason"] for row in questions.skipped)
