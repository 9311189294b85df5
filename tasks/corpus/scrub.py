"""Mask personal data and secrets: each span becomes its type, ``<EMAIL>``.

A placeholder says the type and nothing else, so that it depends neither on the order of the
documents nor on how they are cut. What stood there is in the ledger as a hash keyed by the
store's secret: equal hashes are equal values, but none can be guessed by trying.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from tasks.contract import (
    DOCUMENTS,
    ID,
    LEDGER,
    Part,
    StageConfig,
    Table,
    Tables,
    Work,
    identities,
    ledger_rows,
    stage,
    text_hashes,
    with_columns,
)
from tasks.measures.personal_data import TYPES, Span, Type, find_all


class ScrubConfig(StageConfig):
    types: tuple[Type, ...] = Field(default=TYPES, description="what is masked")
    regions: tuple[str, ...] = Field(
        default=("US",),
        description="countries (ISO 3166) whose national telephone numbers are looked for; "
        "international ones always are",
    )

    @field_validator("regions")
    @classmethod
    def _known(cls, regions: tuple[str, ...]) -> tuple[str, ...]:
        from phonenumbers import SUPPORTED_REGIONS

        unknown = [region for region in regions if region not in SUPPORTED_REGIONS]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no region with telephone numbers, such as 'US'")
        return regions


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


def placeholder(kind: Type) -> str:
    return f"<{kind}>"


def mask(text: str, spans: list[Span]) -> str:
    """The text with each span replaced by its placeholder; spans in order, none overlapping."""
    pieces: list[str] = []
    position = 0
    for kind, start, end in spans:
        pieces += [text[position:start], placeholder(kind)]
        position = end
    return "".join([*pieces, text[position:]])


def scrub_part(part: Part, config: ScrubConfig, key: Key, out: Tables) -> None:
    for batch in part.batches():
        documents, ledger = scrub_batch(batch, config, key)
        out.table("documents").write(documents)
        out.table("ledger").write(ledger)


def scrub_batch(
    batch: pa.RecordBatch, config: ScrubConfig, key: Key
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The batch with its spans masked, and one ledger row a span."""
    found = find_all(batch["text"], config.types, config.regions)
    rows = list(found)
    texts = batch["text"].take(pa.array(rows, pa.int64())).to_pylist()
    masked = pa.array(map(mask, texts, found.values()), pa.large_string())

    changed = pc.is_in(pa.array(range(len(batch))), pa.array(rows, pa.int64()))
    documents = with_columns(
        batch,
        text=pc.replace_with_mask(batch["text"], changed, masked),
        text_hash=pc.replace_with_mask(batch["text_hash"], changed, text_hashes(masked)),
    )

    spans = [
        (row, kind, start, end, text[start:end])
        for row, text in zip(rows, texts, strict=True)
        for kind, start, end in found[row]
    ]
    owners = pa.array([row for row, *_ in spans], pa.int64())
    before = pa.table([batch["doc_id"].take(pa.array(rows, pa.int64())), texts], ["doc_id", "text"])
    entered = dict(zip(rows, identities(before["doc_id"], before["text"]), strict=True))
    columns = ledger_rows(
        "replaced",
        [kind for _, kind, *_ in spans],
        batch["doc_id"].take(owners),
        batch["source"].take(owners),
        [len(value.encode("utf-8", "surrogatepass")) for *_, value in spans],
        [len(placeholder(kind)) for _, kind, *_ in spans],
        start=[start for *_, start, _, _ in spans],
        end=[end for *_, end, _ in spans],
        digest=pa.array([key.hash(value) for *_, value in spans], ID),
        identity=[entered.pop(row, None) for row, *_ in spans],  # once a document
    )
    return documents, columns


@stage(
    tables={"documents": DOCUMENTS, "ledger": LEDGER},
    libraries=["phonenumbers", "python-stdnum"],
    external=lambda config, secret_id: {"secret": secret_id},
)
def scrub(documents: Table, config: ScrubConfig, work: Work) -> None:
    work.parts(scrub_part, documents.parts, config, Key(work.secret))
