"""An event that somebody forges starts no audit outside of the served store and its roots.

The parameters of the deployment are rendered by Prefect's own code, as its server does.
"""

import json
import shutil

import pytest
from prefect.server.utilities.user_templates import render_user_template_sync

from hallmark.flows.deployments import create_checkpoint_deployment
from hallmark.flows.run_recording import resolve_request
from hallmark.flows.run_request import RunRequest
from hallmark.flows.runs import open_run
from hallmark.tasks.contract import AllowedRoots, HallmarkError, Store
from hallmark.tasks.contract.allowed_roots import ROOTS_ENVIRONMENT_VARIABLE
from tests.flows.test_checkpoint_events import train


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A served store with a checkpoint, and outside of its roots a model and another store."""
    served, other = Store(tmp_path / "served"), Store(tmp_path / "outside" / "store")
    for store in (served, other):
        train(store, [20])
    model = tmp_path / "outside" / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (served.root_folder / "link").symlink_to(model)
    monkeypatch.chdir(served.root_folder)
    monkeypatch.setenv("HALLMARK_STORE", str(other.root_folder))
    monkeypatch.setenv(ROOTS_ENVIRONMENT_VARIABLE, "")
    AllowedRoots((str(served.root_folder),)).export_to_environment()
    return tmp_path


def build_request(store, payload):
    """Build the request that Prefect's server makes of an event with this payload."""
    [trigger] = create_checkpoint_deployment(store, ["bias"]).triggers
    parameters = {
        name: render_user_template_sync(value, {"event": {"payload": payload}})
        if isinstance(value, str)
        else value
        for name, value in trigger.parameters.items()
    }
    return RunRequest.parse("audit", parameters)


def find_checkpoint(store):
    [artifact] = store.list_artifacts("checkpoint")
    return artifact.name


def list_files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_the_store_of_an_event_is_ignored(place):
    served, other = Store(place / "served"), place / "outside" / "store"
    payload = {"artifact": find_checkpoint(served), "store": str(other), "run": "latest"}
    request = build_request(served, payload)
    assert (request.store, request.checkpoint) == (served.uri, payload["artifact"])
    assert request.config is None and request.overrides == ()


@pytest.mark.parametrize(
    ("artifact", "problem"),
    [
        ("PLACE/outside/model", "checkpoint: .* leads outside the allowed roots"),
        ("../outside/model", "checkpoint: .* leads outside the allowed roots"),
        ("~/../../PLACE/outside/model", "checkpoint: .* leads outside the allowed roots"),
        ("link", "checkpoint: 'link' leads outside the allowed roots"),
        ("./link", "checkpoint: .* leads outside the allowed roots"),
        ("file://PLACE/outside/model", "checkpoint: .* leads outside the allowed roots"),
        ("s3://bucket/model", "checkpoint: .* leads outside the allowed roots"),
        ("OTHER", "checkpoint: .* leads outside the allowed roots"),
        ("checkpoint/../../../outside/model", "checkpoint: .* leads outside the allowed roots"),
        (
            "checkpoint/../pretrain/0123",
            "checkpoint: .* leads outside the allowed roots|has no che",
        ),
        ("checkpoint/0123456789abcdef", "has no checkpoint 'checkpoint/0123456789abcdef'"),
        ("../../outside@20", "there is no checkpoint|outside the allowed roots"),
        ("..@20", "there is no checkpoint"),
        ("x@../../outside/model", "there is no checkpoint"),
        ("{{ event.payload.store }}", "there is no checkpoint"),
        (["checkpoint/0123456789abcdef"], "there is no checkpoint|outside the allowed roots"),
        ({"path": "/etc"}, "there is no checkpoint|outside the allowed roots"),
        (None, "there is no checkpoint"),
        ("", "min_length|must not be empty|is empty"),
        ("  ", "is empty"),
        ("a\0b/c", "cannot be checked|null|no checkpoint"),
    ],
)
def test_a_forged_checkpoint_leads_nowhere(place, artifact, problem):
    served, outside = Store(place / "served"), place / "outside"
    if isinstance(artifact, str):
        other = outside / "store" / "artifacts" / find_checkpoint(Store(outside / "store"))
        artifact = artifact.replace("PLACE", str(place)).replace("OTHER", str(other))
    before = list_files(outside)
    with pytest.raises(HallmarkError, match=problem) as error:
        resolve_request(build_request(served, {"artifact": artifact}))
    assert "\n" not in str(error.value)
    assert list_files(outside) == before


@pytest.fixture
def trained(apart, place):
    """A served copy of the store of the smoke run, and its checkpoint."""
    folder = place / "trained"
    shutil.copytree(apart.store, folder, symlinks=True)
    AllowedRoots((str(folder),)).export_to_environment()
    store = Store(folder)
    run = open_run("latest", store)
    return store, run, run.list_committed_checkpoints()[-1]["artifact"]


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ("audit_bias", {"pairs": "OUTSIDE/pairs.csv"}),
        ("reporters", {"tensorboard": {"folder": "OUTSIDE/events"}}),
        ("credentials", {"wandb_api_key": {"env": "HOME"}}),
    ],
)
def test_a_forged_record_of_the_training_leads_nowhere(trained, place, section, change):
    """Somebody who may write to the store changes run.json, whose config an audit uses."""
    store, run, artifact = trained
    resolve_request(build_request(store, {"artifact": artifact}))
    change = json.loads(json.dumps(change).replace("OUTSIDE", str(place / "outside")))
    run.record["config"][section] |= change
    run.save()
    with pytest.raises(
        HallmarkError, match=r"leads outside the allowed roots|not allowed to read the"
    ):
        resolve_request(build_request(store, {"artifact": artifact}))


def test_the_recorded_store_and_folder_of_a_training_are_ignored(trained, place):
    store, run, artifact = trained
    run.record["config"]["store"] = run.record["folder"] = str(place / "outside")
    run.save()
    resolved = resolve_request(build_request(store, {"artifact": artifact}))
    assert resolved.store.root_folder == store.root_folder
