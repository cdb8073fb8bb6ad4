# SPDX-License-Identifier: Apache-2.0
"""Marian's own files, written here, give the model of Hugging Face's files, bit for bit."""

import json
import re
import shutil

import jax
import numpy as np
import pytest
from marian import CHECKPOINT

from transformer.errors import InputError
from transformer.interop import huggingface_import, marian_files
from transformer.nn.positions import sinusoids

OPTIONS = {
    "type": "transformer",
    "dim-emb": "32",
    "dim-vocabs": "\n  - 100\n  - 100",
    "enc-depth": "2",
    "dec-depth": "2",
    "transformer-heads": "4",
    "transformer-dim-ffn": "48",
    "transformer-ffn-activation": "swish",
    "transformer-preprocess": '""',
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "tied-embeddings-all": "true",
}


@pytest.fixture(scope="module")
def expected():
    """The model of the fixture, whose row of padding is zero, as at its conversion."""
    imported = huggingface_import.load(CHECKPOINT)
    imported.params["embedding"]["table"][:2] = 0
    return imported


def tensors_of(imported):
    """The arrays of a Marian model by name."""
    order = np.array(imported.vocabulary.original_ids)
    embedding = imported.params["embedding"]
    rows = np.zeros((101, 33), np.float32)
    rows[order] = np.column_stack([embedding["table"], embedding["output_bias"]])
    tensors = {"Wemb": rows[:100, :32], "decoder_ff_logit_out_b": rows[None, :100, 32]}
    for side in ("encoder", "decoder"):
        for index in range(2):
            layer, name = imported.params[side][f"layer_{index}"], f"{side}_l{index + 1}"
            attentions = {"self_attention": "self", "cross_attention": "context"}
            for ours, theirs in attentions.items():
                if ours not in layer:
                    continue
                one, prefix = layer[ours], f"{name}_{theirs}"
                for word in ("query", "key", "value"):
                    tensors[f"{prefix}_W{word[0]}"] = one[word].reshape(32, 32)
                    tensors[f"{prefix}_b{word[0]}"] = one[f"{word}_bias"].reshape(1, 32)
                tensors[f"{prefix}_Wo"] = one["output"].reshape(32, 32)
                tensors[f"{prefix}_bo"] = one["output_bias"][None]
                for part, value in layer[f"{ours}_residual"]["norm"].items():
                    tensors[f"{prefix}_Wo_ln_{part}"] = value[None]
            network = layer["feed_forward"]
            for number, which in (("1", "in"), ("2", "out")):
                tensors[f"{name}_ffn_W{number}"] = network[f"kernel_{which}"]
                tensors[f"{name}_ffn_b{number}"] = network[f"bias_{which}"][None]
            for part, value in layer["feed_forward_residual"]["norm"].items():
                tensors[f"{name}_ffn_ffn_ln_{part}"] = value[None]
    return tensors


def write(directory, tensors, options=OPTIONS, vocabulary=None):
    """Write a download of OPUS-MT."""
    directory.mkdir(exist_ok=True)
    text = "".join(f"{name}: {value}\n" for name, value in options.items()).encode() + b"\0"
    config = {"special:model.yml": np.frombuffer(text, np.int8)}
    np.savez(directory / "opus.model1.npz", **tensors, **config)
    if vocabulary is None:
        ids = json.loads((CHECKPOINT / "vocab.json").read_text())
        lines = [f"{json.dumps(piece)}: {index}\n" for piece, index in ids.items() if index < 100]
        vocabulary = "".join(lines)
    (directory / "opus.vocab.yml").write_text(vocabulary, encoding="utf-8")
    for side in ("source", "target"):
        shutil.copy(CHECKPOINT / f"{side}.spm", directory)
    (directory / "decoder.yml").write_text(
        "models:\n  - opus.model1.npz\nbeam-size: 5\nnormalize: 0.7\n"
    )
    return directory


