"""A dry run predicts stages, results and failures of a run, and writes nothing."""

import gzip
import json
import random
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hallmark import open_run
from hallmark.flows import cli
from hallmark.flows.audit_execution import open_tokenizer_of_model
from hallmark.flows.commands.forecast_text import _render_stages, render_forecast
from hallmark.flows.config import load_config
from hallmark.flows.curation import curate_corpus
from hallmark.flows.forecast import baseline_costs, training_costs
from hallmark.flows.forecast.baseline_costs import estimate_baseline_seconds
from hallmark.flows.forecast.corpus_estimates import (
    Estimate,
    QuarantineSummary,
    count_documents_and_bytes_by_source,
    count_packed_tokens,
)
from hallmark.flows.forecast.problems import predict_problems
from hallmark.flows.forecast.run_forecast import SampleOutcome, forecast_run
from hallmark.flows.forecast.source_sampling import sample_sources
from hallmark.flows.pipeline import pipeline
from hallmark.flows.training import train_model
from hallmark.model.architecture import Transformer
from hallmark.model.config import ModelConfig, TrainConfig
from hallmark.model.interchange.checkpoint import load_checkpoint
from hallmark.model.training.optimizers import make_optimizers
from hallmark.tasks.audits.ability.capability_baselines import BaselinesConfig
from hallmark.tasks.audits.ability.capability_texts import count_split_bytes
from hallmark.tasks.contract import (
    HallmarkError,
    LastStageReached,
    Session,
    Store,
    Table,
    UsageError,
    open_session,
)
from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer
from tests.model.oracles import logits
from tests.tasks.measures.detoxify_checkpoint import make_checkpoint
from tests.tasks.small_corpus import corpus_of

pytestmark = pytest.mark.slow

#: A vocabulary of its own: what a stage removes must not change with the words of a file.
COMMON = (
    "the of and to a in that it is was for on with as his they at be this from had not are by but "
    "some what there we can out other were all your when up use word how said an each she which do "
    "their time if will way about many then them would write like so these her long make thing see "
    "him two has look more day could go come did my sound no most number who over know water than "
    "call first people may down side been now find any new work part take get place made live"
)
WORDS = COMMON.split()


