"""Manifests are parsed as hostile: one sentence names the file, the field and a remedy."""

import json

import pytest

from hallmark.tasks.contract import Artifact, HallmarkError
from hallmark.tasks.contract.manifests import parse_manifest
from tests.tasks.contract.stages import MakeConfig, make
from tests.time_limits import limit_time

DAMAGED = (
    r"^artifact \w+/\w+ is damaged: its manifest\.json in .* is incomplete or invalid \({problem}"
    r".*\); remove the artifact's folder and run again to rebuild it$"
)


def parse(manifest):
    return parse_manifest(json.dumps(manifest).encode(), "make/0123", "STORE/artifacts/make/0123")


@pytest.fixture
def manifest(session):
    artifact = make(MakeConfig(documents=5))
    path = session.store.root_folder / artifact.folder / "manifest.json"
    return json.loads(path.read_text())


def remove(*keys):
    def change(manifest):
        *groups, last = keys
        for key in groups:
            manifest = manifest[key]
        del manifest[last]

    return change


def replace(value, *keys):
    def change(manifest):
        *groups, last = keys
        for key in groups:
            manifest = manifest[key]
        manifest[last] = value

    return change


TABLE = ("tables", "documents")
PART = (*TABLE, "parts", 0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (remove("created"), "created: field required"),
        (remove("stage"), "stage: field required"),
        (replace("yesterday", "created"), "created: invalid isoformat string"),
        (replace(7, "created"), "created: input should be a valid string"),
        (replace("0001-01-01T00:00:00+14:00", "created"), "created: the year must be between 1970"),
        (replace("9999-12-31T23:59:59-14:00", "created"), "created: the year must be between 1970"),
        (replace("../x", "stage"), "stage: string should match pattern"),
        (replace("0g", "fingerprint"), "fingerprint: string should match pattern"),
        (replace([], "parts"), "parts: input should be a valid dictionary"),
        (replace({}, "parts"), "parts.config: field required"),
        (remove("parts", "code"), "parts.code: field required"),
        (replace({"x": []}, "parts", "external"), "parts.external.x: input should be a valid str"),
        (replace({"x": {}}, "parts", "libraries"), "parts.libraries.x: input should be a valid s"),
        (replace([], "parts", "inputs"), "parts.inputs: input should be a valid dictionary"),
        (replace(5, "parts", "parent"), "parts.parent: input should be a valid string"),
        (replace("0" * 64, "parts", "parent"), "parts.key: field required"),
        (replace([], "lineage"), "lineage: input should be a valid dictionary"),
        (replace(5, "lineage", "a"), "lineage: a must be an artifact name"),
        (replace([[{"b": "../x"}]], "lineage", "a"), "lineage: a.0.0.b must be an artifact name"),
        (replace("x", "lineage", "\n\x1b" + "x" * 1000), r"lineage: \\n\\x1bx+\.\.\. must be"),
        (replace("1", *PART, "size"), r"tables.documents.parts.0.size: input should be a valid in"),
        (replace(True, *PART, "size"), r"tables.documents.parts.0.size: input should be a valid "),
        (replace(-1, *PART, "size"), r"tables.documents.parts.0.size: input should be greater"),
        (replace(1 << 80, *PART, "size"), r"tables.documents.parts.0.size: "),
        (replace("/etc/passwd", *PART, "path"), "tables.documents.parts.0.path: it must be a path"),
        (replace([["a"]], *PART, "counts"), "tables.documents.parts.0.counts.0: it must have a"),
        (replace([["a", "b", 1, 2, 3, "z"]], *PART, "counts"), "tables.documents.parts.0.counts.0"),
        (replace([], *TABLE, "parts"), "tables.documents.parts: list should have at least 1 item"),
        (replace([1, 1], *TABLE, "pieces"), "tables.documents.pieces: their sum is not"),
        (replace(7, *TABLE, "rows"), "tables.documents.rows: it is not the total"),
        (replace("0", *TABLE, "sha256"), "tables.documents.sha256: it is not the digest"),
        (replace("0", "content"), "content: it is not the digest of the tables and files"),
        (replace({"x": {}}, "files"), "files.x.name: field required"),
    ],
)
def test_the_field_is_named(manifest, change, problem):
    assert parse(manifest) == manifest
    change(manifest)
    with pytest.raises(HallmarkError, match=DAMAGED.replace("{problem}", problem)) as raised:
        parse(manifest)
    assert str(raised.value).isprintable() and len(str(raised.value)) < 600


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"stage": "\\ud800"}',
        b"[" * 1_000_000,
        b'{"lineage": ' * 100_000,
        b'{"stage": NaN}',
        b"9" * 100_000,
    ],
)
def test_what_is_no_json_object_is_refused(content):
    with limit_time(), pytest.raises(HallmarkError, match=DAMAGED.replace("{problem}", "")):
        parse_manifest(content, "make/0123", "STORE")


