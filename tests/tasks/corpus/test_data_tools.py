"""Known defects of other data tools, which this project must not have.

Tests of other modules cover more of them: short documents, groups of copies that are removed
completely, chains of unverified pairs and scripts without spaces in ``test_deduplicate_near``;
letters that compose after normalisation in ``test_sketches``; ``str.replace`` instead of spans, and
bytes mistaken for characters, in ``test_spans`` and ``test_redact_spans``; digits of any script in
``test_national_ids``; bad bytes, damaged members and large windows in ``test_damaged_files``,
``test_readers`` and ``test_bad_input``; a word list applied to other languages in
``test_language``; tables copied by pandas in ``test_architecture``.
"""

import hashlib
import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hallmark.tasks.contract import ID_TYPE, PROJECT_ROOT, StageContext
from hallmark.tasks.corpus.copies.matching import compute_jaccard
from hallmark.tasks.corpus.copies.sketches import _compute_minhashes, compute_band_hashes
from hallmark.tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig, deduplicate_near
from hallmark.tasks.corpus.language import LanguageConfig, identify_languages
from hallmark.tasks.corpus.score_toxicity import ScoreToxicityConfig, score_toxicity
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from hallmark.tasks.measures.normalised_words import hash_words
from tests.tasks.corpora import given, scrubbed
from tests.tasks.corpus.test_deduplicate_near import make_table

# Very large sets ---------------------------------------------------------------------------------


def test_minhashes_match_unbounded_integers():
    """The hashes wrap around only where the formula says so; Python's integers never do."""
    hashes = np.random.default_rng(1).integers(0, 1 << 32, 5000, dtype=np.uint32)
    hashes[:4] = [0, 1, (1 << 32) - 1, 1 << 31]
    offsets = np.array([0, 4, 5, 300, 5000])
    factors = np.array([1, 3, (1 << 32) - 1, 0x9E3779B1], np.uint32)
    masks = np.array([0, (1 << 32) - 1, 1 << 31, 0xDEADBEEF], np.uint32)
    minhashes = _compute_minhashes(hashes, offsets, factors, masks)
    for number, (factor, mask) in enumerate(zip(factors.tolist(), masks.tolist(), strict=True)):
        expected = [
            min((value ^ mask) * factor % 2**32 for value in hashes[start:stop].tolist())
            for start, stop in pairwise(offsets)
        ]
        assert minhashes[number].tolist() == expected


