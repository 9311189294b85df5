"""Test the call of a stage: its inputs, its events, its errors, and what it passes on."""

import errno
import json

import pytest

from hallmark.tasks.contract import (
    DOCUMENTS,
    LEDGER,
    PURGED_DOCUMENTS_FILE,
    TOMBSTONES_FILE,
    Artifact,
    HallmarkError,
    StageConfig,
    StageContext,
    Table,
    UsageError,
    get_current_session,
    stage,
)
from tests.tasks.contract.stages import (
    COUNT,
    FOUR_PARTS,
    CountConfig,
    DropConfig,
    MakeConfig,
    count,
    drop,
    keep_number,
    make,
)


class SayConfig(StageConfig):
    fault: str = ""


@stage(name="total", tables={"count": COUNT})
def total(
    documents: Table,
    others: dict[str, Artifact],
    extra: Table | None,
    config: SayConfig,
    context: StageContext,
) -> None:
    rows = documents.row_count + sum(other["documents"].row_count for other in others.values())
    context.get_table_writer("count").write({"rows": [rows + (extra.row_count if extra else 0)]})


@stage(
    name="look", tables={"count": COUNT}, reads={"made": ("documents",), "several": ("documents",)}
)
def look(
    made: Artifact, several: dict[str, Artifact], config: SayConfig, context: StageContext
) -> None:
    assert made.tables.keys() == {"documents"}
    assert all(other.tables.keys() == {"documents"} for other in several.values())
    context.get_table_writer("count").write({"rows": [made["documents"].row_count]})


@stage(name="fails", tables={"documents": DOCUMENTS, "ledger": LEDGER})
def fails(documents: Table, config: SayConfig, context: StageContext) -> None:
    context.report_progress(1, 2, "half")
    raise {
        "hallmark": HallmarkError("say this"),
        "usage": UsageError("give another"),
        "told": HallmarkError("stage fails: part 3: say this"),
        "full": OSError(errno.ENOSPC, "No space left on device"),
        "quota": OSError(errno.EDQUOT, "Quota exceeded"),
        "denied": PermissionError(errno.EACCES, "Permission denied"),
        "memory": MemoryError("part 3: malloc of size 7 failed"),
        "other": KeyError("x"),
    }[config.fault]


@stage(name="lets_in", tables={"count": COUNT}, is_entry_point=True)
def lets_in(config: SayConfig, context: StageContext) -> None:
    context.get_table_writer("count").write({"rows": [len(context.purged_ids)]})


def rows_of(artifact):
    return artifact["count"].read()["rows"].to_pylist()


def listen(session):
    heard = []
    session.listener = heard.append
    return heard


def test_inputs_are_tables_artifacts_and_groups(session):
    five, six, ten = (make(MakeConfig(documents=n)) for n in (5, 6, 10))
    made = total(five, {"a": six, "b": ten}, None, SayConfig())
    assert rows_of(made) == [21]
    assert made.manifest["lineage"] == {
        "documents": f"{five.name}#documents",
        "others": {"a": six.name, "b": ten.name},
        "extra": None,
    }
    digest = five["documents"].digest
    assert made.manifest["parts"]["inputs"] == {
        "documents": digest,
        "others": {"a": six.content_digest, "b": ten.content_digest},
        "extra": None,
    }
    assert rows_of(total(five, {}, five["documents"], config=SayConfig())) == [10]
    again = total(five, {"a": six, "b": ten}, None)  # a config's defaults
    assert again.manifest["parts"]["config"] == {} != made.manifest["parts"]["config"]
    other = total(five, {"a": ten, "b": six}, None, SayConfig())
    assert rows_of(other) == [21] and other.fingerprint != made.fingerprint


def test_wrong_number_or_type_of_inputs_is_a_type_error(session):
    raw = make(MakeConfig(documents=1))
    with pytest.raises(
        TypeError, match="stage count: too many positional arguments; its inputs are documents"
    ):
        count(raw, raw, CountConfig())
    with pytest.raises(
        TypeError,
        match="stage count: missing a required argument: 'documents'; its inputs are documents",
    ):
        count(CountConfig())
    with pytest.raises(TypeError, match="a stage input must be a table or an artifact, not int"):
        count(7, CountConfig())


def test_fingerprint_depends_on_declared_tables_of_an_artifact(session):
    raw = make(FOUR_PARTS)
    one, two = (drop(raw, DropConfig(note=note)) for note in (0.0, 1.0))
    heard = listen(session)
    look(one, {"x": two}, SayConfig())
    look(two, {"x": one}, SayConfig())
    assert [event.kind for event in heard] == ["start", "done", "cached"]


