# SPDX-License-Identifier: Apache-2.0
"""Loss, optimizers, and the pure training and evaluation steps."""
