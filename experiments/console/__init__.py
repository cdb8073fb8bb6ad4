# SPDX-License-Identifier: Apache-2.0
"""Text for a terminal: tables and sizes, and progress on standard error."""
