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

from hallmark.reports.page.redaction import INVISIBLE_PATTERN, Redactor
from hallmark.tasks.audits.experiments.source_documents import list_document_id_columns
from hallmark.tasks.contract import ID_TYPE, Column, hash_documents, hash_to_ids
from hallmark.tasks.corpus.reading.web_pages import detect_encodings
from hallmark.tasks.measures.normalised_words import normalise_texts

#: So many letters and digits in a row, whatever stands between them, are a quotation.
WINDOW_CHARACTERS = 20
MIN_TEXT_CHARACTERS = 8

#: Kinds of columns that quote documents.
QUOTING_KINDS = ("corpus text", "model text", "personal")

STRING_TYPES, BINARY_TYPES = ("string", "large_string"), ("binary", "large_binary")

#: Lists that tell what a text says, and their kind: hashes of its stretches; token ids, of it or of
#: several, which are a text to whoever has the tokenizer.
TEXT_REVEALING_LISTS = (
    (pa.list_(pa.uint32()), "id"),
    (pa.list_(pa.int32()), "personal"),
    (pa.list_(pa.list_(pa.int32())), "personal"),
)

#: What stands in a page where a document was quoted.
PURGED_NOTICE = "[purged]"

#: What pages write in place of a character that nobody sees, and of what they mask.
_REDACTION_MARK = re.compile(r"‹U\+[0-9A-F]{4,6}›|\[[a-z_\\ ]+ masked\\?\]")
_IGNORED_CHARACTERS = re.compile(rf"(?:[\W_]|{INVISIBLE_PATTERN})+")
_TAG_PATTERN = re.compile(r"(<[^>]*>)")
_ATTRIBUTE_VALUE = re.compile(r'"[^"]*"')


class QuotationFinder:
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
        hashes = [_hash_windows(text) for text in folded_texts - self.short_texts]
        self.window_hashes = np.unique(np.concatenate([np.empty(0, np.uint64), *hashes]))

    def __bool__(self) -> bool:
        return bool(len(self.window_hashes) or self.short_texts)

    def find_quoting_texts(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Whether each text quotes any, (n,)."""
        folded_texts = [_fold_text(text) for text in texts]
        is_quoting = np.array([text in self.short_texts for text in folded_texts], bool)
        is_purged_window = np.isin(
            _hash_windows("\n".join(folded_texts)), self.window_hashes
        )  # none of a purged text has "\n"
        text_ends = np.cumsum([len(text) + 1 for text in folded_texts])
        is_quoting[np.searchsorted(text_ends, np.flatnonzero(is_purged_window), "right")] = True
        return is_quoting

    def find_quoting_values(
        self, values: pa.ChunkedArray, sources: pa.ChunkedArray | None = None
    ) -> pa.Array:
        """Whether each value of a column of strings or bytes quotes any. ``sources``: of its rows,
        where the table tells them."""
        values = values.combine_chunks()
        distinct_values = pc.unique(values)
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


def _fold_text(text: str) -> str:
    return _IGNORED_CHARACTERS.sub("", _REDACTION_MARK.sub("", text)).casefold()


def _hash_windows(text: str) -> NDArray[np.uint64]:
    """A hash of each WINDOW characters in a row, (n - WINDOW + 1,)."""
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


# Bytes as they were read -------------------------------------------------------------------------

_VALUES_PER_BATCH = 32  # values: a record is up to 64 KiB, and has several readings

_ESCAPE_PATTERN = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))")
_ELEMENT_PATTERN = re.compile(r"<[^<>]*>")  # each "<" ends the one before: linear
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")


def decode_possible_texts(data: bytes) -> list[str]:
    """What a record may say that could not be read: as it stands, with the escapes of JSON and
    HTML undone, and without elements. Where it is no UTF-8, also in UTF-16 and in the encoding that
    a detector takes it for."""
    encodings = ["utf-8"]
    if not _is_readable_utf8(data):
        encodings += ["utf-16-le", "utf-16-be", *detect_encodings(data)]
    decoded_texts = []
    for text in (data.decode(encoding, "ignore") for encoding in encodings):
        unescaped_text = html.unescape(_unescape_backslashes(text))
        decoded_texts += [text, unescaped_text, _ELEMENT_PATTERN.sub("", unescaped_text)]
    return list(dict.fromkeys(decoded_texts))


def find_unreadable_values(values: pa.Array) -> pa.Array:
    """Which values of a column of bytes are no UTF-8, or no text: their readings are guesses."""
    return pa.array(
        [bool(value) and not _is_readable_utf8(value) for value in values.to_pylist()], pa.bool_()
    )


def _is_readable_utf8(data: bytes) -> bool:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(data) - 3:  # else a record was cut in the middle of a character
            return False
        text = data[: error.start].decode("utf-8")
    return not _CONTROL_CHARACTERS.search(text)


def _unescape_backslashes(text: str) -> str:
    def decode_escape(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return " " if match[2] in "bfnrt" else match[2]

    unescaped = _ESCAPE_PATTERN.sub(decode_escape, text)
    return unescaped.encode("utf-16", "surrogatepass").decode(
        "utf-16", "replace"
    )  # joins surrogates


# Tables ------------------------------------------------------------------------------------------


def list_quoting_columns(columns: Mapping[str, Column]) -> list[str]:
    """The columns of text that may quote a document. Labels and ids are names that the project, the
    config or a source gives, and quote nobody: a document may be the word "Validation"."""
    kinds = (*QUOTING_KINDS, "audit text")
    return [
        column.name
        for column in columns.values()
        if column.type in STRING_TYPES + BINARY_TYPES and column.kind in kinds
    ]


def find_rows_naming_documents(
    rows: pa.Table, id_columns: Sequence[str], doc_ids: pa.Array
) -> pa.Array:
    """Which rows name any of the documents in any of the columns."""
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
    """The rows without what they hold of the documents; None where they hold nothing.

    In rows about a document every quoting column and list of hashes or tokens is emptied, and each
    of its ``hashes`` is zeros. A row is about its ``doc_id``, whatever stands beside it (its
    cluster is named after another document); where there is none, about all that it names. With
    ``quotations`` so are the quoting columns of all rows that quote the documents, and what else
    may and does; of a table of documents only those that are named. Labels stay: they are no text
    of a document.
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
            column: quotations.find_quoting_values(rows[column], sources)
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
        elif (
            values.type,
            columns[name].kind,
        ) in TEXT_REVEALING_LISTS:  # a list read knows its items by another
            is_removed = is_about_documents  # name, which equality leaves out and a hash does not
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
    """Which values are there, and are not what stands for nothing."""
    is_list = pa.types.is_list(values.type)
    is_nonempty = (
        pc.greater(pc.list_value_length(values), 0)
        if is_list
        else pc.not_equal(values, empty_value)
    )
    return pc.and_(pc.is_valid(values), is_nonempty)


#: Stands in place of an id that was taken out.
REMOVED_ID = bytes(16)


def _get_empty_value(data_type: pa.DataType) -> str | bytes | list[int]:
    if pa.types.is_list(data_type):
        return []
    if data_type == ID_TYPE:
        return REMOVED_ID
    return b"" if pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type) else ""


