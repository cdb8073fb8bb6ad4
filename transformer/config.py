# SPDX-License-Identifier: Apache-2.0
"""What an experiment is: frozen dataclasses, validated when made, to and from JSON.

Every default is the paper's base model. Where systems silently disagree the choice has a name, and
the first name listed is the paper's. No field is a mode: training, decoding and capturing are
arguments of the calls, not of the config.
"""

import dataclasses
import json
from typing import ClassVar, Literal, Self

from transformer.errors import InputError
from transformer.fields import Group


@dataclasses.dataclass(frozen=True)
class TransformerConfig(Group):
    """The encoder-decoder Transformer (paper 3, table 3)."""

    group: ClassVar[str] = "model"

    family: Literal["transformer"] = "transformer"
    vocab_size: int = 37_000
    """V, the special ids included; source and target share one vocabulary."""
    num_layers: int = 6
    encoder_layers: int | None = None
    """Where it differs from num_layers."""
    decoder_layers: int | None = None
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    encoder_heads: int | None = None
    """Where it differs from num_heads."""
    decoder_heads: int | None = None
    d_k: int | None = None
    """Width of a head's queries and keys; d_model / heads unless given (table 3, rows A and B)."""
    d_v: int | None = None
    """Width of a head's values; d_model / heads unless given."""
    attention_bias: bool = False
    attention_kernel: Literal["einsum", "fused"] = "einsum"
    activation: Literal["relu", "gelu", "swish"] = "relu"
    norm: Literal["post", "pre"] = "post"
    norm_epsilon: float = 1e-6
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """Learned positions are table 3, row E."""
    sinusoid_layout: Literal["interleaved", "halves"] = "interleaved"
    max_positions: int = 512
    """Length of the learned table; sinusoids need none."""
    dropout: float = 0.1
    """On every sub-layer's output, and on embedding + position (paper 5.4)."""
    attention_dropout: float = 0.0
    """On the attention weights; not in the paper."""
    activation_dropout: float = 0.0
    """Between the two linear maps of the feed-forward network; not in the paper."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of activations; parameters, softmax and loss are float32 always."""

    def validate(self) -> None:
        """Sizes positive, rates below 1, heads that divide the model's width."""
        self.require_positive(
            *("num_layers", "encoder_layers", "decoder_layers", "d_model", "d_ff", "num_heads"),
            *("encoder_heads", "decoder_heads", "d_k", "d_v", "max_positions"),
        )
        self.require(self.vocab_size > 4, "vocab_size", "more than the 4 special ids")
        self.require_rates("dropout", "attention_dropout", "activation_dropout")
        self.require(self.norm_epsilon > 0, "norm_epsilon", "above 0")
        for side, heads in (("encoder", self.heads("encoder")), ("decoder", self.heads("decoder"))):
            if self.d_model % heads and (self.d_k is None or self.d_v is None):
                raise InputError(
                    f"model.d_model is {self.d_model}, which {heads} {side} heads do not divide; "
                    "change one of them, or give model.d_k and model.d_v"
                )
        if self.attention_kernel == "fused":
            self.require(
                self.attention_dropout == 0, "attention_dropout", "0 with the fused kernel"
            )
            for side in ("encoder", "decoder"):
                d_k, d_v = self.head_widths(side)
                must = f"equal to model.d_k with the fused kernel (the widths are {d_k} and {d_v})"
                self.require(d_k == d_v, "d_v", must)

    def depth(self, side: str) -> int:
        """L of the ``encoder`` or the ``decoder``."""
        own = self.encoder_layers if side == "encoder" else self.decoder_layers
        return own or self.num_layers

    def heads(self, side: str) -> int:
        """N of the ``encoder`` or the ``decoder`` (its self- and its cross-attention)."""
        own = self.encoder_heads if side == "encoder" else self.decoder_heads
        return own or self.num_heads

    def head_widths(self, side: str) -> tuple[int, int]:
        """d_k and d_v of the ``encoder`` or the ``decoder``."""
        share = self.d_model // self.heads(side)
        return self.d_k or share, self.d_v or share


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Group):
    """Adam with the paper's schedule (paper 5.3)."""

    group: ClassVar[str] = "optimizer"

    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-9
    learning_rate: float = 1.0
    """Multiplies the schedule; the paper's is 1."""
    warmup_steps: int = 4000

    def validate(self) -> None:
        """Positive rates."""
        self.require_rates("beta1", "beta2")
        self.require(self.epsilon > 0, "epsilon", "above 0")
        self.require(self.learning_rate > 0, "learning_rate", "above 0")
        self.require_positive("warmup_steps")


@dataclasses.dataclass(frozen=True)
class DecodeConfig(Group):
    """Beam search (paper 6.1)."""

    group: ClassVar[str] = "decode"

    beams: int = 4
    """K; 1 is greedy search."""
    length_penalty: Literal["gnmt", "length", "none"] = "gnmt"
    """gnmt: ((5 + len) / 6)^alpha; length: len^alpha; the end token counts in len."""
    alpha: float = 0.6
    extra_length: int = 50
    """The longest output is the source's tokens plus this many (the paper's rule) ..."""
    max_length: int | None = None
    """... unless a fixed number of tokens is given here."""
    batch_size: int = 64
    """Sentences decoded together."""

    def validate(self) -> None:
        """Positive sizes."""
        self.require_positive("beams", "max_length", "batch_size", "extra_length")


