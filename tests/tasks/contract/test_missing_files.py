"""Test that the output of a stage is not reused if files are missing."""

import os
from dataclasses import replace

import pytest

from hallmark.tasks.contract import HallmarkError, Session, Store, open_session
from tests.tasks.contract.stages import (
    FOUR_PARTS,
    CountConfig,
    MakeConfig,
    count,
    double,
    keep_number,
    make,
)

#: The beginning of a file's name, by what it holds.
FILES = {"table": "documents/", "telemetry": "telemetry", "file": "number.txt"}


def remove(path):
    path.unlink()


def shorten(path):
    os.truncate(path, path.stat().st_size - 1)


def lengthen(path):
    path.write_bytes(path.read_bytes() + b"x")


@pytest.mark.parametrize("damage", [remove, shorten, lengthen])
@pytest.mark.parametrize("place", ["table", "telemetry", "file"])
def test_damaged_file_of_stored_output_is_named(session, damage, place):
    stage, config = (keep_number, CountConfig()) if place == "file" else (make, FOUR_PARTS)
    made = stage(config)
    entries = {entry["name"]: entry for entry in made.iter_file_entries()}
    name = max(name for name in entries if name.startswith(FILES[place]))
    entry = entries[name]
    damage(made.location.fetch_file(entry))
    with (
        open_session(Session(session.store)),
        pytest.raises(HallmarkError, match=rf"artifact {made.name} is damaged: .*{entry['name']} "),
    ):
        stage(config)


def test_input_from_outside_the_run_is_checked(session):
    """A checkpoint, for instance, is an artifact in addition to that of its training."""
    number = keep_number(CountConfig())
    double(number, CountConfig())
    number.fetch_file("number.txt").unlink()
    with (
        open_session(Session(session.store)),
        pytest.raises(HallmarkError, match=r"number\.txt is missing; remove the artifact's folder"),
    ):
        double(number, CountConfig())


def test_only_the_tables_that_are_read_are_checked(session):
    """Tables that a stage does not read may be missing."""
    made = make(FOUR_PARTS)
    count(made["documents"], CountConfig())
    kept = replace(made, manifest={**made.manifest, "tables": {}})
    with open_session(Session(session.store)) as again:
        again.check_artifact_file_sizes([kept, made])
        made["documents"].parts[0].path.unlink()
        again.check_artifact_file_sizes([made])  # checked already in this session
    with open_session(Session(session.store)) as again:
        again.check_artifact_file_sizes([kept])
        with pytest.raises(HallmarkError, match="is missing"):
            again.check_artifact_file_sizes([made])


def test_missing_object_is_named_despite_cached_copy(bucket, tmp_path):
    store = Store("s3://hallmark/missing", tmp_path)
    config = MakeConfig(documents=7)
    with open_session(Session(store)):
        made = make(config)
        assert made["documents"].read().num_rows == 7
    key = f"missing/{made.folder}/{made['documents'].parts[0].entry['path']}"
    bucket.delete_object(Bucket="hallmark", Key=key)
    with (
        open_session(Session(store)),
        pytest.raises(HallmarkError, match=rf"damaged: s3://hallmark/{key} is missing"),
    ):
        make(config)
    bucket.put_object(Bucket="hallmark", Key=key, Body=b"x")
    with open_session(Session(store)), pytest.raises(HallmarkError, match="has 1 byte instead of"):
        make(config)


def test_verification_reads_objects_instead_of_cached_copies(bucket, tmp_path):
    store = Store("s3://hallmark/verified", tmp_path)
    with open_session(Session(store)):
        made = make(MakeConfig(documents=7))
    made["documents"].read()
    made.verify_files()
    entry = made["documents"].parts[0].entry
    key = f"verified/{made.folder}/{entry['path']}"
    bucket.put_object(Bucket="hallmark", Key=key, Body=bytes(entry["size"]))
    with pytest.raises(HallmarkError, match="does not match the SHA-256 in its manifest"):
        made.verify_files()
    bucket.delete_object(Bucket="hallmark", Key=key)
    with pytest.raises(HallmarkError, match=rf"s3://hallmark/{key} is missing"):
        made.verify_files()
