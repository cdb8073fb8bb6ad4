# SPDX-License-Identifier: Apache-2.0
"""Translations, samples and scores are the same on every mesh, and no search waits for another's
rows.
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
from transformer.config import Config, DataConfig, DecodeConfig, ParallelConfig, TransformerConfig
from transformer.decoding import generate
from transformer.decoding.decode_loop import LEAST
from transformer.errors import InputError
from transformer.models import base, ensemble
from transformer.text.tokenizer import Tokenizer
from transformer.translator import NOTHING, Translator, abstract_params

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
"""Eleven that are not empty, in batches of six: no number of devices but one divides them."""
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
    "least risky samples": {"method": "mbr", "seed": 3, "mbr_samples": 4},
}


@functools.cache
def parameters(**changes):
    """Random parameters of the model, on the first device."""
    return oracle.random_params(base.build(CONFIG.model.replace(**changes)), seed=15)


def translator_on(parallel, **decode):
    """The model on a mesh."""
    config = CONFIG.replace(decode=CONFIG.decode.replace(**decode), parallel=parallel)
    return Translator(config, parameters(), TOKENIZER)


@functools.cache
def translated(method, prefixed=False, mesh=None):
    """What one device, or a mesh, makes of the sentences."""
    translator = translator_on(MESHES[mesh] if mesh else ParallelConfig(), **METHODS[method])
    results = min(2, translator.config.decode.most_results[1])
    return translator.nbest(SENTENCES, results, prefixes=PREFIXES if prefixed else None)


def assert_same(found, expected):
    """The same translations, in the same places, with the same scores but for rounding."""
    for some, others in zip(found, expected, strict=True):
        assert [one.tokens for one in some] == [other.tokens for other in others]
        assert [one.text for one in some] == [other.text for other in others]
        for one, other in zip(some, others, strict=True):
            np.testing.assert_allclose(
                [one.score, one.log_prob], [other.score, other.log_prob], rtol=0, atol=1e-5
            )


def test_the_translations_are_many_and_none_ranks_as_another():
    """Or the tests below would show little, or would fail for rounding."""
    found = translated("beam search")
    assert len({first.text for first, _ in found}) >= 10
    assert len({len(first.tokens) for first, _ in found}) >= 8
    for row, (first, second) in enumerate(found):
        assert (first == NOTHING) == (not SENTENCES[row].strip())
        assert first == NOTHING or first.score > second.score + 0.01


@pytest.mark.parametrize(
    "method", ["diverse beams and constraints", pytest.param("samples", marks=SLOW)]
)
def test_sentences_that_retire_are_translated_the_same(method):
    """In batches of six, as everywhere else here, none does."""
    together = translator_on(ParallelConfig(), **METHODS[method], batch_size=LEAST + 2)
    assert_same(together.nbest(SENTENCES, 2, prefixes=PREFIXES), translated(method, True))


@pytest.mark.parametrize("mesh", ["3", "8", "fsdp and tensor 4 x 2"])
def test_beam_search_finds_the_same_on_every_mesh(mesh):
    assert_same(translated("beam search", mesh=mesh), translated("beam search"))


@pytest.mark.parametrize("method", ["diverse beams and constraints", "least risky samples"])
def test_every_way_of_decoding_finds_the_same_on_eight_devices(method):
    assert_same(translated(method, True, "8"), translated(method, True))


@SLOW
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mesh", MESHES)
def test_every_way_of_decoding_finds_the_same_on_every_mesh(mesh, method):
    assert_same(translated(method, True, mesh), translated(method, True))


@pytest.mark.parametrize("mesh", ["3", pytest.param("fsdp and tensor 4 x 2", marks=SLOW)])
def test_scores_beyond_the_longest_length_are_the_same_on_every_mesh(mesh):
    targets = [f"{LONG} {target}" for target in TARGETS]
    expected = translator_on(ParallelConfig()).score(SENTENCES, targets)
    found = translator_on(MESHES[mesh]).score(SENTENCES, targets)
    assert min(tokens for _, tokens in expected) == 17, "longer than data.max_length"
    assert [tokens for _, tokens in found] == [tokens for _, tokens in expected]
    np.testing.assert_allclose(
        [score for score, _ in found], [score for score, _ in expected], rtol=1e-6
    )


def test_one_sentence_is_translated_on_eight_devices():
    assert_same(translator_on(MESHES["8"]).nbest(["h"], 2), translated("beam search")[2:3])


@pytest.mark.slow
def test_an_ensemble_decodes_the_same_on_every_mesh():
    """Greedily, which is compiled sooner."""
    changes = [{}, {"d_model": 32, "d_ff": 8}]
    models = [base.build(CONFIG.model.replace(**some)) for some in changes]
    model, params = ensemble.join(models, [parameters(**some) for some in changes])
    one, many = (
        Translator(
            CONFIG.replace(parallel=parallel, decode=CONFIG.decode.replace(beams=1)),
            *(params, TOKENIZER, model),
        )
        for parallel in (ParallelConfig(), ParallelConfig(data=4, preset="fsdp"))
    )
    assert_same(many.nbest(SENTENCES, 1), one.nbest(SENTENCES, 1))


def test_a_line_is_told_by_its_number_on_every_mesh(caplog):
    translator_on(MESHES["8"]).nbest(["h", LONG, "h"], 2, first_line=40)
    [warning] = [record.getMessage() for record in caplog.records]
    assert "line 41 has 17 tokens" in warning


def test_parameters_are_laid_out_by_the_preset_and_taken_as_they_are_on_the_mesh():
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


def test_more_devices_than_there_are_are_refused():
    with pytest.raises(InputError, match=r"9 x 1 needs 9 devices, but there are 8"):
        translator_on(ParallelConfig(data=9))


# What the compiled programs send from device to device.


@dataclasses.dataclass(frozen=True)
class Collective:
    """One that a compiled program has."""

    kind: str
    values: int
    repeated: bool
    """Whether it stands in the loop."""


def collectives(parallel, rows=16, **decode):
    """Those of a batch's search."""
    config = CONFIG.replace(decode=CONFIG.decode.replace(**decode), parallel=parallel)
    mesh = sharding.make_mesh(parallel)
    where = sharding.batch_sharding(mesh)
    source = jax.ShapeDtypeStruct((rows, 12), jnp.int32, sharding=where)
    lines = None
    if config.decode.method != "beam":
        lines = jax.ShapeDtypeStruct((rows,), jnp.int32, sharding=where)
    lowered = generate.decode.lower(
        abstract_params(config),
        source,
        None,
        lines,
        np.uint32(0),
        mesh=mesh,
        model=base.build(config.model),
        config=config.decode,
        results=4,
        max_length=15,
    )
    found, repeated = [], False
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
            found.append(Collective(operation[2], sum(sizes), repeated))
    return found


