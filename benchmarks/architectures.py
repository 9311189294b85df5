"""Compare Hallmark's log-likelihoods with transformers, for every language model architecture.

    python -m benchmarks.architectures [--only NAME ...] [--seconds 180] [--json FILE]

Each causal and masked architecture of the installed transformers is built as a tiny model with
random weights, saved as a folder with a small byte-level tokenizer, and opened for an audit. The
log-likelihoods of a few sentences, computed one at a time and in one batch, are compared with a
plain forward pass of the model that transformers loads from the same folder: with the given text as
input for a causal model, with one masked position at a time for a masked one. For a causal model,
the log-likelihoods of texts after a shared context and the tokens of greedy continuations are
compared, too. A text longer than the context must have finite scores. Prints one line for each
architecture (agrees, refused, differs, or cannot be built) and the totals.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import multiprocessing
import resource
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import hallmark.model  # noqa: F401  before torch: it sets how threads wait

# isort: split
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.models.auto import modeling_auto

from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.audited_models.transformers_tokenizer import detect_model_kind
from hallmark.tasks.contract import HallmarkError
from hallmark.tasks.measures.transformers_logging import silence_transformers_output

MAPPINGS = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
}

SENTENCES = (
    "The nurse said that she would be late, and that nobody had to wait for her in 1999.",
    "We read it.",
    "The engineer, who had slept badly, said that he would be early.",
    "Numbers: 0 1 2 3",
)

SPECIAL_TOKENS = {
    "bos_token": "<s>",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
    "cls_token": "<cls>",
    "sep_token": "<sep>",
}

#: Largest difference of a token's log-probability that counts as agreement, relative to the largest
#: log-probability of the same texts.
TOLERANCE = 1e-5

#: Number of parameters of the largest model that is built.
MAX_PARAMETERS = 30_000_000

#: Number of tokens of a greedy continuation.
GREEDY_TOKENS = 6

#: Standard deviations of the random weights, tried in this order until all logits are finite.
STANDARD_DEVIATIONS = (0.2, 0.05, 0.02)

#: Small values of config fields; each config takes those that it has.
SMALL_VALUES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "emb_dim", "dim", "embedding_size"), 32),
    **dict.fromkeys(("embed_dim", "decoder_hidden_size", "word_embed_proj_dim", "d_embed"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_inner", "d_ff", "n_inner"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim", "dff"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_blocks"), 2),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "attention_head_dim", "d_kv"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 128),
    **dict.fromkeys(("n_ctx", "context_length", "max_target_positions"), 128),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_num_experts", "num_experts_per_tok", "moe_topk"), 2),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    "state_size": 4,
    "sliding_window": 16,
    "local_window_size": 16,
    "attention_window": 16,
    "hidden_dropout": 0.0,
    "vocab_size_per_layer_input": 340,
}

#: Values that a family needs in addition, or instead.
FAMILIES: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1},
    "codegen": {"rotary_dim": 8},
    "dots1": {"n_shared_experts": 1},
    "gemma3n_text": {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8},
    "gemma4_text": {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8},
    "gptj": {"rotary_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"mamba_n_heads": 8, "layer_types": ["mamba", "attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "luke": {"entity_vocab_size": 10, "entity_emb_size": 8},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1},
    "neomme": {"head_dim": 16},
    "perceiver": {"num_latents": 8, "d_latents": 32, "num_cross_attention_heads": 4},
    "reformer": {"axial_pos_embds_dim": [8, 24], "axial_pos_shape": [8, 16]},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 3},
    "zamba2": {"num_hidden_layers": 54},
    "zaya": {"num_experts_per_tok": 1},
}

#: Changes of SMALL_VALUES, tried in this order until a model can be built and run; None removes a
#: value.
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"num_key_value_heads": 4},
    {"head_dim": None},
    {"head_dim": None, "num_key_value_heads": 4},
    {"num_hidden_layers": 4},
    {"num_hidden_layers": 4, "num_key_value_heads": 4},
)


def train_tokenizer() -> Tokenizer:
    """Train a byte-level tokenizer on the sentences."""
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL_TOKENS["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=[*SPECIAL_TOKENS.values()],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*SENTENCES] * 9, trainer)
    return tokenizer


def build_config(config_class: Any, tokenizer: Tokenizer, variant: dict[str, Any]) -> Any:
    """Build a config of small values; so are its sub-configs."""
    candidates = SMALL_VALUES | {"vocab_size": tokenizer.get_vocab_size()} | variant
    for name, token in SPECIAL_TOKENS.items():
        candidates[f"{name}_id"] = tokenizer.token_to_id(token)
    names = {*vars(config_class()), *getattr(config_class, "attribute_map", {})}
    values = {
        name: value for name, value in candidates.items() if name in names and value is not None
    }
    for name, sub_config_class in getattr(config_class, "sub_configs", {}).items():
        if sub_config_class is not transformers.AutoConfig:
            values[name] = build_config(sub_config_class, tokenizer, variant).to_dict()
    return config_class(**values | FAMILIES.get(config_class.model_type, {}))


def build_model(config: Any, architecture: str) -> Any:
    """Build a model.

    Raises:
        ValueError: if it has more than MAX_PARAMETERS.
    """
    model_class = getattr(transformers, architecture)
    with torch.device("meta"):
        size = sum(p.numel() for p in model_class(config).parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f"{size:,} parameters, which is too large")
    torch.manual_seed(0)
    return model_class(config).eval()


def randomise_weights(network: Any, standard_deviation: float) -> None:
    """Replace the matrices of a model by random numbers."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1 and parameter.is_floating_point():
                parameter.normal_(0, standard_deviation)


