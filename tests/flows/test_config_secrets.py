"""Configs and requests that contain a credential are refused without quoting it."""

import traceback

import pytest

from hallmark.flows.config import load_config, read_answers
from hallmark.flows.config_files import list_bundled_configs
from hallmark.flows.config_secrets import describe_secret
from hallmark.flows.runs import open_store
from hallmark.tasks.contract import UsageError
from tests.run_requests import resolve

SECRET = "Xq7vRt2LmZp9Kd4W"

#: Texts with a credential; each contains SECRET.
CREDENTIALS = [
    f"https://user:{SECRET}@host/path",
    f"https://user:a/{SECRET}@host",
    f"https://{SECRET}@host/path",
    f"https://:{SECRET}@host",
    f"s3://AKIAEXAMPLE:{SECRET}@bucket/folder",
    f"abfss://container:{SECRET}@account.dfs.core.windows.net/x",
    f"ssh://git:{SECRET}@host/repository",
    f"see HTTPS://user:{SECRET}@host",
    f"https://account.blob.core.windows.net/c?sv=2024&sig={SECRET}",
    f"https://bucket.s3.amazonaws.com/key?X-Amz-Algorithm=a&X-Amz-Signature={SECRET}",
    f"https://host/path?access_token={SECRET}&x=1",
    f"https://host/path?api_key={SECRET}",
    f"hf_{SECRET * 2}ab",
    f"token: ghp_{SECRET * 2}abcd",
    f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}",
    f"https://hooks.slack.com/services/T0/{SECRET}/{SECRET}",
]

HARMLESS = [
    "s3://bucket/folder/*.jsonl.gz",
    "s3://bucket/mail@2026/x?.txt",
    "abfss://container@account.dfs.core.windows.net/path",
    "git+ssh://git@github.com/owner/repository",
    "http://127.0.0.1:4200/api/@x",
    "https://host:8080",
    "https://host/path?page=2&sort=date&monkey=capuchins",
    "/data/user:name@host/x",
    "write to team@example.com (https://example.com)",
    "A person@home; ratio 3:1@x",
    "0123456789abcdef" * 4,
    "abcdefgh" * 8,
    "HuggingFaceFW/fineweb-edu",
]


@pytest.mark.parametrize("text", CREDENTIALS)
def test_a_credential_is_recognized(text):
    assert describe_secret(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_other_texts_are_none(text):
    assert describe_secret(text) is None


@pytest.mark.parametrize("config", list_bundled_configs())
def test_the_bundled_configs_contain_none(config):
    load_config(config)


def check_refusal(error, setting):
    assert error.value.exit_code == 2
    assert setting in str(error.value) and "credentials section" in str(error.value)
    assert "\n" not in str(error.value)
    printed = "".join(traceback.format_exception(error.value))
    assert SECRET not in printed.replace(f'"{SECRET}', "")  # the lines of this file


CONFIG = """
name = "mine"
store = "store"
[[ingest.sources]]
kind = "text"
name = "notes"
path = {path!r}
"""


@pytest.mark.parametrize("text", CREDENTIALS)
def test_a_config_that_contains_a_credential_is_refused(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    if "\n" not in text:
        (tmp_path / "my.toml").write_text(CONFIG.format(path=text))
        with pytest.raises(UsageError) as error:
            resolve("my.toml")
        check_refusal(error, "config my.toml: ingest.sources.0.path contains ")
    for config in ("smoke", None):  # a file, and a config that Prefect's form sends as an object
        tree = {"name": "x", "datasheet": {"answers": {"motivation": text}}}
        with pytest.raises(UsageError) as error:
            resolve(config or tree, [f"model_card.title='''{text}'''"] if config else [])
        check_refusal(
            error, "--set model_card.title" if config else "config.datasheet.answers.moti"
        )
    assert not (tmp_path / "store").exists() and not (tmp_path / "runs").exists()


def test_a_request_that_contains_a_credential_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for parameters in (
        {"store": CREDENTIALS[4]},
        {"start": CREDENTIALS[2]},
        {"checkpoint": CREDENTIALS[2]},
        {"overrides": [f"store={CREDENTIALS[4]}"]},
    ):
        [name] = parameters
        with pytest.raises(UsageError) as error:
            resolve("smoke", **parameters)
        check_refusal(error, "--set store" if name == "overrides" else name)


def test_the_address_of_a_store_contains_no_credential(monkeypatch):
    with pytest.raises(UsageError) as error:
        open_store(CREDENTIALS[4])
    check_refusal(error, "store contains")
    monkeypatch.setenv("HALLMARK_STORE", CREDENTIALS[4])
    with pytest.raises(UsageError) as error:
        open_store()
    check_refusal(error, "store contains")


def test_answers_contain_no_credential(tmp_path):
    path = tmp_path / "answers.toml"
    path.write_text(f'motivation_purpose = "see {CREDENTIALS[0]}"')
    config = load_config("smoke", [f"answers.file={path}"])
    with pytest.raises(UsageError) as error:
        read_answers(config)
    check_refusal(error, str(path))


def test_a_name_that_is_a_credential_is_not_quoted_either():
    for override in (
        f'policy.rules.hf_{SECRET * 2}ab={{audit="bias"}}',
        f'policy={{rules={{hf_{SECRET * 2}ab={{audit="bias"}}}}}}',
    ):
        with pytest.raises(UsageError) as error:
            load_config("smoke", [override])
        check_refusal(error, "")
