# SPDX-License-Identifier: Apache-2.0
"""The live page: the model that runs in the browser is that of the library."""

import base64
import dataclasses
import json
import pathlib
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from browsing import press
from html_reader import Reader
from live_pages import logits_error

from experiments import look
from experiments.configs import pronouns
from transformer.checkpoints.manager import Checkpoints
from transformer.config import (
    Config,
    ConvolutionalConfig,
    DataConfig,
    DecodeConfig,
    TransformerConfig,
)
from transformer.errors import InputError
from transformer.inspection import Interventions, live, no_interventions
from transformer.inspection import run as inspection_run
from transformer.inspection.live import live_limits, live_page, weight_encoding
from transformer.models import protocol
from transformer.nn.taps import Patch
from transformer.text.sentencepiece_fields import segmentation
from transformer.text.tokenizer import Tokenizer
from transformer.training.step import TrainState
from transformer.translator import Translator

SCRIPTS = pathlib.Path(live.__file__).parent

TEXT = [
    "the animal did not cross the street because it was too tired",
    "das tier überquerte die straße nicht , weil es zu müde war .",
    "the street was too wide , the animals were tired .",
]
SENTENCES = ["the animal was tired .", "it was the street , because it was too wide", "a"]

AWKWARD = [
    *("  two  spaces ", "tab\there", "\u2581the", "the\u2581", "the \u2581 street \u2581 "),
    *("日本語 the", "☺☺ ☺the☺", "<s> </s> <unk>", "a\u00a0b\u2028c\u200bd", "e\u0301\u00e9 ﬁ"),
    *("\ufeffthe", "𝒳𝒴 street", "it's  the.street,", "\u2581\u2581it", "ＴＨＥ", "\x00the"),
]
"""Texts with characters outside the vocabulary, spaces of all kinds, and signs of the tokenizer."""


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXT * 3, 60)


def config_of(tokenizer, **model):
    sizes = {
        "vocab_size": tokenizer.vocab_size,
        **{"encoder_layers": 2, "decoder_layers": 1, "encoder_heads": 2, "decoder_heads": 3},
        **{"d_model": 12, "d_k": 5, "d_v": 3, "d_ff": 20},
    }
    return Config(
        model=TransformerConfig(**sizes | model),
        data=DataConfig(dataset="pronouns_grammar/de", max_length=24, bucket_lengths=(24,)),
        decode=DecodeConfig(beams=3, max_length=14),
    )


def random_model(config, seed=0):
    return oracle.random_params(protocol.build(config.model), seed=seed)


def data_of(text):
    [block] = re.findall(r'<script type="application/json" id="model">(.*?)</script>', text)
    return json.loads(block)


# The model in the browser.


@pytest.mark.parametrize("norm", ["post", pytest.param("pre", marks=pytest.mark.slow)])
def test_logits_search_and_tokens_in_the_browser_are_those_of_the_library(show, tokenizer, norm):
    config = config_of(tokenizer, norm=norm)
    translator = Translator(config, random_model(config), tokenizer)
    shown = show(
        live_page.live_page(translator.params, config, tokenizer, (SENTENCES[0], SENTENCES[1]))
    )
    assert logits_error(shown, translator, SENTENCES) < 1e-3
    if norm == "pre":
        return
    tokens = shown.evaluate("(texts) => texts.map(text => tokenizer.encode(text))", AWKWARD)
    ids = [[token["id"] for token in each] for each in tokens]
    assert ids == tokenizer.encode(AWKWARD)
    texts = shown.evaluate("(all) => all.map(ids => tokenizer.decode(ids))", ids)
    assert texts == [tokenizer.decode(each) for each in ids]


@pytest.mark.slow
def test_greedy_search_and_other_conventions_are_those_of_the_library(show, tokenizer):
    config = config_of(tokenizer)
    translator = Translator(config, random_model(config, seed=4), tokenizer)
    shown = show(live_page.live_page(translator.params, config, tokenizer, ("the", "a")))
    for options in (
        {"beams": 1},
        {"beams": 2, "length_penalty": "length", "alpha": 1.3, "finish_from": "best_2k"},
        {"beams": 5, "length_penalty": "none", "max_length": None, "extra_length": 4},
    ):
        found = shown.evaluate(
            """([sentences, options]) => sentences.map(text => {
              const {tokens, results} = translate(text, NO_CHANGES, options);
              return [tokens, results[0].score];
            })""",
            [SENTENCES, options],
        )
        expected = translator(SENTENCES, **options)
        assert [tokens for tokens, _ in found] == [list(each.tokens) for each in expected]
        scores = [score for _, score in found]
        assert scores == pytest.approx([each.score for each in expected], abs=1e-3)


