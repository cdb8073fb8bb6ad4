# SPDX-License-Identifier: Apache-2.0
"""Recipes (``training.recipe``): configs completed from a text, or from a trained model.

The number of sentence pairs and the machine select the size of the model. The text itself
determines the vocabulary, the batch lengths and the number of steps. Fine-tuning takes the model,
its vocabulary and the batch lengths from ``training.init_from``.
"""

import dataclasses
import importlib.metadata
import importlib.util
import math
import os
import shlex
import sys
from collections.abc import Sequence

import numpy as np

from experiments.console.progress import say
from experiments.data import registry
from experiments.data.pairs import SentencePairs
from experiments.data.token_corpus import TokenCorpus
from transformer.checkpoints import workdir_files
from transformer.config import (
    Config,
    DataConfig,
    OptimizerConfig,
    TransformerConfig,
)
from transformer.errors import InputError
from transformer.fields import difference, flat
from transformer.text.tokenizer import Tokenizer, Vocabularies

TEXT_FIELDS = (
    *("train_source", "train_target", "tsv_columns", "mixture", "direction", "row_multiple"),
    *("tokenizer", "tokenizer_model", "source_tokenizer_model", "vocabulary"),
)
"""Fields of `DataConfig` that a recipe depends on."""
SAMPLE = 10_000
"""Sentence pairs that are tokenized to measure their lengths."""
MAX_LENGTH = 256
"""Longest sentence that a recipe trains on, in tokens; longer ones are left out and counted."""
SHARES = (0.4, 0.7, 0.9, 0.995)
"""Shares of the sentence pairs that fit the batch lengths, one after the other."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A size of model, and how long it trains."""

    max_pairs: float
    """Number of sentence pairs for which a larger model does not pay."""
    model: TransformerConfig
    """`vocab_size` is a maximum."""
    peak: float
    """Learning rate after warmup, for batches of `tokens_per_batch`."""
    tokens_per_batch: int
    """A maximum."""
    epochs: int
    max_steps: int


# With layer norms before the sub-layers attention forms in fewer updates.
_PRE_NORM = TransformerConfig(vocab_size=8000, num_heads=4, norm="pre", dropout_generator="hash")

RECIPES = {
    "small": Recipe(
        max_pairs=100_000,
        model=_PRE_NORM.replace(num_layers=4, d_model=128, d_ff=256, dropout=0.2),
        peak=0.004,
        tokens_per_batch=4096,
        epochs=36,
        max_steps=20_000,
    ),
    "medium": Recipe(
        max_pairs=1_000_000,
        model=_PRE_NORM.replace(num_layers=3, d_model=256, d_ff=1024, dropout=0.1),
        peak=0.002,
        tokens_per_batch=4096,
        epochs=20,
        max_steps=40_000,
    ),
    "large": Recipe(
        max_pairs=float("inf"),
        model=TransformerConfig(vocab_size=32_000),
        peak=0.0007,
        tokens_per_batch=25_000,
        epochs=20,
        max_steps=100_000,
    ),
}
"""By name, the smallest first; ``large`` is the paper's base model."""


def fine_tune(config: Config, init_from: str | None) -> Config:
    """Complete a config with the model, the vocabulary and the batch lengths of a trained model.

    Raises:
      InputError: when `init_from` is missing or cannot be read.
    """
    if init_from is None:
        raise InputError(
            "missing --config.training.init_from=WORKDIR, the trained model from which fine-tuning "
            "starts"
        )
    trained = workdir_files.load_inference_config(init_from)
    kept = ("tokenizer", "vocabulary", "character_coverage", "max_length", "tokens_per_batch")
    kept += ("bucket_lengths", "row_multiple")
    return trained.replace(
        optimizer=config.optimizer,
        data=config.data.replace(**{name: getattr(trained.data, name) for name in kept}),
        training=config.training.replace(
            recipe=None,
            init_from=init_from,
            label_smoothing=trained.training.label_smoothing,
            label_smoothing_mass=trained.training.label_smoothing_mass,
        ),
    )


def fit(name: str, data: DataConfig, base: Config | None = None) -> Config:
    """Choose a config for a text, and print it as flags.

    Args:
      name: a key of `RECIPES`, or ``auto``.
      data: the fields that name the text, its direction and its tokenizer. Without a text, the
        config is for one of ordinary lengths.
      base: the config whose other fields are kept; by default that with the default values.

    Raises:
      InputError: when the text cannot be read.
    """
    base = base or Config()
    if not (data.train_source or data.mixture):
        recipe = RECIPES["medium" if name == "auto" else name]
        return _config(base, recipe, data, None, np.array([16, 32, 64, 85]), 500_000)
    corpora = registry.training_corpora(data)
    pairs = round(sum(weight * corpus.count() for weight, corpus in corpora))
    if name == "auto":
        choices = list(RECIPES) if has_accelerator() else ["small", "medium"]
        name = next((one for one in choices if pairs <= RECIPES[one].max_pairs), choices[-1])
    recipe = RECIPES[name]
    vocabularies, lengths = _measure([corpus for _, corpus in corpora], data, recipe)
    config = _config(base, recipe, data, vocabularies, lengths, pairs)
    machine = "an accelerator" if has_accelerator() else "the CPU"
    given = flat(data)
    flags = (
        shlex.quote(f"--config.{path}={str(value).replace(' ', '')}")
        for path, (default, value) in difference(Config(), config).items()
        if given.get(path, default) != value
    )
    print(f"recipe {name}, for {pairs:,} pairs on {machine}:", *flags, file=sys.stderr)
    return config


