"""Test the removal rates of single rules on the datasheet."""

import json

from hallmark.reports.page.document import iterate_sections
from hallmark.reports.page.figures import Figure, FigureBook
from hallmark.reports.sections.corpus_figures import CorpusFigures
from hallmark.reports.sections.curation_effects import (
    INGEST_NOTE,
    build_removal_rates_by_rule,
    build_removed_examples_section,
    build_threshold_rates_section,
    format_adjusted_ratio,
)
from hallmark.reports.sections.group_removals import build_group_removal_section
from hallmark.tasks.contract import StageConfig, StageContext, hash_to_ids, stage
from hallmark.tasks.corpus.identities import IdentitiesConfig, find_identities
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.removal_effects import TABLES, RemovalEffectsConfig
from hallmark.tasks.corpus.removal_effects import measure_removal_effects as effects_stage
from tests.reports import pages
from tests.reports.artifacts import LINK, OFFENSIVE, SCRIPT


class ToldConfig(StageConfig):
    ratios: tuple[tuple[str, str, float | None, str], ...] = ()
    taken: tuple[tuple[str, str, str, float | None, bool], ...] = ()


@stage(name="told_effects", tables=TABLES)
def told_effects(config: ToldConfig, context: StageContext) -> None:
    """Write rates like the ``removal_effects`` stage, with these ratios, and examples."""
    for number, (reason, dimension, name, ratio, alone) in enumerate(config.taken):
        for copy in range(3):
            row = {"stage": "select", "reason": reason, "dimension": dimension, "slice": name}
            row |= {"rate_ratio": ratio, "no_other_removed": alone}
            row |= {"doc_id": hash_to_ids([f"{number} {copy}"])[0].as_py()}
            context.get_table_writer("removed_examples").write(
                {key: [value] for key, value in row.items()}
            )
    for dimension, name, ratio, verdict in config.ratios:
        row = {
            "stage": "",
            "reason": "all except duplicates",
            "dimension": dimension,
            "slice": name,
        }
        row |= {
            "documents": 40,
            "removed_documents": 8,
            "clusters": 30,
            "other_documents": 1000,
            "other_removed_documents": 100,
        }
        row |= {
            "removal_rate": 0.2,
            "other_removal_rate": 0.1,
            "rate_ratio": ratio,
            "low": 1.5,
            "high": None,
        }
        row |= {
            "source_adjusted_ratio": 1.25,
            "source_adjusted_low": 0.9,
            "source_adjusted_high": None,
            "p": 0.01,
            "p_corrected": 0.02,
            "minimum_detectable_ratio": 1.75,
            "verdict": verdict,
        }
        context.get_table_writer("removal_rates").write(
            {key: [value] for key, value in row.items()}
        )
        more = {"stage": "select", "signal": "word_count", "comparison": "le"}
        for threshold in (0.25, 0.5):
            limit = {**row, **more, "threshold": threshold, "is_rule_threshold": threshold == 0.5}
            context.get_table_writer("threshold_rates").write(
                {key: [value] for key, value in limit.items()}
            )


def corpus_of(*ratios):
    made = {"removal_effects": told_effects(ToldConfig(ratios=ratios))}
    return CorpusFigures(FigureBook(made), made, 30)


def words(parts):
    return "".join(part.full_text if isinstance(part, Figure) else str(part) for part in parts)


def test_ratio_is_infinite_if_no_other_document_is_removed(session):
    [grid] = build_threshold_rates_section(corpus_of(("identity", "women", None, "more"))).blocks
    assert [part.short_text for part in grid.rows[0][1:]] == ["∞", "∞"]
    [grid] = build_threshold_rates_section(corpus_of(("identity", "women", 0.0, "less"))).blocks
    assert [part.value for part in grid.rows[0][1:]] == [0, 0]


def test_group_that_no_rule_judged_is_reported(session):
    """The page does not say that there was no numeric rule: rules may have judged other groups."""
    [paragraph] = build_threshold_rates_section(corpus_of(("language", "de", 2.0, "more"))).blocks
    assert words(paragraph.content) == (
        "No rule with a numeric threshold judged enough documents from any group or dialect for a "
        "comparison."
    )


