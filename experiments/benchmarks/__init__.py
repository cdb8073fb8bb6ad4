# SPDX-License-Identifier: Apache-2.0
"""Speed and memory, measured against peers and against what the machine allows."""
