"""Define the two configs of the package: ``ModelConfig`` and ``TrainConfig``.

Both are frozen dataclasses that check themselves; an invalid value raises a ValueError of one
sentence. ``__pydantic_config__`` makes pydantic refuse unknown keys where a caller uses it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from hallmark.model.config_checks import Range, check_field_ranges, check_field_types

Architecture = Literal["decoder", "encoder", "encoder_decoder"]
Norm = Literal["layernorm", "rmsnorm"]
NormPosition = Literal["pre", "post"]
Positions = Literal["learned", "sinusoidal", "rope"]
Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "swiglu", "sigmoid", "tanh"]
Objective = Literal["causal", "prefix", "mlm", "span_corruption", "seq2seq"]
Schedule = Literal["cosine", "linear", "wsd", "constant"]
OptimizerName = Literal["adamw", "muon"]
Precision = Literal["auto", "fp32", "bf16"]
Device = Literal["auto", "cpu", "cuda"]
DivergenceAction = Literal["stop", "skip"]
ParallelMode = Literal["ddp", "fsdp"]

FORBID_UNKNOWN = {"extra": "forbid"}

#: Larger than in any existing transformer: a greater value is a typing mistake.
WidthInt = Annotated[int, Range(1, 2**17)]
SmallCount = Annotated[int, Range(1, 4096)]

PositiveFloat = Annotated[float, Range(0.0, strictly_positive=True)]
ClosedUnitFloat = Annotated[float, Range(0.0, 1.0)]
HalfOpenUnitFloat = Annotated[float, Range(0.0, 1.0, exclude_high=True)]
LossWeight = Annotated[float, Range(0.0, 10.0)]
StepCount = Annotated[int, Range(1, 10**9)]
PositiveCount = Annotated[int, Range(1, 10**6)]
NonNegativeCount = Annotated[int, Range(0, 10**9)]
SmallNonNegativeCount = Annotated[int, Range(0, 1024)]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and kinds of the layers of a transformer.

    Attributes:
        vocab_size: number of tokens in the vocabulary.
        vocab_multiple: pads the embedding and output tables to a multiple of this, which a GPU
            multiplies faster (64). The padding is never read or predicted.
        context: longest sequence that the model attends over, in tokens.
        d_model: width of the hidden states.
        n_layers: blocks in a stack.
        n_heads: query heads in a block.
        n_kv_heads: key-value heads; None means one for each query head, fewer are shared
            (grouped-query attention, Ainslie et al. 2023).
        d_head: size of a head's queries, keys and values; None means d_model / n_heads.
        d_ff: inner size of the feed-forward layer; None means 4 x d_model, or for SwiGLU, which has
            a third matrix, 8/3 x d_model rounded up to a multiple of 32 (Shazeer 2020).
        architecture: which stacks the model has.
        norm: kind of the norms.
        norm_position: norm before each sublayer (pre) or after the residual sum (post).
        positions: how the model represents order.
        activation: activation of the feed-forward layers.
        bias: whether linear layers and layer norms have a bias.
        tie_embeddings: whether the output layer shares the embedding table.
        dropout: share of activations that training drops outside attention.
        attention_dropout: share of attention weights that training drops.
        scale_embeddings: whether token embeddings are multiplied by sqrt(d_model) (Vaswani et al.
            2017, section 3.4), so that sinusoids do not dominate them; None means only if positions
            are sinusoidal.
        rope_theta: base of the wavelengths of rotary positions (Su et al. 2021).
        norm_eps: number added under the root of a norm.
        embedding_norm: whether the sum of the embeddings is normalised, as in BERT.
        head_transform: whether a matrix, the activation and a norm precede the output layer, as in
            BERT; with ``labels`` a matrix and tanh (BERT's pooler).
        head_bias: whether the output layer has a bias.
        token_types: number of sentence types that an encoder embeds (BERT's segment embeddings); 0
            means none.
        labels: labels that the output layer scores instead of the vocabulary.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_UNKNOWN

    vocab_size: Annotated[int, Range(1, 2**24)] = 4096
    vocab_multiple: SmallCount = 1
    context: Annotated[int, Range(1, 2**22)] = 256
    d_model: WidthInt = 128
    n_layers: SmallCount = 4
    n_heads: SmallCount = 4
    n_kv_heads: SmallCount | None = None
    d_head: WidthInt | None = None
    d_ff: Annotated[int, Range(1, 2**19)] | None = None
    architecture: Architecture = "decoder"
    norm: Norm = "layernorm"
    norm_position: NormPosition = "pre"
    positions: Positions = "learned"
    activation: Activation = "gelu"
    bias: bool = True
    tie_embeddings: bool = True
    dropout: HalfOpenUnitFloat = 0.0
    attention_dropout: HalfOpenUnitFloat = 0.0
    scale_embeddings: bool | None = None
    rope_theta: PositiveFloat = 10_000.0
    norm_eps: PositiveFloat = 1e-5
    embedding_norm: bool = False
    head_transform: bool = False
    head_bias: bool = False
    token_types: Annotated[int, Range(0, 256)] = 0
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_field_types(self)
        check_field_ranges(self)
        if self.d_head is None and self.d_model % self.n_heads:
            raise ValueError(f"d_model {self.d_model} is not divisible by n_heads {self.n_heads}.")
        if self.n_kv_heads is not None:
            Range(1, self.n_heads).check_value("n_kv_heads", self.n_kv_heads)
            if self.n_heads % self.n_kv_heads:
                raise ValueError(
                    f"n_heads {self.n_heads} is not divisible by n_kv_heads {self.n_kv_heads}."
                )
        if self.positions == "rope" and self.head_dim % 2:
            raise ValueError(
                f"Rotary positions need an even head size, not {self.head_dim}: change d_head, or "
                "d_model / n_heads."
            )
        if self.head_transform and self.activation == "swiglu" and not self.labels:
            raise ValueError(
                "head_transform needs an activation with one input: swiglu has two, choose another."
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"Sinusoidal positions need an even d_model, not {self.d_model}.")
        if self.token_types and self.architecture != "encoder":
            raise ValueError(f"token_types need the architecture encoder, not {self.architecture}.")
        if self.labels:
            self._check_label_settings()

    def _check_label_settings(self) -> None:
        if self.architecture == "encoder_decoder":
            raise ValueError("labels need an encoder or a decoder, not an encoder_decoder.")
        if self.tie_embeddings:
            raise ValueError(
                "With labels, the output layer cannot be tied: set tie_embeddings to false."
            )
        if not 2 <= len(set(self.labels)) == len(self.labels):
            raise ValueError("labels must be at least 2 different names, without repetition.")

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding and output tables, padding included."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def output_size(self) -> int:
        """Number of scores of the output layer: labels, or tokens of the vocabulary."""
        return len(self.labels) or self.vocab_size

    @property
    def head_dim(self) -> int:
        return self.d_head or self.d_model // self.n_heads

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.n_heads * self.head_dim

    @property
    def kv_head_count(self) -> int:
        return self.n_kv_heads or self.n_heads

    @property
    def embedding_scale(self) -> float:
        """Factor of the token embeddings."""
        configured = self.scale_embeddings
        is_scaled = self.positions == "sinusoidal" if configured is None else configured
        return math.sqrt(self.d_model) if is_scaled else 1.0

    @property
    def feed_forward_width(self) -> int:
        """Inner size of the feed-forward layer."""
        if self.d_ff is not None:
            return self.d_ff
        if self.activation == "swiglu":
            return -(-8 * self.d_model // (3 * 32)) * 32
        return 4 * self.d_model


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of a training.

    Attributes:
        objective: what is learned. It must suit the architecture: causal and prefix need a decoder,
            mlm an encoder, span_corruption and seq2seq an encoder-decoder.
        steps: number of optimizer steps.
        batch_size: sequences in one optimizer step.
        accumulation_steps: number of equal micro-batches that a batch is split into; it changes the
            memory needed, but not the mathematics.
        learning_rate: highest learning rate.
        warmup_steps: steps of linear warm-up.
        schedule: how the learning rate changes after the warm-up.
        min_lr_ratio: final learning rate as a share of ``learning_rate``.
        decay_fraction: last share of the steps, in which ``wsd`` (warm-up, stable, decay) decays;
            ``constant`` never decays.
        beta1: AdamW's decay rate of the mean gradient (Loshchilov & Hutter 2019).
        beta2: AdamW's decay rate of the mean squared gradient.
        momentum: Muon's momentum.
        weight_decay: decoupled weight decay.
        max_grad_norm: highest norm of the gradient; larger gradients are scaled down to it.
        z_loss: weight of the squared log-partition (PaLM).
        optimizer: ``muon`` trains the matrices of the blocks with Muon (Jordan et al. 2024), scaled
            so that ``learning_rate`` and ``weight_decay`` mean the same as for AdamW, and all other
            parameters with AdamW.
        precision: ``auto`` is bf16 autocast where the device has bf16 matrix units, else fp32.
        device: ``auto`` is a GPU if there is one.
        compile: whether to compile the model; None compiles on a GPU if Triton is installed, but
            not with ``fsdp``.
        seed: determines weights, order of the rows, masks and dropout.
        checkpoint_every: steps between checkpoints.
        log_spaced_checkpoints: whether to write checkpoints at steps 1, 2, 4, 8, ... as well.
        state_every: steps between further training states, from which an interrupted training
            resumes; 0 saves states only with checkpoints.
        keep_states: number of states to keep.
        validate_every: steps between validations.
        validation_sequences: sequences to validate on; 0 means all.
        document_mask: whether the causal objective separates the documents of a row, as mlm and
            span_corruption always do.
        activation_checkpointing: whether to save only the blocks' inputs for the backward pass and
            to recompute the rest (Chen et al. 2016): a third more work, far less memory.
        parallel: with ``ddp`` each process holds the whole model, with ``fsdp`` (FSDP2) a part of
            it.
        processes: processes that share each batch; 0 means one for each GPU, or one on the CPU.
        sample_count: texts to generate at each validation, from the begin-of-text token or, for an
            encoder-decoder, from corrupted validation rows.
        sample_tokens: tokens of each generated text.
        on_divergence: whether to stop at a divergent step, or to skip it. A step diverges if its
            loss or gradient is not finite, or if ``spike_factor`` says so.
        spike_factor: a step diverges if its gradient norm is more than this many times the running
            mean; at least 1, or 0 to disable this.
        threads: CPU threads; 0 uses torch's default.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_UNKNOWN

    objective: Objective = "causal"
    steps: Annotated[int, Range(1, 10**8 - 1)] = 1000  # files are named with eight digits
    batch_size: PositiveCount = 32
    accumulation_steps: PositiveCount = 1
    learning_rate: Annotated[float, Range(0.0, 10.0, strictly_positive=True)] = 2e-3
    warmup_steps: NonNegativeCount = 50
    schedule: Schedule = "cosine"
    min_lr_ratio: ClosedUnitFloat = 0.1
    decay_fraction: ClosedUnitFloat = 0.2
    beta1: HalfOpenUnitFloat = 0.9
    beta2: HalfOpenUnitFloat = 0.95
    momentum: HalfOpenUnitFloat = 0.95
    weight_decay: LossWeight = 0.1
    max_grad_norm: PositiveFloat = 1.0
    z_loss: LossWeight = 0.0
    optimizer: OptimizerName = "adamw"
    precision: Precision = "auto"
    device: Device = "auto"
    compile: bool | None = None
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    checkpoint_every: StepCount = 100
    log_spaced_checkpoints: bool = False
    state_every: NonNegativeCount = 0
    keep_states: SmallCount = 2
    validate_every: StepCount = 100
    validation_sequences: NonNegativeCount = 256
    document_mask: bool = False
    activation_checkpointing: bool = False
    parallel: ParallelMode = "ddp"
    processes: SmallNonNegativeCount = 0
    sample_count: SmallNonNegativeCount = 2
    sample_tokens: PositiveCount = 64
    on_divergence: DivergenceAction = "stop"
    spike_factor: float = 0.0
    threads: SmallNonNegativeCount = 0

    def __post_init__(self) -> None:
        check_field_types(self)
        check_field_ranges(self)
        if self.batch_size % (self.accumulation_steps * max(1, self.processes)):
            processes_factor = f" x processes {self.processes}" if self.processes > 1 else ""
            raise ValueError(
                f"batch_size {self.batch_size} is not divisible by "
                f"accumulation_steps {self.accumulation_steps}{processes_factor}."
            )
        if self.optimizer == "muon" and self.parallel == "fsdp":
            raise ValueError(
                "Muon needs whole matrices, but fsdp shards them: set parallel to ddp, or "
                "optimizer to adamw."
            )
        if self.document_mask and self.objective != "causal":
            raise ValueError(
                f"document_mask needs the objective causal, not {self.objective}: set it to false."
            )
        if self.warmup_steps > self.steps:
            raise ValueError(
                f"warmup_steps {self.warmup_steps} is longer than the training, {self.steps} "
                f"steps: set warmup_steps to {self.steps} or less, or raise steps."
            )
        if self.spike_factor:
            Range(1.0, 1e6).check_value("spike_factor", self.spike_factor)


#: The architecture that each objective trains.
ARCHITECTURE_BY_OBJECTIVE: dict[Objective, Architecture] = {
    "causal": "decoder",
    "prefix": "decoder",
    "mlm": "encoder",
    "span_corruption": "encoder_decoder",
    "seq2seq": "encoder_decoder",
}

#: The share of a text that span corruption replaces, and the mean length of a span in tokens
#: (Raffel et al. 2020, section 3.3.4).
CORRUPTION_RATE, MEAN_SPAN_LENGTH = 0.15, 3.0


def count_corrupted_spans(token_count: int) -> int:
    """Return the number of corrupted spans in ``token_count`` tokens; each needs a sentinel."""
    return max(1, round(max(1, round(token_count * CORRUPTION_RATE)) / MEAN_SPAN_LENGTH))


#: Settings that do not change the batches and, apart from rounding and dropout draws, the result of
#: a step: a training may resume from a state that was saved with other values. ``precision`` is not
#: among them, because it determines the rounding.
BATCH_INVARIANT_SETTINGS = frozenset(
    (
        "accumulation_steps",
        "activation_checkpointing",
        "compile",
        "device",
        "threads",
        "processes",
        "parallel",
        "checkpoint_every",
        "log_spaced_checkpoints",
        "state_every",
        "validate_every",
        "validation_sequences",
        "sample_count",
        "sample_tokens",
        "keep_states",
    )
)

#: Settings that relate the learning rate of a step to the number of steps that follow; see
#: ``training.schedule``.
SCHEDULE_SETTINGS = ("schedule", "steps", "min_lr_ratio", "decay_fraction")

Config = TypeVar("Config", ModelConfig, TrainConfig)


def config_from_dict(config_class: type[Config], settings: dict[str, Any]) -> Config:
    """Build a config of type ``config_class`` from a JSON object.

    Raises:
        ValueError: ``settings`` is not an object, or has an unknown key or an invalid value.
    """
    if not isinstance(settings, dict):
        raise ValueError(
            f"{config_class.__name__} must be a JSON object, not {type(settings).__name__}."
        )
    field_names = [field.name for field in fields(config_class)]
    unknown_names = sorted(set(settings) - set(field_names))
    if unknown_names:
        raise ValueError(
            f"{config_class.__name__} has no key {unknown_names[0]!r}; it has "
            f"{', '.join(field_names)}."
        )
    return config_class(**settings)


def config_to_dict(config: ModelConfig | TrainConfig) -> dict[str, Any]:
    """Convert a config to a JSON object with every key."""
    settings = asdict(config)
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()
    }
