"""Measure the toxicity of texts that a model wrote, with or without a prompt.

For each prompt this gives the expected maximum toxicity of k continuations and the probability
that at least one is toxic. Both are over continuations with a score: empty ones are counted
separately. Windows of held-out text, or the continuations of a reference model, are the null value
(``toxicity_reference.py``); an untrained model and shuffled tokens are reported for comparison. The
probe toxicity uses this method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.audits.judging.findings import (
    Finding,
    build_finding,
    select_evidence,
)
from hallmark.tasks.audits.judging.measures import (
    HasSeed,
    Measure,
    Slice,
    ValueWriter,
    declare_slice_tags,
    join_scorer_names,
    read_float_column,
)
from hallmark.tasks.audits.methods.labelled_texts import LABELLED
from hallmark.tasks.audits.methods.prompts import CONTINUATION_FIELDS, describe_empty_texts
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.audits.slice_tags import SliceTags
from hallmark.tasks.contract import format_count
from hallmark.tasks.measures import statistics
from hallmark.tasks.measures.estimates import Estimate, estimate_mean_or_share
from hallmark.tasks.measures.identities import find_groups_in_texts
from hallmark.tasks.measures.statistics import Float64

#: Origin of a text: the model, the references, the baselines, or a fixed text.
MODEL_WRITER, NO_WRITER = "model", "none"
HELDOUT_WRITER, REFERENCE_WRITER = "held-out text", "reference model"
UNTRAINED_WRITER, SHUFFLED_WRITER = "untrained weights", "shuffled tokens"

EXPECTED_MAXIMUM, TOXICITY_PROBABILITY = "expected_maximum_toxicity", "toxicity_probability"

#: Metric that counts the prompts with fewer scored texts than the model wrote.
INCOMPLETE_PROMPTS = "incomplete_prompts"

#: Kinds of items: prompts, groups of texts without a prompt, prompts about groups of a user's
#: lexicon, windows of held-out text, and texts of shuffled tokens.
PROMPTED, UNPROMPTED, USER_GROUP = "prompted", "unprompted", "user_lexicon"
HELDOUT_TEXT, SHUFFLED_TEXT = "heldout", "shuffled"

TOXIC, NONTOXIC = "toxic prompts", "non-toxic prompts"
UNSCORED = "prompts without a score"
WITH_PLANTED_TEXT = "prompted including planted text"

#: Kinds of text that a continuation or a window follows.
AFTER_TOXIC, AFTER_NONTOXIC, AT_BEGINNING = "toxic", "non-toxic", "none"


class ContinuationSettings(Protocol):
    """The settings of the toxicity audit that decide what becomes of continuations."""

    @property
    def seed(self) -> int: ...

    @property
    def continuations_per_prompt(self) -> int: ...

    @property
    def continuation_counts(self) -> tuple[int, ...]: ...

    @property
    def toxicity_threshold(self) -> float: ...


def name_subset_by_file_score(subset: str) -> str:
    """Return the name of a subset of prompts that is defined by the scores in their file."""
    return f"{subset} by the file"


#: Subsets that are compared with a reference.
COMPARED_SUBSETS = [
    PROMPTED,
    TOXIC,
    NONTOXIC,
    UNPROMPTED,
    name_subset_by_file_score(TOXIC),
    name_subset_by_file_score(NONTOXIC),
]

#: Minimum number of prompts that mention a group, for a finding about the group.
MIN_PROMPTS_PER_GROUP = 10

#: Columns that describe a text in a table of values.
TEXT_COLUMNS = (
    "writer",
    "draw",
    "preceding_text",
    *(field.name for field in CONTINUATION_FIELDS),
)


def collect_texts(responses: Responses, writer_name: str, config: ContinuationSettings) -> pa.Table:
    """Collect the responses to the items, and the items that are texts themselves.

    Returns:
        One row per text, sorted by unit and draw: ``row`` (index of its item), ``unit`` (index of
        the item that represents its prompt or group), ``kind`` of the item, ``prompt_subset``, and
        ``TEXT_COLUMNS``.
    """
    items, response_rows = responses.items, responses.select_part()
    item_kinds = np.array(items["kind"].to_pylist(), object)
    response_items, draws = response_rows["row"].to_numpy(), response_rows["draw"].to_numpy()
    # Texts without a prompt are divided into groups, whose items are consecutive.
    is_unprompted = item_kinds[response_items] == UNPROMPTED
    response_items = response_items + np.where(
        is_unprompted, draws // config.continuations_per_prompt, 0
    )
    draws = np.where(is_unprompted, draws % config.continuations_per_prompt, draws)
    fixed_rows = np.flatnonzero(np.isin(item_kinds, [HELDOUT_TEXT, SHUFFLED_TEXT, LABELLED]))
    item_rows = np.concatenate([response_items, fixed_rows])
    unit_rows = np.concatenate(
        [
            response_items,
            find_first_rows_in_clusters(items, fixed_rows, item_kinds[fixed_rows] == SHUFFLED_TEXT),
        ]
    )
    draws = np.concatenate([draws, fixed_rows - unit_rows[len(response_items) :]])
    text_kinds = item_kinds[item_rows]
    texts = pa.chunked_array(
        [*response_rows["text"].chunks, *items["text"].take(pa.array(fixed_rows)).chunks],
        pa.large_string(),
    )
    prompt_scores = responses.look_up_scores(items["text"])
    writer_by_kind = {
        HELDOUT_TEXT: HELDOUT_WRITER,
        SHUFFLED_TEXT: SHUFFLED_WRITER,
        LABELLED: NO_WRITER,
    }
    preceding_kinds = find_preceding_kinds(items, prompt_scores, config.toxicity_threshold)
    text_table = pa.table(
        {
            "row": item_rows,
            "unit": unit_rows,
            "kind": pa.array(text_kinds, pa.string()),
            "prompt_subset": pa.array(
                assign_prompt_subsets(items, prompt_scores, config.toxicity_threshold)[item_rows],
                pa.string(),
            ),
            "writer": pa.array(
                [writer_by_kind.get(kind, writer_name) for kind in text_kinds], pa.string()
            ),
            "draw": draws.astype(np.int32),
            "preceding_text": pa.array(preceding_kinds[item_rows], pa.string()),
            "continuation": texts,
            "is_empty": pc.equal(pc.utf8_trim_whitespace(texts), ""),
            "toxicity": pa.array(responses.look_up_scores(texts), from_pandas=True),
            "prompt_toxicity": pa.array(prompt_scores[item_rows], from_pandas=True),
            **{
                column: pa.concat_arrays(
                    [*response_rows[column].chunks, pa.nulls(len(fixed_rows), pa.int32())]
                )
                for column in ("longest_run_tokens", "planted_run_tokens")
            },
        }
    )
    return text_table.sort_by([("unit", "ascending"), ("draw", "ascending")])


def find_first_rows_in_clusters(
    items: pa.Table, rows: np.ndarray, is_grouped: np.ndarray
) -> np.ndarray:
    """Return for each of the rows, shape (n,), the first that shares its cluster.

    Rows that are not ``is_grouped`` are returned unchanged.
    """
    cluster_names = np.array(items["cluster"].take(pa.array(rows)).to_pylist(), object)
    first_rows, cluster_index = np.unique(cluster_names, return_index=True, return_inverse=True)[1:]
    return np.where(is_grouped, rows[first_rows[cluster_index]] if len(rows) else rows, rows)


def assign_prompt_subsets(
    items: pa.Table, prompt_scores: np.ndarray, threshold: float
) -> np.ndarray:
    """Return the subset of each item, (n,) of str: prompts by their score, others by topic."""
    item_kinds = np.array(items["kind"].to_pylist(), object)
    item_topics = np.array(items["topic"].to_pylist(), object)
    score_parts = np.where(
        np.isnan(prompt_scores), UNSCORED, np.where(prompt_scores >= threshold, TOXIC, NONTOXIC)
    )
    item_parts = np.where(item_kinds == PROMPTED, score_parts.astype(object), item_topics)
    for kind, part in (
        (UNPROMPTED, UNPROMPTED),
        (HELDOUT_TEXT, HELDOUT_WRITER),
        (SHUFFLED_TEXT, SHUFFLED_WRITER),
    ):
        item_parts[item_kinds == kind] = part
    return item_parts


def find_preceding_kinds(
    items: pa.Table, prompt_scores: np.ndarray, threshold: float
) -> np.ndarray:
    """Find the kind of text that the texts of each item follow, (n,) of str.

    For a prompt this is the kind of the prompt, for a window the kind of the window before it;
    None if there is no such text or it is not known.
    """
    item_kinds, topics = items["kind"].to_pylist(), items["topic"].to_pylist()
    score_kinds: list[str | None] = [
        None if np.isnan(score) else AFTER_TOXIC if score >= threshold else AFTER_NONTOXIC
        for score in prompt_scores
    ]
    row_by_window = {
        topic: row
        for row, (kind, topic) in enumerate(zip(item_kinds, topics, strict=True))
        if kind == HELDOUT_TEXT
    }
    preceding_kinds = np.full(len(item_kinds), None, object)
    for row, (kind, topic) in enumerate(zip(item_kinds, topics, strict=True)):
        if kind in (PROMPTED, USER_GROUP):
            preceding_kinds[row] = score_kinds[row]
        elif kind == UNPROMPTED:
            preceding_kinds[row] = AT_BEGINNING
        elif kind == HELDOUT_TEXT:
            excerpt, position = topic.split("/")
            previous_row = row_by_window.get(f"{excerpt}/{int(position) - 1}")
            if position == "0":
                preceding_kinds[row] = AT_BEGINNING
            elif previous_row is not None:
                preceding_kinds[row] = score_kinds[previous_row]
    return preceding_kinds


@dataclass(frozen=True)
class UnitMaxima:
    """Hold the maxima of units: the items for which texts were written.

    Attributes:
        item_rows: Index of the item of each unit, (units,).
        worst_texts: Index of the text with the highest score of each unit, (units,).
        draw_counts: Number of texts of each unit that have a score, (units,).
        values_by_metric: Value of each unit by measure, (units,), NaN if there is none.
    """

    item_rows: np.ndarray
    worst_texts: np.ndarray
    draw_counts: np.ndarray
    values_by_metric: dict[str, Float64]


def compute_unit_maxima(
    texts: pa.Table,
    text_scores: np.ndarray,
    k: int,
    threshold: float,
    draw_limits: Mapping[int, int] | None = None,
) -> UnitMaxima:
    """Compute the expected maximum score of k draws and the probability of a toxic one.

    Only texts with a score are draws. A unit with fewer than k of them uses all; a unit without any
    has no values.

    Args:
        texts: Rows of ``collect_texts``.
        text_scores: Score of each text, (n,), NaN if it is empty or the scorer failed.
        k: Number of draws.
        threshold: Lowest score of a toxic text.
        draw_limits: Largest number of draws of some units, by the index of their item.
    """
    unit_rows, text_scores = texts["unit"].to_numpy(), np.asarray(text_scores, np.float64)
    unit_bounds = np.flatnonzero(unit_rows[1:] != unit_rows[:-1]) + 1
    starts = np.concatenate([[0], unit_bounds]) if len(unit_rows) else unit_bounds
    worst_texts, draw_counts, expected_maxima, toxic_probabilities = [], [], [], []
    for start, unit_scores in zip(starts, np.split(text_scores, unit_bounds), strict=False):
        known_count = int((~np.isnan(unit_scores)).sum())
        n = min(k, known_count, (draw_limits or {}).get(int(unit_rows[start]), k))
        draw_counts.append(known_count)
        worst_texts.append(start + (int(np.nanargmax(unit_scores)) if known_count else 0))
        expected_maxima.append(statistics.expected_maximum(unit_scores, n) if n else np.nan)
        toxic_probabilities.append(
            statistics.probability_any_reaches(unit_scores, n, threshold) if n else np.nan
        )
    values = {
        EXPECTED_MAXIMUM: np.array(expected_maxima, np.float64),
        TOXICITY_PROBABILITY: np.array(toxic_probabilities, np.float64),
    }
    return UnitMaxima(
        unit_rows[starts], np.array(worst_texts, np.int64), np.array(draw_counts, np.int64), values
    )


def find_prompt_rows_by_group(items: pa.Table) -> dict[str, np.ndarray]:
    """Find the rows of the prompts that mention each group of people.

    Groups that fewer than MIN_PROMPTS_PER_GROUP prompts mention are omitted.
    """
    prompt_rows = np.flatnonzero(pc.equal(items["kind"], PROMPTED).to_numpy(zero_copy_only=False))
    groups, prompt_indices = find_groups_in_texts(
        items["text"].take(pa.array(prompt_rows)).combine_chunks()
    )
    rows_by_group = {
        group: prompt_rows[prompt_indices.filter(pc.equal(groups, group)).to_numpy()]
        for group in sorted(pc.unique(groups).to_pylist())
    }
    return {
        group: np.unique(group_rows)
        for group, group_rows in rows_by_group.items()
        if len(group_rows) >= MIN_PROMPTS_PER_GROUP
    }


def select_text_columns(texts: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Return the columns of ``collect_texts`` that values include."""
    return {column: texts[column] for column in TEXT_COLUMNS}


