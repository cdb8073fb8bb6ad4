# SPDX-License-Identifier: Apache-2.0
"""Looking at what a model does; pages that show it."""
