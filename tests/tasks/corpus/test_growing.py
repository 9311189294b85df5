"""A corpus that grows: additions beside brute force, and beside a corpus built at once."""

import json
import random
from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from hallmark.flows.commands.purge import purge_document
from hallmark.tasks.contract import HallmarkError, ProcessMapper, Session, Store, open_session
from hallmark.tasks.corpus.copies.earlier_corpora import check_earlier_compatible
from hallmark.tasks.corpus.copies.matching import (
    find_duplicate_pairs,
    mark_removed_duplicates,
    select_candidate_pairs,
    unpack_pairs,
)
from hallmark.tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig, deduplicate_near
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.split import SplitConfig, split_corpus
from hallmark.tasks.training.pack import PackConfig, pack
from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer
from tests.tasks.corpus.test_sketches import plain, shingle_set, similarity

deduplicate_redacted = deduplicate.with_label("deduplicate_redacted")

WORDS = [f"word{i}" for i in range(3000)]

#: MinHash finds practically every pair: at 0.3 it misses one in 10^19; and no limit bounds it.
THOROUGH = {"bands": 128, "rows_per_band": 1, "max_candidates": 1000}


def raw(folder, texts, part_bytes=8 << 20):
    """Documents of these texts by their keys."""
    folder.mkdir(exist_ok=True)
    rows = [json.dumps({"key": key, "text": text}) for key, text in texts.items()]
    path = folder / "texts.jsonl"
    path.write_text("\n".join(rows), encoding="utf-8")
    source = {"kind": "jsonl", "name": "s", "path": str(path), "key_field": "key"}
    return ingest(IngestConfig(sources=[source], partition_bytes=part_bytes))


def added(folder, texts, earlier, part_bytes=8 << 20, **near):
    """What the stages about duplicates leave of an addition to ``earlier`` ones, by label."""
    made = {"ingest": raw(folder, texts, part_bytes)}

    def before(label):
        return {str(number): piece[label] for number, piece in enumerate(earlier)}

    made["deduplicate"] = deduplicate(made["ingest"], before("deduplicate"), DeduplicateConfig())
    made["deduplicate_near"] = deduplicate_near(
        made["deduplicate"], before("deduplicate_near"), DeduplicateNearConfig(**near)
    )
    made["deduplicate_redacted"] = deduplicate_redacted(
        made["deduplicate_near"], before("deduplicate_redacted"), DeduplicateConfig()
    )
    made["split"] = split_corpus(
        made["deduplicate_redacted"], SplitConfig(validation_share=0.3, holdout_share=0.3)
    )
    return made


def rows(made, label="split", table="documents"):
    return made[label][table].read().to_pylist()


def family(chance, copies, words=40):
    """A text, and others with some of its words exchanged: alike from a little to nearly all."""
    base = chance.choices(WORDS, k=words)
    yield " ".join(base)
    for _ in range(copies):
        text = list(base)
        for _ in range(chance.choice([0, 1, 1, 2, 3, 4])):
            text[chance.randrange(words)] = chance.choice(WORDS)
        yield " ".join(text)


def written(seed, families=25):
    """Texts by key, shuffled; copies of one text stand far apart."""
    chance = random.Random(seed)
    texts = [t for _ in range(families) for t in family(chance, chance.randrange(5))]
    chance.shuffle(texts)
    return {f"{seed}-{i}": text for i, text in enumerate(texts)}


