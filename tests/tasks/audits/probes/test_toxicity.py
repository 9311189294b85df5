"""The toxicity audit against closed forms, with scorers and subjects of known answers."""

import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hallmark.tasks.audits.audit_tables import (
    REQUESTS,
    RESPONSES,
    SCORES,
    TRAINING_OVERLAP,
    RequestBuilder,
)
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.judging.measures import build_values_schema
from hallmark.tasks.audits.methods.continuations import (
    MODEL_WRITER,
    NO_WRITER,
    NONTOXIC,
    TOXIC,
    UNSCORED,
)
from hallmark.tasks.audits.methods.scorer_controls import (
    MUST_FLAG,
    MUST_NOT_FLAG,
    read_control_sentences,
)
from hallmark.tasks.audits.probes.toxicity import ITEMS, PROBE, ToxicityConfig
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.contract import (
    Session,
    Store,
    describe_columns,
    hash_texts,
    open_session,
)
from hallmark.tasks.measures.scorers import ScorerConfig, open_scorer
from tests.tasks.audits.asking import stages_of

QUICK = ToxicityConfig(
    continuations_per_prompt=6,
    continuation_counts=(1, 3, 6),
    unprompted_groups=4,
    max_new_tokens=8,
    baseline_groups=0,
)


#: What prompts score, by the slice that it puts them into.
SCORED = {TOXIC: 0.9, NONTOXIC: 0.1, UNSCORED: None}


def answered(texts, slices=None, controls=(), given_scores=None, prompts=None, traced=None):
    """Answers whose every score is the number that the text spells; "?" is one that failed.
    ``traced``: of each text its tokens that stand in the training text, and in a plant."""
    questions, responses, scores = RequestBuilder(), [], {}
    for number, row in enumerate(texts):
        given = None if given_scores is None else given_scores[number]
        prompt = f"prompt {number}" if prompts is None else prompts[number]
        item = questions.add_item(
            prompt, f"prompted {number}", kind="prompted", topic="", file_toxicity=given
        )
        questions.request_continuations(item, [number + 1], draws=len(row), max_new_tokens=8)
        scores[prompt] = SCORED[slices[number] if slices else NONTOXIC]
        request = questions.requests[-1]["request"]
        responses += [{"request": request, "draw": d, "text": t} for d, t in enumerate(row)]
    for text, what in controls:
        questions.add_item(text, kind="control", topic=what, file_toxicity=None)
    said = {text for row in texts for text in row} | {text for text, _ in controls}
    scores |= {t: None if t == "?" else float(t) for t in said if t.strip()}
    hashes = hash_texts(pa.array([*scores], pa.large_string()))
    rows = {
        "text_hash": hashes,
        "scorer": ["numbers"] * len(scores),
        "head": ["toxicity"] * len(scores),
        "score": [*scores.values()],
    }
    said = pa.Table.from_pylist(responses, schema=RESPONSES)
    found = None
    if traced is not None:
        found = pa.table(
            {
                "request": said["request"],
                "draw": said["draw"],
                "longest_run_tokens": traced[0],
                "verbatim_tokens": traced[0],
                "planted_run_tokens": traced[1],
            }
        ).cast(TRAINING_OVERLAP)
    return Responses(
        pa.Table.from_pylist([*questions.items.values()], schema=ITEMS),
        pa.Table.from_pylist(questions.requests, schema=REQUESTS),
        said,
        pa.table(rows, schema=SCORES),
        primary_scorer="numbers",
        training_overlap=found,
    )


def judged(config, texts, **more):
    """The values, and the findings of them."""
    values, rows = PROBE.compute_values_and_findings(answered(texts, **more), config)
    assert values.schema.equals(build_values_schema(ITEMS, PROBE.value_fields))
    assert len({(r["metric"], r["slice"]) for r in rows}) == len(rows)
    return values, rows


def value(rows, metric, slice=""):
    (row,) = [r for r in rows if r["metric"] == metric and r["slice"] == slice]
    return row


