# SPDX-License-Identifier: Apache-2.0
"""Roofline arithmetic: the least time of a step on accelerators that were not timed.

Sources: NVIDIA's data sheets of H100 SXM and H200 SXM (dense rates are half of those with sparsity;
eight GPUs share NVLink at 900 GB/s each, both directions together) and its guides to DGX H100 and
H200 (400 Gb/s of network a GPU); Google's pages "TPU v5e" and "TPU v5p" on
docs.cloud.google.com/tpu/docs (interconnect bandwidth is that of all links in both directions, of
which a ring along one dimension of the torus uses 2 of 4 or 2 of 6). float32 matmuls run in TF32 on
these GPUs and in bfloat16 on TPUs, JAX's defaults.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from experiments.collectives import Collective


@dataclasses.dataclass(frozen=True)
class Chip:
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
        self,
        flops: float,
        dtype: str,
        bytes_accessed: float,
        collectives: Sequence[Collective],
    ) -> dict[str, float]:
        """Seconds that compute, memory and network need, each by itself at its peak rate."""
        return {
            "compute": flops / self.peak_flops[dtype],
            "memory": bytes_accessed / self.memory_bandwidth,
            "network": sum(one.sent_bytes / self.bandwidth(one.group) for one in collectives),
        }


H100 = Chip(
    name="H100",
    memory_bytes=80e9,
    memory_bandwidth=3.35e12,
    peak_flops={"bfloat16": 1979e12 / 2, "float32": 989e12 / 2},
    domain=8,
    link_bandwidth=900e9 / 2,
    network_bandwidth=400e9 / 8,
)
H200 = dataclasses.replace(H100, name="H200", memory_bytes=141e9, memory_bandwidth=4.8e12)
TPU_V5E = Chip(
    name="TPU v5e",
    memory_bytes=16e9,
    memory_bandwidth=819e9,
    peak_flops={"bfloat16": 197e12, "float32": 197e12},
    domain=256,
    link_bandwidth=400e9 / 2 * 2 / 4,
    network_bandwidth=6.4e12 / 8 / 256,
)
TPU_V5P = Chip(
    name="TPU v5p",
    memory_bytes=95 * 2**30,
    memory_bandwidth=2765e9,
    peak_flops={"bfloat16": 459e12, "float32": 459e12},
    domain=6144,
    link_bandwidth=1200e9 / 2 * 2 / 6,
    network_bandwidth=50e9 / 8,
)
CHIPS = (H100, H200, TPU_V5E, TPU_V5P)
