"""A damaged or changed card is shown nowhere: each command says so and ends with exit code 1."""

import hashlib
import html
import json
import math
import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from hallmark.flows.application.application import create_application
from hallmark.flows.runs import open_run, open_store
from hallmark.reports.cards import list_evidence_problems
from hallmark.reports.review.signatures import SignerFiles
from hallmark.tasks.contract.manifests import compute_content_digest, compute_table_digest
from tests.forged_tables import forge_table

pytestmark = pytest.mark.slow


@pytest.fixture
def hallmark(apart, tmp_path, monkeypatch):
    """The command line in an empty folder, with a copy of the store."""
    store = tmp_path / "store"
    shutil.copytree(apart.store, store, symlinks=True)
    shutil.rmtree(store / "site", ignore_errors=True)
    monkeypatch.chdir(tmp_path)
    return type(apart)(store, apart.server)


def open_card(hallmark, card="model_card"):
    return open_run(hallmark.first, str(hallmark.store))[card]


def make_client(hallmark):
    store = open_store(str(hallmark.store), create=False)
    application = create_application(store, 8321, SignerFiles())
    return TestClient(application, base_url="http://127.0.0.1:8321")


def forge_figures(card):
    """Give all figures one value."""
    forge_table(card["figures"], "value", 0.123456)


def export_site(hallmark):
    """Export the site, and return the sentences about it and the folder of the run."""
    done = hallmark("export-site", hallmark.first, "--output", "site", code=1)
    return done.stderr.splitlines(), hallmark.store.parent / "site" / "runs" / hallmark.first


@pytest.mark.parametrize("has_site", [False, True])
def test_a_card_with_other_figures_is_not_shown(hallmark, has_site):
    card = open_card(hallmark)
    if has_site:  # whose pages are reused if nothing has changed
        hallmark("export-site")
    forge_figures(card)
    expected = f"artifact {card.name} is damaged: "
    error = hallmark("export-cards", "--output", "cards", code=1).stderr
    assert expected in error and "does not match the SHA-256 in its manifest" in error
    assert not (hallmark.store.parent / "cards").exists()
    sentences, folder = export_site(hallmark)
    (sentence,) = [line for line in sentences if card.name in line]
    assert sentence.startswith(f"the site does not show {card.name}: {expected}")
    assert not (folder / "model_card").exists() and (folder / "datasheet").exists()
    assert "0.123" not in (folder.parents[1] / "index.html").read_text()
    client = make_client(hallmark)
    response = client.get(f"/runs/{hallmark.first}/model_card/model_card.html")
    assert response.status_code == 500 and "does not match the SHA-256" in response.text
    assert "0.123" not in client.get("/").text


