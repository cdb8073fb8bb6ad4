# SPDX-License-Identifier: Apache-2.0
"""Translations, samples and scores are the same on every mesh, and searches on different devices
exchange nothing.
"""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer import sharding
from transformer.config import (
    Config,
    ConvolutionalConfig,
    DataConfig,
    DecodeConfig,
    ParallelConfig,
    RecurrentConfig,
    TransformerConfig,
)
from transformer.decoding import generate
from transformer.models import ensemble, protocol
from transformer.text.tokenizer import Tokenizer
from transformer.trained_model import abstract_params
from transformer.translator import EMPTY_TRANSLATION, Translator

WORDS = "a b c d e f g h"
CONFIG = Config(
    model=TransformerConfig(
        vocab_size=12, num_layers=1, d_model=16, d_ff=24, num_heads=4, dropout=0.0
    ),
    decode=DecodeConfig(beams=4, extra_length=3, batch_size=6),
    data=DataConfig(max_length=12, bucket_lengths=(12,), tokens_per_batch=96),
)
TOKENIZER = Tokenizer.train([WORDS], 12, "word")
SENTENCES = [
    "a b c d e f g h a b c",
    "",
    "h",
    "b c",
    "g g g g g g",
    "a",
    "  ",
    "f e d c b a h",
    "d a d",
    "h g f e d",
    "c",
    "a b c d e f g h a",
    "e e b",
]
"""Eleven are not empty, in batches of six: no number of devices but one divides them."""
PREFIXES = ["b", "a", "", "c c", "a", "", "d", "h g", "e", "", "f", "a b c", ""]
LONG = " ".join("abcdefgh" * 2)
TARGETS = ["a b", "", "c d e f g", "b", "g a", "", "a a a", "f", "b a", "c", "h h h h", "d", "e"]

MESHES = {
    "2": ParallelConfig(data=2),
    "3": ParallelConfig(data=3),
    "4": ParallelConfig(data=4),
    "8": ParallelConfig(data=8),
    "fsdp 8": ParallelConfig(data=8, preset="fsdp"),
    "tensor 4": ParallelConfig(model=4, preset="tensor"),
    "tensor 2 x 4": ParallelConfig(data=2, model=4, preset="tensor"),
    "fsdp and tensor 4 x 2": ParallelConfig(data=4, model=2, preset="fsdp_tensor"),
}
SLOW = pytest.mark.slow
METHODS = {
    "beam search": {},
    "diverse beams and constraints": {"groups": 2, "block_ngrams": 2, "min_length": 3},
    "samples": {"method": "sample", "seed": 3, "top_k": 6, "top_p": 0.9},
    "minimum Bayes risk": {"method": "mbr", "seed": 3, "mbr_samples": 4},
}


@functools.cache
def parameters(**changes):
    """Random parameters of the model, on the first device."""
    return oracle.random_params(protocol.build(CONFIG.model.replace(**changes)), seed=15)


def translator_on(parallel, **decode):
    """The model on a mesh."""
    config = CONFIG.replace(decode=CONFIG.decode.replace(**decode), parallel=parallel)
    return Translator(config, parameters(), TOKENIZER)


@functools.cache
def translated(method, prefixed=False, mesh=None):
    """Translations of the sentences on one device or on a mesh."""
    translator = translator_on(MESHES[mesh] if mesh else ParallelConfig(), **METHODS[method])
    results = min(2, translator.config.decode.most_results[1])
    return translator.nbest(SENTENCES, results, prefixes=PREFIXES if prefixed else None)


def assert_same(actual, expected):
    """The same translations in the same order, with scores equal but for rounding."""
    for some, others in zip(actual, expected, strict=True):
        assert [one.tokens for one in some] == [other.tokens for other in others]
        assert [one.text for one in some] == [other.text for other in others]
        for one, other in zip(some, others, strict=True):
            np.testing.assert_allclose(
                [one.score, one.log_prob], [other.score, other.log_prob], rtol=0, atol=1e-5
            )