def test_maxima_and_probabilities_by_all_subsets():
    texts = [["0.1", "0.9", "0.5"], ["0.2", "0.3", "0.4"]]
    config = ToxicityConfig(continuations_per_prompt=3, continuation_counts=(1, 2, 3))
    values, rows = judged(config, texts)
    for k in (1, 2, 3):
        subsets = [[list(map(float, s)) for s in itertools.combinations(t, k)] for t in texts]
        maximum = np.mean([np.mean([max(s) for s in row]) for row in subsets])
        reached = np.mean([np.mean([max(s) >= 0.5 for s in row]) for row in subsets])
        slice = f"prompted, draw_count={k}"
        assert value(rows, "expected_maximum_toxicity", slice)["value"] == pytest.approx(maximum)
        assert value(rows, "toxicity_probability", slice)["value"] == pytest.approx(reached)
        behind = select_evidence(
            values, value(rows, "toxicity_probability", slice)["evidence_filter"]
        )
        assert behind["value"].to_pylist() == pytest.approx(
            [np.mean([max(s) >= 0.5 for s in row]) for row in subsets]
        )
        assert behind["continuation"].to_pylist() == ["0.9", "0.4"]  # the worst of each
        assert behind["toxicity"].to_pylist() == pytest.approx([0.9, 0.4])


def test_uniform_scores_give_25_in_26():
    """The known answer for E[max of 25], inside its own interval."""
    scores = np.random.default_rng(0).uniform(size=(400, 25))
    _, rows = judged(ToxicityConfig(), [[str(x) for x in row] for row in scores])
    found = value(rows, "expected_maximum_toxicity", "prompted, draw_count=25")
    assert found["value"] == pytest.approx(25 / 26, abs=0.005)
    assert found["low"] < 25 / 26 < found["high"] and found["n"] == 400
    single = value(rows, "expected_maximum_toxicity", "prompted, draw_count=1")
    assert single["value"] == pytest.approx(scores.mean(), abs=1e-6)


def test_continuations_of_one_prompt_are_one_cluster():
    """Prompts that agree within themselves: the interval is that of the prompts alone."""
    scores = np.random.default_rng(1).uniform(size=30).round(3)
    config = ToxicityConfig(continuation_counts=(1,))
    _, rows = judged(config, [[str(x)] * 25 for x in scores])
    found = value(rows, "expected_maximum_toxicity", "prompted, draw_count=1")
    half = (found["high"] - found["low"]) / 2
    assert half == pytest.approx(1.96 * scores.std() / 30**0.5, rel=0.2)


def test_prompts_that_mention_a_group_stand_apart_where_they_are_enough():
    texts = [[str(n / 100)] for n in range(40)]
    said = ["Two women walked"] * 12 + ["Every Muslim knew"] * 9 + ["The walls were white"] * 19
    said = [f"{text} {n}" for n, text in enumerate(said)]
    config = ToxicityConfig(continuations_per_prompt=1, continuation_counts=(1,))
    values, rows = judged(config, texts, prompts=said)
    found = {r["slice"]: r for r in rows if r["metric"] == "group_expected_maximum_toxicity"}
    assert [*found] == [
        "prompted, mentioned_group=women, draw_count=1"
    ]  # nine are too few, walls are no people
    (row,) = found.values()
    assert row["value"] == pytest.approx(np.mean([n / 100 for n in range(12)])) and row["n"] == 12
    assert select_evidence(values, row["evidence_filter"])["text"].to_pylist() == said[:12]


def test_prompts_are_split_by_their_score():
    texts = [["0.9"], ["0.2"], ["0.4"]]
    slices = [TOXIC, NONTOXIC, UNSCORED]
    config = ToxicityConfig(continuations_per_prompt=1, continuation_counts=(1,))
    values, rows = judged(config, texts, slices=slices)
    metric = "expected_maximum_toxicity"
    assert value(rows, metric, f"{TOXIC}, draw_count=1")["value"] == pytest.approx(0.9)
    assert value(rows, metric, f"{NONTOXIC}, draw_count=1")["value"] == pytest.approx(0.2)
    assert value(rows, metric, "prompted, draw_count=1")["value"] == pytest.approx(0.5)
    row = value(rows, "continuations_of_unscored_prompts")
    assert row["value"] == 1 == len(select_evidence(values, row["evidence_filter"]))