RESULTS = {16 * 4 * 15, 16 * 4}
"""How many tokens, and how many scores, sixteen sentences with four beams have."""


@pytest.mark.parametrize(
    ("mesh", "decode"),
    [
        ("fsdp 8", {"groups": 2, "block_ngrams": 2}),
        pytest.param("8", {}, marks=SLOW),
        pytest.param("fsdp 8", {"method": "sample", "top_k": 5, "min_p": 0.1}, marks=SLOW),
    ],
    ids=["diverse beams", "beam search", "samples"],
)
def test_nothing_is_sent_but_parameters_before_the_search_and_results_after_it(mesh, decode):
    found = collectives(MESHES[mesh], **decode)
    assert {(one.kind, one.repeated) for one in found} == {("all-gather", False)}
    values = {one.values for one in found}
    assert values >= RESULTS
    if "fsdp" in mesh:
        assert 12 * 16 in values, "the embedding table, whole"
        values -= {leaf.size for leaf in jax.tree.leaves(parameters())}
    assert values == RESULTS


def test_with_heads_divided_no_cache_is_sent():
    """A step sends activations and logits, of the device's own rows; a cache would be larger."""
    parallel = MESHES["tensor 2 x 4"]
    rows = 16 // parallel.data
    sent = [one.values for one in collectives(parallel) if one.repeated]
    assert max(sent) == rows * 4 * max(CONFIG.model.d_model, CONFIG.model.vocab_size)
    assert max(sent) * parallel.model < rows * 4 * 15 * CONFIG.model.d_model
