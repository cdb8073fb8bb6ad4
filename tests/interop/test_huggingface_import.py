# SPDX-License-Identifier: Apache-2.0
"""A Marian model of Hugging Face becomes a workdir with the same logits, or is refused."""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from marian import CHECKPOINT, OUTPUTS, SENTENCES

from experiments import bundle, convert, evaluate, look, score, train, translate
from experiments.configs import fine_tune
from experiments.data import recipes
from transformer.arrays import SpecialIds
from transformer.checkpoints import workdir_files
from transformer.checkpoints.manager import Checkpoints
from transformer.config import DecodeConfig
from transformer.errors import InputError
from transformer.interop import huggingface_import, imported_model
from transformer.models import protocol
from transformer.text.mapped_tokenizer import MappedTokenizer
from transformer.text.tokenizer import Vocabularies
from transformer.training.step import TrainState
from transformer.translator import Translator


@pytest.fixture(scope="module")
def imported():
    return huggingface_import.load(CHECKPOINT)


@pytest.fixture(scope="module")
def workdir(imported, tmp_path_factory):
    directory = tmp_path_factory.mktemp("imported") / "marian"
    imported_model.write_workdir(imported, directory)
    return directory


@pytest.fixture(scope="module")
def translator(workdir):
    return Translator.from_workdir(workdir, extra_length=30)


def ours(imported, ids):
    """The ids of this project for those of Hugging Face; padding is the first decoder input."""
    number = {original: index for index, original in enumerate(imported.vocabulary.original_ids)}
    number[imported.vocabulary.original_ids[0]] = SpecialIds().bos
    return [number[int(one)] for one in ids]


def test_the_logits_are_those_of_transformers_without_pytorch(imported):
    model = protocol.build(imported.config.model)
    call = jax.jit(lambda params, *tokens: model.apply({"params": params}, *tokens))
    for number in range(len(SENTENCES)):
        source, target = (
            ours(imported, OUTPUTS[f"{name}_{number}"]) for name in ("source", "decoder_input")
        )
        padded = np.zeros((2, 16), np.int32)  # One shape for all.
        padded[0, : len(source)], padded[1, : len(target)] = source, target
        logits = np.asarray(call(imported.params, padded[:1], padded[1:]))[0, : len(target)]
        expected = OUTPUTS[f"logits_{number}"][:, list(imported.vocabulary.original_ids)]
        np.testing.assert_allclose(logits[:, 2:], expected[:, 2:], rtol=0, atol=2e-5)
        assert (logits[:, :2] < -50).all(), "padding and BOS are never predicted"


@pytest.mark.parametrize(
    ("beams", "name"), [pytest.param(1, "greedy", marks=pytest.mark.slow), (4, "beam")]
)
def test_search_finds_the_translations_of_transformers(imported, translator, beams, name):
    results = translator.nbest(SENTENCES, beams, beams=beams)
    for number, [best, *_] in enumerate(results):
        expected = ours(imported, OUTPUTS[f"{name}_{number}"])
        assert [SpecialIds().bos, *best.tokens] == expected


