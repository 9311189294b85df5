"""Test reading of item files: all formats, and the location of errors."""

import csv
import gzip
import json

import pytest

from hallmark.tasks.contract import UsageError, hash_file
from hallmark.tasks.measures.item_files import (
    get_name_field,
    get_text_field,
    get_text_list_field,
    read_items,
    user_file_digest,
)

ROWS = [{"text": "wörd", "id": "1"}, {"text": 'a "b",\tc', "id": "2"}]
FORMS = {
    "a.jsonl": "\n" + "\n \n".join(json.dumps(row) for row in ROWS) + "\n",
    "a.csv": 'text,id\nwörd,1\n"a ""b"",\tc",2\n',
    "a.tsv": 'text\tid\nwörd\t1\n"a ""b"",\tc"\t2\n',
}


def read(path):
    return list(read_items(path, "prompts"))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("compressed", [False, True])
def test_every_format_gives_the_same_items_with_their_lines(tmp_path, name, compressed):
    path = tmp_path / (name + ".gz" * compressed)
    data = FORMS[name].encode()
    mark = b"\xef\xbb\xbf" * (name == "a.csv")  # A byte-order mark, as some programs write it.
    path.write_bytes(gzip.compress(mark + data) if compressed else mark + data)
    lines = (2, 4) if name == "a.jsonl" else (2, 3)
    assert read(path) == [
        (f"{path}, line {line}", row) for line, row in zip(lines, ROWS, strict=True)
    ]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b"", "has no prompts: the file is empty"),
        ("a.jsonl", b"\n \n", "has no prompts: the file is empty"),
        ("a.csv", b"text,id\n", "has no prompts: the file is empty"),
        ("a.jsonl", b'{"a": 1}\n{"a"\n', "line 2 is not valid JSON"),
        ("a.jsonl", b"{}\n\n" + b"[" * 100_000, "line 3 is not valid JSON"),
        ("a.jsonl", b'{"a": 1}\n"b"\n', "line 2 is not a JSON object"),
        ("a.jsonl", b'{"a": 1}\n\xff\n', "is not UTF-8 text after item 0"),
        (
            "a.jsonl",
            b'{"a": 1}\n{"a": "b',
            "line 2 is not valid JSON: .*; the file may be truncated$",
        ),
        ("a.csv", b'text,id\na,1\n"b\n', "cannot be read after line 2: unexpected end of data; "),
        (
            "a.csv",
            b'text\n"a"b\n',
            "cannot be read after line 1: .* a quotation mark may be missing",
        ),
        ("a.jsonl.gz", b"no gzip at all", "cannot be read after item 0: Not a gzipped file"),
        ("a.jsonl.gz", gzip.compress(b"{}\n" * 9, mtime=0)[:-9], "Compressed file ended"),
    ],
)
def test_an_error_is_reported_with_its_location(tmp_path, name, content, says):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError, match=says) as raised:
        read(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("age", "age"),
        (" age\u200b ", "age"),
        ("AGE", "age"),
        ("\ufeffSocio  economic\n", "socio economic"),
        ("hats", "hats"),
        ("Hats\u2060", "Hats"),
        ("e\u0301cole", "\u00e9cole"),
    ],
)
def test_one_group_has_one_name(name, expected):
    assert get_name_field("here", {"x": name}, "x", ("age", "socio economic")) == expected


def test_a_name_without_a_visible_character_is_refused():
    with pytest.raises(UsageError, match="here has no visible characters in 'x'"):
        get_name_field("here", {"x": "\u200b\u2060"}, "x")


