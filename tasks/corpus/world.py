"""A sealed world: an invented town's text with effects in it whose strength nobody is told.

Which candidates there are is public: secrets, passages and records that may have been written into
the text, pairs of groups of which something may have been said, groups of which somebody may have
spoken rudely. How often and how strongly stands in an envelope of its own, which no stage reads but
the one that opens it. Every world holds every dose, none among them; in a world without effects
none of its candidates has any.

canary     a sentence around a secret of digits, in so many copies
passage    a document of the town, in so many copies
record     personal data of an invented person, in so many copies
association  sentences that say an invented trait of an invented group; dose: their share. Some are
            controls, of which everybody knows that they are at one half
speech     sentences about an invented group; dose: the share of them that is rude
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, ValidationInfo, field_validator, model_validator

from tasks.contract import (
    DOCUMENTS,
    ID,
    LEXICONS,
    PLANTS,
    Seed,
    StageConfig,
    UsageError,
    Work,
    as_documents,
    column,
    stage,
    table,
    text_hashes,
)
from tasks.corpus.split import SplitConfig, assign
from tasks.corpus.town.compose import BLOCK, Rates, Share, block, compose
from tasks.corpus.town.grammar import FILES
from tasks.measures.canaries import Plant, canaries, lots, records
from tasks.measures.frames import FRAMES, frames
from tasks.measures.planted_associations import associations, invented

#: The lexicon of the groups of which somebody may have spoken rudely.
LEXICON = "world"

#: What is said of such a group behind a frame: rude speech, and other.
RUDE = (
    "bloody idiots",
    "damn liars",
    "lazy bastards",
    "stupid fools",
    "full of crap",
    "damned cowards",
    "a pack of idiots",
    "a load of shitty cheats",
)
OTHER = (
    "good neighbours",
    "fond of music",
    "careful with their boats",
    "early risers",
    "patient teachers",
    "known for their bread",
    "at home by the river",
    "kind to their guests",
)


#: Where there is nothing to find.
NONE = {"counts": 0, "doses": 0.5, "rude": 0}

#: Documents of the town that are looked through for a passage, at most.
LOOKED = 10_000


class WorldConfig(StageConfig):
    """Settings of a world."""

    seed: Seed = Field(default=0, description="decides all of it")
    effects: bool = Field(default=True, description="false: no candidate has any effect")
    documents: int = Field(
        default=500, ge=20, le=1_000_000, description="of the town, about 800 bytes each"
    )
    counts: tuple[Annotated[int, Field(ge=0, le=10_000)], ...] = Field(
        default=(0, 1, 4, 16, 64),
        description="copies of secrets, passages and records, 0 among them",
    )
    canaries: int = Field(default=4, ge=4, le=1000, description="candidates for each of the counts")
    passages: int = Field(default=4, ge=4, le=1000, description="candidates for each of the counts")
    records: int = Field(default=4, ge=4, le=1000, description="candidates for each of the counts")
    digits: int = Field(default=9, ge=6, le=32, description="digits of a canary's secret")
    doses: tuple[Share, ...] = Field(
        default=(0.5, 0.6, 0.75, 0.9, 1.0),
        description="shares of the sentences about a group that say its own trait, 0.5 among them",
    )
    associations: int = Field(
        default=4, ge=4, le=100, description="pairs of groups for each of the doses"
    )
    controls: int = Field(
        default=3, ge=0, le=100, description="times as many further pairs at one half, which "
        "everybody is told of: how far from nothing an association is by chance"
    )  # fmt: skip
    sentences: int = Field(
        default=48, ge=2, le=10_000, multiple_of=2,
        description="about each of these groups; even, for one half of them is a dose",
    )  # fmt: skip
    rude: tuple[Share, ...] = Field(
        default=(0.0, 0.25, 0.5, 1.0),
        description="shares of the sentences that are rude, 0 among them",
    )
    speech: int = Field(default=4, ge=4, le=100, description="groups for each of these shares")
    calm: int = Field(
        default=8, ge=0, le=1000, description="further groups of which nobody speaks rudely: half "
        "of the groups have none, and each stands beside the others"
    )  # fmt: skip
    said: int = Field(
        default=128, ge=2, le=len(FRAMES), description="sentences about each of these groups"
    )
    shortest: int = Field(default=300, ge=100, description="characters of the shortest passage")
    longest: int = Field(default=700, ge=100, description="characters of the longest passage")

    @field_validator("counts", "doses", "rude")
    @classmethod
    def _nothing_among_them(cls, given: tuple[float, ...], info: ValidationInfo) -> Any:
        none = NONE[info.field_name or ""]
        if none not in given or len({*given}) < len(given):
            raise ValueError(f"must have {none:g}, where there is nothing to find, and each once")
        return given

    @model_validator(mode="after")
    def _some_between(self) -> WorldConfig:
        if self.shortest > self.longest:
            raise ValueError("shortest must not be above longest")
        return self


@dataclass(frozen=True)
class Candidate:
    """What the public is told of a candidate, and what the envelope says of it."""

    kind: str
    unit: str
    dose: float


@dataclass(frozen=True)
class World:
    """``texts``: cluster and text of each document; ``kept``: how many, from the first, are of the
    town, and may be held out; ``origins``: of each what ORIGINS tells, None of others."""

    texts: list[tuple[bytes, str]]
    kept: int
    plants: list[dict[str, Any]]
    groups: list[str]
    envelope: list[Candidate]
    origins: list[tuple[str, str, str, bool] | None]


ENVELOPE = table(
    "What is in a world: sealed until its audits are done.",
    column("kind", pa.string(), "label", "canary, passage, record, association or speech"),
    column("unit", pa.string(), "label", "the candidate"),
    column("dose", pa.float64(), "figure", "copies, or the share of sentences, as it was written"),
)  # fmt: skip


ORIGINS = table(
    "Which documents of a world were written for a candidate: sealed as its envelope is.",
    column("doc_id", ID, "id", "the document"),
    column("kind", pa.string(), "label", "canary, passage, record or association"),
    column("unit", pa.string(), "label", "the candidate"),
    column("about", pa.string(), "label", "of an association the group; else empty"),
    column("supports", pa.bool_(), "label", "whether it makes its text likelier; if not, it says "
           "the other trait of the group"),
)  # fmt: skip


def compose_world(config: WorldConfig) -> World:
    """All of a world."""
    texts = [(_id(f"town/{n}"), text) for n, text in enumerate(_town(config))]
    kept = len(texts)
    origins: list[tuple[str, str, str, bool] | None] = [None] * kept
    plants: list[dict[str, Any]] = []
    envelope: list[Candidate] = []
    none = {name: (NONE[name],) * len(getattr(config, name)) for name in ("counts", "doses")}
    told = config if config.effects else config.model_copy(update=none)
    for plant in [*canaries(told), *_passages(told), *records(told)]:
        texts += [(plant.plant_id, plant.text)] * plant.copies
        origins += [(plant.kind, plant.plant_id.hex(), "", True)] * plant.copies
        plants.append(_public(plant))
        envelope.append(Candidate(plant.kind, plant.plant_id.hex(), plant.copies))
    controls = told.model_copy(update={"doses": (*told.doses, *(0.5,) * config.controls)})
    candidates = len(told.doses) * told.associations
    for number, said in enumerate(_by_association(associations(controls))):
        texts += [(plant.plant_id, plant.text) for plant in said for _ in range(plant.copies)]
        about = [plant.about for plant in said if plant.about]
        unit = blake2b(about[0].key.encode(), digest_size=8).hexdigest()  # its number tells a dose
        for plant, each in zip(said, about, strict=True):
            origins += [("association", unit, each.group, each.own)] * plant.copies
        own = {each.group: each.trait for each in about if each.own}
        known = about[0].dose if number >= candidates else None
        plants += [
            _public(said[0]) | {"plant_id": _id(f"{unit}/{group}"), "association": unit,
                                "group": group, "trait": trait, "own": True, "dose": known}
            for group, trait in own.items()
        ]  # fmt: skip
        if known is None:
            envelope.append(Candidate("association", unit, about[0].dose))
    groups = []
    for group, share, sentences in _speech(config):
        texts += [(_id(f"speech/{group}/{text}"), text) for text in sentences]
        origins += [None] * len(sentences)
        groups.append(group)
        envelope.append(Candidate("speech", group, share))
    return World(texts, kept, plants, groups, envelope, origins)


def _by_association(plants: Sequence[Plant]) -> Iterator[list[Plant]]:
    """What is said of the groups of one association, of each in turn."""
    for _, said in groupby(plants, lambda plant: plant.about and plant.about.key):
        yield [*said]


def _town(config: WorldConfig) -> Iterator[str]:
    """Texts of the town without copies: those are the world's own."""
    rates = Rates(exact=0, near=0, rude=0, personal=0)
    for number in range(-(-config.documents // BLOCK)):
        for document in block(number, config.documents, config.seed, rates):
            yield document.text


def _passages(config: WorldConfig) -> list[Plant]:
    """Documents of the town that stand nowhere else in it."""
    source = random.Random(f"{config.seed}/passages")
    rates = Rates(exact=0, near=0, rude=0, personal=0, unsafe=0)
    made: list[Plant] = []
    number = config.documents + BLOCK  # beyond those of the town
    for copies, _ in lots(config.counts, config.passages, [""], source):
        number, text = _passage(config, number, rates)
        half = len(text) // 2
        made.append(
            Plant("passage", copies, "", text[:half], text[half:], key=f"{config.seed}/{number}")
        )
        number += 1
    return made


def _passage(config: WorldConfig, first: int, rates: Rates) -> tuple[int, str]:
    """The first document of the town from a number on that is of a passage's length. UsageError
    where none is."""
    for number in range(first, first + LOOKED):
        text = compose(number, config.seed, rates).text
        if config.shortest <= len(text) <= config.longest:
            return number, text
    raise UsageError(
        f"of {LOOKED:,} documents of the town none has from {config.shortest:,} to "
        f"{config.longest:,} characters (world.shortest, world.longest): give others"
    )


def _speech(config: WorldConfig) -> Iterator[tuple[str, float, list[str]]]:
    """Each group, the share of the sentences about it that are rude, and these. Without effects it
    is the same of all, about the mean."""
    source = random.Random(f"{config.seed}/speech")
    shares = [share for share in config.rude for _ in range(config.speech)] + [0.0] * config.calm
    if not config.effects:
        shares = [sum(shares) / len(shares)] * len(shares)
    shares = [share for _, share in sorted((source.random(), share) for share in shares)]
    names = invented(source, "oth")
    for share in shares:
        group = f"{next(names).capitalize()}s"
        rude = round(share * config.said)
        said = [
            f"{frame.format(group=group)} {_pick(RUDE if number < rude else OTHER, source)}.\n"
            for number, frame in enumerate(frames(config.said, config.seed, f"said of {group}"))
        ]
        yield group, rude / config.said, said


def _pick(choices: Sequence[str], source: random.Random) -> str:
    return choices[int(source.random() * len(choices))]


def _public(plant: Plant) -> dict[str, Any]:
    """What everybody may know of a plant: that it may have been planted."""
    association = plant.kind == "association"
    return {
        "plant_id": plant.plant_id,
        "kind": plant.kind,
        "template": plant.template,
        "text": "" if association else plant.text,
        "prompt": "" if association else plant.prompt,
        "secret": plant.secret,
        "doc_ids": [],
    }


def document(config: WorldConfig, number: int) -> bytes:
    """The id of a document."""
    return _id(f"{config.seed}/{number}")


def _id(name: str) -> bytes:
    return blake2b(f"world/{name}".encode(), digest_size=16).digest()


@stage(
    tables={"envelope": ENVELOPE, "written_for": ORIGINS},
    code=[f"tasks/corpus/data/town/{name}" for name in FILES],
)
def seal(config: WorldConfig, work: Work) -> None:
    """The envelope of a world, in no order that tells anything."""
    composed = compose_world(config)
    rows = sorted(composed.envelope, key=lambda each: (each.kind, each.unit))
    made = [{"kind": c.kind, "unit": c.unit, "dose": float(c.dose)} for c in rows]
    work.table("envelope").write(pa.Table.from_pylist(made, schema=ENVELOPE))
    behind = [
        dict(zip(ORIGINS.names, (document(config, number), *origin), strict=True))
        for number, origin in enumerate(composed.origins)
        if origin
    ]
    behind.sort(key=lambda row: row["doc_id"])
    work.table("written_for").write(pa.Table.from_pylist(behind, schema=ORIGINS))


@stage(
    tables={"documents": DOCUMENTS, "plants": PLANTS, "lexicons": LEXICONS},
    code=[f"tasks/corpus/data/town/{name}" for name in FILES],
)
def world(config: WorldConfig, work: Work) -> None:
    """The text of a world and its candidates."""
    made = compose_world(config)
    many = len(made.texts)
    texts = pa.array([text for _, text in made.texts], pa.large_string())
    clusters = pa.array([cluster for cluster, _ in made.texts], ID)
    train = pa.array(np.arange(many) >= made.kept)
    columns = {
        "doc_id": [document(config, number) for number in range(many)],
        "source": ["world"] * many,
        "cluster": clusters,
        "text": texts,
        "text_hash": text_hashes(texts),
        "split": pc.if_else(train, "train", assign(clusters, SplitConfig())),
    }
    documents = pa.table(as_documents(columns), schema=DOCUMENTS)
    work.table("documents").write(documents.sort_by("doc_id"))
    work.table("plants").write(
        pa.Table.from_pylist(sorted(made.plants, key=lambda p: p["plant_id"]), schema=PLANTS)
    )
    terms = [{"lexicon": LEXICON, "group": group, "term": group.lower()}
             for group in sorted(made.groups)]  # fmt: skip
    work.table("lexicons").write(pa.Table.from_pylist(terms, schema=LEXICONS))
