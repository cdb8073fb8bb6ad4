# SPDX-License-Identifier: Apache-2.0
"""A model behind the batching core: the same results, nothing compiled late, attention by words."""

import concurrent.futures
import dataclasses

import jax
import numpy as np
import oracle
import pytest
from marian import CHECKPOINT
from tiny_translator import SENTENCES, close

from experiments.serving.engine import Engine
from experiments.serving.languages import Languages, target_codes
from experiments.serving.service_metrics import ServiceMetrics
from experiments.serving.word_attention import word_spans
from transformer.arrays import SpecialIds
from transformer.checkpoints import workdir_files
from transformer.config import Config, DataConfig, DecodeConfig, TransformerConfig
from transformer.errors import InputError
from transformer.inspection import trace
from transformer.interop import huggingface_import, imported_model
from transformer.models import protocol
from transformer.text.tokenizer import Tokenizer
from transformer.translator import NO_TRANSLATION, Translator

CONFIG = Config(
    model=TransformerConfig(
        vocab_size=11, num_layers=1, d_model=12, d_ff=16, num_heads=2, attention_kernel="chunked"
    ),
    decode=DecodeConfig(beams=2, extra_length=2, batch_size=4),
    data=DataConfig(max_length=10, bucket_lengths=(10,), tokens_per_batch=80),
)
COMPILATIONS = "transformer_compilations_total"


def translator_of(config):
    """A model with random parameters over seven words, two batches at a time on any machine."""
    params = oracle.random_params(protocol.build(config.model), seed=3)
    translator = Translator(config, params, Tokenizer.train(["a b c d e f g"], 11, "word"))
    translator.search.threads = 2
    return translator


@pytest.fixture(scope="module")
def translator():
    """A translator with beam search."""
    return translator_of(CONFIG)


@pytest.fixture(scope="module")
def engine(translator):
    """An engine that is warmed up, and the metrics that listen to JAX."""
    with ServiceMetrics() as metrics, Engine(translator, window=0.002) as engine:
        assert not engine.ready.is_set()
        engine.warm_up()
        assert engine.ready.is_set()
        assert metrics.value(COMPILATIONS) >= 5, "two sizes, two numbers of results, attention"
        engine.metrics = metrics
        yield engine


def results(futures):
    return [future.result(60) for future in futures]


@pytest.mark.slow
def test_many_threads_get_the_translations_of_the_translator_and_compile_nothing(
    engine, translator
):
    compiled = engine.metrics.value(COMPILATIONS)
    rows = [np.roll(SENTENCES, shift).tolist() for shift in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        several = list(threads.map(lambda lines: results(engine.translate(lines, 2)), rows))
        single = list(threads.map(lambda lines: results(engine.translate(lines)), rows))
    assert engine.metrics.value(COMPILATIONS) == compiled
    expected = dict(zip(SENTENCES, translator.nbest(SENTENCES, 2), strict=True))
    for lines, nbest, bests in zip(rows, several, single, strict=True):
        for line, translations, [best] in zip(filter(None, lines), nbest, bests, strict=True):
            close(best, expected[line][0])
            for one, other in zip(translations, expected[line], strict=True):
                if other is not NO_TRANSLATION:
                    close(one, other)


def test_a_sample_depends_on_its_line_number_alone():
    config = CONFIG.replace(decode=CONFIG.decode.replace(method="sample"))
    translator = translator_of(config)
    lines = ["a b", "c", "d e f"]
    expected = [best.tokens for [best] in translator.nbest(lines, 1)]
    with Engine(translator) as engine:
        for _ in range(2):
            assert [best.tokens for [best] in results(engine.translate(lines))] == expected


def test_lines_that_would_be_cut_are_refused(engine):
    assert len(results(engine.translate(["", "a " * 9]))) == 1
    with pytest.raises(InputError, match="line 2 has 11 tokens, but this model reads at most 10"):
        engine.translate(["a", "a " * 10])


def test_attention_between_words_is_that_of_the_inspection_and_compiles_nothing(engine, translator):
    compiled = engine.metrics.value(COMPILATIONS)
    found = engine.attention("a c b", "b  g").result(60)
    assert engine.metrics.value(COMPILATIONS) == compiled
    assert found["source"] == [[0, 1], [2, 3], [4, 5]]
    assert found["target"] == [[0, 1], [3, 4]]
    source_ids, target_ids = translator.tokenizer.encode(["a c b", "b g"])
    target_in = [SpecialIds().bos, *target_ids[:-1]]
    _, captured = jax.jit(
        lambda params: trace.run(translator.model, params, source_ids, target_in, capture="weights")
    )(translator.params)
    weights = np.asarray(captured.attention("cross").weights).mean(1)  # [L, N, T, S] -> [L, T, S]
    np.testing.assert_allclose(found["weights"], weights[:, :2], atol=6e-5)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [("a", "", "target has 1 tokens"), ("a " * 10, "a", "source has 11 tokens, EOS included")],
)
def test_attention_of_texts_that_do_not_fit_is_refused(engine, source, target, message):
    with pytest.raises(InputError, match=message):
        engine.attention(source, target)