@pytest.mark.slow
def test_a_head_that_is_off_and_a_state_that_is_overwritten_change_what_the_library_says(
    show, tokenizer
):
    config = config_of(tokenizer)
    model, params = protocol.build(config.model), random_model(config)
    source, other = tokenizer.encode(["the animal was tired .", "the street was wide ."])
    target_in = [config.model.bos_id, 7, 9]
    shown = show(live_page.live_page(params, config, tokenizer, ("the", "a")))
    found = shown.evaluate(
        """([source, other, target]) => {
          const gates = allGates();
          gates.encoder[1][0] = 0;
          gates.cross[0][2] = 0;
          const states = encode(model, other).states;
          const changes = {gates, patches: [{level: 1, position: 2, state: states[1][0]}]};
          const {memory} = encode(model, source, changes);
          return decode(model, startDecoding(model, memory), target, changes).logits
            .map(row => [...row]);
        }""",
        [source, other, target_in],
    )
    _, trace = inspection_run(model, params, other, target_in, capture="full")
    nothing = no_interventions(model, len(source), len(target_in))
    encoder = nothing.encoder.replace(
        self_heads=nothing.encoder.self_heads.at[1, 0].set(0),
        residual=Patch(
            nothing.encoder.residual.mask.at[1, 2].set(True),
            nothing.encoder.residual.value.at[1, 2].set(trace.encoder.residual[1, 0]),
        ),
    )
    decoder = nothing.decoder.replace(cross_heads=nothing.decoder.cross_heads.at[0, 2].set(0))
    expected, _ = inspection_run(
        model, params, source, target_in, interventions=Interventions(encoder, decoder)
    )
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.slow
def test_the_reader_changes_the_model_and_undoes_it(show, tokenizer):
    config = config_of(tokenizer)
    sentences = ("the animal was too tired .", "the street was too wide .")
    params = random_model(config)
    shown = show(live_page.live_page(params, config, tokenizer, sentences))
    translated = shown.locator(".translation")
    before = translated.get_attribute("aria-label")
    shown.get_by_role("button", name="Overwrite").click()
    assert "Changed: the state of" in shown.locator(".changed").text_content()
    shown.locator("[data-key='cross 0 1']").click()
    assert (
        "head 1.2 of the encoder-decoder attention is off"
        in shown.locator(".changed").text_content()
    )
    changed = translated.get_attribute("aria-label")
    expected = shown.evaluate("translate(state.sentence, changesOf(state)).translation")
    assert changed == expected
    shown.locator("[data-key='undo']").click()
    assert translated.get_attribute("aria-label") == before
    shown.locator("#sentence").fill("the street")
    shown.wait_for_timeout(600)
    assert translated.get_attribute("aria-label") == shown.evaluate(
        "translate('the street').translation"
    )
    shown.locator(".map").first.focus()
    reader = shown.locator(".reader")
    first = reader.text_content()
    shown.keyboard.press("ArrowRight")
    assert "dimension 2" in reader.text_content() != first


def list_named(shown, name):
    return shown.locator("label", has_text=f"{name} ").locator("select").last


NUMBERS = """({
  translations: [plain, secondRun].map(each => each.translation), contrast, finding,
  loss: document.querySelector("[data-key='encoder 0 0']").textContent,
  shares: document.querySelectorAll("[data-key=share]").length,
  answers: document.querySelector(".answers").textContent,
})"""


