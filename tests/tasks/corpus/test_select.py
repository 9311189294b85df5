"""Rules over signals: bounds, first and additional reasons, tags and caps."""

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

SIGNALS = build_signal_schema(
    "For tests.",
    column("words", pa.int32(), "figure", "how many words"),
    column("share", pa.float64(), "figure", "some share"),
    column("language", pa.string(), "label", "which language"),
    column("odd", pa.bool_(), "figure", "yes or no"),
)
TOXICITY_SIGNALS = build_signal_schema(
    "For tests.", column("toxicity", pa.float32(), "figure", "how toxic")
)


class SignalsConfig(StageConfig):
    words: tuple[int | None, ...]
    share: tuple[float | None, ...] = ()
    language: tuple[str | None, ...] = ()
    odd: tuple[bool | None, ...] = ()
    reverse_ids: bool = False


@stage(name="measures", tables={"signals": SIGNALS})
def write_signals(documents: Table, config: SignalsConfig, context: StageContext) -> None:
    n = len(config.words)
    values = {name: getattr(config, name) or (None,) * n for name in SIGNALS.names[1:]}
    doc_ids = documents.read()["doc_id"].to_pylist()
    doc_ids = doc_ids[::-1] if config.reverse_ids else doc_ids
    context.get_table_writer("signals").write({"doc_id": doc_ids, **values})


class ToxicityConfig(StageConfig):
    toxicity: tuple[float | None, ...]


@stage(name="toxicities", tables={"signals": TOXICITY_SIGNALS})
def write_toxicity(documents: Table, config: ToxicityConfig, context: StageContext) -> None:
    columns = {"doc_id": documents.read()["doc_id"], "toxicity": config.toxicity}
    context.get_table_writer("signals").write(columns)


def select_by(rules, seed=0, texts=None, **values):
    n = len(next(iter(values.values())))
    documents = given(texts or [f"text {i}" for i in range(n)])
    signals = write_signals(documents, SignalsConfig(**{"words": (0,) * n, **values}))
    return select_documents(documents, {"quality": signals}, SelectConfig(rules=rules, seed=seed))


def list_kept(result):
    return [int(text.split()[1]) for text in result["documents"].read()["text"].to_pylist()]


def list_ids(n):
    return given([f"text {i}" for i in range(n)])["documents"].read()["doc_id"].to_pylist()


def read_ledger(result, *columns):
    return [tuple(row[n] for n in columns) for row in result["ledger"].read().to_pylist()]


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        ({"ge": 2}, [2, 3, 4]),
        ({"gt": 2}, [3, 4]),
        ({"le": 2}, [0, 1, 2]),
        ({"lt": 2}, [0, 1]),
        ({"ge": 1, "lt": 3}, [1, 2]),
        ({"gt": 1, "le": 3}, [2, 3]),
    ],
)
def test_each_bound_keeps_the_values_within_it(session, bound, expected):
    result = select_by({"words": bound}, words=(0, 1, 2, 3, 4))
    assert list_kept(result) == expected
    for reason, score, threshold in read_ledger(result, "reason", "score", "threshold"):
        lower_bound = min(bound.get("ge", math.inf), bound.get("gt", math.inf))
        upper_bound = max(bound.get("le", -math.inf), bound.get("lt", -math.inf))
        assert reason == "words"
        assert threshold == (upper_bound if score > expected[-1] else lower_bound)


@given_values(
    st.lists(st.one_of(st.none(), st.floats(-3, 3), st.just(math.nan)), min_size=1, max_size=20),
    st.dictionaries(st.sampled_from(["ge", "gt", "le", "lt"]), st.integers(-2, 2), min_size=1),
)
def test_violations_match_python_comparisons(values, bounds):
    rule = SelectionRule(name="x", **bounds)
    array = pa.array(values, pa.float64(), from_pandas=False)
    holds = {
        "ge": lambda value, bound: value >= bound,
        "gt": lambda value, bound: value > bound,
        "le": lambda value, bound: value <= bound,
        "lt": lambda value, bound: value < bound,
    }
    expected = [
        None
        if value is None or math.isnan(value)
        else not all(holds[name](value, bound) for name, bound in bounds.items())
        for value in values
    ]
    assert rule.find_violations(array).to_pylist() == expected
    violated_bounds = rule.find_violated_bounds(array).to_pylist()
    for value, is_violated, violated_bound in zip(values, expected, violated_bounds, strict=True):
        assert (violated_bound is not None) == bool(is_violated)
        if is_violated:
            assert any(
                bound == violated_bound and not holds[name](value, bound)
                for name, bound in bounds.items()
            )


