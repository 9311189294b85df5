"""How much a town holds of what its config states, counted by hand."""

from tasks.corpus.evaluate_curation import build_occupation_share_rows, build_property_share_rows
from tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from tasks.corpus.profile import ProfileConfig, profile_corpus
from tasks.corpus.reading.town_source import TownSource
from tasks.corpus.split import SplitConfig, split_corpus
from tasks.corpus.town.documents import load_town_lexicon, load_town_occupations
from tests.tasks.corpora import given

NOTHING = {
    "copy": "",
    "groups": (),
    "opinions_of": (),
    "opinions": (),
    "occupations": (),
    "genders": (),
    "rude": 0,
    "lookalike": False,
    "dialect": False,
    "unsafe": False,
    "personal": False,
}
FULL = {
    "groups": ("Tamskers", "Ildriths"),
    "opinions_of": ("Tamskers", "Ildriths"),
    "opinions": ("negative", "positive"),
    "occupations": ("baker", "cooper"),
    "genders": ("women", "men"),
    "rude": 2,
    "lookalike": True,
    "dialect": True,
    "unsafe": True,
    "personal": True,
}


def test_the_rates_of_a_town_are_those_of_its_originals():
    others = [
        {"groups": ("Ildriths",)},
        {"rude": 1, "dialect": True},
        {"personal": True},
        {"occupations": ("baker",), "genders": ("men",), "unsafe": True},
    ]
    copies = [FULL | {"copy": "exact"}, FULL | {"copy": "near"}, FULL | {"copy": "near"}]
    truth = [NOTHING | own for own in (FULL, *others, *copies)]
    stated = {
        "groups": 0.31,
        "opinions": 0.32,
        "negative": 0.33,
        "maligned": {"Ildriths": 0.9},
        "occupations": 0.34,
        "women": {"cooper": 0.95},
        "rude": 0.35,
        "lookalikes": 0.36,
        "dialect": 0.37,
        "personal": 0.38,
        "unsafe": 0.39,
        "exact": 0.1,
        "near": 0.2,
    }
    source = TownSource(kind="town", name="here", documents=8, rates=stated)
    found = [*build_property_share_rows(source, truth)]
    assert {row["source"] for row in found} == {"here"}
    told = {(r["what"], r["among"]): (r["stated"], r["hits"], r["n"]) for r in found}
    assert len(told) == len(found)
    opinions = {f"opinions of {group}": (0.33, 0, 0) for group in load_town_lexicon()}
    opinions |= {"opinions of Tamskers": (0.33, 1, 1), "opinions of Ildriths": (0.9, 0, 1)}
    women = {
        f"mentions of a {job}": (usual, 0, 0) for job, usual in load_town_occupations().items()
    }
    women |= {"mentions of a baker": (load_town_occupations()["baker"], 1, 2)}
    women |= {"mentions of a cooper": (0.95, 0, 1)}
    assert told == {
        ("exact copies", "documents"): (0.1, 1, 8),
        ("near copies", "documents"): (0.2, 2, 8),
        ("a people of the town", "originals"): (0.31, 2, 5),
        ("an opinion", "originals with a people"): (0.32, 1, 2),
        **{("a negative opinion", among): share for among, share in opinions.items()},
        ("an occupation", "originals"): (0.34, 2, 5),
        **{("a woman", among): share for among, share in women.items()},
        ("rude speech", "originals"): (0.35, 2, 5),
        ("words that look rude", "originals"): (0.36, 1, 5),
        ("dialect", "originals"): (0.37, 2, 5),
        ("personal data", "originals"): (0.38, 2, 5),
        ("an unsafe passage", "originals"): (0.39, 2, 5),
    }


def test_occupations_that_the_profile_does_not_know_have_no_share(session):
    parted = split_corpus(
        given(["She was the baker. He met the baker."], ["here"]),
        SplitConfig(),
    )
    planted = plant_canaries(parted, PlantCanariesConfig(enabled=False))
    history = {"profile": profile_corpus(planted, planted, {}, {}, ProfileConfig())}
    source = TownSource(kind="town", name="here", rates={"women": {"cooper": 0.95}})
    found = {row["occupation"]: row for row in build_occupation_share_rows(source, history)}
    shares = dict.fromkeys(load_town_occupations(), (0, 0)) | {"baker": (1, 2)}
    assert {job: (row["hits"], row["n"]) for job, row in found.items()} == shares
    stated = load_town_occupations() | {"cooper": 0.95}
    assert {job: row["stated"] for job, row in found.items()} == stated
    assert [*build_occupation_share_rows(source, {})] == []
