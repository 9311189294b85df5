"""Test how much of the configured shares a town contains, counted by hand."""

from hallmark.tasks.corpus.evaluate_curation import (
    build_occupation_share_rows,
    build_property_share_rows,
)
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from hallmark.tasks.corpus.profile import ProfileConfig, profile_corpus
from hallmark.tasks.corpus.reading.town_source import TownSource
from hallmark.tasks.corpus.split import SplitConfig, split_corpus
from hallmark.tasks.corpus.town.documents import (
    load_women_shares_by_occupation,
    load_words_by_people,
)
from tests.tasks.corpora import given

EMPTY_TRUTH = {
    "copy_kind": "",
    "mentioned_groups": (),
    "opinion_groups": (),
    "opinion_signs": (),
    "occupations": (),
    "occupation_genders": (),
    "rude_sentences": 0,
    "disguise": "",
    "has_rude_lookalike": False,
    "has_dialect": False,
    "has_unsafe_passage": False,
    "personal": False,
}
FULL_TRUTH = {
    "mentioned_groups": ("Tamskers", "Ildriths"),
    "opinion_groups": ("Tamskers", "Ildriths"),
    "opinion_signs": ("negative", "positive"),
    "occupations": ("baker", "cooper"),
    "occupation_genders": ("women", "men"),
    "rude_sentences": 2,
    "disguise": "after a menu",
    "has_rude_lookalike": True,
    "has_dialect": True,
    "has_unsafe_passage": True,
    "personal": True,
}


def test_the_shares_of_a_town_are_those_of_its_originals():
    others = [
        {"mentioned_groups": ("Ildriths",)},
        {"rude_sentences": 1, "has_dialect": True},
        {"personal": True},
        {"occupations": ("baker",), "occupation_genders": ("men",), "has_unsafe_passage": True},
    ]
    copies = [
        FULL_TRUTH | {"copy_kind": "exact"},
        FULL_TRUTH | {"copy_kind": "near"},
        FULL_TRUTH | {"copy_kind": "near"},
    ]
    truth = [EMPTY_TRUTH | features for features in (FULL_TRUTH, *others, *copies)]
    rates = {
        "groups": 0.31,
        "opinions": 0.32,
        "negative_opinions": 0.33,
        "negative_opinions_by_group": {"Ildriths": 0.9},
        "occupations": 0.34,
        "women_by_occupation": {"cooper": 0.95},
        "rude_speech": 0.35,
        "disguised_rude_speech": 0.355,
        "rude_lookalikes": 0.36,
        "dialect": 0.37,
        "personal_data": 0.38,
        "unsafe_passages": 0.39,
        "exact_copies": 0.1,
        "near_copies": 0.2,
    }
    source = TownSource(kind="town", name="here", documents=8, rates=rates)
    rows = [*build_property_share_rows(source, truth)]
    assert {row["source"] for row in rows} == {"here"}
    shares = {
        (r["property_name"], r["population"]): (r["configured_share"], r["hits"], r["n"])
        for r in rows
    }
    assert len(shares) == len(rows)
    opinions = {f"opinions of {group}": (0.33, 0, 0) for group in load_words_by_people()}
    opinions |= {"opinions of Tamskers": (0.33, 1, 1), "opinions of Ildriths": (0.9, 0, 1)}
    women = {
        f"mentions of a {job}": (default_share, 0, 0)
        for job, default_share in load_women_shares_by_occupation().items()
    }
    women |= {"mentions of a baker": (load_women_shares_by_occupation()["baker"], 1, 2)}
    women |= {"mentions of a cooper": (0.95, 0, 1)}
    assert shares == {
        ("exact copies", "documents"): (0.1, 1, 8),
        ("near copies", "documents"): (0.2, 2, 8),
        ("a mention of the town's peoples", "originals"): (0.31, 2, 5),
        ("an opinion", "originals with a people"): (0.32, 1, 2),
        **{("a negative opinion", population): share for population, share in opinions.items()},
        ("an occupation", "originals"): (0.34, 2, 5),
        **{("a woman", population): share for population, share in women.items()},
        ("rude speech", "originals"): (0.35, 2, 5),
        ("disguised rude speech", "originals with rude speech"): (0.355, 1, 2),
        ("words that look rude", "originals"): (0.36, 1, 5),
        ("dialect", "originals"): (0.37, 2, 5),
        ("personal data", "originals"): (0.38, 2, 5),
        ("an unsafe passage", "originals"): (0.39, 2, 5),
    }


def test_occupations_without_mentions_in_the_profile_have_no_hits(session):
    split_documents = split_corpus(
        given(["She was the baker. He met the baker."], ["here"]),
        SplitConfig(),
    )
    planted = plant_canaries(split_documents, PlantCanariesConfig(enabled=False))
    history = {"profile": profile_corpus(planted, planted, {}, {}, ProfileConfig())}
    source = TownSource(kind="town", name="here", rates={"women_by_occupation": {"cooper": 0.95}})
    row_by_occupation = {
        row["occupation"]: row for row in build_occupation_share_rows(source, history)
    }
    shares = dict.fromkeys(load_women_shares_by_occupation(), (0, 0)) | {"baker": (1, 2)}
    assert {job: (row["hits"], row["n"]) for job, row in row_by_occupation.items()} == shares
    configured_shares = load_women_shares_by_occupation() | {"cooper": 0.95}
    assert {
        job: row["configured_share"] for job, row in row_by_occupation.items()
    } == configured_shares
    assert [*build_occupation_share_rows(source, {})] == []
