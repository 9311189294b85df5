"""Report how many documents each corpus stage kept, and what it removed or changed and why."""

from __future__ import annotations

from collections import Counter

from hallmark.reports.page import charts
from hallmark.reports.page.document import (
    BulletList,
    Chart,
    DataTable,
    InlineContent,
    InlineElement,
    Paragraph,
    Section,
)
from hallmark.reports.page.figures import Figure, format_number
from hallmark.reports.sections.corpus_figures import PROFILE, SCORE_FILTER, CorpusFigures
from hallmark.reports.sections.stage_titles import name_corpus_stage
from hallmark.tasks.contract import ACCOUNT_TERMS
from hallmark.tasks.corpus.toxicity.actions import SCORER_WARNINGS, choose_default_action

#: Label of the stage that measures the search for near duplicates on invented texts.
NEAR_DUPLICATE_EVALUATION = "evaluate_near_duplicates"

#: Largest number of sources in the table of documents removed for toxicity.
MAX_SOURCES = 15


def build_preprocessing_section(corpus: CorpusFigures) -> Section:
    return Section(
        "Preprocessing, cleaning, labelling",
        [
            Paragraph(
                [
                    "Hallmark accounts for the documents and bytes of every stage and checks, "
                    "when the stage commits, that input + added = kept + removed rows + removed "
                    "spans + quarantined + replaced. The ingest stage counts raw bytes; later "
                    "stages count bytes of text. Every removal or change is recorded as a row in "
                    "the stage's ledger."
                ]
            )
        ],
        [
            build_stage_counts_section(corpus),
            build_ledger_reasons_section(corpus),
            build_published_rules_section(corpus),
            build_toxicity_removal_section(corpus),
            build_tagged_documents_section(corpus),
            build_near_duplicates_section(corpus),
        ],
    )


def build_stage_counts_section(corpus: CorpusFigures) -> Section:
    """Build the accounts of each stage in documents and bytes, with a chart of kept documents."""
    section = Section("Flow of documents")
    stages = corpus.list_distinct_values("stage_accounts", "stage")
    columns = ["stage", *(term.replace("_", " ") for term in ACCOUNT_TERMS), "share removed"]
    kept_documents: list[tuple[str, Figure]] = []
    for unit, unit_label in (("rows", "documents"), ("bytes", "bytes")):
        rows: list[list[InlineElement]] = []
        for stage_label in stages:
            conditions = {"stage": stage_label, "unit": unit}
            cells = [
                corpus.book.add_computed_figure(
                    f"flow-{stage_label}-{unit}-{term}",
                    f"{stage_label}: {term.replace('_', ' ')}",
                    unit_label,
                    (PROFILE, "stage_accounts"),
                    conditions,
                    value_column=term,
                )
                for term in ACCOUNT_TERMS
            ]
            removed_share = corpus.book.add_computed_figure(
                f"flow-{stage_label}-{unit}-rate",
                f"{stage_label}: share of the input removed",
                "share",
                (PROFILE, "stage_accounts"),
                conditions,
                aggregate="ratio",
                value_column="removed_rows+removed_spans/input",
                missing_reason="the stage had no input",
            )
            rows.append([name_corpus_stage(stage_label), *cells, removed_share])
            if unit == "rows":
                kept_documents.append((stage_label, cells[ACCOUNT_TERMS.index("kept")]))
        numeric = frozenset(range(1, len(columns)))
        note = (
            "“Replaced” is the number of bytes before the replacements minus the number after "
            "them, so a longer replacement results in a negative number."
            if unit == "bytes"
            else ""
        )
        section.add_blocks(
            DataTable(f"Counts of {unit_label} by stage", columns, rows, numeric, note)
        )
    if kept_documents:
        drawing = charts.BarChart(
            [stage for stage, _ in kept_documents],
            [figure.value or 0 for _, figure in kept_documents],
            "documents",
        )
        description = ", ".join(
            f"{stage_label} {figure.short_text}" for stage_label, figure in kept_documents
        )
        section.blocks.insert(
            0,
            Chart(
                "flow",
                drawing,
                f"Documents kept by each stage: {description}.",
                "Documents kept by each stage; the numbers are in the “kept” column.",
            ),
        )
    return section


