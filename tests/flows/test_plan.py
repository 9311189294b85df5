"""``hallmark plan`` extrapolates the telemetry of real runs to any size and number of hosts."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.flows import cli
from hallmark.flows.commands.plan import (
    MAX_HOSTS,
    MAX_TOKENS,
    parse_amount,
    parse_whole_number,
    render_plan,
)
from hallmark.flows.config import load_config
from hallmark.flows.curation import curate_corpus
from hallmark.flows.forecast import scale_plan
from hallmark.flows.forecast.scale_plan import (
    PlannedStage,
    find_measurement_gaps,
    find_memory_problems,
    find_scaling_limits,
    list_corpus_stages,
    plan_run,
    plan_stage,
    sum_ranges,
)
from hallmark.flows.forecast.training_plan import (
    count_flops_per_token,
    find_training_gaps,
    plan_training,
    read_training_speeds,
)
from hallmark.flows.forecast.unit_costs import (
    COSTS,
    CostRange,
    StageCosts,
    StageMeasurement,
    fit_cost,
    measure_stage,
    read_corpus_size,
)
from hallmark.flows.run_recording import record_run
from hallmark.flows.run_request import RunRequest
from hallmark.flows.runs import open_run
from hallmark.flows.training import train_model
from hallmark.model.config import ModelConfig
from hallmark.tasks.contract import Store, UsageError
from tests.flows.small_runs import execute_small_run
from tests.flows.test_forecast import config_of, texts

SETTINGS = """
[train_tokenizer]
vocab_size = 300
"""


# Runs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A store with two runs of a config, the second with four times as much text."""
    folder = tmp_path_factory.mktemp("plan")
    store = Store(folder / "store")
    for name, count in (("few", 100), ("many", 400)):
        (folder / name).mkdir()
        config = config_of(folder / name, texts(count, 60, seed=count), SETTINGS)
        run_until_pack(config, store)
    return SimpleNamespace(store=store, config=str(folder / "many" / "mine.toml"))


def run_until_pack(config: str, store: Store) -> None:
    request = RunRequest.parse("pipeline", {"config": config, "until": "pack", "overrides": []})
    with record_run("pipeline", load_config(config), store, request):
        train_model(load_config(config), curate_corpus(load_config(config)))


def make_plan(measured, **arguments):
    arguments = {"tokens": 1e6} | arguments
    return plan_run(measured.config, store=measured.store.uri, **arguments)


def stages_by_label(report):
    return {stage["label"]: stage for stage in report["stages"]}


@pytest.mark.slow
def test_a_plan_has_every_stage_of_the_run_before_the_training(measured):
    run = open_run("latest", measured.store)
    report = make_plan(measured)
    assert [stage["label"] for stage in report["stages"]] == [*run.stages]
    assert all(stage["seconds"]["value"] > 0 for stage in report["stages"])
    assert [row["run"] for row in report["runs"]] == sorted(row["run"] for row in report["runs"])
    assert {len(stage["runs"]) for stage in report["stages"]} <= {1, 2}
    # These two depend on the config alone, so the second run found them in the store.
    by_label = stages_by_label(report)
    for label in ("evaluate_detectors", "evaluate_near_duplicates"):
        assert (by_label[label]["basis"], len(by_label[label]["runs"])) == ("run", 1)
    assert by_label["datasheet"]["basis"] == "run"
    # Redaction changed nothing, so this stage read the same documents as `deduplicate`.
    assert run.stages["deduplicate_redacted"]["cached"]
    assert by_label["deduplicate_redacted"]["runs"] == by_label["deduplicate"]["runs"]
    assert {by_label[label]["basis"] for label in ("ingest", "quality")} <= {"byte", "document"}


@pytest.mark.slow
def test_a_plan_for_the_size_of_a_run_repeats_its_figures(measured):
    run = open_run("latest", measured.store)
    tokens = run["pack"]["train"].row_count * load_config(measured.config).pack.context
    report = make_plan(measured, tokens=float(tokens))
    documents, text_bytes = read_corpus_size(measured.store, run["ingest"])
    assert documents == 400 and report["corpus"]["documents"] == pytest.approx(400, rel=0.05)
    assert report["corpus"]["text_bytes"] == pytest.approx(text_bytes, rel=0.05)
    stage = stages_by_label(report)["quality"]
    measurement = measure_stage(run, "quality", run["quality"])
    assert stage["output_bytes"]["value"] == pytest.approx(
        measurement.costs["output_bytes"], rel=0.1
    )
    assert stage["extrapolation_factor"] == pytest.approx(1, rel=0.05)
    assert stage["largest_measured_bytes"] == text_bytes


