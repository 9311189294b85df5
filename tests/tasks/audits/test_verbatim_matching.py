"""Runs of tokens in a corpus, against brute force."""

import numpy as np
import pytest

from hallmark.tasks.audits.verbatim_matching import TokenWindowIndex, hash_windows


def brute(texts, rows, size):
    """Every run of at least ``size`` tokens that can be no longer, as its text, its start there,
    row, place and size."""
    found = set()
    for number, text in enumerate(texts):
        for line, row in enumerate(rows.tolist()):
            for start in range(len(text)):
                for place in range(len(row)):
                    before = start and place and text[start - 1] == row[place - 1]
                    many = 0
                    while (
                        start + many < len(text)
                        and place + many < len(row)
                        and text[start + many] == row[place + many]
                    ):
                        many += 1
                    if many >= size and not before:
                        found.add((number, start, line, place, many))
    return found


def runs(texts, rows, size, **options):
    found = TokenWindowIndex(texts, size, **options).find_longest_runs(rows)
    return set(
        zip(
            *(
                getattr(found, n).tolist()
                for n in ("text_index", "text_start", "row_index", "row_start", "length")
            ),
            strict=True,
        )
    )


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("seed", range(6))
def test_runs_are_those_of_brute_force(seed, size):
    """Of few tokens, so that much repeats itself; with empty texts and those too short."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 3, (7, 19)).astype(np.int32)
    texts = [rng.integers(0, 3, n).tolist() for n in (0, 1, size, 12, 30)]
    texts.append(rows[2, 3:15].tolist())
    assert runs(texts, rows, size) == brute(texts, rows, size)
    covered = np.zeros(sum(map(len, texts)), bool)
    windows = TokenWindowIndex(texts, size, max_positions=1)
    for row in rows:
        windows.mark_covered_tokens(row[None], covered)
    wanted = np.zeros_like(covered)
    for number, start, _, _, many in brute(texts, rows, size):
        first = windows.text_offsets[number] + start
        wanted[first : first + many] = True
    assert covered.tolist() == wanted.tolist()


def test_a_run_ends_with_its_row_and_its_text():
    rows = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    assert runs([[1, 2, 3, 4, 5, 6]], rows, 2) == {(0, 0, 0, 0, 3), (0, 3, 1, 0, 3)}
    assert runs([[1, 2], [3, 4]], np.array([[1, 2, 3, 4]], np.int32), 2) == {
        (0, 0, 0, 0, 2),
        (1, 0, 0, 2, 2),
    }
    assert runs([[7, 8]], rows, 2) == set() == runs([], rows, 2) == runs([[1, 2, 3]], rows, 4)
    with pytest.raises(ValueError, match="need two"):
        TokenWindowIndex([[1]], 1)


def test_of_what_stands_everywhere_the_first_places_are_followed(monkeypatch):
    rows = np.array([[9, 9, 1, 9]], np.int32)
    texts = [[9, 9]] * 5
    assert len(runs(texts, rows, 2, max_positions=3)) == 5  # five pairs are few
    monkeypatch.setattr("hallmark.tasks.audits.verbatim_matching._MAX_PAIRS_PER_WINDOW", 4)
    assert runs(texts, rows, 2, max_positions=3) == {(n, 0, 0, 0, 2) for n in range(3)}


def test_windows_of_equal_hash_are_compared(monkeypatch):
    """With one hash for all, only what is the same is found."""
    from hallmark.tasks.audits import verbatim_matching

    rng = np.random.default_rng(3)
    rows = rng.integers(0, 3, (4, 9)).astype(np.int32)
    texts = [rng.integers(0, 3, 9).tolist()]
    wanted = brute(texts, rows, 3)
    monkeypatch.setattr(
        verbatim_matching,
        "hash_windows",
        lambda r, s: np.full((len(r), max(0, r.shape[1] - s + 1)), 5, np.uint64),
    )
    assert runs(texts, rows, 3) == wanted


def test_hashes_beyond_all_that_are_known_are_none(monkeypatch):
    """With the first token for a hash, which all pass the sieve."""
    from hallmark.tasks.audits import verbatim_matching

    rng = np.random.default_rng(5)
    rows = rng.integers(0, 9, (6, 11)).astype(np.int32)
    texts = [rng.integers(2, 5, 14).tolist(), rows[1, 2:9].tolist()]
    wanted = brute(texts, rows, 3)
    monkeypatch.setattr(
        verbatim_matching,
        "hash_windows",
        lambda r, s: r[:, : max(0, r.shape[1] - s + 1)].astype(np.uint64),
    )
    assert runs(texts, rows, 3) == wanted and wanted


def test_hashes_depend_on_tokens_alone_not_on_their_place():
    row = np.array([[4, 1, 2, 3, 9, 1, 2, 3, 2, 1]], np.int32)
    found = hash_windows(row, 3)[0]
    assert found[1] == found[5] and len(set(found.tolist())) == len(found) - 1
    assert hash_windows(row, 11).shape == (1, 0)
