# SPDX-License-Identifier: Apache-2.0
"""Programs to measure; each function prepares one in a worker process."""