def build_random_model(family: str, architecture: str, kind: str, tokenizer: Tokenizer) -> Any:
    """Build a tiny model with random weights and finite logits.

    Raises:
        Exception: if no variant can be built and run; the error of the first variant.
    """
    own_class = getattr(transformers, architecture).config_class
    config_class = own_class or transformers.CONFIG_MAPPING[family]
    ids = torch.tensor([tokenizer.encode(SENTENCES[0]).ids])
    errors: list[Exception] = []
    for variant in VARIANTS:
        try:
            config = build_config(config_class, tokenizer, variant)
            if kind == "causal" and hasattr(config, "is_decoder"):
                config.is_decoder = True
            network = build_model(config, architecture)
            for standard_deviation in STANDARD_DEVIATIONS:
                randomise_weights(network, standard_deviation)
                if compute_logits(network, ids, kind).isfinite().all():
                    return network
        except Exception as error:
            errors.append(error)
    raise errors[0] if errors else ValueError("its logits are not finite")


def compute_logits(network: Any, ids: torch.Tensor, kind: str) -> torch.Tensor:
    """Compute logits, (B, T, V) float32, by a plain forward pass without a cache."""
    options = {"use_cache": False} if kind == "causal" else {}
    with torch.inference_mode():
        logits: torch.Tensor = network(input_ids=ids, **options).logits.float()
    return logits


def save_random_model(folder: Path, family: str, architecture: str, kind: str) -> Tokenizer:
    """Save a tiny model of an architecture and its tokenizer, and return the tokenizer."""
    tokenizer = train_tokenizer()
    build_random_model(family, architecture, kind, tokenizer).save_pretrained(folder)
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL_TOKENS)
    wrapped.save_pretrained(folder)
    return tokenizer


def compute_expected_log_probs(network: Any, audited_model: Any, ids: list[int]) -> list[float]:
    """Compute log p of each token after the first by plain forward passes of one sequence."""
    if audited_model.model_kind == "causal":
        logits = compute_logits(network, torch.tensor([ids]), "causal")[0]
        log_probs = logits[:-1].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])
        return log_probs[:, 0].tolist()
    closed_ids = [*ids, *([] if audited_model.closing_id is None else [audited_model.closing_id])]
    values = []
    for position in range(1, len(ids)):
        masked = torch.tensor(
            [[*closed_ids[:position], audited_model.mask_id, *closed_ids[position + 1 :]]]
        )
        logits = compute_logits(network, masked, "masked")[0, position]
        values.append(logits.log_softmax(-1)[closed_ids[position]].item())
    return values


