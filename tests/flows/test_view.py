"""`hallmark view`: its pages, downloads, reviews, and the requests that it refuses."""

import asyncio
import csv
import html
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import pyarrow.parquet as pq
import pytest
import uvicorn
from fastapi.testclient import TestClient
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from hallmark.flows.application import http_protocol
from hallmark.flows.application.application import create_application, prepare_pages
from hallmark.flows.application.card_pages import CASES_PER_PAGE, CardPages
from hallmark.flows.application.requests import SECURITY_HEADERS
from hallmark.flows.application.store_reader import RecentValues, StoreReader
from hallmark.flows.commands.view import GRACEFUL_SHUTDOWN_SECONDS, bind_port
from hallmark.flows.runs import open_run, open_store
from hallmark.reports.review.signatures import SignerFiles
from hallmark.reports.view.row_queries import count_pages
from hallmark.tasks.contract import HallmarkError

pytestmark = pytest.mark.slow

ADDRESS = "http://127.0.0.1:8321"
SAME_ORIGIN = {"origin": ADDRESS, "sec-fetch-site": "same-origin"}


def start(store, signer_files=SignerFiles()):  # noqa: B008
    application = create_application(open_store(str(store), create=False), 8321, signer_files)
    return TestClient(application, base_url=ADDRESS)


@pytest.fixture(scope="module")
def client(apart):
    return start(apart.store)


@pytest.fixture(scope="module")
def run(apart):
    return open_run(apart.first, str(apart.store))


@pytest.fixture(scope="module")
def card(client, run):
    """Return the path of the model card, with a slash at its end."""
    return f"/runs/{run.id}/model_card/"


@pytest.fixture(scope="module")
def evidence(client, card):
    """Return the paths of the pages of rows that the model card links to, without suffix."""
    page = client.get(f"{card}model_card.html").text
    return sorted({card + path for path in re.findall(r'href="(rows/[^"#.]+)\.html"', page)})


@pytest.fixture
def damaged(apart, tmp_path):
    """Return a copy of the store, without reviews, that a test may damage."""
    store = tmp_path / "store"
    shutil.copytree(apart.store, store, symlinks=True, ignore=shutil.ignore_patterns("reviews"))
    return store


def assert_one_sentence(response, status, words):
    assert response.status_code == status
    assert re.search(words, response.text), response.text
    assert "Traceback" not in response.text


# Pages ----------------------------------------------------------------------------------------


def test_the_list_shows_a_run_and_is_searched(client, run):
    page = client.get("/").text
    assert f'href="/runs/{run.id}/"' in page and "completed" in page
    assert f"/runs/{run.id}/model_card/model_card.html" in page
    assert run.id in client.get("/", params={"search": "SMOKE"}).text
    page = client.get("/", params={"search": "no such run"}).text
    assert run.id not in page and "0 of " in page
    # A page after the last shows the last, as for rows.
    assert client.get("/?page=999").text == client.get("/").text


@pytest.mark.parametrize("page", ["", "two", "-1", "1.0", "9" * 5000, "\0"])
def test_what_is_no_page_of_the_list_is_refused(client, page):
    response = client.get("/", params={"page": page})
    assert_one_sentence(response, 400, "is not a page number")


@pytest.mark.parametrize("text", ["", "\0", "x" * 9000, "\u202e", "%", "../..", "\ud7ff"])
def test_no_value_of_a_parameter_is_an_unexpected_error(client, run, values, text):
    for path, names in {
        "/": ("search", "page", "nothing"),
        "/compare": ("before", "after", "nothing"),
        "/trace": ("run", "nothing"),
        f"/runs/{run.id}/": ("nothing",),
        f"{values}.html": ("search", "sort", "page", "column", "operator", "value", "nothing"),
        f"{values}.csv": ("search", "sort", "page", "column", "operator", "value", "nothing"),
    }.items():
        for name in names:
            for others in ({}, {"before": run.id, "after": run.id}):
                filters = {"column": "toxicity", "operator": "is", "value": "0.5"}
                others |= filters if name in filters else {}
                response = client.get(path, params=others | {name: text})
                assert response.status_code in (200, 400), (path, name)
                assert "could not be built" not in response.text, (path, name)


def read_record(store, run):
    return json.loads((store / "runs" / run.id / "run.json").read_text())


def write_record(store, run, **changes):
    record = read_record(store, run) | changes
    (store / "runs" / run.id / "run.json").write_text(json.dumps(record))


def test_texts_of_a_run_are_redacted_wherever_they_are_shown_and_searched(damaged, run):
    address = "jane.roe@example.org"
    names = ("config_name", "status", "started", "ended", "error", "checkpoint")
    write_record(damaged, run, **{name: f"<{address} {name}>" for name in names})
    client = start(damaged)
    paths = ("/", f"/runs/{run.id}/", f"/runs/{run.id}/progress", "/compare", "/trace")
    for path in paths:
        page = client.get(path)
        assert page.status_code == 200 and "example.org" not in page.text, path
        assert "<[email" not in page.text, path
    assert client.get("/").text.count("[email masked]") == 3
    assert run.id not in client.get("/?search=jane").text
    assert run.id in client.get("/?search=[email+masked]+config_name").text
    write_record(damaged, run, flow=f"<{address} flow>")  # not that of the request
    for path in paths:
        page = client.get(path)
        assert (page.status_code == 200) == ("/runs/" not in path), path
        assert "example.org" not in page.text and "<[email" not in page.text, path
    assert "the request is for the pipeline flow, not " in client.get("/").text


