"""Find the groups of people and the dialects in each document, and its length class.

``removal_effects`` uses these signals to measure how filters affect people. Word lists are English:
a document in another language mentions no group here and is compared by its language instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import AfterValidator, Field, field_validator

from hallmark.tasks.contract import (
    LEXICONS,
    Artifact,
    ExternalMarker,
    StageConfig,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    column,
    count_utf8_bytes,
    hash_file,
    stage,
)
from hallmark.tasks.corpus.signals import build_signal_schema, write_signals
from hallmark.tasks.measures.failed_documents import FailureList, report_failures
from hallmark.tasks.measures.identities import (
    Lexicon,
    find_term_mentions,
    load_builtin_lexicon,
    read_user_terms_by_group,
)

DATA = Path(__file__).parent / "data"

#: Data files that determine the signals, for ``@stage(extra_code=...)``.
WORD_LISTS = ("tasks/measures/data/identities.json", "tasks/measures/data/dialects.json")


def _check_ascending(lengths: tuple[int, ...]) -> tuple[int, ...]:
    if [*lengths] != sorted({*lengths}):
        raise ValueError("the bounds must be in ascending order and must not contain duplicates")
    return lengths


#: Lower bounds of the length classes, in bytes, without that of the first class.
LengthBounds = Annotated[tuple[Annotated[int, Field(ge=1)], ...], AfterValidator(_check_ascending)]


class LexiconsConfig(StageConfig):
    """The lexicons that define additional groups."""

    lexicons: tuple[Annotated[Path, ExternalMarker(built_in_names=("town",))], ...] = Field(
        default=(),
        description="JSON files that define additional groups; each file contains an object that "
        "maps each group to a list of lower-case terms. If all lists have the same length, terms "
        "at the same position replace each other when groups are swapped in sentences. Audits "
        "refer to a group by its name if the list contains the name, and otherwise by the first "
        'term. The value "town" selects the built-in lexicon of the invented town',
    )

    @field_validator("lexicons")
    @classmethod
    def _check_unique_names(cls, paths: tuple[Path, ...]) -> tuple[Path, ...]:
        if len({path.stem for path in paths}) < len(paths):
            raise ValueError(
                "two lexicons have the same file name, but a lexicon is identified by its file "
                "name; rename one of the files"
            )
        return paths


class IdentitiesConfig(LexiconsConfig):
    """Settings of the lexicons of groups and of the length classes."""

    length_bounds_bytes: LengthBounds = Field(
        default=(200, 1000, 5000, 20_000),
        description="lower bounds of the length classes, in bytes; omit the bound of the first "
        "class, which is always 0",
    )

    @property
    def lexicons_config(self) -> LexiconsConfig:
        """The settings of the ``record_lexicons`` stage."""
        return LexiconsConfig(lexicons=self.lexicons)


SIGNALS = build_signal_schema(
    "Length class of each document, the groups of people that it mentions, and the English "
    "dialects whose markers it contains. Only whole English words are recognised as mentions.",
    column(
        "identities", pa.list_(pa.string()), "label", "groups of people that the document mentions"
    ),
    column(
        "identity_mentions",
        pa.int32(),
        "figure",
        "total number of mentions of groups",
        unit="mentions",
    ),
    column(
        "dialects",
        pa.list_(pa.string()),
        "label",
        "varieties of English for which the text contains a marker (a word or phrase that is far "
        "more frequent in this variety than in others); a marker does not prove who wrote the "
        "text",
    ),
    column(
        "dialect_markers",
        pa.int32(),
        "figure",
        "number of dialect markers in the text",
        unit="mentions",
    ),
    column(
        "length_class",
        pa.string(),
        "label",
        "length class of the document, determined by its text length in bytes",
    ),
)


#: User-supplied lexicons: terms by lexicon and group.
UserLexicons = Mapping[str, Mapping[str, Sequence[str]]]


def resolve_lexicon_path(path: Path) -> Path:
    """Return the file of a lexicon: the user's file, or the built-in one for ``town``."""
    return DATA / "town" / "lexicon.json" if str(path) == "town" else path


def read_user_lexicons(paths: Sequence[Path]) -> UserLexicons:
    """Read lexicons from their files; the name of a lexicon is that of its file."""
    return {path.stem: read_user_terms_by_group(resolve_lexicon_path(path)) for path in paths}


def load_user_lexicons(history: Mapping[str, Artifact]) -> UserLexicons:
    """Load the user-supplied lexicons of a corpus from the artifact of its stage ``identities``."""
    user_lexicons: dict[str, dict[str, list[str]]] = {}
    for artifact in history.values():
        if artifact.stage == "identities":
            for row in artifact["lexicons"].read().to_pylist():
                groups = user_lexicons.setdefault(row["lexicon"], {})
                groups.setdefault(row["group_name"], []).append(row["term"])
    return user_lexicons