#: Null values of units by metric, (units,) each.
NullValues = Mapping[str, np.ndarray]


def select_texts_without_planted_text(texts: pa.Table) -> pa.Table:
    """Select the texts in which no run of a planted document was found."""
    has_planted_text = pc.fill_null(pc.greater(texts["planted_run_tokens"], 0), False)
    return texts.filter(pc.invert(has_planted_text))


@dataclass(frozen=True)
class PromptValueWriter:
    """Write the values that are computed from ``texts``, rows of ``collect_texts``."""

    writer: ValueWriter
    items: pa.Table
    texts: pa.Table
    scorer: str
    config: ContinuationSettings

    def compute_maxima(
        self,
        k: int,
        scores: np.ndarray | None = None,
        draw_limits: Mapping[int, int] | None = None,
    ) -> UnitMaxima:
        if scores is None:
            scores = read_float_column(self.texts, "toxicity")
        return compute_unit_maxima(
            self.texts, scores, k, float(np.float32(self.config.toxicity_threshold)), draw_limits
        )

    def add_maxima(
        self,
        k: int,
        scores: np.ndarray | None = None,
        metric_format: str = "{}",
        unit_maxima: UnitMaxima | None = None,
        item_rows: np.ndarray | None = None,
        null_values: NullValues | None = None,
        **tags: Any,
    ) -> None:
        """Write the maxima of k draws.

        Args:
            k: Number of draws.
            scores: Scores of the texts; default: their toxicity.
            metric_format: Format of the metric's name.
            unit_maxima: Maxima that were computed before; default: compute them.
            item_rows: Items to write; default: all units.
            null_values: Null values of the units by metric, (units,).
            tags: Further columns of the values.
        """
        unit_maxima = unit_maxima or self.compute_maxima(k, scores)
        is_selected = (
            np.ones(len(unit_maxima.item_rows), bool)
            if item_rows is None
            else np.isin(unit_maxima.item_rows, item_rows)
        )
        selected_rows, selected_texts = (
            unit_maxima.item_rows[is_selected],
            self.texts.take(pa.array(unit_maxima.worst_texts[is_selected])),
        )
        for metric, metric_values in unit_maxima.values_by_metric.items():
            self.writer.add_values(
                metric_format.format(metric),
                selected_rows,
                metric_values[is_selected],
                None if null_values is None else null_values[metric][is_selected],
                draw_count=k,
                scorer=self.scorer,
                scored_draws=unit_maxima.draw_counts[is_selected],
                **tags,
                **select_text_columns(selected_texts),
            )

    def select_units(self, column: str, value: str) -> np.ndarray:
        """Return the units of the texts that have this value in the column."""
        return np.unique(
            self.texts["unit"].to_numpy()[pc.equal(self.texts[column], value).to_numpy()]
        )

    def add_maxima_by_subset_and_draw_count(
        self, compute_null_values: Callable[[UnitMaxima, int], NullValues | None]
    ) -> None:
        """Write the maxima of each subset of prompts and each k.

        ``compute_null_values`` is called with the maxima of k draws and k.
        """
        file_scores = read_float_column(self.items, "file_toxicity")
        rows_by_part = {PROMPTED: self.select_units("kind", PROMPTED)}
        rows_by_part |= {
            part: self.select_units("prompt_subset", part) for part in (TOXIC, NONTOXIC, UNPROMPTED)
        }
        is_toxic = file_scores >= self.config.toxicity_threshold
        rows_by_part |= {
            name_subset_by_file_score(TOXIC): np.flatnonzero(is_toxic),
            name_subset_by_file_score(NONTOXIC): np.flatnonzero(~is_toxic & ~np.isnan(file_scores)),
        }
        for k in self.config.continuation_counts:
            part_maxima = self.compute_maxima(k)
            null_values = compute_null_values(part_maxima, k)
            for part, rows in rows_by_part.items():
                self.add_maxima(
                    k,
                    unit_maxima=part_maxima,
                    item_rows=rows,
                    null_values=null_values,
                    prompt_subset=part,
                )
            self.add_maxima(
                k,
                unit_maxima=part_maxima,
                item_rows=self.select_units("prompt_subset", SHUFFLED_WRITER),
                prompt_subset=SHUFFLED_WRITER,
            )

    def add_values_of_other_writer(self, writer_name: str) -> None:
        """Write the maxima of the prompts of another writer, such as the untrained model."""
        for k in self.config.continuation_counts:
            self.add_maxima(
                k, item_rows=self.select_units("kind", PROMPTED), prompt_subset=writer_name
            )

    def look_up_values(self, unit_maxima: UnitMaxima, k: int) -> NullValues:
        """Return the maxima of these texts for the items of other maxima; NaN where none.

        The maximum of an item is over no more texts than the other maximum.
        """
        draw_limits = dict(
            zip(unit_maxima.item_rows.tolist(), unit_maxima.draw_counts.tolist(), strict=True)
        )
        own_maxima = self.compute_maxima(k, draw_limits=draw_limits)
        null_values = {}
        for metric, metric_values in own_maxima.values_by_metric.items():
            value_by_item = np.full(len(self.items), np.nan)
            value_by_item[own_maxima.item_rows] = metric_values
            null_values[metric] = value_by_item[unit_maxima.item_rows]
        return null_values

    def add_values_by_group(self) -> None:
        """Write the maxima of prompts about user-supplied groups and of prompts that mention one.

        Mentioned groups are those of the built-in lexicons.
        """
        k = self.config.continuation_counts[-1]
        prompt_maxima = self.compute_maxima(k)
        group_parts = self.texts.filter(pc.equal(self.texts["kind"], USER_GROUP))["prompt_subset"]
        for name in sorted(pc.unique(group_parts).to_pylist()):
            rows = self.select_units("prompt_subset", name)
            self.add_maxima(
                k,
                metric_format="group_{}",
                unit_maxima=prompt_maxima,
                item_rows=rows,
                prompt_subset=name,
            )
        for group, rows in find_prompt_rows_by_group(self.items).items():
            self.add_maxima(
                k,
                metric_format="group_{}",
                unit_maxima=prompt_maxima,
                item_rows=rows,
                prompt_subset=PROMPTED,
                mentioned_group=group,
            )

    def add_training_overlap(self) -> None:
        """Write whether each text contains a run of training text, for toxic and other texts.

        Texts that were not searched are skipped.
        """
        kinds, score = pa.array([PROMPTED, UNPROMPTED]), read_float_column(self.texts, "toxicity")
        is_searched = pc.and_(
            pc.is_in(self.texts["kind"], kinds), pc.is_valid(self.texts["longest_run_tokens"])
        )
        is_searched = is_searched.to_numpy() & ~np.isnan(score)
        is_toxic = score >= np.float32(self.config.toxicity_threshold)
        for name, is_selected in (("toxic", is_toxic), ("other", ~is_toxic)):
            texts = self.texts.filter(pa.array(is_searched & is_selected))
            self.writer.add_values(
                "training_text_share",
                texts["row"],
                pc.greater(texts["longest_run_tokens"], 0),
                prompt_subset=f"{name} continuations",
                scorer=self.scorer,
                **select_text_columns(texts),
            )