@pytest.mark.slow
def test_twice_the_tokens_take_about_twice_the_time_and_more_hosts_are_never_slower(measured):
    """At sizes at which fixed costs no longer count."""
    one, two = (make_plan(measured, tokens=tokens) for tokens in (1e12, 2e12))
    assert two["corpus"]["seconds"]["value"] / one["corpus"]["seconds"]["value"] == pytest.approx(
        2, rel=0.01
    )
    assert two["training"]["seconds"]["value"] == 2 * one["training"]["seconds"]["value"]
    previous = one
    for hosts in (2, 64, 10_000):
        report = make_plan(measured, tokens=1e12, hosts=hosts)
        assert report["seconds"]["value"] < previous["seconds"]["value"]
        assert report["corpus"]["serial_seconds"] == one["corpus"]["serial_seconds"]
        assert report["corpus"]["seconds"]["value"] > one["corpus"]["serial_seconds"]["value"]
        previous = report


@pytest.mark.slow
def test_other_settings_of_a_stage_were_not_measured(measured):
    overrides = ["deduplicate_near.similarity_threshold=0.9", "train_tokenizer.vocab_size=400"]
    report = plan_run(measured.config, overrides, store=measured.store.uri, tokens=1e6)
    unmeasured = {s["label"] for s in report["stages"] if s["seconds"] is None}
    assert unmeasured == {
        "deduplicate_near",
        "evaluate_near_duplicates",
        "train_tokenizer",
    }
    warnings = " ".join(warning["message"] for warning in report["warnings"])
    assert "no run measured deduplicate_near, evaluate_near_duplicates, train_tokenizer" in warnings
    assert f"hallmark run {measured.config} --until pack" in warnings
    assert "not measured" in render_plan(report)


@pytest.mark.slow
def test_other_sources_have_the_same_unit_costs(measured):
    report = plan_run(
        measured.config,
        ["ingest.sources=[{kind='text', name='other', path='other.txt'}]"],
        store=measured.store.uri,
        tokens=1e6,
    )
    assert stages_by_label(report)["ingest"]["runs"]


@pytest.mark.slow
def test_the_text_of_a_plan_names_runs_extrapolation_and_limits(measured):
    report = make_plan(measured, tokens=1e12, hosts=64)
    text = render_plan(report)
    for run in report["runs"]:
        assert run["run"] in text
    assert "1,000,000,000,000 training tokens on 64 hosts with 2 workers each" in text
    assert "the plan extrapolates by a factor of " in text
    assert "in a single process, which additional hosts do not speed up" in text
    assert "run the config on at least 1 GB of text: hallmark run " in text
    assert "mapper is processes, which uses one host; set mapper to ray to use 64 hosts" in text
    assert "the time needed for deduplicate_near may not grow in proportion" in text
    assert "with an assumed utilisation of 40% (30% to 50%)" in text
    assert not report["will_fail"] and "WILL FAIL" not in text


@pytest.mark.slow
def test_a_plan_refuses_repeated_substrings_above_the_memory(measured, capsys, monkeypatch):
    arguments = ["plan", measured.config, "--store", measured.store.uri, "--tokens", "1T"]
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments, "--set", "find_repeats.enabled=true"])
    assert ended.value.code == 1
    out = capsys.readouterr().out
    assert "WILL FAIL: stage find_repeats: searching " in out
    assert "set find_repeats.enabled = false" in out
    cli.main([*arguments, "--json"])
    assert json.loads(capsys.readouterr().out)["will_fail"] is False


@pytest.mark.slow
def test_a_store_without_runs_of_the_config_is_refused(measured, tmp_path):
    Store(tmp_path / "empty")
    with pytest.raises(
        UsageError, match=r"no run in the store .* first run the config on at least 1 GB"
    ):
        plan_run("smoke", store=str(tmp_path / "empty"), tokens=1e9)
    with pytest.raises(UsageError, match="absent"):
        plan_run("smoke", store=str(tmp_path / "absent"), tokens=1e9)
    assert not (tmp_path / "absent").exists()


