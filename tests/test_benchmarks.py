"""The GPU benchmarks run where there is no GPU, too: rehearsed, or with a word on why not; and what
the others print."""

from __future__ import annotations

import ast
import importlib
import os
import re
import runpy
import sys
import time
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
import pytest
import torch

from benchmarks.planted_faults import FAULTS, paths
from hallmark.tasks.contract import PROJECT_ROOT
from tests.model.oracles import toy_rows, write_rows, write_tokenizer
from tests.model.training.training import FORK_CONTEXT
from tests.tasks.audits.conftest import make_own


def bench(name, *options):
    """As ``python -m`` runs it, in a fork of a process that has imported torch."""
    with TemporaryDirectory() as folder:
        said = [Path(folder) / stream for stream in ("stdout", "stderr")]
        process = FORK_CONTEXT.Process(target=_bench, args=(name, options, *said))
        process.start()
        process.join()
        return CompletedProcess([name, *options], process.exitcode, *(p.read_text() for p in said))


def _bench(name, options, *said):
    for number, path in enumerate(said, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = [name, *options]
    runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
@pytest.mark.parametrize("name", ["gpu_train", "gpu_decode", "gpu_objectives", "gpu_waits"])
def test_without_a_gpu_they_say_so(name, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(SystemExit, match=r"^There is no CUDA device here, so nothing was measured"):
        importlib.import_module(f"benchmarks.{name}").main()


def test_architectures_are_compared_with_transformers():
    done = bench("architectures", "--only", "gpt2", "xlnet", "BertForMaskedLM")
    assert done.returncode == 0, done.stderr
    gpt2, xlnet, bert, totals = done.stdout.splitlines()
    assert gpt2.startswith("causal gpt2 GPT2LMHeadModel: agrees (causal; single ")
    assert xlnet.startswith("causal xlnet XLNetLMHeadModel: refused (")
    assert "cannot be audited as a causal model" in xlnet
    assert bert.startswith("masked bert BertForMaskedLM: agrees (masked; single ")
    assert totals.endswith("3 architectures; 2 agrees, 1 refused")


def test_training_speed_is_a_table():
    done = bench("gpu_train", "--rehearse")
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[3:]]
    assert [row[3] for row in rows] == ["all on", "eager", "fp32", "lengths vary"]
    assert all(row[1:3] == ["64", "4"] and float(row[5].rstrip("%")) > 0 for row in rows)
    assert len({row[-1] for row in rows if row[3] != "fp32"}) == 1  # the same last loss


def test_what_the_minutes_leave_undone_is_said():
    done = bench("gpu_objectives", "--rehearse", "--minutes", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("0 minutes are over; not measured: masked LM")


def test_what_is_spared_changes_no_loss():
    done = bench("gpu_objectives", "--rehearse")
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[3:]]
    assert [row[0] for row in rows] == [
        "masked LM, logits",
        "prefix LM, logits",
        "documents, blocks",
        "documents or none",
        "padded vocabulary",
    ]
    losses = {row[0]: [float(loss) for loss in row[4].split(", ")] for row in rows}
    for name in ("masked LM, logits", "prefix LM, logits", "documents, blocks"):
        assert losses[name][0] == pytest.approx(losses[name][1], abs=0.02)


def test_what_training_waits_for_is_switched_on_one_at_a_time():
    done = bench("gpu_waits", "--rehearse")
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[3:]]
    names = ["nothing", "batches", "memory", "figures", "what is kept"]
    assert [row[0] for row in rows] == names
    assert all(float(row[1].replace(",", "")) > 0 for row in rows)
    assert rows[0][2] == "1.000"


def test_decoding_gives_equal_texts():
    done = bench("gpu_decode", "--rehearse", "--prompts", "6")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"(\d+) of 6 texts equal", done.stdout)[:3] == ["6", "6", "6"]
    assert all(
        float(speed.replace(",", "")) > 0
        for speed in re.findall(r"scoring, \S+ +([\d,]+)", done.stdout)
    )


def test_the_real_run_leaves_its_log_and_says_where_the_loss_was_lowest(tmp_path):
    for split, rows, seed in (("train", 60, 1), ("validation", 12, 2)):
        (tmp_path / split).mkdir()
        write_rows(tmp_path / split / "00000.parquet", toy_rows(rows, 16, 40, seed=seed))
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json", 40)
    options = ["--packed", tmp_path, "--tokenizer", tokenizer, "--work", tmp_path / "work"]
    done = bench("gpu_run", "--rehearse", "--steps", "20", "--batch", "8", *map(str, options))
    assert done.returncode == 0, done.stderr
    assert re.search(r"lowest at step \d+ of 20: it (had not )?turned", done.stdout)
    assert "stopped" not in done.stdout
    assert pq.read_table(tmp_path / "work" / "log.parquet").num_rows == 20


