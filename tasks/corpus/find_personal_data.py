"""Find personal data and secrets: where they stand in each document, by type.

What stood there is kept as a hash keyed by the store's secret: equal hashes are equal values, but
none can be guessed by trying. What becomes of the spans, ``scrub`` decides.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from tasks.contract import (
    ID,
    Part,
    StageConfig,
    Table,
    Tables,
    Work,
    column,
    stage,
    table,
    utf8_bytes,
)
from tasks.corpus.spans import SPANS, span_rows
from tasks.measures.faults import Faults, Noted, careful, noted, tell
from tasks.measures.personal.types import TYPES, UNREAD, Type
from tasks.measures.personal_data import REGIONS, find_all


class PersonalDataConfig(StageConfig):
    types: tuple[Type, ...] = Field(default=TYPES, description="what is looked for")
    regions: tuple[str, ...] = Field(
        default=REGIONS,
        description="countries (ISO 3166) whose national telephone, identity and tax numbers are "
        "looked for; international telephone numbers always are",
    )

    @field_validator("regions")
    @classmethod
    def _known(cls, regions: tuple[str, ...]) -> tuple[str, ...]:
        from phonenumbers import SUPPORTED_REGIONS

        unknown = [region for region in regions if region not in SUPPORTED_REGIONS]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no region with telephone numbers, such as 'US'")
        return regions


LOOKED_FOR = table(
    "The countries whose national numbers were looked for.",
    column("region", pa.string(), "label", "country (ISO 3166)"),
)


@dataclass(frozen=True, repr=False)
class Key:
    """The store's secret on its way to a part; it shows itself nowhere."""

    secret: bytes

    def __repr__(self) -> str:
        return "Key(...)"

    def hash(self, value: str) -> bytes:
        """As ``Work.keyed_hashes``."""
        data = value.encode("utf-8", "surrogatepass")
        return hmac.digest(self.secret, data, "sha256")[:16]


def find_part(part: Part, config: PersonalDataConfig, key: Key, out: Tables) -> Noted:
    failed: Noted = []
    for batch in part.batches(["doc_id", "text"]):
        columns, faults = careful(partial(find_batch, config=config, key=key), batch)
        out.table("spans").write(with_unread(batch, columns, faults) if len(faults) else columns)
        failed += noted(batch, faults)
    return failed


def with_unread(batch: pa.RecordBatch, columns: dict[str, Any], faults: Faults) -> pa.Table:
    """The spans of a batch, and one over the whole of each document that could not be looked
    through, with which it goes to quarantine."""
    size = utf8_bytes(batch["text"]).take(faults.rows)
    start = pa.array(np.zeros(len(faults), np.int64))
    types = pa.array([UNREAD] * len(faults), pa.string())
    unread = span_rows(batch, faults.rows, type=types, start=start, end=size)
    found = [{f.name: pa.array(c[f.name], f.type) for f in SPANS} for c in (columns, unread)]
    spans = pa.concat_tables([pa.table(rows, schema=SPANS) for rows in found])
    place = pc.index_in(spans["doc_id"], value_set=batch["doc_id"])
    return spans.take(pc.sort_indices(place))


def find_batch(batch: pa.RecordBatch, config: PersonalDataConfig, key: Key) -> dict[str, Any]:
    """Columns of SPANS."""
    owners, types, starts, ends, digests = [], [], [], [], []
    for row, spans in find_all(batch["text"], config.types, config.regions).items():
        text, characters, size = batch["text"][row].as_py(), 0, 0
        for kind, start, end in spans:
            value = text[start:end]
            size += _bytes(text[characters:start])
            owners.append(row)
            types.append(kind)
            starts.append(size)
            digests.append(key.hash(value))
            size += _bytes(value)
            ends.append(size)
            characters = end
    digest = pa.array(digests, ID)
    return span_rows(batch, owners, type=types, start=starts, end=ends, digest=digest)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


@stage(
    tables={"spans": SPANS, "regions": LOOKED_FOR},
    libraries=["phonenumbers", "python-stdnum"],
    external=lambda config, secret_id: {"secret": secret_id},
)
def find_personal_data(documents: Table, config: PersonalDataConfig, work: Work) -> None:
    done = work.parts(find_part, documents.parts, config, Key(work.secret))
    tell(work, [part.value for part in done], documents.rows, "the search for personal data")
    work.table("regions").write({"region": sorted(set(config.regions))})
