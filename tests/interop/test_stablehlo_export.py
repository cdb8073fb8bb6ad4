# SPDX-License-Identifier: Apache-2.0
"""An exported search runs without this project and finds what `Translator` finds."""

import json
import re
import subprocess
import sys

import jax
import numpy as np
import oracle
import pytest
import test_huggingface_import
from families import BAHDANAU, CONVOLUTIONAL, LANGUAGE_MODEL
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer.config import Config, DataConfig, DecodeConfig, TransformerConfig
from transformer.decoding.generate import generate
from transformer.errors import InputError
from transformer.interop import stablehlo_export
from transformer.models import protocol
from transformer.text.tokenizer import Tokenizer, Vocabularies
from transformer.trained_model import TrainedModel
from transformer.translator import Translator

SENTENCES = ["a bc", "d", "c c b a"]
TINY = TransformerConfig(
    vocab_size=11, encoder_layers=1, decoder_layers=1, d_model=12, d_ff=10, num_heads=2
)
FAMILIES = {
    "bfloat16": TINY.replace(compute_dtype="bfloat16"),
    "recurrent": BAHDANAU,
    "convolutional": CONVOLUTIONAL,
}


def config_of(model=TINY, **decode):
    data = DataConfig(max_length=8, bucket_lengths=(4, 8))
    return Config(model=model, data=data, decode=DecodeConfig(extra_length=3, beams=2, **decode))


def trained_model(config):
    tokenizer = Tokenizer.train(["a b c d e"] * 9, 11, "bpe")
    model = protocol.build(config.model)
    params = oracle.random_params(model, seed=0)
    mesh = jax.make_mesh((1,), "x")
    return TrainedModel(config, params, Vocabularies.shared(tokenizer), model, mesh, {})


def test_a_program_has_the_forms_of_the_platform_that_it_is_for():
    # Made on a CPU, for which a search keeps float32 caches of a bfloat16 model.
    config = TINY.replace(compute_dtype="bfloat16", vocab_size=1000)
    model = protocol.build(config)
    weights = flatten_dict(oracle.random_params(model, seed=0), sep="/")
    weights = {name: np.asarray(leaf) for name, leaf in weights.items()}

    def search(weights, source):
        decode = DecodeConfig(beams=2)
        params = unflatten_dict(weights, sep="/")
        return generate(model, params, source, decode, max_length=4).tokens

    texts = {}
    for platforms in (["cpu"], ["cuda"], ["cpu", "cuda"]):
        program = stablehlo_export.program(search, weights, 2, 4, platforms)
        texts[tuple(platforms)] = str(jax.export.deserialize(program).mlir_module())
    for platforms, text in texts.items():
        keys = "tensor<2x2x6x8xf32>"  # [B, N, H, M K], of both beams
        assert (keys in text) == (platforms == ("cpu",)), platforms


