# SPDX-License-Identifier: Apache-2.0
"""Scripts that make a figure or a table of the documentation, each by one command."""
