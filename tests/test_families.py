# SPDX-License-Identifier: Apache-2.0
"""A config names its model, and every family offers the calls that its users make."""

import pytest

from transformer.config import ModelConfig, TransformerConfig
from transformer.models import base
from transformer.models.transformer import Transformer


def test_the_transformer_config_builds_the_transformer():
    config = TransformerConfig(num_layers=2)
    model = base.build(config)
    assert isinstance(model, Transformer)
    assert model.config is config


def test_equal_configs_build_equal_models_so_that_compiled_functions_are_shared():
    models = [base.build(TransformerConfig(d_model=d)) for d in (64, 64, 128)]
    assert models[0] == models[1] != models[2]
    assert hash(models[0]) == hash(models[1])


def test_every_registered_config_has_a_model():
    assert set(base.FAMILIES) == set(ModelConfig.families.values())


@pytest.mark.parametrize("family", base.FAMILIES.values())
@pytest.mark.parametrize("call", ["__call__", "encode", "init_cache", "step", "reorder", "grow"])
def test_every_family_offers_what_trainer_search_and_inspection_call(family, call):
    assert call in vars(family)
