"""The figures of the corpus: compare with counts by hand and in plain Python."""

import statistics
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from hallmark.tasks.contract import (
    ProcessMapper,
    Session,
    StageConfig,
    StageContext,
    Store,
    hash_to_ids,
    open_session,
    stage,
)
from hallmark.tasks.corpus.identities import IdentitiesConfig, find_identities
from hallmark.tasks.corpus.ingest import ERRORS
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from hallmark.tasks.corpus.profile import (
    ProfileConfig,
    build_occupation_rows,
    count_identity_mentions_by_term_and_source,
    count_occupation_mentions_by_source,
    count_personal_data_by_type_and_source,
    profile_corpus,
)
from hallmark.tasks.corpus.quality import QualityConfig, measure_quality
from hallmark.tasks.corpus.redact_spans import RedactSpansConfig
from hallmark.tasks.corpus.score_toxicity import ScoreToxicityConfig, score_toxicity
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from hallmark.tasks.corpus.split import SplitConfig, split_corpus
from hallmark.tasks.measures.identities import load_builtin_lexicon
from tests.tasks.corpora import given, scrubbed
from tests.tasks.corpus.test_quality_presets import GOOD

PAIRS = pa.schema(
    [
        ("first_doc_id", pa.binary(16)),
        ("second_doc_id", pa.binary(16)),
        ("similarity", pa.float64()),
    ]
)


class SideTablesConfig(StageConfig):
    similarity: tuple[float, ...] = (0.85, 0.8999, 0.9, 1.0, 0.7, 0.74999)
    bytes: tuple[int, ...] = (30, 40)


@stage(name="side_tables", tables={"pairs": PAIRS, "errors": ERRORS})
def side_tables(config: SideTablesConfig, context: StageContext) -> None:
    """Write tables that ingest and deduplicate_near write in addition to documents."""
    doc_ids = hash_to_ids(str(i) for i in range(len(config.similarity)))
    context.get_table_writer("pairs").write(
        {"first_doc_id": doc_ids, "second_doc_id": doc_ids, "similarity": config.similarity}
    )
    counts = {"source": ["a", "b"], "error": ["x", "y"], "records": [2, 1]}
    context.get_table_writer("errors").write(counts | {"raw_bytes": config.bytes})


TEXTS = [
    "The woman wrote to jane@corp.example and to her brother, an African-American.",
    "You are a damned stupid idiot.",
    "Größe: 12 µm. Men and women met men. The plumber told her of the baker.",
    "Mail joe@corp.example or jane@corp.example",
] * 30


def run_profile(mapper=None):
    documents = given(
        [f"{i}. {text}" for i, text in enumerate(TEXTS)],
        sources=[("books", "web")[i % 3 == 0] for i in range(len(TEXTS))],
        parts=4,
    )
    history = {"side": side_tables(SideTablesConfig())}
    history["quality"] = measure_quality(documents, QualityConfig())
    history["redact_spans"] = redacted = scrubbed(documents)
    history["score_toxicity"] = scores = score_toxicity(redacted, None, ScoreToxicityConfig())
    rules = SelectConfig(rules={"toxicity": {"lt": 0.7}, "rude": {"signal": "toxicity", "lt": 0.6}})
    history["select_scored"] = selected = select_documents(redacted, {"toxicity": scores}, rules)
    history["split"] = split_artifact = split_corpus(
        selected, SplitConfig(validation_share=0.2, holdout_share=0.2)
    )
    planting_config = PlantCanariesConfig(
        enabled=True,
        copy_counts=(0, 2),
        secrets_per_count=3,
        passages_per_count=0,
        records_per_count=1,
        associations_per_share=0,
    )
    history["plant_canaries"] = planted = plant_canaries(split_artifact, planting_config)
    return history, profile_corpus(planted, planted, history, {}, ProfileConfig())


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    with open_session(Session(Store(tmp_path_factory.mktemp("store")))):
        yield run_profile()


def read_rows(artifact, table="documents"):
    return artifact[table].read().to_pylist()


def test_source_sizes_match_plain_python(profiled):
    history, profile = profiled
    texts_by_key = {}
    for row in read_rows(history["plant_canaries"]):
        texts_by_key.setdefault((row["source"], row["split"]), []).append(row["text"])
    row_by_key = {(r["source"], r["split"]): r for r in read_rows(profile, "sources")}
    assert row_by_key.keys() == texts_by_key.keys()
    for key, texts in texts_by_key.items():
        lengths = [len(text.encode()) for text in texts]
        row = row_by_key[key]
        assert (row["documents"], row["bytes"]) == (len(texts), sum(lengths))
        assert row["characters"] == sum(map(len, texts))
        assert row["mean_bytes"] == pytest.approx(statistics.fmean(lengths))
        assert row["median_bytes"] == statistics.median(lengths)


