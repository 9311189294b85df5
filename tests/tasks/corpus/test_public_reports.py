"""Troubles that users of other tools reported publicly do not occur.

Each test names the report: repository and number. The texts are invented; only the kind of the
trouble is the report's.
"""

import gzip
import json
import lzma
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig
from hallmark.tasks.corpus.find_repeats import RepeatsConfig, find_repeats
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.reading.web_pages import extract_page_text
from hallmark.tasks.corpus.redact_spans import RedactSpansConfig, redact_spans
from hallmark.tasks.measures.personal_data import find_personal_data_spans
from tests.tasks.corpora import given, scrubbed
from tests.tasks.corpus.reader_helpers import get_texts, read_checked
from tests.tasks.corpus.test_deduplicate_near import Result, make_table
from tests.tasks.corpus.test_warc import make_html, make_page, make_record, read_archive

SENTENCES = [
    "The mill by the river ground wheat for eleven villages until the spring flood.",
    "Its owner kept a ledger in which each sack was weighed, priced and signed for.",
    "A storm took the roof in the autumn, and the wheel stood still for two years.",
    "Then a cooperative of bakers bought the ruin and rebuilt it stone by stone.",
]


def make_body(inner):
    return f"<!DOCTYPE html><html><head><title>t</title></head><body>{inner}</body></html>"


# Main content of pages ---------------------------------------------------------------------------


def test_text_beside_paragraphs_is_neither_doubled_nor_joined():
    """adbar/trafilatura#660 and #661."""
    page = make_body(
        f"<main><section><p>{SENTENCES[0]}</p>Loose words<div><h4>A heading</h4>"
        f"<p>{SENTENCES[1]}</p>More loose words</div><div><h4>Second heading</h4>"
        f"<p>{SENTENCES[2]}</p></div></section></main>"
    )
    text = extract_page_text(page, main_content=True)
    pieces = [SENTENCES[0], "Loose words", "A heading", SENTENCES[1], "More loose words"]
    pieces += ["Second heading", SENTENCES[2]]
    assert [piece for piece in pieces if text.count(piece) != 1] == []
    assert text.split() == " ".join(pieces).split()


@pytest.mark.parametrize("main_content", [True, False])
def test_indentation_of_code_survives(main_content):
    """adbar/trafilatura#553."""
    code = "def mill(sacks):\n    for sack in sacks:\n        yield sack.weight"
    page = make_body(f"<article><p>{SENTENCES[0]}</p><pre><code>{code}</code></pre></article>")
    assert code in extract_page_text(page, main_content=main_content)


@pytest.mark.parametrize("main_content", [True, False])
def test_words_around_inline_elements_keep_their_spaces(main_content):
    """adbar/trafilatura#113 and #837."""
    inner = (
        '<p>The <a href="/m">mill</a> on <b>the</b> <i>old</i> river <code>ran</code> day and '
        "night<br>until the flood came and took its wheel.</p>"
    )
    text = extract_page_text(
        make_body(f"<article>{inner}<p>{SENTENCES[1]}</p></article>"), main_content=main_content
    )
    words = "The mill on the old river ran day and night until the flood came and took its wheel."
    assert words.split() == text.split()[: len(words.split())]


@pytest.mark.parametrize("main_content", [True, False])
def test_a_paragraph_in_a_layout_table_is_not_cut_at_inline_elements(main_content):
    """adbar/trafilatura#890."""
    sentence = "If the wheel turns at rate <i>r</i>, the stone turns at <b>3</b><i>r</i> per hour."
    page = make_body(
        '<table class="layout"><tr><td><a href="/">Home</a> <a href="/a">Archive</a></td><td>'
        f"<h1>Gears</h1><p>{SENTENCES[0]}<p>{sentence}<p>{SENTENCES[2]}</td></tr></table>"
    )
    text = " ".join(extract_page_text(page, main_content=main_content).split())
    assert "If the wheel turns at rate r, the stone turns at 3r per hour." in text
    assert SENTENCES[0] in text and SENTENCES[2] in text


