"""What the stages did to a corpus: their accounts, and what left or changed for which reason."""

from __future__ import annotations

from collections import Counter

from reports.page import charts
from reports.page.document import Bullets, Chart, Grid, Inline, Paragraph, Parts, Section
from reports.page.figures import Figure, show
from reports.page.masking import Say
from reports.sections.corpus_figures import FILTER, PROFILE, CorpusFigures
from tasks.contract import TERMS

#: Sources of which is told what the toxicity filter took: those of which it took most.
SOURCES = 15


def preprocessing(corpus: CorpusFigures) -> Section:
    return Section(
        "Preprocessing, cleaning, labelling",
        [
            Paragraph(
                [
                    "Every stage keeps accounts, checked when it commits: in + added = kept "
                    "+ removed rows + removed spans + quarantined + replaced. Ingest "
                    "counts raw bytes, the stages behind it bytes of text. Whatever left or "
                    "changed has a row in the ledger of its stage."
                ]
            )
        ],
        [
            flow(corpus),
            reasons(corpus),
            published(corpus),
            filtered(corpus),
            tagged(corpus),
            duplicates(corpus),
        ],
    )


def flow(corpus: CorpusFigures) -> Section:
    section = Section("Flow of documents")
    stages = corpus.values("flow", "stage")
    columns = ["stage", *(term.replace("_", " ") for term in TERMS), "removed, share"]
    kept: list[tuple[str, Figure]] = []
    for unit, name in (("rows", "documents"), ("bytes", "bytes")):
        rows: list[list[Inline]] = []
        for label in stages:
            where = {"stage": label, "unit": unit}
            cells = [
                corpus.book.figure(
                    f"flow-{label}-{unit}-{term}", f"{label}: {term.replace('_', ' ')}",
                    name, (PROFILE, "flow"), where, column=term,
                )
                for term in TERMS
            ]  # fmt: skip
            rate = corpus.book.figure(
                f"flow-{label}-{unit}-rate", f"{label}: removed, share of what came in",
                "share", (PROFILE, "flow"), where, aggregate="ratio",
                column="removed_rows+removed_spans/in", note="nothing came in",
            )  # fmt: skip
            rows.append([label, *cells, rate])
            if unit == "rows":
                kept.append((label, cells[TERMS.index("kept")]))
        numeric = frozenset(range(1, len(columns)))
        section.add(Grid(f"Accounts in {name}", columns, rows, numeric))
    if kept:

        def draw(say: Say) -> str:
            labels, values = [k for k, _ in kept], [f.value or 0 for _, f in kept]
            return charts.bars(labels, values, "documents", say=say)

        said = ", ".join(f"{label} {figure.short}" for label, figure in kept)
        section.blocks.insert(
            0,
            Chart("flow", draw, f"Documents that left each stage: {said}.",
                  "Documents that left each stage; the numbers are in the column “kept”."),
        )  # fmt: skip
    return section


def reasons(corpus: CorpusFigures) -> Section:
    section = Section("What left or changed, and why")
    table = corpus.profile["reasons"].read(["stage", "action", "reason", "rows"])
    sums = table.group_by(["stage", "action", "reason"]).aggregate([("rows", "sum")])
    order = {label: place for place, label in enumerate(corpus.history)}
    found = sorted(
        sums.to_pylist(),
        key=lambda r: (order.get(r["stage"], -1), -r["rows_sum"], r["action"], r["reason"]),
    )
    # By stage alone the last stages would be cut: those that judge what texts say.
    largest = sorted(found, key=lambda r: -r["rows_sum"])[: corpus.lines_shown]
    first = {r["stage"]: r for r in reversed(found)}.values()
    rows: list[list[Inline]] = []
    for row in (r for r in found if r in largest or r in first):
        where = {"action": row["action"], "reason": row["reason"]}
        label = f"{row['stage']}: {row['action']}, {row['reason']}"
        size = "bytes_after" if row["action"] == "added" else "bytes_before"
        source = (row["stage"], "ledger")
        rows.append(
            [
                row["stage"], row["action"], row["reason"],
                corpus.book.figure(label, label, "rows", source, where, aggregate="count"),
                corpus.book.figure(f"{label}-bytes", f"bytes, {label}", "bytes", source, where,
                                   column=size),
            ]
        )  # fmt: skip
    if not rows:
        section.add(Paragraph(["Nothing."]))
        return section
    columns = ["stage", "action", "reason", "rows", "bytes"]
    note = ""
    if len(found) > len(rows):
        note = (
            f"The {len(rows)} of {len(found):,} with the most rows, and the largest of every "
            f"stage; all are in the table reasons of the profile."
        )
    section.add(Grid("Reasons in the ledgers", columns, rows, frozenset({3, 4}), note))
    return section