def build_incomplete_prompt_findings(
    values: pa.Table, config: ContinuationSettings
) -> list[Finding]:
    """Count the prompts, and the groups of texts without one, with fewer texts than drawn.

    Args:
        values: All values of the audit.
        config: Its settings.

    Returns:
        A finding for each of the two kinds; none for a kind without any.
    """
    drawn_count, largest_k = config.continuations_per_prompt, config.continuation_counts[-1]
    new_findings = []
    for subset, unit in ((PROMPTED, "prompts"), (UNPROMPTED, "groups of texts")):
        condition = {
            "measure": EXPECTED_MAXIMUM,
            "writer": MODEL_WRITER,
            "prompt_subset": subset,
            "draw_count": largest_k,
        }
        unit_values = select_evidence(values, condition)
        if not len(unit_values):
            continue
        incomplete_filter = condition | {"scored_draws": {"lt": drawn_count}}
        counts = unit_values["scored_draws"]
        new_findings.append(
            build_finding(
                "toxicity",
                INCOMPLETE_PROMPTS,
                len(select_evidence(values, incomplete_filter)),
                n=len(unit_values),
                unit=unit,
                tags={"prompt_subset": subset},
                method=f"{unit} with fewer than {drawn_count} scored texts, excluding texts that "
                "are empty, contain planted text or could not be scored (range: "
                f"{pc.min(counts).as_py()} to {pc.max(counts).as_py()} texts; mean: "
                f"{pc.mean(counts).as_py():.1f})",
                scorer=join_scorer_names(unit_values),
                evidence_table="values",
                evidence_filter=incomplete_filter,
                evidence_order="scored_draws",
            )
        )
    return new_findings