@pytest.fixture
def absent(tmp_path, monkeypatch) -> Path:
    """The location of a store that does not exist."""
    monkeypatch.setenv("HALLMARK_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Tests here check the content of the report, not its format."""
    monkeypatch.setattr(training_costs, "TRIAL_SECONDS", 1.5)


def texts(count, word_count, seed=0):
    source = random.Random(seed)
    return [f"Text {i}. " + " ".join(source.choices(WORDS, k=word_count)) for i in range(count)]


def config_of(folder: Path, rows: list[str], more: str = "") -> str:
    """Write a config with a JSON Lines source of these texts."""
    path = folder / "letters.jsonl"
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    file = folder / "mine.toml"
    source = f'kind = "jsonl"\nname = "letters"\npath = "{folder}/*.jsonl"\n'
    file.write_text(f'name = "mine"\n[[ingest.sources]]\n{source}\n{more}')
    return str(file)


def listing(folder: Path):
    return sorted((str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in folder.rglob("*"))


def states(report):
    return {row["label"]: row["state"] for row in report["stages"]}


@pytest.mark.slow
def test_the_forecast_of_smoke_matches_its_run(smoke, absent):
    report = forecast_run("smoke")
    assert not absent.exists()
    assert report["sample"]["is_complete"] and not report["will_fail"]
    run = open_run(smoke.first, str(smoke.store))
    sources = {s["source"]: s["documents"] for s in report["sources"]}
    made = count_documents_and_bytes_by_source(run["ingest"]["documents"])
    assert sources == {name: {"value": n, "is_exact": True} for name, (n, _) in made.items()}
    corpus = report["corpus"]
    assert corpus["documents"] == {
        "value": run["plant_canaries"]["documents"].row_count,
        "is_exact": True,
    }
    context = run.config.pack.context
    assert corpus["tokens"]["value"] == count_packed_tokens(run["pack"], "train", context)
    assert corpus["train_rows"]["value"] == run["pack"]["train"].row_count
    training = report["training"]
    seen = run.read_table("log", "pretrain")["tokens_seen"].to_pylist()[-1]
    assert training["tokens_seen"] == seen
    epochs = seen / context / run["pack"]["train"].row_count
    assert training["epochs"] == {"value": pytest.approx(epochs), "is_exact": True}
    model = load_checkpoint(run.find_checkpoints()[-1].fetch_directory())
    parameters = sum(p.numel() for p in model.parameters())
    assert training["parameters"] == {"value": parameters, "is_exact": True}
    assert training["step"]["device"] == "cpu" or torch.cuda.is_available()
    assert training["step"]["training_seconds"] >= 60 * training["step"]["seconds_per_step"] > 0
    assert training["step"]["peak_bytes"] > training["memory"]["total"]
    row = next(row for row in report["stages"] if row["label"] == "capability_baselines")
    assert row["time_basis"].startswith("estimate: time taken by the baseline models")
    assert row["seconds"] > 0


def test_the_time_of_baselines_is_extrapolated_from_two_amounts(tmp_path, monkeypatch):
    """Trials have at most 500 kB and 16,384 tokens; the clock advances by what they train on."""
    rows = [(0, "train", text) for text in texts(2000, 100)] + [
        (1, "validation", text) for text in texts(2000, 100, seed=1)
    ]
    with open_session(Session(Store(tmp_path / "store"))):
        corpus = corpus_of([(f"source {source}", split, text) for source, split, text in rows])
        tokenizer = train_tokenizer(corpus, None, TokenizerConfig(vocab_size=512))
    documents = Table((corpus,), "documents")
    opened = open_tokenizer_of_model(load_config("smoke"), tokenizer)
    train_bytes = count_split_bytes(documents, "train")
    trial_configs = []

    def count_seconds(training_bytes, recurrent_tokens):
        return 3 + training_bytes / 1e5 + recurrent_tokens / 1e3

    class Clock:
        seconds = 0.0

        def perf_counter(self):
            return self.seconds

    clock = Clock()

    def train(tokenizer, documents, config):
        trial_configs.append(config)
        clock.seconds += count_seconds(config.training_bytes, config.recurrent_tokens)

    monkeypatch.setattr(baseline_costs, "time", clock)
    monkeypatch.setattr(baseline_costs, "train_and_score_baselines", train)

    def estimate(recurrent_tokens, ratio=1.0):
        config = BaselinesConfig(training_bytes=10**9, recurrent_tokens=recurrent_tokens)
        return baseline_costs.estimate_baseline_seconds(opened, documents, config, ratio)

    for recurrent_tokens, ratio in ((0, 1.0), (0, 30.0), (400_000, 10.0)):
        expected = count_seconds(ratio * train_bytes, recurrent_tokens)
        assert estimate(recurrent_tokens, ratio) == pytest.approx(expected, rel=0.01)
    assert max(config.training_bytes for config in trial_configs) <= baseline_costs.TRIAL_BYTES
    assert max(config.recurrent_tokens for config in trial_configs) <= baseline_costs.TRIAL_TOKENS


def test_the_time_of_baselines_is_measured(tmp_path):
    rows = [("train", text) for text in texts(400, 100)] + [
        ("validation", text) for text in texts(40, 100, seed=1)
    ]
    with open_session(Session(Store(tmp_path / "store"))):
        corpus = corpus_of([(f"source {split}", split, text) for split, text in rows])
        tokenizer = train_tokenizer(corpus, None, TokenizerConfig(vocab_size=512))
    opened = open_tokenizer_of_model(load_config("smoke"), tokenizer)
    config = BaselinesConfig(recurrent_tokens=0)
    assert estimate_baseline_seconds(opened, Table((corpus,), "documents"), config, 1.0) > 0


FILES = {
    "audit_toxicity.prompts": ("none.jsonl", "there is no file"),
    "audit_bold.prompts": ('["none.json"]', "there is no file"),
    "audit_membership.reference_model_folder": (
        "none",
        "audit_membership.reference_model_folder: there is no",
    ),
    "score.additional_scorers": ('[{kind="words", path="none.txt"}]', "there is no file"),
    "audit_bias.pairs": ("pairs.jsonl", "pairs.jsonl, line 1 must have text in"),
    "audit_toxicity.labelled_texts": ("labelled.jsonl", "assigns the label 'toxic' to all texts"),
}


@pytest.mark.parametrize("setting", FILES)
def test_files_of_audits_are_checked_before_the_training(absent, tmp_path, monkeypatch, setting):
    """Problems are reported by the dry run, and by the run before it trains."""
    monkeypatch.chdir(tmp_path)
    Path("pairs.jsonl").write_text('{"stereo": ""}\n')
    Path("labelled.jsonl").write_text('{"text": "Words", "label": 1}\n')
    value, expected = FILES[setting]
    config = config_of(tmp_path, texts(60, 60), "[train_tokenizer]\nvocab_size = 300\n")
    override = f"{setting}={value}"
    try:
        warnings = forecast_run(config, [override])["warnings"]
        failing = [warning["message"] for warning in warnings if warning["is_certain"]]
    except UsageError as error:
        failing = [str(error)]
    assert any(expected in why for why in failing), failing
    assert not forecast_run(config, [override], last_stage="pack")["will_fail"]
    assert not absent.exists()

    started = []
    monkeypatch.setattr("hallmark.flows.training.pretrain", lambda **inputs: started.append(inputs))
    with pytest.raises(UsageError, match=expected):
        pipeline.fn(config=config, overrides=[override])
    assert not started


@pytest.mark.slow
def test_estimates_from_a_sample_of_smoke_are_close(smoke, absent):
    report = forecast_run("smoke", last_stage="pack", max_sample_bytes=200_000)
    assert not report["sample"]["is_complete"] and report["training"] is None
    run = open_run(smoke.first, str(smoke.store))
    corpus = report["corpus"]
    assert not any(figure["is_exact"] for figure in corpus.values())
    assert corpus["documents"]["value"] == pytest.approx(
        run["plant_canaries"]["documents"].row_count, rel=0.1
    )
    tokens = count_packed_tokens(run["pack"], "train", run.config.pack.context)
    assert corpus["tokens"]["value"] == pytest.approx(tokens, rel=0.1)
    assert {row["state"] for row in report["stages"]} == {"run"}


@pytest.mark.slow
def test_after_a_run_every_stage_is_cached_and_nothing_is_written(smoke):
    before = listing(smoke.store)
    report = smoke.json("run", "smoke", "--dry-run")
    assert listing(smoke.store) == before
    assert set(states(report).values()) == {"store"}
    run = open_run(smoke.first, str(smoke.store))
    assert [row["artifact"] for row in report["stages"]] == [
        s["artifact"] for s in run.record["stages"]
    ]
    assert report["sample"] is None and report["seconds"] == {
        "value": 0,
        "stages_without_estimate": [],
    }
    assert report["corpus"]["tokens"]["is_exact"] and report["training"]["epochs"]["is_exact"]
    later = smoke.json("run", "smoke", "--dry-run", "--set", "audit_bias.seed=77")
    would = {label for label, state in states(later).items() if state == "run"}
    # Requests are unknown before the run, and so is whether responses are cached.
    assert would == {
        "bias_build_requests",
        "bias_respond",
        "bias_respond_untrained_models",
        "bias_trace",
        "audit_bias",
        "model_card",
    }
    # The newest artifact of the stage may be of another run, with further differences.
    assert re.search(
        "config: .*seed",
        next(r["reason"] for r in later["stages"] if r["label"] == "bias_build_requests"),
    )
    assert later["seconds"]["value"] > 0 and not later["seconds"]["stages_without_estimate"]
    going_on = smoke.json(
        "run",
        "smoke",
        "--dry-run",
        "--start-checkpoint",
        f"{smoke.first}@0",
        "--set",
        "pretrain.train.steps=7",
    )
    assert "train_tokenizer" not in states(going_on)
    assert going_on["training"]["parameters"] == report["training"]["parameters"]
    assert listing(smoke.store) == before


def test_thirty_short_documents_are_too_few_to_plant(absent, tmp_path, capsys, monkeypatch):
    def no_server(*_):
        raise AssertionError("a dry run starts no Prefect server")

    monkeypatch.setattr("hallmark.flows.local_prefect_server.LocalPrefectServer", no_server)
    config = config_of(tmp_path, texts(30, 12))
    options = [
        f"--set=pretrain.model.{k}={v}"
        for k, v in {"d_model": 16, "n_layers": 1, "n_heads": 1}.items()
    ]
    with pytest.raises(SystemExit) as ended:
        options += ["--set=plant_canaries.enabled=true", "--set=split.validation_share=1e-9"]
        cli.main(["run", config, "--dry-run", *options])
    assert ended.value.code == 1
    output = capsys.readouterr().out
    fails = next(
        line for line in output.splitlines() if line.startswith("WILL FAIL: stage plant_canaries")
    )
    for words in (
        "only 0 training",
        "300 to 700",
        "40 passages",
        "plant_canaries.passages_per_count",
        "plant_canaries.min_passage_characters",
        "plant_canaries.enabled=false",
    ):
        assert words in fails
    # Later failures are reported, too.
    assert "WILL FAIL: the 'validation' split is empty" in output
    assert "fewer than a batch of 32" in output and "train_tokenizer.vocab_size" in output
    assert not absent.exists()


def test_an_unreachable_hub_is_reported_without_failure(absent):
    report = forecast_run("hub")
    assert states(report)["ingest"] == "unknown" and not report["will_fail"]
    assert "without access to the Hugging Face hub" in report["stages"][0]["reason"]
    assert set(states(report).values()) == {"unknown", "run"}
    assert report["corpus"]["documents"]["value"] is None
    training = report["training"]
    assert training["epochs"]["value"] is None
    assert training["tokens_seen"] == 19_000 * 512 * 1024
    count = training["parameters"]["value"]
    assert 120e6 < count < 130e6 and training["memory"]["total"] == 16 * count
    if not torch.cuda.is_available():
        assert training["step"] is None
        assert any("device is cuda" in warning["message"] for warning in report["warnings"])


def test_a_missing_source_is_a_certain_failure(absent, tmp_path):
    config = config_of(tmp_path, ["a"])
    (tmp_path / "letters.jsonl").unlink()
    report = forecast_run(config)
    assert report["will_fail"] and states(report)["ingest"] == "fails"
    assert "correct the source path" in report["warnings"][0]["message"]
    assert states(report)["model_card"] == "blocked"


def test_quarantined_records_are_counted_before_and_after_the_run(absent, tmp_path):
    config = config_of(tmp_path, ["A letter of some words.", "Another letter."], SMALL)
    with (tmp_path / "letters.jsonl").open("a") as file:
        file.write('{"text": 3}\n{"text"\n')
    report = forecast_run(config, last_stage="ingest")
    (source,) = report["sources"]
    assert (source["documents"]["value"], source["quarantined"]) == (2, 2)
    assert source["first_quarantined"].startswith("letters.jsonl, line 3: ")
    text = render_forecast(report)
    assert (
        "unreadable records that the run will quarantine: 2 (first: letters.jsonl, line 3: " in text
    )
    store = tmp_path / "store"
    settings = load_config(config)
    with open_session(Session(Store(store), last_stage="ingest")), pytest.raises(LastStageReached):
        curate_corpus(settings)
    (behind,) = forecast_run(config, last_stage="ingest", store=str(store))["sources"]
    assert [behind[n] for n in QuarantineSummary._fields] == [
        source[n] for n in QuarantineSummary._fields
    ]


SMALL = (
    "[plant_canaries]\nenabled = false\n[train_tokenizer]\nvocab_size = 300\n[pack]\ncontext = 32\n"
)


def run_to_pack(config: str, store: Path) -> list[str]:
    """Return the labels of the stages that would not be cached."""
    made: list[str] = []

    def listen(event):
        if event.kind == "done":
            made.append(event.label)

    settings = load_config(config)
    session = Session(Store(store), listener=listen, last_stage="pack")
    with open_session(session), pytest.raises(LastStageReached):
        train_model(settings, curate_corpus(settings))
    return made


def test_a_renamed_file_reruns_the_forecast_stages(absent, tmp_path):
    config = config_of(tmp_path, texts(60, 40), SMALL)
    run_to_pack(config, absent)
    (tmp_path / "letters.jsonl").rename(tmp_path / "renamed.jsonl")
    before = listing(absent)
    report = forecast_run(config, last_stage="pack")
    would = [label for label, state in states(report).items() if state == "run"]
    assert would == ["ingest"]
    assert "external input: letters" in report["stages"][0]["reason"]
    assert listing(absent) == before
    assert run_to_pack(config, absent) == would


def test_too_few_passages_are_expected_from_a_sample(absent, tmp_path):
    planted = "[plant_canaries]\nenabled = true\n"
    config = config_of(tmp_path, [*texts(400, 12), *texts(8, 60, seed=1)], planted)
    report = forecast_run(config, last_stage="pack", max_sample_bytes=20_000)
    assert not report["sample"]["is_complete"] and not report["will_fail"]
    warning = next(
        w["message"] for w in report["warnings"] if "planting canaries needs" in w["message"]
    )
    assert "40 training documents of 300 to 700 characters" in warning
    assert not absent.exists()


def test_a_cascade_is_not_judged_by_a_sample(absent, tmp_path):
    checkpoint, base = make_checkpoint(tmp_path / "detoxify")
    more = f'''[score_toxicity]
    scorer = {{kind = "detoxify", checkpoint = "{checkpoint}", base_model_folder = "{base}"}}
    cascade = {{sample_size = 10, min_recall = 0.99}}'''
    config = config_of(tmp_path, texts(400, 12), more)
    report = forecast_run(config, last_stage="pack", max_sample_bytes=20_000)
    assert not report["sample"]["is_complete"] and not report["will_fail"]
    assert not any("cascade is refused" in warning["message"] for warning in report["warnings"])
    assert any("without the score_toxicity cascade" in n for n in report["notes"])


def test_the_read_share_of_each_kind_of_file_is_estimated(tmp_path):
    rows = texts(3000, 30)
    lines = "".join(json.dumps({"text": row}) + "\n" for row in rows).encode()
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines))
    pq.write_table(pa.table({"text": rows, "other": list(range(3000))}), tmp_path / "c.parquet")
    kinds = {"a.jsonl": "jsonl", "b.jsonl.gz": "jsonl", "c.parquet": "parquet"}
    sources = [
        {"kind": kind, "name": name, "path": str(tmp_path / name)} for name, kind in kinds.items()
    ]
    ingest = load_config({"name": "x", "ingest": {"sources": sources}}).ingest
    folder = tmp_path / "sample"
    folder.mkdir()
    sample = sample_sources(ingest, folder, max_bytes=200_000)
    for reading in sample.source_samples.values():
        assert not reading.is_complete and 0 < reading.document_count < 1500
        assert reading.document_count * reading.source_to_sample_ratio == pytest.approx(
            3000, rel=0.1
        )
        assert len(reading.file.read_text().splitlines()) == reading.document_count
    assert sample.text_bytes < 300_000
    folder = tmp_path / "all"
    folder.mkdir()
    sample = sample_sources(ingest, folder, max_bytes=10_000_000)
    assert (
        sample.is_complete and sample.corpus_to_sample_ratio == 1 and sample.document_count == 9000
    )


