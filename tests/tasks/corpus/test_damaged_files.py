"""Test damaged compressed files: reading continues after the damage and counts every byte."""

import gzip
import json
import random
import time
import tracemalloc
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.tasks.corpus.ingest import IngestConfig, ingest
from hallmark.tasks.corpus.reading import compressed_members
from hallmark.tasks.corpus.reading.byte_streams import (
    ReadCounts,
    read_blocks,
    read_lines_marking_damage,
)
from hallmark.tasks.corpus.reading.compressed_members import DAMAGED_DATA, TRUNCATED_DATA, Damage
from tests.tasks.corpus.reader_helpers import (
    COMPRESS_BY_ENDING,
    compress_zstd,
    get_numbers,
    make_json_lines,
    make_skippable_frame,
    read_all,
)

all_codecs = pytest.mark.parametrize("ending", COMPRESS_BY_ENDING)
KINDS = {".jsonl": "jsonl", ".csv": "csv", ".tsv": "tsv", ".txt": "text"}


def read_bytes_checked(path, data, **settings):
    """Read a file with these bytes; check that counts agree with records and stream."""
    path.write_bytes(data)
    counts, block_counts = ReadCounts(), ReadCounts()
    records = read_all(path, KINDS[path.suffixes[0]], 10_000, counts, **settings)
    blocks = list(read_blocks(path, block_counts))
    lost_bytes = sum(block.lost_bytes for block in blocks if isinstance(block, Damage))
    assert counts.lost_bytes == block_counts.lost_bytes == lost_bytes
    assert counts.byte_count == lost_bytes + sum(len(p) for p in blocks if isinstance(p, bytes))
    assert counts.byte_count == counts.skipped_bytes + sum(r.raw_bytes for r in records)
    assert counts.record_count == len(records)
    return records, counts


# After the damage --------------------------------------------------------------------------------