def test_the_first_rule_is_the_reason_and_others_are_additional_reasons(session):
    rules = {
        "short": {"signal": "words", "ge": 5},
        "symbols": {"signal": "share", "le": 0.5},
        "long": {"signal": "words", "le": 9},
    }
    result = select_by(rules, words=(1, 7, 12, 3), share=(0.75, 0.25, 1.0, None))
    assert list_kept(result) == [1]
    doc_ids = list_ids(4)
    names = ("doc_id", "action", "reason", "score", "threshold")
    assert sorted(read_ledger(result, *names)) == sorted(
        [
            (doc_ids[0], "removed", "short", 1.0, 5.0),
            (doc_ids[0], "additional_reason", "symbols", 0.75, 0.5),
            (doc_ids[2], "removed", "symbols", 1.0, 0.5),
            (doc_ids[2], "additional_reason", "long", 12.0, 9.0),
            (doc_ids[3], "removed", "short", 3.0, 5.0),
        ]
    )
    has_hash = [
        document_hash is not None for (document_hash,) in read_ledger(result, "document_hash")
    ]
    assert has_hash == [action == "removed" for (action,) in read_ledger(result, "action")]
    rows = {b["unit"]: b for b in result["accounts"].read().to_pylist()}["rows"]
    assert (rows["input"], rows["kept"], rows["removed_rows"]) == (4, 1, 3)


def test_ledger_rows_are_in_the_order_of_documents_and_rules(session):
    rules = {name: {"signal": "words", "ge": 5} for name in "dacb"}
    result = select_by(rules, words=(*(1,) * 50, 9))
    rows = read_ledger(result, "doc_id", "action", "reason")
    assert rows == [
        (doc_id, "removed" if name == "d" else "additional_reason", name)
        for doc_id in sorted(list_ids(50))
        for name in "dacb"
    ]


def test_rules_that_remove_all_documents_are_named_in_the_error(session):
    """The stage fails, because later stages would fail for lack of text, far from the cause."""
    rules = {"words": {"ge": 5, "on_missing": "remove"}, "long": {"signal": "words", "lt": 7}}
    summary = (
        "remove all 4 documents: words removed 2, words unknown removed 1, long removed 1; relax"
    )
    with pytest.raises(HallmarkError, match=f"^stage select: the rules {summary} the bounds"):
        select_by(rules, words=(1, 2, None, 9))
    tag_rules = {"words": {"ge": 5, "action": "tag"}}
    assert len(list_kept(select_by(tag_rules, words=(1, 2, None, 9)))) == 4


def test_rules_apply_to_labels_and_flags(session):
    languages = ("en", "de", None, "fr")
    included = select_by({"language": {"any_of": ["en", "de"]}}, language=languages)
    assert list_kept(included) == [0, 1, 2]
    assert read_ledger(included, "reason", "score", "threshold") == [("language", None, None)]
    exclusion_rules = {"language": {"none_of": ["en", "de"], "on_missing": "remove"}}
    assert list_kept(result := select_by(exclusion_rules, language=languages)) == [3]
    assert sorted(read_ledger(result, "reason")) == [
        ("language",),
        ("language",),
        ("language unknown",),
    ]
    assert list_kept(select_by({"odd": {"lt": 1}}, odd=(True, False, None))) == [1, 2]


@pytest.mark.parametrize("on_missing", ["keep", "remove"])
def test_missing_values_are_unknown_and_never_zero(session, on_missing):
    result = select_by(
        {"share": {"lt": 0.5, "on_missing": on_missing}}, share=(None, 0.25, math.nan)
    )
    assert list_kept(result) == ([0, 1, 2] if on_missing == "keep" else [1])
    if on_missing == "remove":
        (first, *_), _ = read_ledger(result, "reason", "score")
        assert first == "share unknown"
        assert read_ledger(result, "threshold") == [(None,), (None,)]
    metrics = {row["metric"]: row["value"] for row in result.read_telemetry().to_pylist()}
    assert metrics["unknown_share"] == 2