def test_the_stages_of_a_config_are_listed_without_a_run(tmp_path):
    store = Store(tmp_path / "store")
    labels = [stage.label for stage in list_corpus_stages(load_config("demo"), store)]
    assert labels[0] == "ingest" and labels[-1] == "pack"
    assert {"find_repeats", "cut_repeats", "deduplicate_redacted", "evaluate_curation"} < {*labels}
    assert [*store.list_folder_names("artifacts")] == []


@pytest.mark.slow
def test_the_speed_of_a_training_is_that_of_its_run(apart):
    store = Store(str(apart.store))
    run = open_run(apart.first, store)
    config = load_config("smoke")
    (speed,) = read_training_speeds(config, [run])
    assert (speed.run, speed.device, len(speed.tokens_per_second)) == (apart.first, "cpu", 59)
    plan = plan_training(config, [run], 1e9, devices=4, device_tflops=None)
    assert (plan.basis, plan.runs, plan.devices) == ("measured", (apart.first,), 4)
    assert plan.seconds.value == pytest.approx(1e9 / 4 / plan.tokens_per_second.value)
    assert plan.seconds.low <= plan.seconds.value <= plan.seconds.high
    assert plan.steps == math.ceil(1e9 / (8 * 128))
    assert plan_training(config, [run], 1e9, devices=1, device_tflops=10.0).basis == "computed"
    wider = load_config("smoke", ["pretrain.model.d_model=64"])
    assert not read_training_speeds(wider, [run])
    report = apart.json("plan", "smoke", "--tokens", "1M")
    assert report["training"]["runs"] == [apart.first]
    assert "measured on cpu in 1 run" in apart("plan", "smoke", "--tokens", "1M").stdout


# Arithmetic ---------------------------------------------------------------------------------


sizes_and_costs = st.lists(
    st.tuples(st.floats(1e3, 1e12), st.floats(0, 1e6)), min_size=1, max_size=6
)


@given(sizes_and_costs, st.floats(1e3, 1e15))
@settings(deadline=None)
def test_a_fit_is_never_negative_and_lies_in_its_range(points, size):
    sizes, costs = zip(*points, strict=True)
    fit = fit_cost(sizes, costs)
    assert fit.fixed >= 0 and fit.per_unit >= 0
    prediction = fit.predict(size)
    if len(points) == 1:
        assert prediction.low is prediction.high is None
    else:
        assert prediction.low <= prediction.value * (1 + 1e-9)
        assert prediction.value <= prediction.high * (1 + 1e-9)


@given(st.floats(0, 100), st.floats(1e-9, 1e-3), st.floats(1e3, 1e9))
@settings(deadline=None)
def test_a_line_is_recovered(fixed, per_unit, size):
    sizes = [size, 2 * size, 5 * size]
    fit = fit_cost(sizes, [fixed + per_unit * each for each in sizes])
    assert fit.predict(1000 * size).value == pytest.approx(fixed + per_unit * 1000 * size, rel=1e-6)
    assert fit.deviation == pytest.approx(0, abs=1e-12)


def test_sizes_that_hardly_differ_show_no_fixed_part():
    fit = fit_cost([100, 110], [10.0, 22.0])
    assert fit.fixed == 0 and (fit.low_per_unit, fit.high_per_unit) == (0.1, 0.2)
    assert fit.per_unit == pytest.approx(0.15)
    assert fit_cost([100], [10.0]).low_per_unit is None


def test_costs_that_do_not_grow_are_counted_in_proportion_with_a_range_from_zero():
    """A busy machine may take longer for a small corpus; a cost of zero would be no estimate."""
    fit = fit_cost([100, 1000], [3.0, 2.0])
    assert (fit.fixed, fit.per_unit) == (0, 5 / 1100)
    assert (fit.low_per_unit, fit.high_per_unit) == (0, 5 / 1100)


def test_a_line_with_a_negative_fixed_part_goes_through_the_origin():
    fit = fit_cost([100, 1000], [1.0, 30.0])
    assert (fit.fixed, fit.per_unit) == (0, pytest.approx(31 / 1100))
    assert fit.low_per_unit == pytest.approx(31 / 1100) and fit.high_per_unit == pytest.approx(
        29 / 900
    )