def test_many_small_files_are_read_up_to_the_budget(tmp_path):
    for number in range(3000):
        (tmp_path / f"{number:04d}.txt").write_text(f"This is number {number} of the small ones.")
    source = {"kind": "text", "name": "small", "path": str(tmp_path / "*.txt")}
    ingest = load_config({"name": "x", "ingest": {"sources": [source]}}).ingest
    (tmp_path / "sample").mkdir()
    sample = sample_sources(ingest, tmp_path / "sample", max_bytes=40_000)
    assert 900 < sample.document_count < 1100 and 2.7 < sample.corpus_to_sample_ratio < 3.3
    read = [
        json.loads(line)["text"].split()[3] for line in sample.source_samples["small"].file.open()
    ]
    assert {int(number) // 500 for number in read} == set(range(6))  # evenly spaced


def test_the_fixed_time_of_a_stage_is_not_scaled(tmp_path, monkeypatch):
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts(3000, 30))
    (tmp_path / "a.jsonl").write_text(lines)
    config = tmp_path / "x.toml"
    path = json.dumps(str(tmp_path / "a.jsonl"))
    source = f'[[ingest.sources]]\nkind = "jsonl"\nname = "a"\npath = {path}\n'
    config.write_text(f'name = "x"\n{source}')
    seconds = {"few-1": 9.0, "few-2": 0.25, "sample": 0.5}
    read = {}

    def tried(self, settings, name):
        (given,) = settings.ingest.sources
        read[name] = len(Path(given.path).read_text().splitlines())
        return SampleOutcome({}, {"language": seconds[name]}, None)

    monkeypatch.setattr("hallmark.flows.forecast.run_forecast.Forecaster._run_corpus_stages", tried)
    report = forecast_run(str(config), store=str(tmp_path / "store"), max_sample_bytes=20_000)
    (row,) = [row for row in report["stages"] if row["label"] == "language"]
    growth = report["sample"]["corpus_to_sample_ratio"]
    assert growth > 10 and row["seconds"] == pytest.approx(9.0 + 0.25 * growth)
    assert read["few-1"] == read["few-2"] == 4 < read["sample"] == report["sample"]["documents"]


