# SPDX-License-Identifier: Apache-2.0
"""The exception for invalid input and configuration, as opposed to bugs."""


class InputError(ValueError):
    """Invalid input or configuration.

    The message names the value, its location, and what to do. The command-line apps print it
    without a traceback and exit with status 1.
    """
