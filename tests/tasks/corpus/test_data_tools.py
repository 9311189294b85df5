"""Defects that others' data tools have, and this project must not have.

More of them have tests where the code in question has its own: short documents, copies none of
which is left, chains of unverified pairs and scripts without spaces in ``test_deduplicate_near``;
letters that compose anew in ``test_sketches``; ``str.replace`` in place of spans, and bytes taken
for characters, in ``test_spans`` and ``test_scrub``; digits of any script in ``test_national``; bad
bytes, damaged members and large windows in ``test_damage``, ``test_readers`` and
``test_bad_input``; a word list asked about other languages in ``test_language``; tables copied by
pandas in ``test_architecture``.
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
from tests.tasks.corpus.test_deduplicate_near import table

# Very large sets ---------------------------------------------------------------------------------


def test_minima_are_those_of_whole_numbers_without_end():
    """Python's numbers do not overflow; ours wrap where they must, and nowhere else."""
    hashes = np.random.default_rng(1).integers(0, 1 << 32, 5000, dtype=np.uint32)
    hashes[:4] = [0, 1, (1 << 32) - 1, 1 << 31]
    offsets = np.array([0, 4, 5, 300, 5000])
    odd = np.array([1, 3, (1 << 32) - 1, 0x9E3779B1], np.uint32)
    mask = np.array([0, (1 << 32) - 1, 1 << 31, 0xDEADBEEF], np.uint32)
    found = _compute_minhashes(hashes, offsets, odd, mask)
    for number, (factor, turned) in enumerate(zip(odd.tolist(), mask.tolist(), strict=True)):
        expected = [
            min((value ^ turned) * factor % 2**32 for value in hashes[start:stop].tolist())
            for start, stop in pairwise(offsets)
        ]
        assert found[number].tolist() == expected


@pytest.mark.parametrize("size", [1 << 10, 1 << 14, 1 << 18])
def test_sets_of_any_size_look_as_alike_as_they_are(size):
    """A hash that overflows finds small minima too often: large sets would look alike."""
    chance, permutations = np.random.default_rng(size), 400
    for common in (0, size // 2):
        pool = chance.integers(0, 1 << 63, 2 * size - common, dtype=np.uint64) << np.uint64(1)
        hashes, ends = np.concatenate([pool[:size], pool[-size:]]), np.array([0, size, 2 * size])
        left, right = compute_band_hashes(hashes, ends, permutations, 1, seed=3)
        s = common / (2 * size - common)
        assert abs((left == right).mean() - s) <= 4 * np.sqrt(s * (1 - s) / permutations)
        sides = [hashes[:size], hashes[size:]]

        def shelf(items, sides=sides):
            return np.concatenate([sides[i] for i in items]), np.full(len(items), len(sides[0]))

        places = np.array([0]), np.array([1])
        assert compute_jaccard(shelf, *places, np.array([size, size])).tolist() == [s]


def test_what_is_missed_by_design_is_said(tmp_path):
    """Figures of the published curve 1 - (1 - s^r)^b, to the per cent."""
    for number, (bands, rows, s, met) in enumerate(
        [(14, 8, 0.8, 0.92), (14, 8, 0.719, 0.65), (14, 8, 0.7, 0.56), (20, 5, 0.7, 0.98)]
    ):
        folder = tmp_path / str(number)
        work = StageContext(folder, deduplicate_near.tables)
        config = DeduplicateNearConfig(
            bands=bands, rows_per_band=rows, similarity_threshold=s, cluster_threshold=0.5
        )
        deduplicate_near.body(table(folder, ["a b c d e f", "x"]), {}, config, work)
        work.assemble_tables(["search_summary"])
        said = pa.parquet.read_table(work.output_folder / "search_summary")[
            "candidate_probability"
        ][0].as_py()
        assert said == pytest.approx(met, abs=0.01)


# Hashes that last --------------------------------------------------------------------------------

PROGRAM = """
import pyarrow as pa
from hallmark.tasks.corpus.copies.sketches import compute_band_hashes, compute_shingle_hashes
text = pa.array(["the same words give the same bands for ever"], pa.large_string())
print(compute_band_hashes(*compute_shingle_hashes(text, 3), 4, 2, seed=1)[0].tolist())
"""


def test_hashes_are_the_same_in_every_process_and_version():
    """Signatures outlive the run and the libraries that made them."""
    env = {**os.environ, "PYTHONHASHSEED": "77"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=PROJECT_ROOT, env=env, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[3795725155, 4090407160, 2472847536, 1742080939]", done.stderr
    words = ["one", "zwei", "三"]
    expected = [hashlib.blake2b(w.encode(), digest_size=8).digest() for w in words]
    hashes, _ = hash_words(pa.array(["one zwei", "三"], pa.large_string()))
    assert hashes.tolist() == [int.from_bytes(digest, "little") for digest in expected]


# Joins -------------------------------------------------------------------------------------------


def stages(texts):
    """The stages that look documents up in other tables."""
    raw = given(texts)
    unique = deduplicate(raw, {}, DeduplicateConfig())
    spoken = identify_languages(unique, LanguageConfig())
    rules = SelectConfig(rules={"language": {"none_of": ["la"]}})
    chosen = select_documents(unique, {"language": spoken}, rules)
    masked = scrubbed(deduplicate_near(chosen, {}, DeduplicateNearConfig(bands=2)))
    score_toxicity(
        masked, spoken, ScoreToxicityConfig(scored_languages=("la",), max_undetermined_characters=0)
    )


def test_no_table_is_indexed_anew_for_every_batch(session, monkeypatch):
    """``index_in`` and ``is_in`` build the hash table of their value set at every call: per batch
    that is quadratic. What is indexed grows with the documents, however many batches there are."""
    monkeypatch.setattr("hallmark.tasks.contract.table_writers.MAX_ROW_GROUP_ROWS", 10)
    indexed = []

    def watched(original):
        def call(values, value_set, *more, **options):
            if value_set.type == ID_TYPE:
                indexed.append(len(value_set))
            return original(values, value_set, *more, **options)

        return call

    for name in ("index_in", "is_in"):
        monkeypatch.setattr(pc, name, watched(getattr(pc, name)))
    sums = []
    for count in (100, 400):  # 10 batches, and 40
        indexed.clear()
        stages([f"Number {i} writes a letter, again and {i}." for i in range(count)])
        sums.append(sum(indexed))
    assert sums[0] > 0
    assert sums[1] <= 4.5 * sums[0]


# Workers -----------------------------------------------------------------------------------------


def test_a_script_without_a_main_guard_ends(tmp_path):
    """Its workers import it and start it once more; that is an error, and must not hang."""
    script = tmp_path / "script.py"
    script.write_text(
        "from hallmark.tasks.contract import ProcessMapper, Resources\n"
        "print(list(ProcessMapper(2)(pow, [(2, 3), (3, 3)], Resources())))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "if __name__ == '__main__':" in done.stderr