def measurement_of(run, documents, text_bytes, *, serial=1.0, worker=1.0, items=8, **changes):
    costs = dict.fromkeys(COSTS, 1.0) | {"serial_seconds": serial, "worker_seconds": worker}
    return StageMeasurement(
        run,
        "host",
        documents,
        text_bytes,
        costs | changes,
        worker_memory_bytes=5e8,
        parallel_items=items,
    )


def test_costs_are_per_document_if_that_fits_better():
    """The same bytes in more documents take longer."""
    rows = [
        measurement_of("a", 100, 10_000, serial=0, worker=1.0),
        measurement_of("b", 1_000, 20_000, serial=0, worker=10.0),
        measurement_of("c", 2_000, 30_000, serial=0, worker=20.0),
    ]
    costs = StageCosts.fit(rows)
    assert costs.basis == "document" and costs.choose_size(7, 9) == 7
    by_bytes = [replace(row, documents=10) for row in rows]
    assert StageCosts.fit(by_bytes).basis == "byte"
    none = [replace(row, documents=0, text_bytes=0) for row in rows]
    assert StageCosts.fit(none).basis == "run"
    assert StageCosts.fit(none).fits["worker_seconds"].predict(1).value == 10


@given(
    tokens=st.floats(1e6, 1e13),
    workers=st.integers(1, 10_000),
    more=st.integers(1, 10_000),
)
@settings(deadline=None)
def test_more_workers_are_never_slower_and_the_serial_part_stays(tokens, workers, more):
    rows = [
        measurement_of("a", 1_000, 1_000_000, serial=0.3, worker=4.0, items=1),
        measurement_of("b", 4_000, 4_000_000, serial=0.9, worker=13.0, items=4),
    ]
    size = {"documents": tokens / 1000, "text_bytes": tokens}
    few = plan_stage("quality", rows, **size, workers=workers)
    many = plan_stage("quality", rows, **size, workers=workers + more)
    assert many.seconds.value <= few.seconds.value
    assert many.seconds.high <= few.seconds.high and many.seconds.low <= few.seconds.low
    assert many.serial_seconds == few.serial_seconds
    assert many.seconds.value >= few.serial_seconds.value
    assert few.used_workers <= workers


def test_workers_without_an_item_are_not_counted():
    rows = [measurement_of("a", 1_000, 1_000_000, serial=0, worker=8.0, items=4)]
    same_size = plan_stage("quality", rows, documents=1_000, text_bytes=1e6, workers=64)
    assert (same_size.used_workers, same_size.seconds.value) == (4, 2.0)
    larger = plan_stage("quality", rows, documents=10_000, text_bytes=1e7, workers=64)
    assert (larger.used_workers, larger.seconds.value) == (40, 2.0)


def test_a_stage_that_grew_faster_than_its_text_has_a_higher_upper_end():
    rows = [
        measurement_of("a", 1_000, 1_000_000, serial=1.0, worker=1.0),
        measurement_of("b", 10_000, 10_000_000, serial=100.0, worker=100.0),
    ]
    size = {"documents": 1e6, "text_bytes": 1e9, "workers": 1}
    near = plan_stage("deduplicate_near", rows, **size)
    assert near.growth_exponent == pytest.approx(2)
    assert near.seconds.high == pytest.approx(100 * near.seconds.value)
    other = plan_stage("quality", rows, **size)
    assert other.seconds.value == near.seconds.value and other.seconds.high < near.seconds.high


def test_ranges_add_up():
    assert CostRange(1.0) + CostRange(2.0) == CostRange(3.0)
    assert CostRange(1.0) + CostRange(2.0, 1.0, 4.0) == CostRange(3.0, 2.0, 5.0)
    assert sum_ranges([None, CostRange(1.0, 0.5, 2.0)]) == CostRange(1.0, 0.5, 2.0)
    assert CostRange(1.0, 0.5, 2.0).scale(2) == CostRange(2.0, 1.0, 4.0)
    assert CostRange(1.0).scale(2) == CostRange(2.0)


def test_flops_of_a_decoder():
    """PaLM's formula: 6 operations for each parameter of a matrix, and those of attention."""
    model = ModelConfig(
        vocab_size=512,
        context=64,
        d_model=32,
        n_layers=2,
        n_heads=2,
        bias=False,
        norm="rmsnorm",
        positions="rope",
    )
    matrices = 2 * (4 * 32 * 32 + 2 * 32 * model.feed_forward_width) + 32 * 512
    assert count_flops_per_token(model) == 6 * matrices + 12 * 2 * 32 * 64


