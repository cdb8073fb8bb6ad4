# SPDX-License-Identifier: Apache-2.0
"""Stands in for s3fs, as `gcsfs` for its own; the time of a change has the name it has there."""

from gcsfs import GCSFileSystem

__version__ = "2026.9.0"


class S3FileSystem(GCSFileSystem):
    """What fsspec makes of ``s3``."""

    protocol = ("s3",)

    def info(self, path, **_):
        found = super().info(path)
        if "mtime" in found:
            found["LastModified"] = found.pop("mtime")
        return found