def published(corpus: CorpusFigures) -> Section:
    """What rules that others use would take, and which of them were asked for here."""
    section = Section("Published rules of quality")
    asked = {
        rule["name"]
        for artifact in corpus.history.values()
        if artifact.stage == "select"
        for rule in artifact.manifest["parts"]["config"]["rules"]
    }
    rows: list[list[Inline]] = []
    for row in corpus.profile["published_rules"].read(["preset", "rule"]).to_pylist():
        where = {"preset": row["preset"], "rule": row["rule"]}
        rate = corpus.book.figure(
            f"published-{row['rule']}-rate", f"{row['rule']}: share that breaks it", "share",
            (PROFILE, "published_rules"), where, aggregate="ratio", column="broken/documents",
            note="no document",
        )  # fmt: skip
        broken = corpus.sum("published_rules", "broken", "documents", row["rule"], **where)
        rows.append([row["rule"], broken, rate, "yes" if row["rule"] in asked else "no"])
    if not rows:
        section.add(Paragraph(["No figures of quality were made."]))
        return section
    section.add(
        Paragraph(
            [
                "The rules of Gopher, C4 and FineWeb were made for English web pages. What each "
                "would take by itself of the documents as they came, whether or not it was asked "
                "for; of other languages and of code most of them say little."
            ]
        )
    )
    columns = ["rule", "documents that break it", "share", "asked for"]
    section.add(Grid("Published rules", columns, rows, frozenset({1, 2})))
    return section


def filtered(corpus: CorpusFigures) -> Section:
    """What the rules over toxicity took from each source: filters rarely take evenly."""
    section = Section("What the toxicity filter removed, by source")
    if described := describe_toxicity_actions(corpus):
        section.add(Bullets(described))
    rules = corpus.toxicity_rules()
    if not rules:
        section.add(Paragraph(["No rule over toxicity removed documents."]))
        return section
    reasons = [reason for rule in rules for reason in reasons_of(rule)]
    left = {"stage": FILTER, "action": "removed", "reason": reasons}
    came = {"stage": FILTER, "unit": "rows"}
    gone = Counter[str]()
    for row in corpus.profile["reasons"].read().to_pylist():
        if row["stage"] == FILTER and row["action"] == "removed" and row["reason"] in reasons:
            gone[row["source"]] += row["rows"]
    books = corpus.profile["flow"].read(["stage", "unit", "source", "in"]).to_pylist()
    entered = {r["source"]: r["in"] for r in books if came.items() <= r.items()}
    names = sorted(entered, key=lambda name: (-gone[name], -entered[name], name))
    rows: list[list[Inline]] = []
    for name in names[:SOURCES]:
        cells = [
            corpus.book.figure(f"filter-{name}-{column}", f"{name}: {words}", "documents",
                               (PROFILE, table), {**where, "source": name}, column=column)
            for table, where, column, words in (
                ("flow", came, "in", "documents that came in"),
                ("reasons", left, "rows", "documents removed for toxicity"),
            )
        ]  # fmt: skip
        share = show(gone[name] / entered[name], "share") if entered[name] else "–"
        rows.append([name, *cells, share])
    if not rows:
        section.add(Paragraph(["The filter saw no document."]))
        return section
    columns = ["source", "in", "removed", "share removed"]
    note = f"By {', '.join(rules)}; what an earlier rule of {FILTER} took counts there."
    if len(names) > SOURCES:
        note += (
            f" The {SOURCES} of {len(names):,} sources that lost most; all are in the table "
            f"reasons of the profile."
        )
    section.add(Grid("Removed for toxicity", columns, rows, frozenset({1, 2, 3}), note))
    return section


