"""Test JSON files that are not JSON Lines: lists, and objects over several lines."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.tasks.corpus.reading import byte_streams, dialects, json_documents
from hallmark.tasks.corpus.reading.compressed_members import DAMAGED_DATA
from hallmark.tasks.corpus.reading.json_documents import (
    BROKEN_JSON,
    LIST_IN_JSON_LINES,
    OBJECTS_OVER_LINES,
    is_json_document,
)
from hallmark.tasks.corpus.reading.readers import NOT_OBJECT, NOT_UTF8, TOO_LONG, suggest_remedy
from tests.tasks.corpus.reader_helpers import COMPRESS_BY_ENDING, get_texts, read_checked

TEXTS = ["one, [two]", 'a "quote" {', "\u4e94\u2028\n", ""]
OBJECTS = [{"text": text, "n": {"m": [1, None]}} for text in TEXTS]

LAYOUTS = {
    "lines": "\n".join(map(json.dumps, OBJECTS)),
    "list": json.dumps(OBJECTS),
    "list without escapes": json.dumps(OBJECTS, ensure_ascii=False),
    "indented list": json.dumps(OBJECTS, indent=2),
    "indented objects": "\n".join(json.dumps(each, indent="\t") for each in OBJECTS),
    "two lists": json.dumps(OBJECTS[:2]) + "\n" + json.dumps(OBJECTS[2:], indent=1),
    "list of lines": "[\n" + ",\n".join(map(json.dumps, OBJECTS)) + "\n]\n",
    "byte order mark": "\ufeff" + json.dumps(OBJECTS, indent=2),
    "blank lines": "\n \n[" + ",\n\n".join(map(json.dumps, OBJECTS)) + "\n\n]\n\n",
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ending", ["", *COMPRESS_BY_ENDING])
@pytest.mark.parametrize("block", [7, 1 << 20])
def test_objects_in_any_layout_are_read(write, monkeypatch, layout, ending, block):
    monkeypatch.setattr(byte_streams, "BLOCK_BYTES", block)
    data = COMPRESS_BY_ENDING.get(ending, bytes)(LAYOUTS[layout].encode())
    documents, errors, _ = read_checked(write(f"a.json{ending}", data), "jsonl")
    assert (get_texts(documents), errors) == (TEXTS, [])


def test_only_files_with_the_ending_json_are_no_json_lines(write):
    data = b'[{"text": "a"}]\n'
    for name, is_document in (
        ("a.json", True),
        ("a.JSON", True),
        ("a.jsonl", False),
        ("a.json.txt", False),
        ("json", False),
    ):
        assert is_json_document(write(name, data)) == is_document
    assert is_json_document(write("a.json.GZ", COMPRESS_BY_ENDING[".gz"](data)))
    assert not is_json_document(write("b.json", b'\r\n\xc2\xa0\n{"text": "a"}\n[]'))
    assert not is_json_document(write("c.json", b""))
    assert is_json_document(write("d.json", b"[" * 100_000))


@pytest.mark.parametrize(
    ("text", "is_document"),
    [
        ('{"text": "a\n{"text": "b"}\n', False),
        ('Export\n\n{"text": "b"}\n{"text": "c"}\n', False),
        ('{"text": "a",}\r\n{"text": "b"}\r\nx\r\n{"text": "c"}', False),
        ('{"text": "a\n{"text": "b"}\nx\n', True),
        ('["id"]\n{"text": "b"}\n{"text": "c"}\n', True),
        ('{\n"text": "b"}\n', True),
        ('[\n{"text": "a"},\n{"text": "b"}\n]\n', True),
        ('[\n{"text": "a"}\n]', True),
        ('{"a": 1,\n"b":\n{}\n}', True),
        ('{"text": ', True),
        ("5", True),
        ("\n5\n{}\n{}\n", False),
    ],
)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_broken_first_line_decides_nothing(write, text, is_document, mark):
    assert is_json_document(write("a.json", (mark + text).encode())) == is_document


def test_only_complete_lines_at_the_beginning_are_examined(write, monkeypatch):
    text = 'x\n{"text": "a"}\n{"text": "long"}\n'
    monkeypatch.setattr(dialects, "HEAD_BYTES", 20)
    assert not is_json_document(write("a.json", text.encode()))
    monkeypatch.setattr(dialects, "HEAD_BYTES", 10)
    assert is_json_document(write("b.json", text.encode()))
    monkeypatch.setattr(dialects, "HEAD_BYTES", 1000)
    monkeypatch.setattr(json_documents, "MAX_EXAMINED_LINES", 2)
    assert not is_json_document(write("c.json", text.encode()))
    assert is_json_document(write("d.json", b"x\n" + text.encode()))


def test_a_broken_line_affects_no_other_line_wherever_it_is(write):
    lines = [json.dumps({"text": f"{number}"}) for number in range(5)]
    for broken in range(5):
        data = "\n".join([*lines[:broken], '{"text": "b', *lines[broken + 1 :]]).encode()
        documents, errors, _ = read_checked(write("a.json", data), "jsonl")
        assert get_texts(documents) == [str(number) for number in range(5) if number != broken]
        assert errors == [(f"line {broken + 1}, character 10", BROKEN_JSON)]


@pytest.mark.parametrize(
    "data",
    [
        json.dumps(OBJECTS),
        json.dumps(OBJECTS, indent=2),
        "\ufeff\n [" + ",\n".join(map(json.dumps, OBJECTS)) + "]\n",
        "[{}]\n[{}]\n",
        "[" + '{"text": ',
    ],
)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_list_in_a_file_of_json_lines_is_one_error(write, data, ending):
    packed = COMPRESS_BY_ENDING.get(ending, bytes)(data.encode())
    for name in ("a.jsonl", "a.ndjson", "a.txt"):
        documents, errors, counts = read_checked(write(f"{name}{ending}", packed), "jsonl")
        assert (documents, errors) == ([], [("whole file", LIST_IN_JSON_LINES)])
        assert counts.skipped_bytes == (4 if data.startswith("\ufeff") else 0)
    assert suggest_remedy(LIST_IN_JSON_LINES).startswith(
        "rename the file so that its name ends in .json, or "
    )


@pytest.mark.parametrize(
    ("data", "is_refused"),
    [
        ("\n".join(json.dumps(each, indent=1) for each in OBJECTS), True),
        ('\ufeff\n{\n"text": "a"}\n', True),
        ('{"text": "a",\r\n"b": 1}\r\n{\r\n"text": "b"}\r\n', True),
        ('{\n"text": "a"}\n{"text": "b"}\n{"text": "c"}\n', False),
        ('{"text": "a"\n{"text": "b"\n', False),
        ('"text":\n{}', False),
        ("{", False),
    ],
)
def test_objects_over_several_lines_in_a_file_of_json_lines_are_one_error(write, data, is_refused):
    documents, errors, _ = read_checked(write("a.jsonl", data.encode()), "jsonl")
    assert (errors == [("whole file", OBJECTS_OVER_LINES)]) == is_refused
    assert OBJECTS_OVER_LINES not in [error for _, error in errors] or documents == []
    assert suggest_remedy(OBJECTS_OVER_LINES).startswith(
        "rename the file so that its name ends in .json, or "
    )


def test_a_list_among_json_lines_is_one_bad_line(write):
    data = b'["id"]\n{"text": "a"}\n[{"text": "b"}]\n'
    documents, errors, _ = read_checked(write("a.jsonl", data + b'{"text": "c"}\n' * 2), "jsonl")
    assert get_texts(documents) == ["a", "c", "c"]
    assert errors == [("line 1", NOT_OBJECT), ("line 3", NOT_OBJECT)]


def test_a_single_object_is_a_document(write):
    path = write("a.json", b'{\n  "text":\n  "a"\n}')
    documents, errors, _ = read_checked(path, "jsonl")
    assert [(r.text, r.location, r.raw_bytes) for r in documents] == [("a", "line 1", 19)]
    _, errors, _ = read_checked(write("b.json", b'{\n"data": [{"text": "a"}]}'), "jsonl")
    assert errors == [("line 1", "field 'text' is missing")]


def test_bad_values_of_a_list_affect_no_others(write):
    data = b'[{"text": "a"},\n5,\n"x",\n{"text": 5},\n{"text": "\xff"},\n[],\n{"text": "b"}]'
    documents, errors, _ = read_checked(write("a.json", data), "jsonl")
    assert [(r.text, r.location) for r in documents] == [("a", "line 1"), ("b", "line 7")]
    assert errors == [
        ("line 2", "not a JSON object"),
        ("line 3", "not a JSON object"),
        ("line 4", "field 'text' is not text"),
        ("line 5, byte 11", NOT_UTF8),
        ("line 6", "not a JSON object"),
    ]


@pytest.mark.parametrize(
    "rest", [b'{"text": ', b'{"text": "b"', b"x", b'{"text" "c"}, {"text": "d"}]']
)
def test_the_rest_after_a_broken_value_is_one_error(write, rest):
    data = b'[{"text": "a"},\n' + rest
    documents, errors, counts = read_checked(write("a.json", data), "jsonl")
    assert (get_texts(documents), errors) == (["a"], [("line 2", BROKEN_JSON)])
    assert counts.skipped_bytes == 3


@pytest.mark.parametrize("block_bytes", range(1, 9))
def test_a_number_at_the_end_of_a_block_is_one_value(write, monkeypatch, block_bytes):
    monkeypatch.setattr(byte_streams, "BLOCK_BYTES", block_bytes)
    path = write("a.json", b'[12345,\n67,\n{"text": "a"}]')
    documents, errors, _ = read_checked(path, "jsonl")
    assert get_texts(documents) == ["a"]
    assert errors == [("line 1", NOT_OBJECT), ("line 2", NOT_OBJECT)]


def test_a_list_that_does_not_end_is_an_error(write):
    documents, errors, _ = read_checked(write("a.json", b'[{"text": "a"}\n'), "jsonl")
    assert (get_texts(documents), errors) == (["a"], [("line 2", BROKEN_JSON)])


def test_a_value_that_is_too_long_is_an_error(write, monkeypatch):
    rows = [{"text": "a"}, {"text": "x" * 600}, {"text": "b"}]
    path = write("a.json", json.dumps(rows).encode())
    documents, errors, _ = read_checked(path, "jsonl", limit=500)
    assert (get_texts(documents), errors) == (["a", "b"], [("line 1", TOO_LONG)])
    rows[1]["text"] *= 5
    path = write("b.json", json.dumps(rows).encode())
    monkeypatch.setattr(json_documents, "BLOCK_BYTES", 50)
    monkeypatch.setattr(byte_streams, "BLOCK_BYTES", 50)
    documents, errors, _ = read_checked(path, "jsonl", limit=500)
    assert (get_texts(documents), errors) == (["a"], [("line 1", TOO_LONG)])


def test_values_before_damage_are_read(write):
    pack = COMPRESS_BY_ENDING[".gz"]
    data = pack(b'[{"text": "a"},\n{"text": "b"}') + b"x" * 20 + pack(b',{"text": "c"}]')
    documents, errors, counts = read_checked(write("a.json.gz", data), "jsonl")
    assert (get_texts(documents), errors) == (["a", "b"], [("line 2", DAMAGED_DATA)])
    assert counts.lost_bytes == 20


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3)
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), max_size=5),
    others=json_values,
    indent=st.sampled_from([None, 0, 3]),
    is_list=st.booleans(),
    block=st.integers(1, 60),
)
def test_texts_are_read_back(tmp_path_factory, texts, others, indent, is_list, block):
    rows = [{"text": text, "other": others} for text in texts]
    path = tmp_path_factory.mktemp("json") / "a.json"
    dumped = [rows] if is_list else rows
    path.write_text("\n".join(json.dumps(each, indent=indent) for each in dumped), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(byte_streams, "BLOCK_BYTES", block)
        documents, errors, _ = read_checked(path, "jsonl", limit=10**6)
    assert get_texts(documents) == texts
    assert [error for _, error in errors] == ["the file is empty"] * (not texts and not is_list)


@settings(deadline=None)
@given(st.text('[]{},:"\\ \n1a\ufeff', max_size=30))
def test_every_byte_of_a_broken_file_is_counted(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("json") / "a.json"
    path.write_text(text, "utf-8")
    _, errors, counts = read_checked(path, "jsonl")
    assert counts.byte_count == len(text.encode())
    try:
        json.loads(text)
    except ValueError:
        assert errors or not text.strip("[], \n\ufeff")