def build_ledger_reasons_section(corpus: CorpusFigures) -> Section:
    """Build the table of reasons in the ledgers, in order of stages."""
    section = Section("Removals and changes by reason")
    reason_rows = corpus.profile["ledger_summary"].read(["stage", "action", "reason", "rows"])
    reason_totals = reason_rows.group_by(["stage", "action", "reason"]).aggregate([("rows", "sum")])
    stage_order = {label: index for index, label in enumerate(corpus.stage_artifacts)}
    sorted_reasons = sorted(
        reason_totals.to_pylist(),
        key=lambda entry: (
            stage_order.get(entry["stage"], -1),
            -entry["rows_sum"],
            entry["action"],
            entry["reason"],
        ),
    )
    # Each stage keeps its largest reason: a limit in stage order would drop the last stages.
    largest_reasons = sorted(sorted_reasons, key=lambda entry: -entry["rows_sum"])[
        : corpus.max_rows
    ]
    first_of_stage = {entry["stage"]: entry for entry in reversed(sorted_reasons)}.values()
    rows: list[list[InlineElement]] = []
    for row in (
        entry for entry in sorted_reasons if entry in largest_reasons or entry in first_of_stage
    ):
        conditions = {"action": row["action"], "reason": row["reason"]}
        label = f"{row['stage']}: {row['action']}, {row['reason']}"
        size_column = "bytes_after" if row["action"] == "added" else "bytes_before"
        source = (row["stage"], "ledger")
        rows.append(
            [
                name_corpus_stage(row["stage"]),
                row["action"],
                row["reason"],
                corpus.book.add_computed_figure(
                    label, label, "rows", source, conditions, aggregate="count"
                ),
                corpus.book.add_computed_figure(
                    f"{label}-bytes",
                    f"number of bytes, {label}",
                    "bytes",
                    source,
                    conditions,
                    value_column=size_column,
                ),
            ]
        )
    if not rows:
        section.add_blocks(Paragraph(["Nothing."]))
        return section
    columns = ["stage", "action", "reason", "rows", "bytes affected"]
    note = (
        "“Bytes affected” is the size of the removed, replaced or added text; for replaced text, "
        "it is the size before the change. The byte counts above exclude the replacement text."
    )
    if len(sorted_reasons) > len(rows):
        note += (
            f" The table shows {len(rows)} of {len(sorted_reasons):,} reasons: those with the "
            "most rows, and the most frequent reason in every stage; the profile's ledger_summary "
            "table lists all of them."
        )
    section.add_blocks(DataTable("Reasons in the ledgers", columns, rows, frozenset({3, 4}), note))
    return section


def build_published_rules_section(corpus: CorpusFigures) -> Section:
    """Build the table of what published quality rules would remove."""
    section = Section("Published quality rules")
    configured_rules = {
        rule["name"]
        for artifact in corpus.stage_artifacts.values()
        if artifact.stage == "select"
        for rule in artifact.manifest["parts"]["config"]["rules"]
    }
    rows: list[list[InlineElement]] = []
    for row in corpus.profile["published_rules"].read(["preset", "rule"]).to_pylist():
        conditions = {"preset": row["preset"], "rule": row["rule"]}
        violation_share = corpus.book.add_computed_figure(
            f"published-{row['rule']}-rate",
            f"{row['rule']}: share of documents that violate the rule",
            "share",
            (PROFILE, "published_rules"),
            conditions,
            aggregate="ratio",
            value_column="violations/documents",
            missing_reason="no document",
        )
        violation_count = corpus.add_sum_figure(
            "published_rules", "violations", "documents", row["rule"], **conditions
        )
        rows.append(
            [
                row["rule"],
                violation_count,
                violation_share,
                "yes" if row["rule"] in configured_rules else "no",
            ]
        )
    if not rows:
        section.add_blocks(Paragraph(["Quality signals were not computed."]))
        return section
    section.add_blocks(
        Paragraph(
            [
                "The Gopher, C4 and FineWeb rules were designed for English web pages; most "
                "of them say little about other languages and code. The table shows how many "
                "input documents violate each rule, whether or not the rule is configured."
            ]
        )
    )
    columns = ["rule", "documents that violate the rule", "share", "configured"]
    section.add_blocks(DataTable("Published rules", columns, rows, frozenset({1, 2})))
    return section