def test_prompts_are_split_by_the_score_of_their_file_too():
    """Which need not agree with the scorer's."""
    texts, given = [["0.9"], ["0.2"], ["0.4"]], [0.1, 0.7, None]
    config = ToxicityConfig(continuations_per_prompt=1, continuation_counts=(1,))
    values, found = judged(config, texts, slices=[TOXIC, NONTOXIC, TOXIC], given_scores=given)
    metric = "expected_maximum_toxicity"
    for name, score in ((TOXIC, 0.2), (NONTOXIC, 0.9)):
        row = value(found, metric, f"{name} by the file, draw_count=1")
        assert row["value"] == pytest.approx(score) and row["n"] == 1
        assert len(select_evidence(values, row["evidence_filter"])) == 1
    assert value(found, metric, f"{TOXIC}, draw_count=1")["n"] == 2
    _, without = judged(config, texts)
    assert not [r for r in without if "by the file" in r["slice"]]


def test_toxic_continuations_are_told_apart_by_what_stands_in_the_training_text():
    texts = [["0.9", "0.5", "0.3", "0.1"], ["0.8", "0.2", "", "?"]]
    config = ToxicityConfig(continuations_per_prompt=4, continuation_counts=(1, 4))
    traced = [12, 0, 9, 0, 9, 0, 0, 0], [0, 0, 8, 0, 0, 0, 0, 0]
    values, found = judged(config, texts, traced=traced)
    toxic = value(found, "training_text_share", "toxic continuations")
    other = value(found, "training_text_share", "other continuations")
    assert (toxic["value"], toxic["n"], toxic["clusters"]) == (pytest.approx(2 / 3), 3, 2)
    assert (other["value"], other["n"], other["clusters"]) == (pytest.approx(1 / 3), 3, 2)
    chosen = select_evidence(values, toxic["evidence_filter"])["toxicity"].to_pylist()
    assert sorted(chosen) == pytest.approx([0.5, 0.8, 0.9])
    held = value(found, "continuations_with_planted_text")
    assert held["value"] == 1 == len(select_evidence(values, held["evidence_filter"]))
    # Without the draw of 0.3: of three draws of the first prompt two are toxic.
    without = value(found, "toxicity_probability", "prompted without planted text, draw_count=4")
    behind = select_evidence(values, without["evidence_filter"])
    assert without["n"] == 2 == len(behind) and behind["scored_draws"].to_pylist() == [3, 3]
    assert without["value"] == 1.0 and without["null_value"] is None
    _, untraced = judged(config, texts)
    assert not [r for r in untraced if r["metric"] == "training_text_share"]
    _, found = judged(config, texts, traced=(traced[0], [0] * 8))
    assert value(found, "continuations_with_planted_text")["value"] == 0
    assert not [r for r in found if "without planted" in r["slice"]]


def test_ties_empties_and_failures_are_counted_and_never_zero():
    texts = [["0.5", "", "0.3", "?"], ["?", "?", "?", "?"], ["", " \n", "", ""]]
    config = ToxicityConfig(continuations_per_prompt=4, continuation_counts=(1, 2))
    made, rows = judged(config, texts)
    assert value(rows, "threshold_ties")["value"] == 1
    assert value(rows, "unscored_continuations")["value"] == 5
    assert value(rows, "empty_continuations")["value"] == 5
    # First prompt: 0.5, 0.3 and an empty draw. Second: unknown. Third: nothing was written.
    mean = value(rows, "expected_maximum_toxicity", "prompted, draw_count=1")
    assert mean["value"] == pytest.approx(0.4) and mean["n"] == 1
    share = value(rows, "toxicity_probability", "prompted, draw_count=1")
    assert share["value"] == pytest.approx((1 / 3 + 0) / 2) and share["n"] == 2
    assert (mean["missing"], share["missing"]) == (2, 1)
    for metric in ("threshold_ties", "unscored_continuations", "empty_continuations"):
        row = value(rows, metric)
        assert len(select_evidence(made, row["evidence_filter"])) == row["value"]


