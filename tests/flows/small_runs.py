"""Execute runs of a few small stages, for tests of what a store keeps of runs."""

import json

import pyarrow as pa

from hallmark.flows.config import load_config
from hallmark.flows.run_recording import record_run
from hallmark.flows.runs import Run
from hallmark.tasks.contract import StageConfig, StageContext, Store, stage
from tests.tasks.contract.stages import CountConfig, DropConfig, MakeConfig, count, drop, make


class WeightsConfig(StageConfig):
    seed: int = 0


#: What a training writes about its checkpoints, and a file of weights.
CHECKPOINTS = pa.schema([("step", pa.int64()), ("artifact", pa.string())])


@stage(name="train_small", tables={"checkpoints": CHECKPOINTS})
def train_small(config: WeightsConfig, context: StageContext) -> None:
    folder = context.prepare_output_path("weights").parent.parent / "step"
    folder.mkdir()
    (folder / "model.bin").write_bytes(bytes([config.seed]) * 5000)
    checkpoint = context.commit_child_artifact("checkpoint", {"step": 7}, folder)
    context.get_table_writer("checkpoints").write({"step": [7], "artifact": [checkpoint.name]})


def execute_small_run(store: Store, documents: int = 30, **record_fields) -> Run:
    """Execute a run with a corpus and a training in this process."""
    with record_run("corpus", load_config("smoke"), store) as run:
        run.update_record(**record_fields)
        made = make(MakeConfig(documents=documents, parts=2))
        kept = drop(made["documents"], DropConfig())
        count(kept["documents"], CountConfig())
        train_small(WeightsConfig(seed=documents))
    return run


def read_record(store: Store, run: Run) -> dict:
    return json.loads(store.get(f"runs/{run.id}/run.json"))