def has_accelerator() -> bool:
    """Whether JAX may use a GPU or a TPU, by its installed plugins.

    The backend is not started, because it has to wait for the processes of a distributed run.
    """
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    installed = bool(plugins) or importlib.util.find_spec("libtpu") is not None
    return installed and os.environ.get("JAX_PLATFORMS") != "cpu"


def _measure(
    corpora: Sequence[SentencePairs], data: DataConfig, recipe: Recipe
) -> tuple[Vocabularies, np.ndarray]:
    """Vocabularies of sampled sentence pairs, and the tokens of the longer side of each pair."""
    count = sum(corpus.count() for corpus in corpora)
    if count > 1_000_000:
        say(f"reading {count:,} pairs to choose a vocabulary size")
    stride = max(count // SAMPLE, 1)
    sample, alphabets = ([], []), (set(), set())
    for corpus in corpora:
        for number, pair in enumerate(corpus):
            for side, line in enumerate(pair):
                alphabets[side].update(line)
                if number % stride == 0:
                    sample[side].append(line)

    def tokenizer(path: str | None, *sides: int) -> Tokenizer:
        if path:
            return Tokenizer.load(path)
        alphabet = "".join(sorted(set.union(*(alphabets[side] for side in sides))))
        # A token should occur often. Scripts with many characters need more tokens.
        supported = min(2 * count, max(2000, count // 3))
        size = max(min(recipe.model.vocab_size, supported), len(alphabet) * 3 // 2 + 8)
        sentences = [line for side in sides for line in sample[side]]
        if stride > 1:  # Characters outside the sample need tokens, too.
            sentences += [alphabet[start : start + 1000] for start in range(0, len(alphabet), 1000)]
        return Tokenizer.train(sentences, size, data.tokenizer, at_most=True)

    if data.vocabulary == "shared":
        vocabularies = Vocabularies.shared(tokenizer(data.tokenizer_model, 0, 1))
    else:
        vocabularies = Vocabularies(
            tokenizer(data.source_tokenizer_model, 0), tokenizer(data.tokenizer_model, 1)
        )
    tokens = TokenCorpus.encode(*sample, vocabularies)
    # Training leaves pairs with an empty side out, and refuses a text of such pairs alone.
    trained_on = tokens.nonempty if tokens.nonempty.any() else slice(None)
    return vocabularies, tokens.max_lengths[trained_on]


def _config(
    base: Config,
    recipe: Recipe,
    data: DataConfig,
    vocabularies: Vocabularies | None,
    lengths: np.ndarray,
    pairs: int,
) -> Config:
    """The config of a recipe for a text of which some lengths are known."""
    model = recipe.model
    if vocabularies is not None:
        shared = vocabularies.are_shared
        model = model.replace(
            vocab_size=vocabularies.target.vocab_size,
            source_vocab_size=None if shared else vocabularies.source.vocab_size,
        )
    quantiles = np.quantile(lengths, SHARES, method="lower")
    # Longer sentences than these are outliers, which would make every batch larger.
    longest = max(1.5 * quantiles[-1], 2 * np.quantile(lengths, 0.9))
    longest = min(_round_up(longest, 8), MAX_LENGTH)
    buckets = sorted({_round_up(length, 4) for length in quantiles if length < longest} | {longest})
    bucketed = np.array(buckets)[np.searchsorted(buckets, lengths.clip(max=longest))]
    # Attention forms after a number of updates, so a small text has smaller batches: 80 an epoch
    # or, of 1,024 tokens, 20 to 80. A batch has 8 rows or more.
    tokens = pairs * float(bucketed.mean())
    for_updates = max(tokens / 80, min(tokens / 20, 1024))
    tokens_per_batch = max(
        int(min(recipe.tokens_per_batch, for_updates)), data.row_multiple * longest
    )
    share = tokens_per_batch / recipe.tokens_per_batch
    steps = recipe.epochs * math.ceil(tokens / tokens_per_batch)
    steps = max(min(round(steps, -2), recipe.max_steps), 200)
    return base.replace(
        model=model,
        optimizer=OptimizerConfig(
            schedule="cosine",
            # Smaller batches have noisier gradients, so they take smaller steps.
            learning_rate=float(f"{recipe.peak * math.sqrt(share):.2g}"),
            warmup_steps=min(max(steps // 8, 50), 4000),
        ),
        data=data.replace(
            max_length=longest, bucket_lengths=tuple(buckets), tokens_per_batch=tokens_per_batch
        ),
        training=base.training.replace(
            recipe=None, steps=steps, validate_every=max(steps // 20, 20), patience=5
        ),
    )


def _round_up(length: float, multiple: int) -> int:
    return math.ceil(length / multiple) * multiple
