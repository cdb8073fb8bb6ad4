# SPDX-License-Identifier: Apache-2.0
"""A translation service: the batching core, HTTP routes, metrics and the page."""
