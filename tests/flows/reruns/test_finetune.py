"""`hallmark finetune` on the model of the smoke run."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks import toy_language
from hallmark import open_run
from hallmark.flows.checkpoint_resolution import resolve_checkpoint
from hallmark.flows.commands.finetune import render_scores
from hallmark.tasks.contract import UsageError
from tests.reports import pages
from tests.run_requests import resolve

pytestmark = pytest.mark.slow

STAGES = ["finetune", "task_card"]


def write_config(folder, task='kind = "classification"', more=""):
    rows = [
        {"text": s.to_text(), "label": s.name_bigger_role()}
        for s in toy_language.generate_sentences(60, 1)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = folder / "task.toml"
    config.write_text(
        f'name = "task"\n[finetune.task]\n{task}\n[finetune.data]\n'
        f'path = "{folder / "rows.jsonl"}"\n[finetune.train]\nsteps = 6\nwarmup_steps = 1\n'
        f"batch_size = 8\ncheckpoint_every = 6\n{more}"
    )
    return config


@pytest.fixture(scope="module")
def tuned(smoke, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    config = write_config(folder)
    done = smoke("finetune", f"{smoke.first}@60", "--config", str(config))
    ids = sorted(path.name for path in (smoke.store / "runs").iterdir())
    return done, open_run(ids[-1], str(smoke.store)), config


def test_the_command_prints_scores_and_the_location_of_the_model(smoke, tuned):
    done, run, _ = tuned
    assert run.record["flow"] == "finetune" and list(run.stages) == STAGES
    scores = run["finetune"]["scores"].read().to_pylist()
    assert render_scores(scores) in done.stdout and "bag of words" in done.stdout
    model = done.stdout.strip().splitlines()[-1].removeprefix("model: ")
    assert model.startswith("checkpoint/")
    assert run.record["checkpoint"] == f"{smoke.first}@60"
    report = smoke.json("status", run.id)
    assert [stage["label"] for stage in report["stages"]] == STAGES
    assert not any(stage["stale_reasons"] for stage in report["stages"])


def test_a_second_fine_tuning_is_cached(smoke, tuned):
    config = tuned[2]
    report = smoke.json("finetune", f"{smoke.first}@60", "--config", str(config))
    assert [stage["cached"] for stage in report["stages"]] == [True, True]
    report = smoke.json(
        "finetune", f"{smoke.first}@60", "--config", str(config), "--set", "finetune.train.steps=5"
    )
    assert [stage["cached"] for stage in report["stages"]] == [False, False]


def test_the_site_links_the_card_whose_commands_run(smoke, tuned, monkeypatch, capsys):
    _, run, _ = tuned
    site = smoke.store / "site"
    page = f"runs/{run.id}/task_card/task_card.html"
    head, *lines = pages.read(site / "index.html").tables[0]
    [line] = [dict(zip(head, line, strict=True)) for line in lines if run.id in line[0]]
    assert line["cards"] == "Task card" and line["step"] == "6" and "parameters" in line["model"]
    assert page in [href for href, _ in pages.read(site / "index.html").links]
    found = pages.read(site / page)
    [row] = [
        r
        for r in run["finetune"]["scores"].read().to_pylist()
        if (r["system"], r["metric"]) == ("model", "accuracy")
    ]
    assert f"accuracy {100 * row['value']:.1f} %" in found.text
    assert "at step 60." in found.text and pages.broken_links((site / page).parent) == []
    monkeypatch.setenv("HALLMARK_STORE", str(smoke.store))
    lines = re.findall(
        r"```python\n(.*?)```",
        (pages.write_pages(run["task_card"]) / "task_card.md").read_text(),
        re.S,
    )
    for block in lines:
        exec(block, {})
    assert len(lines) == 2 and capsys.readouterr().out.count("\n") == 2


def test_the_replay_of_a_fine_tuning_passes(smoke, tuned):
    [verdict] = smoke.json("replay", tuned[1].id)["replays"]
    assert [row["label"] for row in verdict["stages"]] == STAGES
    assert [row["verdict"] for row in verdict["stages"]] == ["equal", "equal"]


def test_missing_settings_come_from_the_run_of_the_checkpoint(smoke, tuned):
    _, run, config = tuned
    first = open_run(smoke.first, str(smoke.store))
    assert run.config.ingest == first.config.ingest
    assert run.config.name == "task" and run.config.finetune.train.steps == 6
    settled = resolve(str(config), [], checkpoint=f"{smoke.first}@0", store=str(smoke.store))
    assert settled.config.pretrain == first.config.pretrain


def test_a_model_of_labels_is_not_a_language_model(smoke, tuned):
    _, run, _ = tuned
    done = smoke("audit", run.id, "--only", "bias", code=2)
    assert "outputs labels, not text; this command needs a language model" in done.stderr
    done = smoke("run", "smoke", "--start-checkpoint", run.id, code=2)
    assert "the model predicts labels and cannot generate text" in done.stderr


def test_a_purge_names_models_that_were_fine_tuned(smoke, tuned):
    _, run, _ = tuned
    first = open_run(smoke.first, str(smoke.store))
    subject = resolve_checkpoint(run.store, run.id)
    made = run["finetune"]["checkpoints"].read(["artifact"])["artifact"].to_pylist()
    assert subject.checkpoint.name == made[-1] and subject.training_run is None
    assert subject.corpus.latest_addition["plant_canaries"].name == first["plant_canaries"].name
    read = smoke.json("batch", smoke.first, "--step", "1")["sequences"][0]["spans"][0]["doc_id"]
    report = smoke.json("purge", read, "--dry-run")
    rows = {row["checkpoint"]: row for row in report["checkpoints"]}
    assert rows[made[-1]]["start_checkpoint"] == first.find_checkpoints()[-1].name


def test_wrong_arguments_are_reported_before_anything_runs(smoke, tmp_path):
    config = write_config(tmp_path, 'kind = "poems"')
    done = smoke("finetune", f"{smoke.first}@0", "--config", str(config), code=2)
    assert "finetune.task" in done.stderr and str(config) in done.stderr
    done = smoke("finetune", f"{smoke.first}@0", "--config", "smoke", code=2)
    assert "the config has no [finetune] section" in done.stderr
    config = write_config(tmp_path)
    config.write_text(config.read_text().replace(str(tmp_path), "~nobody-has-this-name"))
    done = smoke("finetune", f"{smoke.first}@60", "--config", str(config), code=2)
    assert "~nobody-has-this-name/rows.jsonl does not exist" in done.stderr
    config = write_config(tmp_path, more="[finetune.data.more]\n")
    done = smoke("finetune", "nowhere", "--config", str(config), code=2)
    assert "there is no checkpoint 'nowhere'" in done.stderr
    with pytest.raises(UsageError, match="fine-tuning has its own command: hallmark finetune"):
        resolve("smoke", [], "finetune", store=str(smoke.store))
