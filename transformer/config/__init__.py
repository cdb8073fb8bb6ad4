# SPDX-License-Identifier: Apache-2.0
"""The config of an experiment: frozen dataclasses, validated when constructed, to and from JSON.

Every default is the paper's base model. Where systems silently disagree, the choice has a name, and
the first name is the paper's. No field is a mode: training, decoding and capturing are arguments of
calls.
"""

from transformer.config.convolutional_config import ConvolutionalConfig
from transformer.config.data_config import DataConfig
from transformer.config.decode_config import DecodeConfig
from transformer.config.evaluation_config import EvaluationConfig
from transformer.config.experiment_config import RUNS, Config
from transformer.config.model_config import ModelConfig, TransformerConfig
from transformer.config.parallel_config import MESH_AXES, ParallelConfig
from transformer.config.recurrent_config import RecurrentConfig
from transformer.config.single_stack_config import ClassifierConfig, LanguageModelConfig
from transformer.config.training_config import LoggingConfig, OptimizerConfig, TrainingConfig

__all__ = [
    "MESH_AXES",
    "RUNS",
    "ClassifierConfig",
    "Config",
    "ConvolutionalConfig",
    "DataConfig",
    "DecodeConfig",
    "EvaluationConfig",
    "LanguageModelConfig",
    "LoggingConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "RecurrentConfig",
    "TrainingConfig",
    "TransformerConfig",
]
