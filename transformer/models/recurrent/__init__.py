# SPDX-License-Identifier: Apache-2.0
"""The recurrent family, from Sutskever et al. (2014) to Luong et al. (2015)."""

from transformer.config import RecurrentConfig
from transformer.models import protocol
from transformer.models.recurrent.model import Recurrent

__all__ = ["Recurrent"]

protocol.register(RecurrentConfig, Recurrent)
