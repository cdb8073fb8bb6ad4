# SPDX-License-Identifier: Apache-2.0
"""A training: model x optimizer x data on a mesh, its loop, its workdir and its logs."""