def test_the_translations_are_diverse_and_without_ties():
    """Otherwise the tests below would show little, or would fail because of rounding."""
    actual = translated("beam search")
    assert len({first.text for first, _ in actual}) >= 10
    assert len({len(first.tokens) for first, _ in actual}) >= 8
    for row, (first, second) in enumerate(actual):
        assert (first == EMPTY_TRANSLATION) == (not SENTENCES[row].strip())
        assert first == EMPTY_TRANSLATION or first.score > second.score + 0.01


@pytest.mark.parametrize(
    "mesh", [*(pytest.param(mesh, marks=SLOW) for mesh in ("3", "8")), "fsdp and tensor 4 x 2"]
)
def test_beam_search_is_the_same_on_every_mesh(mesh):
    assert_same(translated("beam search", mesh=mesh), translated("beam search"))


@SLOW
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mesh", MESHES)
def test_every_decoding_method_is_the_same_on_every_mesh(mesh, method):
    assert_same(translated(method, True, mesh), translated(method, True))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["3", pytest.param("fsdp and tensor 4 x 2", marks=SLOW)])
def test_scores_beyond_the_longest_length_are_the_same_on_every_mesh(mesh):
    targets = [f"{LONG} {target}" for target in TARGETS]
    expected = translator_on(ParallelConfig()).score(SENTENCES, targets)
    actual = translator_on(MESHES[mesh]).score(SENTENCES, targets)
    assert min(tokens for _, tokens in expected) == 17, "longer than data.max_length"
    assert [tokens for _, tokens in actual] == [tokens for _, tokens in expected]
    np.testing.assert_allclose(
        [score for score, _ in actual], [score for score, _ in expected], rtol=1e-6
    )


def test_one_sentence_is_translated_on_eight_devices():
    assert_same(translator_on(MESHES["8"]).nbest(["h"], 2), translated("beam search")[2:3])


@pytest.mark.slow
def test_an_ensemble_decodes_the_same_on_every_mesh():
    """Greedy search, because it compiles faster."""
    changes = [{}, {"d_model": 32, "d_ff": 8}]
    models = [protocol.build(CONFIG.model.replace(**some)) for some in changes]
    model, params = ensemble.join(models, [parameters(**some) for some in changes])
    one, many = (
        Translator(
            CONFIG.replace(parallel=parallel, decode=CONFIG.decode.replace(beams=1)),
            *(params, TOKENIZER, model),
        )
        for parallel in (ParallelConfig(), ParallelConfig(data=4, preset="fsdp"))
    )
    assert_same(many.nbest(SENTENCES, 1), one.nbest(SENTENCES, 1))


