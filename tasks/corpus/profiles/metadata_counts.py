"""Count which fields of metadata documents have, and how often each value occurs.

Memory is bounded for any corpus: about 100 bytes for each distinct name of a field, and
MAX_DISTINCT_VALUES values of each field. Values of a field with more are not counted, so the result
does not depend on how the corpus is divided into partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.contract import flatten_metadata
from hallmark.tasks.corpus.reading.metadata import LICENCE_FIELD

#: A field with more distinct values is free text, whose values are not counted.
MAX_DISTINCT_VALUES = 1000

#: A value that fewer documents have is not reported, because it may identify a person.
MIN_VALUE_DOCUMENTS = 10

FIELD_COUNTS = pa.schema(
    [("field", pa.string()), ("documents", pa.int64()), ("has_values", pa.bool_())]
)
VALUE_COUNTS = pa.schema(
    [("field", pa.string()), ("value", pa.string()), ("documents", pa.int64())]
)


@dataclass(frozen=True)
class MetadataCounts:
    """Hold the counts of some documents.

    Attributes:
        fields: Rows of FIELD_COUNTS; ``has_values`` tells whether the values were counted.
        values: Rows of VALUE_COUNTS.
    """

    fields: pa.Table
    values: pa.Table

    @classmethod
    def from_documents(cls, metadata: pa.Array) -> MetadataCounts:
        """Count the metadata of a batch of documents."""
        _, names, values = flatten_metadata(metadata)
        rows = pa.table({"field": names, "value": values})
        value_counts = rows.group_by(["field", "value"]).aggregate([([], "count_all")])
        field_counts = rows.group_by("field").aggregate([([], "count_all")])
        has_values = pa.repeat(pa.scalar(True), len(field_counts))
        return cls(
            field_counts.rename_columns(["field", "documents"]).append_column(
                "has_values", has_values
            ),
            value_counts.rename_columns(VALUE_COUNTS.names),
        ).drop_free_text()

    @classmethod
    def merge(cls, parts: Sequence[MetadataCounts]) -> MetadataCounts:
        """Add up the counts of several parts of a corpus, or of none."""
        fields = pa.concat_tables([FIELD_COUNTS.empty_table(), *(part.fields for part in parts)])
        fields = fields.group_by("field").aggregate([("documents", "sum"), ("has_values", "all")])
        values = pa.concat_tables([VALUE_COUNTS.empty_table(), *(part.values for part in parts)])
        values = values.group_by(["field", "value"]).aggregate([("documents", "sum")])
        return cls(
            fields.rename_columns(FIELD_COUNTS.names), values.rename_columns(VALUE_COUNTS.names)
        ).drop_free_text()

    def drop_free_text(self) -> MetadataCounts:
        """Drop the values of fields with too many of them, here or in a part that was merged."""
        distinct_counts = self.values.group_by("field").aggregate([([], "count_all")])
        is_free_text = pc.greater(distinct_counts["count_all"], MAX_DISTINCT_VALUES)
        free_text_fields = pa.concat_arrays(
            [
                distinct_counts["field"].filter(is_free_text).combine_chunks(),
                self.fields["field"].filter(pc.invert(self.fields["has_values"])).combine_chunks(),
            ]
        )
        has_values = pc.invert(pc.is_in(self.fields["field"], value_set=free_text_fields))
        return MetadataCounts(
            self.fields.set_column(2, "has_values", has_values),
            self.values.filter(
                pc.invert(pc.is_in(self.values["field"], value_set=free_text_fields))
            ),
        )

    def build_field_rows(self) -> pa.Table:
        """Build the rows of the ``metadata_fields`` table."""
        distinct_counts = self.values.group_by("field").aggregate([([], "count_all")])
        return (
            self.fields.select(["field", "documents"])
            .join(distinct_counts, "field")
            .rename_columns(["field", "documents", "distinct_values"])
        )

    def build_value_rows(self, max_values_per_field: int) -> pa.Table:
        """Build the rows of the ``metadata_values`` table: the most frequent of each field."""
        is_frequent = pc.greater_equal(self.values["documents"], MIN_VALUE_DOCUMENTS)
        is_licence = pc.equal(self.values["field"], LICENCE_FIELD)
        rows = self.values.filter(pc.or_(is_frequent, is_licence)).sort_by(
            [("field", "ascending"), ("documents", "descending"), ("value", "ascending")]
        )
        fields = rows["field"].combine_chunks()
        first_rows = pc.index_in(fields, value_set=fields)
        ranks = pc.subtract(pa.array(range(len(rows)), pa.int32()), first_rows)
        return rows.filter(pc.less(ranks, max_values_per_field))
