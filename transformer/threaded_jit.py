# SPDX-License-Identifier: Apache-2.0
"""`jax.jit` for functions that several threads call at the same time.

`jax.jit` looks up static arguments in a C++ hash table. If their ``__eq__`` is Python code, as it
is for a config or a model, another thread can change the table in the middle of a lookup.
The process then ends with a segmentation fault (jaxlib 0.10.2).
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax


class ThreadedJit:
    """A compiled function whose static arguments are looked up by one thread at a time.

    For each combination of static arguments there is a `jax.jit` of the arrays alone, whose shapes,
    dtypes and shardings are compared in C++. Calls of different threads run at the same time.
    """

    def __init__(self, function: Callable, static_argnames: Sequence[str]):
        """Compile `function`; static arguments must be given by keyword."""
        functools.update_wrapper(self, function)
        self._function = function
        self._static_argnames = frozenset(static_argnames)
        self._jitted: dict[frozenset[tuple[str, Any]], Any] = {}
        self._lock = threading.Lock()

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """The result for these arrays and static arguments."""
        jitted, named_arrays = self._find(named)
        return jitted(*arrays, **named_arrays)

    def lower(self, *arrays: Any, **named: Any) -> jax.stages.Lowered:
        """See `jax.stages.Wrapped.lower`."""
        jitted, named_arrays = self._find(named)
        return jitted.lower(*arrays, **named_arrays)

    def _find(self, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The `jax.jit` for the static arguments, and the other keyword arguments."""
        static = frozenset(item for item in named.items() if item[0] in self._static_argnames)
        arrays = {name: x for name, x in named.items() if name not in self._static_argnames}
        with self._lock:
            if static not in self._jitted:
                function = functools.partial(self._function, **dict(static))
                self._jitted[static] = jax.jit(functools.update_wrapper(function, self._function))
            return self._jitted[static], arrays


def threaded_jit(*static_argnames: str) -> Callable[[Callable], ThreadedJit]:
    """Decorate a function that is compiled for each value of these keyword arguments."""
    return lambda function: ThreadedJit(function, static_argnames)