def build_toxicity_removal_section(corpus: CorpusFigures) -> Section:
    """Build the table of documents that toxicity rules removed from each source."""
    outcome = corpus.describe_toxicity_outcome()
    section = Section(f"Documents {outcome} by the toxicity filter")
    if action_texts := describe_toxicity_actions(corpus):
        section.add_blocks(BulletList(action_texts))
    rules = corpus.list_toxicity_removal_rules()
    if not rules:
        section.add_blocks(Paragraph(["No rule that uses the toxicity score removed documents."]))
        return section
    reasons = [reason for rule in rules for reason in list_removal_reasons(rule)]
    removal_conditions = {"stage": SCORE_FILTER, "action": "removed", "reason": reasons}
    input_conditions = {"stage": SCORE_FILTER, "unit": "rows"}
    removed_counts = Counter[str]()
    for row in corpus.profile["ledger_summary"].read().to_pylist():
        if row["stage"] == SCORE_FILTER and row["action"] == "removed" and row["reason"] in reasons:
            removed_counts[row["source"]] += row["rows"]
    account_rows = (
        corpus.profile["stage_accounts"].read(["stage", "unit", "source", "input"]).to_pylist()
    )
    input_counts = {
        account_row["source"]: account_row["input"]
        for account_row in account_rows
        if input_conditions.items() <= account_row.items()
    }
    source_names = sorted(
        input_counts, key=lambda name: (-removed_counts[name], -input_counts[name], name)
    )
    rows: list[list[InlineElement]] = []
    for name in source_names[:MAX_SOURCES]:
        cells = [
            corpus.book.add_computed_figure(
                f"filter-{name}-{column}",
                f"{name}: {column_label}",
                "documents",
                (PROFILE, table),
                {**conditions, "source": name},
                value_column=column,
            )
            for table, conditions, column, column_label in (
                ("stage_accounts", input_conditions, "input", "input documents"),
                ("ledger_summary", removal_conditions, "rows", "documents removed for toxicity"),
            )
        ]
        removed_share = (
            format_number(removed_counts[name] / input_counts[name], "share")
            if input_counts[name]
            else "–"
        )
        rows.append([name, *cells, removed_share])
    if not rows:
        section.add_blocks(Paragraph(["The filter received no documents."]))
        return section
    columns = ["source", "input", "removed", "share removed"]
    note = (
        f"Rules: {', '.join(rules)}. A document that several rules in the {SCORE_FILTER} stage "
        "would remove is counted only under the first of these rules. “Input” is the number of "
        "documents that this stage received; “Removed documents by stage” shows shares of all "
        "documents that were read."
    )
    if len(source_names) > MAX_SOURCES:
        note += (
            f" The table shows {MAX_SOURCES} of {len(source_names):,} sources: those from which "
            "the most documents were removed; the profile's ledger_summary table lists all of "
            "them."
        )
    section.add_blocks(DataTable("Removed for toxicity", columns, rows, frozenset({1, 2, 3}), note))
    return section


def list_removal_reasons(rule: str) -> list[str]:
    """Return the ledger reasons of a rule: its name, and its name for documents without a score."""
    return [rule, f"{rule} unknown"]