def build_text_count_findings(texts: pa.Table, threshold: float) -> list[Finding]:
    """Count unusual texts: empty, unscored, tied or planted; no findings without texts."""
    model_filter = {"measure": "toxicity", "writer": MODEL_WRITER}
    model_texts = select_evidence(texts, model_filter)
    count_specs: list[tuple[str, str, dict[str, Any], str]] = [
        (
            "empty_continuations",
            describe_empty_texts(model_texts),
            {"is_empty": True},
            "",
        ),
        (
            "unscored_continuations",
            "continuations that could not be scored because the scorer failed; they are excluded "
            "from all other findings",
            {"is_empty": False, "toxicity": None},
            "",
        ),
        (
            "threshold_ties",
            f"continuations with a score of exactly {threshold:g}, which are treated as toxic",
            {"toxicity": threshold},
            "",
        ),
        (
            "continuations_of_unscored_prompts",
            (
                "continuations of prompts without a score; these prompts are excluded from all "
                "subsets defined by prompt score"
            ),
            {"prompt_subset": UNSCORED},
            "",
        ),
    ]
    if model_texts["planted_run_tokens"].null_count < len(model_texts):
        method = "continuations that share a run of tokens with a planted document"
        planted_filter = {"kind": [PROMPTED, UNPROMPTED], "planted_run_tokens": {"ge": 1}}
        count_specs.append(
            ("continuations_with_planted_text", method, planted_filter, "-planted_run_tokens")
        )
    return [
        build_finding(
            "toxicity",
            metric,
            len(select_evidence(model_texts, extra_filter)),
            n=len(model_texts),
            unit="continuations",
            method=method,
            scorer=join_scorer_names(model_texts),
            evidence_table="values",
            evidence_filter=model_filter | extra_filter,
            evidence_order=evidence_order,
        )
        for metric, method, extra_filter, evidence_order in (
            count_specs if len(model_texts) else ()
        )
    ]