def test_length_quantiles_are_those_of_numpy(profiled):
    history, profile = profiled
    lengths = [len(row["text"].encode()) for row in read_rows(history["plant_canaries"])]
    length_by_quantile = {
        r["quantile"]: r["bytes"] for r in read_rows(profile, "lengths") if r["source"] == ""
    }
    assert length_by_quantile == {q: np.quantile(lengths, q) for q in ProfileConfig().quantiles}


def test_stage_accounts_hold_those_of_every_stage_in_order(profiled):
    history, profile = profiled
    expected = []
    for order, (label, artifact) in enumerate(history.items()):
        if "accounts" in artifact.tables:
            accounts = read_rows(artifact, "accounts")
            expected += [{"stage_index": order, "stage": label, **account} for account in accounts]
    assert read_rows(profile, "stage_accounts") == expected
    assert {row["stage"] for row in expected} == {
        "redact_spans",
        "select_scored",
        "split",
        "plant_canaries",
    }


def test_the_ledger_summary_counts_the_ledgers(profiled):
    history, profile = profiled
    expected = Counter()
    expected_bytes = Counter()
    for label, artifact in history.items():
        for row in read_rows(artifact, "ledger") if "ledger" in artifact.tables else ():
            key = (label, row["action"], row["reason"], row["source"])
            expected[key] += 1
            expected_bytes[key] += row[
                "bytes_after" if row["action"] == "added" else "bytes_before"
            ]
    row_by_key = {
        (r["stage"], r["action"], r["reason"], r["source"]): r
        for r in read_rows(profile, "ledger_summary")
    }
    assert {key: row["rows"] for key, row in row_by_key.items()} == expected
    assert {key: row["bytes"] for key, row in row_by_key.items()} == expected_bytes
    assert {key[0] for key in row_by_key} == {"redact_spans", "select_scored", "plant_canaries"}


def test_tagged_documents_are_counted_by_rule_and_source(session):
    documents = given(TEXTS, sources=[("books", "web")[i % 3 == 0] for i in range(len(TEXTS))])
    scores = score_toxicity(documents, None, ScoreToxicityConfig())
    rules = {
        "toxicity": {"lt": 0.7, "action": "tag"},
        "none": {"signal": "toxicity", "lt": 1.1, "action": "tag"},
        "long": {"signal": "word_count", "le": 20},
    }
    signals = {"toxicity": scores, "quality": measure_quality(documents, QualityConfig())}
    history = {"score_toxicity": scores}
    history["select_scored"] = selected = select_documents(
        documents, signals, SelectConfig(rules=rules)
    )
    planted = plant_canaries(split_corpus(selected, SplitConfig()), PlantCanariesConfig())
    profile = profile_corpus(planted, planted, history, {}, ProfileConfig())
    expected = Counter()
    for row in read_rows(selected):
        expected[row["source"]] += 1
        expected[row["source"], "toxicity"] += "toxicity" in (row["tags"] or ())
    assert expected["books", "toxicity"] > 0 and expected["web", "toxicity"] > 0
    assert read_rows(profile, "tag_counts") == [
        {
            "stage": "select_scored",
            "rule": rule,
            "source": source,
            "documents": expected[source],
            "tagged_documents": expected[source, rule],
        }
        for rule in ("none", "toxicity")
        for source in ("books", "web")
    ]


def test_personal_data_counts_spans_and_documents(profiled):
    _, profile = profiled
    counts = {
        (r["type"], r["source"]): (r["spans"], r["documents"])
        for r in read_rows(profile, "personal_data")
    }
    spans, documents = Counter(), Counter()
    for i, text in enumerate(TEXTS):
        source = ("books", "web")[i % 3 == 0]
        email_count = text.count("@corp.example")
        spans[source] += email_count
        documents[source] += email_count > 0
    assert counts == {("EMAIL", s): (spans[s], documents[s]) for s in ("books", "web")}


def test_personal_data_counts_documents_removed_for_it(session):
    texts = ["Write to a@corp.example or b@corp.example.", "a@corp.example, (650) 253-0000", "Fog."]
    documents = given(texts)
    counts_by_case = {}
    for name, actions in (
        ("mask", {}),
        ("both", {"EMAIL": "drop", "PHONE": "drop"}),
        ("one", {"EMAIL": "drop"}),
        ("keep", {"EMAIL": "keep"}),
    ):
        ledger = scrubbed(documents, config=RedactSpansConfig(actions_by_type=actions))["ledger"]
        counts = count_personal_data_by_type_and_source(ledger).sort_by("type").to_pylist()
        counts_by_case[name] = [
            (r["type"], r["spans"], r["documents"], r["removed_documents"]) for r in counts
        ]
    assert counts_by_case == {
        "mask": [("EMAIL", 3, 2, 0), ("PHONE", 1, 1, 0)],
        "one": [("EMAIL", 0, 2, 2)],
        "both": [("EMAIL", 0, 2, 2), ("PHONE", 0, 1, 1)],
        "keep": [("PHONE", 1, 1, 0)],
    }


