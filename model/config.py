"""The two configs of the package: what the model is, and how it is trained.

Both are frozen dataclasses that check themselves; a value that cannot work raises a ValueError of
one sentence. ``__pydantic_config__`` makes pydantic, where a caller uses it, refuse unknown keys.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from model.config_checks import Range, check_field_ranges, check_field_types

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

#: Beyond any transformer there is: what is larger is a slip of the pen, and no machine holds it.
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
    """Sizes and kinds of a transformer.

    ``vocab_size`` counts the tokens, ``n_layers`` the blocks of a stack, and ``n_heads`` the heads
    of a block's queries; ``d_model`` is the width of what goes through the blocks. ``architecture``
    says which stacks there are. ``norm`` is the kind of the norms, and ``norm_position`` where they
    stand, before what a block adds or behind it. ``positions`` is how order is told, ``rope_theta``
    the base of rotary positions' wavelengths (Su et al. 2021). ``activation`` is the feed-forward
    layers'. With ``bias`` linear layers and layer norms have one, and with ``tie_embeddings`` the
    output layer is the table of embeddings. ``norm_eps`` is added under a norm's root.

    ``n_kv_heads`` None means one key-value head per query head; fewer share them (grouped-query
    attention, Ainslie et al. 2023). ``d_head`` is the size of a head's queries, keys and values;
    None means d_model / n_heads. ``d_ff`` None means 4 x d_model, or for SwiGLU, which has a third
    matrix, 8/3 x d_model rounded up to a multiple of 32 (Shazeer 2020). ``context`` is the longest
    sequence the model attends over, in tokens. ``vocab_multiple`` pads the tables of embeddings and
    output to a multiple of it, which a GPU multiplies faster (64); no token is behind the padding,
    and none is predicted. As in BERT, ``embedding_norm`` normalises the embeddings' sum,
    ``head_transform`` puts a matrix, the activation and a norm before the output layer, and
    ``head_bias`` gives that a bias. ``attention_dropout`` is the share of attention's weights that
    training leaves out, ``dropout`` of all else. ``scale_embeddings`` multiplies token embeddings
    by sqrt(d_model) (Vaswani et al. 2017, section 3.4), which the sinusoids would drown else; None:
    where positions are sinusoidal.

    ``token_types`` sentences that an encoder tells apart by an embedding of their own (BERT's
    segment embeddings); 0: none. With ``labels`` the output layer scores these in place of the
    vocabulary, and ``head_transform`` is a matrix and tanh (BERT's pooler).
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
                f"Rotary positions need an even head size, not {self.head_dim}: d_head, or "
                f"d_model / n_heads."
            )
        if self.head_transform and self.activation == "swiglu" and not self.labels:
            raise ValueError("head_transform needs an activation of one input, not swiglu.")
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"Sinusoidal positions need an even d_model, not {self.d_model}.")
        if self.token_types and self.architecture != "encoder":
            raise ValueError(f"token_types are for an encoder, not for a {self.architecture}.")
        if self.labels:
            self._check_label_settings()

    def _check_label_settings(self) -> None:
        if self.architecture == "encoder_decoder":
            raise ValueError("labels are read off one stack: an encoder's or a decoder's.")
        if self.tie_embeddings:
            raise ValueError("An output layer of labels is no embedding: untie it.")
        if not 2 <= len(set(self.labels)) == len(self.labels):
            raise ValueError("labels must be at least 2 names, none of them twice.")

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the tables of embeddings and output."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def output_size(self) -> int:
        """What the output layer scores: labels, or the words of the vocabulary."""
        return len(self.labels) or self.vocab_size

    @property
    def head_dim(self) -> int:
        return self.d_head or self.d_model // self.n_heads

    @property
    def query_width(self) -> int:
        """All heads of the queries side by side."""
        return self.n_heads * self.head_dim

    @property
    def kv_head_count(self) -> int:
        return self.n_kv_heads or self.n_heads

    @property
    def embedding_scale(self) -> float:
        """What token embeddings are multiplied by."""
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
    """How a model is trained.

    ``steps`` are the optimizer's, and ``optimizer`` is which. ``schedule`` is how the learning rate
    goes from warm-up to the end. ``beta1`` and ``beta2`` are AdamW's (Loshchilov & Hutter 2019),
    and ``clip`` is the norm that a gradient is cut to. ``seed`` decides weights, order of the rows,
    masks and dropout. ``device`` auto is a GPU where there is one; ``validate_every`` is in steps.

    ``batch_size`` counts the sequences of one optimizer step; ``accumulation`` splits them into
    equal micro-batches and changes memory, not the mathematics. ``warmup`` is in steps.
    ``min_lr_ratio`` is the share of ``learning_rate`` the schedule ends at. ``decay_fraction`` is
    the last share of the steps in which ``wsd`` (warm-up, stable, decay) decays; ``constant`` never
    does. With ``muon`` the matrices of the blocks follow Muon (Jordan et al. 2024), scaled so that
    ``learning_rate`` and ``weight_decay`` mean what they mean for AdamW, and all else follows
    AdamW; ``momentum`` is Muon's. ``z_loss`` weighs the squared log-partition (PaLM). ``precision``
    auto is bf16 autocast where the device has bf16 matrix units, else fp32. The ``objective`` must
    suit the architecture: causal and prefix are a decoder's, mlm an encoder's, span_corruption and
    seq2seq an encoder-decoder's. ``validation_sequences`` 0 means all of them. ``threads`` 0 leaves
    the number to torch. Where ``compile`` is not set, training is compiled on a GPU, if Triton is
    installed, but not with ``fsdp``. ``recompute`` keeps only the blocks' inputs for the backward
    pass and computes the rest again (Chen et al. 2016): a third more work, far less memory. With
    ``document_mask`` the causal objective keeps the documents of a row apart, as mlm and
    span_corruption always do.

    ``processes`` train together, each on its share of a batch; 0 is one for each GPU of the
    machine, or one on the CPU. ``parallel`` is how: with ``ddp`` each holds the whole model, with
    ``fsdp`` (FSDP2) a part of it. With every validation the model writes ``samples`` texts of
    ``sample_tokens`` tokens, from the begin-of-text token or, an encoder-decoder, from corrupted
    validation rows.

    A step diverges where its loss or gradient is not finite, or where the gradient's norm is more
    than ``spike`` times (at least 1; 0: never) its running mean; ``divergence`` says whether
    training then stops, or skips the step. Checkpoints are left every ``checkpoint_every`` steps
    and, ``log_spaced``, at 1, 2, 4, 8, … With each a state is saved, from which a killed training
    goes on, and another one every ``state_every`` steps (0: none); ``keep_states`` of them stay.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_UNKNOWN

    objective: Objective = "causal"
    steps: Annotated[int, Range(1, 10**8 - 1)] = 1000  # files are named with eight digits
    batch_size: PositiveCount = 32
    accumulation: PositiveCount = 1
    learning_rate: Annotated[float, Range(0.0, 10.0, strictly_positive=True)] = 2e-3
    warmup: NonNegativeCount = 50
    schedule: Schedule = "cosine"
    min_lr_ratio: ClosedUnitFloat = 0.1
    decay_fraction: ClosedUnitFloat = 0.2
    beta1: HalfOpenUnitFloat = 0.9
    beta2: HalfOpenUnitFloat = 0.95
    momentum: HalfOpenUnitFloat = 0.95
    weight_decay: LossWeight = 0.1
    clip: PositiveFloat = 1.0
    z_loss: LossWeight = 0.0
    optimizer: OptimizerName = "adamw"
    precision: Precision = "auto"
    device: Device = "auto"
    compile: bool | None = None
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    checkpoint_every: StepCount = 100
    log_spaced: bool = False
    state_every: NonNegativeCount = 0
    keep_states: SmallCount = 2
    validate_every: StepCount = 100
    validation_sequences: NonNegativeCount = 256
    document_mask: bool = False
    recompute: bool = False
    parallel: ParallelMode = "ddp"
    processes: SmallNonNegativeCount = 0
    samples: SmallNonNegativeCount = 2
    sample_tokens: PositiveCount = 64
    divergence: DivergenceAction = "stop"
    spike: float = 0.0
    threads: SmallNonNegativeCount = 0

    def __post_init__(self) -> None:
        check_field_types(self)
        check_field_ranges(self)
        if self.batch_size % (self.accumulation * max(1, self.processes)):
            processes_factor = f" x processes {self.processes}" if self.processes > 1 else ""
            raise ValueError(
                f"batch_size {self.batch_size} is not divisible by "
                f"accumulation {self.accumulation}{processes_factor}."
            )
        if self.optimizer == "muon" and self.parallel == "fsdp":
            raise ValueError(
                "Muon needs whole matrices, which fsdp cuts: set parallel to ddp, or optimizer to "
                "adamw."
            )
        if self.document_mask and self.objective != "causal":
            raise ValueError(f"document_mask is for the causal objective, not {self.objective}.")
        if self.warmup > self.steps:
            raise ValueError(
                f"warmup {self.warmup} is longer than the training, {self.steps} steps: set warmup "
                f"to {self.steps} or less, or raise steps."
            )
        if self.spike:
            Range(1.0, 1e6).check_value("spike", self.spike)


#: Which architecture each objective trains.
ARCHITECTURE_BY_OBJECTIVE: dict[Objective, Architecture] = {
    "causal": "decoder",
    "prefix": "decoder",
    "mlm": "encoder",
    "span_corruption": "encoder_decoder",
    "seq2seq": "encoder_decoder",
}

#: The share of a text that span corruption hides, and the mean span (Raffel et al. 2020, 3.3.4).
CORRUPTION_RATE, MEAN_SPAN_LENGTH = 0.15, 3.0


def count_corrupted_spans(token_count: int) -> int:
    """How many spans are hidden in ``length`` tokens; each needs a sentinel."""
    return max(1, round(max(1, round(token_count * CORRUPTION_RATE)) / MEAN_SPAN_LENGTH))


#: Settings that change no batch and, but for rounding and the draws of dropout, nothing of what a
#: step does with it: a training goes on from a state that was made with others. ``precision`` is
#: not among them, for rounding is what it sets.
BATCH_INVARIANT_SETTINGS = frozenset(
    (
        "accumulation",
        "recompute",
        "compile",
        "device",
        "threads",
        "processes",
        "parallel",
        "checkpoint_every",
        "log_spaced",
        "state_every",
        "validate_every",
        "validation_sequences",
        "samples",
        "sample_tokens",
        "keep_states",
    )
)

#: Settings by which the rate of a step may depend on how many are still to come; see
#: ``training.schedule``.
SCHEDULE_SETTINGS = ("schedule", "steps", "min_lr_ratio", "decay_fraction")

Config = TypeVar("Config", ModelConfig, TrainConfig)


def config_from_dict(config_class: type[Config], settings: dict[str, Any]) -> Config:
    """The config of type ``cls`` from a JSON object; ValueError names an unknown key."""
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
    """The config as a JSON object with every key."""
    settings = asdict(config)
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()
    }
