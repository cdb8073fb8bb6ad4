# SPDX-License-Identifier: Apache-2.0
"""Roofline arithmetic: the least time of a step on accelerators that were not timed.

Sources: NVIDIA's data sheets of H100 SXM and H200 SXM (dense rates are half of those with sparsity;
eight GPUs share NVLink at 900 GB/s each, both directions together) and its guides to DGX H100 and
H200 (400 Gb/s of network a GPU); Google's pages "TPU v5e" and "TPU v5p" on
docs.cloud.google.com/tpu/docs (interconnect bandwidth is that of all links in both directions, of
which a ring along one dimension of the torus uses 2 of 4 or 2 of 6). float32 matmuls run in TF32 on
these GPUs and in bfloat16 on TPUs, JAX's defaults.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.planning.collectives import Collective


class Chip(NamedTuple):
    """Published peak figures of one accelerator: bytes, FLOP/s, bytes per second."""

    name: str
    memory_bytes: float
    memory_bandwidth: float
    peak_flops: Mapping[str, float]
    """Dense matmuls, by compute dtype."""
    domain: int
    """Devices joined by fast links: GPUs of a machine, TPU chips of a slice."""
    link_bandwidth: float
    """Sent by a device within its domain, in a ring."""
    network_bandwidth: float
    """Sent by a device beyond its domain."""

    def bandwidth(self, group: Sequence[int]) -> float:
        """Bytes per second that each device of a replica group sends in a ring.

        A ring across domains shares the network ports of its members in a domain.
        """
        members = sum(device // self.domain == group[0] // self.domain for device in group)
        if members == len(group):
            return self.link_bandwidth
        return min(self.link_bandwidth, members * self.network_bandwidth)

    def roofline(
        self, flops: float, dtype: str, bytes_accessed: float, collectives: Sequence[Collective]
    ) -> dict[str, float]:
        """Seconds that compute, memory and network need, each by itself at its peak rate."""
        return {
            "compute": flops / self.peak_flops[dtype],
            "memory": bytes_accessed / self.memory_bandwidth,
            "network": sum(one.sent_bytes / self.bandwidth(one.group) for one in collectives),
        }


_HOPPER = {"bfloat16": 1979e12 / 2, "float32": 989e12 / 2}
_V5E = {"bfloat16": 197e12, "float32": 197e12}
_V5P = {"bfloat16": 459e12, "float32": 459e12}

CHIPS = (
    Chip("H100", 80e9, 3.35e12, _HOPPER, 8, 900e9 / 2, 400e9 / 8),
    Chip("H200", 141e9, 4.8e12, _HOPPER, 8, 900e9 / 2, 400e9 / 8),
    Chip("TPU v5e", 16e9, 819e9, _V5E, 256, 400e9 / 2 * 2 / 4, 6.4e12 / 8 / 256),
    Chip("TPU v5p", 95 * 2**30, 2765e9, _V5P, 6144, 1200e9 / 2 * 2 / 6, 50e9 / 8),
)