def test_the_page_of_a_run_says_why_it_is_interrupted(damaged, run):
    changes = {"status": "running", "host": "jane.roe@example.org", "config_name": "a@example.org"}
    write_record(damaged, run, **changes)
    client = start(damaged)
    page = client.get(f"/runs/{run.id}/").text
    assert (
        "interrupted" in page
        and "<dt>Reason</dt>" in page
        and "running" not in client.get("/").text
    )
    assert "no sign of life from process" in page and "[email masked]" in page
    assert "example.org" not in page
    (damaged / "runs" / run.id / "progress.json").write_text("{}")  # a sign of life
    page = client.get(f"/runs/{run.id}/").text
    assert "<dt>Reason</dt>" not in page and "running" in page


def test_times_of_a_run_are_shown_as_they_are(client, run):
    assert run.record["started"].replace("T", " ").replace("+00:00", " UTC") in client.get("/").text


def test_a_damaged_run_does_not_hide_the_others(damaged, run):
    shutil.copytree(damaged / "runs" / run.id, damaged / "runs" / "20200101-000000-0000")
    page = start(damaged).get("/").text
    assert "run 20200101-000000-0000 is damaged" in page and f'href="/runs/{run.id}/"' in page


def test_the_page_of_a_run_shows_its_stages_flow_and_losses(client, run):
    page = client.get(f"/runs/{run.id}/").text
    assert all(f'<tr id="{label}">' in page for label in run.stages)
    assert all(f'href="#{label}"' in page for label in run.stages)
    assert page.count("<rect ") == len(run.stages) and page.count("<path ") >= len(run.stages) - 3
    losses = run["pretrain"]["log"].read()["loss"].to_pylist()
    assert f"Training (solid): {losses[-1]:.4f} at step {len(losses):,}" in page
    assert "data-reload" not in page


def test_the_start_of_an_id_and_latest_lead_to_the_run(client, run):
    for name in (run.id[:-1], "latest"):
        response = client.get(f"/runs/{name}/", follow_redirects=False)
        assert response.headers["location"] == f"/runs/{run.id}/"


def test_every_link_of_the_cards_leads_to_a_page(client, run):
    for label, other in (("model_card", "datasheet"), ("datasheet", "model_card")):
        home = f"/runs/{run.id}/{label}/"
        page = client.get(f"{home}{label}.html")
        assert page.status_code == 200
        paths = {
            path.partition("#")[0] for path in re.findall(r'(?:href|src)="([^"]*)"', page.text)
        }
        paths = {path for path in paths if path and not path.startswith("http")}
        sections = {path for path in paths if re.fullmatch(r"[a-z_-]+\.html", path)}
        assert any("<svg" in client.get(home + path).text for path in sections)
        assert any(path.startswith("rows/") for path in paths)
        assert f"/runs/{run.id}/{other}/{other}.html" in paths
        rows = sorted(path for path in paths if path.startswith("rows/"))
        for path in sorted(paths - {*rows[10:]}):
            linked = path if path.startswith("/") else home + path
            assert client.get(linked).status_code == 200, linked


def test_pages_that_do_not_exist_say_so(client, run, card):
    for path in (
        "/nothing",
        "/static/nothing.css",
        f"/runs/{run.id}/nothing/nothing.html",
        f"{card}other.html",
        f"{card}rows/other.html",
        f"{card}rows/model_card.txt",
        "/statements/0123/",
        f"/runs/{run.id}/ingest/reviews/",
    ):
        assert client.get(path).status_code == 404, path
    assert_one_sentence(client.get("/runs/20991231-/"), 404, "has no run named &#39;20991231-&#39;")
    # A stage that is no card has no page to redirect to.
    response = client.get(f"/runs/{run.id}/ingest/", follow_redirects=False)
    assert_one_sentence(response, 404, "has no card &#39;ingest&#39;; its cards: ")
    assert client.get(card, follow_redirects=False).status_code == 307


@pytest.mark.parametrize(
    "path",
    [
        "/runs/..%2f..%2fetc/",
        "/runs/%2e%2e/",
        "/static/..%2fview.js",
        "/static/..%2f..%2f..%2fpyproject.toml",
        "/runs/RUN/model_card/rows/..%2f..%2fmodel_card.html",
        "/runs/RUN/..%2fmodel_card/model_card.html",
        "/statements/..%2f..%2frun.json/",
    ],
)
def test_no_path_leaves_its_folder(client, run, path):
    response = client.get(path.replace("RUN", run.id))
    assert response.status_code == 404 and "pretrain" not in response.text


