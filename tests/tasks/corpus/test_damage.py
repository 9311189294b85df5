"""Damaged compressed files: what stands behind the damage is read, and every byte is counted."""

import gzip
import json
import random
import time
import tracemalloc

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.tasks.corpus.ingest import IngestConfig, ingest
from hallmark.tasks.corpus.reading import compressed_members
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts, read_blocks, read_lines
from hallmark.tasks.corpus.reading.compressed_members import DAMAGED_DATA, TRUNCATED_DATA, Damage
from tests.tasks.corpus.reading import PACK, documents, numbers, read_all, skippable, zst

both = pytest.mark.parametrize("ending", [".gz", ".zst"])
KINDS = {".jsonl": "jsonl", ".csv": "csv", ".tsv": "tsv", ".txt": "text"}


def read(path, data, **settings):
    """All records of a file of these bytes, once the meter agrees with records and stream."""
    path.write_bytes(data)
    meter, raw = ReadCounts(), ReadCounts()
    found = read_all(path, KINDS[path.suffixes[0]], 10_000, meter, **settings)
    pieces = list(read_blocks(path, raw))
    lost = sum(piece.lost_bytes for piece in pieces if isinstance(piece, Damage))
    assert meter.lost_bytes == raw.lost_bytes == lost
    assert meter.byte_count == lost + sum(len(p) for p in pieces if isinstance(p, bytes))
    assert meter.byte_count == meter.skipped_bytes + sum(r.raw_bytes for r in found)
    assert meter.record_count == len(found)
    return found, meter


# Behind the damage -------------------------------------------------------------------------------