@pytest.mark.parametrize("main_content", [True, False])
@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("漢<b>x</b>字", "漢x字"),
        ("x<b>漢</b>字", "x漢字"),
        (" 漢 <b>x</b> 字", "漢 x 字"),
        ("<span>水</span><span>車</span>小屋", "水車小屋"),
        ("“<i>x</i>”。<b>y</b>。", "“x”。y。"),
        ("&ldquo;<i>x</i>&#8221;", "“x”"),
        ("<i>x</i>&amp;<i>y</i>", "x&y"),
        ("前の<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp></ruby>字の後", "前の漢字の後"),
        ("<RUBY>漢字<RT>かんじ</RT></RUBY>", "漢字"),
    ],
)
def test_single_characters_between_tags_are_text(inner, expected, main_content):
    """Resiliparse leaves out a character of three bytes that stands alone between two tags."""
    page = make_body(f"<p>{inner}</p><p>{SENTENCES[0]}</p>")
    assert extract_page_text(page, main_content=main_content).split("\n")[0] == expected


@pytest.mark.parametrize("main_content", [True, False])
@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        (
            "<figure class='wp-block-table'><table><tr><td>Paris</td><td>France</td></tr></table>"
            "</figure>",
            "Paris France",
        ),
        ("<figure class='highlight'><pre>x = 1</pre></figure>", "x = 1"),
        ("<FIGURE><blockquote>Never again.</blockquote></FIGURE>", "Never again."),
        (
            "<p>The war ended in <time>1945</time>, on <time datetime='x'>2 September</time>.</p>",
            "The war ended in 1945, on 2 September.",
        ),
    ],
)
def test_text_in_figures_and_dates_in_sentences_survive(inner, expected, main_content):
    page = make_body(f"<article><p>{SENTENCES[0]}</p>{inner}<p>{SENTENCES[1]}</p></article>")
    text = extract_page_text(page, main_content=main_content)
    assert text.split() == f"{SENTENCES[0]} {expected} {SENTENCES[1]}".split()


# Web archives ------------------------------------------------------------------------------------


def test_a_page_compressed_with_brotli_is_read(write):
    """webrecorder/warcio#73 and iipc/openwayback#395."""
    brotli = pytest.importorskip("brotli")
    body = brotli.compress(make_html(SENTENCES[0]))
    documents, errors, _ = read_archive(write, make_page(body, Content_Encoding="br"))
    assert get_texts(documents) == [SENTENCES[0]] and not errors


def test_a_page_in_an_unknown_encoding_is_no_document(write):
    """chfoo/warcat-rs#9."""
    pages = [
        make_page(lzma.compress(make_html(SENTENCES[0])), Content_Encoding="xz"),
        make_page(make_html(SENTENCES[1])),
    ]
    documents, errors, counts = read_archive(write, b"".join(pages))
    assert get_texts(documents) == [SENTENCES[1]]
    assert not errors and counts.skipped_bytes > 0


def test_pages_after_a_damaged_record_are_read(write):
    """webrecorder/warcio#99 and machawk1/warcreate#122: the record is longer than it says."""
    first, third = (make_page(make_html(SENTENCES[i])) for i in (0, 2))
    damaged = make_page(make_html(SENTENCES[1]))
    length = int(damaged.split(b"Content-Length: ")[1].split(b"\r\n")[0])
    damaged = damaged.replace(b"Content-Length: %d" % length, b"Content-Length: %d" % (length - 30))
    documents, errors, _ = read_archive(write, first + damaged + third)
    assert {SENTENCES[0], SENTENCES[2]} <= set(get_texts(documents))
    assert len(documents) == 2 and len(errors) == 1


def test_a_damaged_member_of_a_compressed_archive_costs_only_its_records(write):
    """webrecorder/browsertrix-crawler#662."""
    members = [gzip.compress(make_page(make_html(s)), mtime=0) for s in SENTENCES[:3]]
    broken = bytearray(members[1])
    broken[-6] ^= 0xFF  # The checksum at the end of the member.
    data = members[0] + bytes(broken) + members[2]
    documents, errors, _ = read_archive(write, data, name="a.warc.gz")
    assert get_texts(documents) == [SENTENCES[0], SENTENCES[2]]
    assert len(errors) == 1


