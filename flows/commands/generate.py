"""Generate text from a checkpoint with every decoding method, or fill the masks of a prompt."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from cyclopts import Parameter

from hallmark.flows.checkpoint_resolution import (
    ResolvedCheckpoint,
    find_checkpoint_in_folder,
    resolve_checkpoint,
)
from hallmark.flows.commands.options import JsonOption, StoreOption, WholeNumber, print_result
from hallmark.flows.corpus_additions import collect_artifacts_for_redaction_by_label
from hallmark.flows.runs import open_store
from hallmark.reports.page.redaction import OFFENSIVE_TOXICITY, Redactor, escape_invisible
from hallmark.reports.sections.corpus_figures import build_corpus_redactor
from hallmark.tasks.contract import HallmarkError, UsageError, format_count

if TYPE_CHECKING:
    from hallmark.model.architecture import Transformer
    from hallmark.model.config import Precision
    from hallmark.model.decoding.method_comparison import DecodingMethods, MethodOutput
    from hallmark.tasks.audits.audited_models.audited_model import AuditedModel as Model
    from hallmark.tasks.audits.audited_models.masked_model import MaskedModel

Report = dict[str, Any]


class TextInContextRedactor(Protocol):
    """Redact a text, given the texts before and after it."""

    def __call__(self, text: str, preceding_text: str, following_text: str = "") -> str: ...


#: The beginning of the replacement for a text that, with its context, contains sensitive text.
WITHHELD_PREFIX = "[not shown: adjoins redacted text"

#: Number of the most likely tokens that are shown for each mask.
CANDIDATES_PER_MASK = 10


def generate(
    checkpoint: str,
    prompt: str,
    *,
    max_new_tokens: WholeNumber = 40,
    seed: WholeNumber = 0,
    beam_width: WholeNumber = 5,
    temperature: float = 0.7,
    top_k: WholeNumber = 40,
    top_p: float = 0.9,
    min_p: float = 0.05,
    repetition_penalty: float = 1.3,
    initial_temperature: float = 10.0,
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    redact: Annotated[bool, Parameter(negative="")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Generate text from a checkpoint with every decoding method and show log-probabilities.

    Parameters
    ----------
    checkpoint
        RUN, RUN@STEP ("latest@0"), an artifact ("checkpoint/…"), or a folder with a Hallmark
        checkpoint or a GPT-2, Llama or BERT model of Hugging Face.
    prompt
        The text that the model continues; the source text for a model that was fine-tuned on pairs;
        a text with <|sentinel_0|>, <|sentinel_1|> … to fill for an encoder-decoder trained by span
        corruption; or a text with <|mask|> to fill for a masked model.
    max_new_tokens
        Maximum number of tokens to generate.
    seed
        Seed of the random numbers; at each position, all sampling methods use the same number.
    beam_width
        Number of hypotheses of beam search, which ranks them by log-probability per token.
    temperature
        Temperature of temperature sampling; all other sampling methods except the one with a
        falling temperature use 1.
    top_k
        Number of most likely tokens from which top-k sampling draws.
    top_p
        Total probability of the most likely tokens from which nucleus (top-p) sampling draws.
    min_p
        Minimum probability of a token for min-p sampling, relative to the most likely token.
    repetition_penalty
        Factor by which greedy decoding with a repetition penalty lowers the scores (logits) of
        tokens that occurred before.
    initial_temperature
        Temperature of the first token in sampling with a falling temperature, which reaches 1 at
        token 21.
    precision
        Number format of the computation; auto is bf16 on a GPU that supports it, fp32 on a CPU.
    redact
        Hide personal data, planted secrets and offensive texts, as the pages do.
    """
    if not prompt.strip():
        raise UsageError("the prompt is empty; enter some text")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise UsageError("the prompt is not valid UTF-8; encode it as UTF-8") from error
    resolved_checkpoint = find_checkpoint_in_folder(checkpoint) or resolve_checkpoint(
        open_store(store, create=False), checkpoint
    )
    if max_new_tokens < 1:
        raise UsageError(f"--max-new-tokens is {max_new_tokens}; it must be at least 1")
    from hallmark.model.decoding.method_comparison import DecodingMethods

    try:
        methods = DecodingMethods(
            beam_width, temperature, top_k, top_p, min_p, repetition_penalty, initial_temperature
        )
    except ValueError as error:
        raise UsageError(str(error).rstrip(".")) from error
    print_result(
        complete_prompt(
            resolved_checkpoint, prompt, max_new_tokens, methods, seed, precision, redact
        ),
        as_json,
        render_generation,
    )


