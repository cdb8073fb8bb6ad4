# SPDX-License-Identifier: Apache-2.0
"""The user's cache folder, locks on folders, and output that can be continued."""