@pytest.mark.parametrize("damage", ["no manifest", "cut manifest", "no folder", "no audit"])
def test_the_site_says_which_artifact_it_does_not_show(hallmark, damage):
    card = open_card(hallmark)
    if damage == "no audit":
        card = open_run(hallmark.first, str(hallmark.store))["audit_bias"]
    folder = hallmark.store / card.folder
    match damage:
        case "no manifest":
            (folder / "manifest.json").unlink()
        case "cut manifest":
            text = (folder / "manifest.json").read_text()
            (folder / "manifest.json").write_text(text[: len(text) // 2])
        case "no folder" | "no audit":
            shutil.rmtree(folder)
    sentences, run_folder = export_site(hallmark)
    (sentence,) = [line for line in sentences if f"does not show {card.name}: " in line]
    assert sentence.endswith("run again to rebuild it")
    assert (run_folder / "index.html").exists() and (run_folder / "datasheet").exists()
    assert (run_folder / "model_card").exists() == (damage == "no audit")


def test_a_damaged_newest_run_does_not_prevent_the_site(hallmark):
    newest = hallmark.store / "runs" / "29991231-235959-ffff"
    newest.mkdir()
    (newest / "run.json").write_text("{")
    done = hallmark("export-site", "--output", "site", code=1)
    assert f"run {newest.name} is damaged" in done.stderr
    assert f"runs/{hallmark.first}/index.html" in done.stdout
    assert (hallmark.store.parent / "site" / "runs" / hallmark.first / "model_card").exists()


def test_an_undamaged_store_has_a_site_without_sentences(hallmark):
    done = hallmark("export-site", hallmark.first, "--output", "site")
    assert "does not show" not in done.stderr


def change_manifest(card, folder, *keys, value):
    """Write a value into the manifest of a card; remove the key if the value is ``...``."""
    path = folder / card.folder / "manifest.json"
    manifest = part = json.loads(path.read_text())
    for key in keys[:-1]:
        part = part[key]
    if value is ...:
        del part[keys[-1]]
    else:
        part[keys[-1]] = value
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("keys", "value", "review_code", "export_code"),
    [
        *((("parts", "inputs", "checkpoint"), value, 1, 1) for value in ("x", 5, [], {})),
        (("parts", "inputs"), ..., 1, 1),
        (("parts", "inputs"), [], 1, 1),
        (("lineage", "corpus_artifacts"), None, 0, 1),
        (("lineage", "corpus_artifacts"), {"datasheet": 5}, 1, 1),
        (("parts", "config"), {}, 0, 0),
        (("parts", "config"), [], 1, 1),
    ],
    ids=str,
)
def test_a_manifest_that_lies_is_one_sentence(hallmark, keys, value, review_code, export_code):
    card = open_card(hallmark)
    change_manifest(card, hallmark.store, *keys, value=value)
    expected = rf"{card.name} is damaged: its manifest.json .*\({keys[0]}"
    for command, code in (
        (("release", hallmark.first, "out"), 1),
        (("review", hallmark.first), review_code),
        (("export-cards", "--output", "cards"), export_code),
    ):
        error = hallmark(*command, code=code).stderr
        assert "--debug" not in error
        # Before its settings are read, the release is refused because nobody approved the card.
        if code and (review_code or command[0] == "export-cards"):
            assert re.search(expected, error.splitlines()[-1])
    client = make_client(hallmark)
    page = html.unescape(client.get(f"/runs/{hallmark.first}/model_card/reviews/").text)
    assert re.search(expected if review_code else "Write a review", page)
    assert client.get(f"/compare?runs={hallmark.first}&runs=latest").status_code < 500


def test_many_notes_are_refused_before_they_are_shown(hallmark):
    response = make_client(hallmark).post(
        f"/runs/{hallmark.first}/model_card/reviews/",
        content="decision=approve&reviewer=Ada&" + "about=a&note=b&" * 100_000,
        headers={
            "Content-Type": "application/x-www-form-urlencoded",
            "Origin": "http://127.0.0.1:8321",
        },
    )
    assert response.status_code == 400
    assert "The review has 100,000 notes, but the maximum is 200" in response.text
    assert response.text.count('name="note"') == 200


def replace_column(folder, table, column, value):
    """Give a column one value, in a table whose manifest says so; return the new digest."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    entry = manifest["tables"][table]
    (part,) = entry["parts"]
    rows = pq.read_table(folder / part["path"])
    index = rows.schema.get_field_index(column)
    field = rows.schema.field(index)
    changed = rows.set_column(index, field, pa.array([value] * len(rows), field.type))
    pq.write_table(changed, folder / part["path"])
    content = (folder / part["path"]).read_bytes()
    part.update(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    entry["sha256"] = compute_table_digest(entry)
    manifest["content"] = compute_content_digest(manifest["tables"], manifest["files"])
    path.write_text(json.dumps(manifest))
    return manifest["content"]


def change_card_table(hallmark, table, column, value):
    """Change a table of the model card with its manifest and the record of the run."""
    card = open_card(hallmark)
    content = replace_column(hallmark.store / card.folder, table, column, value)
    record_file = hallmark.store / "runs" / hallmark.first / "run.json"
    record = json.loads(record_file.read_text())
    for stage in record["stages"]:
        if stage["label"] == "model_card":
            stage["content"] = content
    record_file.write_text(json.dumps(record))
    return card


@pytest.mark.parametrize(
    ("table", "column", "value", "words"),
    [
        ("figures", "value", math.inf, "has the value inf"),
        ("figures", "value", math.nan, "has the value nan"),
        ("figures", "high", math.inf, "has the value inf"),
        ("answers", "figure_ids", ["nosuch"], "cites the unknown figure nosuch"),
        ("answers", "basis", "guessed", "has the unknown basis guessed"),
        ("answers", "question_id", "details_date", "has no answer to"),
        ("sections", "content", "[" * 50_000, "nested too deeply"),
        ("evidence", "evidence_filter", "[", "Expecting value"),
        ("evidence", "evidence_filter", "[" * 50_000, "nested too deeply"),
        ("evidence", "evidence_filter", '{"a": 1e999}', "JSON compliant"),
    ],
)
def test_tables_changed_with_their_manifest_are_one_sentence(hallmark, table, column, value, words):
    card = change_card_table(hallmark, table, column, value)
    sentence = hallmark("export-cards", "--output", "cards", code=1).stderr.splitlines()[-1]
    assert card.name in sentence and words in sentence
    assert "hallmark verify" in sentence and f"remove {card.name} and rerun" in sentence
    assert "--debug" not in sentence and not (hallmark.store.parent / "cards").exists()
    response = make_client(hallmark).get(f"/runs/{hallmark.first}/model_card/model_card.html")
    assert response.status_code == 200 or words in response.text
    assert "could not be built" not in response.text


def test_a_damaged_input_is_found_by_verify(hallmark):
    """The message does not blame the card, which is intact."""
    card = open_card(hallmark)
    canaries = open_run(hallmark.first, str(hallmark.store))["plant_canaries"]["canaries"]
    path = canaries.parts[0].path
    rows = pq.read_table(path)
    index = rows.schema.get_field_index("secret")
    secrets = pa.array(["altered"] * len(rows), rows.schema.field(index).type)
    pq.write_table(rows.set_column(index, rows.schema.field(index), secrets), path)
    manifest_file = hallmark.store / canaries.artifacts[0].folder / "manifest.json"
    manifest = json.loads(manifest_file.read_text())
    manifest["tables"]["canaries"]["parts"][0]["size"] = path.stat().st_size
    manifest_file.write_text(json.dumps(manifest))
    sentence = hallmark("export-cards", "--output", "cards", code=1).stderr.splitlines()[-1]
    assert f"the tables of {card.name} and its inputs contradict each other" in sentence
    assert "run hallmark verify to find the damaged file; if it finds none, remove" in sentence
    response = make_client(hallmark).get(f"/runs/{hallmark.first}/model_card/model_card.html")
    assert response.status_code == 500 and "hallmark verify" in response.text
    verified = hallmark("verify", code=1)
    assert "plant_canaries" in verified.stdout + verified.stderr


# Tables that cases show and that the card does not cite --------------------------------------


def find_stage_with_table(hallmark, pattern, table):
    """Return the first artifact of the run whose label matches and that has rows in a table."""
    run = open_run(hallmark.first, str(hallmark.store))
    return next(
        run[label]
        for label in run.stages
        if re.fullmatch(pattern, label)
        and table in run[label].tables
        and run[label][table].row_count
    )


@pytest.fixture(scope="module")
def case_pages(apart):
    """Return the path of one page of cases for each table of which the model card cites some."""
    client = make_client(apart)
    card = f"/runs/{apart.first}/model_card/"
    page = client.get(f"{card}model_card.html").text
    sections = {f"{card}{path}" for path in re.findall(r'href="([a-z-]+\.html)"', page)}
    texts = [page, *(client.get(path).text for path in sorted(sections))]
    paths = {path for text in texts for path in re.findall(r'href="(rows/[^"#]+\.html)"', text)}
    path_by_table = {path.rpartition("--")[0]: f"{card}{path}" for path in sorted(paths)}
    return [path for path in path_by_table.values() if 'class="case"' in client.get(path).text]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "table", "column", "value"),
    [
        ("split", "documents", "text", "Forged words."),
        ("score_toxicity", "signals", "toxicity", 0.0),
        ("ingest", "sources", "licence", "forged"),
        ("plant_canaries", "canaries", "secret", ""),
        (".*_trace", "matched_spans", "run_tokens", 77),
        ("pretrain", "document_reads", "times_read", 77),
    ],
)
def test_a_page_shows_no_case_with_a_forged_table(
    hallmark, case_pages, stage, table, column, value
):
    artifact = find_stage_with_table(hallmark, stage, table)
    client = make_client(hallmark)
    assert case_pages and client.get(case_pages[0]).status_code == 200
    forge_table(artifact[table], column, value)
    refused = [r for r in map(client.get, case_pages) if r.status_code != 200]
    assert refused
    for response in refused:
        text = html.unescape(response.text)
        assert response.status_code == 500 and f"artifact {artifact.name} is damaged: " in text
        assert "does not match the SHA-256 in its manifest" in text
        assert "Figures computed from these rows" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "table", "column", "value"),
    [
        ("plant_canaries", "documents", "text", "Forged words."),
        ("toxicity_trace", "matched_spans", "run_tokens", 77),
        ("pretrain", "document_reads", "times_read", 77),
    ],
)
def test_the_trace_of_a_finding_shows_no_forged_rows(hallmark, stage, table, column, value):
    finding = "toxicity.toxicity_probability[prompted, draw_count=4]"
    hallmark("trace", hallmark.first, finding)
    artifact = find_stage_with_table(hallmark, stage, table)
    forge_table(artifact[table], column, value)
    error = hallmark("trace", hallmark.first, finding, code=1).stderr
    assert f"artifact {artifact.name} is damaged: " in error
    assert "does not match the SHA-256 in its manifest" in error and "OSError" not in error


@pytest.mark.slow
def test_an_export_and_a_release_name_a_forged_table_of_cases(hallmark):
    card = open_card(hallmark)
    assert list_evidence_problems(card.store, card) == []
    artifact = find_stage_with_table(hallmark, "split", "documents")
    forge_table(artifact["documents"], "text", "Forged words.")
    expected = f"artifact {artifact.name} is damaged: "
    done = hallmark("export-site", hallmark.first, "--output", "site", code=1)
    (sentence,) = [line for line in done.stderr.splitlines() if card.name in line]
    assert sentence.startswith(f"the site does not show all rows of {card.name}: {expected}")
    rows = hallmark.store.parent / "site" / "runs" / hallmark.first / "model_card" / "rows"
    texts = [path.read_text() for path in rows.glob("*.html")]
    assert any("Rows that are not available" in text for text in texts)
    assert not any("Forged words." in text for text in texts)
    problems = list_evidence_problems(card.store, card)
    assert problems and all(f" cannot be shown ({expected}" in problem for problem in problems)
