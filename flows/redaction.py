"""What is left of tables, sequences and pages once the text of purged documents is out of them.

Rows stay, so that tables which are read side by side stay aligned; what they quote goes.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reports.page.masking import UNSEEN, Masker
from tasks.audits.proofs.behind import naming
from tasks.contract import ID, Column, identities, ids
from tasks.corpus.reading.pages import detected
from tasks.measures.words import normalise

#: So many letters and digits in a row, whatever stands between them, are a quotation.
WINDOW = 20
LEAST = 8

#: Kinds of columns that quote documents.
QUOTING = ("corpus text", "model text", "personal")

TEXT, BYTES = ("string", "large_string"), ("binary", "large_binary")

#: Lists that tell what a text says, and their kind: hashes of its stretches; token ids, of it or of
#: several, which are a text to whoever has the tokenizer.
LISTS = (
    (pa.list_(pa.uint32()), "id"),
    (pa.list_(pa.int32()), "personal"),
    (pa.list_(pa.list_(pa.int32())), "personal"),
)

#: What stands in a page where a document was quoted.
NOTICE = "[purged]"

#: What pages write in place of a character that nobody sees, and of what they mask.
_MARK = re.compile(r"‹U\+[0-9A-F]{4,6}›|\[[a-z_\\ ]+ masked\\?\]")
_OTHER = re.compile(rf"(?:[\W_]|{UNSEEN})+")
_TAG = re.compile(r"(<[^>]*>)")
_VALUE = re.compile(r'"[^"]*"')


class Quotations:
    """Tells which texts quote any of the purged ones.

    Case, spaces, punctuation and what nobody sees do not count, so that what a page escapes, wraps
    or writes out is found, too; with the ``maskers`` of pages also what is left where they mask.
    A purged text shorter than WINDOW is found only where it stands alone, one shorter than LEAST is
    not looked for: "yes" stands anywhere. Bytes of the ``sources`` of the documents that are no
    text that can be read are taken to quote them. Memory: 8 bytes a character of the purged texts.
    """

    def __init__(
        self,
        texts: Iterable[str],
        sources: Iterable[str] = (),
        maskers: Sequence[Masker] = (),
    ) -> None:
        self.sources = pa.array(sorted(set(sources)), pa.string())
        forms = (form for text in texts for form in (text, *(m.whole(text) for m in maskers)))
        folded = {f for form in forms if len(f := _folded(form)) >= LEAST}
        self.short = {text for text in folded if len(text) < WINDOW}
        hashes = [_hashes(text) for text in folded - self.short]
        self.hashes = np.unique(np.concatenate([np.empty(0, np.uint64), *hashes]))

    def __bool__(self) -> bool:
        return bool(len(self.hashes) or self.short)

    def within(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Whether each text quotes any, (n,)."""
        folded = [_folded(text) for text in texts]
        found = np.array([text in self.short for text in folded], bool)
        hits = np.isin(_hashes("\n".join(folded)), self.hashes)  # none of a purged text has "\n"
        ends = np.cumsum([len(text) + 1 for text in folded])
        found[np.searchsorted(ends, np.flatnonzero(hits), "right")] = True
        return found

    def cells(self, values: pa.ChunkedArray, sources: pa.ChunkedArray | None = None) -> pa.Array:
        """Whether each value of a column of strings or bytes quotes any. ``sources``: of its rows,
        where the table tells them."""
        values = values.combine_chunks()
        distinct = pc.unique(values)
        if str(values.type) not in BYTES:
            quoting = self.within([value or "" for value in distinct.to_pylist()])
            return pc.is_in(values, value_set=distinct.filter(pa.array(quoting, pa.bool_())))
        quoting = np.zeros(len(distinct), bool)
        for first in range(0, len(distinct), _AT_ONCE):
            some = distinct[first : first + _AT_ONCE].to_pylist()
            read = [
                (row, text) for row, value in enumerate(some) for text in readings(value or b"")
            ]
            rows = first + np.array([row for row, _ in read])
            quoting[rows[self.within([text for _, text in read])]] = True
        found = pc.is_in(values, value_set=distinct.filter(pa.array(quoting, pa.bool_())))
        if sources is None:
            return found
        mine = pc.is_in(sources.combine_chunks(), value_set=self.sources)
        return pc.or_(found, pc.and_(mine, unreadable(values)))


def _folded(text: str) -> str:
    return _OTHER.sub("", _MARK.sub("", text)).casefold()


