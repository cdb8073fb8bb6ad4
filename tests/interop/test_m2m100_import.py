# SPDX-License-Identifier: Apache-2.0
"""M2M100 and NLLB models: pre-norm, positions from 2, and languages that are read and forced."""

import html
import io
import json
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy
import sentencepiece
from marian import CHECKPOINT

from experiments import look
from transformer.checkpoints import workdir_files
from transformer.errors import InputError
from transformer.interop import huggingface_import, imported_model
from transformer.models import protocol
from transformer.text.mapped_tokenizer import MappedTokenizer
from transformer.text.tokenizer import Vocabularies, processor
from transformer.translator import Translator

CODES = ["ace_Latn", "deu_Latn", "eng_Latn"]
CONFIG = {
    "model_type": "m2m_100",
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 64,
    "activation_function": "relu",
    "scale_embedding": True,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "bos_token_id": 0,
    "decoder_start_token_id": 2,
}
SPM = (CHECKPOINT / "source.spm").read_bytes()
NUM_PIECES = processor(SPM).vocab_size()
VOCAB_SIZE = NUM_PIECES + 1 + len(CODES) + 3
"""Padding and the codes are added to SentencePiece's; the last rows have no names."""
SENTENCES = ["the animal did not cross street", "it was too tired", "a dog"]
ENGLISH, GERMAN = (NUM_PIECES + 1 + CODES.index(code) for code in ("eng_Latn", "deu_Latn"))


def files(directory, **config):
    """The files of a model beside its weights."""
    directory.mkdir(exist_ok=True)
    values = CONFIG | {"vocab_size": VOCAB_SIZE} | config
    (directory / "config.json").write_text(json.dumps(values))
    names = {"additional_special_tokens": CODES}
    (directory / "special_tokens_map.json").write_text(json.dumps(names))
    shutil.copy(CHECKPOINT / "source.spm", directory / "sentencepiece.bpe.model")
    return directory


def random_weights():
    """Random tensors with the names and shapes of the config."""
    width, hidden, draw = 16, 24, np.random.default_rng(0)
    shapes = {"model.shared.weight": (VOCAB_SIZE, width)}
    for side, depth in (("encoder", 1), ("decoder", 2)):
        shapes[f"model.{side}.layer_norm.weight"] = shapes[f"model.{side}.layer_norm.bias"] = (
            width,
        )
        for index in range(depth):
            name = f"model.{side}.layers.{index}"
            attentions = ["self_attn", "encoder_attn"][: 1 + (side == "decoder")]
            norms = [*(f"{one}_layer_norm" for one in attentions), "final_layer_norm"]
            maps = {f"{one}.{part}_proj": (width, width) for one in attentions for part in "qkv"}
            maps |= {f"{one}.out_proj": (width, width) for one in attentions}
            for part, shape in {**maps, "fc1": (hidden, width), "fc2": (width, hidden)}.items():
                shapes[f"{name}.{part}.weight"], shapes[f"{name}.{part}.bias"] = shape, shape[:1]
            for norm in norms:
                shapes[f"{name}.{norm}.weight"] = shapes[f"{name}.{norm}.bias"] = (width,)
    return {name: draw.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = files(tmp_path_factory.mktemp("nllb"))
    safetensors.numpy.save_file(random_weights(), path / "model.safetensors")
    return path


@pytest.fixture(scope="module")
def imported(directory):
    return huggingface_import.load(directory, None, "eng_Latn", "deu_Latn")


def sides_of(imported):
    return Vocabularies.shared(MappedTokenizer(imported.vocabulary.pack()))


def test_ids_are_those_of_fairseq_after_the_code_of_the_language(imported):
    sides, original = sides_of(imported), np.array(imported.vocabulary.original_ids)
    plain = processor(SPM).encode(SENTENCES)
    for ids, expected in zip(sides.source.encode(SENTENCES), plain, strict=True):
        assert original[ids].tolist() == [ENGLISH, *(one + 1 for one in expected), 2]
    assert original[sides.target.forced_ids].tolist() == [GERMAN]
    [ids] = sides.target.encode(["a dog"])
    assert original[ids[0]] == GERMAN
    assert sides.target.decode(ids) == "a dog"
    model = imported.config.model
    assert (model.norm, model.sinusoid_layout, model.position_offset) == ("pre", "halves", 2)


def test_the_tokenizer_is_named_by_the_algorithm_of_its_model(directory, tmp_path):
    shutil.copytree(directory, tmp_path / "copy")
    # Ids of SentencePiece are those of fairseq less padding.
    ids = {f"{name}_id": index for name, index in (("bos", 0), ("eos", 1), ("unk", 2))}
    for algorithm in ("bpe", "unigram", "word", "char"):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            **{"sentence_iterator": iter([" ".join(SENTENCES)] * 9), "model_writer": model},
            **{"model_type": algorithm, "hard_vocab_limit": False, "vocab_size": 20},
            **{"pad_id": -1, "minloglevel": 2, "use_all_vocab": algorithm == "char"} | ids,
        )
        (tmp_path / "copy" / "sentencepiece.bpe.model").write_bytes(model.getvalue())
        imported = huggingface_import.load(tmp_path / "copy", None, "eng_Latn", "deu_Latn")
        assert imported.config.data.tokenizer == {"char": "word"}.get(algorithm, algorithm)


