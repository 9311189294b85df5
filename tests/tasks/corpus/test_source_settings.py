"""Test the settings of a source, and which files of a folder belong to it."""

import datetime
import os

import pytest
from pydantic import ValidationError

from hallmark.tasks.contract import UsageError
from hallmark.tasks.corpus.reading.hub_datasets import DatasetsSource
from hallmark.tasks.corpus.reading.sources import RecordFields, Source, find_paths_by_file_name


def test_a_collection_may_not_end_before_it_begins():
    first, last = datetime.date(2020, 5, 1), datetime.date(2020, 5, 2)
    for start, end in ((first, first), (first, last), (first, None), (None, first), (None, None)):
        assert Source(name="s", collected_from=start, collected_to=end).collected_to == end
    with pytest.raises(ValidationError, match="'collected_from' is later than 'collected_to'"):
        Source(name="s", collected_from=last, collected_to=first)


def test_the_name_planted_is_reserved():
    assert Source(name="planted2/a", document_share=1, max_documents=1).name == "planted2/a"
    for name in ("planted", "planted/canary"):
        with pytest.raises(ValidationError, match="the name 'planted' is reserved"):
            Source(name=name)


def test_each_field_is_read_once():
    assert RecordFields().list_columns() == ["text"]
    assert RecordFields(
        text_field="b", key_field="a", url_field="b", date_field=""
    ).list_columns() == [
        "b",
        "a",
        "",
    ]


@pytest.mark.parametrize("ending", [".gz", ".zst", ".zstd", ".bz2", ".xz", ".GZ", ""])
def test_files_of_a_folder_have_its_suffixes_and_are_not_hidden(tmp_path, ending):
    names = [f"b/a.txt{ending}", f"c.md{ending}", f"b/.d.txt{ending}", f"e.txt2{ending}"]
    for name in [*names, f"b/c/d.txt{ending}", "f.txt.zip", "gtxt"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    files = find_paths_by_file_name("s", str(tmp_path), (".txt", ".md"))
    assert [*files] == [f"b/a.txt{ending}", f"b/c/d.txt{ending}", f"c.md{ending}"]
    assert all(path == tmp_path / name for name, path in files.items())


def test_the_home_folder_of_an_unknown_user_is_not_found():
    with pytest.raises(UsageError, match="source 's': no file exists at '~nobody-here/x'"):
        find_paths_by_file_name("s", "~nobody-here/x", (".txt",))
    assert not DatasetsSource(kind="datasets", name="s", path="~nobody-here/x").is_local


def test_names_that_are_not_utf8_differ_from_their_escaped_forms(tmp_path):
    for name in (b"a\xff.txt", b"a\\udcff.txt"):
        (tmp_path / os.fsdecode(name)).write_bytes(name)
    files = find_paths_by_file_name("s", str(tmp_path), (".txt",))
    assert {name: path.read_bytes() for name, path in files.items()} == {
        "a\\udcff.txt": b"a\xff.txt",
        "a\\\\udcff.txt": b"a\\udcff.txt",
    }