def test_a_lineage_that_names_the_artifact_itself_is_refused(manifest):
    own_name = f"make/{manifest['fingerprint'][:16]}"
    for name in (own_name, f"{own_name}#documents"):
        manifest["lineage"] = {"a": [name]}
        with pytest.raises(HallmarkError, match=(r"\(lineage.a.0 refers to the artifact itself\)")):
            parse(manifest)


def make_artifact(**fields):
    manifest = {"stage": "checkpoint", "fingerprint": "0" * 64, "lineage": {}, "parts": {}} | fields
    return Artifact(manifest, None, "FOLDER")


def test_inputs_are_read_by_name():
    lineage = {"a": "pack/01", "b": "pack/02#documents", "c": None, "d": ["pack/03#x", "pack/04"]}
    artifact = make_artifact(lineage=lineage | {"e": {"k": "pack/05#y"}})
    assert artifact.get_input_name("a") == artifact.find_input_name("a") == "pack/01"
    assert artifact.get_input_name("b") == "pack/02"
    assert artifact.find_input_name("c") is None and artifact.find_input_name("z") is None
    assert artifact.list_input_names("b") == ["pack/02"]
    assert artifact.list_input_names("d") == ["pack/03", "pack/04"]
    assert artifact.get_input_names_by_key("e") == {"k": "pack/05"}
    assert artifact.get_input_names_by_key("c") == artifact.get_input_names_by_key("z") == {}


@pytest.mark.parametrize("names", [None, [], {}, ["pack/0", None], {"k": None}, {"k": ["pack/0"]}])
def test_an_input_of_another_kind_is_a_damaged_manifest(names):
    artifact = make_artifact(lineage={"a": names})
    sentence = r"is damaged: its manifest\.json in FOLDER .* \(lineage\.a .*\); remove"
    with pytest.raises(HallmarkError, match=sentence):
        artifact.get_input_name("a")
    with pytest.raises(HallmarkError, match=sentence):
        artifact.list_input_names("a")
    if names:
        with pytest.raises(HallmarkError, match=sentence):
            artifact.find_input_name("a")
        with pytest.raises(HallmarkError, match=sentence):
            artifact.get_input_names_by_key("a")


@pytest.mark.parametrize("key", [{}, {"step": None}, {"step": "1"}, {"step": True}, {"step": -1}])
def test_a_checkpoint_without_a_step_is_a_damaged_manifest(key):
    with pytest.raises(HallmarkError, match=r"\(parts\.key\.step must be a whole number\)"):
        _ = make_artifact(parts={"key": key}).training_step
    assert make_artifact(parts={"key": {"step": 7}}).training_step == 7


@pytest.mark.parametrize("config", [{}, {"train": 5}, {"train": {"other": 1}}])
def test_a_missing_setting_is_a_damaged_manifest(config):
    with pytest.raises(HallmarkError, match=r"\(parts\.config\.train\.seed is missing\)"):
        make_artifact(parts={"config": config}).get_setting("train", "seed")
    assert make_artifact(parts={"config": {"a": {"b": 7}}}).get_setting("a", "b") == 7


def test_damaged_artifacts_are_skipped_with_a_warning_if_the_caller_says_so(session, caplog):
    good, bad = make(MakeConfig(documents=5)), make(MakeConfig(documents=6))
    (session.store.root_folder / bad.folder / "manifest.json").write_text("{}")
    with pytest.raises(HallmarkError, match="is damaged"):
        session.store.list_artifacts(good.stage)
    artifacts = session.store.list_artifacts(good.stage, skip_damaged=True)
    assert [artifact.name for artifact in artifacts] == [good.name]
    assert f"skipped: artifact {bad.name} is damaged" in caplog.text
