# SPDX-License-Identifier: Apache-2.0
"""The small model is trained once, however many processes load it."""

import concurrent.futures

import numpy as np
import pytest

from experiments.configs import copy, pronouns_small
from experiments.studies import small_model
from transformer.config import DecodeConfig
from transformer.errors import InputError


@pytest.fixture
def trainings(monkeypatch, tmp_path):
    """A config of two quick steps in place of the real one; the workdirs that were trained."""
    config = copy.get_config()
    config = config.replace(
        model=config.model.replace(num_layers=1, d_model=8, d_ff=8, num_heads=2),
        decode=DecodeConfig(beams=1, max_length=4),
        data=config.data.replace(tokens_per_batch=192),
        training=config.training.replace(steps=2, validate_every=2, validation_sentences=2),
    )
    monkeypatch.setattr(pronouns_small, "get_config", lambda: config)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directories, train = [], small_model.loop.train

    def counted(config, directory):
        directories.append(directory)
        train(config, directory)

    monkeypatch.setattr(small_model.loop, "train", counted)
    return directories


def table(translator):
    """Embedding table of a model."""
    return np.asarray(translator.params["embedding"]["table"])


@pytest.mark.slow
def test_it_is_trained_the_first_time_and_opened_afterwards(trainings, tmp_path, capfd):
    first = small_model.load(seed=3, folder=tmp_path)
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "step 2/2" in printed.err
    again = small_model.load(seed=3, folder=tmp_path)
    assert capfd.readouterr().err == ""
    np.testing.assert_array_equal(table(first), table(again))
    other = small_model.load(seed=4, folder=tmp_path)
    assert other.config.training.seed == 4
    assert trainings == [tmp_path / f"pronouns_small_{seed}" for seed in (3, 4)]
    assert np.abs(table(first) - table(other)).max() > 0.01


@pytest.mark.slow
def test_of_two_that_ask_at_once_one_trains_and_the_other_waits_for_it(trainings, tmp_path):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: small_model.load(0, tmp_path), range(2))
    assert len(trainings) == 1
    np.testing.assert_array_equal(table(first), table(second))


@pytest.mark.slow
def test_a_model_of_another_config_is_refused(trainings, tmp_path, monkeypatch):
    small_model.load(0, tmp_path)
    config = pronouns_small.get_config()
    other = config.replace(optimizer=config.optimizer.replace(learning_rate=0.5))
    monkeypatch.setattr(pronouns_small, "get_config", lambda: other)
    with pytest.raises(InputError, match="optimizer.learning_rate: 0.2 there, 0.5 now"):
        small_model.load(0, tmp_path)


def test_a_folder_in_which_nothing_can_be_made_is_refused(trainings, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written.*name a writable folder"):
        small_model.load(0, tmp_path / "file")
    assert trainings == []