def find_largest_difference(left: list[Any], right: list[Any]) -> float:
    """Return the largest absolute difference of two nested lists; NaN if there is one."""
    pairs = zip(itertools.chain(*left), itertools.chain(*right), strict=True)
    differences = [abs(float(a) - float(b)) for a, b in pairs]
    return max(differences, key=lambda d: d if d == d else float("inf"))


class Comparison(NamedTuple):
    """The result for one architecture."""

    result: str
    """One of "agrees", "refused", "differs", "cannot be built" or "fails"."""
    details: str


def compare_architecture(folder: Path, family: str, architecture: str, kind: str) -> Comparison:
    """Build, open and compare one architecture."""
    try:
        detect_model_kind(folder, {"architectures": [architecture], "model_type": family})
    except HallmarkError as error:
        return Comparison("refused", str(error))
    try:
        tokenizer = save_random_model(folder, family, architecture, kind)
    except Exception as error:
        return Comparison("cannot be built", describe_error(error))
    try:
        audited_model = open_audited_model(folder, device="cpu")
    except HallmarkError as error:
        return Comparison("refused", str(error))
    auto = (
        "AutoModelForMaskedLM" if audited_model.model_kind == "masked" else "AutoModelForCausalLM"
    )
    try:
        network = getattr(transformers, auto).from_pretrained(folder, dtype=torch.float32).eval()
        encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in SENTENCES]
        if audited_model.encode_batch(SENTENCES) != encoded:
            return Comparison("differs", "token ids are not those of tokenizer.json")
        sequences = [audited_model.prepend_bos_id(ids) for ids in encoded]
        expected = [compute_expected_log_probs(network, audited_model, ids) for ids in sequences]
    except Exception as error:
        return Comparison("cannot be built", f"transformers itself fails: {describe_error(error)}")
    if any(value != value for row in expected for value in row):
        return Comparison("cannot be built", "the logits of transformers are not numbers")
    scale = max(1.0, *(abs(value) for row in expected for value in row))
    single = [audited_model.compute_log_probs([ids])[0] for ids in sequences]
    differences = {
        "single": find_largest_difference(single, expected) / scale,
        "batched": find_largest_difference(audited_model.compute_log_probs(sequences), expected)
        / scale,
    }
    reading, problems = audited_model.model_kind, []
    if audited_model.model_kind == "causal":
        reading += " with cache" if audited_model.uses_cache else " by whole sequences"
        differences["shared"] = compare_shared_contexts(network, audited_model, sequences) / scale
        if not has_greedy_tokens(network, audited_model, sequences):
            problems.append("greedy tokens differ")
    if not has_finite_scores_of_long_text(audited_model, sequences[0]):
        problems.append("scores of a long text are not numbers")
    if not max(differences.values()) <= TOLERANCE:
        problems.append("log-probabilities differ")
    size = sum(parameter.numel() for parameter in network.parameters())
    figures = [f"{name} {difference:.1e}" for name, difference in differences.items()]
    figures.append(f"states {describe_state_difference(audited_model, sequences)}")
    details = "; ".join([reading, *problems, ", ".join(figures), f"{size:,} parameters"])
    return Comparison("differs" if problems else "agrees", details)


def compare_shared_contexts(network: Any, audited_model: Any, sequences: list[list[int]]) -> float:
    """Return the largest difference of log p of targets after two contexts of one length."""
    length = len(sequences[2]) - 4
    contexts = [sequences[0][:length], sequences[2][:length]]
    pairs = [
        (context, [*sequences[3][begin : begin + 1 + begin]])
        for context in contexts
        for begin in range(1, 4)
    ]
    expected = []
    for context, target in pairs:
        ids = [*context, *target]
        logits = compute_logits(network, torch.tensor([ids]), "causal")[0, len(context) - 1 : -1]
        log_probs = logits.log_softmax(-1).gather(1, torch.tensor(target)[:, None])
        expected.append(log_probs[:, 0].tolist())
    found = audited_model.compute_target_log_probs(*zip(*pairs, strict=True))
    return find_largest_difference(found, expected)