def describe_toxicity_actions(corpus: CorpusFigures) -> list[InlineContent]:
    """Return for each rule on a toxicity score what it did, and a warning about its scorer."""
    descriptions: list[InlineContent] = []
    for rule, action, scorer_kind in corpus.list_toxicity_actions():
        if action == "tag":
            documents = corpus.add_sum_figure(
                "tag_counts",
                "tagged_documents",
                "documents",
                f"documents that {rule} tagged",
                stage=SCORE_FILTER,
                rule=rule,
            )
            verb, kept = "tagged", " and kept them"
        else:
            documents = corpus.add_sum_figure(
                "ledger_summary",
                "rows",
                "documents",
                f"documents that {rule} removed",
                stage=SCORE_FILTER,
                action="removed",
                reason=list_removal_reasons(rule),
            )
            verb, kept = "removed", ""
        explanation = explain_toxicity_action(action, scorer_kind)
        descriptions.append([f"The {rule} rule {verb} ", documents, f"{kept}. {explanation}"])
    return descriptions


def explain_toxicity_action(action: str, scorer_kind: str) -> str:
    """Return whether the config chose the action, and a warning if the scorer needs one."""
    default_action = choose_default_action(scorer_kind)
    origin = (
        "This is the rule's default action."
        if action == default_action
        else "The config sets the rule's action."
    )
    return " ".join([origin, SCORER_WARNINGS.get(scorer_kind, "")]).rstrip()


def build_tagged_documents_section(corpus: CorpusFigures) -> Section:
    """Build the table of documents that rules tagged and kept, by rule and source."""
    section = Section("Documents that rules tagged and kept")
    tag_rows = corpus.profile["tag_counts"].read().to_pylist()
    tag_rows.sort(key=lambda row: -row["tagged_documents"])
    rows: list[list[InlineElement]] = []
    for row in tag_rows[: corpus.max_rows]:
        conditions = {name: row[name] for name in ("stage", "rule", "source")}
        label = f"{row['source']}, {row['rule']}"
        cells = [
            corpus.add_sum_figure(
                "tag_counts", column, "documents", f"{label}: {column_label}", **conditions
            )
            for column, column_label in (
                ("documents", "documents kept by the stage"),
                ("tagged_documents", "documents tagged"),
            )
        ]
        tagged_share = format_number(row["tagged_documents"] / row["documents"], "share")
        rows.append([row["rule"], row["source"], *cells, tagged_share])
    if not rows:
        section.add_blocks(Paragraph(["No rule tags documents."]))
        return section
    columns = ["rule", "source", "documents kept", "tagged", "share tagged"]
    note = (
        "A tagged document stays in the corpus, and the model trains on it. The document's “tags” "
        "column contains the rule name."
    )
    if len(tag_rows) > len(rows):
        note += (
            f" The table shows {len(rows)} of {len(tag_rows):,} rows, those with the most tagged "
            "documents first; the tag_counts table lists all of them."
        )
    section.add_blocks(DataTable("Tagged documents", columns, rows, frozenset({2, 3, 4}), note))
    return section


