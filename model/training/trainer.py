"""Run one training, from its job to its last checkpoint and state.

A ``Trainer`` prepares data and model, resumes from the newest usable state, calls ``TrainingStep``
for each step, and writes log, validation, samples, checkpoints and states.
"""

from __future__ import annotations

import hashlib
import signal
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hallmark.model.architecture import Transformer
from hallmark.model.batch import Batch
from hallmark.model.config import BATCH_INVARIANT_SETTINGS, SCHEDULE_SETTINGS, config_to_dict
from hallmark.model.interchange import checkpoint
from hallmark.model.objectives import make_objective_function
from hallmark.model.precision import choose_dtype
from hallmark.model.training import parallel, state
from hallmark.model.training.adaptation import (
    copy_model_with_task_settings,
    freeze_all_but_output_layer,
)
from hallmark.model.training.background_writer import (
    TABLE_SCHEMAS,
    BackgroundWriter,
    RowsByTable,
    emit_checkpoint_event,
)
from hallmark.model.training.example_batches import make_example_objective
from hallmark.model.training.examples import open_dataset_rows
from hallmark.model.training.flops import count_training_flops
from hallmark.model.training.hardware import (
    choose_device,
    measure_matmul_flops_per_second,
    measure_peak_memory_mb,
    should_compile,
)
from hallmark.model.training.job import TERMINATED_EXIT_CODE, TrainingJob, check_job, emit_event
from hallmark.model.training.packed_rows import count_token_bytes, select_evenly_spaced_rows
from hallmark.model.training.prefetching import BatchBuilder, Prefetcher
from hallmark.model.training.samples import generate_sample_rows
from hallmark.model.training.schedule import is_checkpoint_due, is_state_due
from hallmark.model.training.step_metrics import PROGRESS_COLUMNS, DeviceTimestamp, StepMetrics
from hallmark.model.training.training_step import TrainingStep
from hallmark.model.training.validation import TARGET_OFFSETS, Validator
from hallmark.model.training.work_folder import (
    find_resumable_step,
    remove_unfinished_and_newer_outputs,
)

#: Objectives that used to draw for a whole batch: states from that time belong to another training.
ROW_SEEDED_OBJECTIVES = ("mlm", "prefix")


