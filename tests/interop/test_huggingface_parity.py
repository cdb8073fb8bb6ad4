# SPDX-License-Identifier: Apache-2.0
"""Imported models of random configurations compute what Transformers computes."""

import json
import random

import jax
import numpy as np
import pytest
from marian import CHECKPOINT

from transformer.errors import InputError
from transformer.interop import huggingface_import
from transformer.interop.huggingface_files import ACTIVATIONS
from transformer.models import protocol
from transformer.text.mapped_tokenizer import MappedTokenizer
from transformer.text.tokenizer import Vocabularies
from transformer.translator import Translator

pytestmark = pytest.mark.slow
CODES = (">>deu<<", ">>nds<<")
TEXT = "the animal did not cross street it was too tired a dog house , sees old"


def checkpoint(directory, number):
    """A random Marian model, of sizes drawn by its number, and the files of its tokenizer."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    torch.manual_seed(number)
    draw = random.Random(number)
    heads = [draw.choice([1, 2, 3, 4]) for _ in range(2)]
    ids = json.loads((CHECKPOINT / "vocab.json").read_text())
    if number % 2:  # Two unused pieces become codes of target languages.
        unused = [piece for piece in ids if piece.startswith("unused")]
        for code, piece in zip(CODES, unused, strict=False):
            ids[code] = ids.pop(piece)
    width = draw.choice([1, 2, 3]) * 12
    hidden = draw.choice([8, 20])
    special = {"pad_token_id": 100, "eos_token_id": 44, "forced_eos_token_id": 44}
    config = transformers.MarianConfig(
        vocab_size=101,
        d_model=width,
        encoder_layers=draw.choice([1, 2, 3]),
        decoder_layers=draw.choice([1, 2, 3]),
        encoder_attention_heads=heads[0],
        decoder_attention_heads=heads[1],
        encoder_ffn_dim=hidden,
        decoder_ffn_dim=hidden,
        activation_function=[*ACTIVATIONS][number % len(ACTIVATIONS)],
        scale_embedding=number % 5 != 0,
        max_position_embeddings=draw.choice([32, 512]),
        decoder_start_token_id=100,
        **special,
    )
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter += 0.3 * torch.randn_like(parameter)
        model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias))
        model.final_logits_bias[0, 44] += 3.0
    model.generation_config = transformers.GenerationConfig(
        num_beams=3,
        length_penalty=draw.choice([0.6, 1.0]),
        max_length=30,
        bad_words_ids=[[100]],
        renormalize_logits=True,
        decoder_start_token_id=100,
        **special,
    )
    model.save_pretrained(directory)
    (directory / "vocab.json").write_text(json.dumps(ids))
    for name in ("source.spm", "target.spm", "tokenizer_config.json"):
        (directory / name).write_bytes((CHECKPOINT / name).read_bytes())
    return torch, model, transformers.MarianTokenizer.from_pretrained(directory)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(20))
def test_logits_and_translations_are_those_of_transformers(number, tmp_path):
    torch, model, theirs = checkpoint(tmp_path, number)
    imported = huggingface_import.load(tmp_path)
    sides = Vocabularies.shared(MappedTokenizer(imported.vocabulary.pack()))
    original = np.array(imported.vocabulary.original_ids)
    draw = random.Random(number)
    sentences = [" ".join(draw.choices(TEXT.split(), k=draw.randint(1, 6))) for _ in range(6)]
    if number % 2:
        with pytest.raises(InputError, match="no language code .* >>deu<<, >>nds<<"):
            sides.source.encode(sentences)
        sentences = [f"{draw.choice(CODES)} {sentence}" for sentence in sentences]

    for side, name in ((sides.source, "text"), (sides.target, "text_target")):
        for ids, expected in zip(
            side.encode(sentences), theirs(**{name: sentences})["input_ids"], strict=True
        ):
            if name == "text" or not number % 2:
                assert original[ids].tolist() == expected

    batch = theirs(sentences[:2], return_tensors="pt", padding=True)
    target = torch.tensor([[100, 5, 17, 60], [100, 99, 3, 21]])
    with torch.no_grad():
        expected = model(**batch, decoder_input_ids=target).logits.numpy()
    position = {one: index for index, one in enumerate(original.tolist()) if index != 0}
    source = np.zeros((2, batch["input_ids"].shape[1]), np.int32)
    for row, ids in zip(source, sides.source.encode(sentences[:2]), strict=True):
        row[: len(ids)] = ids
    reads = np.vectorize(position.get)(target.numpy()).astype(np.int32)
    ours = protocol.build(imported.config.model)
    logits = jax.jit(lambda params, *tokens: ours.apply({"params": params}, *tokens))
    actual = np.asarray(logits(imported.params, source, reads))
    np.testing.assert_allclose(actual[..., 2:], expected[..., original[2:]], rtol=0, atol=2e-5)

    translator = Translator(imported.config, imported.params, sides)
    beams = 3 if number % 4 < 2 else 1
    found = translator.nbest(sentences, beams, beams=beams, max_length=29)
    for sentence, [best, *_] in zip(sentences, found, strict=True):
        output = model.generate(**theirs(sentence, return_tensors="pt"), num_beams=beams)
        [expected] = output.tolist()
        if len(expected) < 30:  # At the limit, EOS costs nothing there.
            assert original[[*best.tokens]].tolist() == expected[1:]
