# SPDX-License-Identifier: Apache-2.0
"""What is measured, a function each: it makes the work ready in a process of its own."""