class Trainer:
    """One training, from its job to its last checkpoint, as seen by one of its processes."""

    def __init__(self, job: TrainingJob, world: parallel.DistributedWorld) -> None:
        self.work_folder = job.work_folder
        self.tokenizer_path = job.tokenizer_path
        self.world = world
        self.model_config = job.model_config
        self.config = job.train_config
        config = job.train_config
        if config.threads:
            torch.set_num_threads(config.threads)
        self.device = choose_device(config.device, world.local_rank)
        self.dtype = choose_dtype(config.precision, self.device)
        self.tokenizer = checkpoint.load_matching_tokenizer(
            self.tokenizer_path, job.model_config.vocab_size
        )
        check_job(job, world.size)
        self.objective: Callable[[Any, int, int], Batch]
        if job.uses_examples:
            self.objective = make_example_objective(job.model_config, config.objective)
        else:
            self.objective = make_objective_function(
                config.objective,
                document_mask=config.document_mask,
                context=job.model_config.context,
                vocab_size=job.model_config.vocab_size,
                find_token_id=self.tokenizer.token_to_id,
            )
        world.connect(self.device)
        self._open_data(job)
        torch.manual_seed(config.seed)
        self._build_model(job)
        self.tables = _make_empty_tables()
        #: Steps whose metrics the device may still be computing.
        self.pending_metrics: deque[StepMetrics] = deque()
        self.last_log_row: dict[str, Any] = {}
        self.writer = BackgroundWriter(self.work_folder, self.tokenizer_path, config)
        self.is_terminated = False
        self.step = 0
        #: The first step and the settings of each period of the training; they may change on
        #: resume.
        self.settings_history: list[dict[str, Any]] = [
            {"from": 1, "settings": self._collect_resumable_settings()}
        ]

    def _collect_resumable_settings(self) -> dict[str, Any]:
        """Return the current values of the settings that may change when a training resumes."""
        setting_names = (BATCH_INVARIANT_SETTINGS | set(SCHEDULE_SETTINGS)) - {
            "keep_states",
            "rendezvous",
        }
        settings = {
            name: value
            for name, value in config_to_dict(self.config).items()
            if name in setting_names
        }
        processes = self.world.size // self.config.hosts
        settings |= {"device": self.device.type, "processes": processes}
        return settings | {"precision": self.precision_name, "compile": self.is_compiled}

    @property
    def precision_name(self) -> str:
        return "bf16" if self.dtype is torch.bfloat16 else "fp32"

    def _open_data(self, job: TrainingJob) -> None:
        """Map the rows; the first process copies packed rows while the others wait."""
        sources = {"train.bin": job.train_data, "validation.bin": job.validation_data}
        if not self.world.is_first:
            self.world.wait_for_all()
        rows_by_file = {
            name: open_dataset_rows(
                source, self.work_folder / name, job.model_config, job.uses_examples
            )
            for name, source in sources.items()
            if source
        }
        if self.world.is_first:
            self.world.wait_for_all()
        self.train_rows = rows_by_file["train.bin"]
        batch_builder = BatchBuilder(
            self.train_rows,
            self.objective,
            self.config.seed,
            self.config.batch_size,
            self.config.accumulation_steps,
            self.world.rank,
            self.world.size,
            pin_memory=self.device.type == "cuda",
            count_flops=lambda batch: count_training_flops(self.model, batch),
        )
        self.prefetcher = Prefetcher(batch_builder, self.config.steps)
        start_weights = job.start_checkpoint and checkpoint.find_weights_file(job.start_checkpoint)
        excluded_settings = {*BATCH_INVARIANT_SETTINGS, *SCHEDULE_SETTINGS}  # may change on resume
        is_first = self.world.is_first
        self.identity = {
            "model": config_to_dict(self.model_config),
            "train": {
                name: value
                for name, value in config_to_dict(self.config).items()
                if name not in excluded_settings
            },
            "data": [rows.sha256 for rows in rows_by_file.values()] if is_first else None,
            "start": _hash_file(start_weights) if start_weights and is_first else None,
            "frozen": job.has_frozen_body,
        }
        if self.config.objective in ROW_SEEDED_OBJECTIVES and not job.uses_examples:
            self.identity["draws"] = "by row"
        self.validator = None
        if "validation.bin" in rows_by_file:
            label_lengths = np.zeros(len(job.model_config.labels), np.int32)  # labels have no bytes
            token_byte_lengths = (
                label_lengths if len(label_lengths) else count_token_bytes(self.tokenizer)
            )
            self.validator = Validator(
                rows_by_file["validation.bin"],
                self.objective,
                token_byte_lengths,
                sequence_count=self.config.validation_sequences,
                target_offset=TARGET_OFFSETS.get(self.config.objective),
                groups_path=job.groups_path,
                world=self.world,
            )

    def _build_model(self, job: TrainingJob) -> None:
        """Build the model with its initial weights, which are the same in all processes."""
        start_folder = job.start_checkpoint
        if start_folder is None:
            model = Transformer(self.model_config)
        else:
            model = checkpoint.load_checkpoint(start_folder, objective=self.config.objective)
            if model.config != self.model_config:
                if not job.uses_examples:
                    raise ValueError(
                        f"The model config of the checkpoint {start_folder} differs from the "
                        "job's model config, and training on packed text cannot change it: use "
                        "the checkpoint's model config in the job."
                    )
                model = copy_model_with_task_settings(
                    model, self.model_config, f"The checkpoint {start_folder}"
                )
            start_tokenizer = (start_folder / checkpoint.TOKENIZER_FILE).read_bytes()
            if start_tokenizer != self.tokenizer_path.read_bytes():
                raise ValueError(
                    f"The tokenizer of the checkpoint {start_folder} differs from the job's "
                    "tokenizer: pack the corpus with the checkpoint's tokenizer, and use that "
                    "tokenizer in the job."
                )
        if self.world.rank:
            torch.manual_seed(self.config.seed + self.world.rank)  # own dropout in each process
        self.model = model.to(self.device)
        self.model.objective = self.config.objective
        self.model.is_trained_on_pairs = job.trains_on_pairs
        if job.has_frozen_body:
            freeze_all_but_output_layer(self.model)
        for stack in (model.encoder, model.decoder):
            if stack is not None:
                stack.recompute = self.config.activation_checkpointing
        self.parameter_count = model.count_parameters_by_group()["total"]
        parallel_mode, z_loss = self.config.parallel, self.config.z_loss
        self.is_sharded = parallel_mode == "fsdp" and self.world.size > 1
        skip_by_default = self.is_sharded or job.uses_examples
        self.is_compiled = should_compile(self.config.compile, self.device, skip_by_default)
        # Packed rows have one shape, or a few; each batch of examples has a length of its own.
        loss_of_batch = self.world.shard_model_and_wrap_loss(
            self.model, parallel_mode, self.is_compiled, z_loss, not job.uses_examples
        )
        self.training_step = TrainingStep(
            self.model,
            loss_of_batch,
            self.config,
            self.world,
            dtype=self.dtype,
            has_frozen_body=job.has_frozen_body,
        )

    def run_until_done(self) -> int:
        """Train to the end, or until SIGTERM; return the process's exit code."""
        signal.signal(signal.SIGTERM, self._handle_sigterm)
        try:
            return self._resume_and_train()
        finally:
            self.prefetcher.stop()
            self.writer.shut_down()

    def _resume_and_train(self) -> int:
        is_resumed = self._try_resume_from_state()
        self.peak_flops_per_second = (
            measure_matmul_flops_per_second(self.device, self.dtype) * self.world.size
        )
        self._emit_event(
            "start",
            step=self.step,
            steps=self.config.steps,
            parameters=self.parameter_count,
            device=self.device.type,
            precision=self.precision_name,
            threads=torch.get_num_threads(),
            processes=self.world.size,
            matmul_tflops=round(self.peak_flops_per_second / 1e12, 3),
            resumed=is_resumed,
            stretches=len(self.settings_history),
        )
        if is_resumed:
            if self.world.is_first:
                for folder in sorted((self.work_folder / "checkpoints").glob("step-*")):
                    emit_checkpoint_event(folder)
        else:
            self._run_validation()  # the model before its first step
            self._save_state_in_background(self.model)
        if not self._train_until_done_or_terminated():
            return TERMINATED_EXIT_CODE
        self._emit_event("done", step=self.step, history=self.settings_history)
        self.world.wait_for_all()  # no process exits while another is communicating
        return 0

    def _train_until_done_or_terminated(self) -> bool:
        """Take the remaining steps and wait for their outputs; return False after SIGTERM."""
        config, last_progress_time = self.config, 0.0
        self.last_timestamp = DeviceTimestamp(self.device)
        while self.step < config.steps:
            self.writer.raise_write_error()
            if self.world.sum_on_cpu(torch.tensor(self.is_terminated, dtype=torch.int64)).item():
                self._log_pending_steps()
                self._save_state_in_background(None)
                self.writer.wait_until_written()
                return False
            self._train_step(self.step + 1)
            self.step += 1
            is_last = self.step == config.steps
            is_validation_due = is_last or self.step % config.validate_every == 0
            is_checkpoint_step = is_last or is_checkpoint_due(config, self.step)
            is_state_step = is_checkpoint_step or is_state_due(config, self.step)
            # Log one step late, so that the device has work while the metrics are read.
            self._log_pending_steps(keep_newest=0 if is_validation_due or is_state_step else 1)
            if is_validation_due:
                self.last_log_row["validation_bits_per_token"] = self._run_validation()
                self._generate_samples()
            if self.tables["log"] and (is_last or time.monotonic() - last_progress_time >= 0.5):
                last_progress_time = time.monotonic()
                self._emit_progress()
            if is_state_step:
                self._save_state_in_background(self.model if is_checkpoint_step else None)
            if is_validation_due or is_state_step:
                self.last_timestamp = DeviceTimestamp(self.device)
        self.writer.wait_until_written()
        return True

    def _emit_progress(self) -> None:
        self._emit_event("step", **{name: self.last_log_row[name] for name in PROGRESS_COLUMNS})

    def _train_step(self, step: int) -> None:
        batch = self.prefetcher.get_batch(step)
        self.pending_metrics.append(self.training_step.run(step, batch))

    def _log_pending_steps(self, keep_newest: int = 0) -> None:
        """Log the pending steps, except the ``keep_newest`` newest.

        If training stops at a divergent step, it stops here, perhaps one step later. That later
        step is neither logged nor saved.
        """
        while len(self.pending_metrics) > keep_newest:
            metrics = self.pending_metrics.popleft()
            if metrics.is_skipped is None:
                self.training_step.record_whether_skipped(metrics)
            assert metrics.finished_at is not None
            seconds = metrics.finished_at.seconds_since(self.last_timestamp)
            self.last_timestamp = metrics.finished_at
            self.last_log_row = metrics.to_log_row(
                seconds, self.peak_flops_per_second, measure_peak_memory_mb(self.device)
            )
            self.tables["log"].append(self.last_log_row)

    def _run_validation(self) -> float | None:
        """Measure the loss on the validation rows; return bits per token."""
        if self.validator is None:
            return None
        self.model.eval()
        with self.training_step.make_autocast_context():
            result = self.validator.measure_loss(self.model)
        self.tables["validation"] += [{"step": self.step, **row} for row in result.table_rows]
        if result.bits_per_token is not None:
            self._emit_event("validation", step=self.step, bits_per_token=result.bits_per_token)
        return result.bits_per_token

    def _generate_samples(self) -> None:
        """Generate sample texts, if the model has a decoder and a vocabulary.

        The processes of a sharded model all generate the same texts, since each block is gathered
        from all of them; otherwise only the first process generates.
        """
        config, encoder_sources = self.config, None
        if not config.sample_count or self.model.decoder is None or self.model_config.labels:
            return
        if not (self.is_sharded or self.world.is_first):
            return
        if self.model.encoder is not None:
            rows = self.validator.validation_rows if self.validator else self.train_rows
            encoder_sources = self.objective(
                rows.read_rows(select_evenly_spaced_rows(len(rows), config.sample_count)), 0, 0
            )
        samples = generate_sample_rows(
            self.model,
            self.tokenizer,
            decoder_sample_count=config.sample_count,
            max_tokens=config.sample_tokens,
            seed=config.seed,
            encoder_sources=encoder_sources,
            precision=config.precision,
        )
        self.tables["samples"] += [{"step": self.step, **row} for row in samples]

    def _save_state_in_background(self, checkpoint_model: Transformer | None) -> None:
        """Write state and tables, and a checkpoint if ``checkpoint_model`` is given."""
        header = {
            "step": self.step,
            "identity": self.identity,
            "config": config_to_dict(self.config),
            "history": self.settings_history,
        }
        snapshot = state.take_snapshot(
            header,
            self.model,
            self.training_step.optimizers,
            self.training_step.spike_guard,
            self.world,
        )
        if snapshot is not None:
            self.writer.start_writing(snapshot, self.tables, checkpoint_model)
        self.tables = _make_empty_tables()

    def _emit_event(self, event: str, **fields: Any) -> None:
        if self.world.is_first:
            emit_event(event, **fields)

    def _try_resume_from_state(self) -> bool:
        """Restore the newest state that this training can resume from, and remove newer outputs.

        Returns:
            False if there is no state.
        """
        # Only the first process looks: on a network file system each might see a different state.
        resumable_step = None
        if self.world.is_first:
            resumable_step = find_resumable_step(self.work_folder, self.identity, self.config)
        step_plus_one = torch.tensor(0 if resumable_step is None else resumable_step + 1)
        agreed_step = int(self.world.sum_on_cpu(step_plus_one)) - 1
        if self.world.is_first:
            remove_unfinished_and_newer_outputs(self.work_folder, resumable_step)
        if agreed_step < 0:
            return False
        restored_state = state.restore_training_state(
            self.work_folder, agreed_step, self.model, self.training_step.optimizers, self.world
        )
        self.training_step.spike_guard = restored_state.spike_guard
        self.step = agreed_step
        saved_history = restored_state.header["history"]
        history = [period for period in saved_history if period["from"] <= agreed_step]
        current_settings = self.settings_history[0]["settings"]
        if not history or history[-1]["settings"] != current_settings:
            history.append({"from": agreed_step + 1, "settings": current_settings})
        self.settings_history = history
        return True

    def _handle_sigterm(self, *_: Any) -> None:
        self.is_terminated = True


def _make_empty_tables() -> RowsByTable:
    return {name: [] for name in TABLE_SCHEMAS}


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
