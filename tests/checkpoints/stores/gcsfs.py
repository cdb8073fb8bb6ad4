# SPDX-License-Identifier: Apache-2.0
"""A fake gcsfs: ``gs://bucket/name`` is the file ``bucket/name`` of the folder ``$STORE``.

As in the real store, a folder exists if it contains an object, and objects cannot be appended to.
"""

import os
import pathlib
import shutil

from fsspec import AbstractFileSystem


class GCSFileSystem(AbstractFileSystem):
    """The file system of ``gs`` and ``gcs``."""

    protocol = ("gs", "gcs")
    cachable = False

    def info(self, path, **_):
        name, path_on_disk = self._named(path)
        if path_on_disk.is_file():
            found = path_on_disk.stat()
            return {"name": name, "type": "file", "size": found.st_size, "mtime": found.st_mtime}
        if not any(below.is_file() for below in path_on_disk.rglob("*")):
            raise FileNotFoundError(name)
        return {"name": name, "type": "directory", "size": 0}

    def ls(self, path, detail=True, **_):
        name, path_on_disk = self._named(path)
        if self.info(path)["type"] == "file":
            found = [self.info(path)]
        else:
            names = (f"{name}/{child.name}" for child in sorted(path_on_disk.iterdir()))
            found = [self.info(child) for child in names if self.exists(child)]
        return found if detail else [info["name"] for info in found]

    def rm_file(self, path):
        try:
            self._named(path)[1].unlink()
        except OSError:
            raise FileNotFoundError(path) from None

    def cp_file(self, path1, path2, **_):
        self._open(path2, "wb").close()
        shutil.copyfile(self._named(path1)[1], self._named(path2)[1])

    def _open(self, path, mode="rb", **_):
        if mode not in ("rb", "wb"):
            raise NotImplementedError(f"mode {mode}")
        name, path_on_disk = self._named(path)
        if mode == "rb" and not path_on_disk.is_file():
            raise FileNotFoundError(name)
        if mode == "wb":
            path_on_disk.parent.mkdir(parents=True, exist_ok=True)
        return open(path_on_disk, mode)

    def _named(self, path):
        name = self._strip_protocol(path)
        return name, pathlib.Path(os.environ["STORE"]) / name