@pytest.mark.slow
def test_another_number_of_beams_changes_everything_that_depends_on_the_search(show, tokenizer):
    """The page is that of a model that has this number of beams from the beginning."""

    def show_beams(beams):
        config = config_of(tokenizer)
        config = config.replace(decode=dataclasses.replace(config.decode, beams=beams))
        sentences = ("the animal was tired .", "the animal was too .")  # both depend on the beams
        params = random_model(config, seed=17)
        return show(live_page.live_page(params, config, tokenizer, sentences))

    shown, greedy = show_beams(8), show_beams(1)
    beams = list_named(shown, "Beams")
    beams.locator("option").last.wait_for(state="attached")
    texts = beams.locator("option").all_text_contents()
    assert texts == ["1: greedy", "2", "3", "4", "5", "6", "8"]
    assert beams.evaluate("list => list.selectedOptions[0].textContent") == "8"
    # Lists are changed by arrow keys.
    beams.focus()
    press(shown, *["ArrowUp"] * 4)
    assert (shown.evaluate("state.beams"), beams.input_value()) == (3, "2")
    state = list_named(shown, "State")
    state.focus()
    press(shown, *["ArrowUp"] * 2, *["ArrowDown"] * 2)
    assert (shown.evaluate("state.level"), state.input_value()) == (2, "2")

    for each in (shown, greedy):
        each.wait_for_function("() => finding && document.querySelector('.answers')")
    shown.evaluate("[measureHeads(), measurePatches()]")
    shown.locator("[data-key=share]").wait_for()
    before, expected = shown.evaluate(NUMBERS), greedy.evaluate(NUMBERS)
    assert all(before[name] != expected[name] for name in expected), "the test compares numbers"
    beams.select_option(index=0)
    shown.wait_for_function("() => finding && !document.querySelector('[data-key=share]')")
    assert shown.evaluate(NUMBERS) == expected


# What is in the page.


@pytest.mark.slow
def test_the_page_of_the_default_model_is_below_4_mb_without_a_request():
    config = pronouns.get_config()
    pieces = [f"{first}{second}{third}" for first, second, third in WORDS]
    tokenizer = Tokenizer.train([" ".join(pieces)] * 2, 1600)
    config = config.replace(model=config.model.replace(vocab_size=tokenizer.vocab_size))
    text = live_page.live_page(zeros(config), config, tokenizer, ("a", "b"))
    assert tokenizer.vocab_size == 1600
    assert len(text.encode()) < live_page.LARGE_BYTES
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "the namespace")
    read = Reader(text)
    [policy] = [meta["content"] for meta in read.all("meta") if "http-equiv" in meta]
    assert "default-src 'none'" in policy
    assert [script.get("type") for script in read.all("script")] == ["application/json", None]


def zeros(config):
    """Parameters that take no time to make."""
    shapes = protocol.parameter_metadata(protocol.build(config.model))
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), nn.unbox(shapes))


WORDS = [(a, b, c) for a in "bdfgklmnprst" for b in "aeiouäö" for c in "bdfgklmnprstvwxyz"]


def test_scripts_are_in_the_page_as_they_are_and_begin_with_a_description(tokenizer):
    config = config_of(tokenizer)
    text = live_page.live_page(zeros(config), config, tokenizer, ("a", "b"))
    assert {path.name for path in SCRIPTS.glob("*.js")} == set(live_page.SCRIPTS)
    for path in [*SCRIPTS.glob("*.js"), *SCRIPTS.glob("*.css")]:
        content = path.read_text(encoding="utf-8")
        assert content in text
        first, second, *_ = content.splitlines()
        assert "SPDX-License-Identifier: Apache-2.0" in first
        assert len(second) > 20


def test_a_weight_is_off_by_half_a_unit_of_24_bits_at_most():
    weights = np.array([0.1, -3.7, 1e-8, 0.0, 3.0], np.float32)
    unit = 3.7 / (2**23 - 1)
    np.testing.assert_allclose(
        weight_encoding.rounded(weights), weights, atol=0.51 * unit, rtol=6e-8
    )
    octets = base64.b64decode(weight_encoding.encode(weights))
    assert len(octets) == 3 * len(weights)
    whole = [int.from_bytes(octets[i : i + 3], "little", signed=True) for i in range(0, 15, 3)]
    assert whole[1] == -(2**23 - 1) and whole[3] == 0
    np.testing.assert_allclose(np.multiply(whole, unit), weights, atol=0.51 * unit, rtol=1e-7)
    assert weight_encoding.scale_of(np.zeros(2)) == 1.0


@pytest.mark.slow
def test_tensors_are_named_as_in_the_library_and_know_how_training_draws_them(tokenizer):
    config = config_of(tokenizer)
    data = data_of(live_page.live_page(zeros(config), config, tokenizer, ("a", "b")))
    tensors = {each["path"]: each for each in data["tensors"]}
    assert tensors["embedding/table"]["initial"] == ["normal", 12**-0.5]
    kernel = tensors["decoder/layer_0/cross_attention/query"]
    assert kernel["shape"] == [12, 3, 5]
    initial = nn.unbox(
        protocol.build(config.model).init(
            jax.random.key(0), jnp.zeros((1, 2), int), jnp.zeros((1, 2), int)
        )
    )["params"]
    drawn = np.asarray(initial["decoder"]["layer_0"]["cross_attention"]["query"])
    distribution, limit = kernel["initial"]
    assert distribution == "uniform"
    assert 0.9 * limit < abs(drawn).max() <= limit
    scale = tensors["encoder/layer_1/feed_forward_residual/norm/scale"]
    assert scale["initial"] == ["constant", 1.0]