@pytest.mark.parametrize("size", [1 << 10, 1 << 14, 1 << 18])
def test_similarity_estimates_are_right_for_sets_of_any_size(size):
    """A hash that overflows has small minima too often, so that large sets would look similar."""
    rng, permutations = np.random.default_rng(size), 400
    for common in (0, size // 2):
        pool = rng.integers(0, 1 << 63, 2 * size - common, dtype=np.uint64) << np.uint64(1)
        hashes, ends = np.concatenate([pool[:size], pool[-size:]]), np.array([0, size, 2 * size])
        first, second = compute_band_hashes(hashes, ends, permutations, 1, seed=3)
        similarity = common / (2 * size - common)
        assert abs((first == second).mean() - similarity) <= 4 * np.sqrt(
            similarity * (1 - similarity) / permutations
        )
        sets = [hashes[:size], hashes[size:]]

        def look_up(rows, sets=sets):
            return np.concatenate([sets[i] for i in rows]), np.full(len(rows), len(sets[0]))

        pair = np.array([0]), np.array([1])
        assert compute_jaccard(look_up, *pair, np.array([size, size])).tolist() == [similarity]


def test_the_candidate_probability_matches_the_published_curve(tmp_path):
    """The curve is 1 - (1 - s^r)^b; values are published to the per cent."""
    for number, (bands, rows, similarity, expected) in enumerate(
        [(14, 8, 0.8, 0.92), (14, 8, 0.719, 0.65), (14, 8, 0.7, 0.56), (20, 5, 0.7, 0.98)]
    ):
        folder = tmp_path / str(number)
        context = StageContext(folder, deduplicate_near.tables)
        config = DeduplicateNearConfig(
            bands=bands, rows_per_band=rows, similarity_threshold=similarity, cluster_threshold=0.5
        )
        deduplicate_near.body(make_table(folder, ["a b c d e f", "x"]), {}, config, context)
        context.assemble_tables(["search_summary"])
        probability = pa.parquet.read_table(context.output_folder / "search_summary")[
            "candidate_probability"
        ][0].as_py()
        assert probability == pytest.approx(expected, abs=0.01)


# Stable hashes -----------------------------------------------------------------------------------

HASHING_SCRIPT = """
import pyarrow as pa
from hallmark.tasks.corpus.copies.sketches import compute_band_hashes, compute_shingle_hashes
text = pa.array(["the same words give the same bands for ever"], pa.large_string())
print(compute_band_hashes(*compute_shingle_hashes(text, 3), 4, 2, seed=1)[0].tolist())
"""


def test_hashes_are_the_same_in_every_process_and_version():
    """Signatures must stay valid across runs and versions of libraries."""
    env = {**os.environ, "PYTHONHASHSEED": "77"}
    process = subprocess.run(
        [sys.executable, "-c", HASHING_SCRIPT],
        cwd=PROJECT_ROOT,
        env=env,
        capture_output=True,
        text=True,
    )
    assert process.stdout.strip() == "[3795725155, 4090407160, 2472847536, 1742080939]", (
        process.stderr
    )
    words = ["one", "zwei", "三"]
    expected = [hashlib.blake2b(w.encode(), digest_size=8).digest() for w in words]
    hashes, _ = hash_words(pa.array(["one zwei", "三"], pa.large_string()))
    assert hashes.tolist() == [int.from_bytes(digest, "little") for digest in expected]


# Joins -------------------------------------------------------------------------------------------


def run_joining_stages(texts):
    """Run the stages that look up documents in other tables."""
    documents = given(texts)
    unique = deduplicate(documents, {}, DeduplicateConfig())
    languages = identify_languages(unique, LanguageConfig())
    rules = SelectConfig(rules={"language": {"none_of": ["la"]}})
    selected = select_documents(unique, {"language": languages}, rules)
    redacted = scrubbed(deduplicate_near(selected, {}, DeduplicateNearConfig(bands=2)))
    score_toxicity(
        redacted,
        languages,
        ScoreToxicityConfig(scored_languages=("la",)),
    )


def test_no_table_is_indexed_again_for_every_batch(session, monkeypatch):
    """The indexed rows grow linearly with the documents, however many batches there are.

    ``index_in`` and ``is_in`` index their value set at every call: quadratic if called per batch.
    """
    monkeypatch.setattr("hallmark.tasks.contract.table_writers.MAX_ROW_GROUP_ROWS", 10)
    indexed_sizes = []

    def record_size(original):
        def call(values, value_set, *more, **options):
            if value_set.type == ID_TYPE:
                indexed_sizes.append(len(value_set))
            return original(values, value_set, *more, **options)

        return call

    for name in ("index_in", "is_in"):
        monkeypatch.setattr(pc, name, record_size(getattr(pc, name)))
    totals = []
    for count in (100, 400):  # 10 batches, and 40
        indexed_sizes.clear()
        run_joining_stages([f"Number {i} writes a letter, again and {i}." for i in range(count)])
        totals.append(sum(indexed_sizes))
    assert totals[0] > 0
    assert totals[1] <= 4.5 * totals[0]


# Workers -----------------------------------------------------------------------------------------


def test_a_script_without_a_main_guard_fails_and_does_not_hang(tmp_path):
    """Workers import the script and would start it again; that is an error."""
    script = tmp_path / "script.py"
    script.write_text(
        "from hallmark.tasks.contract import ProcessMapper, Resources\n"
        "print(list(ProcessMapper(2)(pow, [(2, 3), (3, 3)], Resources())))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT)}
    process = subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 1
    assert "if __name__ == '__main__':" in process.stderr