def build_near_duplicates_section(corpus: CorpusFigures) -> Section:
    """Build the table of verified near-duplicate pairs by similarity, and describe the search."""
    section = Section("Near-duplicates")
    rows: list[list[InlineElement]] = []
    for row in corpus.profile["duplicates"].read().to_pylist():
        conditions = {"stage": row["stage"], "similarity": row["similarity"]}
        bucket_start = row["similarity"]  # the last bucket holds only identical sets
        bucket_label = (
            f"{bucket_start:.2f} to {bucket_start + 0.05:.2f}" if bucket_start < 1 else "1.00"
        )
        label = f"number of pairs with similarity {bucket_label}, {row['stage']}"
        rows.append(
            [
                bucket_label,
                name_corpus_stage(row["stage"]),
                corpus.add_sum_figure("duplicates", "pairs", "pairs", label, **conditions),
            ]
        )
    if rows:
        columns = ["Jaccard similarity", "stage", "pairs"]
        section.add_blocks(
            DataTable("Verified pairs of near-duplicates", columns, rows, frozenset({2}))
        )
    elif any("pairs" in artifact.tables for artifact in corpus.stage_artifacts.values()):
        section.add_blocks(Paragraph(["No near-duplicates were found."]))
    else:
        section.add_blocks(Paragraph(["The corpus was not searched for near-duplicates."]))
    for label, artifact in corpus.stage_artifacts.items():
        if (
            "search_summary" in artifact.tables
            and "compared_pairs" in artifact["search_summary"].columns
        ):
            section.add_blocks(describe_near_duplicate_search(corpus, label))
    if NEAR_DUPLICATE_EVALUATION in corpus.stage_artifacts:
        section.add_blocks(build_near_copy_recall_table(corpus))
    return section


def build_near_copy_recall_table(corpus: CorpusFigures) -> DataTable:
    """Build the table of the recall of the search on invented texts, by script."""
    source = (NEAR_DUPLICATE_EVALUATION, "near_copy_recall")
    rows_by_script: dict[str, list[InlineElement]] = {}
    changes: dict[str, None] = {}
    false_matches: Counter[str] = Counter()
    for row in corpus.stage_artifacts[source[0]][source[1]].read().to_pylist():
        script, change = row["script"], row["change"]
        changes[change] = None
        false_matches[script] += row["false_matches"]
        recall = corpus.book.add_computed_figure(
            f"near-copy-recall-{script}-{change}",
            f"near-duplicate recall, {script}: {change}",
            "share",
            source,
            {"script": script, "change": change},
            aggregate="last",
            value_column="recall",
            low=row["recall_low"],
            high=row["recall_high"],
            confidence_level=0.95,
            n=row["planted"],
            method="Wilson interval with invented texts as units",
        )
        rows_by_script.setdefault(script, [script]).extend([recall, recall.interval_or_dash])
    columns = ["script", *(name for change in changes for name in (change, "95 % interval"))]
    note = (
        "Recall was measured on invented texts, not on this corpus. Each text has one "
        "near-duplicate, and the search used this corpus's settings. A near-duplicate is treated "
        "as found if the search removed it or its original. Number of unrelated texts that the "
        f"search removed as duplicates of each other: {false_matches.total():,}."
    )
    return DataTable(
        "Recall on planted near-duplicates, by script",
        columns,
        list(rows_by_script.values()),
        frozenset(range(1, len(columns))),
        note,
    )


def describe_near_duplicate_search(corpus: CorpusFigures, stage_label: str) -> Paragraph:
    """Return how near duplicates were searched for, and what may have been missed."""
    config = corpus.stage_artifacts[stage_label].manifest["parts"]["config"]

    def add_search_figure(column: str, description: str, unit: str) -> Figure:
        source = (stage_label, "search_summary")
        return corpus.book.add_computed_figure(
            f"{stage_label}-{column}", description, unit, source, value_column=column
        )

    return Paragraph(
        [
            f"The {stage_label} stage compared ",
            add_search_figure("compared_pairs", "number of compared pairs", "pairs"),
            (
                " and removed each document whose similarity to a kept document is "
                f"{config['similarity_threshold']:g} or higher. Pairs with a lower similarity, "
                f"down to {config['cluster_threshold']:g}, caused no removals; they serve only to "
                f"keep similar documents in one cluster, which is not divided between the splits. "
                f"The probability of comparing two documents whose similarity equals the removal "
                "threshold is "
            ),
            add_search_figure(
                "candidate_probability",
                "probability that a pair at the threshold is compared",
                "share",
            ),
            "; for ",
            add_search_figure(
                "limited_documents",
                "number of documents with candidates that were not compared",
                "documents",
            ),
            (" that were kept, the comparison limit left at least one candidate uncompared."),
        ]
    )