# Matching ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("limit", [2, 100])
def test_settled_items_stay_and_are_not_compared_with_one_another(seed, limit):
    chance = np.random.default_rng(seed)
    n, settled = 60, 25
    bands = chance.integers(0, 12, (n, 4), dtype=np.uint32)
    alike = np.triu(chance.random((n, n)).round(2), 1)
    asked = []

    def similarities(left, right):
        asked.extend(zip(left.tolist(), right.tolist(), strict=True))
        return alike[left, right]

    found = find_duplicate_pairs(bands, similarities, 0.7, 0.4, limit, settled)
    assert asked and all(right >= settled for _, right in asked)
    assert len(set(asked)) == len(asked) == found.compared_pairs
    assert not found.removed[:settled].any() and not found.has_uncompared[:settled].any()
    copies = [(a, b) for a, b in asked if alike[a, b] >= 0.7]
    assert found.removed.tolist() == mark_removed_duplicates(n, *np.array(copies).T).tolist()
    if limit == 100:  # without limits: all that agree, but for two settled ones
        pairs, _, _ = select_candidate_pairs(bands, np.arange(n), limit, settled)
        assert set(zip(*(side.tolist() for side in unpack_pairs(pairs)), strict=True)) == {
            (a, b)
            for a, b in combinations(range(n), 2)
            if b >= settled and (bands[a] == bands[b]).any()
        }


# Additions against brute force -------------------------------------------------------------------


def brute_force(new, earlier, config):
    """{doc_id: (twin, similarity)} of what goes, {doc_id: cluster} of what stays, and how many join
    clusters that are apart. ``earlier``: rows of the list, which stay as they are."""
    sets = {d["doc_id"]: shingle_set(d["text"]) for d in [*earlier, *new]}
    kept = [d["doc_id"] for d in earlier]
    gone = {}
    for row in sorted(new, key=lambda d: (-len(d["text"].encode()), d["doc_id"])):
        close = [(similarity(sets[k], sets[row["doc_id"]]), k) for k in kept]
        best = max((s for s, _ in close), default=0.0)
        if best >= config.similarity_threshold:
            gone[row["doc_id"]] = (next(k for s, k in close if s == best), best)
        else:
            kept.append(row["doc_id"])
    home = {d["doc_id"]: d["cluster"] for d in earlier}
    ours = [doc_id for doc_id in kept if doc_id not in home]
    groups = {doc_id: {doc_id} for doc_id in kept}

    def join(a, b):
        joined = groups[a] | groups[b]
        groups.update(dict.fromkeys(joined, joined))

    for a, b in combinations(home, 2):
        if home[a] == home[b]:
            join(a, b)
    for a, b in combinations(kept, 2):
        if b not in home and similarity(sets[a], sets[b]) >= config.cluster_threshold:
            join(a, b)
    clusters, bridges = {}, 0
    for doc_id in ours:
        firsts = [home[k] for k in kept if k in home and k in groups[doc_id]]
        clusters[doc_id] = firsts[0] if firsts else min(groups[doc_id])
        bridges += len(set(firsts)) > 1
    return gone, clusters, bridges


@pytest.mark.parametrize("seed", range(3))
def test_an_addition_is_what_brute_force_says(session, tmp_path, seed):
    texts = list(written(seed).items())
    steps = [dict(texts[start::3]) for start in range(3)]
    between = random.Random(f"between {seed}").choices(WORDS, k=40)  # joins two that are less alike
    steps[0] |= {"begin": " ".join([*"abcdefg", *between[7:]])}
    steps[seed % 2] |= {"end": " ".join([*between[:33], *"hijklmn"])}
    steps[2] |= {"between": " ".join(between)}
    pieces, known, bridged, crossed = [], [], 0, 0
    for number, step in enumerate(steps):
        made = added(tmp_path / str(number), step, pieces, **THOROUGH)
        config = DeduplicateNearConfig(**THOROUGH)
        gone, clusters, bridges = brute_force(rows(made, "deduplicate"), known, config)
        ledger = rows(made, "deduplicate_near", "ledger")
        assert {r["doc_id"]: (r["matched_doc_id"], r["score"]) for r in ledger} == gone
        kept = rows(made, "deduplicate_near")
        assert {d["doc_id"]: d["cluster"] for d in kept} == clusters
        (search,) = rows(made, "deduplicate_near", "search_summary")
        assert search["bridging_documents"] == bridges
        bridged += bridges
        crossed += len({twin for twin, _ in gone.values()} & {d["doc_id"] for d in known})
        pieces.append(made)
        known += kept
    assert crossed
    assert bridged  # else the counting is not put to the test


