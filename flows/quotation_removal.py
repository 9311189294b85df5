"""Find and remove the text of purged documents in tables.

Rows are kept, so that tables stay aligned with each other; only the text in them is removed.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hallmark.reports.page.card_tables import JSON_UNIT
from hallmark.reports.page.redaction import INVISIBLE_PATTERN, Redactor
from hallmark.tasks.audits.experiments.source_documents import list_document_id_columns
from hallmark.tasks.contract import ID_TYPE, METADATA_TYPE, Column, hash_documents, hash_to_ids
from hallmark.tasks.corpus.copies.text_equality import fold_invisible_differences
from hallmark.tasks.corpus.reading.web_pages import detect_encodings

#: Number of letters and digits in sequence, ignoring all other characters, that make a quotation.
WINDOW_CHARACTERS = 20

#: Purged texts with fewer letters and digits are not searched for.
MIN_TEXT_CHARACTERS = 8

#: Kinds of columns that quote documents.
QUOTING_KINDS = ("corpus text", "model text", "personal")

STRING_TYPES, BINARY_TYPES = ("string", "large_string"), ("binary", "large_binary")

#: Types and kinds of nested columns that reveal a text or say whose it is: hashes of its parts,
#: token ids of it or of several texts, which the tokenizer can decode, and metadata.
TEXT_REVEALING_TYPES = (
    (pa.list_(pa.uint32()), "id"),
    (pa.list_(pa.int32()), "personal"),
    (pa.list_(pa.list_(pa.int32())), "personal"),
    (METADATA_TYPE, "personal"),
)

#: The text with which pages replace invisible characters and redacted text.
_REDACTION_MARK = re.compile(r"‹U\+[0-9A-F]{4,6}›|\[[a-z_\\ ]+ masked\\?\]")
_IGNORED_CHARACTERS = re.compile(rf"(?:[\W_]|{INVISIBLE_PATTERN})+")


class QuotationFinder:
    """Find the texts that quote purged documents.

    Case, spaces, punctuation and invisible characters are ignored, so that quotations on pages are
    found even if they are escaped or wrapped. A purged text with fewer than ``WINDOW_CHARACTERS``
    is found only as a complete text, and one with fewer than ``MIN_TEXT_CHARACTERS`` ("yes") is not
    searched for. Needs 8 bytes of memory per character of the purged texts.

    Args:
        texts: The purged texts.
        sources: The sources of the documents; unreadable bytes from them count as quotations.
        redactors: The redactors of pages, to find texts as these leave them, too.
    """

    def __init__(
        self,
        texts: Iterable[str],
        sources: Iterable[str] = (),
        redactors: Sequence[Redactor] = (),
    ) -> None:
        self.source_names = pa.array(sorted(set(sources)), pa.string())
        text_forms = (
            text_form
            for text in texts
            for text_form in (text, *(redactor.redact_full_text(text) for redactor in redactors))
        )
        folded_texts = {
            folded
            for text_form in text_forms
            if len(folded := _fold_text(text_form)) >= MIN_TEXT_CHARACTERS
        }
        self.short_texts = {text for text in folded_texts if len(text) < WINDOW_CHARACTERS}
        hashes = [_hash_character_windows(text) for text in folded_texts - self.short_texts]
        self.window_hashes = np.unique(np.concatenate([np.empty(0, np.uint64), *hashes]))

    def __bool__(self) -> bool:
        return bool(len(self.window_hashes) or self.short_texts)

    def find_quoting_texts(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Return for each text whether it quotes a purged one, (n,)."""
        folded_texts = [_fold_text(text) for text in texts]
        is_quoting = np.array([text in self.short_texts for text in folded_texts], bool)
        # Purged texts contain no "\n" once folded, so no window across two texts matches.
        is_purged_window = np.isin(
            _hash_character_windows("\n".join(folded_texts)), self.window_hashes
        )
        text_ends = np.cumsum([len(text) + 1 for text in folded_texts])
        is_quoting[np.searchsorted(text_ends, np.flatnonzero(is_purged_window), "right")] = True
        return is_quoting

    def find_quoting_values(
        self,
        values: pa.ChunkedArray,
        sources: pa.ChunkedArray | None = None,
        *,
        are_json: bool = False,
    ) -> pa.Array:
        """Return for each value of a column of strings or bytes whether it quotes a purged text.

        Args:
            values: The values.
            sources: The source of each row; None if the table has no such column.
            are_json: Whether the values are JSON, in which each string is a text.
        """
        values = values.combine_chunks()
        distinct_values = pc.unique(values)
        if are_json:
            texts_by_value = [
                [*_iterate_json_texts(value)] for value in distinct_values.to_pylist()
            ]
            quotes_purged_text = pa.array(
                [bool(texts and self.find_quoting_texts(texts).any()) for texts in texts_by_value],
                pa.bool_(),
            )
            return pc.is_in(values, value_set=distinct_values.filter(quotes_purged_text))
        if str(values.type) not in BINARY_TYPES:
            distinct_is_quoting = self.find_quoting_texts(
                [value or "" for value in distinct_values.to_pylist()]
            )
            return pc.is_in(
                values, value_set=distinct_values.filter(pa.array(distinct_is_quoting, pa.bool_()))
            )
        distinct_is_quoting = np.zeros(len(distinct_values), bool)
        for batch_start in range(0, len(distinct_values), _VALUES_PER_BATCH):
            batch = distinct_values[batch_start : batch_start + _VALUES_PER_BATCH].to_pylist()
            decoded_texts = [
                (index, text)
                for index, value in enumerate(batch)
                for text in decode_possible_texts(value or b"")
            ]
            row_indices = batch_start + np.array([index for index, _ in decoded_texts])
            distinct_is_quoting[
                row_indices[self.find_quoting_texts([text for _, text in decoded_texts])]
            ] = True
        is_quoting = pc.is_in(
            values, value_set=distinct_values.filter(pa.array(distinct_is_quoting, pa.bool_()))
        )
        if sources is None:
            return is_quoting
        is_purged_source = pc.is_in(sources.combine_chunks(), value_set=self.source_names)
        return pc.or_(is_quoting, pc.and_(is_purged_source, find_unreadable_values(values)))


