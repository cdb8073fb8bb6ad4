# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's `MarianMTModel`, a post-norm Transformer with sinusoidal positions."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from experiments.benchmarks import text
from experiments.benchmarks.program import Program
from experiments.benchmarks.programs.pytorch import START_ID, batch_of, smoothed_loss, steps
from experiments.benchmarks.threads import a_few, better_threads
from experiments.benchmarks.work import DROPOUT, Work

END_ID = 2


def model_of(work: Work) -> transformers.MarianMTModel:
    """With random weights. Padding is the last id, as it is where Marian trains its own models."""
    inside = DROPOUT if work.dropout_inside else 0.0
    config = transformers.MarianConfig(
        vocab_size=work.vocabulary,
        decoder_vocab_size=work.vocabulary,
        d_model=work.d_model,
        encoder_layers=work.layers,
        decoder_layers=work.layers,
        encoder_attention_heads=work.heads,
        decoder_attention_heads=work.heads,
        encoder_ffn_dim=work.d_ff,
        decoder_ffn_dim=work.d_ff,
        activation_function="relu",
        dropout=DROPOUT,
        attention_dropout=inside,
        activation_dropout=inside,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        max_position_embeddings=max(work.source, work.target) + 1,
        pad_token_id=work.vocabulary - 1,
        bos_token_id=START_ID,
        eos_token_id=END_ID,
        decoder_start_token_id=START_ID,
        forced_eos_token_id=None,
    )
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    return transformers.MarianMTModel(config)


def training(work: Work, dtype: str) -> Program:
    """One step with Adam after the other; its data type as in `pytorch.training`."""
    model = model_of(work).train()

    def loss(source: Tensor, target: Tensor) -> Tensor:
        before = F.pad(target[:, :-1], (1, 0), value=START_ID)
        logits = model(
            input_ids=source,
            attention_mask=torch.ones_like(source),
            decoder_input_ids=before,
            use_cache=False,
        ).logits
        return smoothed_loss(logits, target)

    program = steps(model, loss, [batch_of(work)], dtype)
    program.about["version"] = _version()
    return program


def decoding(work: Work, beams: int) -> Program:
    """`generate` with exactly so many tokens a sentence."""
    model = model_of(work).eval()
    source = torch.from_numpy(work.token_ids()[0]).long()

    def call() -> Tensor:
        with torch.inference_mode():
            return model.generate(
                input_ids=source,
                attention_mask=torch.ones_like(source),
                num_beams=beams,
                do_sample=False,
                min_new_tokens=work.target,
                max_new_tokens=work.target,
            )

    threads = better_threads(call, torch.set_num_threads)
    # The start token stands before them.
    assert call().shape[1] == work.target + 1
    return Program(call, {"version": _version(), "threads": threads})


def translating(work: Work, path: str, beams: int, together: int) -> Program:
    """`generate`, from ids to ids, on the lines of a text, the shortest first.

    Args:
      work: the sizes of the model.
      path: of a `text.Text`, which says how long the translations of a batch are.
      beams: 1 is greedy search.
      together: sentences of a batch.
    """
    model = model_of(work).eval()
    padding = model.config.pad_token_id
    batches = []
    for sentences, length in text.Text.load(path).translated(together):
        known = [np.minimum(ids, padding - 1) for ids in sentences]
        batches.append((torch.from_numpy(text.padded(known, padding)), length))

    def translated(some: Sequence[tuple[Tensor, int]]) -> int:
        tokens = 0
        with torch.inference_mode():
            for source, length in some:
                found = model.generate(
                    input_ids=source,
                    attention_mask=(source != padding).long(),
                    num_beams=beams,
                    do_sample=False,
                    min_new_tokens=length,
                    max_new_tokens=length,
                )
                assert found.shape[1] == length + 1
                tokens += found[:, 1:].numel()
        return tokens

    threads = better_threads(lambda: translated(a_few(batches)), torch.set_num_threads)
    about = {"version": _version(), "threads": threads, "output_tokens": translated(batches)}
    return Program(
        lambda: translated(batches), about, units=sum(len(source) for source, _ in batches)
    )


def _version() -> str:
    return f"transformers {transformers.__version__}, torch {torch.__version__}"
