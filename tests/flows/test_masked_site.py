"""Pages of a real run show no sensitive text; unredacted pages exist only on request."""

import html
import json
import re
import stat
from pathlib import Path

import pytest

from hallmark import open_run
from hallmark.tasks.audits.methods.continuations import HELDOUT_WRITER
from hallmark.tasks.measures.personal_data import find_personal_data_spans
from tests.reports.pages import without_revealed_secrets

pytestmark = pytest.mark.slow


def words(text: str) -> str:
    return " ".join(text.split())


def read_visible_text_by_page(folder: Path) -> dict[Path, str]:
    """Return the words of every page, without the invented secrets that open with a click."""
    return {
        path: words(
            html.unescape(
                re.sub(r"<[^>]*>", " ", without_revealed_secrets(path.read_text(encoding="utf-8")))
            )
        )
        for path in folder.rglob("*")
        if path.suffix in (".html", ".md", ".svg")
    }


def must_be_hidden(run) -> set[str]:
    """Return secrets, and model and planted texts without a harmless score."""
    plants = run["plant_canaries"]["canaries"].read(["kind", "secret", "text"]).to_pylist()
    # Passages are documents of the corpus, which are shown if they are harmless.
    secrets = [row for row in plants if row["kind"] in ("canary", "record")]
    found = {text for row in secrets for text in (row["secret"], row["text"])}
    samples = run["audit_capability"]["samples"].read(["continuation"])
    found.update(samples["continuation"].to_pylist())
    for stage, table, text, score in (
        ("audit_toxicity", "values", "continuation", "toxicity"),
        ("score_samples", "samples", "text", "toxicity"),
    ):
        rows = run[stage][table].read().to_pylist()
        # Windows of held-out text are excerpts of documents, which have scores of their own.
        rows = [row for row in rows if row.get("writer") != HELDOUT_WRITER]
        found.update(r[text] for r in rows if r[score] is None or r[score] >= 0.5)
    # A few letters can occur on a page by chance.
    return {words(text) for text in found if text and len(words(text)) > 12}


def test_no_page_shows_sensitive_text(smoke):
    pages = read_visible_text_by_page(Path(smoke.json("export-site")["index"]).parent)
    hidden = must_be_hidden(open_run(smoke.first, str(smoke.store)))
    assert len(pages) > 40 and len(hidden) > 40
    for path, text in pages.items():
        assert not [word for word in hidden if word in text], path
        assert not find_personal_data_spans(text), path


def test_an_unredacted_site_is_recorded_and_private(smoke):
    page = Path(smoke.json("export-site", smoke.first, "--unredacted")["unredacted"])
    site = smoke.store / "site-unredacted"
    assert page == site / "runs" / smoke.first / "index.html"
    assert stat.S_IMODE(site.stat().st_mode) == 0o700
    text = " ".join(read_visible_text_by_page(site).values())
    hidden = must_be_hidden(open_run(smoke.first, str(smoke.store)))
    assert sum(word in text for word in hidden) > 10
    record = json.loads((smoke.store / "runs" / smoke.first / "run.json").read_text())
    assert [note["folder"] for note in record["unredacted_sites"]] == [str(site)]
    assert (
        "is inside the store"
        in smoke("export-site", "--unredacted", "--output", str(smoke.store), code=2).stderr
    )