def test_an_incomplete_total_time_is_a_minimum_and_names_missing_stages():
    row = {
        "label": "ingest",
        "state": "run",
        "reason": "",
        "artifact": None,
        "seconds": 40.0,
        "time_basis": "measured",
    }
    audit = row | {"label": "audit_bias", "seconds": None, "time_basis": ""}
    output = _render_stages(
        {
            "stages": [row, audit],
            "seconds": {"value": 40.0, "stages_without_estimate": ["audit_bias"]},
        }
    )
    assert output.endswith(
        "total time: at least about 40.0 s\n  measured\n  not included: audit_bias; "
        "neither the sample nor an earlier run in this store shows how long they take"
    )
    output = _render_stages(
        {"stages": [row], "seconds": {"value": 40.0, "stages_without_estimate": []}}
    )
    assert output.endswith("total time: about 40.0 s\n  measured")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_estimated_optimizer_memory_matches_its_state(optimizer):
    config = TrainConfig(optimizer=optimizer)
    model = Transformer(ModelConfig(vocab_size=50, context=16, d_model=32, n_layers=2, n_heads=2))
    logits(model, torch.zeros(1, 4, dtype=torch.int64)).sum().backward()
    held = 0
    for made in make_optimizers(model, config):
        made.step()
        held += sum(
            t.nbytes
            for state in made.state.values()
            for t in state.values()
            if torch.is_tensor(t) and t.ndim
        )
    weights = sum(p.nbytes for p in model.parameters())
    found = training_costs.estimate_memory_bytes_by_use(
        training_costs.count_parameters_by_group(model.config), config
    )
    assert found == {
        "weights": weights,
        "gradients": weights,
        "optimizer": held,
        "total": 2 * weights + held,
    }