def test_a_conversion_that_calls_itself_http_is_read(write):
    pieces = [
        make_record(b"good text"),
        make_record(b"other text", Content_Type="application/http; msgtype=response"),
        make_record(b"more text"),
    ]
    documents, errors, _ = read_archive(write, b"".join(pieces))
    assert get_texts(documents) == ["good text", "other text", "more text"] and not errors


# Records -----------------------------------------------------------------------------------------


def test_the_documents_before_a_truncated_end_of_a_compressed_file_are_read(write):
    """huggingface/datatrove#78."""
    lines = [json.dumps({"text": s * 200}).encode() + b"\n" for s in SENTENCES]
    data = gzip.compress(b"".join(lines), mtime=0)
    members = b"".join(gzip.compress(line, mtime=0) for line in lines)
    for name, content in {"a.jsonl.gz": data[:-20], "b.jsonl.gz": members[:-20]}.items():
        documents, errors, _ = read_checked(write(name, content), "jsonl", limit=10**6)
        assert get_texts(documents) == [s * 200 for s in SENTENCES[:3]] and len(errors) == 1


@pytest.mark.parametrize(
    "data",
    [
        b'[{"text":"a"},{"text":"caf\xc3',
        '[{"text":"é"}]'.encode("utf-16")[:-1],
        b'[{"text":"a"}]\n\xff\xfe',
        b'[\n{"text":"Caf\xe9" "x"},\n{"text":"b"}\n]',
        b'{"text":"a"}\n{"text":"caf\xc3',
    ],
)
@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_json_that_is_cut_inside_a_character_is_an_error_of_the_file(write, data, name):
    documents, errors, _ = read_checked(write(name, data), "jsonl")
    assert errors and all(len(document.text) == 1 for document in documents)


@pytest.mark.parametrize("escape", [r"\ud800", r"\udc00 x", r"\ud83d\ud83d", r"\ude00\ud83d"])
def test_a_lone_surrogate_escape_costs_at_most_its_own_document(write, escape):
    """dgtlmoon/changedetection.io#4273 and daaain/claude-code-log#144."""
    lines = [
        json.dumps({"text": "before"}),
        f'{{"text": "with {escape} inside"}}',
        f'{{"text": "smile \\ud83d\\ude00", "other": "{escape}"}}',
        json.dumps({"text": "after"}),
    ]
    documents, errors, _ = read_checked(write("a.jsonl", "\n".join(lines).encode()), "jsonl")
    texts = get_texts(documents)
    assert texts[0] == "before" and texts[-1] == "after" and "smile 😀" in texts
    assert len(documents) + len(errors) == 4
    assert all(text.encode() for text in texts)


def test_columns_that_were_not_asked_for_may_be_nested_in_any_way(write, tmp_path):
    """huggingface/datasets#7793: nested columns in several chunks cannot be converted."""
    big = "a" * 2**16
    rows = [[{"k": big, "v": [number]}] for number in range(600)]
    table = pa.table({"text": [f"text {n}" for n in range(600)], "nested": rows})
    path = tmp_path / "nested.parquet"
    pq.write_table(table, path, row_group_size=600)
    documents, errors, _ = read_checked(path, "parquet", limit=10**6)
    assert len(documents) == 600 and not errors


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.string()])
def test_every_string_type_of_parquet_is_read(tmp_path, kind):
    """huggingface/datasets#6656: 32-bit offsets overflow; and dictionary columns."""
    column = pa.array(SENTENCES * 3).cast(kind)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": column}), path)
    assert get_texts(read_checked(path, "parquet")[0]) == SENTENCES * 3


def test_a_dictionary_column_of_parquet_is_read(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.array(SENTENCES * 3).dictionary_encode()}), path)
    assert get_texts(read_checked(path, "parquet")[0]) == SENTENCES * 3


# Personal data -----------------------------------------------------------------------------------


