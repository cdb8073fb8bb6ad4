# SPDX-License-Identifier: Apache-2.0
"""The matrix products of a training step or a search, and how fast this machine computes them at
its best.

Their operations divided by the time that they take alone is the harmonic mean of their rates, each
weighted by its operations: nothing that computes them with the same library can be faster.
"""

import collections
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

from transformer.arrays import Array
from transformer.config import TransformerConfig


@dataclasses.dataclass(frozen=True)
class Product:
    """`batch` products of [m, k] and [k, n] at once."""

    m: int
    k: int
    n: int
    batch: int = 1

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.m * self.k * self.n

    def with_gradients(self) -> Iterator["Product"]:
        """Itself, and what makes the gradients of its left and right operand."""
        yield self
        yield dataclasses.replace(self, k=self.n, n=self.k)
        yield dataclasses.replace(self, m=self.k, k=self.m)


class _Counts(collections.Counter[Product]):
    """How often each product is there."""

    def attention(
        self, model: TransformerConfig, side: str, rows: int, queries: int, keys: int
    ) -> None:
        """Of one layer: the projections of queries and output, and the two over all keys."""
        heads, (d_k, d_v) = model.heads(side), model.head_widths(side)
        self[Product(rows * queries, model.d_model, heads * d_k)] += 1
        self[Product(queries, d_k, keys, rows * heads)] += 1
        self[Product(queries, keys, d_v, rows * heads)] += 1
        self[Product(rows * queries, heads * d_v, model.d_model)] += 1

    def keys_values(self, model: TransformerConfig, side: str, positions: int) -> None:
        """Of one layer: the projections of keys and values."""
        heads, widths = model.heads(side), model.head_widths(side)
        for width in widths:
            self[Product(positions, model.d_model, heads * width)] += 1

    def feed_forward(self, model: TransformerConfig, positions: int) -> None:
        """Of one layer."""
        self[Product(positions, model.d_model, model.d_ff)] += 1
        self[Product(positions, model.d_ff, model.d_model)] += 1

    def encoder(self, model: TransformerConfig, rows: int, source: int) -> None:
        """All its layers."""
        for _ in range(model.depth("encoder")):
            self.keys_values(model, "encoder", rows * source)
            self.attention(model, "encoder", rows, source, source)
            self.feed_forward(model, rows * source)

    def decoder(
        self, model: TransformerConfig, rows: int, queries: int, keys: int, source: int
    ) -> None:
        """All its layers and the logits, but not the keys and values of the memory."""
        for _ in range(model.depth("decoder")):
            self.keys_values(model, "decoder", rows * queries)
            self.attention(model, "decoder", rows, queries, keys)
            self.attention(model, "decoder", rows, queries, source)
            self.feed_forward(model, rows * queries)
        self[Product(rows * queries, model.d_model, model.vocab_size)] += 1

    def memory(self, model: TransformerConfig, positions: int) -> None:
        """The keys and values of the memory, of all layers of the decoder."""
        for _ in range(model.depth("decoder")):
            self.keys_values(model, "decoder", positions)


def of_forward(
    model: TransformerConfig, rows: int, source: int, target: int
) -> collections.Counter[Product]:
    """How many products of each shape a forward pass has; their operations together are
    `costs.forward_flops`.
    """
    counts = _Counts()
    counts.encoder(model, rows, source)
    counts.memory(model, rows * source)
    counts.decoder(model, rows, target, target, source)
    return counts


def of_search(
    model: TransformerConfig, rows: int, source: int, target: int, beams: int
) -> collections.Counter[Product]:
    """Those of a search of so many steps: each beam of a sentence is a query over the keys that the
    sentence's beams have, half of those in the end at the mean.
    """
    counts, step = _Counts(), _Counts()
    counts.encoder(model, rows, source)
    counts.memory(model, rows * source)
    step.decoder(model, rows, beams, (target + 1) // 2 * beams, source)
    for product, times in step.items():
        counts[product] += times * target
    return counts


def of_step(
    model: TransformerConfig, rows: int, source: int, target: int
) -> collections.Counter[Product]:
    """Those of a training step: of the forward pass and of its gradients."""
    counts: collections.Counter[Product] = collections.Counter()
    for product, times in of_forward(model, rows, source, target).items():
        for one in product.with_gradients():
            counts[one] += times
    return counts


FORMS = ((False, False), (True, False), (False, True))
"""Whether the left and whether the right operand lies transposed in memory."""
FORM_SECONDS = 0.01
"""One timing of a form is of so many products as last this long."""
TIMINGS = 3


class Timed:
    """The time that products take, each in the form that is fastest on this machine."""

    def __init__(self, counts: collections.Counter[Product]):
        self._counts = counts
        self._timers = {product: list(_timers(product)) for product in counts}

    def __call__(self) -> float:
        """Seconds of all the products, measured now."""
        return sum(
            times * min(timer() for timer in self._timers[product])
            for product, times in self._counts.items()
        )


def _timers(product: Product) -> Iterator[Callable[[], float]]:
    """What gives the seconds of the product, for each form."""
    keys = iter(jax.random.split(jax.random.key(0), 2 * len(FORMS)))
    lead = (product.batch,) if product.batch > 1 else ()
    for left_transposed, right_transposed in FORMS:
        left = _operand(next(keys), lead, product.m, product.k, left_transposed)
        right = _operand(next(keys), lead, product.k, product.n, right_transposed)
        yield _timer(_repeated(left_transposed, right_transposed), left, right)


def _operand(key: Array, lead: tuple[int, ...], rows: int, columns: int, transposed: bool) -> Array:
    shape = (columns, rows) if transposed else (rows, columns)
    return jax.random.normal(key, lead + shape)


def _form(left: Array, right: Array, left_transposed: bool, right_transposed: bool) -> Array:
    """The product of operands of which one may lie transposed."""
    return jnp.matmul(
        left.swapaxes(-1, -2) if left_transposed else left,
        right.swapaxes(-1, -2) if right_transposed else right,
    )


@functools.cache
def _repeated(
    left_transposed: bool, right_transposed: bool
) -> Callable[[Array, Array, int], Array]:
    """The product so many times in one program, one after the other: what a call from Python costs
    is more than a small product.
    """

    def repeated(left: Array, right: Array, times: Array) -> Array:
        def again(_: Array, left: Array) -> Array:
            product = _form(left, right, left_transposed, right_transposed)
            # All of it is computed, and the next one depends on it, for the price of one number.
            product = jax.lax.optimization_barrier(product)
            corner = (0,) * left.ndim
            return left.at[corner].add(0 * product[corner])

        return jax.lax.fori_loop(0, times, again, left)

    return jax.jit(repeated)


def _timer(
    repeated: Callable[[Array, Array, int], Array], left: Array, right: Array
) -> Callable[[], float]:
    """Gives the seconds of one product."""

    def seconds(times: int) -> float:
        began = time.perf_counter()
        jax.block_until_ready(repeated(left, right, times))
        return (time.perf_counter() - began) / times

    seconds(1)
    times = max(1, round(FORM_SECONDS / seconds(3)))
    return lambda: statistics.median(seconds(times) for _ in range(TIMINGS))