def test_each_host_holds_its_share_of_a_sharded_model():
    counts = {"total": 1200, "matrices": 0}
    settings = {"parallel": "fsdp", "hosts": 3, "rendezvous": "a:1", "batch_size": 24}
    for processes, count in ((0, 3), (4, 12)):
        config = TrainConfig(**settings, processes=processes)
        memory = training_costs.estimate_memory_bytes_by_use(counts, config)
        assert memory["weights"] == 4 * 1200 // count


def test_each_shortage_is_named_with_the_setting_to_change():
    config = load_config("demo")
    names = ("documents", "train", "validation", "holdout", "train_rows", "passages")
    exact = {name: Estimate(0, True) for name in names}
    found = list(predict_problems(config, exact, Estimate(300, True), None, runs_audits=True))
    sure = [c.message for c in found if c.is_certain]
    assert [says.split("'")[1] for says in sure] == ["train", "validation"]
    assert any("split.holdout_share" in c.message for c in found if not c.is_certain)
    assert any("300 of the 4,096 vocabulary entries" in c.message for c in found)
    plenty = {name: Estimate(10_000) for name in names}
    assert not list(predict_problems(config, plenty, Estimate(4096, True), None, runs_audits=True))
    few = plenty | {"train_rows": Estimate(9), "passages": Estimate(39)}
    says = [
        c.message for c in predict_problems(config, few, Estimate(4096), 900.0, runs_audits=True)
    ]
    assert len(says) == 3
    assert "pretrain.train.batch_size" in says[1] and "about 900" in says[2]


