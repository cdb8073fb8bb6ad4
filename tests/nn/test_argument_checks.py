# SPDX-License-Identifier: Apache-2.0
"""Arrays that are not attention weights are rejected, with the index of the error."""

import numpy as np
import pytest

from transformer.errors import InputError
from transformer.inspection.argument_checks import check_weights


def test_weights_are_checked_row_by_row_and_under_the_mask():
    weights = np.array([[[0.5, 0.5], [1.0, 0.0]]])
    causal = np.tril(np.ones((2, 2), bool))
    check_weights(weights)
    check_weights(weights.astype(np.float16) + np.float16(2e-4))
    with pytest.raises(InputError, match=r"the weight at \[0, 0, 1\] is 0.5, but that query may"):
        check_weights(weights, causal)
    heads_first = np.array([[0.9, 0.8], [0.1, 0.2]])
    with pytest.raises(InputError, match=r"mine: row \[0\] sums to 1.7.*the last axis, the keys"):
        check_weights(heads_first, name="mine")
    with pytest.raises(InputError, match=r"row \[0\] sums to 1 with least value -0.5"):
        check_weights(np.array([[1.5, -0.5]]))