def test_the_files_of_marian_give_the_same_model_with_marians_positions(expected, tmp_path):
    imported = marian_files.load(write(tmp_path, tensors_of(expected)))
    jax.tree.map(np.testing.assert_array_equal, imported.params, expected.params)
    assert imported.vocabulary == expected.vocabulary
    model = expected.config.model.replace(
        sinusoid_layout="halves", norm_epsilon=1e-6, dropout=imported.config.model.dropout
    )
    assert imported.config.model == model
    decode = imported.config.decode
    assert (decode.beams, decode.length_penalty, decode.alpha) == (5, "length", 0.7)


def test_either_positions_are_chosen_by_name_and_differ(expected, tmp_path):
    directory = write(tmp_path, tensors_of(expected))
    layouts = [
        load(path, positions=positions).config.model.sinusoid_layout
        for load, path in ((marian_files.load, directory), (huggingface_import.load, CHECKPOINT))
        for positions in ("marian", "huggingface")
    ]
    assert layouts == ["halves", "halves_paper"] * 2
    of_marian, of_hugging_face = (sinusoids(50, 32, layout) for layout in layouts[:2])
    assert np.abs(of_marian - of_hugging_face).max() > 1


def test_a_vocabulary_is_read_as_marian_writes_it(tmp_path):
    path = tmp_path / "vocab.yml"
    path.write_bytes(
        b'</s>: 0\n<unk>: 1\nno: 2\n"\\"": 3\n\'it\'\'s\': 4\n"\\x85": 5\n:: 6\n"\\u2581a": 7\n'
        b'? a long key\n: 8\n\xe2\x80\xa8: 9\n~: 10\n"\\\\": 11\r\n"a: b": 12\n'
    )
    pieces = ["</s>", "<unk>", "no", '"', "it's", "\x85", ":", "▁a", "a long key", "\u2028", "~"]
    expected = {piece: index for index, piece in enumerate([*pieces, "\\", "a: b"])}
    assert marian_files.read_vocabulary(path) == expected
    for text, message in (
        ("</s>: 0\na\n", r"vocab.yml:2: 'a' is not 'piece: id'"),
        ("a: 0\n'a': 1\n", r"vocab.yml:2: the piece 'a' occurs twice"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            marian_files.read_vocabulary(path)


REFUSED = (
    ({"transformer-preprocess": "n"}, "transformer-preprocess is 'n', but only ''"),
    ({"transformer-ffn-activation": "gelu"}, "Marian's gelu is another function"),
    ({"transformer-decoder-autoreg": "rnn"}, "autoreg is 'rnn', but"),
    ({"tied-embeddings-all": "false"}, "must share one table"),
    ({"transformer-decoder-dim-ffn": "64"}, "but only '0' or '48' is supported: model.d_ff"),
    ({"dim-emb": "x"}, "the option dim-emb is 'x', but must be a number"),
    ({"enc-depth": "1"}, "tensors that this model does not: encoder_l2_"),
    ({"transformer-dim-ffn": "64"}, "'encoder_l1_ffn_b1' has the shape [1, 48]"),
)


def test_options_that_cannot_be_held_are_refused_by_name(expected, tmp_path):
    tensors = tensors_of(expected)
    for options, message in REFUSED:
        directory = write(tmp_path, tensors, OPTIONS | options)
        with pytest.raises(InputError, match=re.escape(message)):
            marian_files.load(directory)


def test_files_that_are_damaged_or_missing_are_refused(expected, tmp_path):
    tensors = tensors_of(expected)
    write(tmp_path, tensors, vocabulary="</s>: 0\n<unk>: 2\n")
    with pytest.raises(InputError, match="opus.vocab.yml has no piece with the id 1, but"):
        marian_files.load(tmp_path)
    write(tmp_path, {**tensors, "Wemb": np.array([{}], object)})
    with pytest.raises(InputError, match="opus.model1.npz cannot be read .*allow_pickle"):
        marian_files.load(tmp_path)
    path = tmp_path / "opus.model1.npz"
    data = write(tmp_path, tensors) and path.read_bytes()
    for length in (0, 3, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(InputError, match="opus.model1.npz"):
            marian_files.load(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=r"has no \*.npz, the weights"):
        marian_files.load(tmp_path)