def test_a_comparison_does_not_tell_which_files_exist(client, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()

    def explain(name):
        response = client.get("/compare", params={"before": name, "after": run.id})
        assert response.status_code == 400
        return html.unescape(re.search('role="alert">(.*?)</p>', response.text)[1])

    folder = str(tmp_path)
    for name in (
        *("file", "empty", "model", "missing", ".", "~", "~root", "~nobody-here"),
        *(f"{folder}/file", f"{folder}/empty", f"{folder}/model", f"{folder}/missing"),
        "/etc/passwd",
        "~/file",
        "checkpoint/0123456789abcdef",
        "checkpoint/../x",
        f"{run.id}@",
        f"{run.id}@x",
        f"{run.id}@all",
        "@1",
        "latest@" + "9" * 5000,
    ):
        assert explain(name) == (
            f"The store has no run or checkpoint {name!r:.80}; specify RUN, RUN@STEP or the name "
            "of an artifact (checkpoint/…)."
        )


def test_names_of_compared_runs_are_completed(client, run):
    steps = run["pretrain"]["checkpoints"].read(["step"])["step"].to_pylist()
    checkpoint = run.find_checkpoints()[-1].name
    for name in (run.id[:-1], "latest", f"latest@{max(steps)}", checkpoint):
        response = client.get("/compare", params={"before": name, "after": run.id})
        assert_one_sentence(response, 400, f"refer to the same audit, in run {run.id}")
    response = client.get("/compare", params={"before": f"{run.id}@987654", "after": run.id})
    assert_one_sentence(response, 400, "has no checkpoint for step 987654")


def test_several_runs_whose_ids_begin_alike_are_not_compared(damaged, run):
    write_record(damaged, run)
    other = run.id[:-1] + "x"
    shutil.copytree(damaged / "runs" / run.id, damaged / "runs" / other)
    (damaged / "runs" / other / "run.json").write_text(
        json.dumps(read_record(damaged, run) | {"run": other})
    )
    client = start(damaged)
    response = client.get("/compare", params={"before": run.id[:-1], "after": run.id})
    assert_one_sentence(response, 400, f"2 runs have ids that begin with &#39;{run.id[:-1]}&#39;")


def test_what_cannot_be_compared_is_explained(client, run):
    page = client.get("/compare").text
    assert f'<option value="{run.id}">' in page and "callout" not in page
    for names, words in (
        ({"before": run.id, "after": run.id}, run.id),
        ({"before": run.id, "after": "<b>no"}, "&lt;b&gt;no"),
    ):
        assert_one_sentence(client.get("/compare", params=names), 400, words)
    assert client.get(f"/runs/{run.id}/trajectory/trajectory.html").status_code == 404
    assert "trajectory" not in client.get(f"/runs/{run.id}/").text


# Rows -----------------------------------------------------------------------------------------


def read_csv(text):
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture(scope="module")
def values(client, evidence):
    """Return the path of evidence with more than a page of rows that all have a number."""
    for path in evidence:
        rows = read_csv(client.get(f"{path}.csv").text)
        if len(rows) > 50 and all(row.get("toxicity") for row in rows):
            return path
    raise AssertionError("no evidence has enough rows")


def test_rows_are_sorted_filtered_and_searched(client, values):
    rows = read_csv(client.get(f"{values}.csv").text)
    scores = [float(row["toxicity"]) for row in rows]
    largest_first = read_csv(client.get(f"{values}.csv?sort=-toxicity").text)
    assert [float(row["toxicity"]) for row in largest_first] == sorted(scores, reverse=True)
    limit = sorted(scores)[len(scores) // 2]
    filters = f"column=toxicity&operator=at-least&value={limit!r}"
    filtered = read_csv(client.get(f"{values}.csv?{filters}").text)
    assert len(filtered) == sum(score >= limit for score in scores)
    page = client.get(f"{values}.html?{filters}&sort=toxicity").text
    assert f"{len(filtered):,} of {len(rows):,} rows" in page
    assert "sorted by toxicity, smallest first" in page
    assert "No row meets" in client.get(f"{values}.html?search=nowhere+to+be+found").text


def test_a_table_is_sorted_by_its_headers(client, evidence):
    pages = (client.get(f"{path}.html").text for path in evidence)
    page = next(page for page in pages if "<th" in page and "aria-sort" not in page)
    link = re.search(r'<th[^>]*><a href="([^"]*)">', page)[1].replace("&amp;", "&")
    path = next(path for path in evidence if client.get(f"{path}.html").text == page)
    assert 'aria-sort="descending"' in client.get(f"{path}.html{link}").text


def test_pages_continue_each_other(client, values):
    total = len(read_csv(client.get(f"{values}.csv").text))
    numbers = []
    for page in range(1, count_pages(total, CASES_PER_PAGE) + 1):
        text = client.get(f"{values}.html?page={page}").text
        numbers += map(int, re.findall("<dt>Case</dt><dd>([0-9]+)</dd>", text))
    assert numbers == [*range(1, total + 1)]
    # A page after the last shows the last.
    assert client.get(f"{values}.html?page=9999").text == text


def test_downloads_have_the_same_rows_and_hide_the_same_text(client, values, evidence):
    rows = read_csv(client.get(f"{values}.csv").text)
    response = client.get(f"{values}.parquet")
    assert response.headers["content-disposition"].endswith('.parquet"')
    table = pq.read_table(io.BytesIO(response.content)).to_pylist()
    assert [row["toxicity"] for row in table] == [float(row["toxicity"]) for row in rows]
    assert [*table[0]] == [*rows[0]] and len(table) == len(rows)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("sort=nothing", "cannot be sorted or filtered by"),
        (
            "column=toxicity&operator=is&value=many",
            "toxicity column requires a number, not &#39;many&#39;",
        ),
        ("column=toxicity&operator=like&value=1", "not a comparison operator"),
        ("column=toxicity", "needs a column, an operator and a value"),
        ("page=two", "not a page number"),
        ("page=", "not a page number"),
        ("sort=-", "cannot be sorted or filtered by"),
        ("column=toxicity&operator=at-least&value=", "&#39;toxicity&#39; column needs a value"),
        ("&".join(["column=toxicity&operator=is&value=1"] * 21), "21 conditions, but at most 20"),
        (f"search={'x' * 501}", "at most 500"),
    ],
)
def test_a_wrong_query_is_refused_in_one_sentence(client, values, query, words):
    assert_one_sentence(client.get(f"{values}.html?{query}"), 400, words)
    assert client.get(f"{values}.csv?{query}").status_code == 400


