"""Test the charts of attention on the model card: equal to the rows, masked, escaped, aligned."""

import itertools
import re
from xml.etree import ElementTree

import pyarrow as pa
import pytest

from hallmark.reports.model_card import ModelCardConfig, build_model_card
from hallmark.reports.page.charts import ShadedRow, ShadedText
from hallmark.reports.page.drawing import draw_chart
from hallmark.reports.page.redaction import Redactor
from hallmark.reports.sections.attention import MAX_LAYERS, build_attention_section, redact_tokens
from tests.reports import artifacts, pages

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def folder(cards):
    return pages.write_pages(cards["model_card"])


@pytest.fixture
def page(folder):
    return pages.read_whole_card(folder / "model_card.html")


def drawn(svg):
    """Read the text, opacity, frame, grey and box of each token by line, and the chart's width."""
    tree = ElementTree.fromstring(svg)
    lines: dict[str, list] = {}
    box = None
    for element in tree.iter():
        style = element.get("style", "")
        if element.tag == f"{SVG}rect":
            box = [float(element.get(name)) for name in ("x", "y", "width", "height")]
            opacity = float(re.search(r"fill-opacity: ([\d.]+)", style)[1])
            framed = "stroke" in style
        elif element.tag == f"{SVG}text" and element.get("textLength") is None:
            tokens = lines.setdefault(element.text, [])
        elif element.tag == f"{SVG}text":
            tokens.append((element.text, opacity, framed, "--chart-three" in style, box))
    return lines, float(tree.get("viewBox").split()[2]), float(tree.get("viewBox").split()[3])


def read_attention_charts(folder):
    """Return the charts of attention maps, in the order of the texts."""
    charts = [svg for path in sorted(folder.glob("*.html")) for svg in pages.read_charts(path)]
    return [svg for svg in charts if "textLength" in svg]


def mean_weights(made, number, stack="decoder"):
    """Compute with pandas the mean weights of the sixth token over heads, by layer."""
    rows = made.maps["weights"].read().to_pandas()
    rows = rows[
        (rows["text_id"] == number) & (rows["query_position"] == 6) & (rows["stack"] == stack)
    ]
    return rows.groupby(["layer", "key_position"])["weight"].mean().unstack()


@pytest.mark.parametrize("number", [1, 2])
def test_shades_equal_mean_weights_of_the_rows(folder, made, number):
    lines, *_ = drawn(read_attention_charts(folder)[number - 1])
    means = mean_weights(made, number)
    assert list(lines) == ["layer 1", "layer 3", "layer 4", "layer 6"] and len(lines) == MAX_LAYERS
    strongest = means.loc[[1, 3, 4, 6], 1:].to_numpy().max()
    for name, tokens in lines.items():
        wanted = means.loc[int(name.split()[1])]
        for key, (_, opacity, framed, grey, _) in enumerate(tokens):
            assert framed == (key == 6) and grey == (key > 6)
            share = min(1, wanted[key] / strongest)
            assert opacity == pytest.approx(0.5 * share, abs=6e-4)
    assert any(opacity == 0.5 for _, opacity, *_ in itertools.chain(*lines.values()))


def test_boxes_are_inside_the_chart_and_do_not_overlap(folder):
    for number in (1, 2):
        lines, width, height = drawn(read_attention_charts(folder)[number - 1])
        boxes = [token[-1] for tokens in lines.values() for token in tokens]
        for x, y, wide, high in boxes:
            assert x >= 0 and y >= 0 and x + wide <= width and y + high <= height
        for (x, y, wide, high), (u, v, *_) in itertools.combinations(boxes, 2):
            assert x + wide <= u or u < x or y + high <= v


