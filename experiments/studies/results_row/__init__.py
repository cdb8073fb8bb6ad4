# SPDX-License-Identifier: Apache-2.0
"""A row of a table of results: one recipe with several seeds, with or without teachers."""
