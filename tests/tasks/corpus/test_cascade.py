"""Test a cascade of scorers: what it clears, what it may miss, and when it is refused."""

import math
import re

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats
from hypothesis import given as given_values
from hypothesis import settings
from hypothesis import strategies as st

from hallmark.flows.config import Config
from hallmark.tasks.contract import HallmarkError, ProcessMapper, Session, Store, open_session
from hallmark.tasks.corpus.language import LanguageConfig, identify_languages
from hallmark.tasks.corpus.score_toxicity import (
    TOXICITY_STATUSES,
    ScoreToxicityConfig,
    score_toxicity,
)
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from hallmark.tasks.corpus.split import hash_ids_to_uniform_draws
from hallmark.tasks.corpus.toxicity.cascade import (
    CascadeConfig,
    CascadeRecall,
    check_cascade_recall,
    find_max_sample_draw,
    measure_cascade_recall,
)
from hallmark.tasks.measures.scorers import TOXICITY_HEADS, ScorerConfig
from hallmark.tasks.measures.scorers.detoxify import DetoxifyScorer
from tests.tasks.corpora import given
from tests.tasks.corpus.test_language import LONG
from tests.tasks.measures.detoxify_checkpoint import make_checkpoint

COUNT = 240


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    checkpoint, base = make_checkpoint(tmp_path_factory.mktemp("detoxify"))
    return ScorerConfig(
        kind="detoxify", checkpoint=checkpoint, base_model_folder=base, window_tokens=64
    )


@pytest.fixture(scope="module")
def texts():
    """Texts of 2 to 100 letters, and some of several windows."""
    rng = np.random.default_rng(5)
    letters = list("abcdefghijklmnopqrstuvwxyz   ")
    lengths = [*rng.integers(2, 100, COUNT - 20), *rng.integers(150, 300, 20)]
    return [f"{n} " + "".join(rng.choice(letters, size=length)) for n, length in enumerate(lengths)]


def score_documents(documents, scorer):
    config = ScoreToxicityConfig(scorer=scorer, window_characters=100)
    return score_toxicity(documents, None, config)["signals"].read()["toxicity"].to_numpy()


def make_config(scorer, cheap, **settings):
    settings = {"sample_size": 80, "min_recall": 0.5, **settings}
    return ScoreToxicityConfig(
        scorer=scorer, window_characters=100, cascade=CascadeConfig(cheap_scorer=cheap, **settings)
    )


@pytest.fixture
def scored_corpus(session, scorer, texts):
    """Return documents, a cheap scorer (the same network with small windows), and both scores."""
    documents = given(texts, parts=2)
    cheap = scorer.model_copy(update={"window_tokens": 24})
    return documents, cheap, score_documents(documents, scorer), score_documents(documents, cheap)


def test_the_cascade_equals_brute_force(scored_corpus, scorer):
    documents, cheap, decisive_scores, cheap_scores = scored_corpus
    threshold = float(np.quantile(decisive_scores, 0.7))
    clears_below = float(np.quantile(cheap_scores, 0.5))
    config = make_config(
        scorer, cheap, toxicity_threshold=threshold, clears_below=clears_below, min_recall=0.3
    )
    artifact = score_toxicity(documents, None, config)
    ids = documents["documents"].read()["doc_id"]
    is_sampled = np.zeros(COUNT, bool)
    is_sampled[np.argsort(hash_ids_to_uniform_draws(ids, 0, "cascade"))[:80]] = True
    is_toxic, is_cleared = decisive_scores >= threshold, cheap_scores < clears_below
    assert 0 < (is_sampled & is_toxic & is_cleared).sum() < (is_sampled & is_toxic).sum()

    sample = artifact["sample"].read()
    assert sample["doc_id"].to_pylist() == ids.filter(pa.array(is_sampled)).to_pylist()
    np.testing.assert_array_equal(sample["would_be_cleared"].to_numpy(), is_cleared[is_sampled])
    np.testing.assert_allclose(
        sample["cheap_score"].to_numpy(), cheap_scores[is_sampled], atol=1e-5
    )
    np.testing.assert_allclose(
        sample["toxicity"].to_numpy(), decisive_scores[is_sampled], atol=1e-5
    )

    (row,) = artifact["cascade"].read().to_pylist()
    n, missed = int((is_sampled & is_toxic).sum()), int((is_sampled & is_toxic & is_cleared).sum())
    exact = scipy.stats.binomtest(n - missed, n, alternative="greater").proportion_ci(0.95, "exact")
    assert (
        row["documents"],
        row["sampled_documents"],
        row["toxic_documents"],
        row["missed_documents"],
    ) == (COUNT, 80, n, missed)
    assert row["recall_lower_bound"] == pytest.approx(exact.low, abs=1e-9)
    assert row["cleared_documents"] == (is_cleared & ~is_sampled).sum() > 0
    assert row["cheap_scorer"].startswith("detoxify") and row["toxicity_threshold"] == threshold

    signals = artifact["signals"].read()
    expected = np.where(is_cleared & ~is_sampled, np.nan, decisive_scores)
    np.testing.assert_allclose(signals["toxicity"].to_numpy(), expected, atol=1e-5)
    status = np.where(is_cleared & ~is_sampled, "cleared", "scored")
    assert signals["toxicity_status"].to_pylist() == status.tolist()
    telemetry = {r["metric"]: r["value"] for r in artifact.read_telemetry().to_pylist()}
    assert (
        telemetry["cleared_documents"] == row["cleared_documents"]
        and telemetry["failed_documents"] == 0
    )


