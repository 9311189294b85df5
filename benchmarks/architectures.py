"""Compare Hallmark's log-likelihoods with transformers, for every language model architecture.

    python -m benchmarks.architectures [--only NAME ...] [--seconds 180] [--json FILE]

Each causal and masked architecture of the installed transformers is built as a tiny model with
random weights, saved as a folder with a small byte-level tokenizer, and opened as a subject. The
log-likelihoods of a few sentences, one at a time and all in one batch, are compared with a plain
forward pass of the model that transformers loads from the same folder: teacher forced for a causal
model, one masked position at a time for a masked one. Prints one line for each architecture
(agrees, refused, differs, or cannot be built) and the totals.
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
from typing import Any

import hallmark.model  # noqa: F401  before torch: it says how threads wait

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

SPECIAL = {
    "bos_token": "<s>",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
    "cls_token": "<cls>",
    "sep_token": "<sep>",
}

#: Largest difference of log p of one token, in nats, that still counts as agreement: float32
#: rounding, in other batch shapes, of logits of about 10.
TOLERANCE = 2e-3

#: Parameters of the largest model that is built.
LARGEST = 30_000_000

#: Standard deviations of the random weights, tried in this order until the logits are numbers.
DEVIATIONS = (0.2, 0.05, 0.02)

#: Small values by the names that configs give to sizes. A config takes those that it has.
SMALL: dict[str, Any] = {
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

#: Values that one family needs in place of those, or besides them.
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

#: Changes of SMALL that are tried one after the other until a model can be built and read; None
#: takes a value out.
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"num_key_value_heads": 4},
    {"head_dim": None},
    {"head_dim": None, "num_key_value_heads": 4},
    {"num_hidden_layers": 4},
    {"num_hidden_layers": 4, "num_key_value_heads": 4},
)


def train_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=[*SPECIAL.values()],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*SENTENCES] * 9, trainer)
    return tokenizer


def make_config(config_class: Any, tokenizer: Tokenizer, variant: dict[str, Any]) -> Any:
    """Make a config of small values; the configs inside it are made alike."""
    wanted = SMALL | {"vocab_size": tokenizer.get_vocab_size()} | variant
    for name, token in SPECIAL.items():
        wanted[f"{name}_id"] = tokenizer.token_to_id(token)
    names = {*vars(config_class()), *getattr(config_class, "attribute_map", {})}
    values = {name: value for name, value in wanted.items() if name in names and value is not None}
    for name, inner in getattr(config_class, "sub_configs", {}).items():
        if inner is not transformers.AutoConfig:
            values[name] = make_config(inner, tokenizer, variant).to_dict()
    return config_class(**values | FAMILIES.get(config_class.model_type, {}))


def build_model(config: Any, architecture: str) -> Any:
    """Build the model, unless it is large."""
    model_class = getattr(transformers, architecture)
    with torch.device("meta"):
        size = sum(p.numel() for p in model_class(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size:,} parameters, which is too large")
    torch.manual_seed(0)
    return model_class(config).eval()


def enlarge(network: Any, deviation: float) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1 and parameter.is_floating_point():
                parameter.normal_(0, deviation)


def make_model(family: str, architecture: str, kind: str, tokenizer: Tokenizer) -> Any:
    """Make a tiny model whose logits differ and are numbers.

    Raises:
        Exception: the first of those that the variants raised, if none can be built and read.
    """
    own_class = getattr(transformers, architecture).config_class
    config_class = own_class or transformers.CONFIG_MAPPING[family]
    line = torch.tensor([tokenizer.encode(SENTENCES[0]).ids])
    errors: list[Exception] = []
    for variant in VARIANTS:
        try:
            config = make_config(config_class, tokenizer, variant)
            if kind == "causal" and hasattr(config, "is_decoder"):
                config.is_decoder = True
            network = build_model(config, architecture)
            for deviation in DEVIATIONS:
                enlarge(network, deviation)
                if read_logits(network, line, kind).isfinite().all():
                    return network
        except Exception as error:
            errors.append(error)
    raise errors[0] if errors else ValueError("its logits are not numbers")


def read_logits(network: Any, ids: torch.Tensor, kind: str) -> torch.Tensor:
    """Logits (B, T, V), float32, by a plain forward pass without a cache."""
    options = {"use_cache": False} if kind == "causal" else {}
    with torch.inference_mode():
        logits: torch.Tensor = network(input_ids=ids, **options).logits.float()
    return logits


def save_folder(folder: Path, family: str, architecture: str, kind: str) -> Tokenizer:
    """Save a tiny model of an architecture with its tokenizer; the tokenizer is returned."""
    tokenizer = train_tokenizer()
    make_model(family, architecture, kind, tokenizer).save_pretrained(folder)
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)
    wrapped.save_pretrained(folder)
    return tokenizer


def forward_log_probs(network: Any, subject: Any, ids: list[int]) -> list[float]:
    """log p of each token after the first by plain forward passes of one sequence."""
    if subject.model_kind == "causal":
        logits = read_logits(network, torch.tensor([ids]), "causal")[0]
        chosen = logits[:-1].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])
        return chosen[:, 0].tolist()
    line = [*ids, *([] if subject.closing_id is None else [subject.closing_id])]
    values = []
    for place in range(1, len(ids)):
        masked = torch.tensor([[*line[:place], subject.mask_id, *line[place + 1 :]]])
        logits = read_logits(network, masked, "masked")[0, place]
        values.append(logits.log_softmax(-1)[line[place]].item())
    return values


def largest_difference(left: list[Any], right: list[Any]) -> float:
    pairs = zip(itertools.chain(*left), itertools.chain(*right), strict=True)
    differences = [abs(float(a) - float(b)) for a, b in pairs]
    return max(differences, key=lambda d: d if d == d else float("inf"))  # NaN counts most


def compare(folder: Path, family: str, architecture: str, kind: str) -> tuple[str, str]:
    """Build, open and compare one architecture. Returns the result and its details."""
    try:
        detect_model_kind(folder, {"architectures": [architecture], "model_type": family})
    except HallmarkError as error:
        return "refused", str(error)
    try:
        tokenizer = save_folder(folder, family, architecture, kind)
    except Exception as error:
        return "cannot be built", describe(error)
    try:
        subject = open_audited_model(folder, device="cpu")
    except HallmarkError as error:
        return "refused", str(error)
    auto = "AutoModelForMaskedLM" if subject.model_kind == "masked" else "AutoModelForCausalLM"
    try:
        network = getattr(transformers, auto).from_pretrained(folder, dtype=torch.float32).eval()
        encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in SENTENCES]
        if subject.encode_batch(SENTENCES) != encoded:
            return "differs", "token ids are not those of tokenizer.json"
        lines = [subject.prepend_bos_id(ids) for ids in encoded]
        expected = [forward_log_probs(network, subject, line) for line in lines]
    except Exception as error:
        return "cannot be built", f"transformers itself fails: {describe(error)}"
    if any(value != value for row in expected for value in row):
        return "cannot be built", "the logits of transformers are not numbers"
    single = largest_difference([subject.compute_log_probs([line])[0] for line in lines], expected)
    batched = largest_difference(subject.compute_log_probs(lines), expected)
    states = largest_states_difference(subject, lines)
    said = f"{subject.model_kind}; single {single:.1e}, batched {batched:.1e}, states {states}"
    return "agrees" if max(single, batched) <= TOLERANCE else "differs", said


def largest_states_difference(subject: Any, lines: list[list[int]]) -> str:
    """How far the hidden states of a batch are from those of each sequence alone."""
    try:
        together = subject.compute_hidden_states(lines, -1)
        alone = [subject.compute_hidden_states([line], -1)[0] for line in lines]
    except Exception as error:
        return f"none ({describe(error)[:60]})"
    return f"{max(abs(a - b).max() for a, b in zip(together, alone, strict=True)):.1e}"


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def work(connection: Any, family: str, architecture: str, kind: str) -> None:
    """Compare one architecture in a process of its own, and send the result."""
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, silence_transformers_output():
        try:
            connection.send(compare(Path(folder), family, architecture, kind))
        except Exception as error:
            connection.send(("fails", describe(error)))


def run_limited(family: str, architecture: str, kind: str, seconds: float) -> tuple[str, str]:
    """Compare one architecture in a fork, which ends after so many seconds at the latest."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(sending, family, architecture, kind))
    process.start()
    sending.close()
    try:
        if not receiving.poll(seconds):
            return "cannot be built", f"no result within {seconds:.0f} seconds"
        result: tuple[str, str] = receiving.recv()
        return result
    except EOFError:
        return "cannot be built", "its process ended without a result"
    finally:
        process.kill()
        process.join()


def list_architectures(only: list[str] | None) -> Iterator[tuple[str, str, str]]:
    """Yield kind, model type and class name of each architecture."""
    for kind, mapping in MAPPINGS.items():
        for family, architecture in mapping.items():
            if not only or family in only or architecture in only:
                yield kind, family, architecture


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", help="model types or class names")
    parser.add_argument("--seconds", type=float, default=180, help="time limit for each")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    totals: collections.Counter[str] = collections.Counter()
    results = {}
    for kind, family, architecture in list_architectures(options.only):
        result, details = run_limited(family, architecture, kind, options.seconds)
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
