"""A patch release of a library is declared equal only after equal replays of two configs.

The release is installed in that its metadata, and for other content its code, come before those of
the real library on the path of a new process.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from hallmark.flows.commands.replay import copy_equivalent_versions, render_replays
from hallmark.flows.version_declarations import (
    VersionChange,
    build_provisional_records,
    declare_equivalent_versions,
    find_version_changes,
)
from hallmark.tasks.contract import EquivalentVersions, HallmarkError, Store, UsageError
from hallmark.tasks.contract.fingerprint import read_installed_version
from tests.flows.small_runs import execute_small_run
from tests.tasks.contract.test_equivalent_versions import NEWER, PYARROW, install, make_record

IDNA = version("idna")
NEWER_IDNA = f"{IDNA}.1" if IDNA.count(".") == 1 else f"{IDNA}1"

CONFIG = """name = "{name}"
[[ingest.sources]]
kind = "jsonl"
name = "letters"
path = "{name}.jsonl"
url_field = "url"
"""


@dataclass(frozen=True)
class Machine:
    """A machine with a folder of configs, a store, and libraries.

    Attributes:
        folder: The folder of the configs.
        server: The API of the Prefect server.
        libraries: A folder with other versions of libraries; None for the real ones.
    """

    folder: Path
    server: str
    libraries: Path | None = None

    def __call__(self, *arguments, code=0):
        path = [str(self.libraries)] if self.libraries else []
        environment = os.environ | {
            "HALLMARK_STORE": str(self.folder / "store"),
            "PREFECT_API_URL": self.server,
            "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]),
        }
        done = subprocess.run(
            [sys.executable, "-m", "hallmark.flows.cli", *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    def run(self, name):
        """Run a config; return the id of the run and whether its stage was cached."""
        report = json.loads(self("run", f"{name}.toml", "--until", "ingest", "--json").stdout)
        [stage] = report["stages"]
        return report["run"], stage["cached"]


@pytest.fixture
def machine(tmp_path, server):
    for number, name in enumerate(("first", "second")):
        (tmp_path / f"{name}.toml").write_text(CONFIG.format(name=name))
        rows = [
            {"text": f"Letter {row} of {number}.", "url": f"https://bücher.example/{row}"}
            for row in range(5)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return Machine(tmp_path, server)


def add_metadata(folder, library, library_version):
    metadata = folder / f"{library}-{library_version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: {library}\nVersion: {library_version}\n")


@pytest.mark.slow
def test_a_declared_patch_release_computes_nothing_again(machine, tmp_path):
    first, second = machine.run("first")[0], machine.run("second")[0]
    newer = Machine(tmp_path, machine.server, tmp_path / "newer")
    add_metadata(newer.libraries, "pyarrow", NEWER)
    store = Store(tmp_path / "store")
    assert not newer.run("first")[1]
    done = newer("replay", first, "--declare-equivalent", code=2)
    assert "--declare-equivalent needs at least 2 runs of different configs" in done.stderr
    assert store.list_keys("equivalent-versions") == []

    done = newer("replay", first, second, "--declare-equivalent")
    declared = f"declared: pyarrow {NEWER} is treated as {PYARROW}"
    assert done.stdout.splitlines()[-1].startswith(declared)
    assert store.list_keys("equivalent-versions") == [f"equivalent-versions/pyarrow-{NEWER}.json"]
    cached = newer.run("second")
    assert cached[1]
    status = newer("status", cached[0]).stdout
    equal = f"equal versions: pyarrow {NEWER} is treated as {PYARROW} in 1 stage (declared on "
    assert equal in status
    assert "all stages are up to date" in status and "library: pyarrow" not in status
    # What is computed now serves both versions.
    (tmp_path / "second.jsonl").write_text('{"text": "Another letter."}')
    assert [each.run("second")[1] for each in (newer, machine)] == [False, True]


@pytest.mark.slow
def test_a_release_that_gives_other_content_is_not_declared(machine, tmp_path):
    first, second = machine.run("first")[0], machine.run("second")[0]
    newer = Machine(tmp_path, machine.server, tmp_path / "newer")
    add_metadata(newer.libraries, "idna", NEWER_IDNA)
    shutil.copytree(Path(find_spec("idna").origin).parent, newer.libraries / "idna")
    with open(newer.libraries / "idna" / "__init__.py", "a") as file:
        file.write("\n_remap = uts46_remap\n")
        file.write("uts46_remap = lambda name, **options: _remap('b' + name, **options)\n")
    done = newer("replay", first, second, "--declare-equivalent", "--json", code=1)
    assert done.stderr.splitlines()[-1] == (
        f"hallmark: nothing was declared: in the replay of run {first} with idna {NEWER_IDNA} in "
        f"place of {IDNA}, the ingest stage differs (table documents); run the configs again to "
        "compute their artifacts with the installed versions"
    )
    result = json.loads(done.stdout)
    assert result["declared"] == [] and not result["passed"] and len(result["replays"]) == 2
    assert Store(tmp_path / "store").list_keys("equivalent-versions") == []


# What is refused before anything is replayed --------------------------------------------------


@pytest.fixture
def store(tmp_path):
    yield Store(tmp_path / "store")
    read_installed_version.cache_clear()


@pytest.fixture
def runs(store):
    return [execute_small_run(store, documents) for documents in (30, 31)]


def test_changes_name_the_stages_that_use_the_library(store, runs, tmp_path, monkeypatch):
    install(monkeypatch, tmp_path / "site", "pyarrow", NEWER)
    [change] = find_version_changes(runs)
    assert str(change) == f"pyarrow {NEWER} in place of {PYARROW}"
    assert change.labels_by_run == {run.id: [*run.stages] for run in runs}


def test_nothing_is_declared_if_no_version_differs(runs):
    with pytest.raises(UsageError, match=r"nothing to declare: the runs .* used the installed"):
        find_version_changes(runs)


@pytest.mark.parametrize("installed", ["27.0.0", "26.1.0", f"{NEWER}rc1", f"{NEWER}+local"])
def test_only_a_patch_release_can_be_declared(runs, tmp_path, monkeypatch, installed):
    install(monkeypatch, tmp_path / "site", "pyarrow", installed)
    sentence = f"pyarrow {installed} cannot be declared equal to {PYARROW}, because only patch"
    with pytest.raises(UsageError) as raised:
        find_version_changes(runs)
    assert str(raised.value).startswith(sentence)


def test_runs_of_one_config_are_refused(store, runs, tmp_path, monkeypatch):
    repeated = execute_small_run(store, 30)
    install(monkeypatch, tmp_path / "site", "pyarrow", NEWER)
    with pytest.raises(UsageError, match="runs of different configs, but only 1 is spec"):
        find_version_changes([runs[0], runs[0]])
    with pytest.raises(UsageError, match="no stage uses pyarrow with two different configs in"):
        find_version_changes([runs[0], repeated])


def test_runs_without_a_common_stage_are_refused(store, runs, tmp_path, monkeypatch):
    install(monkeypatch, tmp_path / "site", "pyarrow", NEWER)
    for run, labels in zip(runs, (("make", "drop"), ("count", "train_small")), strict=True):
        run.record["stages"] = [run.stages[label] for label in labels]
    with pytest.raises(UsageError, match="no stage uses pyarrow with two different configs in"):
        find_version_changes(runs)


def test_runs_that_used_several_versions_are_refused(store, runs, tmp_path, monkeypatch):
    older = "{}.{}.99".format(*PYARROW.split("."))
    install(monkeypatch, tmp_path / "site", "pyarrow", older)
    other = execute_small_run(store, 32)
    install(monkeypatch, tmp_path / "newest", "pyarrow", NEWER)
    with pytest.raises(UsageError, match=rf"\({PYARROW}, {older}\), which the store does not"):
        find_version_changes([runs[0], other])
    record = make_record(version=older)
    store.put(record.key, record.to_json())
    [change] = find_version_changes([runs[0], other])
    assert change.counts_as == PYARROW


def test_a_version_is_declared_once(store, runs, tmp_path, monkeypatch):
    install(monkeypatch, tmp_path / "site", "pyarrow", NEWER)
    other = "{}.{}.77".format(*PYARROW.split("."))
    record = make_record(counts_as=other)
    store.put(record.key, record.to_json())
    with pytest.raises(HallmarkError) as raised:
        find_version_changes(runs)
    assert str(raised.value) == (
        f"pyarrow {NEWER} is treated as {other} in 4 stages (declared on 2026-11-30: replays of "
        "the runs a and b produced the same content), which does not hold for all stages of these "
        "runs; "
        f"to declare it again, remove {store.root_folder}/{record.key}, and specify at least 2 "
        "runs that have all stages"
    )


# What the record says -------------------------------------------------------------------------


def report_replay(run, **differing):
    return {
        "run": run.id,
        "replay": f"replay-{run.id}",
        "store": None,
        "passed": True,
        "stages": [
            {
                "label": label,
                "determinism": "exact",
                "original_digest": entry["content"],
                "replayed_digest": entry["content"],
                "differences": [],
                "verdict": "equal",
            }
            | differing.get(label, {})
            for label, entry in run.stages.items()
        ],
    }


def change_versions(runs, library="pyarrow", labels=("make", "count")):
    return VersionChange(library, NEWER, PYARROW, {run.id: labels for run in runs})


def test_the_record_names_runs_replays_and_digests(store, runs):
    changes = [change_versions(runs), change_versions(runs, "numpy")]
    records = declare_equivalent_versions(runs, changes, [*map(report_replay, runs)])
    stored = EquivalentVersions(Store(store.uri)).find_record("pyarrow", NEWER)
    assert stored == records[0]
    assert stored.other_changes == {"numpy": f"{PYARROW} → {NEWER}"}
    assert [each.run for each in stored.runs] == [run.id for run in runs]
    assert [each.replay for each in stored.runs] == [f"replay-{run.id}" for run in runs]
    assert stored.runs[0].digests == {
        runs[0].stages[label]["artifact"]: runs[0].stages[label]["content"]
        for label in ("make", "count")
    }
    text = render_replays(
        {
            "replays": [report_replay(runs[0])],
            "passed": True,
            "declared": [record.model_dump() for record in records],
        }
    )
    assert text.splitlines()[-2:] == [f"declared: {record}" for record in records]
    with pytest.raises(HallmarkError, match=r"another process wrote .*, so this declaration"):
        declare_equivalent_versions(runs[::-1], changes, [*map(report_replay, runs[::-1])])


def test_a_training_with_another_version_names_its_checkpoints_alike(
    store, runs, tmp_path, monkeypatch
):
    """Otherwise its table of checkpoints would differ in each replay."""
    install(monkeypatch, tmp_path / "site", "pyarrow", NEWER)
    other = Store(tmp_path / "other")
    [change] = find_version_changes(runs)
    assert execute_small_run(other).stages["train_small"]["content"] not in {
        run.stages["train_small"]["content"] for run in runs
    }
    replayed_store = Store(tmp_path / "replayed")
    copy_equivalent_versions(store, replayed_store, build_provisional_records(runs, [change]))
    for run, documents in zip(runs, (30, 31), strict=True):
        replayed = execute_small_run(replayed_store, documents)
        for label, entry in run.stages.items():
            assert replayed.stages[label]["artifact"] == entry["artifact"]
            assert replayed.stages[label]["content"] == entry["content"]
            parts = replayed[label].manifest["parts"]
            assert parts["libraries"]["pyarrow"] == NEWER


def test_a_replay_knows_the_versions_that_are_equal_in_the_store(store, tmp_path):
    record, target = make_record(), Store(tmp_path / "target")
    store.put(record.key, record.to_json())
    copy_equivalent_versions(store, target, [])
    assert target.get(record.key) == record.to_json()


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (
            {"replayed_digest": "0", "differences": ["table counts", "libraries changed"]},
            "the count stage differs (table counts); run",
        ),
        ({"replayed_digest": None}, "the count stage was not computed; run"),
    ],
)
def test_one_differing_stage_prevents_the_declaration(store, runs, row, sentence):
    # A stage within its intervals, or of another machine, passes the replay, but is not equal.
    reports = [report_replay(runs[0]), report_replay(runs[1], count=row)]
    with pytest.raises(HallmarkError) as raised:
        declare_equivalent_versions(runs, [change_versions(runs)], reports)
    assert sentence in str(raised.value) and runs[1].id in str(raised.value)
    assert store.list_keys("equivalent-versions") == []