def test_table_shows_largest_weights_and_links_to_their_rows(cards, folder, made, page):
    grid = next(table for table in page.tables if table[0][:3] == ["layer", "most", "weight"])
    figures = pages.read_figures(cards["model_card"]).set_index("id")
    means = mean_weights(made, 1)
    for row in grid[1:]:
        best = means.loc[int(row[0])].nlargest(3)
        for place, (key, weight) in enumerate(best.items()):
            name, shown = row[1 + 2 * place], row[2 + 2 * place]
            assert name.endswith(f"({key})")
            assert float(shown) == pytest.approx(weight, abs=6e-5)
            figure = figures.loc[f"attention-1-{row[0]}-{key}"]
            assert (figure["row_count"], figure["aggregate"]) == (3, "mean")  # its three heads
            assert figure["value"] == pytest.approx(weight)
            assert "the mean of weight" in pages.read_evidence(folder, figure["page_path"]).text


def test_captions_explain_the_chart_and_its_limits(page, made):
    text = " ".join(page.text.split())
    assert "in 4 of 6 layers of the decoder, averaged over 3 heads" in text
    largest = mean_weights(made, 1).loc[[1, 3, 4, 6], 1:].to_numpy().max()
    assert f"the strongest shade marks {largest:.2g}, the largest weight on a word. Larger" in text
    assert text.count("Attention weights do not explain an output") == 2
    assert text.count("Grey tokens come later") == 2
    assert "The last 7 tokens of the text were not read." in text
    assert "Text 3 has no chart: <script>alert(1)</script> gives no weights." in text
    [alt] = [alt for alt in page.alts if alt.startswith("Text 1")]
    strongest = mean_weights(made, 1).loc[6].nlargest(1)
    assert f"layer 6: “<|endoftext|>” (0) {strongest.iloc[0]:.2f}" in alt


def test_personal_data_in_separate_tokens_is_masked(folder):
    said = " ".join(p.read_text() for p in folder.rglob("*") if p.suffix == ".html")
    lines, *_ = drawn(read_attention_charts(folder)[0])
    spelled = "".join(token[0] for token in lines["layer 1"])
    assert "jane" not in spelled and "corp" not in spelled and "████" in spelled
    assert spelled.startswith("<|endoftext|>The lamp ")
    assert "<script>alert(1)" in spelled and "‹U+202E›" in spelled
    assert "<script" not in said
    other, *_ = drawn(read_attention_charts(folder)[1])
    assert "A quiet↵orchard" in "".join(token[0] for token in other["layer 1"])


@pytest.mark.parametrize("stacks", [("encoder",), ("encoder", "decoder", "cross")])
def test_encoder_attends_to_both_directions(session, made, stacks):
    config = artifacts.MapsConfig(stacks=stacks, layers=1, heads=1)
    maps = artifacts.looked_at(config)
    card = build_model_card(
        made.checkpoint, None, None, {}, {}, maps, None, None, None, {}, None, ModelCardConfig()
    )
    lines, *_ = drawn(read_attention_charts(pages.write_pages(card))[0])
    assert list(lines) == ["layer 1"]
    assert not any(grey for _, _, _, grey, _ in lines["layer 1"])
    text = " ".join(pages.read_whole_card(pages.write_pages(card) / "model_card.html").text.split())
    assert "in every layer of the encoder, averaged over its one head" in text
    assert "Grey tokens" not in text


def test_token_of_any_characters_fits_the_chart():
    tokens = ["\u200b" * 90, "漢" * 90, "", "x" * 90, " ", "a\n\u2028b", "&<>\"'"]
    ends = list(itertools.accumulate(map(len, tokens)))
    starts = [0, *ends[:-1]]
    table = pa.table({"token": tokens, "char_start": starts, "char_end": ends})
    shown = redact_tokens("".join(tokens), table, Redactor())
    svg = draw_chart(ShadedText(shown, 1, [ShadedRow("layer 1", [0.5] * len(tokens))]))
    lines, width, _ = drawn(svg)
    assert [token[0] for token in lines["layer 1"]] == shown
    assert shown[2] == "·" and shown[-1] == tokens[-1] and shown[-2] == "a↵‹U+2028›b"
    for *_, (x, _, wide, _) in lines["layer 1"]:
        assert wide > 0 and x + wide <= width


def test_missing_maps_are_reported():
    section = build_attention_section(None, None, Redactor())
    assert (
        section.title == "Inside the model"
        and "No text is configured for attention maps" in section.blocks[0].content[0]
    )