@dataclasses.dataclass(frozen=True)
class DataConfig(Group):
    """Which sentence pairs, and how they become batches."""

    group: ClassVar[str] = "data"

    dataset: str = "pronouns_grammar/de"
    """An embedded corpus (``pronouns_grammar/de``, ``symbols_grammar/copy``, ...) or
    ``text_files``.
    """
    train_source: str | None = None
    """Path of a text file, one sentence a line; with dataset ``text_files`` only."""
    train_target: str | None = None
    validation_source: str | None = None
    validation_target: str | None = None
    test_source: str | None = None
    test_target: str | None = None
    tokenizer: Literal["bpe", "unigram", "word"] = "bpe"
    """SentencePiece model, trained on both sides of the training split."""
    max_length: int = 100
    """Longest source or target in tokens, the end token included. Longer training pairs are left
    out and counted; longer input to translate is cut to its first max_length - 1 tokens, with a
    warning.
    """
    tokens_per_batch: int = 4096
    """Target positions (rows x length) of a training batch; its source has as many."""
    bucket_lengths: tuple[int, ...] = (16, 32, 64, 100)
    """Batches come in these lengths only, so that few shapes are compiled; the last is
    max_length.
    """
    row_multiple: int = 8
    """The number of rows is a multiple of this, whatever the mesh."""

    def bucket(self, length: int) -> int:
        """The static length for so many tokens: a bucket's, or beyond the last a multiple of it."""
        last = self.bucket_lengths[-1]
        beyond = -(-length // last) * last
        return next((bucket for bucket in self.bucket_lengths if length <= bucket), beyond)

    def validate(self) -> None:
        """Ascending buckets that end with the longest sentence; text files in pairs."""
        self.require_positive("max_length", "tokens_per_batch", "row_multiple")
        ascending = list(self.bucket_lengths) == sorted(set(self.bucket_lengths))
        ascending = ascending and min(self.bucket_lengths, default=0) >= 1
        self.require(bool(self.bucket_lengths) and ascending, "bucket_lengths", "ascending lengths")
        self.require(
            self.bucket_lengths[-1] == self.max_length,
            "bucket_lengths",
            f"such that the last equals data.max_length = {self.max_length}",
        )
        smallest = self.max_length * self.row_multiple
        self.require(
            self.tokens_per_batch >= smallest,
            "tokens_per_batch",
            f"at least max_length x row_multiple = {smallest}",
        )


@dataclasses.dataclass(frozen=True)
class TrainingConfig(Group):
    """How long, on which loss, and what is kept."""

    group: ClassVar[str] = "training"

    steps: int = 100_000
    seed: int = 0
    label_smoothing: float = 0.1
    label_smoothing_mass: Literal["uniform_others", "uniform"] = "uniform_others"
    validate_every: int = 1000
    """Steps between validations; each one also saves a checkpoint, and so does the last step."""
    validation_sentences: int = 500
    """How many validation sentences are translated for BLEU; the NLL is over all."""
    keep_last: int = 5
    """Checkpoints kept, beside the best by validation NLL."""

    def validate(self) -> None:
        """Positive counts."""
        self.require_positive("steps", "validate_every", "keep_last", "validation_sentences")
        self.require(self.seed >= 0, "seed", "at least 0")
        self.require_rates("label_smoothing")


@dataclasses.dataclass(frozen=True)
class ParallelConfig(Group):
    """The device mesh. No field changes a result."""

    group: ClassVar[str] = "parallel"

    data: int = 1
    """Devices along the mesh axis ``data``, over which batch rows are divided."""
    model: int = 1
    """Devices along the mesh axis ``model``, over which heads, d_ff and vocabulary are divided."""
    preset: Literal["replicated", "fsdp", "tensor"] = "replicated"

    def validate(self) -> None:
        """Positive axis sizes."""
        self.require_positive("data", "model")


@dataclasses.dataclass(frozen=True)
class LoggingConfig(Group):
    """What is shown while training. No field changes a result."""

    group: ClassVar[str] = "logging"

    log_every: int = 50
    """Steps between two lines of metrics."""
    samples: int = 3
    """Sample translations shown at each validation."""
    tensorboard: bool = True

    def validate(self) -> None:
        """Positive counts."""
        self.require_positive("log_every")
        self.require(self.samples >= 0, "samples", "at least 0")


@dataclasses.dataclass(frozen=True)
class Config(Group):
    """One experiment, whole."""

    model: TransformerConfig = TransformerConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    decode: DecodeConfig = DecodeConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    parallel: ParallelConfig = ParallelConfig()
    logging: LoggingConfig = LoggingConfig()

    def validate(self) -> None:
        """Learned positions must reach as far as the data and the decoder go."""
        if self.model.positions == "learned":
            longest = self.data.max_length + self.decode.extra_length
            longest = max(self.data.max_length, self.decode.max_length or longest)
            if self.model.max_positions < longest:
                raise InputError(
                    f"model.max_positions is {self.model.max_positions}, but learned positions "
                    f"must reach {longest} (data.max_length and the longest output)"
                )

    def to_json(self) -> str:
        """The text of `config.json`: indented, in the order of the fields."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, place: str = "config.json") -> Self:
        """Reads what `to_json` wrote; errors name `place`."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(
                f"{place}:{error.lineno}: not JSON ({error.msg}); restore the file from a copy"
            ) from None
        try:
            if not isinstance(values, dict):
                raise InputError("the file must hold one JSON object")
            return cls.from_dict(values)
        except InputError as error:
            raise InputError(f"{place}: {error}") from None
