# SPDX-License-Identifier: Apache-2.0
"""Saving, verifying, averaging and restoring training states (Orbax)."""
