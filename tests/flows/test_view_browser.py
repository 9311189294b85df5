"""`hallmark view` in a browser: sorting, filtering, tracing, signing, accessibility and widths.

Every test fails if the console of the browser shows an error, or if a page requests anything from
elsewhere.
"""

import json
import os
import re
import shutil
import subprocess
import threading
from dataclasses import asdict

import pytest

from hallmark.flows.application.application import create_application
from hallmark.flows.commands.view import bind_port
from hallmark.flows.run_progress import RunProgress, format_progress_key
from hallmark.flows.runs import open_run, open_store

pytestmark = pytest.mark.slow

CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("Chromium is missing (on Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address(browser, apart, reviewers, tmp_path_factory):
    """Start the application on a copy of the smoke store; ada may sign."""
    import uvicorn

    signer_files = reviewers.files(tmp_path_factory.mktemp("signers"), "ada")
    with bind_port(0) as listener:
        port = listener.getsockname()[1]
        application = create_application(open_store(str(apart.store)), port, signer_files)
        server = uvicorn.Server(uvicorn.Config(application, log_level="warning", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{port}"
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def run(apart):
    return open_run(apart.first, str(apart.store))


@pytest.fixture
def open_page(browser, address):
    """Open pages; at the end of the test, check what they logged and requested."""
    problems, contexts = [], []

    def open_path(path, width=1280, colour="light"):
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=colour, accept_downloads=True
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda m: m.type == "error" and problems.append(f"{path}: {m.text}"))
        page.on("pageerror", lambda error: problems.append(f"{path}: {error}"))
        page.on(
            "request",
            lambda request: (
                request.url.startswith(f"{address}/")
                or problems.append(f"{path} requests {request.url}")
            ),
        )
        page.goto(f"{address}{path}")
        return page

    yield open_path
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture(scope="module")
def evidence(browser, address, run):
    """Return the path of a page with more than one page of cases."""
    page = browser.new_page()
    for evidence_id in sorted(set(run["model_card"]["figures"].read()["evidence_id"].to_pylist())):
        path = f"/runs/{run.id}/model_card/rows/{evidence_id}.html"
        if evidence_id.startswith("audit-toxicity--values--"):
            page.goto(f"{address}{path}")
            if page.locator(".pager").count() and len(read_fact(page, "toxicity")) > 1:
                page.close()
                return path
    raise AssertionError("no evidence has more than one page of cases")


def test_the_decision_sheet_fits_one_screen(open_page, run):
    """The application's bar and the header of the card leave enough room for it."""
    page = open_page(f"/runs/{run.id}/model_card/model_card.html")
    box = page.locator(".sheet").bounding_box()
    assert box["y"] <= 120
    assert box["y"] + box["height"] <= 800
    assert page.locator("nav.contents").bounding_box()["y"] > box["y"] + box["height"]


@pytest.mark.parametrize("media", ["screen", "print"])
def test_shared_text_is_marked_by_more_than_colour(open_page, run, media):
    page = open_page("/")
    page.emulate_media(media=media)
    rows = f"{page.url}runs/{run.id}/model_card/rows"
    for evidence_id in sorted(set(run["model_card"]["figures"].read()["evidence_id"].to_pylist())):
        if evidence_id.startswith("audit-extraction--values--"):
            page.goto(f"{rows}/{evidence_id}.html")
            if page.locator("article.case mark").count():
                break
    case = page.locator("article.case", has=page.locator("mark")).first
    texts = [side.locator("mark").first.inner_text() for side in case.locator(".sides > div").all()]
    assert len(texts) == 2
    for text in texts:
        assert re.fullmatch(r"\s*\[shared:\s.+\]\s*", text, re.DOTALL)
    style = "mark => [getComputedStyle(mark).textDecorationLine, getComputedStyle(mark).fontWeight]"
    assert case.locator("mark").first.evaluate(style) == ["underline", "600"]
    copied = case.locator(".sides").evaluate(
        "sides => (getSelection().selectAllChildren(sides), getSelection().toString())"
    )
    assert copied.count("[shared:") == case.locator("mark:visible").count()


def read_fact(page, name):
    """Return a value of each case of a page."""
    facts = page.locator("article.case > .facts > div", has=page.locator(f"dt:text-is('{name}')"))
    return [float(text) for text in facts.locator("dd").all_inner_texts()]


def test_rows_are_sorted_and_filtered(open_page, evidence):
    page = open_page(evidence)
    total = int(re.search(r"of ([\d,]+) rows", page.inner_text("main"))[1].replace(",", ""))
    page.select_option("select[name=sort]", "-toxicity")
    page.click("button:has-text('Apply')")
    assert "sort=-toxicity" in page.url
    largest = read_fact(page, "toxicity")
    assert largest == sorted(largest, reverse=True) and len(largest) > 1
    limit = (largest[0] + largest[-1]) / 2  # values are shown rounded
    page.select_option("select[name=column]", "toxicity")
    page.select_option("select[name=operator]", "at-least")
    page.fill("input[name=value]", str(limit))
    page.click("button:has-text('Apply')")
    shown = re.search(r"([\d,]+) of ([\d,]+) rows", page.inner_text("main"))
    assert 1 <= int(shown[1].replace(",", "")) < total
    # The filter keeps the order, and the address is a permanent link to both.
    assert read_fact(page, "toxicity") == sorted(read_fact(page, "toxicity"), reverse=True)
    again = open_page("/runs/" + page.url.partition("/runs/")[2])
    assert again.inner_text(".chips") == page.inner_text(".chips")
    page.click("[aria-label='Remove the condition on toxicity']")
    assert f"{total:,} of {total:,} rows" in page.inner_text("main")
    with page.expect_download() as download:
        page.click("text=CSV")
    assert download.value.path().read_bytes().count(b"\r\n") >= total + 1


def test_a_card_leads_to_the_rows_of_a_number(open_page, run):
    page = open_page(f"/runs/{run.id}/")
    page.click("text=Model card")
    number = page.locator("a.figure").first
    text = number.inner_text()
    number.click()
    assert "Figures computed from these rows" in page.inner_text("main")
    assert text.split("%")[0].strip() in page.inner_text("main")


def test_a_text_is_traced(open_page, run):
    rows = run["plant_canaries"]["documents"].read(["text", "split"]).to_pylist()
    text = max((row["text"] for row in rows if row["split"] == "train"), key=len)
    copied = text[text.index(" ", 20) + 1 :][:200].rpartition(" ")[0]
    page = open_page("/trace")
    page.fill("textarea[name=text]", f"Quuxly blorped: {copied} zzyzx")
    page.click("button:has-text('Trace')")
    marked = page.locator(".traced mark").all_inner_texts()
    assert max(map(len, marked)) > 100
    page.locator(".traced a").first.click()
    assert page.url.endswith("#span-1") and page.locator("h3#span-1").is_visible()


def test_a_review_is_signed(open_page, run, reviewers, tmp_path):
    page = open_page(f"/runs/{run.id}/datasheet/reviews/")
    page.fill("input[name=reviewer]", "Ada Lovelace")
    page.check("input[value=reject]")
    page.fill("textarea[name=comment]", "The licence of <one> source is unknown.")
    page.click("button:has-text('Compose')")
    with page.expect_download() as download:
        page.click("text=Download the statement")
    statement = tmp_path / download.value.suggested_filename
    download.value.save_as(statement)
    command = page.inner_text("#sign-command")
    assert statement.name in command
    command = command.replace("~/.ssh/id_ed25519", str(reviewers.folder / "ada"))
    subprocess.run(command, shell=True, cwd=tmp_path, check=True, capture_output=True)
    page.set_input_files("input[type=file]", f"{statement}.sig")
    page.wait_for_function("document.getElementById('signature').value.includes('SIGNATURE')")
    page.click("button:has-text('Store')")
    assert "Rejected by ada@example.org" in page.inner_text(".callout")
    assert "The licence of <one> source is unknown." in page.inner_text("article.review")


def test_the_progress_of_a_running_run_is_updated(open_page, apart, run):
    store = open_store(str(apart.store))
    other = run.record | {"run": "20990101-000000-0000", "status": "running", "stages": []}
    other["pid"] = os.getpid()
    running = type(run)(store, other)
    running.save()
    progress = RunProgress("pretrain", 1, 50, "loss 8", {"loss": [[1, 8.0]]})
    key = format_progress_key(running.id)

    def write(step):
        progress.completed = step
        progress.curves["loss"].append([step, 8.0 / step])
        store.put(key, json.dumps(asdict(progress)).encode())

    write(2)
    page = open_page(f"/runs/{running.id}/")
    assert "2 of 50" in page.inner_text("main")
    before = page.get_attribute("polyline.training", "points")
    write(30)
    page.wait_for_selector("text=30 of 50")
    assert page.get_attribute("polyline.training", "points") != before
    running.update_record(status="completed")
    page.wait_for_selector("h2:has-text('Progress')", state="detached")
    shutil.rmtree(apart.store / "runs" / running.id)


@pytest.fixture(scope="module")
def paths(run, evidence):
    return [
        "/",
        "/compare",
        "/trace",
        "/nothing",
        f"/runs/{run.id}/",
        f"/runs/{run.id}/model_card/model_card.html",
        f"/runs/{run.id}/model_card/audit-toxicity.html",
        f"/runs/{run.id}/datasheet/datasheet.html",
        f"/runs/{run.id}/model_card/reviews/",
        evidence,
        f"/runs/{run.id}/model_card/rows/missing.html",
    ]


@pytest.mark.parametrize("colour", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_are_accessible(browser, address, paths, width, colour):
    from axe_playwright_python.sync_playwright import Axe

    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=colour, bypass_csp=True
    )
    page, axe, found = context.new_page(), Axe(), []
    for path in paths:
        page.goto(f"{address}{path}")
        violations = axe.run(page).response["violations"]
        found += [
            f"{path}: {violation['id']}: {violation['nodes'][0]['html'][:200]}"
            for violation in violations
            if violation["impact"] in ("serious", "critical")
        ]
    context.close()
    assert found == []


def test_no_page_scrolls_sideways_on_a_telephone(open_page, paths):
    for path in paths:
        if path not in ("/nothing", paths[-1]):  # their status is an error in the console
            page = open_page(path, width=360)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
            page.context.close()


#: An A4 page without its margins, at 96 pixels per inch.
PRINTED_WIDTH = 703


def test_nothing_is_cut_off_in_print(open_page, run, paths):
    findings = next(
        evidence_id
        for evidence_id in run["model_card"]["figures"].read()["evidence_id"].to_pylist()
        if "--findings--" in evidence_id
    )
    paths = [
        *(path for path in paths if path not in ("/nothing", paths[-1])),
        f"/runs/{run.id}/datasheet/removal-rates.html",
        f"/runs/{run.id}/model_card/rows/{findings}.html",
    ]
    for path in paths:
        page = open_page(path, width=PRINTED_WIDTH)
        page.emulate_media(media="print")
        assert page.evaluate("document.documentElement.scrollWidth") <= PRINTED_WIDTH, path
        page.context.close()