@both
def test_reading_goes_on_at_the_next_member(tmp_path, ending):
    """Damage at the beginning, in the middle and at the end of the first of two members."""
    rows = documents(range(100))
    first, second = (PACK[ending](b"".join(half)) for half in (rows[:50], rows[50:]))
    for where in (0, 1, 3, len(first) // 2, len(first) - 10, len(first) - 4):
        damaged = bytearray(first)
        damaged[where] ^= 0xFF
        records, _ = read(tmp_path / f"a.jsonl{ending}", bytes(damaged) + second)
        assert numbers(records)[-50:] == list(range(50, 100))
        assert [r.error for r in records if r.error] == [DAMAGED_DATA]


@both
def test_damage_is_one_record_and_lines_are_numbered_on(tmp_path, ending):
    """Of a member that is damaged in its first byte nothing is read and all of it is lost."""
    rows = documents(range(6))
    good, bad, last = (PACK[ending](b"".join(rows[i : i + 2])) for i in (0, 2, 4))
    bad = b"x" + bad[1:]
    records, meter = read(tmp_path / f"a.jsonl{ending}", good + bad + last)
    assert [(r.location, r.error) for r in records] == [
        ("line 1", ""),
        ("line 2", ""),
        ("line 3", DAMAGED_DATA),
        ("line 4", ""),
        ("line 5", ""),
    ]
    assert (records[2].raw_bytes, meter.lost_bytes) == (len(bad), len(bad))
    assert numbers(records) == [0, 1, 4, 5]


@both
def test_a_member_behind_damage_may_be_truncated(tmp_path, ending):
    """What it gives before its end is read; two errors are two records."""
    rows = documents(range(9000))
    bad, last = b"x" + PACK[ending](rows[0])[1:], PACK[ending](b"".join(rows[1:]))
    for cut in (3000, len(last) - 3000):
        records, _ = read(tmp_path / f"a.jsonl{ending}", bad + last[:cut])
        found = numbers(records)
        assert found == list(range(1, 1 + len(found)))
        assert len(found) > 9000 // 2 or cut == 3000
        errors = [r.error for r in records if r.error]
        assert errors == ([DAMAGED_DATA, TRUNCATED_DATA] if found else [DAMAGED_DATA])


@both
def test_several_damaged_members(tmp_path, ending):
    rows = documents(range(400))
    packed = [bytearray(PACK[ending](b"".join(rows[i : i + 10]))) for i in range(0, 400, 10)]
    for index in (0, 3, 4, 5, 20, 39):
        packed[index][len(packed[index]) // 2] ^= 0x55
    records, _ = read(tmp_path / f"a.jsonl{ending}", b"".join(packed))
    found = numbers(records)
    good = [n for n in range(400) if n // 10 not in (0, 3, 4, 5, 20, 39)]
    assert [n for n in found if n in set(good)] == good
    errors = [r.error for r in records if r.error]
    assert set(errors) == {DAMAGED_DATA} and 4 <= len(errors) <= 6


def test_a_decoder_that_ran_over_the_next_member_is_called_back(tmp_path):
    """The size in a raw zstd block is damaged: the block swallows the next frame's beginning."""
    rows = documents(range(300))
    first, last = zst(b"".join(rows[:20])), zst(b"".join(rows[100:]))
    block = b"".join(rows[20:100])
    header = b"\x28\xb5\x2f\xfd\x00\x58"  # a window of 2 MiB, no size, no checksum
    raw, wrong = (
        header + (size << 3).to_bytes(3, "little") + block + b"\x01\0\0"
        for size in (len(block), len(block) + 6000)
    )
    assert numbers(read(tmp_path / "a.jsonl.zst", first + raw + last)[0]) == list(range(300))
    assert len(last) > 8000
    records, _ = read(tmp_path / "b.jsonl.zst", first + wrong + last)
    assert numbers(records) == list(range(300))
    errors = [r.error for r in records if r.error]  # the frame behind, read as text, is among them
    assert errors[-1] == DAMAGED_DATA and errors.count(DAMAGED_DATA) == 1


def test_a_skippable_frame_with_a_damaged_size_does_not_swallow_the_rest(tmp_path):
    rows = documents(range(4))
    frames = [zst(row) for row in rows]
    whole = frames[0] + skippable(b"index", 3) + frames[1] + skippable(b"") + frames[2] + frames[3]
    records, meter = read(tmp_path / "a.jsonl.zst", whole)
    assert (numbers(records), meter.lost_bytes, len(records)) == ([0, 1, 2, 3], 0, 4)
    for size in (6, len(frames[1]) + 7, 1 << 31):
        wrong = b"\x53\x2a\x4d\x18" + size.to_bytes(4, "little") + b"index"
        records, _ = read(tmp_path / "b.jsonl.zst", whole.replace(skippable(b"index", 3), wrong))
        assert numbers(records) == [0, 1, 2, 3]
        assert [(r.error, r.raw_bytes) for r in records if r.error] == [(DAMAGED_DATA, len(wrong))]
    # Behind damage a skippable frame is where reading goes on.
    records, meter = read(tmp_path / "c.jsonl.zst", b"junk" + skippable(b"index") + frames[1])
    assert (numbers(records), meter.lost_bytes) == ([1], 4)


def test_false_beginnings_give_no_text(tmp_path):
    """Magic bytes with a header that parses and nothing behind it that does."""
    rows = documents(range(2))
    lures = {
        ".gz": [b"\x1f\x8b\x08" + bytes([flag]) + bytes(6) for flag in (0, 1, 2, 4, 8, 16, 255)],
        ".zst": [b"\x28\xb5\x2f\xfd" + bytes([d, 88]) for d in (0, 4, 32, 36)],
    }
    for ending, found in lures.items():
        for lure in [*found, b"".join(found)]:
            for junk in (b"\xff" * 50, b"words and words " * 9, random.Random(1).randbytes(9000)):
                data = PACK[ending](rows[0]) + lure + junk + PACK[ending](rows[1])
                records, meter = read(tmp_path / f"a.jsonl{ending}", data)
                assert [r.location for r in records if r.error] == ["line 2"]
                assert numbers(records) == [0, 1]
                assert meter.lost_bytes == len(lure + junk)


def test_a_false_beginning_whose_name_ends_where_the_next_member_begins(tmp_path):
    """Its first block decompresses without error, whatever time the true header holds."""
    rows = documents(range(2))
    lure = b"\x1f\x8b\x08\x08" + b"n" * (compressed_members.COMPRESSED_BLOCK_BYTES - 12)
    for when in range(300):
        data = lure + gzip.compress(rows[1], mtime=when)
        records, meter = read(tmp_path / "a.jsonl.gz", gzip.compress(rows[0]) + b"x" + data)
        assert (numbers(records), meter.lost_bytes, when) == ([0, 1], 1 + len(lure), when)


@both
def test_what_a_lost_line_leaves_behind_is_no_document(tmp_path, ending):
    """Members that are cut anywhere: the rest of a line whose beginning is lost stays with it."""
    rows = documents(range(600))
    text = b"".join(rows)
    pieces = [PACK[ending](text[i : i + 1000]) for i in range(0, len(text), 1000)]
    pieces[20] = b"x" + pieces[20][1:]
    records, _ = read(tmp_path / f"a.jsonl{ending}", b"".join(pieces))
    ends = [text.index(row) + len(row) for row in rows]
    assert numbers(records) == [
        n for n, end in enumerate(ends) if end <= 20_000 or (end - len(rows[n]) >= 21_000)
    ]
    assert [r.error for r in records if r.error] == [DAMAGED_DATA]
    pairs = [rows[i] + rows[i + 1] for i in range(0, 600, 2)]  # passages of two lines
    text = b"\n".join(pairs)
    pieces = [PACK[ending](text[i : i + 1000]) for i in range(0, len(text), 1000)]
    pieces[20] = b"x" + pieces[20][1:]
    records, _ = read(
        tmp_path / f"a.txt{ending}", b"".join(pieces), document_boundary="blank_lines"
    )
    assert {r.text.encode() + b"\n" for r in records if not r.error} < set(pairs)
    assert [r.error for r in records if r.error] == [DAMAGED_DATA]


@both
def test_other_readers_go_on_too(tmp_path, ending):
    pack = PACK[ending]
    bad = b"x" + pack(b"lost")[1:]
    data = pack(b'id,text\n1,one\n2,"two\nlines"\n') + bad + pack(b"4,four\n") + bad
    records, _ = read(tmp_path / f"a.csv{ending}", data)
    assert [(r.location, r.text or r.error) for r in records] == [
        ("line 2", "one"),
        ("line 3", "two\nlines"),
        ("line 5", DAMAGED_DATA),
        ("line 6", "four"),
        ("line 7", DAMAGED_DATA),
    ]
    data = pack(b"id\ttext\n1\tone\n") + bad + pack(b'4\t"four\n') + bad
    records, _ = read(tmp_path / f"a.tsv{ending}", data)
    assert [(r.location, r.text or r.error) for r in records] == [
        ("line 2", "one"),
        ("line 3", DAMAGED_DATA),
        ("line 4", '"four'),
        ("line 5", DAMAGED_DATA),
    ]
    data = pack(b"one\n\ntwo\n") + bad + pack(b"three\nmore\n\nfour")
    records, _ = read(tmp_path / f"a.txt{ending}", data, document_boundary="blank_lines")
    assert [r.text or r.error for r in records] == ["one", DAMAGED_DATA, "three\nmore", "four"]
    records, meter = read(tmp_path / f"b.txt{ending}", data)
    assert [(r.location, r.error) for r in records] == [("whole file", DAMAGED_DATA)]
    assert meter.byte_count == 9 + len(bad) + 16


# Odd files ---------------------------------------------------------------------------------------


@both
def test_empty_members_and_padding(tmp_path, ending):
    pack, rows = PACK[ending], documents(range(3))
    data = pack(b"") + pack(rows[0]) + pack(b"") * 3 + bytes(5000) + pack(rows[1]) + pack(b"")
    data += pack(rows[2]) + bytes(8000)
    records, meter = read(tmp_path / f"a.jsonl{ending}", data)
    assert (numbers(records), len(records), meter.lost_bytes) == ([0, 1, 2], 3, 0)
    records, _ = read(tmp_path / f"b.jsonl{ending}", pack(b""))
    assert [r.error for r in records] == ["the file is empty"]


@both
@pytest.mark.parametrize("distance", [-1, 0, 1])
def test_members_that_end_at_the_border_of_a_block(tmp_path, ending, distance):
    """Also where the member behind the border is damaged, or the file ends there."""
    pack, rows = PACK[ending], documents(range(40), size=120)
    first = pack(b"".join(rows[:20]))
    gap = bytes(compressed_members.COMPRESSED_BLOCK_BYTES + distance - len(first))
    assert len(gap) > 0
    for data, expected in (
        (first + gap, range(20)),
        (gap + first + pack(b"".join(rows[20:])), range(40)),
        (first + gap + pack(b"".join(rows[20:])), range(40)),
    ):
        records, meter = read(tmp_path / f"a.jsonl{ending}", data)
        assert (numbers(records), meter.lost_bytes) == (list(expected), 0)
    data = gap + first + b"x" * 4096 + pack(b"".join(rows[20:]))
    records, meter = read(tmp_path / f"a.jsonl{ending}", data)
    assert (numbers(records), meter.lost_bytes) == (list(range(40)), 4096)


@both
def test_plain_text_under_a_compressed_name(tmp_path, ending):
    data = b"".join(documents(range(500)))
    records, meter = read(tmp_path / f"a.jsonl{ending}", data)
    assert [(r.location, r.error, r.raw_bytes) for r in records] == [
        ("line 1", DAMAGED_DATA, len(data))
    ]
    assert meter.lost_bytes == len(data)


def test_the_rest_of_a_truncated_stream_is_counted_as_it_stands(tmp_path):
    """A block of a zstd frame is there whole or gives nothing."""
    chance = random.Random(1).randbytes(300_000).replace(b"\n", b" ")
    packed = zst(chance)
    records, meter = read(tmp_path / "a.jsonl.zst", packed[:3])
    assert [(r.error, r.raw_bytes) for r in records] == [(TRUNCATED_DATA, 3)]
    text = json.dumps({"text": chance.hex()}).encode()
    packed = zst(text)
    records, meter = read(tmp_path / "b.jsonl.zst", packed[:20_000])
    assert [r.error for r in records] == [TRUNCATED_DATA]
    given = zstandard.ZstdDecompressor().decompressobj().decompress(packed[:20_000])
    assert given == b"" and meter.byte_count == meter.lost_bytes == 20_000


def test_a_window_of_two_gigabytes_is_no_damage(tmp_path):
    text = b"".join(documents(range(3)))
    parameters = zstandard.ZstdCompressionParameters(window_log=31, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = packer.compress(text) + packer.flush()
    assert zstandard.get_frame_parameters(data).window_size == 1 << 31
    records, meter = read(tmp_path / "a.jsonl.zst", data)
    assert (numbers(records), meter.lost_bytes) == ([0, 1, 2], 0)


@both
def test_the_accounts_of_damaged_files_balance(tmp_path, ending, session):
    """Through the stage: what entered in bytes is decompressed bytes and lost ones."""
    rows, folder = documents(range(60)), tmp_path / "in"
    folder.mkdir()
    packed = [PACK[ending](b"".join(rows[i : i + 20])) for i in (0, 20, 40)]
    packed[1] = b"x" + packed[1][1:]
    (folder / f"a.jsonl{ending}").write_bytes(b"".join(packed))
    (folder / f"b.jsonl{ending}").write_bytes(packed[0] + packed[1][:30])
    made = ingest(IngestConfig(sources=[{"kind": "jsonl", "name": "s", "path": str(folder)}]))
    book = {b["unit"]: b for b in made["accounts"].read().to_pylist()}
    kept = len(b"".join(rows[:20] * 2 + rows[40:]))
    lost = [len(packed[1]), 30]
    assert (book["bytes"]["input"], book["bytes"]["kept"]) == (kept + sum(lost), kept)
    assert (book["rows"]["input"], book["rows"]["kept"], book["rows"]["quarantined"]) == (62, 60, 2)
    table = made["quarantine"].read().to_pylist()
    assert [(r["location"], r["error"], r["raw_bytes"]) for r in table] == [
        ("line 21", DAMAGED_DATA, lost[0]),
        ("line 21", DAMAGED_DATA, lost[1]),
    ]


# Time and memory ---------------------------------------------------------------------------------


def overlapping():
    """Gzip members whose stored blocks hold the beginnings of all members behind them."""
    head = b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\x00" + b"\xed\xfd\x12\x02"  # 65,005 bytes stored
    return head * 70_000


MAGICS = {
    "gzip.gz": b"\x1f\x8b\x08\0" * 250_000,
    "names.gz": b"\x1f\x8b\x08\x08" * 250_000,
    "fields.gz": b"\x1f\x8b\x08\x04" * 250_000,
    "empty.gz": (gzip.compress(b"") + b"x") * 20_000,
    "overlapping.gz": overlapping(),
    "zstd.zst": b"\x28\xb5\x2f\xfd" * 250_000,
    "skippable.zst": b"\x50\x2a\x4d\x18" * 250_000,
    "chain.zst": skippable(b"", 1) * 100_000 + b"x",
    "blocks.zst": b"\x28\xb5\x2f\xfd\x00\x58\x04\x00\x10" * 100_000,  # each claims 128 KiB
    "raw.zst": b"\x28\xb5\x2f\xfd\x00\x58\x00\x00\x10" * 100_000,
}


@pytest.mark.parametrize("name", MAGICS)
def test_a_file_of_nothing_but_magics_takes_linear_time(tmp_path, name):
    """Twice the bytes take no more than about twice the time."""
    path, took = tmp_path / name, []
    for part in (2, 1):
        path.write_bytes(MAGICS[name][: len(MAGICS[name]) // part])
        start = time.process_time()
        for _ in read_blocks(path, ReadCounts()):
            pass
        took.append(time.process_time() - start)
    assert took[1] < 20
    assert took[1] < 4 * took[0] + 1


@pytest.mark.parametrize("name", ["gzip.gz", "names.gz", "zstd.zst", "skippable.zst"])
def test_what_stands_behind_magics_is_found(tmp_path, name):
    path = tmp_path / f"a.jsonl.{name.split('.')[1]}"
    data = MAGICS[name][:400_000]
    row = documents([7])[0]
    records, meter = read(path, PACK[path.suffix](row) + data + PACK[path.suffix](row))
    assert (numbers(records), meter.lost_bytes) == ([7, 7], len(data))


@both
def test_the_search_holds_no_more_than_a_block(tmp_path, ending):
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(random.Random(1).randbytes(1 << 20) * 30 + PACK[ending](b"x\n"))
    tracemalloc.start()
    found = list(read_lines(path, 10_000, ReadCounts()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [line.data for line in found] == [b"", b"x"]
    assert peak < 1_000_000


# Any damage --------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(data=st.data(), ending=st.sampled_from([".gz", ".zst"]), block=st.integers(1, 5000))
def test_every_document_of_an_undamaged_member_comes_out_once(
    tmp_path_factory, data, ending, block
):
    """For any split into members, any size of blocks and any damaged range within one member."""
    counts = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=8))
    size = data.draw(st.sampled_from([2, 20, 200]))
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    groups = [range(e - n, e) for n, e in zip(counts, ends, strict=True)]
    packed = [PACK[ending](b"".join(documents(group, size))) for group in groups]
    hurt = data.draw(st.integers(0, len(counts) - 1))
    start = data.draw(st.integers(0, len(packed[hurt]) - 1))
    end = data.draw(st.integers(start + 1, min(start + 200, len(packed[hurt]))))
    noise = random.Random(data.draw(st.integers(0, 1 << 30))).randbytes(end - start)
    packed[hurt] = packed[hurt][:start] + noise + packed[hurt][end:]
    path = tmp_path_factory.mktemp("damage") / f"a.jsonl{ending}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compressed_members, "COMPRESSED_BLOCK_BYTES", block)
        records, _ = read(path, b"".join(packed))
    rows = [documents(g, size) for index, g in enumerate(groups) if index != hurt]
    expected = [json.loads(row)["text"] for group in rows for row in group]
    # What the damaged member gave before the damage was noticed may be anything.
    assert [r.text for r in records if r.text in set(expected)] == expected
