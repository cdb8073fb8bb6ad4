# SPDX-License-Identifier: Apache-2.0
"""HTML pages: evaluation, comparison of systems, and single sentences."""
