"""What ingest leaves out: blocked sources, domains and documents; what weights and caps leave."""

import json
import random
from collections import Counter

import pytest
from pydantic import ValidationError

from hallmark.tasks.contract import ProcessMapper, Session, Store, UsageError, open_session
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig, compute_source_digests

HOSTS = ["a.example", "www.b.a.example", "xa.example", "example", "[::1]", "sub.c.example"]


def write(folder, rows):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def source(folder, name="s", **more):
    return {"kind": "jsonl", "name": name, "path": str(folder), "url_field": "url", **more}


def make(*sources, **more):
    return ingest(IngestConfig(sources=list(sources), **more))


def texts(artifact):
    return artifact["documents"].read()["text"].to_pylist()


def reasons(artifact):
    rows = artifact["ledger"].read().to_pylist()
    return Counter(row["reason"] for row in rows if row["action"] == "removed")


@pytest.fixture
def hosts(tmp_path):
    rows = [{"text": f"on {h}", "url": f"http://{h}/"} for h in HOSTS]
    return write(tmp_path / "hosts", [*rows, {"text": "nowhere"}, {"text": ""}])


@pytest.mark.parametrize(
    ("domains", "gone"),
    [
        (["a.example"], {"a.example", "www.b.a.example"}),
        (["WWW.A.Example."], {"a.example", "www.b.a.example"}),
        (["b.a.example", "[::1]"], {"www.b.a.example", "[::1]"}),
        (["example"], {"a.example", "www.b.a.example", "xa.example", "example", "sub.c.example"}),
        (["ample", "e", "no.a.example"], set()),
    ],
)
def test_a_blocked_domain_takes_its_subdomains_along(hosts, session, tmp_path, domains, gone):
    made = make(source(hosts), block={"domains": domains})
    assert set(texts(made)) == {f"on {h}" for h in HOSTS if h not in gone} | {"nowhere"}
    expected = {"empty": 1, "blocked domain": len(gone)}
    assert reasons(made) == {reason: n for reason, n in expected.items() if n}
    listed = tmp_path / "domains.txt"
    listed.write_text("# a comment\n\n" + "".join(f"  {d}  # why\r\n" for d in domains))
    again = make(source(hosts), block={"domains": str(listed)})
    assert again["documents"].digest == made["documents"].digest


def test_a_blocked_source_takes_its_parts_along(tmp_path, session):
    one, two = (write(tmp_path / name, [{"text": name}]) for name in ("one", "two"))
    packages = {"kind": "documentation", "packages": ["click", "joblib"]}
    made = make(
        source(one, "one"),
        source(two, "two"),
        packages,
        block={"sources": ["two", "documentation/click"]},
    )
    assert set(made["documents"].read()["source"].to_pylist()) == {"one", "documentation/joblib"}
    assert set(reasons(made)) == {"blocked source"}
    blocked = make(source(one, "one"), packages, block={"sources": ["documentation", "on"]})
    assert texts(blocked) == ["one"]


def test_a_blocked_document_stays_out_and_its_copies_keep_their_ids(tmp_path, session):
    rows = [{"text": "same", "url": f"http://{n}.example"} for n in range(5)] + [{"text": "other"}]
    where = source(write(tmp_path / "in", rows))
    before = make(where)["documents"].read().to_pylist()
    ids = [row["doc_id"] for row in before if row["text"] == "same"]
    for denied in (ids[0], ids[3]):
        made = make(where, block={"doc_ids": [denied.hex().upper(), "0" * 32]})
        assert made["documents"].read().to_pylist() == [r for r in before if r["doc_id"] != denied]
        gone = [r for r in made["ledger"].read().to_pylist() if r["action"] == "removed"]
        assert [(r["doc_id"], r["reason"]) for r in gone] == [(denied, "blocked document")]


def test_nothing_is_kept_of_a_blocked_document_with_a_key(tmp_path, session):
    """Nor of another record with its key."""
    folder = write(
        tmp_path / "in",
        [{"text": f"secret {n}", "k": 1} for n in range(3)] + [{"text": "x", "k": 2}],
    )
    where = source(folder, key_field="k")
    (denied,) = [
        r["doc_id"] for r in make(where)["documents"].read().to_pylist() if r["text"] != "x"
    ]
    made = make(where, block={"doc_ids": [denied.hex()]})
    assert texts(made) == ["x"]
    for table in made.tables:
        if table != "telemetry":
            assert "secret" not in repr(made[table].read().to_pylist())
            assert b"secret" not in b"".join(p.path.read_bytes() for p in made[table].parts)
    assert made["quarantine"].row_count == 2


def test_wrong_entries_are_refused_before_anything_starts(hosts, tmp_path):
    for block, why in (
        ({"domains": ["http://a.example/"]}, r"block\.domains: 'http://a\.example/' is no host"),
        ({"doc_ids": ["12"]}, r"block\.doc_ids: '12' is no doc_id"),
        ({"sources": str(tmp_path / "no")}, r"block\.sources: the file .* cannot be read"),
        ({"domains": "~nobody-here/x"}, r"block\.domains: the file .* cannot be read"),
    ):
        with pytest.raises(UsageError, match=why):
            compute_source_digests(IngestConfig(sources=[source(hosts)], block=block), "")


