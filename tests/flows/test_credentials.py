"""Credentials come from environment variables or Prefect blocks, and are recorded nowhere."""

import json
import logging
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import get_args

import pytest
from prefect.blocks.system import Secret
from prefect.context import refresh_global_settings_context

from hallmark.flows.config import load_config
from hallmark.flows.credentials import (
    CredentialName,
    SecretReference,
    export_credentials,
    redactor,
)
from hallmark.flows.runs import open_run, open_store
from hallmark.tasks.contract import AllowedRoots, HallmarkError, Store, UsageError
from tests.flows.test_run_outcome import read_from_server
from tests.run_requests import resolve
from tests.tasks.contract.test_refused_credentials import serve

pytestmark = pytest.mark.slow

VALUE = "Xq7vRt2LmZp9Kd4W"


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """Remove what a test exports, and the values that the redactor knows."""
    for name in get_args(CredentialName):
        monkeypatch.delenv(name.upper(), raising=False)
        monkeypatch.setenv(name.upper(), "")  # so that monkeypatch removes what is set meanwhile
        del os.environ[name.upper()]
    monkeypatch.setattr(redactor, "values", {})


@pytest.fixture
def prefect(server, monkeypatch):
    """Use the shared Prefect server, with blocks that are removed afterwards."""
    monkeypatch.setenv("PREFECT_API_URL", server)
    refresh_global_settings_context()
    names = {"hallmark-test-key": VALUE, "hallmark-test-digits": "123456", "hallmark-test-json": {}}
    names["hallmark-test-json"] = {"private_key": VALUE}
    names["hallmark-test-line"] = f"{VALUE}\n"
    for name, value in names.items():
        Secret(value=value).save(name, overwrite=True)
    yield server
    for name in names:
        Secret.delete(name)


def load(**references):
    return {name: SecretReference(**reference) for name, reference in references.items()}


def test_a_variable_and_a_block_fill_the_variable_of_the_library(prefect, monkeypatch):
    monkeypatch.setenv("TEAM_KEY", VALUE)
    export_credentials(
        load(
            wandb_api_key={"env": "TEAM_KEY"},
            hf_token={"secret_block": "hallmark-test-key"},
            aws_secret_access_key={"secret_block": "hallmark-test-digits"},
            google_service_account_key={"secret_block": "hallmark-test-json"},
        )
    )
    assert os.environ["WANDB_API_KEY"] == os.environ["HF_TOKEN"] == VALUE
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "123456"
    assert json.loads(os.environ["GOOGLE_SERVICE_ACCOUNT_KEY"]) == {"private_key": VALUE}
    assert "MLFLOW_TRACKING_TOKEN" not in os.environ
    assert VALUE not in repr(redactor.values)


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ({"env": "NO_SUCH_KEY"}, "the environment variable NO_SUCH_KEY is not set; set it"),
        ({"env": "EMPTY_KEY"}, "the environment variable EMPTY_KEY is empty"),
        (
            {"secret_block": "hallmark-test-line"},
            "the Prefect Secret block 'hallmark-test-line' begins or ends with a space or a",
        ),
        ({"secret_block": "no-such-block"}, "the Prefect server has no Secret block 'no-such-bl"),
    ],
)
def test_a_credential_that_is_missing_or_wrong_is_one_sentence(
    prefect, monkeypatch, reference, problem
):
    monkeypatch.setenv("EMPTY_KEY", "")
    with pytest.raises(UsageError) as error:
        export_credentials(load(wandb_api_key=reference))
    assert str(error.value).startswith(f"credentials.wandb_api_key: {problem}")
    assert "\n" not in str(error.value) and VALUE not in str(error.value)
    assert "WANDB_API_KEY" not in os.environ


