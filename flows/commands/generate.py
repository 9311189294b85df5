"""Let a checkpoint write, by every decoding method; or say what it would put in place of masks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from cyclopts import Parameter

from flows.commands.shared import InStore, Json, Whole, show
from flows.growing import masking_of
from flows.origin import Subject, resolve, resolve_folder
from flows.runs import default_store
from reports.page.masking import OFFENSIVE, Masker, visible
from reports.sections.corpus_figures import masker_of
from tasks.contract import HallmarkError, UsageError

if TYPE_CHECKING:
    from model.architecture import Transformer
    from model.config import Precision
    from model.decoding.methods import Methods, Written
    from tasks.audits.subjects.masked import Masked
    from tasks.audits.subjects.subject import Subject as Model

Report = dict[str, Any]


class Shown(Protocol):
    """Returns a text as it may be shown, given the texts before and after it."""

    def __call__(self, text: str, before: str, after: str = "") -> str: ...


#: How a text begins that is not shown for what it is part of.
BORDERS = "[not shown: borders on what is masked"

#: Of a mask: how many tokens are told, the likeliest.
LIKELIEST = 10


def generate(
    checkpoint: str,
    prompt: str,
    *,
    tokens: Whole = 40,
    seed: Whole = 0,
    width: Whole = 5,
    temperature: float = 0.7,
    top_k: Whole = 40,
    top_p: float = 0.9,
    min_p: float = 0.05,
    repetition_penalty: float = 1.3,
    first_temperature: float = 10.0,
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    masked: Annotated[bool, Parameter(negative="")] = False,
    store: InStore = None,
    json_: Json = False,
) -> None:
    """Let a checkpoint write, by every decoding method side by side, with log-probabilities.

    Parameters
    ----------
    checkpoint
        RUN, RUN@STEP ("latest@0"), an artifact ("checkpoint/…"), or a folder: one of ours, or with
        GPT-2, Llama or BERT of Hugging Face.
    prompt
        What the model goes on with. Of a model that was fine-tuned on pairs it is a source, to
        which it writes the target. An encoder-decoder of span corruption reads it, too, and writes
        what stands behind it, or for each <|sentinel_0|>, <|sentinel_1|> … in it. A masked model
        says what it would put in place of each <|mask|> in it.
    tokens
        Most tokens that are written.
    seed
        Of the draws; methods draw with the same numbers, token by token.
    width
        Hypotheses of beam search, ranked by their log-probability per token.
    temperature
        Of sampling at a temperature of its own; but for the falling one the others draw at 1.
    top_k
        How many of the likeliest tokens top-k draws from.
    top_p
        The mass of the likeliest tokens that nucleus sampling draws from.
    min_p
        How likely a token must be, as a share of the likeliest, for min-p to draw it.
    repetition_penalty
        What greedy decoding with a penalty divides the scores of tokens by that were there before.
    first_temperature
        Of the first token under a falling temperature, which reaches 1 at the twenty-first.
    precision
        What the model computes in: auto is bf16 on a GPU that has it, fp32 on the CPU.
    masked
        Mask personal data, planted secrets and offensive texts, as the pages do.
    """
    if not prompt.strip():
        raise UsageError("the prompt is empty; give the beginning of a text")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise UsageError("the prompt is no UTF-8; give it in that encoding") from error
    subject = resolve_folder(checkpoint) or resolve(default_store(store, create=False), checkpoint)
    if tokens < 1:
        raise UsageError(f"--tokens {tokens}: at least one must be written")
    from model.decoding.methods import Methods

    try:
        methods = Methods(
            width, temperature, top_k, top_p, min_p, repetition_penalty, first_temperature
        )
    except ValueError as error:
        raise UsageError(str(error).rstrip(".")) from error
    show(generate_of(subject, prompt, tokens, methods, seed, precision, masked), json_, render)


def generate_of(
    subject: Subject,
    prompt: str,
    tokens: int,
    methods: Methods,
    seed: int,
    precision: Precision = "auto",
    masked: bool = False,
) -> Report:
    """What the checkpoint makes of the prompt. UsageError where it cannot be asked for that."""
    from model.decoding.mode import computing
    from tasks.audits.subjects.own_subject import OwnEncoder
    from tasks.audits.subjects.subject import open_subject
    from tasks.audits.subjects.transformers_subject import TransformersMasked

    model = open_subject(subject.checkpoint, pairs=True)
    shown = _masking(subject) if masked else _unmasked
    report: Report = {"checkpoint": subject.name, "prompt": prompt, "masked": masked}
    try:
        if isinstance(model, OwnEncoder | TransformersMasked):
            with computing(model.model, precision) as report["precision"]:
                report["masks"] = _filled(model, prompt, shown)
                return report | {"prompt": shown(prompt, "")}
        net, task = _task(model, subject, prompt)
        with computing(net, precision) as report["precision"]:
            made = _made(net, task, tokens, methods, seed)
        before = "" if task.source or net.pairs else prompt
        rows = [_told(model, one, shown, before) for one in made]
        texts = [_decoded(model, one) for one in made] if before else []
        report["prompt"] = _most_hidden([shown(prompt, "", text) for text in ["", *texts]])
        for row in rows if masked else ():
            del row["steps"]  # they would tell the text
        read = len(task.source or task.prompt)
        return report | {"seed": seed, "prompt_tokens": read, "written": rows}
    except ValueError as error:
        raise HallmarkError(f"{subject.name}: {str(error).rstrip('.')}") from error


def _masking(subject: Subject) -> Shown:
    """Masks texts as the pages do: the embedded scorer judges them."""
    from tasks.measures.scorers import ScorerConfig, open_scorer

    history = masking_of(subject.run) if subject.run else subject.corpus or {}
    masker = masker_of(history, OFFENSIVE) if history else Masker()
    scorer = open_scorer(ScorerConfig())

    def shown(text: str, before: str, after: str = "") -> str:
        found = masker.spans(before + text + after)
        begin, end = len(before), len(before + text)
        inside = [(a - begin, b - begin) for a, b, _ in found if a < end and b > begin]
        alone = [(a, b) for a, b, _ in masker.spans(text)]
        if inside != alone and (before or any(a < 0 or b > len(text) for a, b in inside)):
            return f"{BORDERS}, {len(text):,} characters]"
        score = float(scorer.score([text])[0])
        return masker.shown(text, "model text", score, limit=16 * len(text))  # masks are longer

    return shown


def _unmasked(text: str, before: str, after: str = "") -> str:
    return text


def _most_hidden(versions: list[str]) -> str:
    """Return the version of a prompt that hides most: each hides what reaches into one text."""
    return next((v for v in versions if v.startswith(BORDERS)), versions[0])


# A text that goes on -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """What a model is given: token ids, and which end a text or are never written."""

    prompt: list[int]
    stop: set[int]
    forbid: set[int]
    source: list[int] | None = None


def _made(net: Transformer, task: Task, tokens: int, methods: Methods, seed: int) -> list[Written]:
    from model.decoding.methods import by_every_method

    context = net.config.context
    if max(len(task.prompt) + tokens, len(task.source or ())) > context:
        raise UsageError(
            f"the prompt has {len(task.source or task.prompt)} tokens, and with {tokens} new ones "
            f"they must fit the context of {context}; shorten it or lower --tokens"
        )
    return by_every_method(
        net, task.prompt, max_new_tokens=tokens, methods=methods, seed=seed,
        stop=task.stop, forbid=task.forbid, source=task.source,
    )  # fmt: skip


def _told(model: Model, one: Written, shown: Shown, before: str) -> Report:
    total = float(one.log_probs.sum(dtype="float64"))
    steps = zip(one.ids, one.log_probs.tolist(), strict=True)
    return {
        "method": one.method,
        "settings": one.settings,
        "text": shown(_decoded(model, one), before),
        "ended": one.stopped,
        "tokens": len(one.ids),
        "log_prob": total,
        "log_prob_per_token": total / len(one.ids),
        "steps": [{"token": model.token_name(i), "id": i, "log_prob": p} for i, p in steps],
    }


def _decoded(model: Model, one: Written) -> str:
    return model.decode(one.ids[:-1] if one.stopped else one.ids)


def _task(model: Model, subject: Subject, prompt: str) -> tuple[Transformer, Task]:
    """The network, and the prompt as it is given to it."""
    from model.tokens import END_OF_TEXT, PAD
    from model.training.examples import asked
    from tasks.audits.subjects.own_subject import OwnDecoder, OwnEncoderDecoder
    from tasks.audits.subjects.transformers_subject import TransformersCausal

    if isinstance(model, TransformersCausal):
        return _imported(subject), Task(model.opened(model.encode(prompt)), model.ends, set())
    assert isinstance(model, OwnDecoder)
    net = model.model
    ids = model.encode(prompt)
    if net.pairs:
        start, source = asked(ids, net.config.architecture)
        return net, Task(start, {END_OF_TEXT}, {PAD}, source)
    if not isinstance(model, OwnEncoderDecoder):
        return net, Task([END_OF_TEXT, *ids], {END_OF_TEXT}, {PAD})
    names = {name: model.special(name) for name in re.findall(r"<\|sentinel_\d+\|>", prompt)}
    if names:
        return net, Task([END_OF_TEXT], {END_OF_TEXT}, {PAD}, _encoded(model, prompt, names))
    ends, forbidden = set(model.ends), {PAD, model.gap}
    return net, Task([END_OF_TEXT, model.gap], ends, forbidden, [*ids, model.gap])


def _imported(subject: Subject) -> Transformer:
    """A causal model of Hugging Face as one of ours."""
    from model.interchange.checkpoint import CheckpointError
    from model.interchange.convert import import_transformers
    from tasks.contract import torch_device

    try:
        return import_transformers(subject.checkpoint.directory(), torch_device("auto"))
    except CheckpointError as error:
        raise UsageError(
            f"{str(error).rstrip('.')}; other models can be audited, but not asked to write by "
            f"every method"
        ) from error


def _encoded(model: Model, text: str, names: Mapping[str, int]) -> list[int]:
    """Token ids of a text in which the names of special tokens stand for them. The space before
    one goes: it belongs to the word that the token stands for."""
    ids: list[int] = []
    pieces = re.split("(" + "|".join(map(re.escape, names)) + ")", text) if names else [text]
    for i, piece in enumerate(pieces):
        last = i == len(pieces) - 1
        ids += [names[piece]] if i % 2 else model.encode(piece if last else piece.rstrip(" "))
    return ids


# Masks -------------------------------------------------------------------------------------------


def _filled(model: Masked, prompt: str, shown: Shown) -> list[Report]:
    """Of each mask in the prompt the likeliest tokens."""
    import numpy as np
    import torch

    from model.rows import check_numbers

    name = model.token_name(model.mask)
    if name not in prompt:
        raise UsageError(
            f"{model.name} is a masked language model, which fills gaps and writes no further; put "
            f"{name} where a word is to be found, as in: He ate the cake {name} the fork"
        )
    ends = [] if model.end is None else [model.end]
    ids = [*model.opened(_encoded(model, prompt, {name: model.mask})), *ends]
    if len(ids) > model.context:
        raise UsageError(
            f"the prompt has {len(ids)} tokens, more than the context of {model.context}; shorten "
            f"it"
        )
    places = [i for i, token in enumerate(ids) if token == model.mask]
    with torch.inference_mode():
        logits = model.logits_at([ids] * len(places), places)
    scores = check_numbers(logits.log_softmax(-1)).cpu().numpy()
    masks = []
    pieces = prompt.split(name)
    for number, (place, line) in enumerate(zip(places, scores, strict=True), start=1):
        before, after = name.join(pieces[:number]), name.join(pieces[number:])
        best = np.argsort(-line, kind="stable")[:LIKELIEST].tolist()
        tokens = [shown(model.decode([i]) or model.token_name(i), before, after) for i in best]
        found: list[Report] = [
            {
                "token": token,
                "id": i,
                "log_prob": float(line[i]),
                "probability": float(np.exp(line[i])),
            }
            for token, i in zip(tokens, best, strict=True)
        ]
        if any(token.startswith(BORDERS) for token in tokens):
            # The ones that are shown, and their ids, would tell the one that is not.
            for entry in found:
                entry["token"] = f"{BORDERS}]"
                del entry["id"]
        masks.append({"position": place, "likeliest": found})
    return masks


# For a terminal ----------------------------------------------------------------------------------


def render(report: Report) -> str:
    """Each text below its method, with what it cost."""
    lines = [f"{report['checkpoint']}: {visible(report['prompt'])}"]
    if "masks" in report:
        for number, mask in enumerate(report["masks"], 1):
            lines += ["", f"mask {number}, token {mask['position']}:   probability   log p (nats)"]
            lines += [
                f"    {visible(found['token']):<20}{found['probability']:12.4f}"
                f"{found['log_prob']:15.2f}"
                for found in mask["likeliest"]
            ]
        return "\n".join(lines)
    lines.append(
        f"{report['prompt_tokens']} tokens read, seed {report['seed']}, {report['precision']}; "
        f"log p in nats"
    )
    for row in report["written"]:
        settings = ", ".join(f"{k} {v}" for k, v in row["settings"].items())
        said = f"log p {row['log_prob']:.2f}, {row['log_prob_per_token']:.2f} per token"
        count = f"{row['tokens']} tokens{', ended' if row['ended'] else ''}"
        lines += ["", f"{row['method']} ({settings}): {said}, {count}"]
        lines += [f"    | {visible(line)}" for line in row["text"].splitlines() or [""]]
    return "\n".join(lines)
