"""A cascade of scorers: what it clears, what it may miss, and when it is refused."""

import math

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
from hallmark.tasks.corpus.split import hash_ids_to_uniform
from hallmark.tasks.corpus.toxicity.cascade import (
    CascadeConfig,
    CascadeRecall,
    check_cascade_recall,
    clopper_pearson_lower_bound,
    find_sample_cutoff,
)
from hallmark.tasks.corpus.toxicity.cascade import measure_cascade_recall as measured_in
from hallmark.tasks.measures.scorers import TOXICITY_HEADS, DetoxifyScorer, ScorerConfig
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
    """Words of two to a hundred letters in all, some documents of several windows."""
    rng = np.random.default_rng(5)
    letters = list("abcdefghijklmnopqrstuvwxyz   ")
    lengths = [*rng.integers(2, 100, COUNT - 20), *rng.integers(150, 300, 20)]
    return [f"{n} " + "".join(rng.choice(letters, size=length)) for n, length in enumerate(lengths)]


def scores_of(documents, scorer):
    config = ScoreToxicityConfig(scorer=scorer, window_characters=100)
    return score_toxicity(documents, None, config)["signals"].read()["toxicity"].to_numpy()


def cascaded(scorer, cheap, **settings):
    settings = {"sample_size": 80, "min_recall": 0.5, **settings}
    return ScoreToxicityConfig(
        scorer=scorer, window_characters=100, cascade=CascadeConfig(cheap_scorer=cheap, **settings)
    )


@pytest.fixture
def measured(session, scorer, texts):
    """Documents; a cheap scorer, the same network with small windows; both scores of all."""
    documents = given(texts, parts=2)
    cheap = scorer.model_copy(update={"window_tokens": 24})
    return documents, cheap, scores_of(documents, scorer), scores_of(documents, cheap)


def test_the_cascade_says_what_brute_force_finds(measured, scorer):
    documents, cheap, decisive, low = measured
    threshold, clears = float(np.quantile(decisive, 0.7)), float(np.quantile(low, 0.5))
    config = cascaded(
        scorer, cheap, toxicity_threshold=threshold, clears_below=clears, min_recall=0.3
    )
    made = score_toxicity(documents, None, config)
    ids = documents["documents"].read()["doc_id"]
    drawn = np.zeros(COUNT, bool)
    drawn[np.argsort(hash_ids_to_uniform(ids, 0, "cascade"))[:80]] = True
    toxic, cleared = decisive >= threshold, low < clears
    assert 0 < (drawn & toxic & cleared).sum() < (drawn & toxic).sum()

    sample = made["sample"].read()
    assert sample["doc_id"].to_pylist() == ids.filter(pa.array(drawn)).to_pylist()
    np.testing.assert_array_equal(sample["would_be_cleared"].to_numpy(), cleared[drawn])
    np.testing.assert_allclose(sample["cheap_score"].to_numpy(), low[drawn], atol=1e-5)
    np.testing.assert_allclose(sample["toxicity"].to_numpy(), decisive[drawn], atol=1e-5)

    (row,) = made["cascade"].read().to_pylist()
    n, missed = int((drawn & toxic).sum()), int((drawn & toxic & cleared).sum())
    exact = scipy.stats.binomtest(n - missed, n, alternative="greater").proportion_ci(0.95, "exact")
    assert (
        row["documents"],
        row["sampled_documents"],
        row["toxic_documents"],
        row["missed_documents"],
    ) == (COUNT, 80, n, missed)
    assert row["recall_lower_bound"] == pytest.approx(exact.low, abs=1e-9)
    assert row["cleared_documents"] == (cleared & ~drawn).sum() > 0
    assert row["cheap_scorer"].startswith("detoxify") and row["toxicity_threshold"] == threshold

    signals = made["signals"].read()
    expected = np.where(cleared & ~drawn, np.nan, decisive)
    np.testing.assert_allclose(signals["toxicity"].to_numpy(), expected, atol=1e-5)
    status = np.where(cleared & ~drawn, "cleared", "scored")
    assert signals["toxicity_status"].to_pylist() == status.tolist()
    told = {r["metric"]: r["value"] for r in made.read_telemetry().to_pylist()}
    assert told["cleared_documents"] == row["cleared_documents"] and told["failed_documents"] == 0


