# SPDX-License-Identifier: Apache-2.0
"""What an experiment is: frozen dataclasses, validated when made, to and from JSON.

Every default is the paper's base model. Where systems silently disagree the choice has a name, and
the first name listed is the paper's. No field is a mode: training, decoding and capturing are
arguments of the calls, not of the config.
"""

import contextlib
import dataclasses
import importlib
import json
from typing import Any, ClassVar, Literal, Self

from transformer.arrays import SpecialIds
from transformer.errors import InputError
from transformer.fields import Group, nearest


@dataclasses.dataclass(frozen=True)
class ModelConfig(Group):
    """The fields that every model family has; `family` tells the configs of families apart.

    The set of families is open. A subclass registers itself under the default of its `family`, and
    `models.base.register` adds its model. A family outside this package is named by the module that
    registers it (``family="my_package.my_model"``), which is imported when a config names it.
    """

    group: ClassVar[str] = "model"
    families: ClassVar[dict[str, type["ModelConfig"]]] = {}

    family: str = ""
    vocab_size: int = 37_000
    """V, the number of target tokens, with the special ids."""
    source_vocab_size: int | None = None
    """The number of source tokens if the source has a separate vocabulary, with the same special
    ids; shared with the target unless given.
    """
    pad_id: int = 0
    """Id that fills a row up to its static length."""
    bos_id: int = 1
    """Id of ``<s>``, the first decoder input."""
    eos_id: int = 2
    """Id of ``</s>``, which ends every source and every target."""
    unk_id: int = 3
    """Id of a character that the vocabulary does not have."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the activations; parameters, softmax and loss are always float32."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        ModelConfig.families[cls.family] = cls

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
                "(transformer.models.base.register)"
            )
        return cls.families[name]

    @property
    def special_ids(self) -> SpecialIds:
        """The ids with a meaning of their own."""
        return SpecialIds(self.pad_id, self.bos_id, self.eos_id, self.unk_id)

    def vocab_size_of(self, side: Literal["source", "target"]) -> int:
        """The number of tokens of the ``source`` or the ``target`` vocabulary."""
        return self.source_vocab_size or self.vocab_size if side == "source" else self.vocab_size

    @property
    def has_dropout(self) -> bool:
        """Whether two passes over one batch in training can differ."""
        return False

    def capturable(self) -> Self:
        """The config of the same model in a form whose intermediate values can be captured."""
        return self

    def check_length(self, length: int) -> None:
        """Check that the model accepts sequences of `length` tokens.

        Raises:
          InputError: naming the field that limits the length.
        """

    def validate(self) -> None:
        """A vocabulary that holds the special ids, which differ."""
        special_ids = self.special_ids
        for name in ("vocab_size", "source_vocab_size"):
            size = getattr(self, name)
            enough = size is None or size > len(special_ids)
            self.require(enough, name, "more than the 4 special ids")
        smallest = min(self.vocab_size_of("source"), self.vocab_size_of("target"))
        for name in ("pad_id", "bos_id", "eos_id", "unk_id"):
            inside = 0 <= getattr(self, name) < smallest
            self.require(inside, name, f"at least 0 and below the vocabulary size {smallest}")
            others = special_ids.count(getattr(self, name)) == 1
            self.require(others, name, "different from the other special ids")


@dataclasses.dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """The encoder-decoder Transformer (paper 3, table 3)."""

    family: Literal["transformer"] = "transformer"
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
    attention_kernel: Literal["einsum", "chunked", "fused"] = "einsum"
    """``chunked`` saves memory where sentences are long; only ``einsum`` has weights to look at."""
    activation: Literal["relu", "gelu", "swish"] = "relu"
    norm: Literal["post", "pre"] = "post"
    norm_epsilon: float = 1e-6
    positions: Literal["sinusoidal", "learned", "t5"] = "sinusoidal"
    """``learned`` is table 3, row E. ``t5``: relative positions as a learned bias of the scores of
    self-attention (Raffel et al. 2020).
    """
    sinusoid_layout: Literal["interleaved", "halves"] = "interleaved"
    max_positions: int = 512
    """Length of the learned table; sinusoids need none."""
    position_buckets: int = 32
    """``t5``: number of buckets of relative distances."""
    position_max_distance: int = 128
    """``t5``: distances from here on share the last bucket."""
    output_bias: bool = False
    """A bias of the logits; not in the paper."""
    dropout: float = 0.1
    """On every sub-layer's output, and on embedding + position (paper 5.4)."""
    attention_dropout: float = 0.0
    """On the attention weights; not in the paper."""
    activation_dropout: float = 0.0
    """Between the two linear maps of the feed-forward network; not in the paper."""
    dropout_generator: Literal["threefry", "hash"] = "threefry"
    """Of dropout's random bits: JAX's own, or a cheaper hash (`transformer/nn/dropout.py`)."""

    def validate(self) -> None:
        """Sizes positive, rates below 1, heads that divide the model's width."""
        super().validate()
        self.require_positive(
            *("num_layers", "encoder_layers", "decoder_layers", "d_model", "d_ff", "num_heads"),
            *("encoder_heads", "decoder_heads", "d_k", "d_v", "max_positions"),
            *("position_buckets", "position_max_distance"),
        )
        self.require_rates("dropout", "attention_dropout", "activation_dropout")
        self.require(self.norm_epsilon > 0, "norm_epsilon", "above 0")
        for side, heads in (("encoder", self.heads("encoder")), ("decoder", self.heads("decoder"))):
            if self.d_model % heads and (self.d_k is None or self.d_v is None):
                raise InputError(
                    f"model.d_model is {self.d_model}, which {heads} {side} heads do not divide; "
                    "change one of them, or give model.d_k and model.d_v"
                )
        self.require(self.position_buckets >= 4, "position_buckets", "at least 4")
        far = self.position_max_distance > self.position_buckets
        self.require(far, "position_max_distance", "above model.position_buckets")
        if self.attention_kernel != "einsum":
            must = f"0 with the {self.attention_kernel} kernel"
            self.require(self.attention_dropout == 0, "attention_dropout", must)
        if self.attention_kernel == "fused":
            for side in ("encoder", "decoder"):
                d_k, d_v = self.head_widths(side)
                must = f"equal to model.d_k with the fused kernel (the widths are {d_k} and {d_v})"
                self.require(d_k == d_v, "d_v", must)

    @property
    def has_dropout(self) -> bool:
        """Whether any of the three dropout rates is above 0."""
        return bool(self.dropout or self.attention_dropout or self.activation_dropout)

    def capturable(self) -> Self:
        """The same model with the only kernel that keeps attention weights."""
        return self.replace(attention_kernel="einsum")

    def check_length(self, length: int) -> None:
        """Check that a learned table of positions reaches `length`."""
        if self.positions == "learned" and self.max_positions < length:
            raise InputError(
                f"model.max_positions is {self.max_positions}, but learned positions must reach "
                f"{length} (data.max_length and the longest output)"
            )

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
    """Adam with the paper's schedule (paper 5.3), and others by name."""

    group: ClassVar[str] = "optimizer"

    name: Literal["adam", "adamw", "adafactor", "lion", "muon", "schedule_free"] = "adam"
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-9
    weight_decay: float = 0.0
    """Times the learning rate, taken off kernels and embeddings (muon: kernels); not with adam."""
    clip_norm: float | None = None
    """The gradient's global norm is scaled down to this where it is larger."""
    learning_rate: float = 1.0
    """Multiplies the schedule: the paper's is 1. With the other schedules it is the peak."""
    schedule: Literal["noam", "constant", "cosine"] = "noam"
    """noam: d_model^-0.5 min(step^-0.5, step warmup^-1.5), the paper's. constant: a linear warm-up,
    then level. cosine: a linear warm-up, then half a cosine down to 0 at training.steps.
    """
    warmup_steps: int = 4000

    def validate(self) -> None:
        """Positive rates, and fields that the named optimizer has."""
        self.require_rates("beta1", "beta2")
        self.require(self.epsilon > 0, "epsilon", "above 0")
        self.require(self.learning_rate > 0, "learning_rate", "above 0")
        self.require(self.weight_decay >= 0, "weight_decay", "at least 0")
        if self.name == "adam":
            self.require(self.weight_decay == 0, "weight_decay", "0 with adam; use adamw")
        if self.name == "schedule_free":
            self.require(self.schedule == "constant", "schedule", "'constant' with schedule_free")
            self.require(self.beta1 > 0, "beta1", "above 0 with schedule_free")
        self.require(self.clip_norm is None or self.clip_norm > 0, "clip_norm", "above 0")
        self.require_positive("warmup_steps")


