"""Identities: whom each document mentions, in which dialect its words are marked, how long it is.

What the filters do to people is told by these signals (see ``effects``). They are found in English:
a document in another language mentions nobody here, and counts with those of its language.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
from pydantic import AfterValidator, Field, field_validator

from tasks.contract import (
    LEXICONS,
    Artifact,
    External,
    Part,
    StageConfig,
    Table,
    Tables,
    Work,
    column,
    file_digest,
    stage,
)
from tasks.contract import utf8_bytes as size_of
from tasks.corpus.signals import signals, write_signals
from tasks.measures.faults import Noted, tell
from tasks.measures.identities import Lexicon, find_terms, lexicon, read_lexicon

DATA = Path(__file__).parent / "data"

#: The data files behind the signals, for ``@stage(code=...)``.
WORD_LISTS = ("tasks/measures/data/identities.json", "tasks/measures/data/dialects.json")


def _ascending(lengths: tuple[int, ...]) -> tuple[int, ...]:
    if [*lengths] != sorted({*lengths}):
        raise ValueError("must ascend: each class of length begins behind the one before it")
    return lengths


#: Where classes of length begin, in bytes.
Lengths = Annotated[tuple[Annotated[int, Field(ge=1)], ...], AfterValidator(_ascending)]


class IdentitiesConfig(StageConfig):
    lexicons: tuple[Annotated[Path, External(built_in=("town",))], ...] = Field(
        default=(),
        description="JSON files with more groups: an object that holds for each group a list of "
        "terms in lower case; where all lists are of one length, terms at one place stand for each "
        "other in swaps; audits call a group by its name if that is a term, else by the first; "
        '"town" is that of the invented town',
    )
    lengths: Lengths = Field(
        default=(200, 1000, 5000, 20_000),
        description="where the classes of length begin, in bytes, behind the first",
    )

    @field_validator("lexicons")
    @classmethod
    def _named_apart(cls, paths: tuple[Path, ...]) -> tuple[Path, ...]:
        if len({path.stem for path in paths}) < len(paths):
            raise ValueError("two lexicons have files of one name, by which they are told apart")
        return paths


SIGNALS = signals(
    "Whom each document mentions, by whole English words; which dialects its words are marked by.",
    column("identities", pa.list_(pa.string()), "label", "groups of people that it mentions"),
    column("identity_mentions", pa.int32(), "figure", "how often it mentions any of them",
           unit="mentions"),
    column("dialects", pa.list_(pa.string()), "label", "varieties of English of which it holds a "
           "marker: a word or turn that texts in it use far more than others; no proof of who "
           "wrote it"),
    column("dialect_markers", pa.int32(), "figure", "how many such markers", unit="mentions"),
    column("length_class", pa.string(), "label", "how long its text is, in bytes"),
)  # fmt: skip


#: The lexicons that a corpus brings: for each its groups, and of each group the terms.
Brought = Mapping[str, Mapping[str, Sequence[str]]]


def located(path: Path) -> Path:
    """The file of a lexicon: one of the user's, or the town's own by its name."""
    return DATA / "town" / "lexicon.json" if str(path) == "town" else path


def read_brought(paths: Sequence[Path]) -> Brought:
    return {path.stem: read_lexicon(located(path)) for path in paths}


def brought_of(history: Mapping[str, Artifact]) -> Brought:
    """The lexicons that a corpus brought, as its stage ``identities`` left them."""
    found: dict[str, dict[str, list[str]]] = {}
    for artifact in history.values():
        if artifact.stage == "identities":
            for row in artifact["lexicons"].read().to_pylist():
                groups = found.setdefault(row["lexicon"], {})
                groups.setdefault(row["group"], []).append(row["term"])
    return found


def all_groups(brought: Brought) -> Lexicon:
    """The project's own lexicon with those that a corpus brings."""
    found = lexicon()
    for groups in brought.values():
        found = found.with_groups(groups)
    return found


def found_groups(texts: pa.Array, terms: Lexicon) -> tuple[pa.Array, pa.Array]:
    """For each text: the groups, a list in the order of the lexicon, and the number of mentions."""
    number, owner = find_terms(texts, terms)
    names = terms.groups
    place = {name: i for i, name in enumerate(names)}
    group = np.array([place[name] for name, _ in terms.terms], np.int64)[number]
    pairs = np.unique(owner * len(names) + group)
    counts = np.bincount(pairs // len(names), minlength=len(texts))
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    values = pa.array(names, pa.string()).take(pa.array(pairs % len(names)))
    mentions = np.bincount(owner, minlength=len(texts))
    return pa.ListArray.from_arrays(offsets, values), pa.array(mentions, pa.int32())


def length_classes(sizes: pa.Array, bounds: Sequence[int]) -> pa.Array:
    """ "under 200 bytes", "200 to 999 bytes" ... for sizes in bytes; the bounds ascend."""
    names = [f"under {bounds[0]:,} bytes"] if bounds else ["any length"]
    names += [f"{low:,} to {high - 1:,} bytes" for low, high in pairwise(bounds)]
    names += [f"{bounds[-1]:,} bytes or more"] if bounds else []
    place = np.searchsorted(bounds, sizes.to_numpy(zero_copy_only=False), side="right")
    return pa.array(names, pa.string()).take(pa.array(place))


def identities_part(part: Part, brought: Brought, config: IdentitiesConfig, out: Tables) -> Noted:
    terms, dialects = all_groups(brought), lexicon("dialects")

    def told(batch: pa.RecordBatch) -> dict[str, pa.Array]:
        groups, mentions = found_groups(batch["text"], terms)
        varieties, markers = found_groups(batch["text"], dialects)
        return {
            "identities": groups,
            "identity_mentions": mentions,
            "dialects": varieties,
            "dialect_markers": markers,
            "length_class": length_classes(size_of(batch["text"]), config.lengths),
        }

    return write_signals(part, told, out)


@stage(
    tables={"signals": SIGNALS, "lexicons": LEXICONS},
    code=WORD_LISTS,
    libraries=["numpy"],
    external=lambda config, secret_id: {
        f"lexicon {number}": file_digest(located(path))
        for number, path in enumerate(config.lexicons) if read_lexicon(located(path))
    },
)  # fmt: skip
def identities(documents: Table, config: IdentitiesConfig, work: Work) -> None:
    brought = read_brought(config.lexicons)
    done = work.parts(identities_part, documents.parts, brought, config)
    rows = [
        {"lexicon": name, "group": group, "term": term}
        for name, groups in brought.items() for group, terms in groups.items() for term in terms
    ]  # fmt: skip
    work.table("lexicons").write(pa.Table.from_pylist(rows, schema=LEXICONS))
    tell(work, [part.value for part in done], documents.rows, "the search for identities")
