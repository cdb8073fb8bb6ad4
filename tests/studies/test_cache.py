# SPDX-License-Identifier: Apache-2.0
"""Cached results are used only if nothing has changed that they were computed from."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from experiments.studies.cache import cached, digest_of


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a study."""

    quadruples: int = 24
    beams: int = 1


def test_every_change_of_an_option_or_of_the_weights_recomputes(tmp_path):
    file, computed = epath.Path(tmp_path) / "folder" / "result.json", []

    def result(version=1, options=Options(), weights=(0.0, 1.0)):
        key = digest_of(version, options, {"layer": jnp.array(weights)})
        value = {"options": dataclasses.asdict(options), "weights": [*weights]}
        return cached(file, key, lambda: computed.append(key) or value)

    first = result()
    assert result() == first == {"options": {"quadruples": 24, "beams": 1}, "weights": [0.0, 1.0]}
    assert len(computed) == 1
    for changed in (
        {"version": 2},
        {"options": Options(quadruples=8)},
        {"options": Options(beams=4)},
        {"weights": (0.0, 1.5)},
    ):
        assert result(**changed) == result(**changed)
    assert len(computed) == len(set(computed)) == 5


def test_a_file_without_a_key_is_of_unknown_origin(tmp_path):
    file = epath.Path(tmp_path) / "result.json"
    file.write_text('{"right": 0.5}')
    assert cached(file, digest_of(1), lambda: {"right": 1.0}) == {"right": 1.0}
    assert "0.5" not in file.read_text()


def test_a_digest_is_of_the_contents():
    assert digest_of(np.arange(4)) == digest_of(np.arange(8)[::2] // 2)
    assert digest_of(np.zeros(4)) != digest_of(np.zeros((2, 2))) != digest_of(np.zeros(4, np.int64))
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    with pytest.raises(TypeError, match="has no digest"):
        digest_of(epath.Path("weights"))