@dataclasses.dataclass(frozen=True)
class DecodeConfig(Group):
    """Beam search (paper 6.1), sampling, and minimum Bayes risk."""

    group: ClassVar[str] = "decode"

    method: Literal["beam", "sample", "mbr"] = "beam"
    """beam: the most probable translation that beam search finds. sample: drawn from the model.
    mbr: of many samples the one that is most like all the others (minimum Bayes risk).
    """
    beams: int = 4
    """K; 1 is greedy search."""
    groups: int = 1
    """Diverse beams: the beams are divided into so many groups, searched one after the other ..."""
    diversity: float = 0.5
    """... and a group pays this much log-probability for a token, for each earlier group's beam
    that has just chosen it (`transformer/decoding/beam_search.py` says how exactly).
    """
    length_penalty: Literal["gnmt", "length", "none"] = "gnmt"
    """gnmt: ((5 + len) / 6)^alpha; length: len^alpha; the end token counts in len."""
    alpha: float = 0.6
    extra_length: int = 50
    """The longest output is the source's tokens plus this many (the paper's rule) ..."""
    max_length: int | None = None
    """... unless a fixed number of tokens is given here."""
    min_length: int = 0
    """The fewest tokens of an output before its end token; the longest output goes before it."""
    block_ngrams: int | None = None
    """No n-gram of so many tokens occurs twice in an output."""
    temperature: float = 1.0
    """Sampling: logits are divided by this; below 1 the probable becomes more so."""
    top_k: int | None = None
    """Sampling: only from the so many most probable tokens."""
    top_p: float = 1.0
    """Sampling: only from the fewest tokens that together have this probability."""
    min_p: float = 0.0
    """Sampling: only from tokens with at least this share of the most probable one's."""
    seed: int = 0
    """Of sampling; a line's samples depend on this, its number and its text alone."""
    mbr_samples: int = 32
    """Minimum Bayes risk: how many samples are candidates and judges. So many sentences are decoded
    together that there are no more samples than beams: batch_size x beams / mbr_samples.
    """
    mbr_metric: Literal["chrf", "bleu"] = "chrf"
    """Minimum Bayes risk: by which sentence score translations are alike."""
    batch_size: int = 64
    """Sentences decoded together."""
    shortlist: int | None = None
    """Beam search over the most frequent sub-words and so many translations of each sub-word of the
    source, as `experiments.learn_lexicon` learns them; over all unless given. Faster, not the same.
    """

    def validate(self) -> None:
        """Positive sizes, groups that divide the beams, shares that are shares."""
        self.require_positive(
            *("beams", "groups", "max_length", "batch_size", "extra_length"),
            *("block_ngrams", "top_k", "mbr_samples", "shortlist"),
        )
        self.require(
            self.beams % self.groups == 0,
            "groups",
            f"a divisor of decode.beams = {self.beams}",
        )
        self.require(self.diversity >= 0, "diversity", "at least 0")
        self.require(self.min_length >= 0, "min_length", "at least 0")
        if self.max_length is not None:
            room = self.min_length < self.max_length
            self.require(room, "min_length", f"below decode.max_length = {self.max_length}")
        self.require(self.temperature > 0, "temperature", "above 0 (decode.beams=1 is greedy)")
        self.require(0 < self.top_p <= 1, "top_p", "above 0 and at most 1")
        self.require(0 <= self.min_p <= 1, "min_p", "at least 0 and at most 1")
        self.require(0 <= self.seed < 2**32, "seed", "at least 0 and below 2^32")
        self.require(1 <= (self.shortlist or 1) <= 100, "shortlist", "1 to 100")
        # A field that would silently do nothing is more likely a mistake.
        sampling = ("temperature", "top_k", "top_p", "min_p")
        for name in sampling if self.method == "beam" else ("groups", "shortlist"):
            untouched = getattr(self, name) == getattr(type(self), name)
            self.require(untouched, name, f"left out with decode.method={self.method!r}")

    @property
    def most_results(self) -> tuple[str, int]:
        """The field that says how many results a sentence can have, and its value."""
        name = "mbr_samples" if self.method == "mbr" else "beams"
        return f"decode.{name}", getattr(self, name)


