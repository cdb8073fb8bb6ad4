# SPDX-License-Identifier: Apache-2.0
"""Named accelerators by their makers' figures, and how long a step takes on them by arithmetic.

The sources of the figures:

- NVIDIA's data sheets of the H100 and the H200 (SXM). The rates of tensor cores there are with
  sparsity; half of them is without. Eight share NVLink, 900 GB/s a device, which is 450 each way;
  each has a network port of 400 Gb/s (NVIDIA's guides to DGX H100 and H200).
- Google's pages "TPU v5e" and "TPU v5p" (docs.cloud.google.com/tpu/docs). The bandwidth between
  chips there is of all links of a chip, both ways. A v5e has four links, in two dimensions, a v5p
  six, in three; a ring along one dimension uses two, and so 2/4 or 2/6 of half that bandwidth. A
  slice has at most 256 or 6144 chips; from one to another there are 6.4 Tb/s for the 256 chips of a
  v5e pod, and 50 Gb/s for each v5p chip.

By default JAX computes float32 products on these GPUs in TF32 and on TPUs in bfloat16 (its page
"Matmul precision").
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping

from experiments.hlo import Collective


@dataclasses.dataclass(frozen=True)
class Chip:
    """One accelerator, in a machine as its maker sells it."""

    name: str
    memory_bytes: int
    product_flops: Mapping[str, float]
    """Of dense matrix products in a second, for each compute dtype, at most."""
    joined: int
    """How many are joined by fast links: GPUs in a machine, TPU chips in a slice."""
    link: float
    """Bytes a second that one sends over those links in a ring."""
    network: float
    """Bytes a second that one sends to those beyond."""

    def bandwidth(self, group: Iterable[int]) -> float:
        """Bytes a second that each device of a group sends in a ring.

        Devices are numbered through the machines. A ring that leaves a machine does so once, over
        the network ports of all its members there.
        """
        members = collections.Counter(device // self.joined for device in group)
        if len(members) == 1:
            return self.link
        return min(self.link, min(members.values()) * self.network)

    def seconds(self, collective: Collective) -> float:
        """For all of a step's collectives of one kind, start-up times left out."""
        return collective.sent_bytes / self.bandwidth(collective.group)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The time of one step."""

    products: float
    """Seconds of the matrix products."""
    collectives: float
    """Seconds of what the devices send each other."""

    @property
    def overlapped(self) -> float:
        """When all is sent while products are computed: the longer of the two."""
        return max(self.products, self.collectives)

    @property
    def in_turn(self) -> float:
        """When nothing is: their sum."""
        return self.products + self.collectives


def estimate(
    chip: Chip,
    product_flops: float,
    collectives: Iterable[Collective],
    dtype: str,
    utilisation: float,
) -> Estimate:
    """A step's time from its products and collectives alone.

    Args:
      chip: from `CHIPS`.
      product_flops: of one device.
      collectives: of one device.
      dtype: the compute dtype.
      utilisation: the share of the chip's rate that the products reach; all that is no matrix
        product and the waiting for memory are in it too.
    """
    return Estimate(
        product_flops / (chip.product_flops[dtype] * utilisation),
        sum(map(chip.seconds, collectives)),
    )


_H100 = Chip(
    name="H100",
    memory_bytes=80 * 10**9,
    product_flops={"bfloat16": 1979e12 / 2, "float32": 989e12 / 2},
    joined=8,
    link=900e9 / 2,
    network=400e9 / 8,
)

CHIPS = (
    _H100,
    dataclasses.replace(_H100, name="H200", memory_bytes=141 * 10**9),
    Chip(
        name="TPU v5e",
        memory_bytes=16 * 10**9,
        product_flops={"bfloat16": 197e12, "float32": 197e12},
        joined=256,
        link=400e9 / 2 * 2 / 4,
        network=6.4e12 / 8 / 256,
    ),
    Chip(
        name="TPU v5p",
        memory_bytes=95 * 2**30,
        product_flops={"bfloat16": 459e12, "float32": 459e12},
        joined=6144,
        link=1200e9 / 2 * 2 / 6,
        network=50e9 / 8,
    ),
)
