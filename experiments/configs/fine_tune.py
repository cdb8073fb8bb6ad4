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

from transformer.config import Config, DataConfig, OptimizerConfig, TrainingConfig


def get_config() -> Config:
    """Return the config, which `experiments.data.recipes` completes from the trained model."""
    return Config(
        optimizer=OptimizerConfig(
            schedule="cosine", learning_rate=2e-4, warmup_steps=100, clip_norm=1.0
        ),
        data=DataConfig(dataset="text_files"),
        training=TrainingConfig(recipe="fine_tune", steps=1000, validate_every=100),
    )
