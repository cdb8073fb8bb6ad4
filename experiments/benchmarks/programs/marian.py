# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's `MarianMTModel`, a post-norm Transformer with sinusoidal positions."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from experiments.benchmarks.programs import pytorch
from experiments.benchmarks.worker import Program, fastest
from experiments.benchmarks.workloads import DROPOUT, Text, Workload, pad, translation_batches

VERSION = f"transformers {transformers.__version__}, torch {torch.__version__}"


def model_of(workload: Workload) -> transformers.MarianMTModel:
    """Return random weights. Padding is the last id, as in the models that Marian trains."""
    inner = DROPOUT if workload.inner_dropout else 0.0
    config = transformers.MarianConfig(
        vocab_size=workload.vocab_size,
        decoder_vocab_size=workload.vocab_size,
        d_model=workload.d_model,
        encoder_layers=workload.num_layers,
        decoder_layers=workload.num_layers,
        encoder_attention_heads=workload.num_heads,
        decoder_attention_heads=workload.num_heads,
        encoder_ffn_dim=workload.d_ff,
        decoder_ffn_dim=workload.d_ff,
        activation_function="relu",
        dropout=DROPOUT,
        attention_dropout=inner,
        activation_dropout=inner,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        max_position_embeddings=max(workload.source_length, workload.target_length) + 1,
        pad_token_id=workload.vocab_size - 1,
        bos_token_id=pytorch.BOS_ID,
        eos_token_id=2,
        decoder_start_token_id=pytorch.BOS_ID,
        forced_eos_token_id=None,
    )
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    return transformers.MarianMTModel(config)


def training(workload: Workload, dtype: str) -> Program:
    """Training steps with Adam; `dtype` as in `pytorch.training`."""
    model = model_of(workload).train()

    def loss(source: Tensor, target: Tensor) -> Tensor:
        logits = model(
            input_ids=source,
            attention_mask=torch.ones_like(source),
            decoder_input_ids=F.pad(target[:, :-1], (1, 0), value=pytorch.BOS_ID),
            use_cache=False,
        ).logits
        return pytorch.smoothed_loss(logits, target)

    program = pytorch.training_program(model, loss, workload.token_ids(), dtype)
    program.about["version"] = VERSION
    return program


def decoding(
    workload: Workload, beams: int, dtype: str = "float32", path: str | None = None
) -> Program:
    """`generate` every batch of the workload or of a `Text`, to exactly its output length."""
    model = model_of(workload).eval().to(pytorch.DEVICE, getattr(torch, dtype))
    pad_id = model.config.pad_token_id
    batches = []
    for sentences, length in translation_batches(workload, path and Text.load(path)):
        known = [[min(token, pad_id - 1) for token in ids] for ids in sentences]
        batches.append((torch.from_numpy(pad(known, pad_id)).to(pytorch.DEVICE), length))

    @torch.inference_mode()
    def generate(batches: Sequence[tuple[Tensor, int]]) -> int:
        tokens = 0
        for source, length in batches:
            outputs = model.generate(
                input_ids=source,
                attention_mask=(source != pad_id).long(),
                num_beams=beams,
                do_sample=False,
                min_new_tokens=length,
                max_new_tokens=length,
            )
            assert outputs.shape[1] == length + 1  # BOS is first
            tokens += outputs[:, 1:].numel()
        return tokens

    some = batches[:: -(-len(batches) // 4)]
    threads = fastest(lambda: generate(some), torch.set_num_threads, pytorch.thread_choices())
    about = {"version": VERSION, "threads": threads, "output_tokens": generate(batches)}
    units = sum(len(source) for source, _ in batches) if path else 1
    return Program(lambda: generate(batches), about, units, pytorch.device_peak_bytes)
