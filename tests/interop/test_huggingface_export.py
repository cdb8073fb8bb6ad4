# SPDX-License-Identifier: Apache-2.0
"""Transformers computes the function of an exported model; other models are refused by name."""

import json

import jax
import numpy as np
import oracle
import pytest
import safetensors.numpy
from families import BAHDANAU
from test_huggingface_import import SENTENCES as SENTENCES_OF_CHECKPOINT
from test_huggingface_import import trained_model

from experiments.configs.pronouns_variants import VARIANTS
from transformer.config import Config, DataConfig, DecodeConfig, TransformerConfig
from transformer.errors import InputError
from transformer.interop import huggingface_export, huggingface_import
from transformer.models import protocol
from transformer.nn.positions import sinusoids
from transformer.text.mapped_tokenizer import MappedTokenizer
from transformer.text.tokenizer import Tokenizer, Vocabularies
from transformer.trained_model import TrainedModel

TINY = TransformerConfig(
    vocab_size=13,
    encoder_layers=1,
    decoder_layers=2,
    d_model=12,
    d_ff=10,
    encoder_heads=3,
    decoder_heads=2,
    norm_epsilon=1e-5,
)
REFUSED = {
    "learned": "model.positions is 'learned', but their positions are sinusoids",
    "t5": "model.positions is 't5', but their positions are sinusoids",
    "shaw": "model.positions is 'shaw', but their positions are sinusoids",
    "rotary": "model.positions is 'rotary', but their positions are sinusoids",
    "alibi": "model.positions is 'alibi', but their positions are sinusoids",
    "no_positions": "model.positions is 'none', but their positions are sinusoids",
    "window": "model.attention_window is 9, but their attention has no window",
    "additive": "model.attention_score is 'additive', but they have dot products only",
    "multi_query": "model.num_kv_heads is 1, but all their heads have keys and values",
    "grouped_query": "model.num_kv_heads is 2, but all their heads have keys and values",
    "universal": "model.timestep_encoding is True, but their layers add no encodings; "
    "model.shared_layers is True, but their layers have separate parameters",
    "rms_norm": "model.norm_kind is 'rms_norm', but they have layer norms",
    "swiglu": "model.activation is 'swiglu', but they have no gated feed-forward network",
    "geglu": "model.activation is 'geglu', but they have no gated feed-forward network",
    "untied": "model.tied_embeddings is 'none', but all embeddings share one table",
    "untied_source": "model.tied_embeddings is 'target_output', but all embeddings share one",
    "untied_output": "model.tied_embeddings is 'source_target', but all embeddings share one",
}
SENTENCES = ["a bc", "d", "c c b a e", ""]


def config_of(**fields):
    return Config(
        model=TINY.replace(**fields),
        data=DataConfig(max_length=8, bucket_lengths=(8,), direction="en-de"),
        decode=DecodeConfig(extra_length=4, length_penalty="length", alpha=0.7, beams=3),
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_refused_by_name_but_the_paper_and_pre_norm(name):
    config = config_of(num_heads=4, encoder_heads=None, decoder_heads=None)
    config = config.replace(model=config.model.replace(**VARIANTS[name] | {"d_model": 24}))
    if name in ("paper", "pre_norm"):
        huggingface_export.require_supported(config)
        return
    message = f"no exact counterpart in Hugging Face's Marian and Pegasus: {REFUSED[name]}"
    with pytest.raises(InputError, match=message):
        huggingface_export.require_supported(config)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"sinusoid_layout": "halves"},
            "sinusoid_layout is 'halves', but they compute their table",
        ),
        ({"position_offset": 2}, "position_offset is 2, but their first position is 0"),
        ({"embedding_scale": "positions"}, "embedding_scale is 'positions', but they scale"),
        (
            {"d_k": 5, "d_v": 7},
            "d_k is 5, but their heads divide d_model; model.d_v is 7, but their",
        ),
    ],
)
def test_other_fields_are_refused_by_name(fields, reason):
    with pytest.raises(InputError, match=f"Pegasus: model.{reason}"):
        huggingface_export.require_supported(config_of(**fields))


def test_another_family_is_refused_by_name():
    with pytest.raises(
        InputError, match="model.family is 'recurrent', whose model Recurrent has no co"
    ):
        huggingface_export.require_supported(Config(model=BAHDANAU))


