# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning: train a model that exists already on your own text, with its own validation.

Run:    transformer train --config=fine_tune \\
            --workdir=runs/tuned --config.training.init_from=runs/general \\
            --config.data.train_source=train.en --config.data.train_target=train.de \\
            --config.data.validation_source=valid.en --config.data.validation_target=valid.de
        --config.training.freeze="('encoder',)" keeps a part of the weights;
        --config.training.lora_rank=8 trains adapters, with a learning rate about ten times as high.
Expect: docs/results.md has a model of Tatoeba fine-tuned to Multi30k. `experiments.evaluate` scores
        both models on any two files, for example to see what was forgotten.

The model, its vocabulary, the lengths of batches, and how it decodes are those of the model it
starts from, a workdir or a bundle. Dropout, compute_dtype and all other fields may be overridden.
"""

from transformer.checkpoints import workdir_files
from transformer.config import Config, DataConfig, OptimizerConfig, TrainingConfig


def get_config(init_from: str | None = None) -> Config:
    """Return the config for a model, a workdir or a bundle; that of the base model for None."""
    saved = Config() if init_from is None else workdir_files.load_inference_config(init_from)
    kept = ("tokenizer", "vocabulary", "character_coverage", "max_length", "tokens_per_batch")
    kept += ("bucket_lengths", "row_multiple")
    data = DataConfig(dataset="text_files", **{name: getattr(saved.data, name) for name in kept})
    return saved.replace(
        optimizer=OptimizerConfig(
            schedule="cosine", learning_rate=2e-4, warmup_steps=100, clip_norm=1.0
        ),
        data=data,
        training=TrainingConfig(
            init_from=init_from,
            steps=1000,
            validate_every=100,
            label_smoothing=saved.training.label_smoothing,
            label_smoothing_mass=saved.training.label_smoothing_mass,
        ),
    )