@pytest.mark.slow
def test_every_app_takes_the_workdir(workdir, tmp_path):
    """Fine-tuning needs another workdir; an export gives the same model again."""
    files = {side: str(tmp_path / f"a.{side}") for side in ("source", "target")}
    for number, path in enumerate(files.values()):
        lines = [" ".join(SENTENCES[index].split()[number:]) for index in (0, 1)]
        pathlib.Path(path).write_text("\n".join([*lines, "a"]) + "\n")
    config = workdir_files.load_inference_config(workdir)
    decode = config.decode.replace(extra_length=3)
    model = {"workdir": str(workdir), "config": config.replace(decode=decode)}
    assert len(score.run(score.Options(**model, **files))) == 3
    assert evaluate.run(evaluate.Options(**model, **files)).scores["sentences"] == 3
    assert "a dog" in look.run(look.Options(**model, sentence="a dog"))

    bundled, exported = tmp_path / "one.bundle", tmp_path / "exported"
    bundle.run(bundle.Options(**model, output=str(bundled)))
    for one in (workdir, bundled):
        options = model | {"workdir": str(one), "output": f"{tmp_path / one.name}.out"}
        translate.run(translate.Options(**options, input=files["source"]))
    outputs = [(tmp_path / f"{one.name}.out").read_text() for one in (workdir, bundled)]
    assert outputs[0] == outputs[1] != ""

    convert.run(convert.Options(**model, to="huggingface", output=str(exported)))
    card = (exported / "README.md").read_text(encoding="utf-8")
    assert "| imported from | huggingface, marian, marian_checkpoint |" in card
    again, expected = huggingface_import.load(exported), huggingface_import.load(CHECKPOINT)
    jax.tree.map(np.testing.assert_array_equal, again.params, expected.params)
    assert again.config.model == expected.config.model

    config = recipes.fine_tune(fine_tune.get_config(), str(workdir))
    texts = {f"{split}_{side}": files[side] for split in ("train", "validation") for side in files}
    config = config.replace(
        data=config.data.replace(**texts),
        training=config.training.replace(steps=2, validate_every=2),
        logging=config.logging.replace(samples=0),
        decode=decode,
    )
    tuned = tmp_path / "tuned"
    train.run(train.Options(config=config, workdir=str(tuned)))
    assert (tuned / "tokenizer.model").read_bytes() == (workdir / "tokenizer.model").read_bytes()
    with pytest.raises(InputError):
        train.run(train.Options(config=config, workdir=str(workdir)))


def test_the_tokenizer_gives_the_ids_of_transformers(imported, translator):
    for number, ids in enumerate(translator.vocabularies.source.encode(SENTENCES)):
        assert ids == ours(imported, OUTPUTS[f"source_{number}"])


def test_a_workdir_names_its_origin_and_has_no_training_state(workdir, imported, translator):
    result = json.loads((workdir / workdir_files.RESULT).read_text())
    assert result["imported"]["directory"] == "marian_checkpoint"
    assert (result["step"], result["validation"]) == (0, {})
    decode = DecodeConfig(beams=4, length_penalty="length", alpha=1.0, extra_length=30)
    assert translator.config.decode == decode
    assert not (workdir / "checkpoints" / "0" / "progress").exists()
    with (
        Checkpoints(workdir, imported.config.training) as checkpoints,
        pytest.raises(InputError, match="training state; .*--config.training.init_from="),
    ):
        checkpoints.restore(TrainState(jnp.zeros((), jnp.int32), {}, (), jax.random.key(0)))


def test_import_needs_neither_pytorch_nor_transformers(monkeypatch):
    for name in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    assert len(huggingface_import.load(CHECKPOINT).vocabulary.pieces) == 102


def copy(tmp_path, **files):
    """A copy of the checkpoint with other files; None removes one."""
    directory = tmp_path / "copy"
    shutil.copytree(CHECKPOINT, directory)
    for name, content in files.items():
        path = directory / name.replace("_json", ".json").replace("_safetensors", ".safetensors")
        if content is None:
            path.unlink()
        else:
            path.write_bytes(
                content if isinstance(content, bytes) else json.dumps(content).encode()
            )
    return directory


GENERATION = json.loads((CHECKPOINT / "generation_config.json").read_text())


