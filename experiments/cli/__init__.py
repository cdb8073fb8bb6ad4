# SPDX-License-Identifier: Apache-2.0
"""The command line of the apps: flags, config overrides, help, errors, signals."""