def complete_prompt(
    resolved_checkpoint: ResolvedCheckpoint,
    prompt: str,
    max_new_tokens: int,
    methods: DecodingMethods,
    seed: int,
    precision: Precision = "auto",
    redact: bool = False,
) -> Report:
    """Complete a prompt with every decoding method, or fill its masks if the model is masked.

    Returns:
        A JSON value: ``outputs``, one for each method, or ``masks`` with their likely tokens.

    Raises:
        UsageError: If the prompt does not suit the model.
        HallmarkError: If the model fails on it.
    """
    from hallmark.model.decoding.inference_mode import autocast_to_precision
    from hallmark.tasks.audits.audited_models.hallmark_model import HallmarkEncoder
    from hallmark.tasks.audits.audited_models.opening import open_audited_model
    from hallmark.tasks.audits.audited_models.transformers_model import TransformersMaskedModel

    model = open_audited_model(resolved_checkpoint.checkpoint, allow_pairs=True)
    redact_text = (
        _make_text_in_context_redactor(resolved_checkpoint) if redact else _return_unredacted
    )
    report: Report = {
        "checkpoint": resolved_checkpoint.name,
        "prompt": prompt,
        "is_redacted": redact,
    }
    try:
        if isinstance(model, HallmarkEncoder | TransformersMaskedModel):
            with autocast_to_precision(model.model, precision) as report["precision"]:
                report["masks"] = _predict_masked_tokens(model, prompt, redact_text)
                return report | {"prompt": redact_text(prompt, "")}
        network, decoding_input = _load_network_and_decoding_input(
            model, resolved_checkpoint, prompt
        )
        with autocast_to_precision(network, precision) as report["precision"]:
            outputs = _decode_with_every_method(
                network, decoding_input, max_new_tokens, methods, seed
            )
        preceding_text = "" if decoding_input.source_ids or network.is_trained_on_pairs else prompt
        output_reports = [
            _describe_output(model, output, redact_text, preceding_text) for output in outputs
        ]
        decoded_texts = (
            [_decode_output_text(model, output) for output in outputs] if preceding_text else []
        )
        report["prompt"] = _prefer_withheld_version(
            [redact_text(prompt, "", text) for text in ["", *decoded_texts]]
        )
        for output_report in output_reports if redact else ():
            del output_report["steps"]  # the tokens of the steps would reveal the text
        prompt_token_count = len(decoding_input.source_ids or decoding_input.prompt_ids)
        return report | {
            "seed": seed,
            "prompt_tokens": prompt_token_count,
            "outputs": output_reports,
        }
    except ValueError as error:
        raise HallmarkError(f"{resolved_checkpoint.name}: {str(error).rstrip('.')}") from error