def test_a_list_that_is_not_utf8_is_told_from_one_that_is_not_there(hosts, tmp_path):
    listed = tmp_path / "domains.txt"
    config = IngestConfig(sources=[source(hosts)], block={"domains": str(listed)})
    listed.write_bytes("a.example\nfüße.example".encode("latin-1"))
    says = r"block\.domains: .*domains\.txt' is not UTF-8 text, at byte 12; save it as UTF-8$"
    with pytest.raises(UsageError, match=says):
        compute_source_digests(config, "")
    listed.write_bytes("a.example".encode("utf-16"))
    with pytest.raises(UsageError, match="not UTF-8 text, at byte 1; save it"):
        compute_source_digests(config, "")


@pytest.mark.parametrize("block", [{"sources": ["s"]}, {"domains": ["a.example"]}])
def test_of_what_is_blocked_neither_text_nor_hash_is_kept(tmp_path, session, block):
    """Nor of a second record of its key, which is quarantined."""
    rows = [{"id": 1, "text": f"version {n}", "url": "http://a.example/"} for n in range(2)]
    other = source(write(tmp_path / "other", [{"text": "other"}]), "other")
    made = make(source(write(tmp_path / "in", rows), key_field="id"), other, block=block)
    (row,) = made["quarantine"].read().to_pylist()
    assert (row["error"], row["raw"]) == ("duplicate key", b"")
    (row,) = made["ledger"].read().to_pylist()
    assert (row["reason"].split()[0], row["document_hash"]) == ("blocked", None)


@pytest.mark.parametrize("name", ["sources", "domains"])
def test_a_byte_order_mark_is_no_part_of_the_first_entry(hosts, session, tmp_path, name):
    listed = tmp_path / "list.txt"
    listed.write_text({"sources": "s", "domains": "example"}[name] + "\nother\n", "utf-8-sig")
    made = make(
        source(hosts),
        source(write(tmp_path / "more", [{"text": "more"}]), "more"),
        block={name: str(listed)},
    )
    gone = {"sources": HOSTS, "domains": HOSTS[:4] + HOSTS[5:]}[name]
    assert not {f"on {host}" for host in gone} & set(texts(made)) and "more" in texts(made)


def test_a_list_in_a_file_counts_by_its_content(hosts, tmp_path):
    listed = tmp_path / "domains.txt"
    config = IngestConfig(sources=[source(hosts)], block={"domains": str(listed)})
    listed.write_text("a.example")
    before = compute_source_digests(config, "")
    listed.write_text("b.example")
    assert compute_source_digests(config, "") != before


# Weights and caps --------------------------------------------------------------------------------


ROWS = [{"text": f"text {n} {random.Random(n).random()}"} for n in range(2000)]
ROWS += [{"text": "copied"}] * 50 + [{"text": ""}] * 10


@pytest.mark.parametrize(
    "limit",
    [
        {"document_share": 0.3},
        {"max_documents": 321},
        {"document_share": 0.5, "max_documents": 700},
    ],
)
def test_what_is_left_out_does_not_depend_on_order_files_or_workers(tmp_path, limit):
    made = []
    for number, rows in enumerate((ROWS, ROWS[::-1])):
        folder = write(tmp_path / f"{number}", rows[: 100 + 900 * number])
        write(folder / "more", rows[100 + 900 * number :])
        opened = Session(Store(tmp_path / f"store {number}"))
        if number:
            opened.mapper = ProcessMapper(2)
        with open_session(opened):
            whole = make(source(folder))
            made.append(make(source(folder, **limit), partition_bytes=8000))
    assert made[0]["documents"].digest == made[1]["documents"].digest
    assert made[0]["ledger"].digest == made[1]["ledger"].digest
    assert Counter(texts(made[0])) <= Counter(texts(whole))
    kept, cap, weight = (
        made[0]["documents"].row_count,
        limit.get("max_documents"),
        limit.get("document_share", 1),
    )
    assert kept == cap or (cap is None and abs(kept - 2050 * weight) < 4 * (2050 * 0.25) ** 0.5)
    gone = reasons(made[0])
    assert gone.total() + kept == len(ROWS) and gone["empty"] == 10
    assert set(gone) <= {"empty", "left out by weight", "left out by cap"}
    assert sum(made[0]["documents"].read()["text"].to_pylist().count(t) for t in ["copied"]) < 50
    # Parts are as many as the text that is kept needs.
    size = sum(map(len, texts(made[0])))
    of = len(made[0]["documents"].parts)
    assert size <= 8000 * of and (of == 1 or size > 8000 * of / 2)


def test_a_source_that_grows_keeps_the_share_that_it_had(tmp_path, session):
    small = set(texts(make(source(write(tmp_path / "a", ROWS[:500]), document_share=0.4))))
    large = set(texts(make(source(write(tmp_path / "b", ROWS[:2000]), document_share=0.4))))
    assert small == large & {row["text"] for row in ROWS[:500]}


def test_each_source_has_limits_of_its_own(tmp_path, session):
    folder = write(tmp_path / "in", ROWS[:300])
    made = make(
        source(folder, "all"),
        source(folder, "ten", max_documents=10),
        source(folder, "some", max_documents=900),
    )
    found = Counter(made["documents"].read()["source"].to_pylist())
    assert found == {"all": 300, "ten": 10, "some": 300}


@pytest.mark.parametrize(
    "wrong", [{"document_share": 0}, {"document_share": 1.5}, {"max_documents": 0}]
)
def test_limits_out_of_range_are_refused(wrong):
    with pytest.raises(ValidationError):
        IngestConfig(sources=[source("a", **wrong)])