def _hashes(text: str) -> NDArray[np.uint64]:
    """A hash of each WINDOW characters in a row, (n - WINDOW + 1,)."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
    size = max(0, len(codes) - WINDOW + 1)
    found = np.zeros(size, np.uint64)
    for place in range(WINDOW):
        found = found * np.uint64(0x9E3779B97F4A7C15) + codes[place : place + size]
        found ^= found >> np.uint64(29)
    return found


# Bytes as they were read -------------------------------------------------------------------------

_AT_ONCE = 32  # values: a record is up to 64 KiB, and has several readings

_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))")
_ELEMENT = re.compile(r"<[^<>]*>")  # each "<" ends the one before: linear
_NO_TEXT = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")


def readings(data: bytes) -> list[str]:
    """What a record may say that could not be read: as it stands, with the escapes of JSON and
    HTML undone, and without elements. Where it is no UTF-8, also in UTF-16 and in the encoding that
    a detector takes it for."""
    names = ["utf-8"]
    if not _is_text(data):
        names += ["utf-16-le", "utf-16-be", *detected(data)]
    found = []
    for text in (data.decode(name, "ignore") for name in names):
        plain = html.unescape(_unescaped(text))
        found += [text, plain, _ELEMENT.sub("", plain)]
    return list(dict.fromkeys(found))


def unreadable(values: pa.Array) -> pa.Array:
    """Which values of a column of bytes are no UTF-8, or no text: their readings are guesses."""
    return pa.array([bool(v) and not _is_text(v) for v in values.to_pylist()], pa.bool_())


def _is_text(data: bytes) -> bool:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(data) - 3:  # else a record was cut in the middle of a character
            return False
        text = data[: error.start].decode("utf-8")
    return not _NO_TEXT.search(text)


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return " " if match[2] in "bfnrt" else match[2]

    plain = _ESCAPE.sub(character, text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins surrogates


# Tables ------------------------------------------------------------------------------------------


def may_quote(columns: Mapping[str, Column]) -> list[str]:
    """The columns of text that may quote a document. Labels and ids are names that the project, the
    config or a source gives, and quote nobody: a document may be the word "Validation"."""
    kinds = (*QUOTING, "audit text")
    return [c.name for c in columns.values() if c.type in TEXT + BYTES and c.kind in kinds]


def named(rows: pa.Table, columns: Sequence[str], documents: pa.Array) -> pa.Array:
    """Which rows name any of the documents in any of the columns."""
    masks = [pa.repeat(False, len(rows))]
    for name in columns:
        values = rows[name].combine_chunks()
        if pa.types.is_list(values.type):
            items = values.flatten()
            hit = pc.is_in(items, value_set=documents.cast(items.type))
            owners = pc.list_parent_indices(values).filter(hit)
            masks.append(pc.is_in(pa.array(np.arange(len(rows)), pa.int64()), value_set=owners))
        else:
            masks.append(pc.is_in(values, value_set=documents))
    return reduce(pc.or_, masks)


def emptied(
    rows: pa.Table,
    columns: Mapping[str, Column],
    documents: pa.Array,
    hashes: pa.Array,
    quotations: Quotations | None,
) -> pa.Table | None:
    """The rows without what they hold of the documents; None where they hold nothing.

    In rows about a document every quoting column and list of hashes or tokens is emptied, and each
    of its ``hashes`` is zeros. A row is about its ``doc_id``, whatever stands beside it (its
    cluster is named after another document); where there is none, about all that it names. With
    ``quotations`` so are the quoting columns of all rows that quote the documents, and what else
    may and does; of a table of documents only those that are named. Labels stay: they are no text
    of a document.
    """
    about = ["doc_id"] if "doc_id" in naming(columns) else naming(columns)
    mine = named(rows, about, documents)
    sources = rows["source"] if "source" in rows.column_names else None
    found = (
        {n: quotations.cells(rows[n], sources) for n in may_quote(columns)} if quotations else {}
    )
    own = [n for n in may_quote(columns) if columns[n].kind in QUOTING]
    mine = reduce(pc.or_, [mine, *(found[n] for n in own if n in found)])
    result = rows
    for name in rows.column_names:
        values = rows[name].combine_chunks()
        if name in own:
            gone = mine
        elif name in found:
            gone = found[name]
        elif (values.type, columns[name].kind) in LISTS:  # a list read knows its items by another
            gone = mine  # name, which equality leaves out and a hash does not
        elif values.type == ID:
            gone = pc.and_(mine, pc.is_in(values, value_set=hashes))
        else:
            continue
        nothing = pa.scalar(_empty(values.type), values.type)
        gone = pc.and_(gone, _holds(values, nothing))
        if pc.any(gone.fill_null(False)).as_py():
            place = result.schema.get_field_index(name)
            kept = pc.if_else(gone.fill_null(False), nothing, values)
            result = result.set_column(place, rows.schema.field(name), kept)
    return None if result is rows else result


def _holds(values: pa.Array, nothing: pa.Scalar) -> pa.Array:
    """Which values are there, and are not what stands for nothing."""
    lists = pa.types.is_list(values.type)
    there = pc.greater(pc.list_value_length(values), 0) if lists else pc.not_equal(values, nothing)
    return pc.and_(pc.is_valid(values), there)


#: Stands in place of an id that was taken out.
NOBODY = bytes(16)


def _empty(kind: pa.DataType) -> str | bytes | list[int]:
    if pa.types.is_list(kind):
        return []
    if kind == ID:
        return NOBODY
    return b"" if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else ""


def hashes_of(documents: pa.Table) -> list[bytes]:
    """What tables may hold as a hash of these documents' texts."""
    texts = documents["text"].combine_chunks()
    return [
        *documents["text_hash"].to_pylist(),
        *identities(documents["doc_id"], documents["text"]),
        *ids(normalise(texts).cast(pa.large_binary()).to_pylist()).to_pylist(),
    ]


# Pages -------------------------------------------------------------------------------------------


def without_quotations(page: str, quotations: Quotations, markup: bool = True) -> str | None:
    """A page (HTML, SVG; else Markdown or plain text) with a notice in place of what it quotes, or
    a notice alone where a quotation runs over several elements; None where it quotes nothing."""
    pieces = _TAG.split(page) if markup else page.splitlines(keepends=True)
    hits = quotations.within([html.unescape(piece) for piece in pieces])
    for place in np.flatnonzero(hits):
        if markup and place % 2:  # a tag: its attributes
            pieces[place] = _VALUE.sub(f'"{NOTICE}"', pieces[place])
        else:
            pieces[place] = NOTICE + ("" if markup else "\n")
    cleaned = "".join(pieces)
    visible = _TAG.sub("", cleaned) if markup else cleaned
    if quotations.within([html.unescape(visible)])[0]:
        return f"<!doctype html><title>{NOTICE}</title><p>{NOTICE}" if markup else f"{NOTICE}\n"
    return cleaned if hits.any() else None