def combine_with_builtin_lexicon(user_lexicons: UserLexicons) -> Lexicon:
    """Return a lexicon with the groups of the built-in one and of the user-supplied ones."""
    combined_lexicon = load_builtin_lexicon()
    for groups in user_lexicons.values():
        combined_lexicon = combined_lexicon.with_groups(groups)
    return combined_lexicon


class GroupMentions(NamedTuple):
    """Say which groups of a lexicon n texts mention."""

    groups: pa.Array
    """List of the distinct groups that each text mentions, in lexicon order; shape (n,)."""
    mention_counts: pa.Array
    """Number of group mentions in each text, summed over all groups; shape (n,)."""


def find_group_mentions(texts: pa.Array, group_lexicon: Lexicon) -> GroupMentions:
    """Find the groups that each text mentions."""
    term_numbers, text_rows, _ = find_term_mentions(texts, group_lexicon)
    group_names = group_lexicon.groups
    group_numbers = {name: i for i, name in enumerate(group_names)}
    mentioned_groups = np.array([group_numbers[name] for name, _ in group_lexicon.terms], np.int64)[
        term_numbers
    ]
    text_group_pairs = np.unique(text_rows * len(group_names) + mentioned_groups)
    group_counts = np.bincount(text_group_pairs // len(group_names), minlength=len(texts))
    offsets = pa.array(np.concatenate([[0], np.cumsum(group_counts)]), pa.int32())
    group_values = pa.array(group_names, pa.string()).take(
        pa.array(text_group_pairs % len(group_names))
    )
    mention_counts = np.bincount(text_rows, minlength=len(texts))
    return GroupMentions(
        pa.ListArray.from_arrays(offsets, group_values), pa.array(mention_counts, pa.int32())
    )


def classify_lengths(sizes: pa.Array, bounds: Sequence[int]) -> pa.Array:
    """Label sizes in bytes with their class, such as "200 to 999 bytes"; the bounds ascend."""
    class_names = [f"under {bounds[0]:,} bytes"] if bounds else ["any length"]
    class_names += [f"{low:,} to {high - 1:,} bytes" for low, high in pairwise(bounds)]
    class_names += [f"{bounds[-1]:,} bytes or more"] if bounds else []
    class_numbers = np.searchsorted(bounds, sizes.to_numpy(zero_copy_only=False), side="right")
    return pa.array(class_names, pa.string()).take(pa.array(class_numbers))


def write_identity_signals(
    partition: TablePart, user_lexicons: UserLexicons, config: IdentitiesConfig, out: TableWriters
) -> FailureList:
    """Write the signals of a partition; return the documents on which that failed."""
    group_lexicon = combine_with_builtin_lexicon(user_lexicons)
    dialect_lexicon = load_builtin_lexicon("dialects")

    def compute_signals(batch: pa.RecordBatch) -> dict[str, pa.Array]:
        identities = find_group_mentions(batch["text"], group_lexicon)
        dialects = find_group_mentions(batch["text"], dialect_lexicon)
        return {
            "identities": identities.groups,
            "identity_mentions": identities.mention_counts,
            "dialects": dialects.groups,
            "dialect_markers": dialects.mention_counts,
            "length_class": classify_lengths(
                count_utf8_bytes(batch["text"]), config.length_bounds_bytes
            ),
        }

    return write_signals(partition, compute_signals, out)


def _hash_lexicon_files(config: LexiconsConfig, secret_id: str) -> dict[str, str]:
    return {
        f"lexicon {number}": hash_file(resolve_lexicon_path(path))
        for number, path in enumerate(config.lexicons)
        if read_user_terms_by_group(resolve_lexicon_path(path))
    }


def _write_lexicons(user_lexicons: UserLexicons, context: StageContext) -> None:
    rows = [
        {"lexicon": lexicon_name, "group_name": group, "term": term}
        for lexicon_name, groups in user_lexicons.items()
        for group, terms in groups.items()
        for term in terms
    ]
    context.get_table_writer("lexicons").write(pa.Table.from_pylist(rows, schema=LEXICONS))


@stage(
    name="identities",
    tables={"signals": SIGNALS, "lexicons": LEXICONS},
    extra_code=WORD_LISTS,
    libraries=["numpy"],
    external_digests=_hash_lexicon_files,
)
def find_identities(documents: Table, config: IdentitiesConfig, context: StageContext) -> None:
    """Find groups and dialects in all documents and record the user-supplied lexicons."""
    user_lexicons = read_user_lexicons(config.lexicons)
    results = context.map_partitions(write_identity_signals, documents.parts, user_lexicons, config)
    _write_lexicons(user_lexicons, context)
    report_failures(
        context,
        [result.value for result in results],
        documents.row_count,
        "the search for identities",
    )


@stage(
    name="record_lexicons",
    tables={"lexicons": LEXICONS},
    extra_code=WORD_LISTS,
    external_digests=_hash_lexicon_files,
)
def record_lexicons(config: LexiconsConfig, context: StageContext) -> None:
    """Record the user-supplied lexicons for audits of a model whose corpus does not have them."""
    _write_lexicons(read_user_lexicons(config.lexicons), context)
