# SPDX-License-Identifier: Apache-2.0
"""The study of `docs/antecedent.md`: how do trained models resolve the pronoun "it"?"""
