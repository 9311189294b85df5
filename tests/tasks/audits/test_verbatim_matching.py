"""Test the search for runs of tokens in a corpus, against brute force."""

import numpy as np
import pytest

from hallmark.tasks.audits.verbatim_matching import TokenWindowIndex, hash_windows


def find_runs_by_brute_force(texts, rows, size):
    """Find every maximal run of ``size`` or more tokens: text, start, row, position and length."""
    runs = set()
    for number, text in enumerate(texts):
        for row_number, row in enumerate(rows.tolist()):
            for start in range(len(text)):
                for position in range(len(row)):
                    is_continued = start and position and text[start - 1] == row[position - 1]
                    length = 0
                    while (
                        start + length < len(text)
                        and position + length < len(row)
                        and text[start + length] == row[position + length]
                    ):
                        length += 1
                    if length >= size and not is_continued:
                        runs.add((number, start, row_number, position, length))
    return runs


def find_runs(texts, rows, size, **options):
    runs = TokenWindowIndex(texts, size, **options).find_longest_runs(rows)
    return set(
        zip(
            *(
                getattr(runs, n).tolist()
                for n in ("text_index", "text_start", "row_index", "row_start", "length")
            ),
            strict=True,
        )
    )


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("seed", range(6))
def test_runs_equal_brute_force(seed, size):
    """A small vocabulary makes many repetitions; some texts are empty or too short."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 3, (7, 19)).astype(np.int32)
    texts = [rng.integers(0, 3, n).tolist() for n in (0, 1, size, 12, 30)]
    texts.append(rows[2, 3:15].tolist())
    assert find_runs(texts, rows, size) == find_runs_by_brute_force(texts, rows, size)
    covered = np.zeros(sum(map(len, texts)), bool)
    windows = TokenWindowIndex(texts, size, max_positions=1)
    for row in rows:
        windows.mark_text_tokens_found_in_rows(row[None], covered)
    expected = np.zeros_like(covered)
    for number, start, _, _, length in find_runs_by_brute_force(texts, rows, size):
        first = windows.text_offsets[number] + start
        expected[first : first + length] = True
    assert covered.tolist() == expected.tolist()


def test_a_run_ends_with_its_row_and_its_text():
    rows = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    assert find_runs([[1, 2, 3, 4, 5, 6]], rows, 2) == {(0, 0, 0, 0, 3), (0, 3, 1, 0, 3)}
    assert find_runs([[1, 2], [3, 4]], np.array([[1, 2, 3, 4]], np.int32), 2) == {
        (0, 0, 0, 0, 2),
        (1, 0, 0, 2, 2),
    }
    assert (
        find_runs([[7, 8]], rows, 2)
        == set()
        == find_runs([], rows, 2)
        == find_runs([[1, 2, 3]], rows, 4)
    )
    with pytest.raises(ValueError, match="window_size is 1; it must be at least 2"):
        TokenWindowIndex([[1]], 1)


def test_frequent_windows_are_followed_at_their_first_positions(monkeypatch):
    rows = np.array([[9, 9, 1, 9]], np.int32)
    texts = [[9, 9]] * 5
    assert len(find_runs(texts, rows, 2, max_positions=3)) == 5  # five pairs are below the limit
    monkeypatch.setattr("hallmark.tasks.audits.verbatim_matching._MAX_PAIRS_PER_WINDOW", 4)
    assert find_runs(texts, rows, 2, max_positions=3) == {(n, 0, 0, 0, 2) for n in range(3)}


def test_windows_of_equal_hash_are_compared(monkeypatch):
    """With one hash for all windows, only equal windows match."""
    from hallmark.tasks.audits import verbatim_matching

    rng = np.random.default_rng(3)
    rows = rng.integers(0, 3, (4, 9)).astype(np.int32)
    texts = [rng.integers(0, 3, 9).tolist()]
    expected = find_runs_by_brute_force(texts, rows, 3)
    monkeypatch.setattr(
        verbatim_matching,
        "hash_windows",
        lambda r, s: np.full((len(r), max(0, r.shape[1] - s + 1)), 5, np.uint64),
    )
    assert find_runs(texts, rows, 3) == expected


def test_hashes_larger_than_all_known_ones_do_not_match(monkeypatch):
    """The hash is the first token, and all hashes pass the prefilter."""
    from hallmark.tasks.audits import verbatim_matching

    rng = np.random.default_rng(5)
    rows = rng.integers(0, 9, (6, 11)).astype(np.int32)
    texts = [rng.integers(2, 5, 14).tolist(), rows[1, 2:9].tolist()]
    expected = find_runs_by_brute_force(texts, rows, 3)
    monkeypatch.setattr(
        verbatim_matching,
        "hash_windows",
        lambda r, s: r[:, : max(0, r.shape[1] - s + 1)].astype(np.uint64),
    )
    assert find_runs(texts, rows, 3) == expected and expected


def test_hashes_do_not_depend_on_the_position():
    row = np.array([[4, 1, 2, 3, 9, 1, 2, 3, 2, 1]], np.int32)
    hashes = hash_windows(row, 3)[0]
    assert hashes[1] == hashes[5] and len(set(hashes.tolist())) == len(hashes) - 1
    assert hash_windows(row, 11).shape == (1, 0)
