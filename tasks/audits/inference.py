"""Answer requests: the only stage of an audit that runs the audited model.

Requests are answered in chunks that depend on the requests alone, so a killed stage loses at most
one chunk. The model is opened at the first unanswered chunk, once for all probes: on Ray by each
worker that lasts, else in this process. The stage does not know the use of the answers, so a change
of scorer, threshold or statistic repeats no inference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from hallmark.tasks.audits.audit_tables import (
    EMBEDDINGS,
    MODEL,
    REQUEST_SETTINGS,
    REQUESTS,
    RESPONSES,
    UNTRAINED_LOG_PROBS,
    UNTRAINED_MODELS,
    Embedding,
    Response,
)
from hallmark.tasks.audits.audited_models.audited_model import (
    AuditedModel,
    ModelDtype,
    ScoredContinuation,
)
from hallmark.tasks.audits.audited_models.audited_tokenizer import METADATA_FILES
from hallmark.tasks.audits.audited_models.opening import DTYPE_DESCRIPTION, open_audited_model
from hallmark.tasks.contract import (
    Artifact,
    DeviceName,
    ExternalFiles,
    FileChangedError,
    Row,
    StageConfig,
    StageContext,
    Table,
    TableWriters,
    record_external_folder,
    rows_to_table,
    stage,
)

#: Size of a chunk in tokens to generate, or to read: a killed stage resumes after the last chunk.
GENERATED_TOKENS_PER_CHUNK, READ_TOKENS_PER_CHUNK = 1 << 15, 1 << 18

#: Kinds of requests whose cost is the number of generated tokens.
GENERATION_KINDS = ("generate", "complete")

#: Seed of the weights of the untrained model.
UNTRAINED_SEED = 0

#: Number of small untrained models, and the seed of the first; seeds that nobody else chooses.
SMALL_MODEL_COUNT, FIRST_SMALL_MODEL_SEED = 20, 7_000_000


#: The row of MODEL, by column.
ModelRow = dict[str, Any]

#: The tables of responses.
RESPONSE_TABLES = {"responses": RESPONSES, "embeddings": EMBEDDINGS}


class RespondConfig(StageConfig):
    """Settings of inference with the audited model."""

    device: DeviceName = Field(default="auto", description="device on which the audited model runs")
    dtype: ModelDtype = Field(default="auto", description=DTYPE_DESCRIPTION)
    batch_size: int | None = Field(
        default=None,
        ge=1,
        description="maximum number of rows per call to a Hugging Face model, not counting beams "
        "in a beam search; by default, as many rows as fit into the memory reserved for logits",
    )


@dataclass(frozen=True)
class RequestChunk:
    """Hold requests of one kind that are answered together."""

    number: int
    requests: pa.Table

    def __str__(self) -> str:
        return f"request chunk {self.number + 1}"


def group_distinct_requests_into_chunks(requests: pa.Table) -> list[RequestChunk]:
    """Split the distinct requests into chunks, ordered by settings and length."""
    request_ids = requests["request"].to_pylist()
    first_rows = list(
        {request: position for position, request in reversed([*enumerate(request_ids)])}.values()
    )
    distinct_requests = requests.take(pa.array(sorted(first_rows), pa.int64()))
    request_rows = distinct_requests.select(
        [*REQUEST_SETTINGS, "request", "context_ids", "target_ids"]
    ).to_pylist()
    order = sorted(
        range(len(request_rows)),
        key=lambda i: (
            *_build_settings_key(request_rows[i]),
            _count_read_tokens(request_rows[i]),
            request_rows[i]["request"],
        ),
    )
    chunk_starts, chunk_cost, kind = [0], 0, ""
    for position, index in enumerate(order):
        request_row = request_rows[index]
        request_cost = (
            request_row["draws"] * request_row["max_new_tokens"]
            if request_row["kind"] in GENERATION_KINDS
            else _count_read_tokens(request_row)
        )
        max_cost = (
            GENERATED_TOKENS_PER_CHUNK
            if request_row["kind"] in GENERATION_KINDS
            else READ_TOKENS_PER_CHUNK
        )
        if position > chunk_starts[-1] and (
            chunk_cost + request_cost > max_cost or request_row["kind"] != kind
        ):
            chunk_starts.append(position)
            chunk_cost = 0
        chunk_cost, kind = chunk_cost + request_cost, request_row["kind"]
    ends = [*chunk_starts[1:], len(order)]
    return [
        RequestChunk(number, distinct_requests.take(pa.array(order[begin:end], pa.int64())))
        for number, (begin, end) in enumerate(zip(chunk_starts, ends, strict=True))
        if begin < end
    ]


def _build_settings_key(request_row: Row) -> tuple[Any, ...]:
    """Return the values of REQUEST_SETTINGS, in a form that can be sorted."""
    return tuple(
        -1 if request_row[name] is None else request_row[name] for name in REQUEST_SETTINGS
    )


def _count_read_tokens(request_row: Row) -> int:
    """Count the tokens of the context and of all targets."""
    target_tokens = sum(len(target) for target in request_row["target_ids"] or ())
    return len(request_row["context_ids"]) + target_tokens


#: The model opened last, by its digest and settings, with the external files that it was loaded
#: from.
_opened_model: dict[tuple[str, str], tuple[AuditedModel, ExternalFiles]] = {}


def open_cached_model(
    checkpoint: Artifact,
    config: RespondConfig,
    untrained_seed: int | None = None,
    *,
    is_scaled_down: bool = False,
) -> AuditedModel:
    """Return the model of a checkpoint, cached until another is requested or its files change.

    With an ``untrained_seed`` it has random weights instead of the trained ones. Scaled-down models
    with several seeds are one object, whose weights change.

    Raises:
        FileChangedError: The files are not those of the checkpoint's digest, or a file changed
            while the model was loaded.
    """
    seed_key = "any, scaled down" if is_scaled_down else untrained_seed
    key = (checkpoint.content_digest, f"{config.model_dump_json()} {seed_key}")
    if key not in _opened_model or _opened_model[key][1].describe_first_change():
        _opened_model.clear()
        watched_files = record_external_folder(checkpoint)
        model = open_audited_model(
            checkpoint,
            config.device,
            dtype=config.dtype,
            batch_size=config.batch_size,
            untrained_seed=untrained_seed,
            is_scaled_down=is_scaled_down,
        )
        watched_files.check_unchanged()
        _opened_model[key] = model, watched_files
    elif is_scaled_down and untrained_seed is not None:
        _opened_model[key][0].redraw_untrained_weights(untrained_seed)
    return _opened_model[key][0]


def answer_chunk(
    chunk: RequestChunk,
    checkpoint: Artifact,
    config: RespondConfig,
    untrained_seed: int | None,
    out: TableWriters,
) -> ModelRow:
    """Write the responses to the requests of a chunk, and return the row of MODEL."""
    model, requests = (
        open_cached_model(checkpoint, config, untrained_seed),
        chunk.requests.to_pylist(),
    )
    responses = list(generate_responses(model, requests))
    table_name = "embeddings" if requests[0]["kind"] == "embed" else "responses"
    out.get_table_writer(table_name).write(rows_to_table(responses, RESPONSE_TABLES[table_name]))
    return model.build_inference_settings_row()


def generate_responses(model: AuditedModel, requests: list[Row]) -> Iterator[Response | Embedding]:
    """Yield responses, or embeddings, for rows of REQUESTS of one kind."""
    answer_by_kind: dict[str, Callable[[AuditedModel, list[Row]], Iterable[Any]]] = {
        "generate": _generate_texts,
        "score": _score_targets,
        "complete": _complete_texts,
        "embed": _embed_targets,
    }
    for _, group in groupby(requests, key=_build_settings_key):
        similar_requests = list(group)
        yield from answer_by_kind[similar_requests[0]["kind"]](model, similar_requests)


def _generate_texts(model: AuditedModel, requests: list[Row]) -> list[Response]:
    """Generate texts, and score them again where ranks or lower case are requested."""
    settings = requests[0]
    sampling_names = ("temperature", "first_temperature", "top_p", "top_k", "seed")
    generations = model.generate_continuations(
        [row["context_ids"] for row in requests],
        max_new_tokens=settings["max_new_tokens"],
        samples=settings["draws"],
        **{name: settings[name] for name in sampling_names},
    )
    responses = _build_text_responses(model, requests, generations)
    contexts = [row["context_ids"] for row in requests for _ in range(row["draws"])]
    if settings["rank_statistics"]:
        statistics = _build_rank_columns(
            model, contexts, [generated.token_ids for texts in generations for generated in texts]
        )
        responses = [
            replace(response, **columns | {"log_probs": response.log_probs})
            for response, columns in zip(responses, statistics, strict=True)
        ]
    if settings["score_lowercase"]:
        lowercase_ids = model.encode_batch(
            [(response.text or "").lower() for response in responses]
        )
        lowercase_log_probs = model.compute_target_log_probs(contexts, lowercase_ids)
        responses = [
            replace(response, lowercase_log_probs=log_probs)
            for response, log_probs in zip(responses, lowercase_log_probs, strict=True)
        ]
    return responses


def _complete_texts(model: AuditedModel, requests: list[Row]) -> list[Response]:
    completions = model.generate_completions(
        [row["context_ids"] for row in requests],
        [row["target_ids"][0] for row in requests],
        completion_count=requests[0]["draws"],
        max_new_tokens=requests[0]["max_new_tokens"],
    )
    return _build_text_responses(model, requests, completions)


def _build_text_responses(
    model: AuditedModel, requests: list[Row], generations: list[list[ScoredContinuation]]
) -> list[Response]:
    return [
        Response(
            request=row["request"],
            draw=draw,
            token_ids=generated.token_ids,
            text=model.decode(generated.token_ids),
            log_probs=generated.log_probs,
            stop_reason="end" if generated.has_ended else "length",
        )
        for row, texts in zip(requests, generations, strict=True)
        for draw, generated in enumerate(texts)
    ]


def _embed_targets(model: AuditedModel, requests: list[Row]) -> Iterator[Embedding]:
    layer = requests[0]["layer"]
    targets = [target for row in requests for target in row["target_ids"]]
    positions = [
        target_positions for row in requests for target_positions in row["target_positions"]
    ]
    vectors = iter(model.compute_mean_hidden_states(targets, positions, layer))
    for row in requests:
        for draw in range(len(row["target_ids"])):
            yield Embedding(request=row["request"], draw=draw, layer=layer, vector=next(vectors))


def _score_targets(model: AuditedModel, requests: list[Row]) -> Iterator[Response]:
    token_scores = iter(_build_token_columns(model, requests))
    for row in requests:
        for draw in range(len(row["target_ids"])):
            yield Response(request=row["request"], draw=draw, **next(token_scores))


def _build_token_columns(model: AuditedModel, requests: list[Row]) -> list[Row]:
    """Build the columns of RESPONSES about tokens, one row per target, for one setting."""
    if model.model_kind == "masked":
        from hallmark.tasks.audits.audited_models.masked_model import MaskedModel

        assert isinstance(model, MaskedModel)
        targets = [target for row in requests for target in row["target_ids"]]
        positions = [
            target_positions
            for row in requests
            for target_positions in row["target_positions"]
            or [[*range(len(target))] for target in row["target_ids"]]
        ]
        return [
            {"log_probs": log_probs}
            for log_probs in model.compute_masked_log_probs(targets, positions)
        ]
    if requests[0]["rank_statistics"]:
        return _build_rank_columns(model, *_list_contexts_and_targets(requests))
    return [
        {"log_probs": log_probs}
        for log_probs in model.compute_target_log_probs(*_list_contexts_and_targets(requests))
    ]


def _build_rank_columns(
    model: AuditedModel, contexts: list[list[int]], targets: list[list[int]]
) -> list[Row]:
    """Build the columns of RESPONSES about ranks and log probabilities, one row per target."""
    statistics = model.compute_rank_statistics(contexts, targets)
    return [
        {
            "log_probs": target_statistics.log_probs,
            "ranks": target_statistics.rank + 1,
            "vocabulary_mean": target_statistics.mean_log_prob,
            "vocabulary_std": target_statistics.std_log_prob,
        }
        for target_statistics in statistics
    ]


def _list_contexts_and_targets(requests: list[Row]) -> tuple[list[list[int]], list[list[int]]]:
    """Return the context and the token ids of each target."""
    return (
        [row["context_ids"] for row in requests for _ in row["target_ids"]],
        [target for row in requests for target in row["target_ids"]],
    )


@stage(
    name="respond",
    tables={**RESPONSE_TABLES, "model": MODEL},
    libraries=["numpy", "tokenizers", "torch", "transformers"],
    determinism="machine",
)
def respond(
    checkpoint: Artifact, requests: Table, config: RespondConfig, context: StageContext
) -> None:
    """Answer the requests of a probe; "generate" needs a context of at least one token."""
    _answer_requests(checkpoint, requests, config, context, None)


@stage(
    name="respond_untrained",
    tables={**RESPONSE_TABLES, "model": MODEL},
    libraries=["numpy", "tokenizers", "torch", "transformers"],
    determinism="machine",
    reads={"checkpoint": METADATA_FILES},
)
def respond_untrained(
    checkpoint: Artifact, requests: Table, config: RespondConfig, context: StageContext
) -> None:
    """Answer the requests with the model before any training, as a baseline.

    All checkpoints of one training share the answers.
    """
    _answer_requests(checkpoint, requests, config, context, UNTRAINED_SEED)


def _answer_requests(
    checkpoint: Artifact,
    requests: Table,
    config: RespondConfig,
    context: StageContext,
    untrained_seed: int | None,
) -> None:
    device = context.share_model_between_items(config.device)
    request_rows = requests.read(REQUESTS.names)
    chunk_results = context.map_items(
        answer_chunk,
        group_distinct_requests_into_chunks(request_rows),
        checkpoint,
        config.model_copy(update={"device": device}),
        untrained_seed,
    )
    model_rows = [result.value for result in chunk_results[:1]]
    context.get_table_writer("model").write(pa.Table.from_pylist(model_rows, schema=MODEL))


@dataclass(frozen=True)
class SmallModel:
    """Name a small untrained model by its number, from 0."""

    number: int

    @property
    def seed(self) -> int:
        """The seed of its weights."""
        return FIRST_SMALL_MODEL_SEED + self.number

    def __str__(self) -> str:
        return f"untrained model {self.number + 1}"


@stage(
    name="respond_untrained_models",
    tables={"untrained_models": UNTRAINED_MODELS, "untrained_log_probs": UNTRAINED_LOG_PROBS},
    libraries=["numpy", "tokenizers", "torch", "transformers"],
    determinism="machine",
    reads={"checkpoint": METADATA_FILES},
)
def respond_untrained_models(
    checkpoint: Artifact, requests: Table, config: RespondConfig, context: StageContext
) -> None:
    """Score the main targets of the requests with many small untrained models.

    All checkpoints of one training share the answers. A model that cannot be built gives a reason
    instead of answers.
    """
    device = context.share_model_between_items(config.device)
    request_rows = requests.read(REQUESTS.names)
    is_main_score = pc.and_(
        pc.equal(request_rows["kind"], "score"), pc.equal(request_rows["part"], "")
    )
    context.map_items(
        score_with_small_model,
        [SmallModel(number) for number in range(SMALL_MODEL_COUNT)],
        checkpoint,
        request_rows.filter(is_main_score),
        config.model_copy(update={"device": device, "dtype": "float32"}),
    )


def score_with_small_model(
    small_model: SmallModel,
    checkpoint: Artifact,
    requests: pa.Table,
    config: RespondConfig,
    out: TableWriters,
) -> None:
    """Write the log probabilities that a small untrained model gives to targets."""
    parameter_count, failure, responses = None, "", list[Response | Embedding]()
    try:
        model = open_cached_model(checkpoint, config, small_model.seed, is_scaled_down=True)
        parameter_count = sum(parameter.numel() for parameter in model.model.parameters())
        for chunk in group_distinct_requests_into_chunks(requests):
            responses += generate_responses(model, chunk.requests.to_pylist())
    except FileChangedError:
        raise
    except Exception as error:  # code of many architectures, at sizes that nobody has tried
        failure, responses = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", []
    log_probs = rows_to_table(responses, RESPONSES).select(["request", "draw", "log_probs"])
    numbers = pa.repeat(pa.scalar(small_model.number, pa.int32()), len(log_probs))
    columns = {"model": numbers, **{name: log_probs[name] for name in log_probs.column_names}}
    out.get_table_writer("untrained_log_probs").write(pa.table(columns, schema=UNTRAINED_LOG_PROBS))
    model_row = {
        "model": small_model.number,
        "seed": small_model.seed,
        "parameters": parameter_count,
        "failure": failure,
    }
    out.get_table_writer("untrained_models").write(
        pa.Table.from_pylist([model_row], schema=UNTRAINED_MODELS)
    )