def _make_text_in_context_redactor(
    resolved_checkpoint: ResolvedCheckpoint,
) -> TextInContextRedactor:
    """Make a function that redacts texts as the pages do, with toxicity by the embedded scorer."""
    from hallmark.tasks.measures.scorers import ScorerConfig, open_scorer

    corpus_artifacts = (
        collect_artifacts_for_redaction_by_label(resolved_checkpoint.source_run)
        if resolved_checkpoint.source_run
        else dict(resolved_checkpoint.corpus.latest_addition)
        if resolved_checkpoint.corpus
        else {}
    )
    redactor = (
        build_corpus_redactor(corpus_artifacts, OFFENSIVE_TOXICITY)
        if corpus_artifacts
        else Redactor()
    )
    scorer = open_scorer(ScorerConfig())

    def redact_in_context(text: str, preceding_text: str, following_text: str = "") -> str:
        spans_in_context = redactor.find_sensitive_spans(preceding_text + text + following_text)
        text_start, text_end = len(preceding_text), len(preceding_text + text)
        spans_in_text = [
            (span_start - text_start, span_end - text_start)
            for span_start, span_end, _ in spans_in_context
            if span_start < text_end and span_end > text_start
        ]
        spans_without_context = [
            (span_start, span_end)
            for span_start, span_end, _ in redactor.find_sensitive_spans(text)
        ]
        if spans_in_text != spans_without_context and (
            preceding_text
            or any(span_start < 0 or span_end > len(text) for span_start, span_end in spans_in_text)
        ):
            return f"{WITHHELD_PREFIX}, {format_count(len(text), 'character')}]"
        toxicity = float(scorer.score_toxicity([text])[0])
        # Replacements may be longer than the text that they replace.
        return redactor.redact_by_kind(text, "model text", toxicity, max_characters=16 * len(text))

    return redact_in_context


def _return_unredacted(text: str, preceding_text: str, following_text: str = "") -> str:
    return text


def _prefer_withheld_version(redacted_versions: list[str]) -> str:
    """Return the most redacted version of a prompt, each of which was redacted with one output."""
    return next(
        (version for version in redacted_versions if version.startswith(WITHHELD_PREFIX)),
        redacted_versions[0],
    )


@dataclass(frozen=True)
class DecodingInput:
    """Store the token ids that decoding starts from.

    Attributes:
        prompt_ids: The tokens that the model continues.
        stop_ids: Tokens that end a text.
        forbidden_ids: Tokens that are never generated.
        source_ids: The input of the encoder, None without one.
    """

    prompt_ids: list[int]
    stop_ids: set[int]
    forbidden_ids: set[int]
    source_ids: list[int] | None = None


def _decode_with_every_method(
    network: Transformer,
    decoding_input: DecodingInput,
    max_new_tokens: int,
    methods: DecodingMethods,
    seed: int,
) -> list[MethodOutput]:
    from hallmark.model.decoding.method_comparison import decode_with_every_method

    context_length = network.config.context
    if (
        max(len(decoding_input.prompt_ids) + max_new_tokens, len(decoding_input.source_ids or ()))
        > context_length
    ):
        prompt_length = len(decoding_input.source_ids or decoding_input.prompt_ids)
        raise UsageError(
            f"the prompt ({format_count(prompt_length, 'token')}) and the new tokens "
            f"(--max-new-tokens {max_new_tokens}) exceed the model's context of {context_length} "
            "tokens; shorten the prompt or lower --max-new-tokens"
        )
    return decode_with_every_method(
        network,
        decoding_input.prompt_ids,
        max_new_tokens=max_new_tokens,
        methods=methods,
        seed=seed,
        stop=decoding_input.stop_ids,
        forbid=decoding_input.forbidden_ids,
        source=decoding_input.source_ids,
    )


def _describe_output(
    model: Model, output: MethodOutput, redact_text: TextInContextRedactor, preceding_text: str
) -> Report:
    total_log_prob = float(output.log_probs.sum(dtype="float64"))
    steps = zip(output.ids, output.log_probs.tolist(), strict=True)
    return {
        "method": output.method,
        "settings": output.settings,
        "text": redact_text(_decode_output_text(model, output), preceding_text),
        "reached_end_token": output.stopped,
        "token_count": len(output.ids),
        "log_prob": total_log_prob,
        "log_prob_per_token": total_log_prob / len(output.ids),
        "steps": [
            {"token": model.get_token_name(token_id), "token_id": token_id, "log_prob": log_prob}
            for token_id, log_prob in steps
        ],
    }