def test_a_search_over_no_rows_finds_none(client, values):
    query = "column=toxicity&operator=at-least&value=2&search=64"
    response = client.get(f"{values}.html?{query}")
    assert response.status_code == 200 and "No row meets these conditions" in response.text
    assert read_csv(client.get(f"{values}.csv?{query}").text) == []
    table = pq.read_table(io.BytesIO(client.get(f"{values}.parquet?{query}").content))
    assert len(table) == 0 and "toxicity" in table.column_names


@pytest.mark.parametrize("change", ["removed", "replaced", "restored"])
def test_changed_rows_are_not_served_from_memory(damaged, run, values, change):
    client = start(damaged)
    files = [*(damaged / "artifacts").rglob("values/*.parquet")]
    contents = {path: path.read_bytes() for path in files}
    assert client.get(f"{values}.html").status_code == 200
    for path in files:
        path.unlink()
        if change == "replaced":
            path.write_bytes(b"\0" * len(contents[path]))
    for suffix in ("html", "csv", "parquet"):
        response = client.get(f"{values}.{suffix}")
        assert_one_sentence(response, 500, "is missing|cannot be read|damaged")
    if change == "restored":
        for path, content in contents.items():
            path.write_bytes(content)
        assert client.get(f"{values}.html").status_code == 200


# Memory ---------------------------------------------------------------------------------------


def test_the_newest_cards_are_prepared_and_read_once(apart, run, monkeypatch):
    reader = StoreReader(open_store(str(apart.store)))
    card_pages = CardPages(reader)
    prepare_pages(reader, card_pages)
    monkeypatch.setattr("hallmark.flows.application.store_reader.read_card", lambda *_: 1 / 0)
    for card in ("model_card", "datasheet"):
        assert card_pages.show_card(run.id, card, f"{card}.html").status_code == 200


def test_a_damaged_store_does_not_stop_the_preparation(damaged, run):
    find_table(damaged, run, "model_card", "figures").unlink()
    reader = StoreReader(open_store(str(damaged)))
    prepare_pages(reader, CardPages(reader))


def test_only_the_values_used_last_stay_in_memory():
    values, computed = RecentValues(2), []

    def get(key):
        return values.get(key, lambda: computed.append(key) or key)

    assert [get(key) for key in "abacab"] == [*"abacab"]
    assert computed == ["a", "b", "c", "b"]


# Damage ---------------------------------------------------------------------------------------


def find_table(store, run, label, table):
    name = run.stages[label]["artifact"]
    return next((store / "artifacts" / name).rglob(f"{table}/*.parquet"))


def test_a_missing_or_changed_table_is_named(damaged, run, card):
    client = start(damaged)
    assert client.get(f"{card}model_card.html").status_code == 200
    table = find_table(damaged, run, "model_card", "figures")
    content = table.read_bytes()
    table.write_bytes(content[:200] + bytes(b ^ 0xFF for b in content[200:600]) + content[600:])
    assert_one_sentence(client.get(f"{card}model_card.html"), 500, "is damaged: ")
    table.unlink()
    assert_one_sentence(client.get(f"{card}model_card.html"), 500, "is missing")
    table.write_bytes(content)
    assert client.get(f"{card}model_card.html").status_code == 200


def test_rows_that_are_damaged_do_not_hide_the_card(damaged, run, card, values):
    for path in (damaged / "artifacts").rglob("values/*.parquet"):
        path.write_bytes(b"\0" * path.stat().st_size)
    client = start(damaged)
    assert client.get(f"{card}model_card.html").status_code == 200
    response = client.get(f"{values}.html")
    assert_one_sentence(response, 500, "cannot be read|damaged")