def test_a_copy_that_leaves_is_no_bridge(session, tmp_path):
    """What it is a copy of is there, and the one new document that joins two clusters counts."""
    between = random.Random(1).choices(WORDS, k=40)
    begin, end = [*"abcdefg", *between[7:]], [*between[:33], *"hijklmn"]
    first = added(tmp_path / "1", {"begin": " ".join(begin), "end": " ".join(end)}, [])
    assert len({d["cluster"] for d in rows(first)}) == 2
    texts = {"between": between, "begin again": begin[:-1], "end again": end[1:]}
    second = added(tmp_path / "2", {key: " ".join(text) for key, text in texts.items()}, [first])
    assert [d["text"] for d in rows(second)] == [" ".join(between)]
    (search,) = rows(second, "deduplicate_near", "search_summary")
    assert (search["bridging_documents"], search["earlier_documents"]) == (1, 2)


# Exact copies, ids, clusters ---------------------------------------------------------------------


def test_a_text_or_an_id_that_is_there_already_does_not_come_in_again(session, tmp_path):
    first = added(tmp_path / "1", {"a": "The same text", "b": "another one here"}, [])
    ids = {d["text"]: d["doc_id"] for d in rows(first)}
    second = added(
        tmp_path / "2",
        {
            "a": "a record that changed",
            "b": "another one here",
            "c": "the  same text",
            "d": "a record that changed",
            "e": "new",
        },
        [first],
    )
    assert sorted(d["text"] for d in rows(second)) == ["a record that changed", "new"]
    gone = {
        r["doc_id"]: (r["reason"], r["score"], r["threshold"], r["matched_doc_id"])
        for r in rows(second, "deduplicate", "ledger")
    }
    keys = {d["text"]: d["doc_id"] for d in rows(second, "ingest")}
    same, other = ids["The same text"], ids["another one here"]
    assert gone == {
        same: ("id used before", None, None, same),
        other: ("exact duplicate", 1.0, 1.0, other),
        keys["the  same text"]: ("exact duplicate", 1.0, 1.0, same),
    }


def test_an_id_stands_for_one_text_also_where_its_document_left_later(session, tmp_path):
    """But not that of a document that left as an exact duplicate: no signature tells of it."""
    words = random.Random(8).choices(WORDS, k=80)
    texts = {"a": " ".join(words), "near": " ".join(words[:-1]), "same": " ".join(words).upper()}
    first = added(tmp_path / "1", texts, [])
    left = {
        r["reason"]
        for label in ("deduplicate", "deduplicate_near")
        for r in rows(first, label, "ledger")
    }
    assert len(rows(first)) == 1 and left == {"exact duplicate", "near duplicate"}
    (gone,) = rows(first, "deduplicate", "ledger")
    keys = {d["text"]: d["doc_id"] for d in rows(first, "ingest")}
    exact = next(key for key, text in texts.items() if keys[text] == gone["doc_id"])
    second = added(tmp_path / "2", {key: f"now this is {key}" for key in texts}, [first])
    assert [d["text"] for d in rows(second)] == [f"now this is {exact}"]
    assert {r["doc_id"]: r["reason"] for r in rows(second, "deduplicate", "ledger")} == {
        keys[text]: "id used before" for key, text in texts.items() if key != exact
    }