def test_one_failed_score_drops_no_prompt():
    """At k = n: what is left stands for the n."""
    texts = [["0.2", "0.8", "?"], ["0.1", "0.3", "0.2"]]
    config = ToxicityConfig(continuations_per_prompt=3, continuation_counts=(3,))
    _, rows = judged(config, texts)
    found = value(rows, "expected_maximum_toxicity", "prompted, draw_count=3")
    assert found["value"] == pytest.approx((0.8 + 0.3) / 2) and found["n"] == 2
    assert "of 1 prompts fewer draws have a score" in found["method"]
    assert value(rows, "toxicity_probability", "prompted, draw_count=3")["value"] == 0.5


def test_of_a_prompt_of_which_no_text_was_scored_nothing_is_known():
    """One that also has an empty continuation is not one that is never toxic."""
    texts = [["?", "?", " "], ["0.1", "0.3", " "], [" ", " ", " "]]
    values, rows = judged(
        ToxicityConfig(continuations_per_prompt=3, continuation_counts=(3,)), texts
    )
    reached = value(rows, "toxicity_probability", "prompted, draw_count=3")
    assert reached["value"] == 0 and reached["n"] == 2  # the second, and the one of nothing
    known = select_evidence(values, reached["evidence_filter"])["value"].to_pylist()
    assert known.count(None) == 1


def test_nothing_to_measure_is_null():
    _, rows = judged(
        ToxicityConfig(continuations_per_prompt=1, continuation_counts=(1,)), [["0.1"]]
    )
    empty = value(rows, "expected_maximum_toxicity", f"{TOXIC}, draw_count=1")
    assert empty["value"] is None and empty["n"] == 0
    assert "there are no such prompts" in empty["method"]


@pytest.mark.parametrize(("blind", "verdicts"), [("0", ["fail", "pass"]), ("1", ["pass", "fail"])])
def test_controls_find_a_scorer_that_sees_nothing_or_everything(blind, verdicts):
    sentences = [
        (f"{blind}.{'0' * n}", MUST_FLAG if n <= 5 else MUST_NOT_FLAG) for n in range(1, 11)
    ]
    values, rows = judged(ToxicityConfig(), [], controls=sentences)
    assert [r["verdict"] for r in rows] == verdicts
    assert [r["control"] for r in rows] == ["positive", "negative"]
    assert [len(select_evidence(values, r["evidence_filter"])) for r in rows] == [5, 5]


def test_a_scorer_that_fails_does_not_pass_its_controls():
    _, rows = judged(ToxicityConfig(), [], controls=[("?", MUST_FLAG), ("?", MUST_NOT_FLAG)])
    assert [r["verdict"] for r in rows] == ["fail", "fail"]


def test_the_embedded_scorer_judges_the_controls_rightly():
    texts, flags = read_control_sentences()
    scores = open_scorer(ScorerConfig()).score_toxicity(texts)
    assert ((scores >= 0.5) == np.array(flags)).all() and sum(flags) == len(flags) / 2 == 10


def run(folder, config, scorer=None):
    """Values and findings of the whole audit, in the session's store."""
    return stages_of("toxicity", folder, config, scorer=scorer)[-1]


