# SPDX-License-Identifier: Apache-2.0
"""How do trained models resolve the pronoun "it"? See `docs/antecedent.md`."""