def run_alone(code, folder, sentences=SENTENCES):
    """Run the code of a model card where this project cannot be imported."""
    blocked = "import sys\nsys.modules |= {'transformer': None, 'experiments': None}\n"
    code = code.replace("DIRECTORY", str(folder)).replace('["a sentence"]', str(sentences))
    finished = subprocess.run(
        [sys.executable, "-I", "-c", blocked + code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


def translations(trained, sentences=SENTENCES):
    translator = Translator(trained.config, trained.params, trained.vocabularies)
    return [best.text for best in translator(sentences)]


def code_of(export):
    return re.search("```python\n(.*)```", export.usage, re.DOTALL)[1]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A directory with the programs of two shapes, the model, and what its card says."""
    folder, trained = tmp_path_factory.mktemp("exported"), trained_model(config_of())
    return folder, trained, stablehlo_export.export(trained, folder, batch_sizes=[4])


@pytest.mark.slow
def test_the_code_of_the_card_translates_without_this_project(exported):
    folder, trained, export = exported
    code = code_of(export).replace("4x4", "4x8").replace("(4, 4)", "(4, 8)")
    assert code.count("4, 8") == code.count("4x8") == 1
    expected = translations(trained)
    assert run_alone(code, folder) == expected
    assert len({*expected}) == len(SENTENCES)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_that_translates_runs_without_this_project(name, tmp_path):
    trained = trained_model(config_of(FAMILIES[name]))
    export = stablehlo_export.export(trained, tmp_path, batch_sizes=[4], lengths=[8])
    expected = translations(trained)
    assert run_alone(code_of(export), tmp_path) == expected
    assert any(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("search", "fields"),
    [
        ({"beams": 2}, test_huggingface_import.PREFIXES),
        (
            {"beams": 1, "block_ngrams": 1},
            test_huggingface_import.foreign_target() | {"unknown": 1.0},
        ),
    ],
    ids=["prefixes", "pieces of the source"],
)
def test_an_imported_model_runs_without_this_project(search, fields, tmp_path):
    decode = DecodeConfig(extra_length=9, **search)
    trained = test_huggingface_import.trained_model(decode, **fields)
    sentences = test_huggingface_import.SENTENCES[1:4]
    export = stablehlo_export.export(trained, tmp_path, batch_sizes=[3], lengths=[32])
    expected = translations(trained, sentences)
    assert run_alone(code_of(export), tmp_path, sentences) == expected
    assert any(expected)
    if "unknown" in fields:
        assert any(" \u2047 " in text and " tired" in text for text in expected)


def test_the_manifest_lists_every_program(exported):
    folder, _, _ = exported
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["programs"] == ["search_4x4.stablehlo", "search_4x8.stablehlo"]
    assert manifest["encoders"] == ["encode_4x4.stablehlo", "encode_4x8.stablehlo"]
    written = {path.name for path in folder.iterdir()}
    files = {*manifest["tokenizers"].values(), *manifest["vocabularies"].values()}
    named = {manifest["weights"], "manifest.json", *files}
    assert written == named | {*manifest["programs"], *manifest["encoders"]}


def test_the_encoder_is_a_program_too(exported):
    folder, trained, _ = exported
    weights = flatten_dict(trained.params, sep="/")
    encode = jax.export.deserialize((folder / "encode_4x4.stablehlo").read_bytes())
    source = np.array([[4, 5, 2, 0], [7, 2, 0, 0], [2, 0, 0, 0], [8, 9, 7, 2]], np.int32)
    memory = encode.call(weights, source)
    expected = oracle.encode(oracle.arrays(trained.params), trained.config.model, source[0])
    np.testing.assert_allclose(memory[0, :3], expected[:3], atol=1e-5)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (config_of(method="sample"), "decode.method is 'sample', but --to=stablehlo exports a"),
        (config_of(LANGUAGE_MODEL), "model.family is 'language_model', which translates no"),
    ],
    ids=["sample", "language model"],
)
def test_what_has_no_program_is_refused_by_name(config, reason):
    with pytest.raises(InputError, match=reason):
        stablehlo_export.require_supported(config, [8])


@pytest.mark.parametrize("name", ["gpu", "CUDA", "cpu cuda"])
def test_an_unknown_platform_is_refused_before_anything_is_written(name, tmp_path):
    message = f"--platforms: '{name}' is not a platform of JAX; choose from cpu, cuda, rocm, tpu"
    with pytest.raises(InputError, match=message):
        stablehlo_export.export(trained_model(config_of()), tmp_path, platforms=["cpu", name])
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_programs_are_written_for_every_platform(tmp_path):
    trained = trained_model(config_of())
    platforms = stablehlo_export.PLATFORMS
    stablehlo_export.export(trained, tmp_path, [1], [4], platforms)
    program = jax.export.deserialize((tmp_path / "search_1x4.stablehlo").read_bytes())
    assert program.platforms == platforms


def test_a_length_beyond_the_longest_sentence_is_refused():
    with pytest.raises(InputError, match="--lengths: 9 is more than data.max_length = 8"):
        stablehlo_export.require_supported(config_of(), [4, 9])
