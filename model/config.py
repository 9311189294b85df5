"""Define the two configs of the package: ``ModelConfig`` and ``TrainConfig``.

Both are frozen dataclasses that check themselves; an invalid value raises a ValueError of one
sentence. ``__pydantic_config__`` makes pydantic refuse unknown keys where a caller uses it.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

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
    """Architecture of a transformer: the sizes and types of its layers.

    Attributes:
        vocab_size: number of tokens in the vocabulary.
        vocab_multiple: the embedding and output tables are padded to a multiple of this number of
            rows. With a multiple of 64 a GPU multiplies them faster. The padding rows are never
            read or predicted.
        context: maximum length of a sequence, in tokens.
        d_model: number of dimensions of the hidden states.
        n_layers: number of blocks in each stack (encoder or decoder).
        n_heads: number of query heads in an attention layer.
        n_kv_heads: number of key-value heads in an attention layer. With fewer key-value heads than
            query heads, several query heads share one (grouped-query attention, Ainslie et al.
            2023). By default the two numbers are equal.
        d_head: number of dimensions of a head's queries, keys and values; by default
            d_model / n_heads.
        d_ff: inner width of the feed-forward layers; by default 4 x d_model, or for SwiGLU, which
            has a third matrix, 8/3 x d_model, rounded up to a multiple of 32 (Shazeer 2020).
        architecture: which stacks of blocks the model has: an encoder, a decoder, or both.
        norm: type of the normalisation layers.
        norm_position: where a block normalises: ``pre`` before each sublayer, ``post`` after a
            sublayer's output was added to its input.
        positions: how the positions of tokens are represented: by ``learned`` or ``sinusoidal``
            embeddings, or by rotating queries and keys (``rope``).
        activation: activation function of the feed-forward layers.
        bias: whether linear layers and layer norms have a bias.
        tie_embeddings: whether the output layer uses the weights of the embedding table.
        dropout: probability that training sets an activation to 0; for attention weights, see
            ``attention_dropout``.
        attention_dropout: probability that training sets an attention weight to 0.
        scale_embeddings: whether token embeddings are multiplied by sqrt(d_model) (Vaswani et al.
            2017, section 3.4), so that sinusoidal positions do not dominate them; by default only
            if ``positions`` is ``sinusoidal``.
        rope_theta: base of the wavelengths of rotary positions (Su et al. 2021).
        norm_eps: small number that a normalisation layer adds before it takes the square root, so
            that it never divides by 0.
        embedding_norm: whether the sum of the embeddings is normalised, as in BERT.
        head_transform: whether a linear layer, the activation function and a normalisation layer
            precede the output layer, as in BERT. In a model with ``labels`` they are a linear layer
            and tanh (BERT's pooler).
        head_bias: whether the output layer has a bias.
        token_types: number of token types for which an encoder has embeddings, such as BERT's two
            segments, which distinguish the sentences of a pair; 0 means no token-type embeddings.
        labels: names of the labels that a classifier's output layer scores instead of the
            vocabulary; empty for a language model.
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
            raise ValueError(
                f"d_model {self.d_model} is not divisible by n_heads {self.n_heads}: change one of "
                "them, or set d_head."
            )
        if self.n_kv_heads is not None:
            Range(1, self.n_heads).check_value("n_kv_heads", self.n_kv_heads)
            if self.n_heads % self.n_kv_heads:
                raise ValueError(
                    f"n_heads {self.n_heads} is not divisible by n_kv_heads {self.n_kv_heads}: "
                    "change one of them. Every key-value head must serve the same number of query "
                    "heads."
                )
        if self.positions == "rope" and self.head_dim % 2:
            raise ValueError(
                f"Rotary positions need an even head size, but the head size is {self.head_dim}: "
                "change d_head, d_model or n_heads."
            )
        if self.head_transform and self.activation == "swiglu" and not self.labels:
            raise ValueError(
                "The activation 'swiglu' needs two inputs, but head_transform computes only one: "
                "set activation to another value, or set head_transform to false."
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                f"With sinusoidal positions, d_model must be even, not {self.d_model}."
            )
        if self.token_types and self.architecture != "encoder":
            raise ValueError(
                "token_types is supported only with the 'encoder' architecture, not with "
                f"{self.architecture!r}: set token_types to 0."
            )
        if self.labels:
            self._check_label_settings()

    def _check_label_settings(self) -> None:
        if self.architecture == "encoder_decoder":
            raise ValueError(
                "A classifier (a model with labels) must have the 'encoder' or 'decoder' "
                "architecture, not 'encoder_decoder'."
            )
        if self.tie_embeddings:
            raise ValueError(
                "A model with labels cannot use the embedding table as its output layer: set "
                "tie_embeddings to false."
            )
        if not 2 <= len(set(self.labels)) == len(self.labels):
            raise ValueError("labels must contain at least 2 distinct names.")

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
    """Settings of a training run.

    Attributes:
        objective: what the model learns to predict. ``causal`` and ``prefix`` require the
            architecture decoder, ``mlm`` encoder, ``span_corruption`` and ``seq2seq``
            encoder_decoder.
        steps: number of optimizer steps.
        batch_size: number of sequences in one optimizer step.
        accumulation_steps: number of equal micro-batches into which a batch is split. More
            micro-batches need less memory; the result is the same up to rounding error.
        learning_rate: highest learning rate, reached after the warm-up.
        warmup_steps: number of steps at the start of training over which the learning rate rises
            linearly.
        schedule: how the learning rate changes after the warm-up. ``wsd`` (warm-up, stable, decay)
            stays constant and then falls linearly at the end of training.
        min_lr_ratio: learning rate at the last step, as a fraction of ``learning_rate``; has no
            effect with the schedule ``constant``.
        decay_fraction: fraction of all steps, at the end of training, over which the schedule
            ``wsd`` lowers the learning rate.
        beta1: decay rate of AdamW's running mean of the gradient (Loshchilov & Hutter 2019).
        beta2: decay rate of AdamW's running mean of the squared gradient.
        momentum: momentum of the optimizer Muon.
        weight_decay: strength of the decoupled weight decay.
        max_grad_norm: maximum norm of the gradient; a larger gradient is scaled down to it.
        z_loss: weight of the z-loss, the square of the log of the softmax's normaliser (PaLM,
            Chowdhery et al. 2022); 0 turns it off.
        optimizer: ``adamw`` trains all parameters with AdamW. ``muon`` trains the matrices of the
            blocks with Muon (Jordan et al. 2024) and all other parameters with AdamW; Muon's
            updates are scaled so that ``learning_rate`` and ``weight_decay`` have the same meaning
            for both optimizers.
        precision: precision of matrix products. ``auto`` is bf16 (by autocast) if the device has
            bf16 matrix units, else fp32.
        device: device to train on. ``auto`` is a GPU if there is one, else the CPU.
        compile: whether to compile the model with torch.compile; by default only on a GPU with
            Triton installed, but not for fine-tuning and not with ``fsdp``.
        seed: determines the initial weights, the order of the rows, the masks and the dropout.
        checkpoint_every: number of steps from one checkpoint to the next.
        log_spaced_checkpoints: whether to write checkpoints at steps 1, 2, 4, 8, ... as well.
        state_every: number of steps from one additional training state to the next. An interrupted
            training resumes from its newest state. 0 means that states are saved only with
            checkpoints.
        keep_states: number of most recent training states to keep.
        validate_every: number of steps from one validation to the next.
        validation_sequences: number of sequences in each validation; 0 means all.
        document_mask: whether attention with the objective ``causal`` stays within a document when
            a row contains several, as it always does with ``mlm`` and ``span_corruption``.
        activation_checkpointing: whether to keep only the input of each block for the backward pass
            and to compute the rest again (Chen et al. 2016). This takes a third more computation
            and far less memory.
        parallel: how several processes share the model: with ``ddp`` each process holds the whole
            model, with ``fsdp`` (FSDP2) a part of each tensor.
        processes: number of processes on each host; all processes share each batch. 0 means one
            for each GPU, or one on the CPU.
        hosts: number of hosts that train together. The first one runs the config; on the others,
            run ``hallmark join-training``.
        rendezvous: address of the first host at which the others join, such as
            ``10.0.0.1:29500``; required for several hosts.
        sample_count: number of sample texts to generate at each validation. A decoder starts from
            the begin-of-text token, an encoder-decoder from corrupted validation rows.
        sample_tokens: maximum length of a sample text, in tokens.
        on_divergence: whether to ``stop`` at a divergent step, or to ``skip`` its update. A step
            diverges if its loss or gradient norm is not finite, or if its gradient norm exceeds the
            limit that ``spike_factor`` sets.
        spike_factor: largest allowed ratio of a step's gradient norm to the running mean of the
            gradient norms; a step above it counts as divergent. Must be at least 1, or 0 to turn
            this check off.
        threads: number of CPU threads; 0 means torch's default.
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
    hosts: SmallCount = 1
    rendezvous: str = ""
    sample_count: SmallNonNegativeCount = 2
    sample_tokens: PositiveCount = 64
    on_divergence: DivergenceAction = "stop"
    spike_factor: float = 0.0
    threads: SmallNonNegativeCount = 0

    def __post_init__(self) -> None:
        check_field_types(self)
        check_field_ranges(self)
        if self.batch_size % (self.accumulation_steps * max(1, self.processes) * self.hosts):
            processes_factor = f" x processes {self.processes}" if self.processes > 1 else ""
            hosts_factor = f" x hosts {self.hosts}" if self.hosts > 1 else ""
            raise ValueError(
                f"batch_size {self.batch_size} is not divisible by accumulation_steps "
                f"{self.accumulation_steps}{processes_factor}{hosts_factor}: change one of these "
                "settings."
            )
        if self.hosts > 1 and not self.rendezvous:
            raise ValueError(
                f"hosts is {self.hosts}, but rendezvous is not set: set rendezvous to the first "
                "host's address and a free port, such as 10.0.0.1:29500."
            )
        if self.rendezvous:
            self.parse_rendezvous()
            if self.hosts == 1:
                raise ValueError(
                    "rendezvous is set, but hosts is 1: set hosts to the number of hosts that "
                    "train together, or remove rendezvous."
                )
        if self.optimizer == "muon" and self.parallel == "fsdp":
            raise ValueError(
                "The 'muon' optimizer needs whole matrices, but with parallel = 'fsdp' each "
                "process stores only part of each matrix: set parallel to 'ddp', or set optimizer "
                "to 'adamw'."
            )
        if self.document_mask and self.objective != "causal":
            raise ValueError(
                "document_mask is supported only with the 'causal' objective, not with "
                f"{self.objective!r}: set document_mask to false."
            )
        if self.warmup_steps > self.steps:
            raise ValueError(
                f"warmup_steps is {self.warmup_steps}, but steps is only {self.steps}: set "
                f"warmup_steps to {self.steps} or less, or increase steps."
            )
        if self.spike_factor:
            Range(1.0, 1e6).check_value("spike_factor", self.spike_factor)

    def parse_rendezvous(self) -> RendezvousAddress:
        """Return the address at which hosts join.

        Raises:
            ValueError: It is no address.
        """
        match = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9.-]{0,252}):(\d{1,5})", self.rendezvous)
        if match is None or not 0 < int(match[2]) < 2**16:
            raise ValueError(
                "rendezvous must be HOST:PORT with an IPv4 address or a host name, such as "
                f"10.0.0.1:29500, not {self.rendezvous!r}."
            )
        return RendezvousAddress(match[1], int(match[2]))


class RendezvousAddress(NamedTuple):
    """The address at which the hosts of a training meet."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


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
        "hosts",
        "rendezvous",
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
            f"{config_class.__name__} has no setting {unknown_names[0]!r}; the available settings "
            f"are {', '.join(field_names)}."
        )
    return config_class(**settings)


def config_to_dict(config: ModelConfig | TrainConfig) -> dict[str, Any]:
    """Convert a config to a JSON object with every key."""
    settings = asdict(config)
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()
    }
