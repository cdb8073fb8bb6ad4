# SPDX-License-Identifier: Apache-2.0
"""The cost of a layer and its maximum path length, measured (table 1 of the paper)."""
