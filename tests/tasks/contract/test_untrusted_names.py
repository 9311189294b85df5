"""Test that no name from a file leads outside of the folder to which it is joined."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hallmark.tasks.contract import HallmarkError, Store
from hallmark.tasks.contract.tombstones import is_safe_relative_path
from tests.tasks.contract.stages import CountConfig, MakeConfig, keep_number, make

OUTSIDE = [
    "../x",
    "a/../../x",
    "..",
    "/etc/passwd",
    "//x",
    "a\\..\\x",
    "C:\\x",
    "a\0b",
    "",
    "./x",
    7,
]

TOO_LONG = ["x" * 256, "ü" * 128, "a/" * 500 + "a"]


@pytest.mark.parametrize("name", [*OUTSIDE, *TOO_LONG, None, ["x"]])
def test_names_that_lead_outside_are_detected(name):
    assert not is_safe_relative_path(name)


def test_the_longest_names_are_valid():
    assert is_safe_relative_path("/".join(["x" * 255, "ü" * 127, "a" * 200]))


@given(st.lists(st.sampled_from(["..", ".", "", "a", "b.txt", "...", "..a"]), min_size=1))
def test_valid_names_stay_in_their_folder(parts):
    name = "/".join(parts)
    if is_safe_relative_path(name):
        assert Path("/store/artifacts", name).is_relative_to("/store/artifacts")
        assert ".." not in Path(name).parts
    else:
        assert {".", "..", ""} & set(parts)


def damage(session, artifact, change):
    """Change the manifest of a committed artifact."""
    path = session.store.root_folder / artifact.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("key", ["name", "path"])
@pytest.mark.parametrize("name", [*OUTSIDE, *TOO_LONG])
def test_manifest_with_names_that_lead_outside_is_refused(session, key, name):
    (session.store.root_folder / "x").write_text("7")  # where some of the names lead
    for artifact, where in (
        (make(MakeConfig(documents=5)), lambda m: m["tables"]["documents"]["parts"][0]),
        (make(MakeConfig(documents=6)), lambda m: m["telemetry"]["telemetry"]["parts"][0]),
        (keep_number(CountConfig()), lambda m: m["files"]["number.txt"]),
    ):
        damage(session, artifact, lambda m, where=where: where(m).update({key: name}))
        sentence = r"artifact \w+/\w+ is damaged: its manifest.json in .* remove the artifact"
        with pytest.raises(HallmarkError, match=sentence):
            session.store.find_artifact(artifact.stage, artifact.fingerprint)
        with pytest.raises(HallmarkError, match=sentence):
            session.store.list_artifacts(artifact.stage)
        (session.store.root_folder / artifact.folder / "manifest.json").unlink()


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(content="0" * 64),
        lambda m: m["parts"].update(code=7),
        lambda m: m["tables"]["documents"].update(rows=4),
        lambda m: m["tables"]["documents"]["parts"][0].update(rows=4),
        lambda m: m["tables"]["documents"]["parts"].append(m["tables"]["documents"]["parts"][0]),
        lambda m: m["tables"]["documents"]["columns"][0].update(kind="label"),
        lambda m: m["tables"]["documents"]["columns"][0].update(x="y"),
        lambda m: m["tables"]["documents"]["columns"][0].update(name={}),
        lambda m: m["tables"].pop("documents"),
        *(
            lambda m, pieces=pieces: m["tables"]["documents"].update(pieces=pieces)
            for pieces in ([], [2], [0, 1], [2, -1], ["1"], [True], 1, None)
        ),
    ],
)
def test_contradictory_manifest_is_refused(session, change):
    artifact = make(MakeConfig(documents=5))
    damage(session, artifact, change)
    with pytest.raises(
        HallmarkError, match=r"is damaged: its manifest.json in .* is incomplete or invalid"
    ):
        session.store.find_artifact(artifact.stage, artifact.fingerprint)


@pytest.mark.parametrize("stage, digest", [("..", "../x"), ("make", "../../x"), ("/etc", "x")])
def test_artifact_name_that_leads_outside_is_refused(session, stage, digest):
    with pytest.raises(HallmarkError, match="is not an artifact name"):
        session.store.find_artifact(stage, digest)


def convert_to_former_layout(manifest):
    """Convert manifests to the former layout, in which a table was one file."""
    del manifest["layout"]
    for group in ("tables", "telemetry"):
        for name, entry in manifest[group].items():
            part = entry["parts"][0]
            kept = {key: part[key] for key in ("size", "sha256", "rows")}
            manifest[group][name] = kept | {"name": f"{name}.parquet", "path": f"0a/{name}.parquet"}


@pytest.mark.parametrize("path", [True, False])
def test_artifact_of_former_layout_is_reported(session, path):
    artifact = make(MakeConfig(documents=5))

    def change(manifest):
        convert_to_former_layout(manifest)
        if not path:
            del manifest["tables"]["documents"]["path"]

    damage(session, artifact, change)
    sentence = r"artifact make/\w+ was written by another version of Hallmark.* run again"
    for ask in (
        lambda: make(MakeConfig(documents=5)),
        lambda: session.store.find_artifact("make", artifact.fingerprint),
        lambda: Store(session.store.uri).list_artifacts("make"),
    ):
        with pytest.raises(HallmarkError, match=sentence):
            ask()


@pytest.mark.parametrize("layout", [1, 3, "2", None])
def test_artifact_of_future_layout_is_reported(session, layout):
    artifact = make(MakeConfig(documents=5))
    damage(session, artifact, lambda manifest: manifest.update(layout=layout))
    with pytest.raises(HallmarkError, match="was written by another version"):
        make(MakeConfig(documents=5))
