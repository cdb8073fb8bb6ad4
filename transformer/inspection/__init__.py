# SPDX-License-Identifier: Apache-2.0
"""Interpretability tools for trained encoder-decoder models."""

from transformer.inspection.interventions import Interventions, no_interventions
from transformer.inspection.trace import Trace, run

__all__ = ["Interventions", "Trace", "no_interventions", "run"]