def test_the_action_of_a_rule_applies_to_documents_without_a_value(session):
    rule = {"lt": 0.5, "on_missing": "remove", "action": "tag"}
    result = select_by({"share": rule}, share=(None, 0.25, 0.75))
    assert list_kept(result) == [0, 1, 2] and read_ledger(result, "reason") == []
    assert result["documents"].read()["tags"].to_pylist() == [["share"], None, ["share"]]


def test_tagged_documents_are_kept_and_tags_are_appended(session):
    rules = {
        "few": {"signal": "words", "ge": 5, "action": "tag"},
        "many": {"signal": "share", "le": 0.5, "action": "tag"},
    }
    texts = [f"text {i}" for i in range(3)]
    documents = given(texts)
    signals = write_signals(documents, SignalsConfig(words=(1, 7, 2), share=(1.0, 0.0, 0.0)))
    once = select_documents(documents, {"quality": signals}, SelectConfig(rules=rules))
    assert once["documents"].read()["tags"].to_pylist() == [["few", "many"], None, ["few"]]
    assert once["ledger"].row_count == 0
    new_signals = write_signals(once["documents"], SignalsConfig(words=(9, 1, 1)))
    rules = {"later": {"signal": "words", "ge": 5, "action": "tag"}}
    twice = select_documents(once, {"quality": new_signals}, SelectConfig(rules=rules))
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
def test_tags_are_appended_like_lists(rows):
    tags = pa.array([old_tags or None for old_tags, *_ in rows], pa.list_(pa.string()))
    is_hit_by_rule = {
        "x": np.array([x for _, x, _ in rows], bool),
        "y": np.array([y for *_, y in rows], bool),
    }
    expected = [[*old_tags, *["x"] * x, *["y"] * y] or None for old_tags, x, y in rows]
    assert add_rule_tags(tags, is_hit_by_rule).to_pylist() == expected


def test_a_cap_keeps_a_share_chosen_by_ids(session):
    words = tuple(i % 2 for i in range(4000))
    rule = {"odd": {"signal": "words", "lt": 1, "action": "cap", "kept_share": 0.25}}
    result = select_by(rule, words=words)
    odd = [i for i in list_kept(result) if i % 2]
    assert len([i for i in list_kept(result) if not i % 2]) == 2000
    assert abs(len(odd) / 2000 - 0.25) < 0.04  # four standard errors
    assert {reason for (reason,) in read_ledger(result, "reason")} == {"odd"}
    smaller = select_by(rule, words=words[:1000])
    # Other documents do not matter.
    assert list_kept(smaller) == [i for i in list_kept(result) if i < 1000]
    assert list_kept(select_by(rule, words=words, seed=1)) != list_kept(result)


def test_a_signal_named_like_a_column_is_copied_into_it(session):
    documents = given(["text 0", "text 1"])
    scores = write_toxicity(documents, ToxicityConfig(toxicity=(0.25, 0.875)))
    result = select_documents(documents, {"toxicity": scores}, SelectConfig())
    assert result["documents"].read()["toxicity"].to_pylist() == [0.25, 0.875]


def test_signals_of_other_documents_are_rejected(session):
    config = SelectConfig(rules={"words": {"ge": 1}})
    documents = given(["text 0", "text 1"])
    fewer = write_signals(given(["text 0"]), SignalsConfig(words=(1,)))
    for signals in (fewer, write_signals(documents, SignalsConfig(words=(1, 1), reverse_ids=True))):
        with pytest.raises(
            HallmarkError, match=r"documents of .* and signals of .* describe different documents"
        ):
            select_documents(documents, {"quality": signals}, config)
    with pytest.raises(HallmarkError, match="have different partitions"):
        signals = write_signals(given(["text 0", "text 1"], parts=2), SignalsConfig(words=(1, 1)))
        select_documents(given(["text 0", "text 1"], parts=2), {"quality": signals}, config)


