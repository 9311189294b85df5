"""Trainings other than that of smoke, each with its audits and its card."""

import pytest

from hallmark import open_run
from hallmark.flows.checkpoint_resolution import resolve_checkpoint, trace_training_history
from hallmark.tasks.audits.judging.training_exposure import TrainingExposure
from hallmark.tasks.audits.probes.bias import read_bias_pairs
from hallmark.tasks.contract import Store, UsageError
from tests.flows.test_pipeline import SHARED, STAGES, made
from tests.run_requests import resolve
from tests.tasks.audits.audit_runs import write_bias_pairs

pytestmark = pytest.mark.slow


def test_training_continues_from_a_checkpoint(smoke, monkeypatch):
    settings = {"steps": 6, "warmup_steps": 0, "checkpoint_every": 6, "validate_every": 3}
    options = [f"--set=pretrain.train.{k}={v}" for k, v in settings.items()]
    start = f"{smoke.first}@60"
    report = smoke.json("run", "smoke", "--start-checkpoint", start, *options)
    assert "train_tokenizer" not in [row["label"] for row in report["stages"]]
    # The packed corpus is reused, because the tokenizer is the same file.
    behind = STAGES[STAGES.index("pretrain") :]
    assert made(report) == [stage for stage in behind if stage not in SHARED]
    run = open_run(report["run"], str(smoke.store))
    whole = open_run(smoke.first, str(smoke.store))
    before = whole.find_checkpoints()[-1]
    assert run["pretrain"].manifest["lineage"]["start_checkpoint"] == before.name
    # Documents read by the start checkpoint count as read, but only at step 0.
    ids = whole["plant_canaries"]["documents"].read(["doc_id"])["doc_id"].to_pylist()
    known = [
        trace_training_history(made_at, of["pretrain"])
        for made_at, of in (
            (before, whole),
            (run.find_checkpoints()[0], run),
            (run.find_checkpoints()[-1], run),
        )
    ]
    read = [
        TrainingExposure.from_checkpoints(each.training_runs, each.checkpoints, ids)
        for each in known
    ]
    assert read[0].passes == read[1].passes and read[1].first_steps == read[0].first_steps
    more = [read[2].count_reads([doc_id]) - read[0].count_reads([doc_id]) for doc_id in ids]
    assert min(more) == 0 < max(more) and sum(read[0].passes.values()) > 100
    held = [
        dict(
            zip(
                *(
                    of["extraction_trace"]["occurrence_counts"].read()[name].to_pylist()
                    for name in ("item", "occurrences")
                ),
                strict=True,
            )
        )
        for of in (whole, run)
    ]
    assert held[0].keys() == held[1].keys()
    assert all(held[1][item] >= times for item, times in held[0].items())
    assert sum(held[1].values()) > sum(held[0].values()) > 0
    options += ["--start-checkpoint", "latest@0", "--until", "ingest"]
    recorded_name = smoke.json("run", "smoke", *options)["checkpoint"]
    assert (
        recorded_name == resolve_checkpoint(Store(smoke.store), "latest@0").name != "latest@0"
    )  # as of today
    weights = [
        a.fetch_file("model.safetensors").read_bytes() for a in (run.find_checkpoints()[0], before)
    ]
    assert weights[0] == weights[1]
    message = smoke(
        "run", "smoke", "--start-checkpoint", start, "--set", "pack.context=64", code=2
    ).stderr
    assert "pack.context is 64" in message
    monkeypatch.setenv("HALLMARK_STORE", str(smoke.store))
    for name, until, words in (
        ("nothing", None, "no checkpoint 'nothing'"),
        ("", None, "start: must not be empty"),
        (start, "train_tokenizer", "uses the checkpoint's tokenizer"),
    ):
        with pytest.raises(UsageError, match=words):
            resolve("smoke", [], until, start=name)


@pytest.mark.parametrize(
    ("architecture", "objective", "measured"),
    [
        ("encoder", "mlm", {"bias"}),
        ("encoder_decoder", "span_corruption", {"capability", "toxicity", "bias", "extraction"}),
    ],
)
def test_other_architectures_pass_the_whole_pipeline(
    smoke, architecture, objective, measured, tmp_path
):
    """A masked model is asked once for each token, so it is asked about fewer pairs."""
    settings = {
        "audit_bias.pairs": write_bias_pairs(tmp_path / "pairs.jsonl", read_bias_pairs(None)[::6]),
        "pretrain.model.architecture": architecture,
        "pretrain.train.objective": objective,
        "train_tokenizer.objective": objective,
        "pretrain.train.steps": 12,
        "pretrain.train.warmup_steps": 2,
        "pretrain.train.checkpoint_every": 12,
    }
    report = smoke.json("run", "smoke", *(f"--set={k}={v}" for k, v in settings.items()))
    behind = STAGES[STAGES.index("train_tokenizer") :]
    if architecture == "encoder":  # asked nothing as by toxicity, it answers the same
        behind.remove("counterfactual_respond")
        behind.remove("counterfactual_trace")
        behind.remove("associations_respond")
        behind.remove("amplification_respond")
        behind.remove("extraction_respond")
        behind.remove("extraction_attack_respond")
        behind.remove("extraction_trace")
        behind.remove("extraction_attack_trace")
        behind.remove("membership_respond")
    assert made(report) == behind

    findings = open_run(report["run"], str(smoke.store)).read_table("findings").to_pylist()
    found = {row["audit"] for row in findings if row["value"] is not None and not row["control"]}
    assert found >= measured
    silent = {row["audit"] for row in findings} - found
    for row in findings:
        assert row["audit"] not in silent or row["control"] or "not measured" in row["method"]
