# SPDX-License-Identifier: Apache-2.0
"""Sources of sentence pairs: embedded grammars, TFDS, and text files."""