def find_values(text, **settings):
    return [(s.type, text[s.start : s.end]) for s in find_personal_data_spans(text, **settings)]


def test_each_of_several_adjacent_addresses_is_found():
    """data-privacy-stack/presidio#1925."""
    addresses = ["anna@corp.example", "ben@corp.example", "cleo@corp.example"]
    for separator in (" ", ", ", ";", "\n", "|", "/", " <"):
        assert find_values(separator.join(addresses)) == [("EMAIL", a) for a in addresses]


def test_an_overlap_of_two_types_is_masked_once_and_the_rest_stays(session):
    """data-privacy-stack/presidio#888 and #917, BerriAI/litellm#42130."""
    texts = [
        "Card number 4111 1111 1111 1111.example that overlaps, please check the order.",
        "Mail 4111111111111111@corp.example, then go.",
    ]
    masked = scrubbed(given(texts))["documents"].read()["text"].to_pylist()
    assert sorted(masked) == sorted(
        [
            "Card number <CARD>.example that overlaps, please check the order.",
            "Mail <EMAIL>, then go.",
        ]
    )


@pytest.mark.parametrize(
    "text",
    [
        "6033391\n6058722\n",
        "1607635102.00 -0.96",
        "03/22 08:51:06 INFO :...read_physical_netif: index #1, interface TR1, ifidx 1",
        "bash 5.2.21-2ubuntu4, 2024-01-10 21:14:05.123456789 +0000, id 20240110211405123",
        "auth_key: {type: string}, if (filterMode == FilterMode.OFFLINE_STORAGE && key.isValid())",
    ],
)
def test_plain_numbers_and_code_are_not_personal_data(text):
    """data-privacy-stack/presidio#1173 and #786, sirwart/ripsecrets#12."""
    assert find_values(text) == []


KEY_LINES = ["MIIEpAIBAAKCAQEA" + c * 48 for c in "abcd"]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\\n", "\\r\\n", ""])
def test_a_private_key_is_found_however_its_lines_are_written(line_end):
    """advanced-security/secret-scanning-custom-patterns#15 and Yelp/detect-secrets#646."""
    begin, end = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
    key = line_end.join([begin, *KEY_LINES, end])
    for text in (f"const key = '{key}';", json.dumps({"private_key": key, "id": 7})):
        spans = find_personal_data_spans(text)
        remaining = text
        for span in reversed(spans):
            remaining = remaining[: span.start] + f"<{span.type}>" + remaining[span.end :]
        assert "MIIE" not in remaining, remaining
        assert "id" in remaining or "const key" in remaining


def test_a_placeholder_in_place_of_a_private_key_is_not_a_secret():
    """secretlint/secretlint#1235 and Yelp/detect-secrets#140."""
    text = '"private_key": "-----BEGIN PRIVATE KEY-----\\n...\\n-----END PRIVATE KEY-----\\n"'
    assert find_values(text) == []


def test_tokens_in_json_are_found():
    """Yelp/detect-secrets#276."""
    text = '{"access_token":"pq9Lx2Vd7Tz4Kc8W","refresh_token":"dn43ud8uj32nk2je"}'
    assert [value for _, value in find_values(text)] == ["pq9Lx2Vd7Tz4Kc8W", "dn43ud8uj32nk2je"]


# Duplicates --------------------------------------------------------------------------------------


def deduplicate_near_texts(folder, texts, parts=1, **settings):
    documents = make_table(folder, texts, parts=parts)
    return Result(documents, DeduplicateNearConfig(**settings), folder)


def test_short_texts_that_differ_are_not_near_duplicates(tmp_path):
    """OpenDCAI/DataFlow#526: texts shorter than a shingle had one empty signature."""
    texts = ["cat", "dog", "Cat food", "猫", "犬", "猫と犬", "!", "?"]
    result = deduplicate_near_texts(tmp_path, texts)
    assert sorted(result.texts) == sorted(texts)


