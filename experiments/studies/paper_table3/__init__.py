# SPDX-License-Identifier: Apache-2.0
"""The rows of the paper's table 3: parameter counts and measured scores."""