def _decode_output_text(model: Model, output: MethodOutput) -> str:
    return model.decode(output.ids[:-1] if output.stopped else output.ids)


def _load_network_and_decoding_input(
    model: Model, resolved_checkpoint: ResolvedCheckpoint, prompt: str
) -> tuple[Transformer, DecodingInput]:
    """Return the network of a model and the prompt in the form that this model expects."""
    from hallmark.model.special_tokens import END_OF_TEXT_ID, PAD_ID
    from hallmark.model.training.examples import build_pair_inputs
    from hallmark.tasks.audits.audited_models.hallmark_model import (
        HallmarkDecoder,
        HallmarkEncoderDecoder,
    )
    from hallmark.tasks.audits.audited_models.transformers_model import TransformersCausalModel

    if isinstance(model, TransformersCausalModel):
        return _import_transformers_model(resolved_checkpoint), DecodingInput(
            model.prepend_bos_id(model.encode(prompt)), model.stop_ids, set()
        )
    assert isinstance(model, HallmarkDecoder)
    network = model.model
    prompt_ids = model.encode(prompt)
    if network.is_trained_on_pairs:
        target_start_ids, source_ids = build_pair_inputs(prompt_ids, network.config.architecture)
        return network, DecodingInput(target_start_ids, {END_OF_TEXT_ID}, {PAD_ID}, source_ids)
    if not isinstance(model, HallmarkEncoderDecoder):
        return network, DecodingInput([END_OF_TEXT_ID, *prompt_ids], {END_OF_TEXT_ID}, {PAD_ID})
    sentinel_ids = {
        sentinel: model.get_special_token_id(sentinel)
        for sentinel in re.findall(r"<\|sentinel_\d+\|>", prompt)
    }
    if sentinel_ids:
        return network, DecodingInput(
            [END_OF_TEXT_ID],
            {END_OF_TEXT_ID},
            {PAD_ID},
            _encode_with_special_tokens(model, prompt, sentinel_ids),
        )
    end_ids, forbidden_ids = set(model.stop_ids), {PAD_ID, model.sentinel_id}
    return network, DecodingInput(
        [END_OF_TEXT_ID, model.sentinel_id],
        end_ids,
        forbidden_ids,
        [*prompt_ids, model.sentinel_id],
    )


def _import_transformers_model(resolved_checkpoint: ResolvedCheckpoint) -> Transformer:
    """Import a causal Hugging Face model as a Hallmark transformer."""
    from hallmark.model.interchange.checkpoint import CheckpointError
    from hallmark.model.interchange.transformers_checkpoint import import_transformers
    from hallmark.tasks.contract import resolve_torch_device

    try:
        return import_transformers(
            resolved_checkpoint.checkpoint.fetch_directory(), resolve_torch_device("auto")
        )
    except CheckpointError as error:
        raise UsageError(
            f"{str(error).rstrip('.')}; Hallmark can audit this model but cannot run every "
            "decoding method on it"
        ) from error


def _encode_with_special_tokens(
    model: Model, text: str, special_ids: Mapping[str, int]
) -> list[int]:
    """Encode a text in which names of special tokens represent these tokens.

    The space before a special token is dropped: it belongs to the word that the token replaces.
    """
    token_ids: list[int] = []
    pieces = (
        re.split("(" + "|".join(map(re.escape, special_ids)) + ")", text) if special_ids else [text]
    )
    for index, piece in enumerate(pieces):
        is_last = index == len(pieces) - 1
        token_ids += (
            [special_ids[piece]]
            if index % 2
            else model.encode(piece if is_last else piece.rstrip(" "))
        )
    return token_ids