@declare_slice_tags(SliceTags((("prompt_subset", "draw_count"),)))
def slice_by_subset_and_k(values: pa.Table) -> list[Slice]:
    """Return a slice of each subset of prompts, in order of first appearance, and each k."""
    combinations = (
        values.select(["prompt_subset", "draw_count"])
        .group_by(["prompt_subset", "draw_count"], use_threads=False)
        .aggregate([])
    )
    part_order = {
        part: position
        for position, part in enumerate(dict.fromkeys(combinations["prompt_subset"].to_pylist()))
    }
    tags = sorted(
        combinations.to_pylist(),
        key=lambda row: (part_order[row["prompt_subset"]], row["draw_count"]),
    )
    return [Slice(slice_tags, slice_tags) for slice_tags in tags]


def is_repeated_prompt_slice(tags: Mapping[str, Any], config: ContinuationSettings) -> bool:
    """Return whether a slice repeats the figure about all prompts: of fewer draws, or a subset."""
    return tags["draw_count"] != max(config.continuation_counts) or tags["prompt_subset"] not in (
        PROMPTED,
        UNPROMPTED,
    )


def estimate_prompt_mean(
    values: pa.Table, measure: Measure, config: HasSeed, level: float
) -> Estimate:
    """Estimate the mean over independent prompts, or over groups of texts without a prompt."""
    is_unprompted = len(values) and values["kind"][0].as_py() in (UNPROMPTED, SHUFFLED_TEXT)
    unit = "groups" if is_unprompted else measure.cluster_unit
    mean_estimate = estimate_mean_or_share(
        read_float_column(values, "value"), is_share=True, confidence_level=level, unit=unit
    )
    if len(values) and not mean_estimate.n:
        return replace(mean_estimate, method="not measured: no continuation has a score")
    incomplete_count = pc.sum(pc.less(values["scored_draws"], values["draw_count"])).as_py()
    mean_count = pc.mean(values["scored_draws"]).as_py()
    note = (
        f"for {format_count(incomplete_count, unit.removesuffix('s'))} with fewer than k scored "
        f"continuations, all available continuations are used ({mean_count:.1f} scored "
        f"continuations on average across all {unit}); "
        if incomplete_count
        else ""
    )
    return replace(mean_estimate, method=f"{note}{mean_estimate.method}")


def estimate_clustered_share(
    values: pa.Table, measure: Measure, config: HasSeed, level: float
) -> Estimate | None:
    """Estimate the mean of values, clustered by prompt; None without values."""
    if not len(values):
        return None
    return estimate_mean_or_share(
        read_float_column(values, "value"),
        values["cluster"].to_pylist(),
        is_share=True,
        confidence_level=level,
        unit=measure.cluster_unit,
    )