def _iterate_json_texts(value: str | None) -> Iterator[str]:
    """Yield the strings of a JSON document; nothing for an empty one."""
    pending = [json.loads(value)] if value else []
    while pending:
        element = pending.pop()
        if isinstance(element, str):
            yield element
        elif isinstance(element, dict | list):
            pending += element.values() if isinstance(element, dict) else element


def _fold_text(text: str) -> str:
    return _IGNORED_CHARACTERS.sub("", _REDACTION_MARK.sub("", text)).casefold()


def _hash_character_windows(text: str) -> NDArray[np.uint64]:
    """Hash every window of ``WINDOW_CHARACTERS`` characters, (n - WINDOW_CHARACTERS + 1,)."""
    code_points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
    window_count = max(0, len(code_points) - WINDOW_CHARACTERS + 1)
    window_hashes = np.zeros(window_count, np.uint64)
    for offset in range(WINDOW_CHARACTERS):
        window_hashes = (
            window_hashes * np.uint64(0x9E3779B97F4A7C15)
            + code_points[offset : offset + window_count]
        )
        window_hashes ^= window_hashes >> np.uint64(29)
    return window_hashes


_VALUES_PER_BATCH = 32  # a record has up to 64 KiB and several possible decodings

_ESCAPE_PATTERN = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))")
_ELEMENT_PATTERN = re.compile(r"<[^<>]*>")  # "<" cannot occur inside, so matching is linear
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")


def decode_possible_texts(data: bytes) -> list[str]:
    """Decode an unreadable record in all plausible ways.

    Each decoding is returned as it is, with JSON and HTML escapes undone, and without elements. If
    the record is not UTF-8, UTF-16 and the encodings that a detector suggests are tried, too.
    """
    encodings = ["utf-8"]
    if not _is_readable_utf8(data):
        encodings += ["utf-16-le", "utf-16-be", *detect_encodings(data)]
    decoded_texts = []
    for text in (data.decode(encoding, "ignore") for encoding in encodings):
        unescaped_text = html.unescape(_unescape_backslashes(text))
        decoded_texts += [text, unescaped_text, _ELEMENT_PATTERN.sub("", unescaped_text)]
    return list(dict.fromkeys(decoded_texts))


def find_unreadable_values(values: pa.Array) -> pa.Array:
    """Return which values of a column of bytes are not UTF-8 text, so that decoding is a guess."""
    return pa.array(
        [bool(value) and not _is_readable_utf8(value) for value in values.to_pylist()], pa.bool_()
    )


def _is_readable_utf8(data: bytes) -> bool:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(data) - 3:  # otherwise the record was cut inside a character
            return False
        text = data[: error.start].decode("utf-8")
    return not _CONTROL_CHARACTERS.search(text)