def test_a_missing_signal_or_one_of_another_type_is_named_in_the_error(session):
    for rules, message in (
        (
            {"lines": {"ge": 1}},
            r"rule 'lines': there is no signal 'lines'; "
            r"the available signals are: words, share, language, odd$",
        ),
        ({"language": {"ge": 1}}, r"rule 'language': signal 'language' is of type string"),
        ({"words": {"any_of": ["a"]}}, r"rule 'words': signal 'words' is of type int32"),
    ):
        with pytest.raises(HallmarkError, match=message):
            select_by(rules, words=(1,), language=("en",))
    documents = given(["text 0"])
    signals = write_signals(documents, SignalsConfig(words=(1,)))
    with pytest.raises(HallmarkError, match="two stages compute a signal with the name 'words'"):
        select_documents(
            documents, {"a": signals, "b": signals}, SelectConfig(rules={"words": {"ge": 1}})
        )


def load_select_config(rules):
    sources = [{"kind": "text", "name": "s", "path": "x"}]
    tree = {"name": "x", "ingest": {"sources": sources}, "select_scored": {"rules": rules}}
    return load_config(tree).select_scored


def test_rules_can_be_tables_and_keep_their_order():
    config = load_select_config({"b": {"signal": "threat", "lt": 1}, "toxicity": {"lt": 0.5}})
    assert [(r.name, r.signal) for r in config.rules] == [("b", "threat"), ("toxicity", "toxicity")]
    assert SelectConfig.model_validate(config.model_dump(mode="json")) == config
    reordered = load_select_config({"toxicity": {"lt": 0.5}, "b": {"signal": "threat", "lt": 1}})
    assert reordered.model_dump(mode="json") != config.model_dump(mode="json")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"x": {}}, "the rule needs at least one of: ge, gt, "),
        (
            {"x": {"ge": 1, "any_of": ["a"]}},
            "both numeric bounds (ge) and label conditions (any_of)",
        ),
        ({"x": {"any_of": ["a"], "none_of": ["b"]}}, "both 'any_of' and 'none_of'"),
        ({"x": {"ge": 1, "kept_share": 0.5}}, "'kept_share' must be above 0 if 'action' is 'cap'"),
        ({"x": {"ge": 1, "action": "cap"}}, "'kept_share' must be above 0 if 'action' is 'cap'"),
        ({"x": {"ge": 1, "action": "cap", "kept_share": 1}}, "kept_share"),
        ({"x": {"ge": 1, "action": "drop"}}, "action"),
        ({"x": {"ge": 1, "on_missing": "zero"}}, "on_missing"),
        ({"x": {"ge": math.nan}}, "ge"),
        ({"x": 5}, "rules"),
        ({"../x": {"ge": 1}}, "name"),
        ([{"name": "x", "ge": 1}, {"name": "x", "le": 1}], "two rules have the same name"),
        (5, "rules: the rules must be either one table"),
        ({"threat": {"lt": "abc"}}, "rules.threat.lt: must be a number (given: 'abc')"),
        ([{"name": ["x"], "lt": 1}], "rules.0.name: must be text, in quotes"),
        (
            {"threat": {"lt": 1}, "lines": {"ge": 1}},
            "rules.lines: there is no signal 'lines'; the available signals are: toxicity, "
            "severe_toxicity, ",
        ),
        ({"threat": {"any_of": ["a"]}}, "rules.threat: signal 'threat' is of type float: use"),
        (
            {"status": {"signal": "toxicity_status", "lt": 1}},
            "string: use 'any_of' or 'none_of' in",
        ),
    ],
)
def test_an_invalid_rule_is_rejected_with_its_place(rules, message):
    with pytest.raises(UsageError, match=r"select_scored\.rules|select_scored: ") as error:
        load_select_config(rules)
    assert message in str(error.value)


def test_a_seed_has_63_bits():
    for seed in (0, (1 << 63) - 1):
        assert SelectConfig(seed=seed).seed == seed
    for seed in (-1, 1 << 63):
        with pytest.raises(ValidationError):
            SelectConfig(seed=seed)


def test_an_empty_column_has_no_violations():
    """A partition, or a whole addition to a corpus, can be empty."""
    for value_type in (pa.float32(), pa.int64(), pa.bool_()):
        assert (
            SelectionRule(name="toxicity", lt=0.8)
            .find_violations(pa.array([], value_type))
            .equals(pa.array([], pa.bool_()))
        )
