"""The store that a config or --store names holds for whatever a command does."""

import os

import pytest

from hallmark.flows.config_files import find_override
from hallmark.flows.document_purge import clear_rendered_pages, remove_unfinished_work
from hallmark.flows.forecast.run_forecast import forecast_run
from hallmark.flows.mitigation import get_removal_list_folder, write_document_id_list
from hallmark.flows.pipeline import audit
from hallmark.flows.run_recording import record_run, resolve_flow_arguments
from hallmark.flows.runs import is_same_store, open_run, open_store, read_all_runs
from hallmark.flows.site import build_store_site
from hallmark.flows.unredacted_site import write_unredacted_site
from hallmark.tasks.contract import UsageError

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
    """A folder to work in: HALLMARK_STORE names one store, my.toml another."""
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
def test_where_a_flow_works(place, arguments, store):
    settled = resolve_flow_arguments(**({"overrides": []} | arguments))
    assert settled.store.root_folder == place / store
    assert {p.name for p in place.iterdir() if p.is_dir()} - {"gpt2"} == {store}


def test_a_checkpoint_is_sought_in_the_store_of_the_config(place):
    for named in ({"checkpoint": "latest"}, {"start": "latest"}):
        with pytest.raises(UsageError, match=f"no store at {place / 'mine'}, which does not exist"):
            resolve_flow_arguments("my.toml", [], **named)
        assert not (place / "mine").exists()
    (place / "mine").mkdir()
    for named in ({"checkpoint": "latest"}, {"start": "latest"}):
        with pytest.raises(UsageError, match="has trained a model yet"):
            resolve_flow_arguments("my.toml", [], **named)
    assert not (place / "usual").exists()


def test_a_command_without_a_config_finds_the_store_that_one_names(place):
    assert open_store("my.toml").root_folder == place / "mine"
    (place / "of another.toml").write_text('name = "other"')
    assert open_store("of another.toml").root_folder == place / "usual"
    with pytest.raises(UsageError, match=r"config gone\.toml: cannot be read"):
        open_store("gone.toml")
    (place / "wrong.toml").write_text("store = 3")
    with pytest.raises(UsageError, match=r"config wrong\.toml: store: is no text \(given: 3\)"):
        open_store("wrong.toml")
    assert not (place / "gone.toml").exists()


def test_an_override_of_a_root_key_is_read_without_a_config():
    overrides = ["ingest.sources.0.path=x", "store='a b'", "store=s3://bucket", "workers=3"]
    assert find_override("store", overrides) == "s3://bucket"
    assert find_override("workers", overrides) is None  # no text: the config's own check refuses it
    assert find_override("name", overrides) is None


def test_two_names_of_one_store(place):
    assert is_same_store("usual", str(place / "usual"))
    assert is_same_store(f"file://{place}/usual", "usual")
    assert not is_same_store("s3://usual", "usual")


def test_an_audit_that_there_is_not_is_refused_as_on_the_command_line(place):
    for only, words in ((["taste", "bias"], "there is no audit 'taste'"), ([], "none is named")):
        with pytest.raises(UsageError, match=f"only .*{words}; choose from capability, "):
            audit.fn(checkpoint="gpt2", only=only)
    assert not (place / "usual").exists()


def test_a_layer_that_the_model_will_lack_is_refused_before_anything_is_made(place):
    for layer in (5, -5):
        with pytest.raises(UsageError, match=f"audit_weat.layer is {layer}, and .* from 1 to 4, "):
            resolve_flow_arguments("my.toml", [f"audit_weat.layer={layer}"])
        with pytest.raises(UsageError, match=f"audit_weat.layer is {layer}, and .* from 1 to 4, "):
            forecast_run("my.toml", [f"audit_weat.layer={layer}"])
    resolve_flow_arguments("my.toml", ["audit_weat.layer=-4"])
    # Of a model from elsewhere its own depth counts.
    resolve_flow_arguments(None, ["audit_weat.layer=12"], checkpoint="gpt2")


@pytest.mark.parametrize(
    ("earlier", "words"),
    [
        (
            "latest",
            "has the stage plant_canaries yet; make one first: hallmark run CONFIG; the config of",
        ),
        ("20260101", "has no run called '20260101'; it holds none; start one with: hallmark run"),
    ],
)
def test_a_corpus_cannot_be_added_to_in_a_store_without_one(place, earlier, words):
    with pytest.raises(UsageError, match=f"^earlier_run '{earlier}': .*{words}") as error:
        resolve_flow_arguments("my.toml", [f"earlier_run='{earlier}'"])
    assert str(error.value).endswith("; the config of the first corpus has no earlier_run")


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_pages_and_lists_are_in_the_store_or_in_its_cache_and_nowhere_else(place, kind, request):
    """An object store has a folder of this machine's cache: nothing is written where one is."""
    cache = place / "cache"
    uri = str(place / "usual")
    with pytest.MonkeyPatch.context() as patch:
        if kind == "bucket":
            request.getfixturevalue("bucket")
            uri = f"s3://hallmark/{place.name}"
            patch.setenv("XDG_CACHE_HOME", str(cache))
        store = open_store(uri)
        with record_run("corpus", resolve_flow_arguments("my.toml", [], store=uri).config, store):
            pass
        before = {path.name for path in place.iterdir()}
        local = (
            cache / "hallmark" / store.work_folder.name / "local"
            if kind == "bucket"
            else store.root_folder
        )
        assert build_store_site(store) == local / "site" / "index.html"
        run = open_run("latest", store)
        assert (
            write_unredacted_site(run) == local / "site-revealed" / "runs" / run.id / "index.html"
        )
        listed = write_document_id_list([bytes(16)], get_removal_list_folder(store))
        assert listed.parent == local / "left-out"
        assert {path.name for path in place.iterdir()} - before <= {"cache"}

        (store.work_folder / "redact_spans-0123456789abcdef").mkdir(parents=True)
        assert remove_unfinished_work(store, set()) == ["redact_spans-0123456789abcdef"]
        here, beyond = clear_rendered_pages(store)
        assert not beyond
        assert here == [f"{local / 'site'}, built anew", f"{local / 'site-revealed'}, removed"]
        assert (local / "site" / "index.html").exists() and listed.exists()
        assert (
            os.listdir(local / "site" / "runs") == [run.id] == [r.id for r in read_all_runs(store)]
        )