def _predict_masked_tokens(
    model: MaskedModel, prompt: str, redact_text: TextInContextRedactor
) -> list[Report]:
    """Return the most likely tokens for each mask in the prompt."""
    import numpy as np
    import torch

    from hallmark.model.padding import check_no_nan

    mask_name = model.get_token_name(model.mask_id)
    if mask_name not in prompt:
        raise UsageError(
            f"{model.name} is a masked language model, which can only fill gaps; write {mask_name} "
            f"for each missing word, for example: He ate the cake {mask_name} the fork"
        )
    end_ids = [] if model.closing_id is None else [model.closing_id]
    token_ids = [
        *model.prepend_bos_id(
            _encode_with_special_tokens(model, prompt, {mask_name: model.mask_id})
        ),
        *end_ids,
    ]
    if len(token_ids) > model.context_length:
        raise UsageError(
            f"the prompt has {len(token_ids)} tokens, but the model's context is "
            f"{model.context_length} tokens; shorten the prompt"
        )
    mask_positions = [i for i, token in enumerate(token_ids) if token == model.mask_id]
    with torch.inference_mode():
        logits = model.compute_logits_at([token_ids] * len(mask_positions), mask_positions)
    log_probs = check_no_nan(logits.log_softmax(-1)).cpu().numpy()
    masks = []
    prompt_segments = prompt.split(mask_name)
    for mask_number, (mask_position, mask_log_probs) in enumerate(
        zip(mask_positions, log_probs, strict=True), start=1
    ):
        preceding_text, following_text = (
            mask_name.join(prompt_segments[:mask_number]),
            mask_name.join(prompt_segments[mask_number:]),
        )
        likeliest_ids = np.argsort(-mask_log_probs, kind="stable")[:CANDIDATES_PER_MASK].tolist()
        tokens = [
            redact_text(
                model.decode([i]) or model.get_token_name(i), preceding_text, following_text
            )
            for i in likeliest_ids
        ]
        candidates: list[Report] = [
            {
                "token": token,
                "token_id": i,
                "log_prob": float(mask_log_probs[i]),
                "probability": float(np.exp(mask_log_probs[i])),
            }
            for token, i in zip(tokens, likeliest_ids, strict=True)
        ]
        if any(token.startswith(WITHHELD_PREFIX) for token in tokens):
            # The other candidates and the ids would reveal the withheld token.
            for candidate in candidates:
                candidate["token"] = f"{WITHHELD_PREFIX}]"
                del candidate["token_id"]
        masks.append({"position": mask_position, "candidates": candidates})
    return masks


def render_generation(report: Report) -> str:
    """Format the outputs for a terminal, each text below its method and log-probability."""
    lines = [f"{report['checkpoint']}: {escape_invisible(report['prompt'])}"]
    if "masks" in report:
        for number, mask in enumerate(report["masks"], 1):
            lines += ["", f"mask {number}, token {mask['position']}:   probability   log p (nats)"]
            lines += [
                f"    {escape_invisible(candidate['token']):<20}{candidate['probability']:12.4f}"
                f"{candidate['log_prob']:15.2f}"
                for candidate in mask["candidates"]
            ]
        return "\n".join(lines)
    lines.append(
        f"{format_count(report['prompt_tokens'], 'prompt token')}, seed {report['seed']}, "
        f"{report['precision']}; log p in nats"
    )
    for output in report["outputs"]:
        settings = ", ".join(f"{k} {v}" for k, v in output["settings"].items())
        log_prob_text = (
            f"log p {output['log_prob']:.2f}, {output['log_prob_per_token']:.2f} per token"
        )
        end_note = ", reached the end-of-text token" if output["reached_end_token"] else ""
        token_count_text = f"{format_count(output['token_count'], 'token')}{end_note}"
        lines += ["", f"{output['method']} ({settings}): {log_prob_text}, {token_count_text}"]
        lines += [f"    | {escape_invisible(line)}" for line in output["text"].splitlines() or [""]]
    return "\n".join(lines)