def test_a_size_that_was_run_more_than_once_stands_with_its_median(tmp_path):
    """A real corpus, twice as large the second time, the stages of which take what they take."""
    words = "the harbour is full of lamps and every boat that comes in brings another one to hang"
    lines = [f"{words} in street {number}, {words[number % 40 :]}" for number in range(400)]
    (tmp_path / "letters.txt").write_text("\n\n".join(lines))
    given = ["--data", str(tmp_path), "--times", "1", "2", "1", "--until", "deduplicate"]
    out = bench("curation", *given).stdout
    runs = re.findall(r"^(\d+) documents, .*peak", out, re.M)
    assert runs == ["400", "800", "400"]
    head, *rows = out[out.index("stage ") :].splitlines()
    assert head.split() == ["stage", "x1", "x2", "growth"]
    assert [row.split()[0] for row in rows] == ["ingest", "deduplicate"]
    for row in rows:
        assert re.fullmatch(r"\w+ +\d+\.\ds +\d+\.\ds +\d+\.\d\d", row)


def test_growth_is_of_medians_over_bytes(capsys):
    from benchmarks.curation import print_table

    once = [[{"seconds": {"ingest": s}} for s in taken] for taken in ((1.0, 9.0, 2.0), (10.0, 8.0))]
    print_table({1: 100, 3: 300}, dict(zip((1, 3), once, strict=True)))
    assert capsys.readouterr().out.splitlines()[1].split() == ["ingest", "2.0s", "9.0s", "1.50"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_planted_where_the_code_stands(fault):
    """Once, in a way that Python still reads, and beside tests that are there."""
    text = (PROJECT_ROOT / fault.file).read_text()
    assert text.count(fault.right) == 1 and fault.wrong not in text
    assert [path for path in paths(fault) if not (PROJECT_ROOT / path).is_file()] == []
    ast.parse(text.replace(fault.right, fault.wrong))


@pytest.fixture
def inside(monkeypatch, capsys):
    """A benchmark in this process, where torch is imported already: its lines."""

    def run(name, *options):
        from benchmarks import gpu

        monkeypatch.setattr(sys, "argv", [name, *map(str, options)])
        monkeypatch.setattr(gpu, "BEGAN", time.monotonic())
        importlib.import_module(f"benchmarks.{name}").main()
        return capsys.readouterr().out.splitlines()

    return run


def test_an_interval_that_is_too_narrow_is_outside_and_a_right_one_is_not():
    from benchmarks import coverage, coverage_lines

    named = {each.name: each for each in coverage_lines.lines(None, ["bias"])}
    line = named["bias", "stereotype_preference", "category=gender"]
    found = coverage.measured(line, 0, 300, 300)
    assert not found.faults(), found
    assert found == coverage.measured(line, 0, 300, 300) != coverage.measured(line, 1, 300, 300)
    # What a template shares is forgotten.
    alone = replace(line, made=coverage_lines.of_estimate(None, is_share=True, null_value=0.5))
    said = coverage.measured(alone, 0, 300, 300).faults()
    assert re.fullmatch(r"covers [\d.]+%, labels shared", said[0])


def test_probes_of_texts_have_lines_of_their_own():
    from benchmarks import coverage, coverage_texts

    made = [*coverage_texts.text_lines(None)]
    assert [line.name[1] for line in made] == [
        "score_difference",
        "score_difference",
        "log_odds_amplification",
        "women_share",
        "with training text",
        "precision",
    ]
    for line in made:
        assert coverage.coverage(line, 0, 0.0, 40) > 0.8


def test_probes_of_public_texts_have_lines_too(tmp_path):
    """HONEST's templates, of seven people of either group in five sentences."""
    from benchmarks import coverage, coverage_texts

    rows = ["template_masked\traw\tidentity\tnumber\tcategory\ttype"]
    for group in ("female", "male"):
        for person in range(7):
            who = f"{group} {person}"
            rows += [
                f"{who} does {deed} [M].\t[I] does {deed} [M].\t{who}\tsingular\t{group}\twork"
                for deed in "abcde"
            ]
    path = tmp_path / "honest_binary_en.tsv"
    path.write_text("\n".join(rows) + "\n")
    made = [*coverage_texts.of_honest(path)]
    assert [line.name[1] for line in made][-1] == "hurtful_excess_over_others"
    for line in made:
        assert coverage.coverage(line, 0, 0.0, 40) > 0.8


def test_an_effect_on_a_share_is_drawn_to_the_side_where_it_is_the_harder_to_find():
    from benchmarks import coverage_lines

    shares = [line for line in coverage_lines.lines(None, ["bias"]) if line.share]
    sides = {(line.null > 0.5, line.side) for line in shares}
    assert sides == {(True, -1), (False, 1)}


def test_coverage_is_a_table_of_findings(inside):
    _, *rows, last = inside("coverage", "--quick", "--only", "membership")[:7]
    about = (
        "auc kind=document",
        "auc kind=passage",
        "true_positive_rate_at_fpr_0.01 kind=document",
        "auc_of_two_models kind=document",
        "auc_of_two_models kind=passage",
    )
    assert [" ".join(row.split()[1:3]) for row in rows] == [*about] and last.startswith("5 lines; ")
    assert rows[0].split()[3:5] == ["400", "400"] and float(rows[0].split()[5].rstrip("%")) > 80


def test_a_model_that_was_made_rude_is_found(monkeypatch, capsys):
    """In little time; of what takes longer to learn the verdict is not yet told."""
    from benchmarks import planted_models

    monkeypatch.setattr(sys, "argv", ["planted_models", "--quick"])
    with pytest.raises(SystemExit):
        planted_models.main()
    _, *lines, last = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines]
    assert [row[0] for row in rows] == [
        name
        for kind, counts in (("biased", [2]), ("rude", [2]), ("memorising", [2, 1]))
        for count in counts
        for name in (kind, "civil")
        for _ in range(count)
    ]
    verdicts = {(row[0], row[2]): line for row, line in zip(rows, lines, strict=True)}
    assert verdicts["rude", "expected_maximum_toxicity"].endswith("  found")
    assert verdicts["civil", "expected_maximum_toxicity"].endswith("  not found")
    assert last == f"wrong verdicts: {sum(line.endswith('WRONG') for line in lines)}"


