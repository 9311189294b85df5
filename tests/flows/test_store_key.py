"""The key of a store is in one file, which only its owner can read."""

import base64
import os
import shutil
import stat
from pathlib import Path

import pytest

from hallmark.flows.store_copy import copy_runs
from hallmark.tasks.contract import Store


def contains_key(content: bytes, key: bytes) -> bool:
    """Whether a file contains the key in one of the forms in which a program writes bytes."""
    forms = (key, key.hex().encode(), key.hex().upper().encode(), base64.b64encode(key)[:-2])
    return any(form in content for form in (*forms, base64.urlsafe_b64encode(key)[:-2]))


def find_files_with_key(folder: Path, key: bytes) -> list[str]:
    return [
        path.relative_to(folder).as_posix()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and contains_key(path.read_bytes(), key)
    ]


def read_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def no_umask():
    """Let new files be readable and writable for everybody."""
    earlier_umask = os.umask(0)
    yield
    os.umask(earlier_umask)


def test_forms_of_the_key_are_found(tmp_path):
    key = bytes(range(200, 232))
    for name, content in {
        "raw": key,
        "hex": key.hex().encode(),
        "base64": base64.b64encode(key),
        "none": b"another",
    }.items():
        (tmp_path / name).write_bytes(b"x" + content + b"x")
    assert find_files_with_key(tmp_path, key) == ["base64", "hex", "raw"]


def test_no_file_of_a_run_contains_the_key_except_the_one(apart, tmp_path):
    """The store of the smoke run has artifacts, run.json, work areas, lists and the site."""
    key = Store(apart.store).secret
    assert find_files_with_key(apart.store, key) == ["secret"]
    assert read_mode(apart.store / "secret") == 0o600
    assert (apart.store / "site").is_dir() and (apart.store / "work").is_dir()
    apart("export-cards", apart.first, "--output", str(tmp_path / "cards"))
    apart("export-site", "--output", str(tmp_path / "site"))
    apart("export-site", "--unredacted", apart.first, "--output", str(tmp_path / "open"), code=0)
    assert len([*tmp_path.rglob("*.html")]) > 10
    assert find_files_with_key(tmp_path, key) == []


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_the_key_is_private_whatever_the_umask(tmp_path, umask):
    store = Store(tmp_path / "store")
    earlier_umask = os.umask(umask)
    try:
        store.set_secret_if_absent(b"k" * 32)
    finally:
        os.umask(earlier_umask)
    assert read_mode(tmp_path / "store" / "secret") == 0o600
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["secret"]


def test_a_copied_store_has_a_private_key(apart, tmp_path, no_umask):
    target = Store(tmp_path / "target")
    copy_runs(Store(apart.store), target, [apart.first])
    assert read_mode(tmp_path / "target" / "secret") == 0o600
    assert find_files_with_key(tmp_path / "target", target.secret) == ["secret"]


def test_a_key_that_others_can_read_is_named(apart, tmp_path, caplog):
    shutil.copytree(apart.store, tmp_path / "copy", copy_function=shutil.copyfile)
    (tmp_path / "copy" / "secret").chmod(0o640)
    store = Store(tmp_path / "copy")
    assert store.secret and store.secret
    [warning] = caplog.messages
    assert warning == (
        f"other users can read the store's key {tmp_path}/copy/secret (mode 0640); restrict "
        f"access with: chmod 600 {tmp_path}/copy/secret"
    )