def test_all_windows_are_in_order_for_any_sample(scored_corpus, scorer, texts):
    documents, cheap, _, cheap_scores = scored_corpus
    config = make_config(
        scorer, cheap, toxicity_threshold=0.01, clears_below=float(np.quantile(cheap_scores, 0.2))
    )
    windows = score_toxicity(documents, None, config)["windows"].read().to_pylist()
    by_document = {}
    for row in windows:
        by_document.setdefault(row["doc_id"], []).append(row)
    rows = documents["documents"].read().to_pylist()
    assert list(by_document) == [row["doc_id"] for row in rows]
    for row in rows:
        document_windows = by_document[row["doc_id"]]
        assert [w["window_index"] for w in document_windows] == list(range(len(document_windows)))
        assert (
            "".join(row["text"][w["char_start"] : w["char_end"]] for w in document_windows)
            == row["text"]
        )


def test_sample_and_decision_do_not_depend_on_partitions_or_workers(tmp_path, scorer, texts):
    results = []
    for parts, mapper in ((1, None), (2, ProcessMapper(2)), (8, None)):
        session = Session(Store(tmp_path / str(parts)))
        session.mapper = mapper or session.mapper
        with open_session(session):
            linear = ScorerConfig()
            config = make_config(
                scorer,
                linear,
                toxicity_threshold=0.2,
                clears_below=0.05,
                sample_size=70,
                min_recall=0.2,
            )
            artifact = score_toxicity(given(texts, parts=parts), None, config)
            sample = artifact["sample"].read().sort_by("doc_id").drop(["toxicity"])
            status = artifact["signals"].read().sort_by("doc_id")["toxicity_status"]
            results.append((sample, status.combine_chunks(), artifact["cascade"].read()))
    assert results[0][0].num_rows == 70
    for result in results[1:]:
        assert all(a.equals(b) for a, b in zip(results[0], result, strict=True))