def test_a_field_that_is_too_long_is_reported_with_its_location(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text\n" + "a" * 200)
    limit = csv.field_size_limit(100)
    try:
        with pytest.raises(UsageError, match="cannot be read after line 1: field larger than fiel"):
            read(path)
    finally:
        csv.field_size_limit(limit)


def test_a_file_with_too_many_items_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr("hallmark.tasks.measures.item_files.MAX_ITEMS", 3)
    path = tmp_path / "a.jsonl"
    path.write_text("{}\n" * 3)
    assert len(read(path)) == 3
    path.write_text("{}\n" * 4)
    with pytest.raises(UsageError, match="has more than 3 prompts; reduce their number"):
        read(path)


def test_a_field_is_found_by_name_or_by_path():
    item = {"a": {"b": " x ", "c": {"d": "deep"}}, "a.b": "plain", "e.f": 7, "e": {"f": "other"}}
    assert get_text_field("p", item, "a.b") == "plain"
    assert get_text_field("p", item, "a.c.d") == "deep"
    assert get_text_field("p", {"a": {"b": " x "}}, "a.b") == " x "
    with pytest.raises(UsageError, match=r"^p must have text in 'e\.f', not 7$"):
        get_text_field("p", item, "e.f")


@pytest.mark.parametrize("value", [None, "", " \n", 7, ["x"], {"b": "x"}, {}])
def test_a_field_without_text_is_rejected(value):
    for item in ({"a": value}, {"b": "x"}, {"a": {"a": value}}):
        for name in ("a", "a.a"):
            with pytest.raises(UsageError, match=f"^p must have text in '{name}', not "):
                get_text_field("p", item, name)


def test_an_invalid_value_is_shown_up_to_sixty_characters():
    with pytest.raises(UsageError) as raised:
        get_text_field("p", {"a": ["x" * 100]}, "a")
    assert str(raised.value) == "p must have text in 'a', not ['" + "x" * 58


def test_a_missing_field_is_reported_with_the_existing_ones():
    with pytest.raises(UsageError) as raised:
        get_text_field("p", {"sent": "x", "k" * 100: 1}, "sentence")
    has = "'sent', '" + "k" * 59
    assert (
        str(raised.value)
        == f"p must have text in 'sentence', not None; its fields are {has} (did you mean sent?)"
    )
    with pytest.raises(UsageError, match=r"its fields are none$"):
        get_text_field("p", {}, "a")


def test_a_lone_surrogate_is_rejected():
    item = json.loads('{"a": "\\ud83d", "b": "\\ud83d\\ude00"}')
    assert get_text_field("p", item, "b") == "\U0001f600"
    with pytest.raises(UsageError, match=r"^p has invalid Unicode text in 'a'"):
        get_text_field("p", item, "a")


def test_the_digest_of_a_users_file_is_its_hash(tmp_path):
    path = tmp_path / "a.jsonl"
    with pytest.raises(UsageError, match=r"there is no file .*a\.jsonl with the prompts"):
        user_file_digest(path, "prompts")
    with pytest.raises(UsageError, match="is a folder"):
        user_file_digest(tmp_path, "prompts")
    path.write_text("{}")
    assert user_file_digest(path, "prompts") == {"prompts": hash_file(path)}
    assert user_file_digest(None, "prompts") == {}


def test_a_row_with_too_few_fields_is_rejected(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,id,kind\nx,1,k\ny,2\n")
    with pytest.raises(UsageError, match=r"a\.csv, line 3 has 2 fields, but the header has 3"):
        read(path)
    path.write_text("text,id\nx,\n")  # an empty field is no missing one
    assert [row.fields for row in read(path)] == [{"text": "x", "id": ""}]


def test_a_folder_in_place_of_a_file_is_said_to_be_one(tmp_path):
    with pytest.raises(
        UsageError, match=r"is a folder; specify the path of the file that contains the prompts"
    ):
        read(tmp_path)


def test_a_nul_character_is_rejected():
    with pytest.raises(UsageError, match=r"^p has a NUL character in 'a'; the file"):
        get_text_field("p", {"a": "x\0y"}, "a")


def test_a_field_that_is_there_but_null_is_not_suggested():
    with pytest.raises(UsageError, match=r"its fields are 'a'$"):
        get_text_field("p", {"a": None}, "a")


DEEP = [[[[["deep"]]]]]


@pytest.mark.parametrize(
    ("item", "field", "texts"),
    [
        ({"a": "x"}, "a", ["x"]),
        ({"a": 12}, "a", ["12"]),
        ({"a": 1.5}, "a", ["1.5"]),
        ({"a": ["x", ["y", None, " "], 3]}, "a", ["x", "y", "3"]),
        ({"a": {"b": ["x"]}}, "a.b", ["x"]),
        ({"a": [{"b": "x"}, {"b": ["y", "z"]}, {}, "text"]}, "a.b", ["x", "y", "z"]),
        ({"a.b": "x", "a": {"b": "y"}}, "a.b", ["x"]),
        ({"a": "x"}, "a.b", []),
        ({"a": DEEP}, "a", ["deep"]),
        ({"a": None}, "a", []),
        ({"a": "\n"}, "a", []),
        ({}, "a", []),
    ],
)
def test_a_list_field_has_the_texts_of_all_its_values(item, field, texts):
    assert get_text_list_field("file", item, field) == texts


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (True, "file must have text in 'a', not True"),
        (["x", {"b": "y"}], r"file must have text in 'a', not \{'b': 'y'\}"),
        (["x\0"], "file has a NUL character in 'a'"),
        (["\ud800"], "file has invalid Unicode text in 'a'"),
    ],
)
def test_a_list_field_with_another_value_is_refused(value, message):
    with pytest.raises(UsageError, match=message):
        get_text_list_field("file", {"a": value}, "a")


def test_a_deeply_nested_list_is_read():
    nested = "x"
    for _ in range(100_000):
        nested = [nested]
    assert get_text_list_field("file", {"a": nested}, "a") == ["x"]