# Refusals.


def test_a_model_a_search_or_a_tokenizer_that_the_page_does_not_compute_is_refused_by_name():
    others = {
        **{"source_vocab_size": 9, "num_kv_heads": 1, "attention_bias": True},
        **{"attention_score": "additive", "attention_window": 3, "shared_layers": True},
        **{"timestep_encoding": True, "activation": "gelu", "norm_kind": "rms_norm"},
        **{"tied_embeddings": "none", "embedding_scale": "none", "positions": "rotary"},
        **{"sinusoid_layout": "halves", "position_offset": 2, "output_bias": True},
        **{"compute_dtype": "bfloat16"},
    }
    assert others.keys() == {*live_limits.MODEL_FIELDS}
    for field, value in others.items():
        model = {field: value} | ({"tied_embeddings": "none"} if "source" in field else {})
        with pytest.raises(InputError, match=rf"model\.{field} is {value!r}"):
            live_limits.require_model(Config(model=TransformerConfig(**model)))
    with pytest.raises(InputError, match="model.family is 'convolutional'"):
        live_limits.require_model(Config(model=ConvolutionalConfig()))
    searches = {"method": "sample", "groups": 2, "min_length": 2, "block_ngrams": 3}
    for field, value in searches.items():
        with pytest.raises(InputError, match=rf"decode\.{field} is {value!r}"):
            live_limits.require_search(DecodeConfig(**{field: value}))
    for algorithm, size in (("unigram", 40), ("word", 12)):
        tokenizer = Tokenizer.train(TEXT * 3, size, algorithm)
        with pytest.raises(InputError, match=f"its algorithm is '{algorithm}'"):
            live_limits.require_segmentation(tokenizer, segmentation(tokenizer.model))


def test_a_tokenizer_that_normalizes_is_refused(tokenizer):
    fields = segmentation(tokenizer.model)
    assert fields.algorithm == "bpe"
    assert list(fields.pieces) == tokenizer.pieces(range(tokenizer.vocab_size))
    for changed, reason in (
        (fields._replace(character_map=b"x"), "normalizes characters"),
        (fields._replace(byte_fallback=True), "into bytes"),
        (fields._replace(space_after_word=True), "spaces in another way"),
        (fields._replace(scores=fields.scores[::-1]), "order of their merges"),
        (fields._replace(types=(*fields.types[:-1], 4)), "user-defined"),
    ):
        with pytest.raises(InputError, match=reason):
            live_limits.require_segmentation(tokenizer, changed)


def test_a_model_that_is_too_large_is_refused(tokenizer):
    config = config_of(tokenizer, d_model=600, d_ff=9000)
    with pytest.raises(InputError, match=r"weights, so its page would have \d+ MB"):
        live_page.live_page(zeros(config), config, tokenizer, ("a", "b"))


# The command.


@pytest.fixture(scope="module")
def workdir(tokenizer, tmp_path_factory):
    """A trained workdir of a tiny model."""
    folder = tmp_path_factory.mktemp("live") / "run"
    folder.mkdir()
    config = config_of(tokenizer)
    (folder / "config.json").write_text(config.to_json(), encoding="utf-8")
    (folder / "tokenizer.model").write_bytes(tokenizer.model)
    with Checkpoints(folder, config.training, writing=True) as checkpoints:
        state = TrainState(jnp.asarray(1), random_model(config), jnp.zeros(()), jax.random.key(0))
        checkpoints.save(state, {}, {"nll": 1.0})
    return folder


def test_the_command_opens_with_its_sentences_and_refuses_what_the_page_cannot_run(workdir):
    options = look.Options(workdir=str(workdir), live=True)
    data = data_of(look.run(options))
    assert data["sentences"][0] == "The animal didn't cross the street because it was too tired."
    assert "checkpoint" in data["description"]
    decode = options.config.decode.replace(method="sample")
    for changed, message in (
        ({"target": "das"}, "--target has no effect with --live"),
        ({"config": options.config.replace(decode=decode)}, "decode.method is 'sample'"),
    ):
        with pytest.raises(InputError, match=message):
            look.run(dataclasses.replace(options, **changed))
