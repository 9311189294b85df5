"""Find personal data and secrets: where they stand in each document, by type.

What stood there is kept as a hash keyed by the store's secret: equal hashes are equal values, but
none can be guessed by trying. What becomes of the spans, ``scrub`` decides.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pydantic import Field, field_validator

from tasks.contract import ID, Part, StageConfig, Table, Tables, Work, column, stage, table
from tasks.corpus.spans import SPANS, span_rows
from tasks.measures.personal.types import TYPES, Type
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


def find_part(part: Part, config: PersonalDataConfig, key: Key, out: Tables) -> None:
    for batch in part.batches(["doc_id", "text"]):
        out.table("spans").write(find_batch(batch, config, key))


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
    work.parts(find_part, documents.parts, config, Key(work.secret))
    work.table("regions").write({"region": sorted(set(config.regions))})