def test_toxicity_covers_kept_and_removed_documents(profiled):
    history, profile = profiled
    highest_scores = {}
    for row in read_rows(history["score_toxicity"], "windows"):
        highest_scores[row["doc_id"]] = max(highest_scores.get(row["doc_id"], 0), row["toxicity"])
    quantile_rows = [r for r in read_rows(profile, "toxicity") if r["source"] == ""]
    expected = np.quantile(
        np.array(list(highest_scores.values()), np.float64), ProfileConfig().quantiles
    )
    np.testing.assert_allclose([r["score"] for r in quantile_rows], expected)
    assert {r["scored_documents"] for r in quantile_rows} == {len(TEXTS)}
    assert history["select_scored"]["ledger"].row_count > 0
    removed = [r for r in read_rows(history["select_scored"], "ledger") if r["action"] == "removed"]
    kept = read_rows(history["select_scored"])
    expected_counts = Counter(
        (r["source"], "scored", r.get("reason", "")) for r in [*kept, *removed]
    )
    assert {
        (r["source"], r["status"], r["reason"]): r["documents"]
        for r in read_rows(profile, "toxicity_status")
    } == expected_counts


def test_violations_of_published_rules_match_those_of_select(session):
    line = "the man and the woman went to the river, where nobody was at home."
    texts = ["", "- short", f"{line}\n{line}\n" * 9, " ".join(line.split()[::-1] * 6) + ".", "{"]
    documents = given([*texts, GOOD])
    signals = measure_quality(documents, QualityConfig())
    split_artifact = split_corpus(documents, SplitConfig())
    history = {
        "quality": signals,
        "plant_canaries": plant_canaries(split_artifact, PlantCanariesConfig(enabled=False)),
    }
    rule_rows = read_rows(
        profile_corpus(
            history["plant_canaries"], history["plant_canaries"], history, {}, ProfileConfig()
        ),
        "published_rules",
    )
    config = SelectConfig(presets=("gopher", "c4", "fineweb"))
    ledger = select_documents(documents, {"quality": signals}, config)["ledger"].read()
    violations = Counter(reason.removesuffix(" unknown") for reason in ledger["reason"].to_pylist())
    assert violations["fineweb_duplicate_characters"] and violations["gopher_words"]
    for row in rule_rows:
        removes_unknown = row["rule"] == "fineweb_terminal_lines"
        assert (
            row["violations"] + removes_unknown * row["undetermined"] == violations[row["rule"]]
        ), row
        assert row["documents"] == 6
    assert [(r["preset"], r["rule"]) for r in rule_rows] == sorted(
        (rule.name.split("_")[0], rule.name) for rule in config.rules
    )


def test_duplicates_and_errors_are_counted(profiled):
    _, profile = profiled
    pairs_by_similarity = {r["similarity"]: r["pairs"] for r in read_rows(profile, "duplicates")}
    assert pairs_by_similarity == {0.7: 2, 0.85: 2, 0.9: 1, 1.0: 1}
    assert read_rows(profile, "errors") == [
        {"source": "a", "error": "x", "records": 2, "raw_bytes": 30},
        {"source": "b", "error": "y", "records": 1, "raw_bytes": 40},
    ]


def test_canary_counts_match_the_planted_documents(profiled):
    history, profile = profiled
    byte_counts, document_counts = Counter(), Counter()
    for row in read_rows(history["plant_canaries"]):
        if row["source"].startswith("planted/"):
            byte_counts[row["source"]] += len(row["text"].encode())
            document_counts[row["source"]] += 1
    for row in read_rows(profile, "canaries"):
        source = f"planted/{row['kind']}"
        assert row["canaries"] == {"canary": 3, "record": 1}[row["kind"]]
        assert row["documents"] == (document_counts[source] if row["copies"] else 0)
        assert row["bytes"] == (byte_counts[source] if row["copies"] else 0)


def test_the_profile_does_not_depend_on_workers(tmp_path):
    digests = []
    for name, mapper in (("one", None), ("two", ProcessMapper(2))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "secret").write_text("cd" * 32)
        session = Session(Store(tmp_path / name))
        session.mapper = mapper or session.mapper
        with open_session(session):
            digests.append(run_profile()[1].content_digest)
    assert digests[0] == digests[1]


def count_terms(text):
    table = count_identity_mentions_by_term_and_source(
        pa.array(["women and men", text], pa.large_string()),
        pa.array(["x", "s"]),
        load_builtin_lexicon(),
    )
    return {r["term"]: r["mentions"] for r in table.to_pylist() if r["source"] == "s"}