@dataclasses.dataclass(frozen=True)
class DataConfig(Group):
    """Which sentence pairs, and how they become batches."""

    group: ClassVar[str] = "data"
    former_names: ClassVar[dict[str, str]] = {"tokenizing_processes": "tokenizing_threads"}

    dataset: str = "pronouns_grammar/de"
    """An embedded corpus (``pronouns_grammar/de``, ``scan_grammar/simple``, ...), any TFDS
    translation corpus (``ted_hrlr_translate/pt_to_en``, ``wmt14_translate/de-en``, ...), or
    ``text_files``.
    """
    train_source: str | None = None
    """With ``text_files``: a text file, one sentence a line, plain or gzip; or, without a target,
    one ``.tsv`` file that holds both sides.
    """
    train_target: str | None = None
    validation_source: str | None = None
    validation_target: str | None = None
    test_source: str | None = None
    test_target: str | None = None
    tsv_columns: tuple[int, ...] = (1, 2)
    """The columns of a ``.tsv`` file that hold source and target, counted from 1."""
    mixture: tuple[str, ...] = ()
    """Training corpora in place of the dataset's own training split, each as ``WEIGHT*CORPUS``,
    where CORPUS is a dataset's name, ``SOURCE,TARGET`` (two files) or ``FILE.tsv``; for example
    ``--config.data.mixture="('2*own.en,own.de', 'wmt14_translate/de-en')"``. A pair of a corpus
    with weight 2 is read twice an epoch; with weight 0.5, every other epoch on average.
    """
    direction: str = "forward"
    """``forward``, ``backward`` (source and target change places), or for a corpus that names its
    languages, for example ``en-de``. Two files name theirs by their endings: ``train.en``,
    ``train.de.gz``.
    """
    tokenizer: Literal["bpe", "unigram", "word"] = "bpe"
    """SentencePiece model, trained on both sides of the training split ..."""
    tokenizer_model: str | None = None
    """... unless the path of one is given here."""
    character_coverage: float = 1.0
    """The share of the training text's characters in the vocabulary; the rarest are left out."""
    subword_sampling: float = 0.0
    """Sub-words are sampled anew each epoch: with bpe the probability of skipping a merge (0.1 is
    usual), with unigram the exponent of the sampled probabilities; 0 is off.
    """
    token_cache: str | None = None
    """Folder of tokenized corpora, which runs may share; the workdir's ``tokens`` unless given."""
    tokenizing_threads: int | None = None
    """Threads that tokenize a corpus; default: one per core."""
    max_length: int = 100
    """Longest source or target in tokens, the end token included. Longer training pairs are left
    out and counted; longer input to translate is cut to its first max_length - 1 tokens, with a
    warning.
    """
    tokens_per_batch: int = 4096
    """Target positions (rows x length) of a training batch; its source has as many."""
    bucket_lengths: tuple[int, ...] = (16, 32, 64, 100)
    """Batches come in these lengths only, so that few shapes are compiled; the last: max_length."""
    row_multiple: int = 8
    """The number of rows is a multiple of this, whatever the mesh."""
    packing: bool = False
    """Training rows of max_length tokens hold several sentences each, which do not see each
    other.
    """

    def bucket(self, length: int) -> int:
        """The static length for so many tokens: a bucket's, or beyond the last a multiple of it."""
        last = self.bucket_lengths[-1]
        beyond = -(-length // last) * last
        return next((bucket for bucket in self.bucket_lengths if length <= bucket), beyond)

    def validate(self) -> None:
        """Ascending buckets that end with the longest sentence; text files in pairs."""
        self.require_positive(
            *("max_length", "tokens_per_batch", "row_multiple", "tokenizing_threads")
        )
        two = len(set(self.tsv_columns)) == 2 and min(self.tsv_columns) >= 1
        self.require(two, "tsv_columns", "two different columns, counted from 1")
        covered = 0 < self.character_coverage <= 1
        self.require(covered, "character_coverage", "above 0 and at most 1")
        self.require(0 <= self.subword_sampling <= 1, "subword_sampling", "at least 0, at most 1")
        if self.subword_sampling:
            sampled = self.tokenizer != "word"
            self.require(sampled, "tokenizer", "'bpe' or 'unigram' with data.subword_sampling")
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
    r_drop: float = 0.0
    """Weight of the divergence between two passes with different dropout (Liang et al. 2021); 0
    makes one pass.
    """
    ema_decay: float | None = None
    """Keeps a running average of the weights, which is what is validated and used (0.999 is
    usual).
    """
    micro_batches: int | None = None
    """Equal parts that a batch is computed in, one after the other, to need less memory; 1 unless
    given.
    """
    batch_fitting: Literal["fixed", "auto"] = "fixed"
    """auto: micro_batches, unless given, is the smallest number with which the compiled step fits
    memory_limit_gib, and is written to config.json; the batch stays the same.
    """
    memory_limit_gib: float | None = None
    """For batch_fitting; what the device (or the machine) has unless given."""
    validate_every: int = 1000
    """Steps between validations; each one also saves a checkpoint, and so does the last step."""
    validation_sentences: int = 500
    """How many validation sentences are translated for BLEU; the NLL is over all."""
    best_by: Literal["nll", "bleu"] = "nll"
    """The validation score that decides which checkpoint is the best."""
    patience: int | None = None
    """Training ends after so many validations in a row that are no better than the best."""
    max_skipped: int = 10
    """A step whose loss or gradient is not finite changes nothing but the count of such steps;
    after so many in a row the training stops.
    """
    keep_last: int = 5
    """Checkpoints kept, beside the best."""
    keep_around_best: int = 0
    """And so many on each side of the best, to be averaged (`evaluate --around=best`)."""

    def validate(self) -> None:
        """Positive counts."""
        self.require_positive(
            *("steps", "validate_every", "keep_last", "validation_sentences"),
            *("micro_batches", "patience", "max_skipped"),
        )
        self.require(self.seed >= 0, "seed", "at least 0")
        self.require(self.r_drop >= 0, "r_drop", "at least 0")
        self.require(self.keep_around_best >= 0, "keep_around_best", "at least 0")
        self.require_rates("label_smoothing")
        if self.ema_decay is not None:
            self.require(0 < self.ema_decay < 1, "ema_decay", "above 0 and below 1")
        if self.memory_limit_gib is not None:
            self.require(self.memory_limit_gib > 0, "memory_limit_gib", "above 0")
            auto = self.batch_fitting == "auto"
            self.require(auto, "memory_limit_gib", "left out unless training.batch_fitting='auto'")


LOGICAL_AXES = ("vocab", "source_vocab", "position", "embed", "heads", "kv", "mlp", "norm")
"""What the axes of parameters are called where they are declared."""
MESH_AXES = ("data", "model")


@dataclasses.dataclass(frozen=True)
class ParallelConfig(Group):
    """The device mesh. No field changes a result."""

    group: ClassVar[str] = "parallel"

    data: int = 1
    """Devices along the mesh axis ``data``, over which batch rows are divided."""
    model: int = 1
    """Devices along the mesh axis ``model``, over which heads, d_ff and vocabulary are divided."""
    preset: Literal["replicated", "fsdp", "tensor", "fsdp_tensor"] = "replicated"
    """Which axes of the parameters are divided: none; d_model along ``data``; heads, d_ff and
    vocabulary along ``model``; or both.
    """
    rules: tuple[str, ...] = ()
    """In place of the preset's, each as LOGICAL=MESH, or LOGICAL= for not divided; for example
    ``--config.parallel.rules="('vocab=', 'kv=model')"``. The logical axes are vocab, source_vocab,
    position, embed (d_model), heads, kv (d_k, d_v), mlp (d_ff) and norm.
    """

    def validate(self) -> None:
        """Positive axis sizes; rules that name axes there are, each logical axis once."""
        self.require_positive("data", "model")
        logical = [rule.partition("=")[0] for rule in self.rules]
        self.require(len(set(logical)) == len(logical), "rules", "rules of different axes")
        for rule, axis in zip(self.rules, logical, strict=True):
            self.require("=" in rule, "rules", "LOGICAL=MESH each, or LOGICAL= for not divided")
            mesh = rule.partition("=")[2] or MESH_AXES[0]
            for kind, name, known in (("logical", axis, LOGICAL_AXES), ("mesh", mesh, MESH_AXES)):
                if name not in known:
                    raise InputError(
                        f"parallel.rules has {rule!r}, but there is no {kind} axis {name!r}; did "
                        f"you mean {nearest(name, known)!r}? ({kind} axes: {', '.join(known)})"
                    )


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

    model: ModelConfig = TransformerConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    decode: DecodeConfig = DecodeConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    parallel: ParallelConfig = ParallelConfig()
    logging: LoggingConfig = LoggingConfig()

    def validate(self) -> None:
        """What one group asks of another."""
        longest = self.data.max_length + self.decode.extra_length
        self.model.check_length(max(self.data.max_length, self.decode.max_length or longest))
        if self.optimizer.name == "schedule_free" and self.training.ema_decay is not None:
            raise InputError(
                "optimizer.name='schedule_free' averages the weights itself; leave "
                "training.ema_decay out"
            )
        if self.training.r_drop and not self.model.has_dropout:
            raise InputError(
                f"training.r_drop is {self.training.r_drop!r}, but no dropout is on, so that its "
                "two passes are the same; raise model.dropout or set training.r_drop to 0"
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