def test_the_search_is_that_of_the_files(tmp_path):
    directory = copy(tmp_path)
    for fields, expected in (
        ({}, {"beams": 4}),
        ({"num_beams": None}, {"beams": 1}),
        ({"no_repeat_ngram_size": 3, "min_new_tokens": 5}, {"block_ngrams": 3, "min_length": 5}),
        ({"no_repeat_ngram_size": 0, "min_length": 5}, {"block_ngrams": None, "min_length": 4}),
        ({"min_length": 0}, {"min_length": 0}),
        ({"min_length": 5, "min_new_tokens": 0}, {"min_length": 0}),
    ):
        (directory / "generation_config.json").write_text(json.dumps(GENERATION | fields))
        decode = huggingface_import.load(directory).config.decode
        search = {"beams": 4, "length_penalty": "length", "alpha": 1.0} | expected
        assert decode == DecodeConfig(**search), fields
    (directory / "generation_config.json").unlink()
    (directory / "config.json").write_text(json.dumps(config_json(num_beams=6, min_length=3)))
    decode = huggingface_import.load(directory).config.decode
    assert (decode.beams, decode.min_length, decode.alpha) == (6, 2, 1.0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fields", [{"min_length": 14}, {"min_new_tokens": 14}], ids=str)
def test_the_shortest_translations_are_those_of_transformers(fields, tmp_path):
    transformers = pytest.importorskip("transformers")
    generation = GENERATION | {"num_beams": None, "no_repeat_ngram_size": 2} | fields
    directory = copy(tmp_path, **{"generation_config.json": generation})
    theirs = transformers.MarianMTModel.from_pretrained(directory).eval()
    tokenizer = transformers.MarianTokenizer.from_pretrained(directory)
    model = huggingface_import.load(directory)
    sides = Vocabularies.shared(MappedTokenizer(model.vocabulary.pack()))
    results = Translator(model.config, model.params, sides)(SENTENCES, max_length=23)
    for number, (sentence, best) in enumerate(zip(SENTENCES, results, strict=True)):
        [output] = theirs.generate(**tokenizer([sentence], return_tensors="pt")).tolist()
        assert [SpecialIds().bos, *best.tokens] == ours(model, output)
        assert output != OUTPUTS[f"greedy_{number}"].tolist()


def config_json(**fields):
    return json.loads((CHECKPOINT / "config.json").read_text()) | fields


def vocab_without(number):
    ids = json.loads((CHECKPOINT / "vocab.json").read_text())
    return {piece: index for piece, index in ids.items() if index != number}


def weights(**changes):
    """The weights as a file, with other or further tensors; a dot in a name is __ here."""
    tensors = safetensors.numpy.load_file(CHECKPOINT / "model.safetensors")
    return safetensors.numpy.save(tensors | {k.replace("__", "."): v for k, v in changes.items()})


FEED_FORWARD = "model__encoder__layers__0__fc1__weight"
REFUSED_CONFIGS = (
    ({"normalize_before": True}, "normalize_before is True"),
    ({"normalize_embedding": True}, "normalize_embedding is True, but only False is supported"),
    ({"decoder_ffn_dim": 64}, "is 64, but only 48 is supported: model.d_ff is one number"),
    ({"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings is False"),
    ({"activation_function": "mish"}, "is 'mish', but"),
    ({"model_type": "t5"}, "model_type is 't5', but"),
    ({"d_model": "32"}, "d_model is '32'"),
    ({"encoder_attention_heads": 5}, "which does not divide model.d_model"),
    ({"encoder_layers": 3}, "has no tensor 'model.encoder.layers.2."),
    ({"decoder_layers": 1}, "this model does not: model.decoder.layers.1.encoder_attn.k_proj.bias"),
    ({"eos_token_id": 3}, "gives </s> the id 44, but config.json says 3"),
)
REFUSED_GENERATIONS = (
    ({"num_beams": "4"}, "decode.beams is '4'"),
    ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size is -1, but must be a whole number"),
)
REFUSED_FILES = (
    (
        {"config_json": config_json(model_type="pegasus"), "vocab_json": None},
        "a Pegasus model is read with the tokenizer files that convert --to=huggingface writes",
    ),
    (
        {"model_safetensors": weights(**{FEED_FORWARD: np.ones((32, 48), np.float32)})},
        "'model.encoder.layers.0.fc1.weight' has the shape [32, 48], but config.json makes [48, 32",
    ),
    (
        {"model_safetensors": weights(final_logits_bias=np.full((1, 101), np.nan, np.float32))},
        "'final_logits_bias' has values that are not finite",
    ),
    (
        {"model_safetensors": weights(lm_head__weight=np.ones((101, 32)))},
        "'lm_head.weight' differs from the table that it is tied to",
    ),
    (
        {"model_safetensors": weights(model__encoder__embed_positions__weight=np.ones((64, 32)))},
        "model.encoder.embed_positions.weight holds other positions",
    ),
    ({"model_safetensors": weights()[:100_000]}, "model.safetensors cannot be read ("),
    ({"model_safetensors": None}, "has no model.safetensors; download the files"),
    (
        {"model_safetensors": None, "pytorch_model.bin": b""},
        "has its weights in a pickle, pytorch_model.bin, but only model.safetensors is read",
    ),
    ({"vocab_json": vocab_without(7)}, "has no piece with the id 7, but the table"),
    ({"vocab_json": vocab_without(100)}, "has no piece with the id 100"),
    ({"vocab_json": [1]}, "vocab.json must hold one JSON object"),
    ({"config_json": b'{"model_type": "mar'}, "config.json is not JSON"),
    ({"source.spm": None}, "source.spm cannot be read"),
    ({"target.spm": b"damaged"}, "target.spm is not a SentenceP"),
)


def test_a_model_that_cannot_be_held_is_refused_by_name(tmp_path):
    refused = [
        *(({"config_json": config_json(**fields)}, words) for fields, words in REFUSED_CONFIGS),
        *(
            ({"generation_config.json": GENERATION | fields}, f"generation_config.json: {words}")
            for fields, words in REFUSED_GENERATIONS
        ),
        *REFUSED_FILES,
    ]
    for number, (files, words) in enumerate(refused):
        with pytest.raises(InputError, match=re.escape(words)):
            huggingface_import.load(copy(tmp_path / str(number), **files))


def test_what_is_refused_leaves_nothing_behind(tmp_path):
    directory, workdir = copy(tmp_path, vocab_json=vocab_without(7)), tmp_path / "runs" / "opus"
    files = {"input": str(directory), "workdir": str(workdir)}
    with pytest.raises(InputError):
        convert.run(convert.Options(from_="huggingface", **files))
    assert not workdir.exists()
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.slow
def test_a_pickle_is_refused_with_the_command_that_converts_it(imported, tmp_path):
    torch = pytest.importorskip("torch")
    directory = copy(tmp_path, model_safetensors=None)
    tensors = safetensors.numpy.load_file(CHECKPOINT / "model.safetensors")
    state = {name: torch.from_numpy(array) for name, array in tensors.items()}
    # Tied tables share their memory in PyTorch's files.
    state["lm_head.weight"] = state["model.shared.weight"]
    names = sorted(state)
    for number in range(2):
        shard = {name: state[name] for name in names[number::2]}
        torch.save(shard, directory / f"pytorch_model-{number}.bin")
    with pytest.raises(InputError, match="only model.safetensors is read. Convert it") as error:
        huggingface_import.load(directory)
    _, program, _ = str(error.value).split('"')
    subprocess.run([sys.executable, "-c", program], cwd=directory, check=True)
    again = huggingface_import.load(directory)
    jax.tree.map(np.testing.assert_array_equal, again.params, imported.params)


def test_shards_are_read_and_may_not_be_elsewhere(imported, tmp_path):
    tensors = safetensors.numpy.load_file(CHECKPOINT / "model.safetensors")
    names = sorted(tensors)
    shards = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    files = {
        file: safetensors.numpy.save({n: tensors[n] for n in of}) for file, of in shards.items()
    }
    index = {"weight_map": {name: file for file, of in shards.items() for name in of}}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    directory = copy(tmp_path, model_safetensors=None)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    again = huggingface_import.load(directory)
    jax.tree.map(np.testing.assert_array_equal, again.params, imported.params)
    index["weight_map"][names[0]] = "../one.safetensors"
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"'../one.safetensors', which is not beside it"):
        huggingface_import.load(directory)
