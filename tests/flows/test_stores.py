"""Every part of a command uses the store that a config or --store names."""

import os

import pytest

from hallmark.flows.config_files import find_text_override
from hallmark.flows.document_purge import clear_rendered_pages, remove_unfinished_work
from hallmark.flows.forecast.run_forecast import forecast_run
from hallmark.flows.mitigation import get_removal_list_folder, write_document_id_list
from hallmark.flows.pipeline import audit
from hallmark.flows.run_recording import record_run
from hallmark.flows.runs import is_same_store, open_run, open_store, read_all_runs
from hallmark.flows.site import build_store_site
from hallmark.flows.unredacted_site import write_unredacted_site
from hallmark.tasks.contract import UsageError
from tests.run_requests import resolve

CONFIG = """
name = "my"
store = "mine"
[[ingest.sources]]
kind = "text"
name = "s"
path = "x"
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working folder: HALLMARK_STORE names one store, my.toml another."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HALLMARK_STORE", str(tmp_path / "usual"))
    (tmp_path / "my.toml").write_text(CONFIG)
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "store"),
    [
        ({"config": "my.toml"}, "mine"),
        ({"config": "my.toml", "overrides": ["store=set"]}, "set"),
        ({"config": "my.toml", "store": "option"}, "option"),
        ({"config": "smoke", "store": "my.toml"}, "mine"),
        ({"config": "my.toml", "checkpoint": "gpt2"}, "mine"),
        ({"config": None, "checkpoint": "gpt2"}, "usual"),
        ({"config": None, "checkpoint": "gpt2", "overrides": ["store=set"]}, "set"),
        ({"config": None, "checkpoint": "gpt2", "store": "option"}, "option"),
        ({"config": "smoke"}, "usual"),
    ],
)
def test_a_flow_uses_the_named_or_configured_store(place, arguments, store):
    settled = resolve(**({"overrides": []} | arguments))
    assert settled.store.root_folder == place / store
    assert {p.name for p in place.iterdir() if p.is_dir()} - {"gpt2"} == {store}


def test_a_checkpoint_is_looked_up_in_the_store_of_the_config(place):
    for named in ({"checkpoint": "latest"}, {"start": "latest"}):
        with pytest.raises(UsageError, match=f"no store at {place / 'mine'}, which does not exist"):
            resolve("my.toml", [], **named)
        assert not (place / "mine").exists()
    (place / "mine").mkdir()
    for named in ({"checkpoint": "latest"}, {"start": "latest"}):
        with pytest.raises(UsageError, match="has trained a model yet"):
            resolve("my.toml", [], **named)
    assert not (place / "usual").exists()


def test_store_accepts_a_config_file_that_names_one(place):
    assert open_store("my.toml").root_folder == place / "mine"
    (place / "of another.toml").write_text('name = "other"')
    assert open_store("of another.toml").root_folder == place / "usual"
    with pytest.raises(UsageError, match=r"config gone\.toml: the file cannot be read"):
        open_store("gone.toml")
    (place / "wrong.toml").write_text("store = 3")
    with pytest.raises(
        UsageError, match=r"config wrong\.toml: store: must be text, in quotes \(given: 3\)"
    ):
        open_store("wrong.toml")
    assert not (place / "gone.toml").exists()


def test_an_override_of_a_root_key_is_read_without_a_config():
    overrides = ["ingest.sources.0.path=x", "store='a b'", "store=s3://bucket", "workers=3"]
    assert find_text_override("store", overrides) == "s3://bucket"
    assert (
        find_text_override("workers", overrides) is None
    )  # no text: the config's own check refuses it
    assert find_text_override("name", overrides) is None


def test_different_names_of_one_store_are_recognized(place):
    assert is_same_store("usual", str(place / "usual"))
    assert is_same_store(f"file://{place}/usual", "usual")
    assert not is_same_store("s3://usual", "usual")


def test_an_unknown_audit_is_refused_as_on_the_command_line(place):
    for audits, words in ((["taste", "bias"], "there is no audit 'taste'"), ([], "none is named")):
        with pytest.raises(UsageError, match=f"audits .*{words}; choose from capability, "):
            audit.fn(checkpoint="gpt2", audits=audits)
    assert not (place / "usual").exists()


def test_a_layer_that_the_model_will_lack_is_refused_early(place):
    for layer in (5, -5):
        with pytest.raises(UsageError, match=f"audit_weat.layer is {layer}, but .* from 1 to 4, "):
            resolve("my.toml", [f"audit_weat.layer={layer}"])
        with pytest.raises(UsageError, match=f"audit_weat.layer is {layer}, but .* from 1 to 4, "):
            forecast_run("my.toml", [f"audit_weat.layer={layer}"])
    resolve("my.toml", ["audit_weat.layer=-4"])
    # For an external model, its own depth counts.
    resolve(None, ["audit_weat.layer=12"], checkpoint="gpt2")


@pytest.mark.parametrize(
    ("earlier", "expected"),
    [
        (
            "latest",
            "has the plant_canaries stage yet; start one with: hallmark run CONFIG; to build",
        ),
        (
            "20260101",
            "has no run named '20260101'; the store has no runs; start one with: hallmark run",
        ),
    ],
)
def test_a_missing_earlier_corpus_is_refused(place, earlier, expected):
    with pytest.raises(UsageError, match=f"^earlier_run '{earlier}': .*{expected}") as error:
        resolve("my.toml", [f"earlier_run='{earlier}'"])
    assert str(error.value).endswith(
        "; to build a first corpus, remove earlier_run from the config"
    )


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_pages_and_lists_are_written_only_to_the_store_or_its_cache(place, kind, request):
    """For an object store, they are in the cache of this machine."""
    cache = place / "cache"
    uri = str(place / "usual")
    with pytest.MonkeyPatch.context() as patch:
        if kind == "bucket":
            request.getfixturevalue("bucket")
            uri = f"s3://hallmark/{place.name}"
            patch.setenv("XDG_CACHE_HOME", str(cache))
        store = open_store(uri)
        with record_run("corpus", resolve("my.toml", [], store=uri).config, store):
            pass
        before = {path.name for path in place.iterdir()}
        local = (
            cache / "hallmark" / store.work_folder.name / "local"
            if kind == "bucket"
            else store.root_folder
        )
        assert build_store_site(store).index_page == local / "site" / "index.html"
        run = open_run("latest", store)
        assert (
            write_unredacted_site(run) == local / "site-unredacted" / "runs" / run.id / "index.html"
        )
        listed = write_document_id_list([bytes(16)], get_removal_list_folder(store))
        assert listed.parent == local / "removed-documents"
        assert {path.name for path in place.iterdir()} - before <= {"cache"}

        (store.work_folder / "redact_spans-0123456789abcdef").mkdir(parents=True)
        assert remove_unfinished_work(store, set()) == ["redact_spans-0123456789abcdef"]
        here, beyond = clear_rendered_pages(store)
        assert not beyond
        assert here == [f"{local / 'site'}, rebuilt", f"{local / 'site-unredacted'}, removed"]
        assert (local / "site" / "index.html").exists() and listed.exists()
        assert (
            os.listdir(local / "site" / "runs") == [run.id] == [r.id for r in read_all_runs(store)]
        )