def reasons_of(rule: str) -> list[str]:
    """Return the reasons in the ledger for which a rule removed documents, those without a score
    among them."""
    return [rule, f"{rule} unknown"]


def describe_toxicity_actions(corpus: CorpusFigures) -> list[Parts]:
    """Return, for each rule over a toxicity score, its action, the reason for the action, and how
    many documents it removed or tagged."""
    described: list[Parts] = []
    for rule, action, why in corpus.toxicity_actions():
        parts: list[Inline] = [f"{rule}: {action}, {why}; "]
        if action == "tag":
            where = {"stage": FILTER, "rule": rule}
            label = f"documents that {rule} tagged"
            parts.append(corpus.sum("tagged", "tagged", "documents", label, **where))
        else:
            gone = {"stage": FILTER, "action": "removed", "reason": reasons_of(rule)}
            label = f"documents that {rule} removed"
            parts.append(corpus.sum("reasons", "rows", "documents", label, **gone))
        described.append([*parts, " tagged and kept." if action == "tag" else " removed."])
    return described


def tagged(corpus: CorpusFigures) -> Section:
    """Show the documents that rules tagged and kept, by rule and source."""
    section = Section("Documents that rules tagged and kept")
    found = corpus.profile["tagged"].read().to_pylist()
    found.sort(key=lambda row: -row["tagged"])
    rows: list[list[Inline]] = []
    for row in found[: corpus.lines_shown]:
        where = {name: row[name] for name in ("stage", "rule", "source")}
        label = f"{row['source']}, {row['rule']}"
        cells = [
            corpus.sum("tagged", column, "documents", f"{label}: {words}", **where)
            for column, words in (
                ("documents", "documents kept by the stage"),
                ("tagged", "documents tagged"),
            )
        ]
        share = show(row["tagged"] / row["documents"], "share")
        rows.append([row["rule"], row["source"], *cells, share])
    if not rows:
        section.add(Paragraph(["No rule tags documents."]))
        return section
    columns = ["rule", "source", "documents kept", "tagged", "share tagged"]
    note = (
        "A tagged document stays in the corpus, and the model trains on it. Its column tags holds "
        "the name of the rule."
    )
    if len(found) > len(rows):
        note += f" The {len(rows)} largest of {len(found):,}; all are in the table tagged."
    section.add(Grid("Tagged documents", columns, rows, frozenset({2, 3, 4}), note))
    return section


def duplicates(corpus: CorpusFigures) -> Section:
    section = Section("Near copies")
    rows: list[list[Inline]] = []
    for row in corpus.profile["duplicates"].read().to_pylist():
        where = {"stage": row["stage"], "similarity": row["similarity"]}
        low = row["similarity"]  # of a bucket, the last of which holds equal sets alone
        bucket = f"{low:.2f} to {low + 0.05:.2f}" if low < 1 else "1.00"
        label = f"pairs with similarity {bucket}, {row['stage']}"
        rows.append(
            [
                bucket,
                row["stage"],
                corpus.sum("duplicates", "pairs", "pairs", label, **where),
            ]
        )
    if rows:
        columns = ["Jaccard similarity", "stage", "pairs"]
        section.add(Grid("Verified pairs of near copies", columns, rows, frozenset({2})))
    elif any("pairs" in artifact.tables for artifact in corpus.history.values()):
        section.add(Paragraph(["No pair of near copies was found."]))
    else:
        section.add(Paragraph(["Nobody looked for near copies."]))
    for label, artifact in corpus.history.items():
        if "search" in artifact.tables and "compared" in artifact["search"].columns:
            section.add(searched(corpus, label))
    return section


def searched(corpus: CorpusFigures, label: str) -> Paragraph:
    """How near copies were looked for, and what may have been missed."""

    def figure(column: str, what: str, unit: str) -> Figure:
        source = (label, "search")
        return corpus.book.figure(f"{label}-{column}", what, unit, source, column=column)

    return Paragraph(
        [
            f"{label} compared ",
            figure("compared", "pairs compared", "pairs"),
            " and removed only what was verified. Two documents at the threshold are compared with "
            "probability ",
            figure("chance", "chance that a pair at the threshold is compared", "share"),
            "; for ",
            figure("limited", "documents with candidates not compared", "documents"),
            " that stayed a limit on the work left a candidate uncompared.",
        ]
    )
