"""A store may record that a patch release of a library counts as an earlier one."""

import json
from dataclasses import replace
from importlib.metadata import version

import pytest

from hallmark.tasks.contract import (
    ComparedRun,
    EquivalentVersion,
    EquivalentVersions,
    HallmarkError,
    Session,
    Store,
    is_patch_release,
    open_session,
)
from hallmark.tasks.contract.fingerprint import read_installed_version
from tests.tasks.contract.stages import CountConfig, MakeConfig, count, make

PYARROW = version("pyarrow")
NEWER = "{}.{}.{}".format(*PYARROW.split(".")[:2], int(PYARROW.split(".")[2]) + 1)


def install(monkeypatch, folder, library, library_version):
    """Put the metadata of another version of a library before that of the real one."""
    metadata = folder / f"{library.replace('-', '_')}-{library_version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(
        f"Metadata-Version: 2.1\nName: {library}\nVersion: {library_version}\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(folder))
    read_installed_version.cache_clear()


@pytest.fixture(autouse=True)
def forget_versions():
    yield
    read_installed_version.cache_clear()


#: The stages of tests that use pyarrow.
STAGES = ("make", "drop", "count", "train_small")


def make_record(version=NEWER, counts_as=PYARROW, library="pyarrow", stages=STAGES, **changes):
    fields = {
        "library": library,
        "version": version,
        "counts_as": counts_as,
        "declared": "2026-11-30T02:00:00+00:00",
        "platform": "a machine",
        "other_changes": {},
        "runs": [
            ComparedRun(
                run=run,
                replay=f"replay-of-{run}",
                digests={f"{stage}/{digit}0": "00" for stage in stages},
            )
            for run, digit in (("a", 1), ("b", 2))
        ],
    }
    return EquivalentVersion(**(fields | changes))


def compare(run, digests=None):
    return {"run": run, "replay": "x", "digests": {"make/0": "0"} if digests is None else digests}


def write_record(store, record):
    store.put(record.key, record.to_json())


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("26.0.1", "26.0.2", True),
        ("26.0.2", "26.0.1", True),
        ("26.0", "26.0.1", True),
        ("26", "26.0.1", True),
        ("2.13.0+cpu", "2.13.1+cpu", True),
        ("1.1.2.20261023", "1.1.3", True),
        ("1.0.0", "1.0.0.post1", True),
        ("26.0.1", "26.0.1", False),
        ("26.0", "26.0.0", False),
        ("26.0.1", "26.1.0", False),
        ("26.0.1", "27.0.1", False),
        ("26.0.1", "1!26.0.2", False),
        ("2.13.0+cpu", "2.13.1+cu130", False),
        ("2.13.0+cpu", "2.13.1", False),
        ("26.0.1", "26.0.2rc1", False),
        ("26.0.2rc1", "26.0.2rc1.post1", False),
        ("26.0.2.dev1", "26.0.1", False),
        ("26.0.1", "absent", False),
        ("", "26.0.1", False),
    ],
)
def test_only_releases_that_differ_in_the_patch_number_are_patch_releases(first, second, expected):
    assert is_patch_release(first, second) is expected


def test_a_declared_version_finds_artifacts_of_the_earlier_one(session, tmp_path, monkeypatch):
    first = count(make(MakeConfig(documents=5))["documents"], CountConfig())
    install(monkeypatch, tmp_path / "site", "pyarrow", NEWER)
    with open_session(Session(session.store)):
        undeclared = count(make(MakeConfig(documents=5))["documents"], CountConfig())
    assert undeclared.fingerprint != first.fingerprint
    assert undeclared.manifest["parts"]["libraries"]["pyarrow"] == NEWER
    assert "equivalent_versions" not in undeclared.manifest

    write_record(session.store, make_record())
    with open_session(Session(session.store)):
        cached = count(make(MakeConfig(documents=5))["documents"], CountConfig())
        computed = make(MakeConfig(documents=6))
    assert cached.fingerprint == first.fingerprint
    # A manifest names the version that was used, and the one in its fingerprint.
    assert computed.manifest["parts"]["libraries"]["pyarrow"] == NEWER
    assert computed.manifest["equivalent_versions"] == {"pyarrow": PYARROW}
    assert session.store.find_artifact("make", computed.fingerprint).name == computed.name

    # The record holds in this store only.
    with open_session(Session(Store(tmp_path / "other"))):
        assert make(MakeConfig(documents=6)).fingerprint != computed.fingerprint


def test_versions_of_libraries_of_scorers_are_replaced_too(tmp_path):
    store = Store(tmp_path / "store")
    write_record(store, make_record("2.13.1+cpu", "2.13.0+cpu", "torch"))
    external = {"torch": "2.13.1+cpu", "cheap torch": "2.13.1+cpu", "torch 2": "2.13.1+cpu"}
    others = {"digest": "2.13.1+cpu", "torch 3": "2.12.1+cpu"}
    components = {
        "stage": "count",
        "config": {"torch": "2.13.1+cpu"},
        "external": external | others,
    }
    assert EquivalentVersions(store).replace_versions(components) == {
        "stage": "count",
        "config": {"torch": "2.13.1+cpu"},
        "external": dict.fromkeys(external, "2.13.0+cpu") | others,
    }


