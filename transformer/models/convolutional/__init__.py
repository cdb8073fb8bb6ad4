# SPDX-License-Identifier: Apache-2.0
"""The convolutional family (Gehring et al. 2017)."""

from transformer.config import ConvolutionalConfig
from transformer.models import protocol
from transformer.models.convolutional.model import Convolutional

__all__ = ["Convolutional"]

protocol.register(ConvolutionalConfig, Convolutional)