def compute_document_hashes(documents: pa.Table) -> list[bytes]:
    """What tables may hold as a hash of these documents' texts."""
    texts = documents["text"].combine_chunks()
    return [
        *documents["text_hash"].to_pylist(),
        *hash_documents(documents["doc_id"], documents["text"]),
        *hash_to_ids(normalise_texts(texts).cast(pa.large_binary()).to_pylist()).to_pylist(),
    ]


# Pages -------------------------------------------------------------------------------------------


def remove_quotations(
    page: str, quotations: QuotationFinder, has_markup: bool = True
) -> str | None:
    """A page (HTML, SVG; else Markdown or plain text) with a notice in place of what it quotes, or
    a notice alone where a quotation runs over several elements; None where it quotes nothing."""
    pieces = _TAG_PATTERN.split(page) if has_markup else page.splitlines(keepends=True)
    is_quoting = quotations.find_quoting_texts([html.unescape(piece) for piece in pieces])
    for index in np.flatnonzero(is_quoting):
        if has_markup and index % 2:  # a tag: its attributes
            pieces[index] = _ATTRIBUTE_VALUE.sub(f'"{PURGED_NOTICE}"', pieces[index])
        else:
            pieces[index] = PURGED_NOTICE + ("" if has_markup else "\n")
    cleaned_page = "".join(pieces)
    visible_text = _TAG_PATTERN.sub("", cleaned_page) if has_markup else cleaned_page
    if quotations.find_quoting_texts([html.unescape(visible_text)])[0]:
        return (
            f"<!doctype html><title>{PURGED_NOTICE}</title><p>{PURGED_NOTICE}"
            if has_markup
            else f"{PURGED_NOTICE}\n"
        )
    return cleaned_page if is_quoting.any() else None