@pytest.mark.parametrize(
    ("text", "pieces", "numbers", "words"),
    [
        ("it is tired.", "▁it ▁is ▁tir ed .", [0, 1, 2, 2, 3], ["it", "is", "tired", "."]),
        ("don't  go", "▁don ' t ▁go", [0, 1, 2, 3], ["don", "'", "t", "go"]),
        ("  a b", "▁a ▁b", [0, 1], ["a", "b"]),
        ("我们走", "▁ 我们 走", [-1, 0, 1], ["我们", "走"]),
        ("a \U0001f600b c", "▁a ▁ <unk> ▁c", [0, 0, 1, 2], ["a", "\U0001f600b", "c"]),
        ("\U0001f600", "▁ <unk>", [-1, 0], ["\U0001f600"]),
        (
            "“The cat sat",
            "▁ <unk> T he ▁c at ▁sat",
            [-1, 0, 1, 1, 2, 2, 3],
            ["“", "The", "cat", "sat"],
        ),
        ("喜欢𠮷和狗", "▁喜欢 <unk> 和狗", [0, 1, 2], ["喜欢", "𠮷", "和狗"]),
    ],
)
def test_words_are_found_in_the_text(text, pieces, numbers, words):
    found, spans = word_spans(text, pieces.split(" "))
    assert found == numbers
    assert [text[start:end] for start, end in spans] == words


@pytest.mark.slow
def test_an_imported_model_of_several_targets_is_served(tmp_path):
    loaded = huggingface_import.load(CHECKPOINT)
    codes = (">>deu<<", ">>nld<<")
    pieces = (*loaded.vocabulary.pieces[:-2], *codes)
    vocabulary = dataclasses.replace(loaded.vocabulary, pieces=pieces, languages=codes)
    loaded = dataclasses.replace(loaded, vocabulary=vocabulary)
    imported_model.write_workdir(loaded, tmp_path / "run")
    config = workdir_files.load_inference_config(tmp_path / "run")
    config = config.replace(
        data=config.data.replace(bucket_lengths=(config.data.max_length,)),
        decode=config.decode.replace(batch_size=2, beams=2),
    )
    translator = Translator.from_workdir(tmp_path / "run", config)
    assert target_codes(translator.vocabularies) == [*codes]
    languages = Languages.of(config, codes=codes)
    line = languages.prefix(languages.targets[-1]) + "the house"
    with ServiceMetrics() as metrics, Engine(translator) as engine:
        engine.warm_up()
        compiled = metrics.value(COMPILATIONS)
        with pytest.raises(InputError, match="begin it with one of >>"):
            engine.translate(["the house"])
        [[best]] = results(engine.translate([line]))
        words = engine.attention(line, "das Haus").result(120)
        assert metrics.value(COMPILATIONS) == compiled
    assert best.tokens == translator.nbest([line], 1)[0][0].tokens
    assert [line[start:end] for start, end in words["source"]][0] == codes[-1]
