# SPDX-License-Identifier: Apache-2.0
"""A fake google.cloud.storage, which Orbax asks whether a bucket has a hierarchical namespace."""


class Client:
    """A client whose buckets have none."""

    def get_bucket(self, name):
        return object()