def test_all_windows_stand_in_order_whoever_was_drawn(measured, scorer, texts):
    documents, cheap, _, low = measured
    config = cascaded(
        scorer, cheap, toxicity_threshold=0.01, clears_below=float(np.quantile(low, 0.2))
    )
    made = score_toxicity(documents, None, config)["windows"].read().to_pylist()
    by_document = {}
    for row in made:
        by_document.setdefault(row["doc_id"], []).append(row)
    rows = documents["documents"].read().to_pylist()
    assert list(by_document) == [row["doc_id"] for row in rows]
    for row in rows:
        found = by_document[row["doc_id"]]
        assert [w["window_index"] for w in found] == list(range(len(found)))
        assert "".join(row["text"][w["char_start"] : w["char_end"]] for w in found) == row["text"]


def test_the_sample_and_the_verdict_do_not_depend_on_parts_or_workers(tmp_path, scorer, texts):
    found = []
    for parts, mapper in ((1, None), (2, ProcessMapper(2)), (8, None)):
        session = Session(Store(tmp_path / str(parts)))
        session.mapper = mapper or session.mapper
        with open_session(session):
            linear = ScorerConfig()
            config = cascaded(
                scorer,
                linear,
                toxicity_threshold=0.2,
                clears_below=0.05,
                sample_size=70,
                min_recall=0.2,
            )
            made = score_toxicity(given(texts, parts=parts), None, config)
            sample = made["sample"].read().sort_by("doc_id").drop(["toxicity"])
            status = made["signals"].read().sort_by("doc_id")["toxicity_status"]
            found.append((sample, status.combine_chunks(), made["cascade"].read()))
    assert found[0][0].num_rows == 70
    for other in found[1:]:
        assert all(a.equals(b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("drawn", [True, False])
def test_a_document_at_the_bound_is_not_cleared(session, scorer, texts, drawn):
    documents = given(texts)
    low = scores_of(documents, linear := ScorerConfig())
    draws = hash_ids_to_uniform(documents["documents"].read()["doc_id"], 0, "cascade")
    sampled = draws <= np.sort(draws)[79]
    middle = np.argsort(low[sampled == drawn])[(sampled == drawn).sum() // 2]
    clears = float(low[sampled == drawn][middle])
    config = cascaded(scorer, linear, toxicity_threshold=1e-6, clears_below=clears, min_recall=0.01)
    made = score_toxicity(documents, None, config)
    status = made["signals"].read()["toxicity_status"].to_pylist()
    assert [s == "cleared" for s in status] == ((low < clears) & ~sampled).tolist()
    assert made["sample"].read()["would_be_cleared"].to_pylist() == (low < clears)[sampled].tolist()


def test_another_seed_draws_another_sample(measured, scorer):
    documents, cheap, *_ = measured
    ids = []
    for seed in (0, 1):
        config = cascaded(scorer, cheap, toxicity_threshold=0.01, clears_below=0.01, seed=seed)
        ids.append(
            set(score_toxicity(documents, None, config)["sample"].read()["doc_id"].to_pylist())
        )
    assert len(ids[0]) == len(ids[1]) == 80 and 0 < len(ids[0] & ids[1]) < 80


def test_a_cascade_that_misses_too_much_is_refused(measured, scorer):
    documents, cheap, decisive, low = measured
    threshold, clears = float(np.quantile(decisive, 0.5)), float(np.quantile(low, 0.9))
    config = cascaded(
        scorer, cheap, toxicity_threshold=threshold, clears_below=clears, min_recall=0.9
    )
    with pytest.raises(HallmarkError) as caught:
        score_toxicity(documents, None, config)
    said = str(caught.value)
    assert said.startswith("stage score_toxicity: the cascade is refused: of 80 documents drawn ")
    assert "where 0.9 is required; lower score_toxicity.cascade.clears_below" in said
    assert "\n" not in said
    lower = float(said.partition("which at ")[2].split()[0])
    config = cascaded(
        scorer, cheap, toxicity_threshold=threshold, clears_below=lower, min_recall=0.9
    )
    assert score_toxicity(documents, None, config)["cascade"].read()[
        "missed_documents"
    ].to_pylist() == [0]


def test_a_sample_with_too_few_toxic_documents_shows_nothing(measured, scorer):
    documents, cheap, decisive, low = measured
    threshold = float(np.quantile(decisive, 0.95))
    config = cascaded(
        scorer, cheap, toxicity_threshold=threshold, clears_below=float(low.min()), min_recall=0.9
    )
    message = r"no fewer than 29 toxic ones can show it: raise score_toxicity\.cascade\.sample_size"
    with pytest.raises(HallmarkError, match=message):
        score_toxicity(documents, None, config)


def test_where_all_documents_are_drawn_nothing_can_be_missed(measured, scorer):
    documents, cheap, decisive, _ = measured
    config = cascaded(
        scorer, cheap, toxicity_threshold=1.0, clears_below=1.0, sample_size=COUNT, min_recall=0.99
    )
    made = score_toxicity(documents, None, config)
    assert set(made["signals"].read()["toxicity_status"].to_pylist()) == {"scored"}
    np.testing.assert_allclose(made["signals"].read()["toxicity"].to_numpy(), decisive, atol=1e-5)
    empty = score_toxicity(given([]), None, config)
    assert empty["signals"].row_count == 0 and empty["cascade"].read()[
        "sampled_documents"
    ].to_pylist() == [0]


def test_the_cheap_scorer_clears_only_in_its_own_languages(session, tmp_path):
    checkpoint, base = make_checkpoint(tmp_path, variant="multilingual")
    scorer = ScorerConfig(
        kind="detoxify", model="multilingual", checkpoint=checkpoint, base_model_folder=base
    )
    english = [f"{LONG['en']} {n}" for n in range(3)]
    documents = given([*english, LONG["fr"], LONG["de"], ""])
    spoken = identify_languages(documents, LanguageConfig())
    ids = documents["documents"].read()["doc_id"]
    asked = ids.take([0, 1, 2, 3, 5])
    seed = next(
        s for s in range(99) if hash_ids_to_uniform(asked, s, "cascade").argmin() == 3
    )  # the French
    cascade = CascadeConfig(
        clears_below=1.0, toxicity_threshold=1e-6, sample_size=1, min_recall=0.01, seed=seed
    )
    made = score_toxicity(documents, spoken, ScoreToxicityConfig(scorer=scorer, cascade=cascade))
    status = made["signals"].read()["toxicity_status"].to_pylist()
    assert status == ["cleared"] * 3 + ["scored", "other language", "empty"]
    assert made["sample"].read()["doc_id"].to_pylist() == [ids[3].as_py()]
    assert made["sample"].read()["cheap_score"].to_pylist() == [None]
    assert made["cascade"].read()["documents"].to_pylist() == [5]
    told = {r["metric"]: r["value"] for r in made.read_telemetry().to_pylist()}
    metrics = [f"{name.replace(' ', '_')}_documents" for name in TOXICITY_STATUSES[1:]]
    assert [told[metric] for metric in metrics] == [1, 3, 1, 0]


# The bound -------------------------------------------------------------------------------------


def tail(share, hits, n):
    """Probability of at least ``hits`` of n, term by term."""
    return math.fsum(
        math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(hits, n + 1)
    )


@settings(deadline=None)
@given_values(st.integers(0, 60), st.integers(0, 60), st.sampled_from([0.5, 0.8, 0.95, 0.99]))
def test_the_bound_is_that_of_clopper_and_pearson(hits, misses, level):
    n = hits + misses
    found = clopper_pearson_lower_bound(hits, n, level)
    if hits == 0:
        assert found == 0
        return
    exact = scipy.stats.binomtest(hits, n, alternative="greater").proportion_ci(level, "exact")
    assert found == pytest.approx(exact.low, abs=1e-9)
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, hits, n) < 1 - level else (low, middle)
    assert found == pytest.approx(low, abs=1e-9)


def test_the_bound_covers_at_its_level():
    """Of samples from a recall of 0.9, no more than a twentieth put it too high."""
    rng = np.random.default_rng(0)
    bounds = [
        clopper_pearson_lower_bound(int(hits), 80, 0.95) for hits in rng.binomial(80, 0.9, 4000)
    ]
    assert np.mean(np.array(bounds) > 0.9) <= 0.055


@given_values(
    st.lists(st.floats(0, 1, exclude_max=True), unique=True, max_size=40), st.integers(1, 50)
)
def test_as_many_are_drawn_as_asked(draws, count):
    draws = np.array(draws)
    assert (draws <= find_sample_cutoff(draws, count)).sum() == min(count, len(draws))


def test_a_score_at_a_bound_is_not_below_it():
    """Toxic at the threshold; and the least cheap score of those that are missed."""
    sample = pa.table(
        {
            "cheap_score": pa.array([0.25, 0.125, 0.5, 0.0625, 0.25], pa.float32()),
            "toxicity": pa.array([0.75, 0.875, 0.75, 0.5, None], pa.float32()),
            "would_be_cleared": [True, True, False, True, True],
        }
    )
    found = measured_in(sample, 9, 0.75)
    assert (found.document_count, found.sample_size, found.toxic_count, found.missed_count) == (
        9,
        5,
        3,
        2,
    )
    assert found.lowest_missed_score == 0.125
    assert math.isnan(measured_in(sample, 9, 0.9375).lowest_missed_score)
    assert measured_in(sample, 9, 0.9375).lower_bound(0.95) == 0


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("recall", [0.5, 0.9, 0.99])
def test_it_is_told_how_many_toxic_documents_could_show_the_recall(level, recall):
    """The fewest of which none is missed and the bound reaches the recall, counted up."""
    config = CascadeConfig(confidence_level=level, min_recall=recall)
    enough = next(n for n in range(1, 999) if clopper_pearson_lower_bound(n, n, level) >= recall)
    check_cascade_recall(CascadeRecall(9999, 1000, enough, 0, math.nan), config)
    with pytest.raises(HallmarkError, match=f"no fewer than {enough} toxic ones can show it"):
        check_cascade_recall(CascadeRecall(9999, 1000, enough - 1, 0, math.nan), config)
    with pytest.raises(HallmarkError, match=r"which at 0\.0995 would have cleared none"):
        check_cascade_recall(CascadeRecall(9999, 1000, enough, enough, 0.1), config)


# Failures --------------------------------------------------------------------------------------


def test_texts_at_which_the_scorer_fails_are_unknown(session, scorer, monkeypatch):
    forward = DetoxifyScorer._score_windows

    def fails(self, windows):
        letter = self._tokenizer.convert_tokens_to_ids("##q")
        if any(letter in window for window in windows):
            raise RuntimeError("no kernel")
        return forward(self, windows)

    monkeypatch.setattr(DetoxifyScorer, "_score_windows", fails)
    texts = ["a b c", "equal", "hello", ""]
    documents = given(texts)
    config = ScoreToxicityConfig(scorer=scorer.model_copy(update={"batch_tokens": 999}))
    made = score_toxicity(documents, None, config)
    signals = made["signals"].read()
    assert signals["toxicity_status"].to_pylist() == ["scored", "failed", "scored", "empty"]
    for head in TOXICITY_HEADS[:6]:
        assert [score is None for score in signals[head].to_pylist()] == [False, True, False, True]
    assert signals["sexual_explicit"].null_count == 4  # the checkpoint has no such head
    told = {r["metric"]: r["value"] for r in made.read_telemetry().to_pylist()}
    assert (told["failed_documents"], told["empty_documents"], told["unscored_windows"]) == (
        1,
        1,
        2,
    )
    kept = select_documents(
        documents, {"toxicity": made}, SelectConfig(rules={"toxicity": {"lt": 0.01}})
    )
    assert "equal" in kept["documents"].read()["text"].to_pylist()

    monkeypatch.setattr(DetoxifyScorer, "_score_windows", lambda self, windows: 1 / 0)
    for cascade in (None, CascadeConfig(sample_size=2)):
        changed = {"batch_tokens": 998 if cascade else 997}
        config = ScoreToxicityConfig(scorer=scorer.model_copy(update=changed), cascade=cascade)
        with pytest.raises(HallmarkError, match=r"failed at all \d texts .*\(ZeroDivisionError\)"):
            score_toxicity(given(texts[:3]), None, config)


# The config ------------------------------------------------------------------------------------


def with_rules(**rules):
    source = {"kind": "documentation", "name": "a", "packages": ["click"]}
    return {
        "name": "x",
        "ingest": {"sources": [source]},
        "score_toxicity": {"scorer": {"kind": "detoxify"}, "cascade": {"toxicity_threshold": 0.7}},
        "select_scored": {"rules": rules},
    }


def test_rules_must_be_those_for_which_the_recall_is_measured():
    assert Config.model_validate(
        with_rules(toxicity={"lt": 0.7}, other={"signal": "contamination", "lt": 1})
    )
    for rule in ({"lt": 0.8}, {"lt": 0.7, "on_missing": "remove"}, {"signal": "threat", "lt": 0.7}):
        with pytest.raises(ValueError, match=r"rules may say toxicity lt = 0\.7, and nothing"):
            Config.model_validate(with_rules(toxicity=rule))
    without = with_rules(toxicity={"lt": 0.8})
    del without["score_toxicity"]["cascade"]
    assert Config.model_validate(without)


def test_a_cascade_needs_two_scorers():
    defaults = CascadeConfig()
    assert CascadeConfig.model_validate(defaults.model_dump()) == defaults  # which are in range
    with pytest.raises(ValueError, match=r"cascade\.cheap_scorer is the same as scorer"):
        ScoreToxicityConfig(cascade=CascadeConfig())


def test_every_document_has_one_status():
    assert len(set(TOXICITY_STATUSES)) == len(TOXICITY_STATUSES) == 5