def test_a_server_that_does_not_answer_is_one_sentence(monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    monkeypatch.setenv("PREFECT_CLIENT_MAX_RETRIES", "0")
    refresh_global_settings_context()
    with pytest.raises(HallmarkError, match=r"cannot be read from the Prefect server .*run again"):
        export_credentials(load(wandb_api_key={"secret_block": "key"}))
    monkeypatch.undo()
    refresh_global_settings_context()


@pytest.mark.parametrize(
    "setting",
    [
        f"credentials.hf_token={VALUE}",
        f"credentials.hf_token={{env={VALUE!r}, secret_block={VALUE!r}}}",
        "credentials.hf_token={}",
        "credentials.hf_token={env=''}",
        f"credentials.hf_token={{value={VALUE!r}}}",
        f"credentials.hf_token={{env='{VALUE}!'}}",
        f"credentials.hf_token={{secret_block='{VALUE}'}}",
        f"credentials.hf_token=['{VALUE}']",
        f"credentials='{VALUE}'",
    ],
)
def test_a_value_in_place_of_a_reference_is_refused_and_not_quoted(setting, tmp_path):
    with pytest.raises(UsageError) as error:
        load_config("smoke", [setting])
    printed = "".join(traceback.format_exception(error.value))
    assert VALUE not in str(error.value) and VALUE not in printed
    assert str(error.value).startswith("config smoke: credentials")
    if "value" in setting or (setting.endswith(VALUE) and "hf_token" in setting):
        assert 'env = "NAME"' in str(error.value) or "no such key" in str(error.value)
    path = tmp_path / "my.toml"
    key, _, value = setting.partition("=")
    path.write_text(f"{key} = {value if value[0] in '{[' else repr(value.strip(chr(39)))}\n")
    with pytest.raises(UsageError) as error:
        open_store(str(path))
    printed = "".join(traceback.format_exception(error.value))
    assert VALUE not in str(error.value) and VALUE not in printed


def test_an_unknown_credential_is_refused_with_the_similar_name():
    with pytest.raises(UsageError, match=r"credentials.wandb_key: .*did you mean wandb_api_key"):
        load_config("smoke", ["credentials.wandb_key={env='X'}"])


def test_a_store_that_a_config_names_is_opened_with_its_credentials(tmp_path, monkeypatch):
    monkeypatch.setenv("TEAM_KEY", VALUE)
    path = tmp_path / "my.toml"
    path.write_text('store = "mine"\n[credentials]\naws_secret_access_key = {env = "TEAM_KEY"}\n')
    assert open_store(str(path)).root_folder == tmp_path / "mine"
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == VALUE


def test_messages_do_not_contain_a_value_that_a_server_echoes(caplog, monkeypatch):
    monkeypatch.setenv("TEAM_KEY", VALUE)
    export_credentials(load(openlineage_api_key={"env": "TEAM_KEY"}))
    logging.getLogger("hallmark").warning("%s failed: wrong key %s", "OpenLineage", VALUE)
    assert caplog.messages == ["OpenLineage failed: wrong key [OPENLINEAGE_API_KEY]"]


def test_a_served_run_reads_only_declared_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("TEAM_KEY", VALUE)
    monkeypatch.setenv("OTHER_SECRET", "other")
    monkeypatch.setenv("WANDB_API_KEY", "own")
    monkeypatch.chdir(tmp_path)
    from hallmark.tasks.contract.allowed_roots import ROOTS_ENVIRONMENT_VARIABLE

    monkeypatch.setenv(ROOTS_ENVIRONMENT_VARIABLE, "")
    AllowedRoots((str(tmp_path),), (), ("TEAM_KEY",)).export_to_environment()
    overrides = [f"store={tmp_path / 'store'}"]
    resolve("smoke", [*overrides, "credentials.hf_token={env='TEAM_KEY'}"])
    assert os.environ["HF_TOKEN"] == VALUE
    resolve("smoke", [*overrides, "credentials.wandb_api_key={env='WANDB_API_KEY'}"])
    with pytest.raises(UsageError) as error:
        resolve("smoke", [*overrides, "credentials.aws_access_key_id={env='OTHER_SECRET'}"])
    assert str(error.value) == (
        "credentials.aws_access_key_id: a served run is not allowed to read the environment "
        "variable OTHER_SECRET; reference it in the config of hallmark serve, or use a Prefect "
        "Secret block"
    )
    assert "AWS_ACCESS_KEY_ID" not in os.environ


def list_files_with(folder: Path, text: str) -> list[str]:
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    ]


def test_a_run_sends_a_credential_to_its_server_and_records_it_nowhere(
    apart, prefect, tmp_path, monkeypatch
):
    """A real run with a real Prefect server and a server of OpenLineage that checks the key."""
    pytest.importorskip("openlineage.client")
    received = []

    def receive(request):
        received.append(request.headers["Authorization"])
        return 403, f"the key {VALUE} is refused".encode()  # as a careless server answers

    with serve(receive) as url:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        ended = apart(
            "run",
            "smoke",
            "--until",
            "ingest",
            "--set",
            'report_to=["openlineage"]',
            "--set",
            f"reporters.openlineage.uri={url}",
            "--set",
            "credentials.openlineage_api_key={secret_block='hallmark-test-key'}",
        )
    assert set(received) == {f"Bearer {VALUE}"}
    assert "OpenLineage failed" in ended.stderr and VALUE not in ended.stderr + ended.stdout
    run = open_run("latest", Store(apart.store))
    assert run.record["config"]["credentials"] == {
        "openlineage_api_key": {"env": None, "secret_block": "hallmark-test-key"}
    }
    assert list_files_with(apart.store, VALUE) == list_files_with(tmp_path, VALUE) == []
    # Nor does Prefect: parameters, logs, events and artifacts.
    flow_run_query = {"flow_runs": {"name": {"any_": [run.id]}}}
    [flow_run] = read_from_server(prefect, "flow_runs", flow_run_query)
    logs = read_from_server(
        prefect, "logs", {"logs": {"flow_run_id": {"any_": [flow_run["id"]]}}, "limit": 200}
    )
    assert logs and VALUE not in json.dumps([flow_run, logs])


LOCAL_SERVER = """
import os, sys
from prefect.blocks.system import Secret
from hallmark.flows.credentials import SecretReference, export_credentials
from hallmark.flows.local_prefect_server import connect_prefect
connect_prefect()
Secret(value=sys.argv[1]).save("key")
export_credentials({"wandb_api_key": SecretReference(secret_block="key")})
assert os.environ["WANDB_API_KEY"] == sys.argv[1]
"""


@pytest.mark.slow
def test_without_a_server_a_block_of_the_local_database_is_read(tmp_path):
    environment = {**os.environ, "PREFECT_HOME": str(tmp_path), "HOME": str(tmp_path)}
    environment.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-c", LOCAL_SERVER, VALUE]
    subprocess.run(command, env=environment, check=True, timeout=120)
    assert list_files_with(tmp_path, VALUE) == []  # Prefect encrypts the value
