"""Folders appear whole or not at all, and errors name the folder that was asked for."""

import errno

import pytest

from hallmark.model.interchange.atomic_files import write_folder_atomically


def check_refused(error, folder):
    assert error.errno == errno.EEXIST and error.filename == str(folder)
    assert "exists and is not empty" in error.strerror
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_folder_with_files_is_kept(tmp_path):
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "kept").write_text("kept")
    with pytest.raises(FileExistsError) as raised, write_folder_atomically(folder):
        pass
    check_refused(raised.value, folder)


@pytest.mark.parametrize("is_folder", [True, False])
def test_what_another_process_wrote_meanwhile_is_kept(tmp_path, is_folder):
    folder = tmp_path / "export"
    with pytest.raises(FileExistsError) as raised, write_folder_atomically(folder) as temporary:
        (temporary / "new").write_text("new")
        if is_folder:
            folder.mkdir()
            (folder / "kept").write_text("kept")
        else:
            folder.write_text("kept")
    check_refused(raised.value, folder)
    assert (folder / "kept" if is_folder else folder).read_text() == "kept"
