# SPDX-License-Identifier: Apache-2.0
"""A fake s3fs, like the fake gcsfs; the modification time has the name that S3 uses."""

from gcsfs import GCSFileSystem

__version__ = "2026.9.0"


class S3FileSystem(GCSFileSystem):
    """The file system of ``s3``."""

    protocol = ("s3",)

    def info(self, path, **_):
        found = super().info(path)
        if "mtime" in found:
            found["LastModified"] = found.pop("mtime")
        return found