def test_records_are_followed_to_the_first_version(tmp_path):
    store = Store(tmp_path / "store")
    for newer, older in (("1.0.1", "1.0.0"), ("1.0.2", "1.0.1"), ("1.0.5", "1.0.4")):
        write_record(store, make_record(newer, older))
    versions = EquivalentVersions(store)
    counted = [versions.count_as("pyarrow", f"1.0.{patch}", "make") for patch in range(6)]
    assert counted == ["1.0.0", "1.0.0", "1.0.0", "1.0.3", "1.0.4", "1.0.4"]
    assert versions.count_as("numpy", "1.0.1", "make") == "1.0.1"


def test_a_record_holds_for_the_stages_that_two_runs_have(session, tmp_path, monkeypatch):
    made = make(MakeConfig(documents=5))
    counted = count(made["documents"], CountConfig())
    install(monkeypatch, tmp_path / "site", "pyarrow", NEWER)
    record = make_record(stages=["make"])
    record.runs[0].digests["count/10"] = "00"  # in one run only
    write_record(session.store, record)
    with open_session(Session(session.store)):
        assert make(MakeConfig(documents=5)).fingerprint == made.fingerprint
        again = count(made["documents"], CountConfig())
    assert again.fingerprint != counted.fingerprint
    assert "equivalent_versions" not in again.manifest


def test_a_circle_of_records_is_refused(tmp_path):
    store = Store(tmp_path / "store")
    for newer, older in (("1.0.1", "1.0.0"), ("1.0.0", "1.0.1")):
        write_record(store, make_record(newer, older))
    with pytest.raises(HallmarkError, match=r"leads back to the same version\); restore .* remove"):
        EquivalentVersions(store).count_as("pyarrow", "1.0.1", "make")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"counts_as": "27.0.0"}, "its two versions must differ only in the patch number"),
        ({"counts_as": NEWER}, "its two versions must differ only in the patch number"),
        ({"counts_as": "../../etc"}, "counts_as: string should match pattern"),
        ({"counts_as": 26}, "counts_as: input should be a valid string"),
        ({"library": "numpy"}, "it describes another version"),
        ({"library": "pyarrow\x1b[31m"}, "library: string should match pattern"),
        ({"runs": [compare("a"), compare("b\nc")]}, "run: string should match pattern"),
        ({"runs": [compare("a"), compare("b" * 10**6)]}, "run: string should have at most 200"),
        ({"declared": "yesterday"}, "declared: invalid isoformat string"),
        ({"runs": []}, "runs: list should have at least 2 items"),
        ({"runs": [compare("a")]}, "at least 2 items"),
        ({"runs": [compare("a"), compare("a")]}, "it must list 2 different runs"),
        ({"runs": [compare("a"), compare("b", {})]}, "at least 1 item"),
        ({"runs": [compare("a"), compare("b", {"drop/0": "0"})]}, "that include the same stage"),
        (
            {"runs": [compare("a"), compare("a"), compare("b", {"drop/0": "0"})]},
            "that include the same stage",
        ),
        ({"runs": [compare("a"), compare("b", {"../x": "0"})]}, "string should match pattern"),
        ({"runs": None}, "runs: input should be a valid"),
        ({"policy": "none"}, "policy: extra inputs are not permitted"),
    ],
)
def test_a_damaged_record_is_refused_with_its_place_and_the_remedy(tmp_path, changes, problem):
    store = Store(tmp_path / "store")
    record = make_record()
    store.put(record.key, json.dumps(record.model_dump() | changes).encode())
    with (
        pytest.raises(HallmarkError) as raised,
        open_session(Session(store)),
    ):
        EquivalentVersions(store).count_as("pyarrow", NEWER, "make")
    sentence = str(raised.value)
    assert sentence.startswith(f"{store.root_folder}/{record.key} is damaged (")
    assert problem in sentence and sentence.isprintable() and len(sentence) < 700
    assert sentence.endswith("recompute the stages that use the library")


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"{" * 10_000, b"null"])
def test_a_record_that_is_no_object_stops_the_stage_before_it_starts(
    session, tmp_path, monkeypatch, content
):
    install(monkeypatch, tmp_path / "site", "pyarrow", NEWER)
    session.store.put(make_record().key, content)
    with (
        open_session(Session(session.store)),
        pytest.raises(HallmarkError, match=rf"pyarrow-{NEWER}\.json is damaged \("),
    ):
        make(MakeConfig(documents=5))
    assert session.store.list_folder_names("artifacts") == []


def test_other_files_among_the_records_are_ignored(session, tmp_path):
    folder = session.store.root_folder / "equivalent-versions"
    (folder / "folder-1.0.json").mkdir(parents=True)
    for name in ("note.txt", "pyarrow-26.0.1.json#1", "-1.json", ".json"):
        (folder / name).write_text("{")
    (folder / f"pyarrow-{PYARROW}.json").symlink_to(tmp_path / "elsewhere")
    assert make(MakeConfig(documents=5)).manifest["parts"]["libraries"]["pyarrow"] == PYARROW


def test_records_of_an_unused_library_are_not_read(session, monkeypatch):
    session.store.put("equivalent-versions/numpy-0.0.1.json", b"{")
    make(MakeConfig(documents=5))
    count_with_numpy = replace(count, libraries=("numpy",))
    count_with_numpy(make(MakeConfig(documents=5))["documents"], CountConfig())


def test_a_session_reads_the_list_of_records_once(session, monkeypatch):
    lists, list_keys = [], Store.list_keys
    monkeypatch.setattr(
        Store, "list_keys", lambda self, prefix: lists.append(prefix) or list_keys(self, prefix)
    )
    for documents in (5, 6, 7):
        make(MakeConfig(documents=documents))
    assert lists.count("equivalent-versions") == 1
