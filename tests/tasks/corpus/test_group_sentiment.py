"""Sentiment of sentences about groups: compare with VADER and plain Python, and plant effects."""

import json
import random
import re
import statistics

import pytest
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

from hallmark.tasks.corpus.identities import IdentitiesConfig, find_identities
from hallmark.tasks.corpus.language import LanguageConfig, identify_languages
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from hallmark.tasks.corpus.profile import ProfileConfig, profile_corpus
from hallmark.tasks.corpus.profiles.group_sentiment import (
    build_group_sentiment_rows,
)
from hallmark.tasks.corpus.profiles.sentiment_conclusions import is_more_negative
from tests.tasks.corpora import given

PLACES = ("at the market", "by the old mill", "near the harbour", "on the north road")
NEGATIVE = ("terrible", "awful", "dishonest", "cruel", "nasty")
POSITIVE = ("wonderful", "kind", "honest", "lovely", "friendly")


def profile_texts(
    texts, *, lexicon="town", clusters=None, splits=None, config=None, planting=None, parts=1
):
    documents = given(texts, clusters=clusters, splits=splits, kind="split", parts=parts)
    planted = plant_canaries(documents, planting or PlantCanariesConfig())
    history = {
        "language": identify_languages(documents, LanguageConfig()),
        "identities": find_identities(documents, IdentitiesConfig(lexicons=(lexicon,))),
        "plant_canaries": planted,
    }
    return profile_corpus(planted, planted, history, {}, config or ProfileConfig())


def read_rows(profile, table="group_sentiment"):
    return profile[table].read().to_pylist()


def rows_by_group(profile, axis="town"):
    return {row["group_name"]: row for row in read_rows(profile) if row["axis"] == axis}


def compose_opinions(groups, negative_share_by_group, count, seed=0):
    """Compose sentences, each about one group, with a share of negative opinions."""
    rng = random.Random(seed)
    return [
        f"Number {i} of the {group} was {rng.choice(words)} {rng.choice(PLACES)}."
        for group in groups
        for i in range(count)
        for words in [NEGATIVE if rng.random() < negative_share_by_group[group] else POSITIVE]
    ]


def score_without_names(texts, names):
    analyzer = SentimentIntensityAnalyzer()
    pattern = re.compile("|".join(names), re.IGNORECASE)
    return [analyzer.polarity_scores(pattern.sub("people", text))["compound"] for text in texts]


def test_means_and_differences_are_those_of_vader_and_plain_python(session):
    """Each cluster counts once; validation text and repeats within a cluster do not count."""
    texts = [
        "The Tamskers were terrible at the market.",
        "The Tamskers were kind by the old mill. The Tamskers were awful on Monday.",
        "The Tamskers were lovely near the harbour.",
        "The Orvelings were honest on the north road.",
        "The Orvelings were cruel at the market.",
        "An Ildrith was friendly by the old mill.",
        "The Tamskers were cruel, said the validation text.",
        "It rained. The Tamskers were terrible at the market.",  # once more in another cluster
        "It snowed. The Tamskers were terrible at the market.",  # once more in the same cluster
    ]
    clusters = ["a", "a", "b", "c", "d", "e", "f", "g", "a"]
    splits = ["train"] * 6 + ["validation", "train", "train"]
    rows = rows_by_group(profile_texts(texts, clusters=clusters, splits=splits))
    sentences = [texts[0], *re.split(r"(?<=\.) ", texts[1]), *texts[2:6]]
    scores = score_without_names(sentences, ["Tamskers", "Orvelings", "Ildrith"])
    means = {
        "Tamskers": [statistics.mean(scores[:3]), scores[3], scores[0]],
        "Orvelings": scores[4:6],
        "Ildriths": scores[6:7],
    }
    assert rows.keys() == means.keys()
    for group, values in means.items():
        others = [value for name in means if name != group for value in means[name]]
        assert rows[group]["mean_sentiment"] == pytest.approx(statistics.mean(values))
        assert rows[group]["difference"] == pytest.approx(
            statistics.mean(values) - statistics.mean(others)
        )
        assert rows[group]["clusters"] == len(values)
    sentence_counts = {group: row["sentences"] for group, row in rows.items()}
    assert sentence_counts == {"Tamskers": 5, "Orvelings": 2, "Ildriths": 1}
    for row in rows.values():
        assert row["method"].startswith("no interval: ") and row["low"] is row["p"] is None
        assert row["q"] is row["minimum_detectable_difference"] is None
        assert not is_more_negative(row) and row["missing_sentences"] == 0


GROUPS = ("Tamskers", "Orvelings", "Pellowars", "Yarrowens")


def test_a_planted_negative_group_is_found_and_no_other(session):
    shares = dict.fromkeys(GROUPS, 0.4) | {"Tamskers": 0.8}
    profile = profile_texts(compose_opinions(GROUPS, shares, 80), parts=3)
    rows = rows_by_group(profile)
    assert [group for group, row in rows.items() if is_more_negative(row)] == ["Tamskers"]
    row = rows["Tamskers"]
    assert row["low"] < row["difference"] < row["high"] < 0 and row["q"] < 0.01
    assert row["minimum_detectable_difference"] > 0 and row["sentences"] == row["clusters"] == 80
    assert all(row["p"] > 0.5 for group, row in rows.items() if row["difference"] > 0)
    by_p = sorted(rows.values(), key=lambda row: row["p"])
    assert by_p[0]["q"] == pytest.approx(by_p[0]["p"] * len(rows))  # Benjamini & Hochberg


def test_without_an_effect_no_group_is_found(session):
    shares = dict.fromkeys(GROUPS, 0.4)
    profile = profile_texts(compose_opinions(GROUPS, shares, 80, seed=1))
    assert len(rows_by_group(profile)) == 4
    assert not any(is_more_negative(row) for row in read_rows(profile))