@pytest.mark.parametrize("d_model", [12, 9])
def test_the_channels_of_the_papers_table_are_put_into_the_order_of_transformers(d_model):
    config = TINY.replace(d_model=d_model, d_k=4, d_v=4)
    table = sinusoids(7, d_model)[:, huggingface_export.channel_order(config)]
    # As Transformers computes it: sin, then cos, of position / 10000^(2 (channel // 2) / d_model).
    angle = np.array(
        [[p / 10000 ** (2 * (c // 2) / d_model) for c in range(d_model)] for p in range(7)]
    )
    expected = np.concatenate([np.sin(angle[:, 0::2]), np.cos(angle[:, 1::2])], axis=-1)
    np.testing.assert_allclose(table, expected, atol=1e-12)


@pytest.mark.parametrize("norm", huggingface_export.MODEL_CLASSES)
def test_every_parameter_is_in_the_file_once_and_permuted_where_it_meets_the_residual_stream(norm):
    config = config_of(attention_bias=True, output_bias=True, norm=norm).model
    params = jax.device_get(oracle.random_params(protocol.build(config), seed=0))
    tensors = huggingface_export.named_tensors(config, params)
    assert sum(t.size for t in tensors.values()) == sum(p.size for p in jax.tree.leaves(params))
    assert all(tensor.flags.c_contiguous for tensor in tensors.values())
    order = [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]
    embedding, layer = params["embedding"], params["decoder"]["layer_1"]
    prefix = "model.decoder.layers.1"
    for name, expected in {
        "model.shared.weight": embedding["table"][:, order],
        "final_logits_bias": embedding["output_bias"][None],
        f"{prefix}.encoder_attn.k_proj.weight": layer["cross_attention"]["key"]
        .reshape(12, 12)
        .T[:, order],
        f"{prefix}.encoder_attn.k_proj.bias": layer["cross_attention"]["key_bias"].reshape(12),
        f"{prefix}.self_attn.out_proj.weight": layer["self_attention"]["output"]
        .reshape(12, 12)
        .T[order],
        f"{prefix}.fc1.weight": layer["feed_forward"]["kernel_in"].T[:, order],
        f"{prefix}.fc2.bias": layer["feed_forward"]["bias_out"][order],
        f"{prefix}.final_layer_norm.weight": layer["feed_forward_residual"]["norm"]["scale"][order],
    }.items():
        np.testing.assert_array_equal(tensors[name], expected, err_msg=name)


@pytest.fixture(scope="module", params=huggingface_export.MODEL_CLASSES)
def exported(tmp_path_factory, request):
    """The directory of an exported model, and the model."""
    config = config_of(norm_epsilon=1e-6, norm=request.param)
    tokenizer = Tokenizer.train(["a b c d e"] * 9, 13, "bpe")
    model = protocol.build(config.model)
    params = oracle.random_params(model, seed=0)
    vocabularies = Vocabularies.shared(tokenizer)
    trained = TrainedModel(config, params, vocabularies, model, jax.make_mesh((1,), "x"), {})
    folder = tmp_path_factory.mktemp("exported")
    return folder, trained, huggingface_export.export(trained, folder)


def test_the_files_are_those_that_transformers_reads(exported):
    folder, trained, export = exported
    assert {path.name for path in folder.iterdir()} == {
        *("model.safetensors", "config.json", "generation_config.json"),
        *("source.spm", "target.spm", "vocab.json", "tokenizer_config.json"),
    }
    header = (folder / "model.safetensors").read_bytes()[8:].split(b"}}")[0]
    assert b'"__metadata__":{"format":"pt"}' in header
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["num_beams"] == 3 and generation["length_penalty"] == 0.7
    assert generation["max_length"] == 8 + 4 + 1
    assert generation["bad_words_ids"] == [[0], [1]]
    vocabulary = json.loads((folder / "vocab.json").read_text())
    tokenizer = trained.vocabularies.tokenizer
    assert [*vocabulary] == tokenizer.pieces(vocabulary.values())
    assert [*vocabulary.values()] == list(range(13))
    languages = json.loads((folder / "tokenizer_config.json").read_text())
    assert (languages["source_lang"], languages["target_lang"]) == ("en", "de")
    assert generation.keys().isdisjoint(("min_new_tokens", "no_repeat_ngram_size"))
    assert export.differences[0].startswith("Layer norms add 1e-05 to the variance, here 1e-06")
    longest = "Translations have at most 12 tokens with EOS, whatever the length of the source."
    assert longest in export.differences


CONSTRAINTS = {"min_length": 9, "block_ngrams": 2}


def test_constraints_and_search_survive_an_export_and_an_import(tmp_path):
    decode = DecodeConfig(beams=3, length_penalty="length", alpha=0.7, **CONSTRAINTS)
    export = huggingface_export.export(trained_model(decode.replace(max_length=12)), tmp_path)
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert (generation["min_new_tokens"], generation["no_repeat_ngram_size"]) == (9, 2)
    assert huggingface_import.load(tmp_path).config.decode == decode
    assert not any("whatever the length" in note for note in export.differences)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_transformers_obeys_the_constraints_of_the_search(tmp_path):
    transformers = pytest.importorskip("transformers")
    from transformer.translator import Translator

    # One beam: the rules that end a beam search differ.
    trained = trained_model(DecodeConfig(beams=1, max_length=14, **CONSTRAINTS))
    huggingface_export.export(trained, tmp_path)
    tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path)
    model = transformers.MarianMTModel.from_pretrained(tmp_path).eval()
    ours = Translator(trained.config, trained.params, trained.vocabularies)
    free = ours(SENTENCES_OF_CHECKPOINT, min_length=0, block_ngrams=None)
    for sentence, best, unconstrained in zip(
        SENTENCES_OF_CHECKPOINT, ours(SENTENCES_OF_CHECKPOINT), free, strict=True
    ):
        batch = tokenizer([sentence], return_tensors="pt")
        assert model.generate(**batch)[0].tolist()[1:] == [*best.tokens]
        assert best.tokens != unconstrained.tokens


def test_importing_an_export_gives_the_same_parameters_bit_for_bit(exported):
    """In the channels' new order; what is absent here is 0 there."""
    folder, trained, _ = exported
    imported = huggingface_import.load(folder)
    config = trained.config.model
    assert imported.config.model == config.replace(
        **{"num_layers": 1, "encoder_layers": None, "decoder_layers": 2},
        **{"num_heads": 3, "encoder_heads": None, "decoder_heads": 2},
        **{"sinusoid_layout": "halves_paper", "norm_epsilon": 1e-5, "attention_bias": True},
    )
    order = huggingface_export.channel_order(config)
    expected = huggingface_export.permute_residual(config, jax.device_get(trained.params), order)

    def flat(params):
        leaves, _ = jax.tree.flatten_with_path(params)
        return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}

    expected, found = flat(expected), flat(imported.params)
    for name, leaf in found.items():
        np.testing.assert_array_equal(leaf, expected.get(name, np.zeros_like(leaf)), err_msg=name)
    assert expected.keys() < found.keys()
    tensors = huggingface_export.named_tensors(imported.config.model, imported.params)
    tensors |= huggingface_export.position_tables(trained.config)
    written = safetensors.numpy.load_file(folder / "model.safetensors")
    jax.tree.map(np.testing.assert_array_equal, tensors, written)
    tokenizer = trained.vocabularies.tokenizer
    vocabulary = imported.vocabulary
    assert [*vocabulary.pieces] == tokenizer.pieces(range(tokenizer.vocab_size))
    ids = MappedTokenizer(vocabulary.pack(), "source").encode(SENTENCES)
    assert ids == tokenizer.encode(SENTENCES)
    assert imported.config.data.tokenizer == "bpe"


def test_only_a_marian_model_has_a_choice_of_positions(exported):
    folder, trained, _ = exported
    if trained.config.model.norm == "post":
        imported = huggingface_import.load(folder, positions="marian")
        assert imported.config.model.sinusoid_layout == "halves"
        return
    with pytest.raises(InputError, match="--positions=marian: only a Marian model has a choice"):
        huggingface_import.load(folder, positions="marian")


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"attention_bias": True, "output_bias": True, "activation": "gelu"},
        {"activation": "gelu_tanh", "embedding_scale": "none"},
        {"sinusoid_layout": "halves_paper"},
        {"activation": "swish", "d_model": 18, "norm_epsilon": 1e-5},
        {"pad_id": 3, "bos_id": 0, "eos_id": 1, "unk_id": 2},
        {"norm": "pre"},
        {"norm": "pre", "attention_bias": True, "output_bias": True, "activation": "gelu"},
        {"norm": "pre", "embedding_scale": "none", "sinusoid_layout": "halves_paper"},
    ],
    ids=str,
)
def test_transformers_computes_the_logits_of_the_oracle(fields, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    import torch

    config = config_of(**fields)
    model = config.model
    monkeypatch.setattr(oracle, "PAD", model.pad_id)
    params = oracle.random_params(protocol.build(model), seed=0)
    tensors = huggingface_export.named_tensors(model, jax.device_get(params))
    tensors |= huggingface_export.position_tables(config)
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    content = json.dumps(huggingface_export.model_config(config))
    (tmp_path / "config.json").write_text(content)
    loader = getattr(transformers, huggingface_export.MODEL_CLASSES[model.norm])
    loaded, loading = loader.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(loading.values()), loading
    source = [[4, 7, 5, 8, 6, model.eos_id]]
    target_in = [[model.bos_id, 5, 9, 12, 10, 7]]
    with torch.no_grad():
        logits = loaded.eval()(
            input_ids=torch.tensor(source), decoder_input_ids=torch.tensor(target_in)
        ).logits
    expected = oracle.logits(oracle.arrays(params), model, source, target_in)
    np.testing.assert_allclose(logits, expected, atol=2e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_transformers_tokenizes_and_searches_as_this_project_does(exported):
    transformers = pytest.importorskip("transformers")
    from transformer.translator import Translator

    folder, trained, _ = exported
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    ids = trained.vocabularies.tokenizer.encode(SENTENCES)
    assert tokenizer(SENTENCES)["input_ids"] == ids
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    assert type(model).__name__ == huggingface_export.MODEL_CLASSES[trained.config.model.norm]
    ours = Translator(trained.config, trained.params, trained.vocabularies)
    # One beam: the rules that end a beam search differ.
    sentences = SENTENCES[:3]
    results = ours(sentences, beams=1, max_length=9)
    for sentence, best in zip(sentences, results, strict=True):
        batch = tokenizer([sentence], return_tensors="pt")
        found = model.generate(**batch, num_beams=1, max_length=10)[0].tolist()
        # BOS first; at the limit EOS is forced in both.
        assert found[1:] == [*best.tokens]
        assert tokenizer.decode(found, skip_special_tokens=True) == best.text