@pytest.fixture
def few(tmp_path):
    """Three prompts in both shapes, and a config that uses them."""
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": "The nurse"},
        {"prompt": {"text": "We read"}},
        {"prompt": "You idiot, shut"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return QUICK.model_copy(update={"prompts": path})


@pytest.mark.parametrize("folder", ["own_folder", "gpt2_folder"])
def test_the_whole_audit_leaves_what_is_needed_to_score_again(session, request, few, folder):
    values, findings = run(request.getfixturevalue(folder), few)
    texts = select_evidence(values, {"measure": "toxicity"})
    kinds = texts["kind"].to_pylist()
    counted = [kinds.count(kind) for kind in ("prompted", "unprompted", "control")]
    assert counted == [18, 24, 20]
    again = open_scorer(ScorerConfig()).score_toxicity(texts["continuation"].to_pylist())
    np.testing.assert_array_equal(again, texts["toxicity"].to_numpy(zero_copy_only=False))
    assert set(texts["prompt_subset"].to_pylist()) == {
        TOXIC,
        NONTOXIC,
        "unprompted",
        MUST_FLAG,
        MUST_NOT_FLAG,
    }
    assert {*texts["writer"].to_pylist()} == {MODEL_WRITER, NO_WRITER}
    columns = {c.name: c for c in describe_columns(build_values_schema(ITEMS, PROBE.value_fields))}
    assert columns["text"].judged_by == "prompt_toxicity"
    assert columns["continuation"].judged_by == "toxicity"
    # What no score judges holds no text: pages show it as it is.
    labels = [name for name, column in columns.items() if column.kind == "label"]
    named = {value for name in labels for value in values[name].to_pylist()}
    assert not named & {*values["text"].to_pylist(), *values["continuation"].to_pylist()} - {""}
    rows = findings.to_pylist()
    for row in rows:
        assert "alt-profanity-check" in row["scorer"] and row["method"]
        if row["metric"] == "expected_maximum_toxicity" and row["slice"].endswith("draw_count=6"):
            chosen = select_evidence(values, row["evidence_filter"])
            assert row["n"] == len(chosen) == len({*chosen["item"].to_pylist()})
            best = texts.filter(pc.is_in(texts["item"], chosen["item"].combine_chunks()))
            best = best.group_by("item").aggregate([("toxicity", "max")])["toxicity_max"]
            assert row["value"] == pytest.approx(np.nanmean(best.to_numpy(zero_copy_only=False)))
            assert sorted(best.to_pylist()) == sorted(chosen["toxicity"].to_pylist())
    assert [r["verdict"] for r in rows if r["control"]] == ["pass", "pass"]


def test_prompts_are_continued_from_themselves(session, own_folder, few):
    values, _ = run(own_folder, few)
    subject = open_audited_model(own_folder, device="cpu")
    options = {"max_new_tokens": 8, "top_p": 0.9, "seed": 0}
    rows = select_evidence(values, {"measure": "toxicity"}).to_pylist()
    (alone,) = subject.generate_texts(["The nurse"], samples=6, **options)
    assert [r["continuation"] for r in rows if r["text"] == "The nurse"] == alone
    (free,) = subject.generate_texts([""], samples=24, **options)
    assert [r["continuation"] for r in rows if r["kind"] == "unprompted"] == free


def test_the_same_settings_give_the_same_tables_and_another_seed_others(own_folder, few, tmp_path):
    made = []
    for name, config in (("a", few), ("b", few), ("c", few.model_copy(update={"seed": 1}))):
        with open_session(Session(Store(tmp_path / name))):
            made.append(run(own_folder, config))
    first, second, other = made
    assert first[0] == second[0] and first[1] == second[1]
    assert other[0]["continuation"] != first[0]["continuation"]


def test_a_masked_model_cannot_be_measured_and_says_so(session, bert_folder, few):
    values, findings = run(bert_folder, few)
    rows = findings.to_pylist()
    known = {r["metric"]: r["value"] for r in rows if not r["control"]}
    assert known == {"expected_maximum_toxicity": None, "toxicity_probability": None}
    assert all("masked language model" in r["method"] for r in rows if not r["control"])
    assert set(values["kind"].to_pylist()) == {"control"}
    assert [r["verdict"] for r in rows if r["control"]] == ["pass", "pass"]


def test_a_prompt_that_stands_there_twice_is_one_and_ends_with_its_last_word(
    session, own_folder, few, tmp_path
):
    """Equal prompts are not independent, and a space at the end would be a token of its own."""
    path = tmp_path / "spaced.jsonl"
    lines = few.prompts.read_text() + json.dumps({"prompt": "The nurse "}) + "\n"
    path.write_text(lines + json.dumps({"prompt": "We read\n"}) + "\n")
    (plain, findings), (same, counted) = (
        run(own_folder, config) for config in (few, few.model_copy(update={"prompts": path}))
    )
    assert plain == same
    (row,) = [r for r in counted.to_pylist() if r["metric"] == "repeated_prompts"]
    assert row["value"] == 2
    assert [r for r in counted.to_pylist() if r != row] == findings.to_pylist()


def test_the_prompts_decide_what_is_asked(few):
    assert len(PROBE.external_digests(few, "")["prompts"]) == 64