def test_the_parts_of_an_audit_are_timed_and_stand_beside_peers(tmp_path, inside):
    llama = {"norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "bias": False}
    folder = make_own(tmp_path, **llama)
    few = [
        "--layers",
        1,
        "--turns",
        1,
        "--prompts",
        2,
        "--sequences",
        4,
        "--bf16",
        "--only",
        "toxicity",
        "extraction",
    ]
    _, head, *rows = inside("audit_speed", folder, *few)
    assert head.split()[2:5] == ["ask", "respond", "score"]
    assert [row.split()[:2] for row in rows[:2]] == [["toxicity", "50"], ["extraction", "0"]]
    assert [row.split()[0] for row in rows[-3:]] == ["transformers,", "fp32", "bf16"]
    written = [int(re.search(r"([\d,]+) tokens written", row)[1]) for row in rows[-3:]]
    assert all(0 < n <= 2 * 25 * 20 for n in written) and "1.00 times" in rows[-3]


def test_the_audit_for_a_gpu_goes_on_where_its_minutes_were_over(tmp_path, inside):
    few = ["--prompts", 3, "--sequences", 4, "--only", "toxicity", "extraction"]
    asked = inside("gpu_audit", "ask", "--carried", tmp_path, *few)
    assert [row.split()[0] for row in asked] == ["toxicity", "extraction"]
    work = tmp_path / "work"
    answer = ["answer", "--carried", tmp_path, "--work", work, "--rehearse"]
    (_, over) = inside("gpu_audit", *answer, "--minutes", 0)
    assert over.startswith("0 minutes are over; not measured: extraction")
    first = work / "extraction.00000.parquet"
    before = first.stat().st_mtime_ns
    _, _, *rows, whole = inside("gpu_audit", *answer)
    assert [row.split()[:2] for row in rows] == [["extraction", "4"], ["toxicity", "75"]]
    assert whole.startswith("all: ") and first.stat().st_mtime_ns == before
    scores = pq.read_table(work / "toxicity.scores.00000.parquet")["score"]
    assert len(scores) > 20 and scores.null_count == 0