@pytest.mark.parametrize("in_sample", [True, False])
def test_a_document_with_a_score_at_the_bound_is_not_cleared(session, scorer, texts, in_sample):
    documents = given(texts)
    cheap_scores = score_documents(documents, linear := ScorerConfig())
    draws = hash_ids_to_uniform_draws(documents["documents"].read()["doc_id"], 0, "cascade")
    is_sampled = draws <= np.sort(draws)[79]
    middle = np.argsort(cheap_scores[is_sampled == in_sample])[(is_sampled == in_sample).sum() // 2]
    clears_below = float(cheap_scores[is_sampled == in_sample][middle])
    config = make_config(
        scorer, linear, toxicity_threshold=1e-6, clears_below=clears_below, min_recall=0.01
    )
    artifact = score_toxicity(documents, None, config)
    status = artifact["signals"].read()["toxicity_status"].to_pylist()
    assert [s == "cleared" for s in status] == (
        (cheap_scores < clears_below) & ~is_sampled
    ).tolist()
    assert (
        artifact["sample"].read()["would_be_cleared"].to_pylist()
        == (cheap_scores < clears_below)[is_sampled].tolist()
    )


def test_another_seed_gives_another_sample(scored_corpus, scorer):
    documents, cheap, *_ = scored_corpus
    ids = []
    for seed in (0, 1):
        config = make_config(scorer, cheap, toxicity_threshold=0.01, clears_below=0.01, seed=seed)
        ids.append(
            set(score_toxicity(documents, None, config)["sample"].read()["doc_id"].to_pylist())
        )
    assert len(ids[0]) == len(ids[1]) == 80 and 0 < len(ids[0] & ids[1]) < 80


def test_a_cascade_that_misses_too_much_is_refused(scored_corpus, scorer):
    documents, cheap, decisive_scores, cheap_scores = scored_corpus
    threshold = float(np.quantile(decisive_scores, 0.5))
    clears_below = float(np.quantile(cheap_scores, 0.9))
    config = make_config(
        scorer, cheap, toxicity_threshold=threshold, clears_below=clears_below, min_recall=0.9
    )
    with pytest.raises(HallmarkError) as raised:
        score_toxicity(documents, None, config)
    message = str(raised.value)
    pattern = (
        r"^stage score_toxicity: the cascade is refused: \d+ of the 80 sampled documents are toxic"
    )
    assert re.search(pattern, message)
    assert "but the config requires 0.9; lower score_toxicity.cascade.clears_below" in message
    assert "\n" not in message
    suggested_bound = float(message.partition("clears_below (with ")[2].split(",")[0])
    config = make_config(
        scorer, cheap, toxicity_threshold=threshold, clears_below=suggested_bound, min_recall=0.9
    )
    assert score_toxicity(documents, None, config)["cascade"].read()[
        "missed_documents"
    ].to_pylist() == [0]


def test_a_sample_with_too_few_toxic_documents_is_refused(scored_corpus, scorer):
    documents, cheap, decisive, low = scored_corpus
    threshold = float(np.quantile(decisive, 0.95))
    config = make_config(
        scorer, cheap, toxicity_threshold=threshold, clears_below=float(low.min()), min_recall=0.9
    )
    message = (
        r"at least 29 toxic documents to demonstrate .*; raise score_toxicity\.cascade\.sample_size"
    )
    with pytest.raises(HallmarkError, match=message):
        score_toxicity(documents, None, config)


def test_a_sample_of_all_documents_is_always_accepted(scored_corpus, scorer):
    documents, cheap, decisive, _ = scored_corpus
    config = make_config(
        scorer, cheap, toxicity_threshold=1.0, clears_below=1.0, sample_size=COUNT, min_recall=0.99
    )
    artifact = score_toxicity(documents, None, config)
    assert set(artifact["signals"].read()["toxicity_status"].to_pylist()) == {"scored"}
    np.testing.assert_allclose(
        artifact["signals"].read()["toxicity"].to_numpy(), decisive, atol=1e-5
    )
    empty = score_toxicity(given([]), None, config)
    assert empty["signals"].row_count == 0 and empty["cascade"].read()[
        "sampled_documents"
    ].to_pylist() == [0]


def test_the_cheap_scorer_clears_only_texts_in_its_languages(session, tmp_path):
    checkpoint, base = make_checkpoint(tmp_path, variant="multilingual")
    scorer = ScorerConfig(
        kind="detoxify", model="multilingual", checkpoint=checkpoint, base_model_folder=base
    )
    english = [f"{LONG['en']} {n}" for n in range(3)]
    documents = given([*english, LONG["fr"], LONG["de"], ""])
    languages = identify_languages(documents, LanguageConfig())
    ids = documents["documents"].read()["doc_id"]
    scored_ids = ids.take([0, 1, 2, 3, 5])
    # The seed that samples the French document.
    seed = next(
        s for s in range(99) if hash_ids_to_uniform_draws(scored_ids, s, "cascade").argmin() == 3
    )
    cascade = CascadeConfig(
        clears_below=1.0, toxicity_threshold=1e-6, sample_size=1, min_recall=0.01, seed=seed
    )
    artifact = score_toxicity(
        documents, languages, ScoreToxicityConfig(scorer=scorer, cascade=cascade)
    )
    status = artifact["signals"].read()["toxicity_status"].to_pylist()
    assert status == ["cleared"] * 3 + ["scored", "other language", "empty"]
    assert artifact["sample"].read()["doc_id"].to_pylist() == [ids[3].as_py()]
    assert artifact["sample"].read()["cheap_score"].to_pylist() == [None]
    assert artifact["cascade"].read()["documents"].to_pylist() == [5]
    telemetry = {r["metric"]: r["value"] for r in artifact.read_telemetry().to_pylist()}
    metrics = [f"{name.replace(' ', '_')}_documents" for name in TOXICITY_STATUSES[1:]]
    assert [telemetry[metric] for metric in metrics] == [1, 0, 3, 1, 0]


# Confidence bound ------------------------------------------------------------------------------


def compute_lower_bound(hits, n, level):
    """Compute the lower bound of a recall of ``hits`` of ``n`` toxic documents."""
    return CascadeRecall(n, n, n, n - hits, math.nan).lower_bound(level)


def compute_tail_probability(share, hits, n):
    """Compute the probability of at least ``hits`` of n, term by term."""
    return math.fsum(
        math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(hits, n + 1)
    )


@settings(deadline=None)
@given_values(st.integers(0, 60), st.integers(0, 60), st.sampled_from([0.5, 0.8, 0.95, 0.99]))
def test_the_bound_is_that_of_clopper_and_pearson(hits, misses, level):
    n = hits + misses
    bound = compute_lower_bound(hits, n, level)
    if hits == 0:
        assert bound == 0
        return
    exact = scipy.stats.binomtest(hits, n, alternative="greater").proportion_ci(level, "exact")
    assert bound == pytest.approx(exact.low, abs=1e-9)
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if compute_tail_probability(middle, hits, n) < 1 - level
            else (low, middle)
        )
    assert bound == pytest.approx(low, abs=1e-9)


