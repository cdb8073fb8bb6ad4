# SPDX-License-Identifier: Apache-2.0
"""Where sentence pairs come from: embedded grammars, TFDS and text files."""
