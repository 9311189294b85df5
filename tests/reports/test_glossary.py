"""Statistical terms are explained where a page uses them for the first time."""

from __future__ import annotations

import re

import pytest
from markupsafe import escape

from hallmark.reports.page.document import DataTable, Document, Paragraph, Section
from hallmark.reports.page.glossary import DEFINITIONS, explain_terms
from hallmark.reports.page.rendering import render_html, render_section_html
from tests.reports import pages


@pytest.mark.parametrize("term", DEFINITIONS)
def test_a_term_is_explained_once(term):
    explained: set[str] = set()
    html = explain_terms(f"a < b, {term} and {term}", explained)
    assert html == f'a &lt; b, <abbr title="{escape(DEFINITIONS[term])}">{term}</abbr> and {term}'
    assert explained == {term}
    assert explain_terms(f"{term} <again>", explained) == f"{term} &lt;again&gt;"


@pytest.mark.parametrize("text", ["Holmes", "a Min-Ks", "non-nats", "Min-K+", "nats-per-token"])
def test_a_part_of_a_word_is_no_term(text):
    assert explain_terms(text, set()) == text


def test_a_page_explains_terms_in_sentences_headers_and_notes_but_not_in_cells_again():
    table = DataTable("c", ["p (Holm, this audit)", "FDR"], [["nats", "Holm"]], note="By FDR.")
    section = Section("s", [Paragraph(["It is 2 nats."]), table], page="s")
    document = Document("t", "Model card", [Paragraph(["Holm <b>"])], [section])
    html = render_section_html(document, section, "card.html")
    assert re.findall(r"<abbr[^>]*>([^<]*)</abbr>", html) == ["Holm", "nats", "FDR"]
    assert "&lt;b&gt;" in html and "<b>" not in html
    assert re.findall(r"<abbr[^>]*>([^<]*)</abbr>", render_html(document)) == ["Holm"]


def test_every_page_of_a_card_explains_its_terms(cards):
    explained = set()
    for path in sorted(pages.write_pages(cards["model_card"]).glob("*.html")):
        html = path.read_text(encoding="utf-8")
        terms = re.findall(r"<abbr[^>]*>([^<]*)</abbr>", html)
        assert len(terms) == len(set(terms)), path.name
        assert ("p (<abbr" in html) == ("Holm" in re.sub(r"<[^>]*>", "", html)), path.name
        explained |= {*terms}
    assert "nats" in explained