@pytest.mark.parametrize("seconds", ["NaN", "Infinity", "1" + "0" * 400])
def test_a_record_with_an_impossible_number_is_named(damaged, run, seconds):
    record = read_record(damaged, run)
    record["stages"][0]["seconds"] = 123.25
    text = json.dumps(record).replace("123.25", seconds)
    (damaged / "runs" / run.id / "run.json").write_text(text)
    client = start(damaged)
    words = f"run {run.id} is damaged: its run.json in {damaged}/runs/{run.id}"
    assert_one_sentence(client.get(f"/runs/{run.id}/"), 500, f"(?i){words}")
    assert_one_sentence(client.get("/"), 200, words)


@pytest.mark.parametrize("stage", ["../x", "datasheet", "<b>"])
def test_a_card_whose_manifest_names_another_stage_is_named(damaged, run, card, stage):
    folder = damaged / "artifacts" / run.stages["model_card"]["artifact"]
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"stage": stage}))
    client = start(damaged)
    for page in ("model_card.html", "rows/x.html"):
        response = client.get(card + page)
        assert_one_sentence(response, 500, "(?i)is damaged: its manifest.json in ")
        assert run.stages["model_card"]["artifact"] in response.text
    assert client.get("/").status_code == client.get(f"/runs/{run.id}/").status_code == 200


@pytest.mark.parametrize("parts", [{"a": 1}, {"inputs": None}, {"inputs": []}])
def test_a_card_without_the_digests_of_its_inputs_is_named(damaged, run, card, parts):
    name = run.stages["model_card"]["artifact"]
    manifest_file = damaged / "artifacts" / name / "manifest.json"
    manifest = json.loads(manifest_file.read_text())
    manifest_file.write_text(json.dumps(manifest | {"parts": parts}))
    response = start(damaged).get(f"{card}reviews/")
    assert_one_sentence(
        response, 500, f"(?i){name} is damaged: its manifest.json in .* is incomplete or invalid"
    )


@pytest.mark.parametrize("name", ["../../../../etc/passwd", "/etc/passwd"])
def test_a_path_in_a_manifest_does_not_leave_the_artifact(damaged, run, card, name):
    folder = damaged / "artifacts" / run.stages["model_card"]["artifact"]
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    stored = re.search(r'"name": ?"([^"]*figures[^"]*parquet)"', text)[1]
    manifest.write_text(text.replace(stored, name))
    response = start(damaged).get(f"{card}model_card.html")
    assert response.status_code in (404, 500) and "root:" not in response.text


# Requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1:80", "127.0.0.1", "localhost", ""])
def test_another_name_of_this_machine_is_refused(client, host):
    response = client.get("/", headers={"host": host})
    assert response.status_code == 403 and ADDRESS in response.text


def test_localhost_is_an_own_name(client):
    assert client.get("/", headers={"host": "localhost:8321"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "http://localhost:8321"},
        {"origin": ADDRESS, "sec-fetch-site": "cross-site"},
        {"origin": ADDRESS, "sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
    ],
)
def test_another_site_cannot_write(client, card, headers):
    for path in ("/trace", f"{card}reviews/", "/statements/0/"):
        response = client.post(path, data={"text": "a"}, headers=headers)
        assert response.status_code == 403, path


def test_every_response_confines_its_page(client, card):
    for path in ("/", "/nothing", f"{card}model_card.html", f"{card}reviews/", "/static/view.js"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self'")
        # Only attributes of elements may have a style.
        assert headers["content-security-policy"].count("unsafe") == 1
        assert "style-src-attr 'unsafe-inline'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    for path in ("/", "/trace", f"{card}model_card.html", f"{card}reviews/"):
        page = client.get(path).text
        assert not re.search(r"<style|<script(?! src)| on\w+=|(?:href|src)=.https?:", page), path


def test_other_methods_and_long_forms_are_refused(client):
    assert client.delete("/", headers=SAME_ORIGIN).status_code == 405
    response = client.post("/trace", data={"text": "a" * (5 << 20)}, headers=SAME_ORIGIN)
    assert_one_sentence(response, 413, "more than 4,194,304 bytes")
    response = client.post("/trace", content=b"text=%ff", headers=SAME_ORIGIN)
    assert_one_sentence(response, 400, "not encoded as UTF-8")


def test_an_unexpected_error_is_one_sentence(apart, monkeypatch):
    application = start(apart.store)
    monkeypatch.setattr(
        "hallmark.flows.application.run_pages.render_view_page",
        lambda *_, **__: 1 / 0,
    )
    client = TestClient(application.app, base_url=ADDRESS, raise_server_exceptions=False)
    response = client.get("/")
    assert_one_sentence(response, 500, "could not be built .ZeroDivisionError")
    assert "content-security-policy" in response.headers


# Trace ----------------------------------------------------------------------------------------


def test_a_text_is_traced_to_its_documents(client, run):
    rows = run["plant_canaries"]["documents"].read(["doc_id", "text", "split"]).to_pylist()
    row = max((r for r in rows if r["split"] == "train"), key=lambda r: len(r["text"]))
    start_index = row["text"].index(" ", 20) + 1
    copied = row["text"][start_index : row["text"].rindex(" ", start_index, start_index + 200)]
    form = {"run": run.id, "text": f"<b>Quuxly</b> blorped: {copied} Zzyzx!\u202e"}
    page = client.post("/trace", data=form, headers=SAME_ORIGIN)
    assert page.status_code == 200
    assert "<mark>" in page.text and row["doc_id"].hex() in page.text
    assert "<b>" not in page.text and "‹U+202E›" in page.text


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"text": " "}, "The text is empty"),
        ({"text": "a" * 50_001}, "more than 50,000 characters"),
        ({"run": "20200101-000000-0000", "text": "a"}, "no run"),
    ],
)
def test_a_text_that_cannot_be_traced_stays_in_the_form(client, run, form, words):
    response = client.post("/trace", data={"run": run.id} | form, headers=SAME_ORIGIN)
    assert_one_sentence(response, 400, words)
    assert form["text"][:100] in response.text