def test_documents_removed_by_ingest_are_shown_by_source(session, tmp_path):
    sources = []
    for name, more in (
        ("all", {}),
        ("some", {"document_share": 0.5}),
        ("few", {"max_documents": 4}),
    ):
        lines = "\n".join(json.dumps({"text": f"{name} {n}: a woman"}) for n in range(40))
        path = tmp_path / f"{name}.jsonl"
        path.write_text(lines)
        sources.append({"kind": "jsonl", "name": name, "path": str(path), **more})
    made = {"ingest": ingest(IngestConfig(sources=sources))}
    made["identities"] = find_identities(made["ingest"], IdentitiesConfig())
    made["removal_effects"] = effects_stage(made["ingest"], made, RemovalEffectsConfig())
    corpus = CorpusFigures(FigureBook(made), made, 30)
    introduction, *grids = build_removal_rates_by_rule(corpus).blocks
    weight, cap = sorted(grids, key=lambda grid: grid.caption)
    assert weight.caption == "ingest: excluded by document_share"
    assert cap.caption == "ingest: excluded by max_documents"
    for grid, alone in ((weight, "from some"), (cap, "from few")):
        assert grid.rows[0][0] == alone and len(grid.rows) == 3
        lines = [dict(zip(grid.columns, row, strict=True)) for row in grid.rows]
        assert [line["n"] for line in lines] == ["40"] * 3
        assert lines[0]["ratio"].short_text == "∞" and "any" in lines[0]["95 % interval"]
        assert INGEST_NOTE in grid.note
    assert "For records that the ingest stage removed, only the source is known" in words(
        introduction.content
    )
    # In the table of all stages they count, too.
    section = build_group_removal_section(corpus)
    [sources] = [
        each for each in iterate_sections([section]) if each.title == "Removal rates by source"
    ]
    shown = {row[0]: (row[1], row[2].short_text) for row in sources.blocks[0].rows}
    assert shown["from all"] == ("40", "0.0 %") and shown["from few"] == ("40", "90.0 %")


def test_examples_cover_every_source_and_language_before_the_highest_ratios(session):
    """Forty rules removed much of one source; a small source and a language have no ratio."""
    many = [(f"rule {n}", "source", "web", 9.0 - n / 10, False) for n in range(40)]
    few = [
        ("rule 7", "source", "diaries", None, False),
        ("rule 5", "source", "diaries", 0.5, False),
    ]
    few += [("rule 3", "language", "haw", None, False), ("rule 9", "language", "en", None, True)]
    made = {"removal_effects": told_effects(ToldConfig(taken=(*many, *few)))}
    [grid] = build_removed_examples_section(CorpusFigures(FigureBook(made), made, 30)).blocks
    shown = [(row[0], row[2], row[3]) for row in grid.rows]
    assert shown[:4] == [
        ("in language en", "rule 9", "∞"),
        ("from web", "rule 0", "9.000"),
        ("from diaries", "rule 5", "0.5000"),
        ("in language haw", "rule 3", "–"),
    ]
    assert shown[4:] == [("from web", f"rule {n}", f"{9 - n / 10:.3f}") for n in range(1, 27)]
    assert all(row[4].value == 3 for row in grid.rows) and "30 of 44" in grid.note
    [grid] = build_removed_examples_section(CorpusFigures(FigureBook(made), made, 2)).blocks
    assert [row[0] for row in grid.rows] == [line[0] for line in shown[:4]]


def test_the_adjusted_ratio_has_its_interval(session):
    rows = [("identity", "women", 1.5, "more"), ("source", "web", 1.5, "more")]
    made = {"removal_effects": told_effects(ToldConfig(ratios=rows))}
    read = made["removal_effects"]["removal_rates"].read().to_pylist()
    assert format_adjusted_ratio(read[0]) == "1.250 (0.9000 to any)"
    assert format_adjusted_ratio(read[0] | {"source_adjusted_ratio": None}) == "∞ (0.9000 to any)"
    assert format_adjusted_ratio(read[0] | {"source_adjusted_low": None}) == "–"


def test_datasheet_starts_with_removal_rates_and_masks_examples(cards, made):
    folder = pages.write_pages(cards["datasheet"])
    page = pages.read_whole_card(folder / "datasheet.html")
    assert page.text.index("Curation removed") < page.text.index("deliberately planted")
    for title in (
        "Removal rates by group",
        "Toxicity filter: error rates not measured",
        "Removed documents by stage",
        "By rule",
        "Removal ratios at other thresholds",
        "Score changes if only the group is changed",
        "Examples of removed documents",
        "Accuracy of the identity lexicon",
    ):
        assert title in page.text
    rows = made.corpus["removal_effects"]["removed_examples"].read().to_pylist()
    assert {row["slice"] for row in rows if row["dimension"] == "source"} > {SCRIPT, LINK}
    shown = [(folder / "rows" / "removal-effects.html").read_text()]
    assert not any(OFFENSIVE in text for text in shown)
    assert any("masked: toxicity score" in text for text in shown)
