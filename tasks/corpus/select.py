"""Apply rules to signals in order to keep, remove, tag or sample documents.

A rule is data: a signal, bounds on its value, and an action on documents that violate them. All
rules are applied in one pass, in their order. The first rule that removes a document gives the
reason in the ledger; further ones that would remove it are rows ``additional_reason``, which do not
count in the accounts, but show how much each rule removes by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from hallmark.tasks.contract import (
    DOCUMENTS,
    LEDGER,
    Artifact,
    HallmarkError,
    PathSafeName,
    Seed,
    StageConfig,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    align_parts,
    build_document_ledger_columns,
    build_ledger_table,
    format_all,
    replace_columns,
    stage,
)
from hallmark.tasks.corpus.quality_presets import PRESET_RULES, PresetName, describe_presets
from hallmark.tasks.corpus.signals import concatenate_signal_columns, get_types_by_signal
from hallmark.tasks.corpus.split import hash_ids_to_uniform_draws

#: Names of the bounds, with the comparison that is true for values that violate them.
BOUND_VIOLATIONS = {"ge": pc.less, "gt": pc.less_equal, "le": pc.greater, "lt": pc.greater_equal}

OptionalBound = Annotated[float | None, Field(allow_inf_nan=False)]


class SelectionRule(StageConfig):
    """Bounds on a signal, and the action on documents that violate them."""

    name: PathSafeName = Field(
        description="rule name, which the ledger records as the reason for a removal, or which "
        "is added to documents as a tag"
    )
    signal: str = Field(
        "",
        description="name of the signal to which the rule applies; by default, the signal "
        "with the same name as the rule",
    )
    ge: OptionalBound = Field(
        None,
        description="lower bound: the signal value must be greater than or equal to this number",
    )
    gt: OptionalBound = Field(
        None, description="lower bound: the signal value must be greater than this number"
    )
    le: OptionalBound = Field(
        None,
        description="upper bound: the signal value must be less than or equal to this number",
    )
    lt: OptionalBound = Field(
        None, description="upper bound: the signal value must be less than this number"
    )
    any_of: tuple[str, ...] = Field(
        (), description="allowed labels: the signal value must be one of these labels"
    )
    none_of: tuple[str, ...] = Field(
        (), description="forbidden labels: the signal value must not be one of these labels"
    )
    on_missing: Literal["keep", "remove"] = Field(
        "keep",
        description="what happens to documents without a value for the signal. keep: the rule "
        "ignores these documents. remove: the rule treats them like documents that violate it, "
        "and the `action` setting decides what happens: with the action `remove`, they are "
        "removed; with `tag`, they are only tagged. A missing value is never treated as zero",
    )
    action: Literal["remove", "tag", "cap"] = Field(
        "remove",
        description="what happens to documents that violate the rule. remove: they are removed; "
        "tag: they are kept, and the rule name is added to their tags; cap: only the share "
        "`kept_share` of them is kept, selected by a hash of their ids. For `select_scored` rules "
        "on a toxicity score, the default depends on the scorer: `tag` with the embedded scorer "
        "(linear), because it scores harmless mentions of minorities as toxic, and `remove` with "
        "Detoxify",
    )
    kept_share: float = Field(
        0,
        ge=0,
        lt=1,
        description="share of the violating documents to keep; applies only to the action `cap`",
    )

    @model_validator(mode="before")
    @classmethod
    def _default_signal_to_name(cls, settings: Any) -> Any:
        if isinstance(settings, Mapping) and not settings.get("signal"):
            return {**settings, "signal": settings.get("name", "")}
        return settings

    @model_validator(mode="after")
    def _check_bounds(self) -> SelectionRule:
        number_bounds = [name for name in BOUND_VIOLATIONS if getattr(self, name) is not None]
        label_bounds = [name for name in ("any_of", "none_of") if getattr(self, name)]
        if len(number_bounds) + len(label_bounds) == 0:
            raise ValueError(
                "the rule needs at least one of: "
                f"{', '.join([*BOUND_VIOLATIONS, 'any_of', 'none_of'])}"
            )
        if number_bounds and label_bounds:
            raise ValueError(
                f"the rule sets both numeric bounds ({', '.join(number_bounds)}) and label "
                f"conditions ({', '.join(label_bounds)}), but a signal is either numeric or a "
                "label; delete one of the two"
            )
        if len(label_bounds) > 1:
            raise ValueError("the rule has both 'any_of' and 'none_of'; delete one of them")
        if (self.kept_share > 0) != (self.action == "cap"):
            raise ValueError(
                "'kept_share' must be above 0 if 'action' is 'cap', and must be omitted for other "
                "actions"
            )
        return self

    @property
    def is_about_labels(self) -> bool:
        """Whether the rule is about labels rather than numbers."""
        return bool(self.any_of or self.none_of)

    def find_violations(self, values: pa.Array) -> pa.Array:
        """Return whether each value violates the rule, (n,) bool; null without a value."""
        if self.is_about_labels:
            is_listed = pc.is_in(values, value_set=pa.array(self.any_of or self.none_of))
            is_listed = pc.if_else(pc.is_valid(values), is_listed, None)
            return pc.invert(is_listed) if self.any_of else is_listed
        numbers = values.cast(pa.float64())
        is_known = pc.and_(pc.is_valid(numbers), pc.invert(pc.fill_null(pc.is_nan(numbers), True)))
        is_violated = pa.array([False] * len(values), pa.bool_())
        for bound, is_beyond in BOUND_VIOLATIONS.items():
            if (limit := getattr(self, bound)) is not None:
                is_violated = pc.or_(is_violated, pc.fill_null(is_beyond(numbers, limit), False))
        return pc.if_else(is_known, is_violated, None)

    def find_violated_bounds(self, values: pa.Array) -> pa.Array:
        """Return the bound that each value violates, (n,) float64; null for labels and if none."""
        violated_bounds = pa.nulls(len(values), pa.float64())
        if not self.is_about_labels:
            numbers = values.cast(pa.float64())
            for bound, is_beyond in BOUND_VIOLATIONS.items():
                if (limit := getattr(self, bound)) is not None:
                    violated_bounds = pc.if_else(
                        pc.fill_null(is_beyond(numbers, limit), False), limit, violated_bounds
                    )
        return violated_bounds


def _rules_to_list(rules: Any) -> Any:
    """Convert a table of rules by name to a list of rules in the same order."""
    if not isinstance(rules, Mapping):
        return rules
    return [
        {"name": name, **rule} if isinstance(rule, Mapping) else rule
        for name, rule in rules.items()
    ]


def _get_rule_name(rule: Any) -> Any:
    return rule.get("name") if isinstance(rule, Mapping) else getattr(rule, "name", None)


def _validate_rules_by_name(rules: Any) -> list[SelectionRule]:
    """Validate rules one by one, so that errors give the name of the rule.

    Presets insert rules, so the position of a rule would not identify it.
    """
    if not isinstance(rules, Mapping | list | tuple):
        raise ValueError(
            "the rules must be either one table [….rules.NAME] per rule or a list of rules"
        )
    entries = _rules_to_list(rules)
    rule_names = (
        list(rules) if isinstance(rules, Mapping) else [_get_rule_name(rule) for rule in entries]
    )
    parsed_rules, errors = [], []
    for index, (name, rule) in enumerate(zip(rule_names, entries, strict=True)):
        location = name if isinstance(name, str) else index
        try:
            parsed_rules.append(SelectionRule.model_validate(rule))
        except ValidationError as error:
            errors += [{**detail, "loc": (location, *detail["loc"])} for detail in error.errors()]
    if errors:
        raise ValidationError.from_exception_data("rules", cast(Any, errors))
    return parsed_rules


RuleList = Annotated[tuple[SelectionRule, ...], BeforeValidator(_validate_rules_by_name)]


class SelectConfig(StageConfig):
    """The rules of a stage that selects documents."""

    presets: tuple[PresetName, ...] = Field(
        default=(),
        description="names of published rule sets, which were designed for English and are applied "
        "before the other rules. To change the settings of a published rule, add a rule with the "
        f"same name to `rules`. The sets are: {describe_presets()}",
    )
    rules: RuleList = Field(
        default=(),
        description="rules, applied in the listed order: either a list of tables [[….rules]], "
        "each with a name, or one table [….rules.NAME] per rule",
    )
    seed: Seed = Field(
        0,
        description="random seed for choosing the documents that a rule with the action `cap` "
        "keeps",
    )

    @model_validator(mode="before")
    @classmethod
    def _insert_preset_rules(cls, settings: Any) -> Any:
        """Add the rules of the presets to ``rules``, so that a run records them in full."""
        if not isinstance(settings, Mapping):
            return settings
        preset_names = settings.get("presets", ())
        user_rules = _rules_to_list(settings.get("rules", ()))
        are_lists = isinstance(preset_names, list | tuple) and isinstance(user_rules, list | tuple)
        is_valid = are_lists and all(isinstance(_get_rule_name(rule), str) for rule in user_rules)
        if not is_valid or any(name not in list(PRESET_RULES) for name in preset_names):
            return settings  # validation of the fields reports the error and its place
        preset_rules = {
            name: {"name": name, **rule}
            for preset_name in preset_names
            for name, rule in PRESET_RULES[preset_name].items()
        }
        overridden_rules: dict[str, Any] = {}
        added_rules = []
        for rule in user_rules:
            name = _get_rule_name(rule)
            if name in preset_rules and name not in overridden_rules:
                overridden_rules[name] = (
                    {**preset_rules[name], **rule} if isinstance(rule, Mapping) else rule
                )
            else:
                added_rules.append(rule)
        return {**settings, "rules": [*(preset_rules | overridden_rules).values(), *added_rules]}

    @model_validator(mode="after")
    def _check_unique_rule_names(self) -> SelectConfig:
        rule_names = [rule.name for rule in self.rules]
        if len(set(rule_names)) < len(rule_names):
            raise ValueError(
                "two rules have the same name, but names must be unique because the ledger "
                "records them as reasons; rename one of the rules"
            )
        return self


@dataclass(frozen=True)
class RuleResult:
    """The result of a rule for the n documents of a partition.

    Attributes:
        values: Value of its signal, (n,).
        is_hit: Whether the rule removes or tags the document, (n,) bool.
        is_unknown: Whether the value is missing, (n,) bool.
    """

    rule: SelectionRule
    values: pa.Array
    is_hit: np.ndarray
    is_unknown: np.ndarray


def describe_rule_mismatch(
    rule: SelectionRule, signal_types: Mapping[str, pa.DataType]
) -> str | None:
    """Explain why a rule cannot be applied to signals of these types; None if it can."""
    if rule.signal not in signal_types:
        signal_names = ", ".join(signal_types) or "none"
        return f"there is no signal {rule.signal!r}; the available signals are: {signal_names}"
    signal_type = signal_types[rule.signal]
    if pa.types.is_string(signal_type):
        is_compatible, hint = rule.is_about_labels, "use 'any_of' or 'none_of' in the rule"
    elif pa.types.is_nested(signal_type):
        is_compatible, hint = False, "rules cannot be applied to signals that are lists"
    else:
        is_compatible = not rule.is_about_labels
        hint = f"use {' or '.join(BOUND_VIOLATIONS)} in the rule"
    return None if is_compatible else f"signal {rule.signal!r} is of type {signal_type}: {hint}"


def evaluate_rule(rule: SelectionRule, signal_table: pa.Table, seed: int) -> RuleResult:
    """Apply a rule to the signals of documents.

    Args:
        signal_table: doc_id and all signals of the documents.
        seed: Seed of the choice under a cap.

    Raises:
        HallmarkError: There is no such signal, or the rule does not fit its type.
    """
    if mismatch := describe_rule_mismatch(rule, get_types_by_signal(signal_table.schema)):
        raise HallmarkError(f"rule {rule.name!r}: {mismatch}")
    values = signal_table[rule.signal].combine_chunks()
    is_violated = rule.find_violations(values)
    is_unknown = pc.is_null(is_violated).to_numpy(zero_copy_only=False)
    is_hit = pc.fill_null(is_violated, rule.on_missing == "remove").to_numpy(zero_copy_only=False)
    if rule.action == "cap":
        is_hit = is_hit & (
            hash_ids_to_uniform_draws(signal_table["doc_id"], seed, f"cap {rule.name}")
            >= rule.kept_share
        )
    return RuleResult(rule, values, is_hit, is_unknown)


class SelectionCounts(TypedDict):
    """Count the documents of a partition by what the rules found."""

    unknown_by_signal: dict[str, int]
    """Documents without a value, by signal."""
    removed_by_reason: dict[str, int]
    """Removed documents, by reason."""


def write_selected_partition(
    documents_and_signals: tuple[TablePart, ...],
    config: SelectConfig,
    out: TableWriters,
) -> SelectionCounts:
    """Apply all rules to a partition; documents and signals have the same order.

    Args:
        documents_and_signals: The documents, then the signals of each stage that computed some.
    """
    documents, *signal_partitions = documents_and_signals
    signal_table = concatenate_signal_columns(documents, signal_partitions)
    rule_results = [evaluate_rule(rule, signal_table, config.seed) for rule in config.rules]
    removing_results = [result for result in rule_results if result.rule.action != "tag"]
    tagging_results = [result for result in rule_results if result.rule.action == "tag"]
    carried_columns = [
        name for name in DOCUMENTS.names if name in signal_table.schema.names and name != "doc_id"
    ]
    removed_counts: Counter[str] = Counter()
    start = 0
    for batch in documents.iter_batches():
        batch_rows = slice(start, start + len(batch))
        start = batch_rows.stop
        columns = {
            name: signal_table[name].combine_chunks()[batch_rows] for name in carried_columns
        }
        tags = add_rule_tags(
            batch["tags"],
            {result.rule.name: result.is_hit[batch_rows] for result in tagging_results},
        )
        is_removed = np.logical_or.reduce(
            [
                np.zeros(len(batch), bool),
                *(result.is_hit[batch_rows] for result in removing_results),
            ]
        )
        document_table = pa.table(replace_columns(batch, **columns, tags=tags))
        out.get_table_writer("documents").write(document_table.filter(pa.array(~is_removed)))
        ledger_entries = build_removal_ledger(batch, batch_rows, removing_results)
        out.get_table_writer("ledger").write(ledger_entries)
        removal_entries = ledger_entries.filter(pc.equal(ledger_entries["action"], "removed"))
        removed_counts.update(removal_entries["reason"].to_pylist())
    return {
        "unknown_by_signal": {
            result.rule.signal: int(result.is_unknown.sum()) for result in rule_results
        },
        "removed_by_reason": dict(removed_counts),
    }


def add_rule_tags(tags: pa.Array, is_hit_by_rule: Mapping[str, np.ndarray]) -> pa.Array:
    """Append to the tags of each document the names of the rules that hit; null without any tag."""
    tag_arrays = [pc.list_flatten(tags)]
    row_arrays = [pc.list_parent_indices(tags).to_numpy()]
    for rule_name, is_hit in is_hit_by_rule.items():
        row_arrays.append(np.flatnonzero(is_hit))
        tag_arrays.append(pa.array([rule_name] * len(row_arrays[-1]), pa.string()))
    tag_rows = np.concatenate(row_arrays).astype(np.int64)
    counts = np.bincount(tag_rows, minlength=len(tags))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    sorted_tags = pa.concat_arrays(tag_arrays).take(pa.array(np.argsort(tag_rows, kind="stable")))
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), sorted_tags, mask=pa.array(counts == 0)
    )


def build_removal_ledger(
    batch: pa.RecordBatch, batch_rows: slice, removing_results: Sequence[RuleResult]
) -> pa.Table:
    """Build the ledger: the first rule that removes each document, then others that would have."""
    ledger_pieces = []
    is_removed = np.zeros(len(batch), bool)  # removed by an earlier rule
    for result in removing_results:
        is_hit = result.is_hit[batch_rows]
        for action, is_selected in (
            ("removed", is_hit & ~is_removed),
            ("additional_reason", is_hit & is_removed),
        ):
            row_indices = pa.array(np.flatnonzero(is_selected))
            values = result.values[batch_rows].take(row_indices)
            rule_name = result.rule.name
            is_unknown = pa.array(result.is_unknown[batch_rows][is_selected])
            columns = {
                "score": None if result.rule.is_about_labels else values.cast(pa.float64()),
                "threshold": result.rule.find_violated_bounds(values),
            }
            ledger_pieces.append(
                build_document_ledger_columns(
                    action,
                    pc.if_else(is_unknown, f"{rule_name} unknown", rule_name),
                    batch.take(row_indices),
                    **{name: values for name, values in columns.items() if values is not None},
                )
            )
        is_removed |= is_hit
    return build_ledger_table(*ledger_pieces)


@stage(
    name="select",
    tables={"documents": DOCUMENTS, "ledger": LEDGER},
    libraries=["numpy"],
    reads={"signals": ("signals",)},
)
def select_documents(
    documents: Table, signals: dict[str, Artifact], config: SelectConfig, context: StageContext
) -> None:
    """Select documents by their signals.

    Args:
        signals: Artifacts of the stages that computed signals of these documents, by label. A
            signal with the name of a column of DOCUMENTS is copied into that column.

    Raises:
        HallmarkError: A rule does not fit the signals, or no document remains.
    """
    signal_tables = [artifact["signals"] for artifact in signals.values()]
    results = context.map_partitions(
        write_selected_partition, align_parts(documents, *signal_tables), config
    )
    if documents.row_count and not sum(result.parts["documents"]["rows"] for result in results):
        removed_counts = sum(
            (Counter(result.value["removed_by_reason"]) for result in results), Counter()
        )
        removal_summary = ", ".join(
            f"{name} removed {count:,}" for name, count in removed_counts.most_common()
        )
        raise HallmarkError(
            f"the rules remove {format_all(documents.row_count, 'document')}: {removal_summary}; "
            "relax the bounds of the rules, or delete some rules"
        )
    for name in dict.fromkeys(rule.signal for rule in config.rules):
        unknown_count = sum(result.value["unknown_by_signal"][name] for result in results)
        context.record_measurement(f"unknown_{name}", unknown_count, "documents")