@pytest.mark.slow
def test_every_translation_begins_with_the_code_of_its_language(imported):
    translator = Translator(imported.config, imported.params, sides_of(imported))
    options = {"beams": 2, "extra_length": 2}
    original = imported.vocabulary.original_ids
    for best, *_ in translator.nbest([*SENTENCES, ""], 2, **options):
        if best.tokens:
            assert original[best.tokens[0]] == GERMAN
            assert not best.text.startswith("deu_Latn")
    empty = translator.nbest("", 1, **options)[0]
    assert empty.text == ""


def test_both_languages_must_be_named_and_other_sizes_are_refused(directory, tmp_path):
    languages = None, "eng_Latn", "deu_Latn"
    for arguments, message in (
        ((None, None, "deu_Latn"), "missing --source_language; the languages of this model are ac"),
        ((None, "eng_Latn", "fra"), "--target_language=fra; the languages of this model are ace_"),
        (("marian", *languages[1:]), "only a Marian model has a choice of positions"),
    ):
        with pytest.raises(InputError, match=message):
            huggingface_import.load(directory, *arguments)
    for config, message in (
        ({"decoder_ffn_dim": 8}, "decoder_ffn_dim is 8, but only 24 is supported"),
        ({"vocab_size": NUM_PIECES}, f"but the table has {NUM_PIECES} rows"),
    ):
        with pytest.raises(InputError, match=message):
            huggingface_import.load(files(tmp_path, **config), *languages)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_logits_and_translations_are_those_of_transformers(directory, imported):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    theirs = transformers.M2M100ForConditionalGeneration.from_pretrained(directory).eval()
    sides, original = sides_of(imported), np.array(imported.vocabulary.original_ids)
    [source] = sides.source.encode(SENTENCES[:1])
    target = np.array([[1, *sides.target.encode(["a dog"])[0]]], np.int32)
    with torch.no_grad():
        expected = theirs(
            input_ids=torch.tensor([original[source].tolist()]),
            decoder_input_ids=torch.tensor(original[target]),
        ).logits.numpy()
    model = protocol.build(imported.config.model)
    logits = jax.jit(lambda params, *tokens: model.apply({"params": params}, *tokens))
    actual = np.asarray(logits(imported.params, np.array([source], np.int32), target))
    np.testing.assert_allclose(actual[..., 2:], expected[..., original[2:]], rtol=0, atol=2e-5)
    translator = Translator(imported.config, imported.params, sides)
    excluded = [[0], [1]]  # Padding, and BOS, whose logit here is that of a row without a name.
    for sentence, ids in zip(SENTENCES, sides.source.encode(SENTENCES), strict=True):
        for beams in (1, 4):
            [output] = theirs.generate(
                torch.tensor([original[ids].tolist()]),
                num_beams=beams,
                max_length=12,
                forced_bos_token_id=GERMAN,
                bad_words_ids=excluded,
            ).tolist()
            decode = {"beams": beams, "max_length": 11, "length_penalty": "length", "alpha": 1.0}
            found = original[[*translator(sentence, **decode).tokens]].tolist()
            assert found[: len(output) - 2] == output[1:-1]


@pytest.mark.slow
def test_a_page_shows_the_translation_into_the_forced_language(imported, tmp_path):
    imported_model.write_workdir(imported, tmp_path / "nllb")
    config = workdir_files.load_inference_config(tmp_path / "nllb")
    config = config.replace(decode=config.decode.replace(beams=2, max_length=6))
    options = look.Options(workdir=str(tmp_path / "nllb"), config=config, sentence="a dog")
    translator = Translator(imported.config, imported.params, sides_of(imported))
    expected = translator("a dog", beams=2, max_length=6).text
    assert html.escape(expected) in look.run(options)
