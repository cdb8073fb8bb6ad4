# SPDX-License-Identifier: Apache-2.0
"""Write a trained model and the scripts that run it into one page.

The scripts of this package and `views/elements.js` are in the page as they are, and its data as
JSON: the config, the vocabulary, the weights (`weight_encoding`), and the sentences to begin with.
"""

import logging
import math
from typing import Any

import jax
import numpy as np

from transformer.arrays import Params
from transformer.config import Config, TransformerConfig
from transformer.errors import InputError
from transformer.inspection import html
from transformer.inspection.html import element
from transformer.inspection.live import live_limits, weight_encoding
from transformer.models import protocol
from transformer.nn.parameters import Parameter, is_parameter
from transformer.text.sentencepiece_fields import segmentation
from transformer.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

SCRIPTS = (
    *("matrices.js", "model.js", "weights.js", "tokenizer.js", "search.js"),
    *("live_run.js", "components.js", "app.js", "encoder_sections.js", "attention_sections.js"),
    *("decoder_sections.js", "change_sections.js", "start_live.js"),
)
"""In the order of the page; the first five are the model, which use nothing of the page."""

MODEL_FIELDS = ("d_model", "d_ff", "norm", "norm_epsilon", "pad_id", "bos_id", "eos_id", "unk_id")
DECODE_FIELDS = ("beams", "length_penalty", "alpha", "finish_from", "extra_length", "max_length")
"""Fields of the model and of the search that the scripts read."""

LARGE_BYTES = 4_000_000
"""Larger pages are reported."""
LARGEST_BYTES = 32_000_000
"""Larger pages are refused: a browser reads and runs them too slowly to follow what is typed."""


def live_page(
    params: Params,
    config: Config,
    tokenizer: Tokenizer,
    sentences: tuple[str, str],
    *,
    description: str = "",
) -> str:
    """A page in which the model translates, and shows every number on the way.

    Args:
      config: config of the run; `config.decode` is the search of the page.
      sentences: the sentence that the page opens with, and one whose states can replace its states.
      description: what the weights are, in words.

    Raises:
      InputError: for a model, a tokenizer or a search that the page cannot run, and for a model
        that is too large.
    """
    live_limits.require_model(config)
    live_limits.require_search(config.decode)
    fields = segmentation(tokenizer.sentencepiece_model)
    live_limits.require_segmentation(tokenizer, fields)
    weights = sum(leaf.size for leaf in jax.tree.leaves(params))
    size = weight_encoding.BYTES_PER_WEIGHT * weights
    if size > LARGEST_BYTES:
        raise InputError(
            f"the model has {weights:,} weights, so its page would have {size / 1e6:.0f} MB; the "
            f"largest live page has {LARGEST_BYTES / 1e6:.0f} MB; leave --live out, or train a "
            "smaller model"
        )
    text = html.page(
        "The model in the page",
        element("div", element("p", "This page runs a model, which needs JavaScript."), id="live"),
        html.json_block(
            "model",
            {
                "config": {name: getattr(config.model, name) for name in MODEL_FIELDS},
                "decode": {name: getattr(config.decode, name) for name in DECODE_FIELDS}
                | {"longest_source": config.data.max_length},
                "labelSmoothing": config.training.label_smoothing,
                "pieces": fields.pieces,
                "sentences": sentences,
                "description": description,
                **_weights_data(params, config.model),
            },
        ),
        style=html.file_of(__package__, "live.css"),
        script="\n".join(
            [
                html.file_of("transformer.inspection.views", "elements.js"),
                *(html.file_of(__package__, name) for name in SCRIPTS),
            ]
        ),
    )
    if len(text) > LARGE_BYTES:
        logger.warning(
            "the page has %.1f MB, which takes a browser a while to open: the model has %s weights",
            *(len(text) / 1e6, f"{weights:,}"),
        )
    return text


def _weights_data(params: Params, config: TransformerConfig) -> dict[str, Any]:
    """The weights, name and shape of each tensor."""
    declared = protocol.parameter_metadata(protocol.build(config))
    leaves = jax.tree_util.tree_leaves_with_path(declared, is_leaf=is_parameter)
    values = [np.asarray(leaf, np.float32) for leaf in jax.tree.leaves(params)]
    tensors = [
        {
            "path": "/".join(key.key for key in path),
            "shape": value.shape,
            "initial": _initial(parameter),
            "scale": weight_encoding.scale_of(value),
            "weights": weight_encoding.encode(value),
        }
        for (path, parameter), value in zip(leaves, values, strict=True)
    ]
    return {"tensors": tensors}


def _initial(parameter: Parameter) -> tuple[str, float]:
    """The distribution that a parameter is drawn from before training, and its argument."""
    shape = parameter.value.shape
    if parameter.kind == "embedding":
        return "normal", shape[-1] ** -0.5
    if parameter.kind == "kernel":
        inputs = math.prod(shape[: parameter.num_input_axes])
        outputs = math.prod(shape[parameter.num_input_axes :])
        return "uniform", math.sqrt(6 / (inputs + outputs))  # Glorot
    return "constant", float(parameter.kind == "scale")
