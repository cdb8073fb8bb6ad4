# SPDX-License-Identifier: Apache-2.0
"""Word vectors of trained models, compared with skip-gram vectors of the same text."""