PLENTY = {
    name: Estimate(10_000)
    for name in ("documents", "train", "validation", "holdout", "train_rows", "passages")
}


def predict_messages(estimates=None, config=None, *, vocabulary=None, expected_size=None):
    problems = predict_problems(
        config or load_config("demo"),
        PLENTY | (estimates or {}),
        vocabulary or Estimate(4096),
        expected_size,
        runs_audits=True,
    )
    return [problem.message for problem in problems]


@pytest.mark.parametrize("split", ["train", "validation", "holdout"])
def test_a_split_is_empty_or_expected_to_be_at_its_border(split):
    assert predict_messages({split: Estimate(1, True)}) == []
    assert predict_messages({split: Estimate(2.0)}) == []
    (message,) = predict_messages({split: Estimate(0, True)})
    assert message.startswith(f"the {split!r} split is empty: ")
    (message,) = predict_messages({split: Estimate(1.9)})
    assert message.startswith(f"the {split!r} split is expected to have 1.9 documents: ")
    assert predict_messages({split: Estimate(None)}) == []


def test_a_holdout_that_the_config_leaves_empty_is_no_problem():
    config = load_config("demo", ["split.holdout_share=0"])
    assert predict_messages({"holdout": Estimate(0, True)}, config) == []


def test_passages_are_scarce_below_the_number_to_plant():
    config = load_config("demo").plant_canaries
    needed = config.passages_per_count * len(config.copy_counts)
    assert predict_messages({"passages": Estimate(needed)}) == []
    (message,) = predict_messages({"passages": Estimate(needed - 1)})
    assert f"needs {needed} training documents" in message
    assert f"only about {needed - 1:,} are expected" in message
    exact = {"documents": Estimate(5, True), "passages": Estimate(0)}
    assert predict_messages(exact) == []  # then the stage itself has counted them