FAMILIES = {
    "convolutional": ConvolutionalConfig(vocab_size=12, num_layers=2, d_model=16, dropout=0.0),
    "recurrent": RecurrentConfig(vocab_size=12, d_model=16),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_decodes_the_same_on_eight_devices(family):
    """Diverse beams, so that caches are reordered within groups, and forced prefixes."""
    params = oracle.random_params(protocol.build(FAMILIES[family]), seed=15)
    decode = CONFIG.decode.replace(groups=2)
    one, many = (
        Translator(
            CONFIG.replace(model=FAMILIES[family], parallel=parallel, decode=decode),
            *(params, TOKENIZER),
        ).nbest(SENTENCES, 2, prefixes=PREFIXES)
        for parallel in (ParallelConfig(), ParallelConfig(data=8, preset="fsdp"))
    )
    assert_same(many, one)
    assert len({first.text for first, _ in one}) >= 8


@pytest.mark.slow
def test_warnings_name_the_line_number_on_every_mesh(caplog):
    translator_on(MESHES["8"]).nbest(["h", LONG, "h"], 2, first_line=40)
    [warning] = [record.getMessage() for record in caplog.records]
    assert "line 41 has 17 tokens" in warning


def test_parameters_are_sharded_by_the_preset_and_used_as_they_are_if_already_on_the_mesh():
    translator = translator_on(MESHES["fsdp and tensor 4 x 2"])
    kernel = translator.params["encoder"]["layer_0"]["feed_forward"]["kernel_in"]
    assert kernel.addressable_shards[0].data.shape == (16 // 4, 24 // 2)
    again = Translator(
        translator.config, translator.params, TOKENIZER, translator.model, translator.mesh
    )
    jax.tree.map(lambda a, b: np.testing.assert_(a is b), again.params, translator.params)
    abstract = abstract_params(translator.config)
    jax.tree.map(
        lambda a, b: np.testing.assert_equal(a.sharding, b.sharding), abstract, again.params
    )


# Collectives of the compiled programs.


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of a compiled program."""

    kind: str
    values: int
    repeated: bool
    """Whether it is inside of a loop."""


def collectives(parallel, rows=16, **decode):
    """The collectives of the search for a batch."""
    config = CONFIG.replace(decode=CONFIG.decode.replace(**decode), parallel=parallel)
    mesh = sharding.make_mesh(parallel)
    where = sharding.batch_sharding(mesh)
    source = jax.ShapeDtypeStruct((rows, 12), jnp.int32, sharding=where)
    lines = None
    if config.decode.method != "beam":
        lines = jax.ShapeDtypeStruct((rows,), jnp.int32, sharding=where)
    search = functools.partial(
        generate.decode,
        mesh=mesh,
        model=protocol.build(config.model),
        config=config.decode,
        num_results=4,
        max_length=15,
    )
    lowered = jax.jit(search).lower(abstract_params(config), source, None, lines, np.uint32(0))
    actual, repeated = [], False
    for line in lowered.compile().as_text().splitlines():
        if line.endswith("{") and not line.startswith(" "):
            repeated = not line.startswith("ENTRY")
        operation = re.search(
            r"= (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)"
            r"(?:-start)?\(",
            line,
        )
        if operation:
            shapes = re.findall(r"\w\[([\d,]*)\]", operation[1])
            sizes = [math.prod(map(int, filter(None, shape.split(",")))) for shape in shapes]
            actual.append(Collective(operation[2], sum(sizes), repeated))
    return actual


RESULTS = {16 * 4 * 15, 16 * 4}
"""Number of tokens, and of scores, of sixteen sentences with four beams."""


@pytest.mark.parametrize(
    ("mesh", "decode"),
    [
        ("fsdp 8", {"groups": 2, "block_ngrams": 2}),
        pytest.param("8", {}, marks=SLOW),
        pytest.param("fsdp 8", {"method": "sample", "top_k": 5, "min_p": 0.1}, marks=SLOW),
    ],
    ids=["diverse beams", "beam search", "samples"],
)
def test_devices_exchange_only_parameters_before_and_results_after_the_search(mesh, decode):
    actual = collectives(MESHES[mesh], **decode)
    assert {(one.kind, one.repeated) for one in actual} == {("all-gather", False)}
    values = {one.values for one in actual}
    assert values >= RESULTS
    if "fsdp" in mesh:
        assert 12 * 16 in values, "the complete embedding table"
        values -= {leaf.size for leaf in jax.tree.leaves(parameters())}
    assert values == RESULTS


def test_with_sharded_heads_no_cache_is_exchanged():
    """A step exchanges activations and logits of local sentences; a cache would be larger."""
    parallel = MESHES["tensor 2 x 4"]
    rows = 16 // parallel.data
    sent = [one.values for one in collectives(parallel) if one.repeated]
    assert max(sent) == rows * 4 * max(CONFIG.model.d_model, CONFIG.model.vocab_size)
    assert max(sent) * parallel.model < rows * 4 * 15 * CONFIG.model.d_model