def test_a_text_of_which_nothing_occurs_is_said_so(client, run):
    form = {"run": run.id, "text": "zqxj wvkz qqpf"}
    page = client.post("/trace", data=form, headers=SAME_ORIGIN).text
    assert "No span of at least" in page


# Reviews --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reviewing(apart, reviewers, tmp_path_factory):
    """Return a client of a store that may change; ada may sign."""
    return start(apart.store, reviewers.files(tmp_path_factory.mktemp("signers"), "ada"))


def compose(client, path, **fields):
    form = {"reviewer": "Ada", "decision": "approve", "comment": "", "expires": ""} | fields
    return client.post(path, data=form, headers=SAME_ORIGIN, follow_redirects=False)


def test_a_review_is_composed_signed_and_stored(reviewing, apart, run, reviewers):
    path = f"/runs/{run.id}/model_card/reviews/"
    assert "Unsigned: not yet reviewed" in reviewing.get(path).text
    figure_id = run["model_card"]["figures"].read(["id"])["id"][0].as_py()
    response = compose(
        reviewing,
        path,
        decision="approve-with-conditions",
        comment="Only for <tests>.\r\nNothing else.",
        expires="2099-12-31",
        about=["", figure_id],
        note=["", "Near <chance>."],
    )
    assert response.status_code == 303
    statement_path = response.headers["location"].partition("#")[0]
    page = reviewing.get(statement_path).text
    assert "Only for &lt;tests&gt;.\nNothing else." in page and "Near &lt;chance&gt;." in page
    file_name = re.search(r"ssh-keygen -Y sign -n hallmark-review -f \S+ (\S+\.json)", page)[1]
    statement = reviewing.get(statement_path + file_name).content
    assert not [*(apart.store / "reviews").glob("*")]

    def send(signature):
        return reviewing.post(
            statement_path,
            data={"signature": signature},
            headers=SAME_ORIGIN,
            follow_redirects=False,
        )

    assert_one_sentence(send(""), 400, "No signature was provided")
    assert_one_sentence(send("nonsense"), 400, "does not match this statement")
    wrong = reviewers.sign("ada", statement + b" ").decode()
    assert_one_sentence(send(wrong), 400, "does not match this statement")
    stored = send(reviewers.sign("ada", statement).decode().replace("\n", "\r\n"))
    assert stored.status_code == 303, stored.text
    assert stored.headers["location"].startswith(path)
    page = reviewing.get(path).text
    assert "Approved with conditions by ada@example.org" in page
    assert "Only for &lt;tests&gt;." in page and "Near &lt;chance&gt;." in page
    assert apart.json("review", run.id)["cards"][0]["reviews"] is not None
    assert len([*(apart.store / "reviews").glob("*")]) == 2
    assert_one_sentence(reviewing.get(statement_path), 404, "is not waiting for a signature")


def test_reviews_of_strangers_are_counted_and_limited_on_the_page(
    reviewing, apart, run, reviewers, monkeypatch
):
    path = f"/runs/{run.id}/datasheet/reviews/"
    for _ in range(3):
        statement_path = compose(reviewing, path).headers["location"].partition("#")[0]
        page = reviewing.get(statement_path).text
        statement = reviewing.get(statement_path + re.search(r"review-\w+\.json", page)[0]).content
        signature = reviewers.sign("eve", statement).decode()
        reviewing.post(statement_path, data={"signature": signature}, headers=SAME_ORIGIN)
    page = reviewing.get(path).text
    assert "Signatures not verified: 3 of 3.</strong> The file of allowed signers does not" in page
    assert "approves nothing" in page and "Not shown" not in page
    monkeypatch.setattr("hallmark.flows.application.review_pages.MAX_UNVERIFIED_REVIEWS", 1)
    page = reviewing.get(path).text
    assert page.count('<article class="review">') == 1
    assert "Not shown: 2 reviews without a verified signature." in page
    page = start(apart.store).get(path).text
    assert "Signatures not verified: 3 of 3.</strong> No file of allowed signers was" in page
    assert "<code>--allowed-signers</code>" in page