@all_codecs
def test_reading_continues_at_the_next_member(tmp_path, ending):
    """The damage is at the beginning, in the middle or at the end of the first of two members."""
    rows = make_json_lines(range(100))
    first, second = (COMPRESS_BY_ENDING[ending](b"".join(half)) for half in (rows[:50], rows[50:]))
    for position in (0, 1, 3, len(first) // 2, len(first) - 10, len(first) - 4):
        damaged = bytearray(first)
        damaged[position] ^= 0xFF
        records, _ = read_bytes_checked(tmp_path / f"a.jsonl{ending}", bytes(damaged) + second)
        assert get_numbers(records)[-50:] == list(range(50, 100))
        assert [r.error for r in records if r.error] == [DAMAGED_DATA]


@all_codecs
def test_damage_is_one_record_and_line_numbers_continue(tmp_path, ending):
    """A member that is damaged in its first byte is lost completely."""
    rows = make_json_lines(range(6))
    first_member, damaged_member, last_member = (
        COMPRESS_BY_ENDING[ending](b"".join(rows[i : i + 2])) for i in (0, 2, 4)
    )
    damaged_member = b"x" + damaged_member[1:]
    records, counts = read_bytes_checked(
        tmp_path / f"a.jsonl{ending}", first_member + damaged_member + last_member
    )
    assert [(r.location, r.error) for r in records] == [
        ("line 1", ""),
        ("line 2", ""),
        ("line 3", DAMAGED_DATA),
        ("line 4", ""),
        ("line 5", ""),
    ]
    assert (records[2].raw_bytes, counts.lost_bytes) == (len(damaged_member), len(damaged_member))
    assert get_numbers(records) == [0, 1, 4, 5]


@pytest.mark.parametrize("ending", [".gz", ".zst", ".xz"])  # bzip2 has only one block here
def test_a_member_after_damage_may_be_truncated(tmp_path, ending):
    """Its data before the truncation are read; two errors are two records."""
    rows = make_json_lines(range(9000))
    damaged_member = b"x" + COMPRESS_BY_ENDING[ending](rows[0])[1:]
    last_member = COMPRESS_BY_ENDING[ending](b"".join(rows[1:]))
    for cut in (3000, len(last_member) - 3000):
        records, _ = read_bytes_checked(
            tmp_path / f"a.jsonl{ending}", damaged_member + last_member[:cut]
        )
        document_numbers = get_numbers(records)
        assert document_numbers == list(range(1, 1 + len(document_numbers)))
        assert len(document_numbers) > 9000 // 2 or cut == 3000
        errors = [r.error for r in records if r.error]
        assert errors == ([DAMAGED_DATA, TRUNCATED_DATA] if document_numbers else [DAMAGED_DATA])


@all_codecs
def test_several_damaged_members_affect_no_others(tmp_path, ending):
    rows = make_json_lines(range(400))
    packed = [
        bytearray(COMPRESS_BY_ENDING[ending](b"".join(rows[i : i + 10]))) for i in range(0, 400, 10)
    ]
    for index in (0, 3, 4, 5, 20, 39):
        packed[index][len(packed[index]) // 2] ^= 0x55
    records, _ = read_bytes_checked(tmp_path / f"a.jsonl{ending}", b"".join(packed))
    document_numbers = get_numbers(records)
    undamaged_numbers = [n for n in range(400) if n // 10 not in (0, 3, 4, 5, 20, 39)]
    assert [n for n in document_numbers if n in set(undamaged_numbers)] == undamaged_numbers
    errors = [r.error for r in records if r.error]
    assert set(errors) == {DAMAGED_DATA} and 4 <= len(errors) <= 6


def test_the_next_member_is_found_if_the_decoder_read_into_it(tmp_path):
    """The damaged size of a raw zstd block makes the block include the start of the next frame."""
    rows = make_json_lines(range(300))
    first, last = compress_zstd(b"".join(rows[:20])), compress_zstd(b"".join(rows[100:]))
    block = b"".join(rows[20:100])
    header = b"\x28\xb5\x2f\xfd\x00\x58"  # a window of 2 MiB, no size, no checksum
    raw, damaged_member = (
        header + (size << 3).to_bytes(3, "little") + block + b"\x01\0\0"
        for size in (len(block), len(block) + 6000)
    )
    assert get_numbers(read_bytes_checked(tmp_path / "a.jsonl.zst", first + raw + last)[0]) == list(
        range(300)
    )
    assert len(last) > 8000
    records, _ = read_bytes_checked(tmp_path / "b.jsonl.zst", first + damaged_member + last)
    assert get_numbers(records) == list(range(300))
    errors = [r.error for r in records if r.error]  # include the next frame, read as text
    assert errors[-1] == DAMAGED_DATA and errors.count(DAMAGED_DATA) == 1


def test_a_skippable_frame_with_a_damaged_size_does_not_swallow_the_rest(tmp_path):
    rows = make_json_lines(range(4))
    frames = [compress_zstd(row) for row in rows]
    good_data = (
        frames[0]
        + make_skippable_frame(b"index", 3)
        + frames[1]
        + make_skippable_frame(b"")
        + frames[2]
        + frames[3]
    )
    records, counts = read_bytes_checked(tmp_path / "a.jsonl.zst", good_data)
    assert (get_numbers(records), counts.lost_bytes, len(records)) == ([0, 1, 2, 3], 0, 4)
    for size in (6, len(frames[1]) + 7, 1 << 31):
        damaged_frame = b"\x53\x2a\x4d\x18" + size.to_bytes(4, "little") + b"index"
        records, _ = read_bytes_checked(
            tmp_path / "b.jsonl.zst",
            good_data.replace(make_skippable_frame(b"index", 3), damaged_frame),
        )
        assert get_numbers(records) == [0, 1, 2, 3]
        assert [(r.error, r.raw_bytes) for r in records if r.error] == [
            (DAMAGED_DATA, len(damaged_frame))
        ]
    # After damage, reading may continue at a skippable frame.
    records, counts = read_bytes_checked(
        tmp_path / "c.jsonl.zst", b"junk" + make_skippable_frame(b"index") + frames[1]
    )
    assert (get_numbers(records), counts.lost_bytes) == ([1], 4)


def test_false_member_starts_give_no_text(tmp_path):
    """Magic bytes with a valid header, but no valid data after it."""
    rows = make_json_lines(range(2))
    lures = {
        ".gz": [b"\x1f\x8b\x08" + bytes([flag]) + bytes(6) for flag in (0, 1, 2, 4, 8, 16, 255)],
        ".zst": [b"\x28\xb5\x2f\xfd" + bytes([d, 88]) for d in (0, 4, 32, 36)],
    }
    for ending, codec_lures in lures.items():
        for lure in [*codec_lures, b"".join(codec_lures)]:
            for junk in (b"\xff" * 50, b"words and words " * 9, random.Random(1).randbytes(9000)):
                data = (
                    COMPRESS_BY_ENDING[ending](rows[0])
                    + lure
                    + junk
                    + COMPRESS_BY_ENDING[ending](rows[1])
                )
                records, counts = read_bytes_checked(tmp_path / f"a.jsonl{ending}", data)
                assert [r.location for r in records if r.error] == ["line 2"]
                assert get_numbers(records) == [0, 1]
                assert counts.lost_bytes == len(lure + junk)


def test_a_false_member_start_whose_name_ends_at_the_next_member(tmp_path):
    """Its first block decompresses without error for any time in the true header."""
    rows = make_json_lines(range(2))
    lure = b"\x1f\x8b\x08\x08" + b"n" * (compressed_members.COMPRESSED_BLOCK_BYTES - 12)
    for timestamp in range(300):
        data = lure + gzip.compress(rows[1], mtime=timestamp)
        records, counts = read_bytes_checked(
            tmp_path / "a.jsonl.gz", gzip.compress(rows[0]) + b"x" + data
        )
        assert (get_numbers(records), counts.lost_bytes, timestamp) == (
            [0, 1],
            1 + len(lure),
            timestamp,
        )


@all_codecs
def test_the_rest_of_a_lost_line_is_not_a_document(tmp_path, ending):
    """Members are cut anywhere; the rest of a line whose beginning is lost belongs to the error."""
    rows = make_json_lines(range(600))
    text = b"".join(rows)
    pieces = [COMPRESS_BY_ENDING[ending](text[i : i + 1000]) for i in range(0, len(text), 1000)]
    pieces[20] = b"x" + pieces[20][1:]
    records, _ = read_bytes_checked(tmp_path / f"a.jsonl{ending}", b"".join(pieces))
    ends = [text.index(row) + len(row) for row in rows]
    assert get_numbers(records) == [
        n for n, end in enumerate(ends) if end <= 20_000 or (end - len(rows[n]) >= 21_000)
    ]
    assert [r.error for r in records if r.error] == [DAMAGED_DATA]
    pairs = [rows[i] + rows[i + 1] for i in range(0, 600, 2)]  # passages of two lines
    text = b"\n".join(pairs)
    pieces = [COMPRESS_BY_ENDING[ending](text[i : i + 1000]) for i in range(0, len(text), 1000)]
    pieces[20] = b"x" + pieces[20][1:]
    records, _ = read_bytes_checked(
        tmp_path / f"a.txt{ending}", b"".join(pieces), document_boundary="blank_lines"
    )
    assert {r.text.encode() + b"\n" for r in records if not r.error} < set(pairs)
    assert [r.error for r in records if r.error] == [DAMAGED_DATA]


@all_codecs
def test_other_readers_continue_after_damage(tmp_path, ending):
    pack = COMPRESS_BY_ENDING[ending]
    damaged_member = b"x" + pack(b"lost")[1:]
    data = (
        pack(b'id,text\n1,one\n2,"two\nlines"\n')
        + damaged_member
        + pack(b"4,four\n")
        + damaged_member
    )
    records, _ = read_bytes_checked(tmp_path / f"a.csv{ending}", data)
    assert [(r.location, r.text or r.error) for r in records] == [
        ("line 2", "one"),
        ("line 3", "two\nlines"),
        ("line 5", DAMAGED_DATA),
        ("line 6", "four"),
        ("line 7", DAMAGED_DATA),
    ]
    data = pack(b"id\ttext\n1\tone\n") + damaged_member + pack(b'4\t"four\n') + damaged_member
    records, _ = read_bytes_checked(tmp_path / f"a.tsv{ending}", data)
    assert [(r.location, r.text or r.error) for r in records] == [
        ("line 2", "one"),
        ("line 3", DAMAGED_DATA),
        ("line 4", '"four'),
        ("line 5", DAMAGED_DATA),
    ]
    data = pack(b"one\n\ntwo\n") + damaged_member + pack(b"three\nmore\n\nfour")
    records, _ = read_bytes_checked(
        tmp_path / f"a.txt{ending}", data, document_boundary="blank_lines"
    )
    assert [r.text or r.error for r in records] == ["one", DAMAGED_DATA, "three\nmore", "four"]
    records, counts = read_bytes_checked(tmp_path / f"b.txt{ending}", data)
    assert [(r.location, r.error) for r in records] == [("whole file", DAMAGED_DATA)]
    assert counts.byte_count == 9 + len(damaged_member) + 16


# Odd files ---------------------------------------------------------------------------------------


@all_codecs
def test_empty_members_and_padding_are_no_damage(tmp_path, ending):
    pack, rows = COMPRESS_BY_ENDING[ending], make_json_lines(range(3))
    data = pack(b"") + pack(rows[0]) + pack(b"") * 3 + bytes(5000) + pack(rows[1]) + pack(b"")
    data += pack(rows[2]) + bytes(8000)
    records, counts = read_bytes_checked(tmp_path / f"a.jsonl{ending}", data)
    assert (get_numbers(records), len(records), counts.lost_bytes) == ([0, 1, 2], 3, 0)
    records, _ = read_bytes_checked(tmp_path / f"b.jsonl{ending}", pack(b""))
    assert [r.error for r in records] == ["the file is empty"]


@all_codecs
@pytest.mark.parametrize("distance", [-1, 0, 1])
def test_members_may_end_at_the_edge_of_a_block(tmp_path, ending, distance):
    """Also if the next member is damaged, or the file ends there."""
    pack, rows = COMPRESS_BY_ENDING[ending], make_json_lines(range(40), size=120)
    first = pack(b"".join(rows[:20]))
    gap = bytes(compressed_members.COMPRESSED_BLOCK_BYTES + distance - len(first))
    assert len(gap) > 0
    for data, expected in (
        (first + gap, range(20)),
        (gap + first + pack(b"".join(rows[20:])), range(40)),
        (first + gap + pack(b"".join(rows[20:])), range(40)),
    ):
        records, counts = read_bytes_checked(tmp_path / f"a.jsonl{ending}", data)
        assert (get_numbers(records), counts.lost_bytes) == (list(expected), 0)
    data = gap + first + b"x" * 4096 + pack(b"".join(rows[20:]))
    records, counts = read_bytes_checked(tmp_path / f"a.jsonl{ending}", data)
    assert (get_numbers(records), counts.lost_bytes) == (list(range(40)), 4096)


@all_codecs
def test_plain_text_under_a_compressed_name_is_read(tmp_path, ending):
    data = b"".join(make_json_lines(range(500)))
    records, counts = read_bytes_checked(tmp_path / f"a.jsonl{ending}", data)
    assert (get_numbers(records), counts.lost_bytes) == (list(range(500)), 0)
    assert counts.storage_format == f"no compression despite the extension {ending}"


@all_codecs
def test_damaged_bytes_under_a_compressed_name_are_one_error(tmp_path, ending):
    for data in (bytes(range(1, 256)), b"\xff\xf0" * 9, b"a" * 500 + b"\1"):
        records, counts = read_bytes_checked(tmp_path / f"a.jsonl{ending}", data)
        assert [(r.error, r.raw_bytes) for r in records] == [(DAMAGED_DATA, len(data))]
        assert counts.lost_bytes == len(data) and counts.storage_format == ""


@pytest.mark.parametrize(
    "name", ["a.jsonl.gz", "a.jsonl.ZST", "a.jsonl.zstd", "a.jsonl.bz2", "a.jsonl"]
)
@all_codecs
def test_the_content_decides_about_the_compression(tmp_path, name, ending):
    data = COMPRESS_BY_ENDING[ending](b"".join(make_json_lines(range(20))))
    records, counts = read_bytes_checked(tmp_path / name, data)
    assert (get_numbers(records), counts.lost_bytes) == (list(range(20)), 0)
    named_ending = Path(name).suffix.lower().replace(".zstd", ".zst").replace(".jsonl", "")
    expected = f"compression {ending} despite the extension {Path(name).suffix.lower()}"
    assert counts.storage_format == (expected if named_ending not in ("", ending) else "")


def test_the_rest_of_a_truncated_stream_is_counted_in_compressed_bytes(tmp_path):
    """A zstd block gives output only if it is complete."""
    random_bytes = random.Random(1).randbytes(300_000).replace(b"\n", b" ")
    packed = compress_zstd(random_bytes)
    records, counts = read_bytes_checked(tmp_path / "a.jsonl.zst", packed[:3])
    assert [(r.error, r.raw_bytes) for r in records] == [(TRUNCATED_DATA, 3)]
    text = json.dumps({"text": random_bytes.hex()}).encode()
    packed = compress_zstd(text)
    records, counts = read_bytes_checked(tmp_path / "b.jsonl.zst", packed[:20_000])
    assert [r.error for r in records] == [TRUNCATED_DATA]
    output = zstandard.ZstdDecompressor().decompressobj().decompress(packed[:20_000])
    assert output == b"" and counts.byte_count == counts.lost_bytes == 20_000


def test_a_window_of_two_gigabytes_is_read(tmp_path):
    text = b"".join(make_json_lines(range(3)))
    parameters = zstandard.ZstdCompressionParameters(window_log=31, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = packer.compress(text) + packer.flush()
    assert zstandard.get_frame_parameters(data).window_size == 1 << 31
    records, counts = read_bytes_checked(tmp_path / "a.jsonl.zst", data)
    assert (get_numbers(records), counts.lost_bytes) == ([0, 1, 2], 0)


@all_codecs
def test_the_accounts_of_damaged_files_balance(tmp_path, ending, session):
    """The input bytes of the stage are decompressed bytes plus lost bytes."""
    rows, folder = make_json_lines(range(60)), tmp_path / "in"
    folder.mkdir()
    packed = [COMPRESS_BY_ENDING[ending](b"".join(rows[i : i + 20])) for i in (0, 20, 40)]
    packed[1] = b"x" + packed[1][1:]
    (folder / f"a.jsonl{ending}").write_bytes(b"".join(packed))
    (folder / f"b.jsonl{ending}").write_bytes(packed[0] + packed[1][:30])
    artifact = ingest(IngestConfig(sources=[{"kind": "jsonl", "name": "s", "path": str(folder)}]))
    accounts_by_unit = {b["unit"]: b for b in artifact["accounts"].read().to_pylist()}
    kept_bytes = len(b"".join(rows[:20] * 2 + rows[40:]))
    lost = [len(packed[1]), 30]
    assert (accounts_by_unit["bytes"]["input"], accounts_by_unit["bytes"]["kept"]) == (
        kept_bytes + sum(lost),
        kept_bytes,
    )
    assert (
        accounts_by_unit["rows"]["input"],
        accounts_by_unit["rows"]["kept"],
        accounts_by_unit["rows"]["quarantined"],
    ) == (62, 60, 2)
    quarantine_rows = artifact["quarantine"].read().to_pylist()
    assert [(r["location"], r["error"], r["raw_bytes"]) for r in quarantine_rows] == [
        ("line 21", DAMAGED_DATA, lost[0]),
        ("line 21", DAMAGED_DATA, lost[1]),
    ]


# Time and memory ---------------------------------------------------------------------------------


def make_overlapping_members():
    """Return gzip members whose stored blocks hold the starts of all later members."""
    head = b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\x00" + b"\xed\xfd\x12\x02"  # 65,005 bytes stored
    return head * 70_000


MAGIC_FILES = {
    "gzip.gz": b"\x1f\x8b\x08\0" * 250_000,
    "names.gz": b"\x1f\x8b\x08\x08" * 250_000,
    "fields.gz": b"\x1f\x8b\x08\x04" * 250_000,
    "empty.gz": (gzip.compress(b"") + b"x") * 20_000,
    "overlapping.gz": make_overlapping_members(),
    "zstd.zst": b"\x28\xb5\x2f\xfd" * 250_000,
    "skippable.zst": b"\x50\x2a\x4d\x18" * 250_000,
    "chain.zst": make_skippable_frame(b"", 1) * 100_000 + b"x",
    "blocks.zst": b"\x28\xb5\x2f\xfd\x00\x58\x04\x00\x10" * 100_000,  # each claims 128 KiB
    "raw.zst": b"\x28\xb5\x2f\xfd\x00\x58\x00\x00\x10" * 100_000,
}


@pytest.mark.parametrize("name", MAGIC_FILES)
def test_a_file_of_magic_bytes_takes_linear_time(tmp_path, name):
    """Twice the bytes take at most about twice the time."""
    path, seconds = tmp_path / name, []
    for divisor in (2, 1):
        path.write_bytes(MAGIC_FILES[name][: len(MAGIC_FILES[name]) // divisor])
        start = time.process_time()
        for _ in read_blocks(path, ReadCounts()):
            pass
        seconds.append(time.process_time() - start)
    assert seconds[1] < 20
    assert seconds[1] < 4 * seconds[0] + 1


@pytest.mark.parametrize("name", ["gzip.gz", "names.gz", "zstd.zst", "skippable.zst"])
def test_a_member_after_magic_bytes_is_found(tmp_path, name):
    path = tmp_path / f"a.jsonl.{name.split('.')[1]}"
    data = MAGIC_FILES[name][:400_000]
    row = make_json_lines([7])[0]
    records, counts = read_bytes_checked(
        path, COMPRESS_BY_ENDING[path.suffix](row) + data + COMPRESS_BY_ENDING[path.suffix](row)
    )
    assert (get_numbers(records), counts.lost_bytes) == ([7, 7], len(data))


@all_codecs
def test_the_search_keeps_no_more_than_a_block_in_memory(tmp_path, ending):
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(random.Random(1).randbytes(1 << 20) * 30 + COMPRESS_BY_ENDING[ending](b"x\n"))
    tracemalloc.start()
    lines = list(read_lines_marking_damage(path, 10_000, ReadCounts()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [line.data for line in lines] == [b"", b"x"]
    assert peak < 1_000_000


# Any damage --------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(data=st.data(), ending=st.sampled_from([*COMPRESS_BY_ENDING]), block=st.integers(1, 5000))
def test_every_document_of_an_undamaged_member_is_read_once(tmp_path_factory, data, ending, block):
    """For any split into members, any block size and any damaged range within one member."""
    counts = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=8))
    size = data.draw(st.sampled_from([2, 20, 200]))
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    groups = [range(e - n, e) for n, e in zip(counts, ends, strict=True)]
    packed = [
        COMPRESS_BY_ENDING[ending](b"".join(make_json_lines(group, size))) for group in groups
    ]
    damaged_index = data.draw(st.integers(0, len(counts) - 1))
    start = data.draw(st.integers(0, len(packed[damaged_index]) - 1))
    end = data.draw(st.integers(start + 1, min(start + 200, len(packed[damaged_index]))))
    noise = random.Random(data.draw(st.integers(0, 1 << 30))).randbytes(end - start)
    packed[damaged_index] = packed[damaged_index][:start] + noise + packed[damaged_index][end:]
    path = tmp_path_factory.mktemp("damage") / f"a.jsonl{ending}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compressed_members, "COMPRESSED_BLOCK_BYTES", block)
        records, _ = read_bytes_checked(path, b"".join(packed))
    rows = [make_json_lines(g, size) for index, g in enumerate(groups) if index != damaged_index]
    expected = [json.loads(row)["text"] for group in rows for row in group]
    # The damaged member may give any text before the damage is noticed.
    assert [r.text for r in records if r.text in set(expected)] == expected
