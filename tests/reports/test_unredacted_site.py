"""Test unredacted pages: they show all text, in a separate folder, and do not change the
redacted site, which hides it.
"""

import stat

import pytest

from hallmark.reports.site import build_site
from hallmark.reports.unredacted_site import MARKER_FILE, write_unredacted_site
from hallmark.tasks.contract import HallmarkError, UsageError
from tests.reports import artifacts, pages

PAGES = (".html", ".md", ".svg")


def text_of(folder):
    return "\n".join(p.read_text() for p in sorted(folder.rglob("*")) if p.suffix in PAGES)


@pytest.fixture
def records(made, cards):
    """Record two runs: one with both cards, and one without."""
    artifacts_of = made.corpus | {"profile": made.profile} | cards
    stages = [
        {
            "label": label,
            "artifact": found.name,
            "stage": found.stage,
            "content": found.content_digest,
            "fingerprint": found.fingerprint,
            "cached": False,
            "seconds": 1.0,
        }
        for label, found in artifacts_of.items()
    ]
    common = {"flow": "pipeline", "config_name": "smoke", "status": "completed", "ended": None}
    common |= {"started": "2026-01-01T10:00:00+00:00", "config": {}, "error": None}
    return [
        common | {"run": "20260101-100000-aaaa", "stages": stages},
        common | {"run": "20260102-100000-bbbb", "stages": stages[:2]},
    ]


def checkpoint_in(store, made):
    """The made checkpoint is a folder outside of the store; for a reveal it must be found."""
    find = store.find_artifact
    name = made.checkpoint.name.partition("/")[2]
    return lambda stage, digest: made.checkpoint if digest == name else find(stage, digest)


@pytest.fixture
def unmasked(session, records, made, tmp_path, monkeypatch):
    monkeypatch.setattr(session.store, "find_artifact", checkpoint_in(session.store, made))
    return write_unredacted_site(session.store, records[0], tmp_path / "clear")


def test_masked_site_hides_all_sensitive_text(session, records, made, tmp_path):
    site = build_site(session.store, records, tmp_path / "site").parent
    secrets = [secret for secret in made.secrets if secret]
    looked_at = 0
    for path in site.rglob("*"):
        if path.suffix in PAGES:
            text = pages.without_revealed_secrets(path.read_text(encoding="utf-8"))
            looked_at += 1
            for hidden in (*artifacts.MASKED, *secrets):
                assert hidden not in text, (path, hidden[:4])
    assert looked_at > 20 and len(secrets) >= 6


def test_unmasked_site_shows_sensitive_text_with_a_warning(unmasked, made, cards, tmp_path):
    said, masked_card = text_of(tmp_path / "clear"), cards["model_card"]
    for hidden in artifacts.MASKED:
        assert hidden in said
    assert any(secret in said for secret in made.secrets if secret)
    assert "masked]" not in said and "[not shown" not in said
    assert "Nothing is masked on these pages." in said and "Nothing is masked on this page" in said
    for claim in ("is masked on every page", "and planted secrets are masked"):
        assert claim not in said and claim in text_of(pages.write_pages(masked_card))
    for card in ("datasheet", "model_card"):
        folder = unmasked.parent / card
        assert pages.broken_links(folder) == []
        for page in folder.rglob("*.html"):
            assert "Unredacted, for local use only" in page.read_text(), page.name


def test_examples_of_removed_documents_are_shown_unmasked(unmasked, cards):
    masked, clear = pages.write_pages(cards["datasheet"]), unmasked.parent / "datasheet"
    path = "rows/removal-effects.html"
    assert artifacts.OFFENSIVE not in (masked / path).read_text()
    assert artifacts.OFFENSIVE in (clear / path).read_text()


def test_folder_is_accessible_only_to_its_owner(unmasked, tmp_path):
    assert stat.S_IMODE((tmp_path / "clear").stat().st_mode) == 0o700
    assert {p.name for p in (tmp_path / "clear").iterdir()} == {MARKER_FILE, "index.html", "runs"}


def test_artifacts_remain_masked(unmasked, cards):
    for card in cards.values():
        card.verify_files()
        assert artifacts.EMAIL not in text_of(pages.write_pages(card))


def test_unmasked_pages_are_never_mixed_with_others(session, records, tmp_path):
    site = build_site(session.store, records, tmp_path / "site").parent
    before = text_of(site)
    with pytest.raises(UsageError, match="contains other files"):
        write_unredacted_site(session.store, records[0], site)
    assert text_of(site) == before


def test_next_unmasked_site_replaces_the_earlier_one(
    unmasked,
    session,
    records,
    tmp_path,
):
    second = write_unredacted_site(session.store, records[1], tmp_path / "clear")
    assert [p.name for p in second.parent.parent.iterdir()] == [records[1]["run"]]
    assert artifacts.EMAIL not in text_of(tmp_path / "clear")


def test_missing_input_is_named(session, records, tmp_path):
    with pytest.raises(
        HallmarkError,
        match=r"^run 20260101-100000-aaaa: checkpoint/\w+, .* is missing from the store ",
    ):
        write_unredacted_site(session.store, records[0], tmp_path / "clear")
    assert stat.S_IMODE((tmp_path / "clear").stat().st_mode) == 0o700
