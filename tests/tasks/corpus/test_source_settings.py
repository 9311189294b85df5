"""What a source may say of itself, and the files of a folder that are its."""

import datetime
import os

import pytest
from pydantic import ValidationError

from hallmark.tasks.contract import UsageError
from hallmark.tasks.corpus.reading.hub_datasets import DatasetsSource
from hallmark.tasks.corpus.reading.sources import RecordFields, Source, find_files


def test_a_collection_ends_on_the_day_on_which_it_began_or_later():
    first, last = datetime.date(2020, 5, 1), datetime.date(2020, 5, 2)
    for one, two in ((first, first), (first, last), (first, None), (None, first), (None, None)):
        assert Source(name="s", collected_from=one, collected_to=two).collected_to == two
    with pytest.raises(ValidationError, match="collected_from is later than collected_to"):
        Source(name="s", collected_from=last, collected_to=first)


def test_names_of_what_is_planted_are_taken():
    assert Source(name="planted2/a", document_share=1, max_documents=1).name == "planted2/a"
    for name in ("planted", "planted/canary"):
        with pytest.raises(ValidationError, match="the name 'planted' is kept"):
            Source(name=name)


def test_fields_are_read_once_each():
    assert RecordFields().list_columns() == ["text"]
    assert RecordFields(
        text_field="b", key_field="a", url_field="b", date_field=""
    ).list_columns() == [
        "b",
        "a",
        "",
    ]


@pytest.mark.parametrize("ending", [".gz", ".zst", ""])
def test_files_below_a_folder_are_those_of_its_endings_and_not_hidden(tmp_path, ending):
    names = [f"b/a.txt{ending}", f"c.md{ending}", f"b/.d.txt{ending}", f"e.txt2{ending}"]
    for name in [*names, f"b/c/d.txt{ending}", "f.txt.bz2", "gtxt"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = find_files("s", str(tmp_path), (".txt", ".md"))
    assert [*found] == [f"b/a.txt{ending}", f"b/c/d.txt{ending}", f"c.md{ending}"]
    assert all(path == tmp_path / name for name, path in found.items())


def test_the_home_of_nobody_is_no_place():
    with pytest.raises(UsageError, match="source 's': nothing is at '~nobody-here/x'"):
        find_files("s", "~nobody-here/x", (".txt",))
    assert not DatasetsSource(kind="datasets", name="s", path="~nobody-here/x").is_local


def test_names_that_are_no_text_are_told_from_those_that_look_like_their_escapes(tmp_path):
    for name in (b"a\xff.txt", b"a\\udcff.txt"):
        (tmp_path / os.fsdecode(name)).write_bytes(name)
    found = find_files("s", str(tmp_path), (".txt",))
    assert {name: path.read_bytes() for name, path in found.items()} == {
        "a\\udcff.txt": b"a\xff.txt",
        "a\\\\udcff.txt": b"a\\udcff.txt",
    }
