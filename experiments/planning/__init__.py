# SPDX-License-Identifier: Apache-2.0
"""Memory, FLOPs and time of a training that has not started."""