def test_a_missing_file_of_allowed_signers_is_named(apart, run, reviewers, tmp_path):
    signer_files = reviewers.files(tmp_path, "ada")
    client, path = start(apart.store, signer_files), f"/runs/{run.id}/model_card/reviews/"
    assert client.get(path).status_code == 200
    signer_files.allowed_signers.unlink()
    words = (
        f"The reviews cannot be evaluated: {signer_files.allowed_signers}: there is no such file"
    )
    assert_one_sentence(client.get(path), 500, words)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"decision": "like"}, "Choose a decision"),
        ({"reviewer": " "}, "Reviewer: must not be empty"),
        ({"reviewer": "\u3164"}, "Reviewer: contains no visible characters"),
        ({"comment": "\u200d"}, "Comment: contains no visible characters"),
        ({"about": "a", "note": "\u3164\u2800"}, "is empty; enter some text"),
        ({"decision": "reject"}, "must state why the card is rejected"),
        ({"expires": "2001-01-01"}, "must not be before the review date"),
        ({"about": "nothing", "note": "a"}, "the card has no figure|has no figure"),
    ],
)
def test_a_wrong_review_is_explained_and_kept(reviewing, run, fields, words):
    path = f"/runs/{run.id}/datasheet/reviews/"
    response = compose(reviewing, path, **{"reviewer": "Ada <x>"} | fields)
    assert response.status_code == 400
    assert re.search(words, response.text), response.text
    assert fields.get("reviewer") or "Ada &lt;x&gt;" in response.text


def test_a_statement_about_changed_evidence_is_refused(damaged, reviewers, run):
    client = start(damaged)
    response = compose(client, f"/runs/{run.id}/model_card/reviews/")
    path = response.headers["location"].partition("#")[0]
    file_name = re.search(r"(review-\w+\.json)", client.get(path).text)[1]
    statement = client.get(path + file_name).content
    figures = find_table(damaged, run, "model_card", "figures")
    figures.unlink()
    form = {"signature": reviewers.sign("ada", statement).decode()}
    response = client.post(path, data=form, headers=SAME_ORIGIN)
    assert_one_sentence(response, 400, "is missing|changed")
    assert not (damaged / "reviews").exists()


# The command ----------------------------------------------------------------------------------


@contextmanager
def start_command(store):
    """Start the command as a user does; yield its process and its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hallmark.flows.cli", "view", "--port", "0"],
        env={**os.environ, "HALLMARK_STORE": str(store)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        port = int(re.search(r"127\.0\.0\.1:(\d+)/", process.stdout.readline())[1])
        yield process, port
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def started_application(apart):
    with start_command(apart.store) as started:
        yield started


@pytest.fixture(scope="module")
def module_application(apart):
    """The port of the application, for tests that do not end it."""
    with start_command(apart.store) as (_, port):
        yield port


def test_ctrl_c_ends_the_application_and_wrong_requests_are_quiet(started_application):
    process, port = started_application
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    for request, status in (
        (f"GET /static/view.js HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{upgrade}\r\n", 200),
        ("this is no request\r\n\r\n", 400),
    ):
        with socket.create_connection(("127.0.0.1", port)) as other:
            other.sendall(request.encode())
            assert other.recv(100).startswith(f"HTTP/1.1 {status}".encode())
    with socket.create_connection(("127.0.0.1", port)) as aborted:
        aborted.sendall(
            f"POST /trace HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f"Origin: http://127.0.0.1:{port}\r\nContent-Length: 1000\r\n"
            "Content-Type: application/x-www-form-urlencoded\r\n"
            "Expect: 100-continue\r\n\r\n".encode()
        )
        # The application has begun to read the form.
        assert aborted.recv(100).startswith(b"HTTP/1.1 100")
        aborted.sendall(b"text=a")
    with socket.create_connection(("127.0.0.1", port)) as other:
        other.sendall(f"GET /static/view.js HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        assert other.recv(100).startswith(b"HTTP/1.1 200")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and errors == ""


def begin_form(connection, port):
    """Send the headers of a form and one byte of it; return when the application reads it."""
    connection.settimeout(60)
    connection.sendall(
        f"POST /trace HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n"
        "Content-Length: 100\r\nExpect: 100-continue\r\n\r\n".encode()
    )
    assert connection.recv(100).startswith(b"HTTP/1.1 100")
    connection.sendall(b"a")


def read_to_end(connection):
    connection.settimeout(60)
    answer = b""
    while part := connection.recv(1 << 16):
        answer += part
    return answer.decode()


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_does_not_wait_for_an_unfinished_form(started_application, times):
    process, port = started_application
    with socket.create_connection(("127.0.0.1", port)) as connection:
        begin_form(connection, port)
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == 0 and errors == ""


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_a_request_that_is_being_answered(times):
    """The second Ctrl-C does not wait for the answer, and neither prints a traceback."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_APPLICATION],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert process.stdout.readline() == "answering\n"
            for _ in range(times):
                process.send_signal(signal.SIGINT)
                time.sleep(0.05)
            _, errors = process.communicate(timeout=GRACEFUL_SHUTDOWN_SECONDS + 10)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0 and errors == ""