def test_texts_with_common_pieces_but_other_words_are_not_one_cluster(tmp_path):
    """marin-community/marin#6854: character pieces and chains emptied whole sources."""
    words = [f"{a}{b}{c}" for a in "bdfgkl" for b in ("ar", "en", "il") for c in ("mo", "ta", "us")]
    rng = random.Random(5)
    texts = [" ".join(rng.choices(words, k=300)) for _ in range(200)]
    result = deduplicate_near_texts(tmp_path, texts)
    assert len(result.texts) == 200 and len(set(result.clusters.values())) == 200


def test_numbered_short_texts_follow_the_configured_similarity(tmp_path):
    """ChenghaoMou/text-dedup#17."""
    texts = [f"The road {n} is a road in the county of the {n} mills." for n in range(1503, 1513)]
    result = deduplicate_near_texts(tmp_path, texts)
    assert len(result.texts) == 10
    low = deduplicate_near_texts(
        tmp_path / "low", texts, similarity_threshold=0.2, cluster_threshold=0.2
    )
    assert len(low.texts) < 10


@pytest.mark.parametrize("parts", [1, 3])
def test_removed_copies_name_documents_that_exist(session, parts):
    """huggingface/datatrove#249 and #370, NVIDIA-NeMo/Curator#48: ids across partitions."""
    texts = [f"{SENTENCES[i % 4]} Number {i // 8}." for i in range(64)]
    documents = given(texts, parts=parts)
    result = deduplicate(documents, {}, DeduplicateConfig())
    kept = {row["doc_id"]: row["text"] for row in result["documents"].read().to_pylist()}
    before = {row["doc_id"]: row["text"] for row in documents["documents"].read().to_pylist()}
    ledger = result["ledger"].read().to_pylist()
    assert len(kept) == len(set(texts)) and len(kept) + len(ledger) == 64
    assert all(before[r["doc_id"]] == kept[r["matched_doc_id"]] for r in ledger)


def test_a_passage_is_not_its_own_repetition(session):
    """mlfoundations/dclm#83: each document was compared with itself."""
    texts = [f"{SENTENCES[0]} {SENTENCES[1]} " * 2]
    texts += [" ".join(f"word{n * 1000 + k}" for k in range(60)) for n in range(20)]
    documents = given(texts)
    config = RepeatsConfig(enabled=True, min_bytes=64)
    spans = find_repeats(documents, {}, config)["spans"].read()
    rows = documents["documents"].read().to_pylist()
    repeating_id = next(row["doc_id"] for row in rows if row["text"] == texts[0])
    assert {*spans["doc_id"].to_pylist()} == {repeating_id}


def test_cuts_of_repeated_passages_keep_whole_characters(session):
    """ChenghaoMou/text-dedup#33: bytes of Chinese text."""
    passage = "河边的磨坊为十一个村庄磨小麦直到春天的洪水冲走了它的轮子和屋顶然后面包师们把它重建了"
    texts = [f"{chr(0x4E00 + 37 * n)}{passage}{chr(0x5E00 + 91 * n)}尾" for n in range(6)]
    documents = given(texts)
    config = RepeatsConfig(enabled=True, min_bytes=64)
    spans = find_repeats(documents, {}, config)
    cut = RedactSpansConfig(action="keep", actions_by_type={"REPEAT": "cut"})
    result = redact_spans.with_label("cut_repeats")(documents, {"find_repeats": spans}, cut)
    after = result["documents"].read()["text"].to_pylist()
    assert sum(passage in text for text in after) == 1
    assert all("\ufffd" not in text and text for text in after)


# Files -------------------------------------------------------------------------------------------


def test_folders_and_files_may_have_characters_of_patterns_in_their_names(session, tmp_path):
    """huggingface/datasets#7468."""
    folder = tmp_path / "[D_DATA] (new) {x}"
    folder.mkdir()
    (folder / "a [1].jsonl").write_text('{"text": "inside"}\n')
    config = IngestConfig(sources=[{"kind": "jsonl", "name": "s", "path": str(folder)}])
    result = ingest(config)
    assert result["documents"].read()["text"].to_pylist() == ["inside"]