def test_the_bound_covers_at_its_confidence_level():
    """With a true recall of 0.9, at most a twentieth of the samples give a higher bound."""
    rng = np.random.default_rng(0)
    bounds = [compute_lower_bound(int(hits), 80, 0.95) for hits in rng.binomial(80, 0.9, 4000)]
    assert np.mean(np.array(bounds) > 0.9) <= 0.055


@given_values(
    st.lists(st.floats(0, 1, exclude_max=True), unique=True, max_size=40), st.integers(1, 50)
)
def test_the_sample_has_the_requested_size(draws, count):
    draws = np.array(draws)
    assert (draws <= find_max_sample_draw(draws, count)).sum() == min(count, len(draws))


def test_a_score_at_a_bound_counts_as_reaching_it():
    """Checks the threshold, and the lowest cheap score of missed documents."""
    sample = pa.table(
        {
            "cheap_score": pa.array([0.25, 0.125, 0.5, 0.0625, 0.25], pa.float32()),
            "toxicity": pa.array([0.75, 0.875, 0.75, 0.5, None], pa.float32()),
            "would_be_cleared": [True, True, False, True, True],
        }
    )
    recall = measure_cascade_recall(sample, 9, 0.75)
    assert (recall.document_count, recall.sample_size, recall.toxic_count, recall.missed_count) == (
        9,
        5,
        3,
        2,
    )
    assert recall.lowest_missed_score == 0.125
    assert math.isnan(measure_cascade_recall(sample, 9, 0.9375).lowest_missed_score)
    assert measure_cascade_recall(sample, 9, 0.9375).lower_bound(0.95) == 0


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("recall", [0.5, 0.9, 0.99])
def test_the_error_names_the_number_of_toxic_documents_needed(level, recall):
    """Count up to the fewest that reach the recall if none is missed."""
    config = CascadeConfig(confidence_level=level, min_recall=recall)
    enough = next(n for n in range(1, 999) if compute_lower_bound(n, n, level) >= recall)
    check_cascade_recall(CascadeRecall(9999, 1000, enough, 0, math.nan), config)
    with pytest.raises(
        HallmarkError, match=f"at least {enough} toxic documents to demonstrate this recall"
    ):
        check_cascade_recall(CascadeRecall(9999, 1000, enough - 1, 0, math.nan), config)
    with pytest.raises(
        HallmarkError, match=r"with 0\.0995, the cheap scorer would have cleared none"
    ):
        check_cascade_recall(CascadeRecall(9999, 1000, enough, enough, 0.1), config)


