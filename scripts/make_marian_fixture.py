# SPDX-License-Identifier: Apache-2.0
"""Make tests/interop/marian_checkpoint: a small random Marian model with its logits and outputs.

python scripts/make_marian_fixture.py

It is run once, where PyTorch and Transformers are installed. Its files are committed, so that the
import is tested where they are not.
"""

import json
import pathlib
import random

import numpy as np
import sentencepiece
import torch
import transformers

DIRECTORY = pathlib.Path(__file__).parent.parent / "tests" / "interop" / "marian_checkpoint"
TEXT = {
    "source": "the animal did not cross street it was too tired a dog house , sees old",
    "target": "das Tier überquerte die Straße nicht es war zu müde ein Hund Haus , sieht alt",
}
WORDS = {side: text.split() for side, text in TEXT.items()}
VOCAB_SIZE = 101
CONFIG = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "activation_function": "swish",
    "max_position_embeddings": 64,
    "scale_embedding": True,
    "pad_token_id": VOCAB_SIZE - 1,
    "decoder_start_token_id": VOCAB_SIZE - 1,
    "eos_token_id": 44,
    "forced_eos_token_id": 44,
}
SEED = 5
"""With which the model does not repeat one token up to the limit for every source."""
BEAMS = 4
NUM_SENTENCES = 6
LONGEST = 24


def sentencepiece_model(words: list[str], size: int, path: pathlib.Path) -> list[str]:
    """Train a model on random sentences of the words, and return its pieces of text."""
    draw = random.Random(0)
    sentences = [" ".join(draw.choices(words, k=6)) for _ in range(400)]
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=file,
            vocab_size=size,
            model_type="unigram",
            character_coverage=1.0,
            hard_vocab_limit=False,
            normalization_rule_name="identity",
            minloglevel=2,
        )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    pieces = [processor.id_to_piece(index) for index in range(processor.vocab_size())]
    return [piece for piece in pieces if piece not in ("<unk>", "<s>", "</s>")]


def vocabulary() -> dict[str, int]:
    """Ids unrelated to those of the SentencePiece models; EOS is 44, padding the last."""
    pieces = []
    for side, words in WORDS.items():
        pieces += sentencepiece_model(words, 56, DIRECTORY / f"{side}.spm")
    pieces = sorted(set(pieces))[: VOCAB_SIZE - 3]
    pieces += [f"unused{number}" for number in range(VOCAB_SIZE - 3 - len(pieces))]
    pieces.insert(1, "<unk>")
    pieces.insert(44, "</s>")
    return {piece: index for index, piece in enumerate([*pieces, "<pad>"])}


def random_model(seed: int) -> transformers.MarianMTModel:
    """A model whose every parameter differs from its initial value."""
    torch.manual_seed(seed)
    model = transformers.MarianMTModel(transformers.MarianConfig(**CONFIG)).eval()
    eos = CONFIG["eos_token_id"]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" in name:
                continue
            scale = 0.2 if parameter.ndim == 1 else 2.5 / parameter.shape[-1] ** 0.5
            if name == "model.shared.weight":
                scale /= 3  # With larger embeddings, each token would predict itself.
            center = 1.0 if "layer_norm.weight" in name else 0.0
            parameter.copy_(center + scale * torch.randn_like(parameter))
        model.model.shared.weight[eos] *= 4
        model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias))
    model.generation_config = transformers.GenerationConfig(
        num_beams=BEAMS,
        length_penalty=1.0,
        max_length=LONGEST,
        bad_words_ids=[[CONFIG["pad_token_id"]]],
        renormalize_logits=True,
        **{name: CONFIG[name] for name in CONFIG if name.endswith("token_id")},
    )
    return model


def instructive_sentences(
    model: transformers.MarianMTModel, tokenizer: transformers.MarianTokenizer
) -> list[str]:
    """Sentences whose translations end before the limit, where Hugging Face forces EOS at no cost,
    and that differ.
    """
    draw, chosen = random.Random(0), {}
    while len(chosen) < NUM_SENTENCES:
        sentence = " ".join(draw.choices(WORDS["source"], k=draw.randint(2, 9)))
        source = tokenizer(sentence, return_tensors="pt")
        outputs = [tuple(model.generate(**source, num_beams=k)[0].tolist()) for k in (1, BEAMS)]
        if all(2 < len(output) < LONGEST for output in outputs):
            chosen.setdefault(outputs[0], sentence)
    return list(chosen.values())


def main() -> None:
    """Write the model, the tokenizer, and ``outputs.npz``."""
    torch.set_num_threads(1)
    DIRECTORY.mkdir(exist_ok=True)
    ids = vocabulary()
    (DIRECTORY / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False, indent=0))
    model = random_model(SEED)
    model.save_pretrained(DIRECTORY)
    tokenizer_config = {"source_lang": "eng", "target_lang": "deu", "model_max_length": 64}
    (DIRECTORY / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    tokenizer = transformers.MarianTokenizer.from_pretrained(DIRECTORY)
    sentences, outputs = instructive_sentences(model, tokenizer), {}
    for number, sentence in enumerate(sentences):
        source = tokenizer(sentence, return_tensors="pt")
        greedy, beam = (
            model.generate(**source, num_beams=beams)[0].tolist() for beams in (1, BEAMS)
        )
        decoder_input = torch.tensor([greedy[:-1]])
        with torch.no_grad():
            logits = model(**source, decoder_input_ids=decoder_input).logits[0]
        outputs |= {
            f"source_{number}": source["input_ids"][0].numpy(),
            f"decoder_input_{number}": decoder_input[0].numpy(),
            f"logits_{number}": logits.numpy(),
            f"greedy_{number}": np.array(greedy),
            f"beam_{number}": np.array(beam),
        }
        print(sentence, greedy, beam)
    np.savez_compressed(DIRECTORY / "outputs.npz", sentences=np.array(sentences), **outputs)
    sizes = {path.name: path.stat().st_size for path in sorted(DIRECTORY.iterdir())}
    print(json.dumps(sizes), sum(sizes.values()))


if __name__ == "__main__":
    main()
