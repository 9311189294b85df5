"""Rules over signals: every bound, the first reason and the further ones, tags and caps."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given as given_values
from hypothesis import strategies as st
from pydantic import ValidationError

from hallmark.flows.config import load_config
from hallmark.tasks.contract import (
    HallmarkError,
    StageConfig,
    StageContext,
    Table,
    UsageError,
    column,
    stage,
)
from hallmark.tasks.corpus.select import (
    SelectConfig,
    SelectionRule,
    add_rule_tags,
    select_documents,
)
from hallmark.tasks.corpus.signals import build_signal_schema
from tests.tasks.corpora import given

MEASURES = build_signal_schema(
    "For tests.",
    column("words", pa.int32(), "figure", "how many words"),
    column("share", pa.float64(), "figure", "some share"),
    column("language", pa.string(), "label", "which language"),
    column("odd", pa.bool_(), "figure", "yes or no"),
)
TOXICITIES = build_signal_schema(
    "For tests.", column("toxicity", pa.float32(), "figure", "how toxic")
)


class MeasuresConfig(StageConfig):
    words: tuple[int | None, ...]
    share: tuple[float | None, ...] = ()
    language: tuple[str | None, ...] = ()
    odd: tuple[bool | None, ...] = ()
    backwards: bool = False


@stage(name="measures", tables={"signals": MEASURES})
def measures(documents: Table, config: MeasuresConfig, context: StageContext) -> None:
    n = len(config.words)
    values = {name: getattr(config, name) or (None,) * n for name in MEASURES.names[1:]}
    ids = documents.read()["doc_id"].to_pylist()
    ids = ids[::-1] if config.backwards else ids
    context.get_table_writer("signals").write({"doc_id": ids, **values})


class ToxicitiesConfig(StageConfig):
    toxicity: tuple[float | None, ...]


@stage(name="toxicities", tables={"signals": TOXICITIES})
def toxicities(documents: Table, config: ToxicitiesConfig, context: StageContext) -> None:
    columns = {"doc_id": documents.read()["doc_id"], "toxicity": config.toxicity}
    context.get_table_writer("signals").write(columns)


def selected(rules, seed=0, texts=None, **values):
    n = len(next(iter(values.values())))
    documents = given(texts or [f"text {i}" for i in range(n)])
    made = measures(documents, MeasuresConfig(**{"words": (0,) * n, **values}))
    return select_documents(documents, {"quality": made}, SelectConfig(rules=rules, seed=seed))


def kept(made):
    return [int(text.split()[1]) for text in made["documents"].read()["text"].to_pylist()]


def ids_of(n):
    return given([f"text {i}" for i in range(n)])["documents"].read()["doc_id"].to_pylist()


def ledger(made, *names):
    return [tuple(row[n] for n in names) for row in made["ledger"].read().to_pylist()]


@pytest.mark.parametrize(
    ("bound", "passes"),
    [
        ({"ge": 2}, [2, 3, 4]),
        ({"gt": 2}, [3, 4]),
        ({"le": 2}, [0, 1, 2]),
        ({"lt": 2}, [0, 1]),
        ({"ge": 1, "lt": 3}, [1, 2]),
        ({"gt": 1, "le": 3}, [2, 3]),
    ],
)
def test_each_bound_keeps_what_it_says(session, bound, passes):
    made = selected({"words": bound}, words=(0, 1, 2, 3, 4))
    assert kept(made) == passes
    for reason, score, threshold in ledger(made, "reason", "score", "threshold"):
        low = min(bound.get("ge", math.inf), bound.get("gt", math.inf))
        high = max(bound.get("le", -math.inf), bound.get("lt", -math.inf))
        assert reason == "words"
        assert threshold == (high if score > passes[-1] else low)


@given_values(
    st.lists(st.one_of(st.none(), st.floats(-3, 3), st.just(math.nan)), min_size=1, max_size=20),
    st.dictionaries(st.sampled_from(["ge", "gt", "le", "lt"]), st.integers(-2, 2), min_size=1),
)
def test_bounds_are_those_of_python(values, bounds):
    rule = SelectionRule(name="x", **bounds)
    array = pa.array(values, pa.float64(), from_pandas=False)
    holds = {
        "ge": lambda v, b: v >= b,
        "gt": lambda v, b: v > b,
        "le": lambda v, b: v <= b,
        "lt": lambda v, b: v < b,
    }
    expected = [
        None
        if value is None or math.isnan(value)
        else not all(holds[name](value, bound) for name, bound in bounds.items())
        for value in values
    ]
    assert rule.find_violations(array).to_pylist() == expected
    limits = rule.find_violated_bounds(array).to_pylist()
    for value, breaks, limit in zip(values, expected, limits, strict=True):
        assert (limit is not None) == bool(breaks)
        if breaks:
            assert any(b == limit and not holds[n](value, b) for n, b in bounds.items())


def test_the_first_rule_is_the_reason_and_the_others_are_said_too(session):
    rules = {
        "short": {"signal": "words", "ge": 5},
        "symbols": {"signal": "share", "le": 0.5},
        "long": {"signal": "words", "le": 9},
    }
    made = selected(rules, words=(1, 7, 12, 3), share=(0.75, 0.25, 1.0, None))
    assert kept(made) == [1]
    by_text = ids_of(4)
    names = ("doc_id", "action", "reason", "score", "threshold")
    assert sorted(ledger(made, *names)) == sorted(
        [
            (by_text[0], "removed", "short", 1.0, 5.0),
            (by_text[0], "additional_reason", "symbols", 0.75, 0.5),
            (by_text[2], "removed", "symbols", 1.0, 0.5),
            (by_text[2], "additional_reason", "long", 12.0, 9.0),
            (by_text[3], "removed", "short", 3.0, 5.0),
        ]
    )
    identities = [identity is not None for (identity,) in ledger(made, "document_hash")]
    assert identities == [action == "removed" for (action,) in ledger(made, "action")]
    rows = {b["unit"]: b for b in made["accounts"].read().to_pylist()}["rows"]
    assert (rows["input"], rows["kept"], rows["removed_rows"]) == (4, 1, 3)


def test_rows_of_the_ledger_stand_in_the_order_of_documents_and_rules(session):
    rules = {name: {"signal": "words", "ge": 5} for name in "dacb"}
    made = selected(rules, words=(*(1,) * 50, 9))
    rows = ledger(made, "doc_id", "action", "reason")
    assert rows == [
        (doc_id, "removed" if name == "d" else "additional_reason", name)
        for doc_id in sorted(ids_of(50))
        for name in "dacb"
    ]


def test_rules_that_leave_no_document_are_named(session):
    """Nothing is committed: what comes behind would fail for want of text, far from the cause."""
    rules = {"words": {"ge": 5, "on_missing": "remove"}, "long": {"signal": "words", "lt": 7}}
    says = "leave none of 4 documents: words took 2, words unknown took 1, long took 1; widen"
    with pytest.raises(HallmarkError, match=f"^stage select: its rules {says} their bounds"):
        selected(rules, words=(1, 2, None, 9))
    tagged = {"words": {"ge": 5, "action": "tag"}}
    assert len(kept(selected(tagged, words=(1, 2, None, 9)))) == 4


def test_labels_and_flags(session):
    languages = ("en", "de", None, "fr")
    wanted = selected({"language": {"any_of": ["en", "de"]}}, language=languages)
    assert kept(wanted) == [0, 1, 2]
    assert ledger(wanted, "reason", "score", "threshold") == [("language", None, None)]
    unwanted = {"language": {"none_of": ["en", "de"], "on_missing": "remove"}}
    assert kept(made := selected(unwanted, language=languages)) == [3]
    assert sorted(ledger(made, "reason")) == [("language",), ("language",), ("language unknown",)]
    assert kept(selected({"odd": {"lt": 1}}, odd=(True, False, None))) == [1, 2]


@pytest.mark.parametrize("unknown", ["keep", "remove"])
def test_what_has_no_value_is_unknown_and_never_zero(session, unknown):
    made = selected({"share": {"lt": 0.5, "on_missing": unknown}}, share=(None, 0.25, math.nan))
    assert kept(made) == ([0, 1, 2] if unknown == "keep" else [1])
    if unknown == "remove":
        (first, *_), _ = ledger(made, "reason", "score")
        assert first == "share unknown"
        assert ledger(made, "threshold") == [(None,), (None,)]
    told = {row["metric"]: row["value"] for row in made.read_telemetry().to_pylist()}
    assert told["unknown_share"] == 2


def test_the_action_of_a_rule_applies_to_documents_without_a_value(session):
    rule = {"lt": 0.5, "on_missing": "remove", "action": "tag"}
    made = selected({"share": rule}, share=(None, 0.25, 0.75))
    assert kept(made) == [0, 1, 2] and ledger(made, "reason") == []
    assert made["documents"].read()["tags"].to_pylist() == [["share"], None, ["share"]]


def test_a_tag_leaves_the_document_and_joins_the_tags_that_it_has(session):
    rules = {
        "few": {"signal": "words", "ge": 5, "action": "tag"},
        "many": {"signal": "share", "le": 0.5, "action": "tag"},
    }
    texts = [f"text {i}" for i in range(3)]
    documents = given(texts)
    made = measures(documents, MeasuresConfig(words=(1, 7, 2), share=(1.0, 0.0, 0.0)))
    once = select_documents(documents, {"quality": made}, SelectConfig(rules=rules))
    assert once["documents"].read()["tags"].to_pylist() == [["few", "many"], None, ["few"]]
    assert once["ledger"].row_count == 0
    again = measures(once["documents"], MeasuresConfig(words=(9, 1, 1)))
    rules = {"later": {"signal": "words", "ge": 5, "action": "tag"}}
    twice = select_documents(once, {"quality": again}, SelectConfig(rules=rules))
    assert twice["documents"].read()["tags"].to_pylist() == [
        ["few", "many"],
        ["later"],
        ["few", "later"],
    ]


@given_values(
    st.lists(
        st.tuples(st.lists(st.sampled_from("ab"), max_size=2), st.booleans(), st.booleans()),
        max_size=12,
    )
)
def test_tags_are_merged_as_lists_are(rows):
    tags = pa.array([before or None for before, *_ in rows], pa.list_(pa.string()))
    hits = [
        ("x", np.array([x for _, x, _ in rows], bool)),
        ("y", np.array([y for *_, y in rows], bool)),
    ]
    expected = [[*before, *["x"] * x, *["y"] * y] or None for before, x, y in rows]
    assert add_rule_tags(tags, hits).to_pylist() == expected


def test_a_cap_keeps_a_share_that_ids_decide(session):
    words = tuple(i % 2 for i in range(4000))
    rule = {"odd": {"signal": "words", "lt": 1, "action": "cap", "kept_share": 0.25}}
    made = selected(rule, words=words)
    odd = [i for i in kept(made) if i % 2]
    assert len([i for i in kept(made) if not i % 2]) == 2000
    assert abs(len(odd) / 2000 - 0.25) < 0.04  # four standard errors
    assert {reason for (reason,) in ledger(made, "reason")} == {"odd"}
    some = selected(rule, words=words[:1000])
    assert kept(some) == [i for i in kept(made) if i < 1000]  # not what else there is
    assert kept(selected(rule, words=words, seed=1)) != kept(made)


def test_a_signal_named_like_a_column_is_carried_on(session):
    documents = given(["text 0", "text 1"])
    scores = toxicities(documents, ToxicitiesConfig(toxicity=(0.25, 0.875)))
    made = select_documents(documents, {"toxicity": scores}, SelectConfig())
    assert made["documents"].read()["toxicity"].to_pylist() == [0.25, 0.875]


def test_signals_of_other_documents_are_refused(session):
    config = SelectConfig(rules={"words": {"ge": 1}})
    documents = given(["text 0", "text 1"])
    few = measures(given(["text 0"]), MeasuresConfig(words=(1,)))
    for made in (few, measures(documents, MeasuresConfig(words=(1, 1), backwards=True))):
        with pytest.raises(HallmarkError, match=r"documents of .* and signals of .* not about the"):
            select_documents(documents, {"quality": made}, config)
    with pytest.raises(HallmarkError, match="not cut alike"):
        made = measures(given(["text 0", "text 1"], parts=2), MeasuresConfig(words=(1, 1)))
        select_documents(given(["text 0", "text 1"], parts=2), {"quality": made}, config)


def test_a_signal_that_is_not_there_or_of_another_kind_is_named(session):
    for rules, words in (
        (
            {"lines": {"ge": 1}},
            r"rule 'lines': there is no signal 'lines'; there are: words, share, language, odd$",
        ),
        ({"language": {"ge": 1}}, r"rule 'language': signal 'language' is of type string"),
        ({"words": {"any_of": ["a"]}}, r"rule 'words': signal 'words' is of type int32"),
    ):
        with pytest.raises(HallmarkError, match=words):
            selected(rules, words=(1,), language=("en",))
    documents = given(["text 0"])
    made = measures(documents, MeasuresConfig(words=(1,)))
    with pytest.raises(HallmarkError, match="two stages have a signal 'words'"):
        select_documents(
            documents, {"a": made, "b": made}, SelectConfig(rules={"words": {"ge": 1}})
        )


def config_of(rules):
    sources = [{"kind": "text", "name": "s", "path": "x"}]
    tree = {"name": "x", "ingest": {"sources": sources}, "select_scored": {"rules": rules}}
    return load_config(tree).select_scored


def test_rules_are_written_as_tables_and_keep_their_order():
    config = config_of({"b": {"signal": "threat", "lt": 1}, "toxicity": {"lt": 0.5}})
    assert [(r.name, r.signal) for r in config.rules] == [("b", "threat"), ("toxicity", "toxicity")]
    assert SelectConfig.model_validate(config.model_dump(mode="json")) == config
    other = config_of({"toxicity": {"lt": 0.5}, "b": {"signal": "threat", "lt": 1}})
    assert other.model_dump(mode="json") != config.model_dump(mode="json")


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"x": {}}, "needs a bound"),
        ({"x": {"ge": 1, "any_of": ["a"]}}, "bounds for numbers and for labels"),
        ({"x": {"any_of": ["a"], "none_of": ["b"]}}, "bounds for numbers and for labels"),
        ({"x": {"ge": 1, "kept_share": 0.5}}, 'kept_share goes with action = "cap"'),
        ({"x": {"ge": 1, "action": "cap"}}, 'kept_share goes with action = "cap"'),
        ({"x": {"ge": 1, "action": "cap", "kept_share": 1}}, "kept_share"),
        ({"x": {"ge": 1, "action": "drop"}}, "action"),
        ({"x": {"ge": 1, "on_missing": "zero"}}, "on_missing"),
        ({"x": {"ge": math.nan}}, "ge"),
        ({"x": 5}, "rules"),
        ({"../x": {"ge": 1}}, "name"),
        ([{"name": "x", "ge": 1}, {"name": "x", "le": 1}], "two rules have one name"),
        (5, "rules: must be tables"),
        ({"threat": {"lt": "abc"}}, "rules.threat.lt: must be a number (given: 'abc')"),
        ([{"name": ["x"], "lt": 1}], "rules.0.name: must be text, in quotes"),
        (
            {"threat": {"lt": 1}, "lines": {"ge": 1}},
            "rules.lines: there is no signal 'lines'; there are: toxicity, severe_toxicity, ",
        ),
        ({"threat": {"any_of": ["a"]}}, "rules.threat: signal 'threat' is of type float: give it"),
        ({"status": {"signal": "toxicity_status", "lt": 1}}, "string: give it any_of or none_of"),
    ],
)
def test_a_rule_that_says_nothing_sound_is_refused_with_its_place(rules, words):
    with pytest.raises(UsageError, match=r"select_scored\.rules|select_scored: ") as error:
        config_of(rules)
    assert words in str(error.value)


def test_a_seed_is_a_number_of_63_bits():
    for seed in (0, (1 << 63) - 1):
        assert SelectConfig(seed=seed).seed == seed
    for seed in (-1, 1 << 63):
        with pytest.raises(ValidationError):
            SelectConfig(seed=seed)


def test_no_value_breaks_no_rule():
    """A part, or a whole addition to a corpus, of which nothing was left."""
    for kind in (pa.float32(), pa.int64(), pa.bool_()):
        assert (
            SelectionRule(name="toxicity", lt=0.8)
            .find_violations(pa.array([], kind))
            .equals(pa.array([], pa.bool_()))
        )