def has_greedy_tokens(network: Any, audited_model: Any, sequences: list[list[int]]) -> bool:
    """Return whether greedy continuations have the most probable token of a plain forward pass.

    Tokens whose logits are equal but for rounding count as equal.
    """
    continuations = audited_model.generate_continuations(
        sequences, max_new_tokens=GREEDY_TOKENS, temperature=0, samples=2
    )
    for prompt, row in zip(sequences, continuations, strict=True):
        for continuation in row:
            ids = [*prompt]
            for token in continuation.token_ids:
                logits = compute_logits(network, torch.tensor([ids]), "causal")[0, -1]
                if logits[token] < logits.max() - TOLERANCE * logits.abs().max():
                    return False
                ids.append(token)
            has_all_tokens = len(continuation.token_ids) == GREEDY_TOKENS
            if continuation.has_ended == has_all_tokens:
                return False
    return True


def has_finite_scores_of_long_text(audited_model: Any, ids: list[int]) -> bool:
    """Return whether a text longer than the context, or than most contexts here, is scored."""
    length = min(audited_model.context_length, 300) + 20
    long_ids = [*itertools.islice(itertools.cycle(ids), length)]
    (log_probs,) = audited_model.compute_log_probs([long_ids])
    return len(log_probs) == length - 1 and bool(torch.tensor(log_probs).isfinite().all())


def describe_state_difference(audited_model: Any, sequences: list[list[int]]) -> str:
    """Format the largest difference of hidden states between a batch and single sequences."""
    try:
        batched = audited_model.compute_hidden_states(sequences, -1)
        single = [audited_model.compute_hidden_states([ids], -1)[0] for ids in sequences]
    except Exception as error:
        return f"not available ({describe_error(error)[:60]})"
    return f"{max(abs(a - b).max() for a, b in zip(batched, single, strict=True)):.1e}"


def describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def send_comparison(connection: Any, family: str, architecture: str, kind: str) -> None:
    """Compare one architecture in its own process, and send the result through a pipe."""
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, silence_transformers_output():
        try:
            connection.send(compare_architecture(Path(folder), family, architecture, kind))
        except Exception as error:
            connection.send(Comparison("fails", describe_error(error)))


def compare_with_time_limit(
    family: str, architecture: str, kind: str, seconds: float
) -> Comparison:
    """Compare one architecture in a forked process, which is killed after some seconds."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=send_comparison, args=(sending, family, architecture, kind))
    process.start()
    sending.close()
    try:
        if not receiving.poll(seconds):
            return Comparison("cannot be built", f"no result within {seconds:.0f} seconds")
        result: Comparison = receiving.recv()
        return result
    except EOFError:
        return Comparison("cannot be built", "its process ended without a result")
    finally:
        process.kill()
        process.join()


class Architecture(NamedTuple):
    """A model architecture of transformers."""

    kind: str
    """Either "causal" or "masked"."""
    family: str
    """Its model type."""
    class_name: str


def list_architectures(names: list[str] | None) -> Iterator[Architecture]:
    """Yield the architectures with these model types or class names, or all of them."""
    for kind, mapping in MAPPINGS.items():
        for family, architecture in mapping.items():
            if not names or family in names or architecture in names:
                yield Architecture(kind, family, architecture)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", help="model types or class names")
    parser.add_argument(
        "--seconds", type=float, default=180, help="time limit for each architecture"
    )
    parser.add_argument("--json", type=Path, help="file to which the results are written")
    options = parser.parse_args()
    totals: collections.Counter[str] = collections.Counter()
    results = {}
    for kind, family, architecture in list_architectures(options.only):
        result, details = compare_with_time_limit(family, architecture, kind, options.seconds)
        totals[result] += 1
        results[f"{kind} {family} {architecture}"] = [result, details]
        print(f"{kind} {family} {architecture}: {result} ({details})", flush=True)
    print(
        f"transformers {transformers.__version__}: {totals.total()} architectures; "
        + ", ".join(f"{count} {result}" for result, count in totals.most_common())
    )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