def test_listener_gets_start_progress_and_end(session):
    heard = listen(session)
    made = make.with_label("first")(FOUR_PARTS)
    assert {event.label for event in heard} == {"first"}
    start, *progress, done = heard
    assert (start.kind, start.artifact, done.kind, done.artifact) == ("start", None, "done", made)
    assert [(e.kind, e.completed, e.total, e.description) for e in progress[-1:]] == [
        ("progress", 4, 4, "make_part")
    ]
    assert [e.completed for e in progress] == sorted(e.completed for e in progress)
    assert 0 < done.seconds < 300
    assert not [*session.store.work_folder.glob("make-*")], "its work area is gone"
    heard.clear()
    again = make(FOUR_PARTS)
    [cached] = heard
    assert (cached.kind, cached.label, cached.artifact) == ("cached", "make", again)


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        ("hallmark", HallmarkError, "^stage odd: say this$"),
        ("usage", UsageError, "^stage odd: give another$"),
        ("told", HallmarkError, "^stage fails: part 3: say this$"),
        (
            "full",
            HallmarkError,
            r"^stage odd: no space left on the disk that holds .*; free some space and run",
        ),
        ("quota", HallmarkError, r"^stage odd: no space left on the disk that holds "),
        (
            "memory",
            HallmarkError,
            r"^stage odd: out of memory \(part 3: malloc of size 7 failed\); .* fewer workers",
        ),
        ("denied", PermissionError, "Permission denied"),
        ("other", KeyError, "x"),
    ],
)
def test_error_message_names_the_stage(session, fault, kind, says):
    raw = make(FOUR_PARTS)
    heard = listen(session)
    with pytest.raises(kind, match=says) as raised:
        fails.with_label("odd")(raw, SayConfig(fault=fault))
    assert type(raised.value) is kind
    assert [(e.kind, e.completed, e.total, e.description) for e in heard] == [
        ("start", 0, 0, ""),
        ("progress", 1, 2, "half"),
        ("failed", 0, 0, kind.__name__),
    ]
    assert session.store.list_artifacts("fails") == []


@pytest.mark.parametrize("fault", ["denied", "other"])
def test_damaged_input_is_named_instead_of_the_resulting_error(session, fault):
    raw = make(FOUR_PARTS)
    path = raw["documents"].parts[1].path
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(HallmarkError, match=rf"^stage fails: artifact {raw.name} is damaged: "):
        fails(raw, SayConfig(fault=fault))


def test_only_stages_with_documents_and_ledger_keep_accounts():
    assert (
        drop.has_automatic_accounts
        and {"accounts", "checksums", "telemetry"} <= drop.collect_table_schemas().keys()
    )
    for other in (make, count, keep_number, total):  # without a ledger, or without documents
        assert not other.has_automatic_accounts and "accounts" not in other.collect_table_schemas()
    assert list(make.collect_table_schemas()) == ["documents", "telemetry"]
    assert drop.input_names == ["documents"] and total.input_names == [
        "documents",
        "others",
        "extra",
    ]
    assert (drop.run_label, drop.with_label("again").run_label, drop.with_label("again").name) == (
        "drop",
        "again",
        "drop",
    )


def purge(store, artifact, ids):
    """Write tombstones whose replaced part equals the original: readers see the same rows."""
    part = artifact.manifest["tables"]["documents"]["parts"][0]
    entries = {part["name"]: {key: part[key] for key in ("path", "size", "sha256")}}
    said = {"purged": dict.fromkeys(ids, "today"), "entries": entries}
    store.put(f"{artifact.folder}/{TOMBSTONES_FILE}", json.dumps(said).encode())
    return store.find_artifact(artifact.stage, artifact.fingerprint)


def test_purged_documents_are_not_counted_again(session):
    whole = make(FOUR_PARTS)
    before = count(whole, CountConfig())
    ids = ["b" * 32, "a" * 32]
    purged = purge(session.store, whole, ids)
    assert purged.purge_time_by_doc_id.keys() == {*ids}
    after = count(purged, CountConfig())  # it keeps no accounts; but it reads other bytes
    assert after.fingerprint != before.fingerprint
    with pytest.raises(HallmarkError, match=f"stage drop: {whole.name} no longer .* {'a' * 32}"):
        drop(purged, DropConfig())
    with pytest.raises(HallmarkError, match="which was purged; run again from ingest"):
        drop([make(MakeConfig(documents=3)), purged], DropConfig())
    other = look(purged, {}, SayConfig())
    assert other.manifest["parts"]["inputs"]["made"]["rewritten"]


def test_fingerprint_of_entry_stages_depends_on_denied_documents(session):
    store = get_current_session().store
    before, kept = lets_in(SayConfig()), make(MakeConfig(documents=2))
    store.put(
        PURGED_DOCUMENTS_FILE,
        json.dumps({"documents": {"a" * 32: "today"}, "unfinished": []}).encode(),
    )
    after = lets_in(SayConfig())
    assert (rows_of(before), rows_of(after)) == ([0], [1])
    assert before.manifest["parts"]["external"] == {}
    assert list(after.manifest["parts"]["external"]) == [PURGED_DOCUMENTS_FILE]
    assert make(MakeConfig(documents=2)).fingerprint == kept.fingerprint