# Sentences ----------------------------------------------------------------------------------


def planned(label, rows, factor=1.0):
    largest = rows[-1]
    return plan_stage(
        label,
        rows,
        documents=largest.documents * factor,
        text_bytes=largest.text_bytes * factor,
        workers=1,
    )


def messages_of(problems):
    return [problem.message for problem in problems]


def test_gaps_of_small_and_single_measurements():
    one = [measurement_of("a", 1_000, 5_000_000)]
    gaps = messages_of(find_measurement_gaps([planned("quality", one, 100)], "hallmark run x"))
    assert gaps == [
        "the plan extrapolates by a factor of 100: the largest run that measured quality read "
        "5.0 MB of text",
        "the measured runs are too small for reliable estimates; run the config on at least 1 GB "
        "of text: hallmark run x",
        "only one run measured quality, so these times have no range, and fixed costs are "
        "scaled in proportion to the size; also run the config at a second size",
    ]


def test_gaps_of_large_measurements():
    rows = [
        measurement_of("a", 10**6, 10**9, worker=10.0),
        measurement_of("b", 2 * 10**6, 2 * 10**9, worker=21.0),
    ]
    assert not messages_of(find_measurement_gaps([planned("quality", rows, 2)], "x"))
    (near,) = messages_of(find_measurement_gaps([planned("deduplicate_near", rows, 2)], "x"))
    assert near.startswith(
        "the time needed for deduplicate_near may not grow in proportion to the text: "
    )
    assert near.endswith("its time grew in proportion to the text size to the power of 1.00")
    same = [rows[1], replace(rows[1], run="c")]
    (near,) = messages_of(find_measurement_gaps([planned("deduplicate_near", same, 2)], "x"))
    assert near.endswith("was not measured, because the runs have nearly the same size")
    (one,) = messages_of(find_measurement_gaps([PlannedStage("pack")], "hallmark run x"))
    assert one == (
        "no run measured pack with the settings of this config, so the estimates do not include "
        "it; run the config: hallmark run x"
    )


def test_memory_problems(monkeypatch):
    monkeypatch.setattr(scale_plan, "total_memory_bytes", lambda: 8 * 10**9)
    rows = [
        measurement_of("a", 1_000, 10**8, main_memory_bytes=1e9),
        measurement_of("b", 2_000, 2 * 10**8, main_memory_bytes=2e9),
    ]
    assert not [*find_memory_problems([planned("find_repeats", rows, 2)])]
    (repeats, memory) = find_memory_problems([planned("find_repeats", rows, 100)])
    assert repeats.is_certain and "searching 20.0 GB of text" in repeats.message
    assert not memory.is_certain
    assert memory.message == (
        "the main process needs about 200 GB of memory by the end of find_repeats, but this "
        "machine has 8.0 GB; start the run on a host with more memory, or split the corpus"
    )


def test_limits_of_several_hosts():
    config = load_config("smoke")
    assert not [*find_scaling_limits(config, 1)]
    assert len(messages_of(find_scaling_limits(config, 2))) == 2
    on_ray = load_config("smoke", ["mapper=ray"])
    (shared,) = messages_of(find_scaling_limits(on_ray, 2))
    assert shared.startswith("all measured runs used a single host")


def test_gaps_of_the_training():
    config = load_config("smoke")
    plan = plan_training(config, [], 61_440, devices=1, device_tflops=None)
    (assumed,) = messages_of(find_training_gaps(plan, config.pretrain.train))
    assert assumed.startswith("no run trained a model of this size")
    stated = plan_training(config, [], 1e9, devices=8, device_tflops=100.0)
    assert stated.device_tflops == 100 and stated.utilisation.value == 0.4
    assert stated.tokens_per_second.value == pytest.approx(0.4 * 1e14 / stated.flops_per_token)
    gaps = messages_of(find_training_gaps(stated, config.pretrain.train))
    assert (
        gaps[0] == "the training time is derived from the number of FLOPs, not from a measurement"
    )
    assert "8 times as fast on 8 devices" in gaps[1]
    assert gaps[2] == (
        "pretrain.train.steps is 60, but 976,563 steps are needed to read all tokens once"
    )
    measured = replace(plan, basis="measured")
    assert not [*find_training_gaps(measured, config.pretrain.train)]


# Arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "amount"),
    [("1T", 1e12), ("1.5G", 1.5e9), ("300M", 3e8), ("20K", 2e4), ("7", 7), ("0.5T", 5e11)],
)
def test_amounts(text, amount):
    assert parse_amount("--tokens", text, MAX_TOKENS) == amount


HOSTILE = [
    *("", " ", "-1", "-1T", "+1", "nan", "NaN", "inf", "1e400", "1e9", "0", "0T", "0.0", "1t"),
    *("1B", "1TT", "T", "1 T", ".5", "1.", "1_000", "1,000", "0x10", "\uff11T", "\u0663", "1T\n"),
    *("9" * 21, "9" * 400, "2000000T", "🦆", "1\x00", "None", "[1]"),
]


@pytest.mark.parametrize("text", HOSTILE)
def test_other_amounts_are_refused(text):
    for option, parse, largest in (
        ("--tokens", parse_amount, MAX_TOKENS),
        ("--hosts", parse_whole_number, MAX_HOSTS),
    ):
        with pytest.raises(UsageError) as error:
            parse(option, text, largest)
        assert str(error.value).startswith(f"{option} is ") and "\n" not in str(error.value)
        assert len(str(error.value)) < 250


@pytest.mark.parametrize("text", ["1.5", "1K", "1000001"])
def test_hosts_are_whole_numbers(text):
    with pytest.raises(UsageError, match="must be a whole number from 1 to 1,000,000"):
        parse_whole_number("--hosts", text, MAX_HOSTS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokens", "1e400"], "--tokens is '1e400', but must be a positive number, such as 1T"),
        (["--tokens="], "--tokens is '', but must be a positive number"),
        (["--tokens", "1T", "--hosts", "nan"], "--hosts is 'nan', but must be a whole number"),
        (["--tokens", "1T", "--devices-per-host", "0"], "--devices-per-host is '0', but must be"),
        (["--tokens", "1T", "--device-tflops", "1K"], "--device-tflops is '1K', but must be a "),
        ([], 'Command "plan" parameter --tokens requires an argument'),
    ],
)
def test_a_wrong_option_ends_the_command_with_one_sentence(options, message, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", "demo", *options])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


# Measurements -------------------------------------------------------------------------------


@pytest.fixture
def small_run(tmp_path):
    return execute_small_run(Store(tmp_path / "store"))


def test_a_run_measures_what_a_stage_read_and_took(small_run):
    made = measure_stage(small_run, "make", small_run["make"])
    dropped = measure_stage(small_run, "drop", small_run["drop"])
    table = small_run["make"]["documents"]
    text_bytes = sum(len(text.encode()) for text in table.read(["text"])["text"].to_pylist())
    for row in (made, dropped):  # the first stage has no input: what it wrote counts
        assert (row.run, row.documents, row.text_bytes) == (small_run.id, 30, text_bytes)
        assert set(row.costs) == {*COSTS} and all(cost >= 0 for cost in row.costs.values())
        assert row.costs["main_memory_bytes"] > 1e6
    assert dropped.parallel_items == 2 and dropped.worker_memory_bytes > 1e6
    files = [*small_run["drop"].iter_file_entries()]
    assert dropped.costs["output_bytes"] == sum(entry["size"] for entry in files)
    seconds = small_run.stages["drop"]["seconds"]
    assert dropped.costs["serial_seconds"] <= seconds


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("reused_items", 1.0),  # a part of the work was done by an interrupted attempt
        ("reused_items", None),
        ("worker_seconds", math.nan),
        ("worker_seconds", math.inf),
        ("cpu_seconds", -1.0),
        ("peak_memory", None),
    ],
)
def test_other_measurements_do_not_count(small_run, monkeypatch, metric, value):
    rows = small_run["drop"].read_telemetry().to_pylist()
    changed = [row | {"value": value} if row["metric"] == metric else row for row in rows]
    assert changed != rows
    table = pa.Table.from_pylist(changed)
    monkeypatch.setattr("hallmark.tasks.contract.Artifact.read_telemetry", lambda self: table)
    assert measure_stage(small_run, "drop", small_run["drop"]) is None