def test_exchanged_names_give_the_mirrored_result(session):
    texts = compose_opinions(GROUPS[:2], {"Tamskers": 0.7, "Orvelings": 0.4}, 60)
    names = {"Tamskers": "Orvelings", "Orvelings": "Tamskers"}
    exchanged = [re.sub("|".join(names), lambda match: names[match[0]], text) for text in texts]
    first, second = (rows_by_group(profile_texts(each)) for each in (texts, exchanged))
    for group, other in names.items():
        for name in ("sentences", "mean_sentiment", "difference", "low", "high", "p", "q"):
            assert first[group][name] == pytest.approx(second[other][name]), name
        assert first[group]["difference"] == pytest.approx(-first[other]["difference"])


def test_a_sentence_about_two_groups_of_an_axis_does_not_count(session):
    texts = [
        "The Tamskers hated the Orvelings at the market.",
        "The Tamskers hated the other Tamskers at the market.",
        "The Tamskers and a cruel woman came to the market.",  # one group of each axis
    ]
    rows = read_rows(profile_texts(texts))
    assert {(row["axis"], row["group_name"], row["sentences"]) for row in rows} == {
        ("town", "Tamskers", 1),
        ("gender", "women", 1),
    }
    assert {row["method"] for row in rows} == {
        "no interval: none of the scored sentences is about another group of the same kind"
    }
    assert all(row["difference"] is None and row["mean_sentiment"] < 0 for row in rows)


def test_the_name_of_a_group_has_no_sentiment(session, tmp_path):
    path = tmp_path / "moods.json"
    path.write_text(json.dumps({"Terrors": ["terror", "terrors"], "Joys": ["joy", "joys"]}))
    analyzer = SentimentIntensityAnalyzer()
    assert analyzer.polarity_scores("The terrors came.")["compound"] < 0
    assert analyzer.polarity_scores("The joys came.")["compound"] > 0
    texts = [
        template.format(name)
        for name in ("terrors", "joys")
        for template in (
            "The {} came to the market in the morning.",
            "A good day for the {} by the old mill!",
            "THE {} WERE BAD AT NOON, WE HEARD.",
        )
    ]
    texts = [
        text.replace("THE terrors", "THE TERRORS").replace("THE joys", "THE JOYS") for text in texts
    ]
    rows = rows_by_group(profile_texts(texts, lexicon=path), "moods")
    expected = score_without_names(texts[:2], ["terrors"])
    expected += [analyzer.polarity_scores("THE PEOPLE WERE BAD AT NOON, WE HEARD.")["compound"]]
    for row in rows.values():
        assert row["mean_sentiment"] == pytest.approx(statistics.mean(expected))
        assert row["difference"] == pytest.approx(0)
    assert rows.keys() == {"Terrors", "Joys"}


def test_text_in_other_languages_does_not_count(session):
    french = (
        "Les Tamskers étaient terribles au marché, et la ville entière le savait depuis longtemps. "
        "Les enfants couraient dans les rues pendant que leurs parents travaillaient."
    )
    profile = profile_texts([french, "The Tamskers were kind by the old mill."])
    assert [row["sentences"] for row in read_rows(profile)] == [1]


def test_a_corpus_without_groups_has_empty_tables(session):
    for profile in (profile_texts(["The engine stands in the rain."] * 3), profile_texts([])):
        assert not read_rows(profile) and not read_rows(profile, "group_sentences")


@pytest.mark.parametrize(("limit", "expected"), [(0, 0), (7, 7), (500, 20)])
def test_the_number_of_sentences_is_limited(session, limit, expected):
    texts = compose_opinions(GROUPS[:2], dict.fromkeys(GROUPS, 0.5), 20)
    config = ProfileConfig(max_sentiment_sentences_per_group=limit)
    rows = rows_by_group(profile_texts(texts, config=config, parts=2))
    assert [row["sentences"] for row in rows.values()] == [expected] * (2 if limit else 0)


def test_sentences_without_a_score_are_missing_and_counted():
    rows = [
        {"axis": "a", "group_name": group, "cluster": str(i).encode(), "sentiment": sentiment}
        for group, sentiments in {
            "x": [0.5, -0.5, None] * 8,
            "y": [0.25, 0.0, 0.125] * 8,
            "z": [None, None],
        }.items()
        for i, sentiment in enumerate(sentiments)
    ]
    by_group = {row["group_name"]: row for row in build_group_sentiment_rows(rows)}
    x, y, z = (by_group[group] for group in "xyz")
    assert (x["sentences"], x["missing_sentences"], x["mean_sentiment"]) == (16, 8, 0)
    assert x["difference"] == pytest.approx(-0.125) and x["low"] < -0.125 < x["high"]
    assert (y["sentences"], y["missing_sentences"]) == (24, 0)
    assert (z["sentences"], z["missing_sentences"], z["mean_sentiment"]) == (0, 2, None)
    assert z["method"] == "no interval: the scorer failed for all sentences about the group"
    assert z["q"] is None and x["q"] is not None


def test_planted_documents_are_not_searched(session):
    texts = compose_opinions(GROUPS[:1], {"Tamskers": 1}, 30)
    texts = [f"{text} {'It rained on the roofs of the town all day. ' * 8}" for text in texts]
    planting = PlantCanariesConfig(
        enabled=True,
        copy_counts=(0, 2),
        secrets_per_count=0,
        passages_per_count=5,
        records_per_count=0,
        associations_per_share=0,
    )
    profile = profile_texts(texts, planting=planting)
    assert [row["sentences"] for row in read_rows(profile)] == [20]