# Failures --------------------------------------------------------------------------------------


def test_texts_on_which_the_scorer_fails_have_no_score(session, scorer, monkeypatch):
    original_score = DetoxifyScorer._score_windows

    def fail_on_letter(self, windows):
        letter = self._tokenizer.convert_tokens_to_ids("##q")
        if any(letter in window for window in windows):
            raise RuntimeError("no kernel")
        return original_score(self, windows)

    monkeypatch.setattr(DetoxifyScorer, "_score_windows", fail_on_letter)
    texts = ["a b c", "equal", "hello", ""]
    documents = given(texts)
    config = ScoreToxicityConfig(scorer=scorer.model_copy(update={"batch_tokens": 999}))
    artifact = score_toxicity(documents, None, config)
    signals = artifact["signals"].read()
    assert signals["toxicity_status"].to_pylist() == ["scored", "failed", "scored", "empty"]
    for head in TOXICITY_HEADS[:6]:
        assert [score is None for score in signals[head].to_pylist()] == [False, True, False, True]
    assert signals["sexual_explicit"].null_count == 4  # the checkpoint has no such head
    telemetry = {r["metric"]: r["value"] for r in artifact.read_telemetry().to_pylist()}
    assert (
        telemetry["failed_documents"],
        telemetry["empty_documents"],
        telemetry["unscored_windows"],
    ) == (
        1,
        1,
        2,
    )
    selection = select_documents(
        documents, {"toxicity": artifact}, SelectConfig(rules={"toxicity": {"lt": 0.01}})
    )
    assert "equal" in selection["documents"].read()["text"].to_pylist()

    monkeypatch.setattr(DetoxifyScorer, "_score_windows", lambda self, windows: 1 / 0)
    for cascade in (None, CascadeConfig(sample_size=2)):
        update = {"batch_tokens": 998 if cascade else 997}
        config = ScoreToxicityConfig(scorer=scorer.model_copy(update=update), cascade=cascade)
        with pytest.raises(HallmarkError, match=r"failed on all \d texts .*\(ZeroDivisionError\)"):
            score_toxicity(given(texts[:3]), None, config)


# Settings --------------------------------------------------------------------------------------


def make_config_with_rules(**rules):
    source = {"kind": "documentation", "name": "a", "packages": ["click"]}
    return {
        "name": "x",
        "ingest": {"sources": [source]},
        "score_toxicity": {"scorer": {"kind": "detoxify"}, "cascade": {"toxicity_threshold": 0.7}},
        "select_scored": {"rules": rules},
    }


def test_rules_must_use_the_threshold_of_the_cascade():
    assert Config.model_validate(
        make_config_with_rules(toxicity={"lt": 0.7}, other={"signal": "contamination", "lt": 1})
    )
    for rule in ({"lt": 0.8}, {"lt": 0.7, "on_missing": "remove"}, {"signal": "threat", "lt": 0.7}):
        with pytest.raises(ValueError, match=r"set 'signal' to 'toxicity' and 'lt' to 0\.7"):
            Config.model_validate(make_config_with_rules(toxicity=rule))
    config_without_cascade = make_config_with_rules(toxicity={"lt": 0.8})
    del config_without_cascade["score_toxicity"]["cascade"]
    assert Config.model_validate(config_without_cascade)


def test_a_cascade_needs_two_scorers():
    defaults = CascadeConfig()
    assert CascadeConfig.model_validate(defaults.model_dump()) == defaults  # the defaults are valid
    with pytest.raises(ValueError, match=r"'cascade\.cheap_scorer' is the same as 'scorer'"):
        ScoreToxicityConfig(cascade=CascadeConfig())


def test_every_document_has_one_status():
    assert len(set(TOXICITY_STATUSES)) == len(TOXICITY_STATUSES) == 6