#: An application that never finishes its answer.
SLOW_APPLICATION = """
import asyncio
from hallmark.flows.commands.view import bind_port, serve_until_interrupted

async def answer(scope, receive, send):
    assert scope["type"] == "http"
    print("answering", flush=True)
    await asyncio.sleep(3600)

with bind_port(0) as listener:
    print(listener.getsockname()[1], flush=True)
    serve_until_interrupted(answer, listener)
"""


@pytest.fixture
def quick_server(monkeypatch):
    """The port of a server with a short limit whose application reads the body and answers."""
    monkeypatch.setattr(http_protocol, "MAX_RECEIVING_SECONDS", 1.0)

    async def answer(scope, receive, send):
        request = Request(scope, receive)
        if scope["path"] == "/slow":
            await asyncio.sleep(2)
        with suppress(ClientDisconnect):
            if scope["path"] != "/unread":
                await request.body()
            await Response("done")(scope, receive, send)

    config = uvicorn.Config(answer, http=http_protocol.ConfinedHttpProtocol, log_level="error")
    server = uvicorn.Server(config)
    with bind_port(0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(60)


@pytest.mark.parametrize(
    ("sent", "drips"),
    [
        ("GET / HTTP/1.1\r\nHost: a\r\nX: ", True),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n", False),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n", True),
    ],
)
def test_a_request_that_does_not_arrive_in_time_is_refused(quick_server, sent, drips):
    with socket.create_connection(("127.0.0.1", quick_server)) as connection:
        begun = time.monotonic()
        connection.sendall(sent.encode())
        for _ in range(4 if drips else 0):
            time.sleep(0.2)
            connection.sendall(b"a")
        head, _, body = read_to_end(connection).partition("\r\n\r\n")
        assert time.monotonic() - begun < 30
    assert head.startswith("HTTP/1.1 408 ") and "The request did not arrive within" in body
    assert all(f"{name}: {value}" in head for name, value in SECURITY_HEADERS.items())


def test_connections_without_a_request_are_closed(quick_server):
    with socket.create_connection(("127.0.0.1", quick_server)) as connection:
        assert read_to_end(connection) == ""
    with socket.create_connection(("127.0.0.1", quick_server)) as connection:
        connection.sendall(b"POST /unread HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n")
        assert read_to_end(connection).endswith("done")


def test_an_answer_may_take_longer_than_its_request(quick_server):
    with socket.create_connection(("127.0.0.1", quick_server)) as connection:
        for path in ("/slow", "/", "/slow"):
            connection.settimeout(60)
            connection.sendall(
                f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na".encode()
            )
            answer = b""
            while not answer.endswith(b"done"):
                part = connection.recv(1 << 16)
                assert part
                answer += part
            assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "request_text",
    [
        "this is no request\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: one\r\nHost: two\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: one\r\nbad header\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: one\r\nX: \x00\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: one\r\nContent-Length: -1\r\n\r\n",
    ],
)
def test_answers_to_invalid_requests_have_the_security_headers(module_application, request_text):
    with socket.create_connection(("127.0.0.1", module_application)) as connection:
        connection.settimeout(60)
        connection.sendall(request_text.encode())
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    head, _, body = answer.decode().partition("\r\n\r\n")
    status_line, *lines = head.split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    assert status_line == "HTTP/1.1 400 Bad Request" and body == "Invalid HTTP request received."
    for name, value in SECURITY_HEADERS.items():
        assert headers[name.lower()] == value.lower()


def test_a_port_in_use_is_named(apart):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = apart("view", "--port", str(port), code=1)
        assert f"port {port} on this machine is in use" in done.stderr
        with pytest.raises(HallmarkError, match="in use"):
            bind_port(port)


def test_wrong_arguments_are_named(apart, tmp_path):
    assert "the port must be a number" in apart("view", "--port", "70000", code=2).stderr
    missing = str(tmp_path / "missing")
    assert "there is no store" in apart("view", "--store", missing, code=2).stderr
    assert "missing" in apart("view", "--allowed-signers", missing, code=2).stderr


def test_the_socket_listens_only_on_this_machine():
    with bind_port(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


# Object storage -------------------------------------------------------------------------------


def test_a_store_in_object_storage_is_shown(bucket, apart, run, card, tmp_path, monkeypatch):
    for path in sorted(apart.store.rglob("*")):
        key = path.relative_to(apart.store).as_posix()
        if path.is_file() and not key.startswith(("work/", "site/")):
            bucket.upload_file(str(path), "hallmark", f"view/{key}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    client = start("s3://hallmark/view")
    assert f'href="/runs/{run.id}/"' in client.get("/").text
    assert client.get(f"/runs/{run.id}/").status_code == 200
    page = client.get(f"{card}model_card.html").text
    rows = re.search(r'href="(rows/[^"#]+)"', page)[1]
    assert client.get(card + rows).status_code == 200
