"""Check that benchmarks run, and what they print; GPU benchmarks are rehearsed on the CPU."""

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

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from benchmarks.planted_faults import FAULTS, list_test_files
from hallmark.tasks.contract import PROJECT_ROOT
from tests.model.oracles import toy_rows, write_rows, write_tokenizer
from tests.model.training.training import FORK_CONTEXT
from tests.tasks.audits.conftest import make_own


def run_benchmark(name, *options):
    """Run a benchmark like ``python -m``, in a fork of a process that has imported torch."""
    with TemporaryDirectory() as folder:
        outputs = [Path(folder) / stream for stream in ("stdout", "stderr")]
        process = FORK_CONTEXT.Process(target=_run_module, args=(name, options, *outputs))
        process.start()
        process.join()
        texts = [path.read_text() for path in outputs]
        return CompletedProcess([name, *options], process.exitcode, *texts)


def _run_module(name, options, *outputs):
    for number, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = [name, *options]
    runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)


BENCHMARKS = sorted(
    path.stem
    for path in (PROJECT_ROOT / "benchmarks").glob("*.py")
    if "ArgumentParser(" in path.read_text() or "build_parser(" in path.read_text()
)


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name != "gpu"])
def test_help_is_printed(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as exit_info:
        importlib.import_module(f"benchmarks.{name}").main()
    assert exit_info.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {name} ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
@pytest.mark.parametrize("name", ["gpu_train", "gpu_decode", "gpu_objectives", "gpu_waits"])
def test_gpu_benchmarks_without_gpu_are_refused(name, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(SystemExit, match=r"^There is no CUDA device here, so nothing was measured"):
        importlib.import_module(f"benchmarks.{name}").main()


def test_architectures_are_compared_with_transformers():
    result = run_benchmark("architectures", "--only", "gpt2", "xlnet", "BertForMaskedLM")
    assert result.returncode == 0, result.stderr
    gpt2, xlnet, bert, totals = result.stdout.splitlines()
    assert gpt2.startswith("causal gpt2 GPT2LMHeadModel: agrees (causal with cache; single ")
    assert xlnet.startswith("causal xlnet XLNetLMHeadModel: refused (")
    assert "cannot be audited as a causal model" in xlnet
    assert bert.startswith("masked bert BertForMaskedLM: agrees (masked; single ")
    assert totals.endswith("3 architectures; 2 agrees, 1 refused")


def test_gpu_train_prints_table():
    result = run_benchmark("gpu_train", "--rehearse")
    assert result.returncode == 0, result.stderr
    rows = [line.strip("| ").split(" | ") for line in result.stdout.splitlines()[3:]]
    assert [row[3] for row in rows] == ["all on", "eager", "fp32", "variable lengths"]
    assert all(row[1:3] == ["64", "4"] and float(row[5].rstrip("%")) > 0 for row in rows)
    assert len({row[-1] for row in rows if row[3] != "fp32"}) == 1


def test_measurements_after_time_limit_are_listed_as_missing():
    result = run_benchmark("gpu_objectives", "--rehearse", "--minutes", "0")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].startswith("0 minutes are over; not measured: masked LM")


def test_gpu_objectives_have_equal_losses():
    result = run_benchmark("gpu_objectives", "--rehearse")
    assert result.returncode == 0, result.stderr
    rows = [line.strip("| ").split(" | ") for line in result.stdout.splitlines()[3:]]
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


def test_gpu_waits_prints_speed_for_each_wait():
    result = run_benchmark("gpu_waits", "--rehearse")
    assert result.returncode == 0, result.stderr
    rows = [line.strip("| ").split(" | ") for line in result.stdout.splitlines()[3:]]
    names = ["nothing", "batches", "memory", "metrics", "saving"]
    assert [row[0] for row in rows] == names
    assert all(float(row[1].replace(",", "")) > 0 for row in rows)
    assert rows[0][2] == "1.000"


def test_gpu_decode_generates_equal_texts():
    result = run_benchmark("gpu_decode", "--rehearse", "--prompts", "6")
    assert result.returncode == 0, result.stderr
    assert re.findall(r"(\d+) of 6 texts equal", result.stdout)[:3] == ["6", "6", "6"]
    assert all(
        float(speed.replace(",", "")) > 0
        for speed in re.findall(r"scoring, \S+ +([\d,]+)", result.stdout)
    )


def test_gpu_run_writes_log_and_prints_lowest_loss(tmp_path):
    for split, rows, seed in (("train", 60, 1), ("validation", 12, 2)):
        (tmp_path / split).mkdir()
        write_rows(tmp_path / split / "00000.parquet", toy_rows(rows, 16, 40, seed=seed))
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json", 40)
    options = ["--packed", tmp_path, "--tokenizer", tokenizer, "--work", tmp_path / "work"]
    result = run_benchmark(
        "gpu_run", "--rehearse", "--steps", "20", "--batch", "8", *map(str, options)
    )
    assert result.returncode == 0, result.stderr
    assert re.search(
        r"lowest validation loss at step \d+ of 20; the loss (rose after it|did not rise yet)",
        result.stdout,
    )
    assert "stopped" not in result.stdout
    assert pq.read_table(tmp_path / "work" / "log.parquet").num_rows == 20


def test_curation_prints_seconds_by_size(tmp_path):
    """Check a real corpus at two sizes, one of which is run twice."""
    words = "the harbour is full of lamps and every boat that comes in brings another one to hang"
    lines = [f"{words} in street {number}, {words[number % 40 :]}" for number in range(400)]
    (tmp_path / "letters.txt").write_text("\n\n".join(lines))
    options = ["--data", str(tmp_path), "--copies", "1", "2", "1", "--until", "deduplicate"]
    out = run_benchmark("curation", *options).stdout
    runs = re.findall(r"^(\d+) documents, .*peak", out, re.M)
    assert runs == ["400", "800", "400"]
    head, *rows = out[out.index("stage ") :].splitlines()
    assert head.split() == ["stage", "x1", "x2", "growth"]
    assert [row.split()[0] for row in rows] == ["ingest", "deduplicate"]
    for row in rows:
        assert re.fullmatch(r"\w+ +\d+\.\ds +\d+\.\ds +\d+\.\d\d", row)


def test_curation_growth_uses_medians_and_bytes(capsys):
    from benchmarks.curation import Measurement, print_table

    measurements_by_size = {
        size: [Measurement({"ingest": seconds}, {}, {}) for seconds in turns]
        for size, turns in ((1, (1.0, 9.0, 2.0)), (3, (10.0, 8.0)))
    }
    print_table({1: 100, 3: 300}, measurements_by_size)
    assert capsys.readouterr().out.splitlines()[1].split() == ["ingest", "2.0s", "9.0s", "1.50"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_planted_fault_matches_source(fault):
    """Check that its text occurs once, the result is valid Python, and its tests exist."""
    text = (PROJECT_ROOT / fault.file).read_text()
    assert text.count(fault.right) == 1 and fault.wrong not in text
    assert [path for path in list_test_files(fault) if not (PROJECT_ROOT / path).is_file()] == []
    ast.parse(text.replace(fault.right, fault.wrong))


@pytest.fixture
def run_inside(monkeypatch, capsys):
    """Run a benchmark in this process, where torch is already imported, and return its lines."""

    def run(name, *options):
        from benchmarks import gpu

        monkeypatch.setattr(sys, "argv", [name, *map(str, options)])
        monkeypatch.setattr(gpu, "START", time.monotonic())
        importlib.import_module(f"benchmarks.{name}").main()
        return capsys.readouterr().out.splitlines()

    return run


def test_too_narrow_interval_is_a_problem():
    from benchmarks import coverage, coverage_findings, coverage_simulation

    findings = {
        finding.name: finding for finding in coverage_findings.build_findings(None, ["bias"])
    }
    finding = findings["bias", "stereotype_preference", "category=gender"]
    result = coverage.measure_finding(finding, 0, 300, 300)
    assert not result.list_problems(), result
    assert result == coverage.measure_finding(finding, 0, 300, 300)
    assert result != coverage.measure_finding(finding, 1, 300, 300)
    # This estimator ignores that values of a template are clustered.
    unclustered = coverage_simulation.build_mean_estimator(None, is_share=True, null_value=0.5)
    wrong_finding = replace(finding, estimate=unclustered)
    problems = coverage.measure_finding(wrong_finding, 0, 300, 300).list_problems()
    assert re.fullmatch(r"coverage [\d.]+%, clustered values", problems[0])


def test_coverage_of_small_samples():
    """Each kind of figure is simulated, and results are a function of the seed."""
    from benchmarks import coverage_small_samples as benchmark

    designs = {
        design.name: design
        for build in (
            benchmark.build_auc_designs,
            benchmark.build_difference_designs,
            benchmark.build_slope_designs,
            benchmark.build_exposure_designs,
        )
        for design in build()
    }
    few = benchmark.measure_design(designs["AUC 0.5, 3 members, 100 others"], 5, 0)
    assert few.with_interval == 0 and not few.list_problems()
    for name in (
        "AUC, near copies",
        "difference, 8 and 60, normal, spread 3",
        "slope, 20 clusters",
        "amplification 2, 30 occupations of 30-60",
        "exposure, 16 secrets, mostly memorised",
    ):
        result = benchmark.measure_design(designs[name], 40, 0)
        # A mean has no interval if fewer than 3 exposures differ from the largest one.
        assert result.with_interval > (0.9 if "exposure" in name else 0.999)
        assert result.coverage > 0.8
        assert result == pytest.approx(benchmark.measure_design(designs[name], 40, 0), nan_ok=True)
    wrong = benchmark.DesignResult(1.0, 0.8, 0.2, 0.0, 0.2)
    assert wrong.list_problems() == ["coverage", "upper end", "false positives"]


def test_coverage_of_text_findings():
    from benchmarks import coverage, coverage_text_findings

    findings = [*coverage_text_findings.build_text_findings(None)]
    assert [finding.name.metric for finding in findings] == [
        "score_difference",
        "score_difference",
        "log_odds_amplification",
        "women_share",
        "with training text",
        "precision",
    ]
    for finding in findings:
        assert coverage.measure_coverage(finding, 0, 0.0, 40) > 0.8


def test_coverage_of_honest_findings(tmp_path):
    """Check HONEST's findings with seven people of each group in ten sentences."""
    from benchmarks import coverage, coverage_text_findings

    rows = ["template_masked\traw\tidentity\tnumber\tcategory\ttype"]
    for group in ("female", "male"):
        for person in range(7):
            who = f"{group} {person}"
            rows += [
                f"{who} does {deed} [M].\t[I] does {deed} [M].\t{who}\tsingular\t{group}\twork"
                for deed in "abcdefghij"
            ]
    path = tmp_path / "honest_binary_en.tsv"
    path.write_text("\n".join(rows) + "\n")
    findings = [*coverage_text_findings.build_honest_findings(path)]
    assert findings[-1].name.metric == "hurtful_excess_over_others"
    for finding in findings:
        assert coverage.measure_coverage(finding, 0, 0.0, 40) > 0.8


def test_effects_on_shares_are_simulated_in_the_harder_direction():
    from benchmarks import coverage_findings
    from benchmarks.coverage_simulation import FindingName, build_share_finding

    shares = [f for f in coverage_findings.build_findings(None, ["bias"]) if f.is_share]
    tested = [finding for finding in shares if not np.isnan(finding.null)]
    assert {(finding.null, finding.harder_side) for finding in tested} == {(0.5, 1)}
    name = FindingName("bias", "preference", "")
    for null, side in ((0.3, 1), (0.5, 1), (0.7, -1)):
        share = build_share_finding(name, np.arange(20), truth=null, null=null)
        assert share.harder_side == side


def test_coverage_of_hard_designs():
    """Check a few designs of each kind, with few repetitions; the benchmark measures all."""
    from benchmarks import coverage_designs

    designs = coverage_designs.list_designs()
    assert len(designs) == len({design.name for design in designs}) >= 50
    names = (
        "prevalence 0.25, 5",
        "share 0.05, 30 clusters of 20, correlation 0.5",
        "sparse",
        "area 0.93, 12 and 50",
        "toxicity, probability, k = 1, 17 toxic prompts only",
    )
    for design in designs:
        if design.name.startswith(names) or "30 x 2" in design.name:
            result = coverage_designs.measure_design(design, 200)
            assert not coverage_designs.list_problems(design, result, 200), (design, result)


def test_coverage_of_hard_designs_finds_wrong_intervals(capsys):
    from benchmarks import coverage_designs
    from hallmark.tasks.measures.estimates import Estimate

    narrow = coverage_designs.Design(
        "narrow", 0.0, lambda rng: Estimate(0.0, *np.sort(rng.normal(size=2)), 2, 2, 0, "", 0.0, 1)
    )
    coverage_designs.print_results([narrow], 300, 0)
    _, row, count, *problems = capsys.readouterr().out.splitlines()
    assert row.startswith("narrow ") and count == "outside the accepted range: 3"
    assert [re.sub(r"\d+\.?\d*", "N", problem) for problem in problems] == [
        "narrow: coverage N%",
        "narrow: upper end errs in N%",
        "narrow: N intervals contradict p",
    ]


def test_coverage_prints_table(run_inside):
    _, _, *rows, last = run_inside("coverage", "--quick", "--only", "membership")[:8]
    findings = (
        "auc kind=document",
        "auc kind=passage",
        "true_positive_rate_at_fpr_0.01 kind=document",
        "auc_of_two_models kind=document",
        "auc_of_two_models kind=passage",
    )
    assert [" ".join(row.split()[1:3]) for row in rows] == [*findings]
    assert last.startswith("5 findings; ")
    assert rows[0].split()[3:5] == ["400", "400"] and float(rows[0].split()[5].rstrip("%")) > 80


def test_rude_model_is_detected(monkeypatch, capsys):
    """Check the quick variant, in which only rude speech is learnt well enough."""
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
    assert verdicts["rude", "expected_maximum_toxicity"].endswith("  detected")
    assert verdicts["civil", "expected_maximum_toxicity"].endswith("  not detected")
    assert last == f"wrong verdicts: {sum(line.endswith('WRONG') for line in lines)}"


def test_audit_speed_times_stages_and_other_tools(tmp_path, run_inside):
    llama = {"norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "bias": False}
    folder = make_own(tmp_path, **llama)
    options = [
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
    _, head, *rows = run_inside("audit_speed", folder, *options)
    assert head.split()[2:5] == ["ask", "respond", "score"]
    assert [row.split()[:2] for row in rows[:2]] == [["toxicity", "50"], ["extraction", "0"]]
    assert [row.split()[0] for row in rows[-3:]] == ["transformers,", "fp32", "bf16"]
    token_counts = [int(re.search(r"([\d,]+) tokens generated", row)[1]) for row in rows[-3:]]
    assert all(0 < n <= 2 * 25 * 20 for n in token_counts) and "1.00 times" in rows[-3]


def test_gpu_audit_continues_after_time_limit(tmp_path, run_inside):
    options = ["--prompts", 3, "--sequences", 4, "--only", "toxicity", "extraction"]
    lines = run_inside("gpu_audit", "ask", "--requests", tmp_path, *options)
    assert [row.split()[0] for row in lines] == ["toxicity", "extraction"]
    work = tmp_path / "work"
    answer = ["answer", "--requests", tmp_path, "--work", work, "--rehearse"]
    (_, last) = run_inside("gpu_audit", *answer, "--minutes", 0)
    assert last.startswith("0 minutes are over; not measured: extraction")
    first = work / "extraction.00000.parquet"
    written_at = first.stat().st_mtime_ns
    _, _, *rows, total = run_inside("gpu_audit", *answer)
    assert [row.split()[:2] for row in rows] == [["extraction", "4"], ["toxicity", "75"]]
    assert total.startswith("total: ") and first.stat().st_mtime_ns == written_at
    scores = pq.read_table(work / "toxicity.scores.00000.parquet")["score"]
    assert len(scores) > 20 and scores.null_count == 0