def test_a_cluster_keeps_its_id_and_its_side_through_every_stage(session, tmp_path):
    """A new document that is a little like an earlier one, at the last stage of three."""
    chance = random.Random(3)
    bases = [chance.choices(WORDS, k=40) for _ in range(30)]
    first = added(tmp_path / "1", {f"a{i}": " ".join(b) for i, b in enumerate(bases)}, [])
    alike = [" ".join([*base[:34], *chance.choices(WORDS, k=6)]) for base in bases]
    second = added(tmp_path / "2", {f"b{i}": text for i, text in enumerate(alike)}, [first])
    more = [" ".join([*chance.choices(WORDS, k=5), *text.split()[5:]]) for text in alike]
    third = added(tmp_path / "3", {f"c{i}": t for i, t in enumerate(more)}, [first, second])
    homes = {" ".join(d["text"].split()[10:30]): d for d in rows(first)}
    assert len(homes) == len(rows(second)) == len(rows(third)) == 30
    for row in [*rows(second), *rows(third)]:
        home = homes[" ".join(row["text"].split()[10:30])]
        assert (row["cluster"], row["split"]) == (home["cluster"], home["split"])
    assert len({d["split"] for d in homes.values()}) == 3


# Three steps beside one --------------------------------------------------------------------------


def test_three_steps_and_one_hold_the_same_texts_but_for_twins(session, tmp_path):
    texts = {key: text for seed in range(4) for key, text in written(seed).items()}
    chance = random.Random(0)
    order = sorted(texts, key=lambda _: chance.random())
    steps = [{key: texts[key] for key in order[start::3]} for start in range(3)]
    grown = []
    for number, step in enumerate(steps):
        grown.append(added(tmp_path / str(number), step, grown))
    once = added(tmp_path / "once", texts, [])
    sides = {
        "grown": {d["doc_id"]: d for made in grown for d in rows(made)},
        "once": {d["doc_id"]: d for d in rows(once)},
    }
    ledgers = {
        name: {
            r["doc_id"]: r
            for made in pieces
            for label in ("deduplicate", "deduplicate_near", "deduplicate_redacted")
            for r in rows(made, label, "ledger")
        }
        for name, pieces in (("grown", grown), ("once", [once]))
    }
    sets = {d: shingle_set(row["text"]) for side in sides.values() for d, row in side.items()}
    causes = Counter()
    for name, other in (("grown", "once"), ("once", "grown")):
        for doc_id in sides[name].keys() - sides[other].keys():
            assert max(similarity(sets[doc_id], sets[k]) for k in sides[other]) >= 0.8
            causes[name, ledgers[other][doc_id]["reason"]] += 1
    both = sides["grown"].keys() & sides["once"].keys()
    assert len(both) > 0.8 * len(sides["once"])
    assert causes.keys() == {
        (name, why) for name in sides for why in ("exact duplicate", "near duplicate")
    }
    for one, two in combinations(sides["grown"].values(), 2):  # no near copy straddles, but bridges
        if similarity(sets[one["doc_id"]], sets[two["doc_id"]]) >= 0.5:
            causes["apart"] += one["split"] != two["split"]
    bridges = sum(
        rows(made, "deduplicate_near", "search_summary")[0]["bridging_documents"] for made in grown
    )
    assert causes["apart"] <= 10 * bridges


def test_the_bytes_do_not_depend_on_workers_or_parts(tmp_path):
    texts = list(written(5).items())
    first, second = dict(texts[::2]), dict(texts[1::2])

    def digests(name, part_bytes, mapper=None):
        session = Session(Store(tmp_path / name))
        if mapper:
            session = Session(Store(tmp_path / name), mapper)
        with open_session(session):
            made = added(tmp_path / "first", first, [], part_bytes[0])
            more = added(tmp_path / "second", second, [made], part_bytes[1])
        return [
            (
                label,
                table,
                more[label][table].read().sort_by("doc_id").to_pylist()
                if "doc_id" in more[label][table].columns
                else rows(more, label, table),
            )
            for label in ("deduplicate", "deduplicate_near", "deduplicate_redacted", "split")
            for table in more[label].tables
        ], {label: artifact.content_digest for label, artifact in more.items()}

    whole = digests("one", (8 << 20, 8 << 20))
    small, _ = digests("small", (4096, 2048))
    assert small == whole[0]
    assert digests("workers", (4096, 8 << 20), ProcessMapper(2)) == whole


# Refusals ----------------------------------------------------------------------------------------


