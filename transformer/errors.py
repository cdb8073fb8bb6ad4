# SPDX-License-Identifier: Apache-2.0
"""The one exception that means "what you gave cannot be used", as opposed to a fault of the
program.
"""


class InputError(ValueError):
    """Bad input or configuration: the message says the value, the place, and what to do.

    The command-line apps print it without a traceback and exit with status 1.
    """