def _unescape_backslashes(text: str) -> str:
    def decode_escape(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return " " if match[2] in "bfnrt" else match[2]

    unescaped = _ESCAPE_PATTERN.sub(decode_escape, text)
    # Encoding and decoding joins surrogate pairs.
    return unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def list_quoting_columns(columns: Mapping[str, Column]) -> list[str]:
    """List the text columns that may quote a document.

    Labels and ids are excluded: they are names from the project, the config or a source. A document
    may consist of the word "Validation".
    """
    kinds = (*QUOTING_KINDS, "audit text")
    return [
        column.name
        for column in columns.values()
        if column.type in STRING_TYPES + BINARY_TYPES and column.kind in kinds
    ]


def find_rows_naming_documents(
    rows: pa.Table, id_columns: Sequence[str], doc_ids: pa.Array
) -> pa.Array:
    """Return which rows name any of the documents in any of the id columns."""
    row_flags = [pa.repeat(False, len(rows))]
    for column in id_columns:
        values = rows[column].combine_chunks()
        if pa.types.is_list(values.type):
            list_items = values.flatten()
            is_match = pc.is_in(list_items, value_set=doc_ids.cast(list_items.type))
            row_indices = pc.list_parent_indices(values).filter(is_match)
            row_flags.append(
                pc.is_in(pa.array(np.arange(len(rows)), pa.int64()), value_set=row_indices)
            )
        else:
            row_flags.append(pc.is_in(values, value_set=doc_ids))
    return reduce(pc.or_, row_flags)


def remove_document_content(
    rows: pa.Table,
    columns: Mapping[str, Column],
    doc_ids: pa.Array,
    text_hashes: pa.Array,
    quotations: QuotationFinder | None,
) -> pa.Table | None:
    """Remove the content of documents from the rows of a table.

    A row is about the document in its column ``doc_id``, or about all documents that it names if
    there is no such column. In rows about the documents, all quoting columns, metadata and all
    lists of hashes or tokens are emptied, and ids that are hashes of their texts become zeros.
    Labels are kept, because they are not text of a document.

    Args:
        rows: The rows.
        columns: The columns of the table.
        doc_ids: The documents.
        text_hashes: Hashes of their texts.
        quotations: Finds rows that quote the documents without naming them, which are emptied,
            too; None for a table of documents.

    Returns:
        The changed rows, or None if nothing changed.
    """
    id_columns = (
        ["doc_id"]
        if "doc_id" in list_document_id_columns(columns)
        else list_document_id_columns(columns)
    )
    is_about_documents = find_rows_naming_documents(rows, id_columns, doc_ids)
    sources = rows["source"] if "source" in rows.column_names else None
    quoting_by_column = (
        {
            column: quotations.find_quoting_values(
                rows[column], sources, are_json=columns[column].unit == JSON_UNIT
            )
            for column in list_quoting_columns(columns)
        }
        if quotations
        else {}
    )
    quoting_columns = [
        column for column in list_quoting_columns(columns) if columns[column].kind in QUOTING_KINDS
    ]
    is_about_documents = reduce(
        pc.or_,
        [
            is_about_documents,
            *(
                quoting_by_column[column]
                for column in quoting_columns
                if column in quoting_by_column
            ),
        ],
    )
    result = rows
    for name in rows.column_names:
        values = rows[name].combine_chunks()
        if name in quoting_columns:
            is_removed = is_about_documents
        elif name in quoting_by_column:
            is_removed = quoting_by_column[name]
        elif (values.type, columns[name].kind) in TEXT_REVEALING_TYPES:
            # A tuple, not a set: list types from files differ in the name of their items, which
            # equality ignores but a hash does not.
            is_removed = is_about_documents
        elif values.type == ID_TYPE:
            is_removed = pc.and_(is_about_documents, pc.is_in(values, value_set=text_hashes))
        else:
            continue
        empty_value = pa.scalar(_get_empty_value(values.type), values.type)
        is_removed = pc.and_(is_removed, _has_content(values, empty_value))
        if pc.any(is_removed.fill_null(False)).as_py():
            column_index = result.schema.get_field_index(name)
            remaining_values = pc.if_else(is_removed.fill_null(False), empty_value, values)
            result = result.set_column(column_index, rows.schema.field(name), remaining_values)
    return None if result is rows else result


def _has_content(values: pa.Array, empty_value: pa.Scalar) -> pa.Array:
    """Return which values are neither null nor empty."""
    if pa.types.is_map(values.type):
        is_nonempty = pa.array(np.diff(values.offsets.to_numpy()) > 0)
    elif pa.types.is_list(values.type):
        is_nonempty = pc.greater(pc.list_value_length(values), 0)
    else:
        is_nonempty = pc.not_equal(values, empty_value)
    return pc.and_(pc.is_valid(values), is_nonempty)


#: Replaces an id that was removed.
REMOVED_ID = bytes(16)


def _get_empty_value(data_type: pa.DataType) -> str | bytes | list[int]:
    if pa.types.is_list(data_type) or pa.types.is_map(data_type):
        return []
    if data_type == ID_TYPE:
        return REMOVED_ID
    return b"" if pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type) else ""


def compute_document_hashes(documents: pa.Table) -> list[bytes]:
    """Compute all hashes of these documents' texts that tables may contain."""
    texts = documents["text"].combine_chunks()
    return [
        *documents["text_hash"].to_pylist(),
        *hash_documents(documents["doc_id"], documents["text"]),
        *hash_to_ids(
            fold_invisible_differences(texts).cast(pa.large_binary()).to_pylist()
        ).to_pylist(),
    ]