def test_packed_rows_are_scarce_below_a_batch():
    batch_size = load_config("demo").pretrain.train.batch_size
    for value in (0, batch_size, None):
        assert predict_messages({"train_rows": Estimate(value)}) == []
    (message,) = predict_messages({"train_rows": Estimate(batch_size - 1)})
    assert message.startswith(f"the corpus has about {batch_size - 1} packed rows, fewer than")
    (message,) = predict_messages({"train_rows": Estimate(1, True)})
    assert message.startswith("the corpus has 1 packed row, fewer than")


def test_a_vocabulary_is_small_below_the_configured_size():
    assert predict_messages(expected_size=4096.0) == []
    assert predict_messages(vocabulary=Estimate(4096, True)) == []
    (message,) = predict_messages(expected_size=4095.0)
    assert message.startswith("the corpus is expected to yield only about 4,095 of the 4,096 ")
    (message,) = predict_messages(vocabulary=Estimate(4095, True))
    assert message.startswith("the corpus yields only 4,095 of the 4,096 vocabulary entries")


def test_copies_of_one_text_leave_no_validation_text_and_train_no_model(absent, tmp_path):
    # Whichever split its hash assigns.
    trained = "[split]\nvalidation_share = 0.001\nholdout_share = 0.001\n"
    config = config_of(tmp_path, texts(1, 400) * 9, SMALL + trained)
    report = forecast_run(config)
    fails = [warning["message"] for warning in report["warnings"] if warning["is_certain"]]
    assert report["will_fail"] and any("raise split.validation_share" in says for says in fails)
    with pytest.raises(
        HallmarkError, match=r"would fail after training: .* split\.validation_share"
    ):
        pipeline.fn(config=config)
    assert (absent / "artifacts/plant_canaries").exists() and not (
        absent / "artifacts/pack"
    ).exists()
    pipeline.fn(config=config, until="pack")
    assert (absent / "artifacts/pack").exists()