def test_an_earlier_corpus_of_other_parameters_is_refused(session, tmp_path):
    first = added(tmp_path / "1", {"a": "some words", "b": "other words"}, [])
    near = first["deduplicate_near"]
    with pytest.raises(HallmarkError, match=r"deduplicate_near\.bands is 20, and was 32 in the"):
        added(tmp_path / "2", {"c": "new"}, [first], bands=20)
    for setting in (
        {"shingle_unit": "characters"},
        {"rows_per_band": 5},
        {"seed": 2},
        {"similarity_threshold": 0.7},
        {"cluster_threshold": 0.4},
        {"shingle_length": 4},
    ):
        with pytest.raises(HallmarkError, match="earlier corpus"):
            check_earlier_compatible(near, DeduplicateNearConfig(**setting))
    check_earlier_compatible(
        near, DeduplicateNearConfig(preferred_sources=("s",), max_candidates=5)
    )
    with pytest.raises(HallmarkError, match=r"split\.seed is 1, and was 0 in the earlier corpus"):
        check_earlier_compatible(
            first["split"], SplitConfig(seed=1, validation_share=0.3, holdout_share=0.3)
        )


def test_signatures_of_other_code_are_refused(session, tmp_path):
    first = added(tmp_path / "1", {"a": "some words"}, [])["deduplicate"]
    check_earlier_compatible(first, DeduplicateConfig())
    first.manifest["parts"]["code"]["hallmark.tasks.measures.normalised_words"] = "other"
    with pytest.raises(HallmarkError, match="another version of tasks"):
        check_earlier_compatible(first, DeduplicateConfig())


def test_one_signature_a_document_that_stayed(session, tmp_path):
    made = added(tmp_path / "1", written(1), [], part_bytes=2048)
    for label in ("deduplicate", "deduplicate_near"):
        documents, signed = made[label]["documents"], made[label]["signatures"]
        assert [p.row_count for p in signed.parts] == [p.row_count for p in documents.parts]
        assert len(signed.parts) > 1
        for name in ("doc_id", "cluster"):
            assert signed.read([name]) == documents.read([name])
    entered = {d["doc_id"]: d["cluster"] for d in rows(made, "deduplicate")}
    for row in rows(made, "deduplicate_near", "signatures"):
        assert row["incoming_cluster"] == entered[row["doc_id"]]
        assert len(row["band_hashes"]) == 32
    texts = {plain(d["text"]) for d in rows(made, "deduplicate")}
    assert len({r["normalised_text_hash"] for r in rows(made, "deduplicate", "signatures")}) == len(
        texts
    )


def test_a_corpus_of_which_a_document_was_purged_is_not_added_to(tmp_path):
    store = Store(tmp_path / "store")
    with open_session(Session(store)):
        first = added(tmp_path / "1", {"a": "a violet submarine", "b": "two other words"}, [])
    (doc_id,) = [d["doc_id"] for d in rows(first) if d["text"] == "a violet submarine"]
    purge_document(store, doc_id.hex())
    purged = {label: store.find_artifact(a.stage, a.fingerprint) for label, a in first.items()}
    for label in ("deduplicate", "deduplicate_near"):
        (signed,) = [r for r in rows(purged, label, "signatures") if r["doc_id"] == doc_id]
        assert (
            signed.get("normalised_text_hash", bytes(16)) == bytes(16)
            and signed.get("band_hashes", []) == []
        )
    with open_session(Session(store)):
        with pytest.raises(HallmarkError, match="where it is of an earlier corpus, that one is to"):
            added(tmp_path / "2", {"c": "new"}, [purged])
        second = added(tmp_path / "3", {f"c{i}": f"new {i}" for i in range(30)}, [])
        tokenizer = train_tokenizer([second["split"]], None, TokenizerConfig(vocab_size=300))
        with pytest.raises(HallmarkError, match="which was purged"):
            pack([purged["split"], second["split"]], tokenizer, PackConfig(context=32))