def test_terms_are_whole_words_in_any_case_and_spelling():
    assert count_terms("Women's rights, WOMAN; womanly human") == {"women": 1, "woman": 1}
    assert count_terms("an African-American man") == {
        "african american": 1,
        "man": 1,
    }
    assert count_terms("mén, Größe, émen, men漢") == {}
    assert count_terms("black box, white space, native code, black\nPeople") == {"black": 1}
    assert count_terms("") == {}


def test_groups_of_configured_lexicons_are_counted(session):
    documents = given(["A Tamsker and two Tamskers met a woman.", "The Tamskers left."])
    identities = find_identities(documents, IdentitiesConfig(lexicons=("town",)))
    planted = plant_canaries(
        split_corpus(documents, SplitConfig()), PlantCanariesConfig(enabled=False)
    )
    for history, town_counts in (
        ({"identities": identities}, {"tamsker": (1, 1), "tamskers": (2, 2)}),
        ({}, {}),
    ):
        profile = profile_corpus(planted, planted, history, {}, ProfileConfig())
        counts = {
            r["term"]: (r["mentions"], r["documents"]) for r in read_rows(profile, "identities")
        }
        assert counts == {"woman": (1, 1)} | town_counts


def test_words_of_different_documents_do_not_form_a_term():
    table = count_identity_mentions_by_term_and_source(
        pa.array(["black", "people"], pa.large_string()),
        pa.array(["s", "s"]),
        load_builtin_lexicon(),
    )
    assert len(table) == 0


def test_mentions_are_counted_by_term_and_source():
    texts = ["women and men", "men", "a woman, many men; men", "rain"]
    sources = ["a", "b", "a", "b"]
    table = count_identity_mentions_by_term_and_source(
        pa.array(texts, pa.large_string()), pa.array(sources, pa.string()), load_builtin_lexicon()
    )
    counts = {(r["term"], r["source"]): (r["mentions"], r["documents"]) for r in table.to_pylist()}
    assert counts == {
        ("women", "a"): (1, 1),
        ("woman", "a"): (1, 1),
        ("men", "a"): (3, 2),
        ("men", "b"): (1, 1),
    }


def test_occupations_are_counted_by_mention_and_source():
    texts = [
        "The nurse saw her; she waved. A nurse slept.",
        "He, a nurse, and the baker of his.",
        "",
    ]
    texts += ["He and she met the baker", "nobody"]
    counts = count_occupation_mentions_by_source(
        pa.array(texts, pa.large_string()), pa.array([*"abbab"]), 10
    )
    row_by_key = {(r.pop("source"), r.pop("occupation")): r for r in build_occupation_rows(counts)}
    keys = ("mentions", "women_words", "men_words", "women_mentions", "men_mentions", "women_share")
    assert {key: tuple(row[k] for k in keys) for key, row in row_by_key.items()} == {
        ("a", "nurse"): (2, 2, 0, 1, 0, 1.0),
        ("b", "nurse"): (1, 0, 2, 0, 1, 0.0),
        ("b", "baker"): (1, 0, 2, 0, 1, 0.0),
        ("a", "baker"): (1, 1, 1, 0, 0, None),
        ("", "nurse"): (3, 2, 2, 1, 1, 0.5),
        ("", "baker"): (2, 1, 3, 0, 1, 0.0),
        ("a", ""): (3, 3, 1, 1, 0, 1.0),
        ("b", ""): (2, 0, 4, 0, 2, 0.0),
        ("", ""): (5, 3, 5, 1, 2, 1 / 3),
    }
    assert (row_by_key["a", "baker"]["low"], row_by_key["a", "baker"]["high"]) == (None, None)
    row = row_by_key["", "nurse"]  # Wilson 1927: both ends solve (p - 1/2)^2 = z^2 p (1 - p) / n
    for end in (row["low"], row["high"]):
        assert (end - 0.5) ** 2 == pytest.approx(1.959964**2 * end * (1 - end) / 2, rel=1e-5)
    assert row["low"] < 0.5 < row["high"]
    assert build_occupation_rows(counts.slice(0, 0)) == []


def test_occupation_totals_match_the_documents(profiled):
    history, profile = profiled
    documents = history["plant_canaries"]["documents"].read()
    expected = Counter()
    for source, text in zip(
        documents["source"].to_pylist(), documents["text"].to_pylist(), strict=True
    ):
        expected[source] += text.count("The plumber") + text.count("the baker")
    totals = {
        r["source"]: r["mentions"] for r in read_rows(profile, "occupations") if not r["occupation"]
    }
    assert totals == {source: n for source, n in expected.items() if n} | {"": expected.total()}


def test_quantiles_out_of_order_or_range_are_rejected():
    for quantiles in ((0.5, 0.1), (1.5,), (0.1, 0.1)):
        with pytest.raises(ValidationError):
            ProfileConfig(quantiles=quantiles)
