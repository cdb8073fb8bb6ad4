# SPDX-License-Identifier: Apache-2.0
"""Configs of the model families."""

import contextlib
import dataclasses
import importlib
from typing import Annotated, Any, ClassVar, Literal, Self

from transformer.arrays import SpecialIds
from transformer.errors import InputError
from transformer.fields import Bounds, FieldGroup, Length, Positive, PositiveReal, Rate, difference

VocabSize = Annotated[int, Bounds(1, 2**20)]  # beams x vocabulary must fit 32-bit integers
Width = Annotated[int, Bounds(1, 2**20)]
Layers = Annotated[int, Bounds(1, 1000)]
Activation = Literal["relu", "gelu", "gelu_tanh", "swish", "reglu", "geglu", "swiglu"]
Positions = Literal["sinusoidal", "learned", "t5", "shaw", "rotary", "alibi", "none"]
Tied = Literal["all", "target_output", "source_target", "none"]


@dataclasses.dataclass(frozen=True)
class ModelConfig(FieldGroup):
    """The fields that all model families have; `family` selects the subclass.

    The set of families is open. A subclass that gives `family` another default is registered under
    that name, and `models.protocol.register` adds its model. A family outside this package has the
    name of the module that defines it (``family="my_package.my_model"``), which is imported when a
    config names it. A subclass without a `family` works in one program, but cannot be saved.
    """

    group: ClassVar[str] = "model"
    families: ClassVar[dict[str, type["ModelConfig"]]] = {}
    free_after_training: ClassVar[tuple[str, ...]] = (
        "compute_dtype",
        "dropout",
        "dropout_generator",
    )
    """Fields that do not change the function of trained parameters, up to rounding; the others may
    not be changed after training.
    """
    packable: ClassVar[bool] = False
    """Whether the model accepts several sentences in one row (`data.packing`)."""
    reads_source: ClassVar[bool] = True
    """Whether the logits depend on the source."""
    max_target_tokens: ClassVar[int | None] = None
    """Longest target that the family can predict, EOS included; None: any."""
    predicts_eos: ClassVar[bool] = True
    """Whether the loss includes EOS."""

    family: str = ""
    vocab_size: VocabSize = 37_000
    """V, the size of the target vocabulary, with the special ids."""
    source_vocab_size: VocabSize | None = None
    """Size of a separate source vocabulary with the same special ids; default: one shared
    vocabulary.
    """
    pad_id: int = 0
    """Id of padding."""
    bos_id: int = 1
    """Id of BOS, the first decoder input."""
    eos_id: int = 2
    """Id of EOS, which ends every source and every target."""
    unk_id: int = 3
    """Id of a character outside the vocabulary."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the activations; parameters, softmax and loss are always float32."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls._has_family():
            ModelConfig.families[cls.family] = cls

    @classmethod
    def _has_family(cls) -> bool:
        """Whether the class has a name of its family that is not inherited."""
        return "family" in vars(cls)

    def to_dict(self) -> dict[str, Any]:
        """The fields, from which `from_dict` constructs the config; its `family` must name it."""
        if not self._has_family():
            raise InputError(
                f"{type(self).__name__} cannot be saved: model.family is {self.family!r}, the name "
                "of another class; give its field `family` the name of the module that defines "
                "the class"
            )
        return dataclasses.asdict(self)

    @classmethod
    def variant(cls, values: dict[str, Any]) -> type[Self]:
        """The config class of the family that the values name; the Transformer if none."""
        if cls is not ModelConfig:
            return cls
        name = values.get("family", "transformer")
        if name not in cls.families and isinstance(name, str):
            # A family outside this package registers itself when its module is imported.
            with contextlib.suppress(ModuleNotFoundError, ValueError):
                importlib.import_module(name)
        if name not in cls.families:
            raise InputError(
                f"model.family is {name!r}, but must be one of {', '.join(cls.families)}, or the "
                "name of a module on PYTHONPATH that registers that family "
                "(transformer.models.protocol.register)"
            )
        return cls.families[name]

    def changes(self, other: "ModelConfig") -> dict[str, tuple[Any, Any]]:
        """The fields that give the same parameters another function: name -> (self's, other's)."""
        free = {self.path(name) for name in self.free_after_training}
        changed = difference(self, other)
        return {path: values for path, values in changed.items() if path not in free}

    @property
    def special_ids(self) -> SpecialIds:
        """The four special ids."""
        return SpecialIds(self.pad_id, self.bos_id, self.eos_id, self.unk_id)

    def vocab_size_of(self, side: Literal["source", "target"]) -> int:
        """The size of the ``source`` or the ``target`` vocabulary."""
        return self.source_vocab_size or self.vocab_size if side == "source" else self.vocab_size

    @property
    def has_dropout(self) -> bool:
        """Whether two passes over one batch in training can differ."""
        rates = ("dropout", "attention_dropout", "activation_dropout")
        return any(getattr(self, rate, 0) for rate in rates)

    def require_tables(self, tied_embeddings: Tied) -> None:
        """Check that a source with a separate vocabulary shares no table."""
        shared = tied_embeddings == "source_target" and self.source_vocab_size is not None
        must = "another value with model.source_vocab_size, which gives the source a separate table"
        self.require(not shared, "tied_embeddings", must)

    def require_positions(self, length: int) -> None:
        """Check that a table of learned positions reaches `length`."""
        longest = f"{length} (data.max_length and the longest output)"
        must = f"larger: learned positions must reach {longest}"
        self.require(self.max_positions >= length, "max_positions", must)

    def check_length(self, length: int) -> None:
        """Check that the model accepts sequences of `length` tokens.

        Raises:
          InputError: naming the field that limits the length.
        """

    def validate(self) -> None:
        """Check that the special ids differ and are in the vocabulary."""
        smallest = min(self.vocab_size, self.source_vocab_size or self.vocab_size)
        name = "vocab_size" if smallest == self.vocab_size else "source_vocab_size"
        self.require(smallest > len(self.special_ids), name, "more than the 4 special ids")
        names: dict[int, str] = {}
        for name in ("pad_id", "bos_id", "eos_id", "unk_id"):
            value = getattr(self, name)
            inside = 0 <= value < smallest
            self.require(inside, name, f"at least 0 and below the vocabulary size {smallest}")
            other = names.setdefault(value, name)
            self.require(other == name, name, f"different from {self.path(other)}")


@dataclasses.dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """The encoder-decoder Transformer (paper 3, table 3)."""

    free_after_training: ClassVar[tuple[str, ...]] = (
        *("compute_dtype", "attention_kernel", "dropout_generator"),
        *("dropout", "attention_dropout", "activation_dropout", "remat"),
    )
    packable: ClassVar[bool] = True

    family: Literal["transformer"] = "transformer"
    num_layers: Layers = 6
    encoder_layers: Layers | None = None
    """If it differs from num_layers."""
    decoder_layers: Layers | None = None
    d_model: Width = 512
    d_ff: Positive = 2048
    num_heads: Positive = 8
    encoder_heads: Positive | None = None
    """If it differs from num_heads."""
    decoder_heads: Positive | None = None
    d_k: Positive | None = None
    """Head size of queries and keys; default: d_model / heads (table 3, rows A and B)."""
    d_v: Positive | None = None
    """Head size of values; default: d_model / heads."""
    num_kv_heads: Positive | None = None
    """Heads of the keys and values, each shared by equally many query heads: 1 for multi-query
    attention (Shazeer 2019), more for grouped-query attention (Ainslie et al. 2023); default:
    num_heads.
    """
    attention_bias: bool = False
    attention_kernel: Literal["auto", "einsum", "chunked", "fused"] = "auto"
    """``auto``: the fastest that the platform and the call allow; ``einsum`` is the formula of the
    paper, and the only one whose weights can be read and patched (a call that does so takes it);
    ``chunked`` saves memory for long sentences; ``fused``: cuDNN's flash attention.
    """
    attention_score: Literal["dot", "additive"] = "dot"
    """``additive``: v . tanh(query + key), the score of Bahdanau et al. (2015)."""
    attention_window: Length | None = None
    """Restricted self-attention (paper 4): the size r of the neighborhood that a position attends
    to, centered on it, so odd; default: all positions.
    """
    shared_layers: bool = False
    """All layers of a stack share the parameters of one (Universal Transformer, Dehghani et al.
    2019, without adaptive computation time).
    """
    timestep_encoding: bool = False
    """Add a sinusoidal encoding of the layer's number to the input of every layer (Dehghani et al.
    2019, section 2.1).
    """
    activation: Activation = "relu"
    """``gelu`` is x Phi(x), as in PyTorch and Hugging Face; ``gelu_tanh`` approximates it.
    ``reglu``, ``geglu`` and ``swiglu`` are gated feed-forward networks (Shazeer 2020).
    """
    norm: Literal["post", "pre"] = "post"
    norm_kind: Literal["layer_norm", "rms_norm"] = "layer_norm"
    """``rms_norm``: neither mean nor bias (Zhang and Sennrich 2019)."""
    norm_epsilon: PositiveReal = 1e-6
    tied_embeddings: Tied = "all"
    """Which of the source embedding, the target embedding and the output map share one table:
    ``all`` of them (paper 3.4), two of them, or none. A separate source vocabulary always has a
    separate table.
    """
    embedding_scale: Literal["tokens", "none", "positions"] = "tokens"
    """Scale of the sum of token and position. ``tokens``: tokens times sqrt(d_model) (paper 3.4).
    ``none``: tokens that begin with variance 1, for an output map that is not tied.
    ``positions``: positions divided by sqrt(d_model). The three of Csordas et al. (2021).
    """
    positions: Positions = "sinusoidal"
    """``sinusoidal`` and ``learned`` (table 3, row E) are added to embeddings. The others act in
    self-attention: ``t5``, a learned bias of the scores by relative position (Raffel et al. 2020);
    ``shaw``, learned vectors added to keys and values by relative position (Shaw et al. 2018);
    ``rotary``, a rotation of queries and keys (Su et al. 2021); ``alibi``, a fixed slope per head
    (Press et al. 2022). ``none``: only the causal mask has an order.
    """
    sinusoid_layout: Literal["interleaved", "halves", "halves_paper"] = "interleaved"
    """Order of the columns: sines and cosines alternate (paper 3.5), or all sines come first.
    ``halves`` also has the wavelengths of Tensor2Tensor and Marian, ``halves_paper`` the paper's.
    """
    position_offset: Annotated[int, Bounds(0, 2**10)] = 0
    """``sinusoidal``: position of the first token, 2 in models of fairseq."""
    max_positions: Length = 512
    """``learned``: length of the table."""
    position_buckets: Annotated[Positive, Bounds(4)] = 32
    """``t5``: number of buckets of distances."""
    position_max_distance: Length = 128
    """``t5``: distances from here on share the last bucket."""
    max_relative_position: Length = 16
    """``shaw``: longer distances share the vectors of this one."""
    output_bias: bool = False
    """A bias of the logits; not in the paper."""
    dropout: Rate = 0.1
    """On the output of every sub-layer, and on embedding + position (paper 5.4)."""
    attention_dropout: Rate = 0.0
    """On the attention weights; not in the paper."""
    activation_dropout: Rate = 0.0
    """Between the two linear maps of the feed-forward network; not in the paper."""
    dropout_generator: Literal["threefry", "hash"] = "threefry"
    """Random bits of dropout: JAX's own, or a faster hash (`transformer/nn/dropout.py`)."""
    remat: Literal["none", "full", "dots"] = "none"
    """Recompute activations in the backward pass instead of storing them: those of every layer
    (``full``), or all but the matmuls' (``dots``).
    """

    def validate(self) -> None:
        """Check that heads divide d_model, and that the attention kernel allows the fields."""
        super().validate()
        for side in ("encoder", "decoder"):
            heads = self.heads(side)
            if self.d_model % heads and (self.d_k is None or self.d_v is None):
                name = f"{side}_heads" if getattr(self, f"{side}_heads") else "num_heads"
                raise InputError(
                    f"model.{name} is {heads}, which does not divide model.d_model = "
                    f"{self.d_model}; change one of them, or give model.d_k and model.d_v"
                )
        far = self.position_max_distance > self.position_buckets
        self.require(far, "position_max_distance", "above model.position_buckets")
        if self.attention_kernel in ("chunked", "fused"):
            must = f"0 with the {self.attention_kernel} kernel"
            self.require(self.attention_dropout == 0, "attention_dropout", must)
        self._validate_variants()
        if self.attention_kernel == "fused":
            for side in ("encoder", "decoder"):
                d_k, d_v = self.head_widths(side)
                must = f"equal to model.d_k with the fused kernel (the sizes are {d_k} and {d_v})"
                self.require(d_k == d_v, "d_v", must)

    def _validate_variants(self) -> None:
        """Check that the variants of attention, positions and embeddings fit together."""
        for name, value in (("positions", "shaw"), ("attention_score", "additive")):
            if getattr(self, name) == value:
                must = f"'auto' or 'einsum' with model.{name}={value!r}, which the others lack"
                formula = self.attention_kernel in ("auto", "einsum")
                self.require(formula, "attention_kernel", must)
        if self.positions in ("shaw", "rotary"):
            must = f"'dot' with model.positions={self.positions!r}, which changes dot products"
            self.require(self.attention_score == "dot", "attention_score", must)
        window = self.attention_window
        must = "odd: the position itself, and equally many on each side"
        self.require(window is None or window % 2 == 1, "attention_window", must)
        for side in ("encoder", "decoder"):
            d_k, heads = self.head_widths(side)[0], self.heads(side)
            if self.positions == "rotary" and d_k % 2:
                raise InputError(
                    f"model.d_k is {d_k} in the {side}, but must be even with "
                    "model.positions='rotary', which rotates pairs"
                )
            groups = heads % self.kv_heads(side) == 0
            self.require(groups, "num_kv_heads", f"a divisor of the {heads} heads of the {side}")
        self.require_tables(self.tied_embeddings)
        fixed = self.positions == "sinusoidal" or self.position_offset == 0
        self.require(fixed, "position_offset", f"0 with model.positions={self.positions!r}")

    def check_length(self, length: int) -> None:
        """Check that a learned table of positions reaches `length`."""
        if self.positions == "learned":
            self.require_positions(length)

    def depth(self, side: str) -> int:
        """L of the ``encoder`` or the ``decoder``."""
        return getattr(self, f"{side}_layers") or self.num_layers

    def heads(self, side: str) -> int:
        """N of the ``encoder`` or the ``decoder`` (its self- and its cross-attention)."""
        return getattr(self, f"{side}_heads") or self.num_heads

    def kv_heads(self, side: str) -> int:
        """Heads of the keys and values of the ``encoder`` or the ``decoder``; at most N."""
        return self.num_kv_heads or self.heads(side)

    def head_widths(self, side: str) -> tuple[int, int]:
        """d_k and d_v of the ``encoder`` or the ``decoder``."""
        default = self.d_model // self.heads(side)
        return self.d_k or default, self.d_v or default
