"""The files of one folder, on this machine or wherever Spark can write.

Paths are relative to the folder. Promises what a log of commits needs: `create` never replaces a file, and a file is
there whole or not at all. On this machine what was created or moved is on the disk when the call returns; elsewhere
that, and whether two that create the same file at once are told apart, is up to the file system. The only place, with
`session`, that needs the driver's Java: storage of others is reached through it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from peeklock.spark.pipelines.failures import SPARK_ERRORS, java_class
from peeklock.spark.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Found(NamedTuple):
    path: str
    size: int
    modified_ms: int


class Files(Protocol):
    uri: str
    """The folder, escaped, without a slash at the end."""
    place: str
    """The same as Spark's readers and writers want it: not escaped."""

    def exists(self, path: str = "") -> bool: ...
    def walk(self, path: str) -> Iterator[Found]:
        """All files below; none when there is no such folder."""

    def names(self, path: str) -> list[str]: ...
    def read(self, path: str) -> str: ...
    def create(self, path: str, text: str) -> bool:
        """False when there is one already."""

    def move(self, source: str, target: str) -> None: ...
    def delete(self, path: str) -> None:
        """A file or a folder; nothing when there is none."""


def files_of(spark: SparkSession, folder: str) -> Files:
    """A path of this machine or a URI; a path without a scheme is what it is for Spark.

    A client of Spark Connect has no access to the driver's Java, and so to no other storage than this machine's.
    """
    if is_connect(spark):
        address = urlsplit(folder)
        if address.scheme not in ("", "file"):
            raise ValueError(f"through Spark Connect only folders of this machine can be used, and {folder} is not one")
        return LocalFiles(Path(unquote(address.path) if address.scheme else folder))
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(folder)
    system = path.getFileSystem(spark._jsc.hadoopConfiguration())
    uri = str(system.makeQualified(path).toUri())
    if urlsplit(uri).scheme == "file":
        return LocalFiles(Path(unquote(urlsplit(uri).path)))
    return HadoopFiles(spark, system, uri)


class LocalFiles:
    """On this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.uri = self.folder.as_uri()
        self.place = f"file://{self.folder}"

    def exists(self, path: str = "") -> bool:
        return (self.folder / path).exists()

    def walk(self, path: str) -> Iterator[Found]:
        for each in sorted((self.folder / path).rglob("*")):
            if each.is_file():
                state = each.stat()
                yield Found(str(each.relative_to(self.folder)), state.st_size, int(state.st_mtime * 1000))

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self.folder / path))
        except FileNotFoundError:
            return []

    def read(self, path: str) -> str:
        return (self.folder / path).read_text()

    def create(self, path: str, text: str) -> bool:
        target = self.folder / path
        _make_folder(target.parent)
        written = target.with_name(f".{target.name}.{uuid4().hex}")
        try:
            written.write_text(text)
            _sync(written)
            os.link(written, target)  # unlike a rename, it fails when there is one
        except FileExistsError:
            return False
        finally:
            written.unlink(missing_ok=True)
        _sync(target.parent)
        return True

    def move(self, source: str, target: str) -> None:
        behind = self.folder / target
        _make_folder(behind.parent)
        _sync(self.folder / source)
        os.rename(self.folder / source, behind)
        _sync(behind.parent)

    def delete(self, path: str) -> None:
        target = self.folder / path
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)


class HadoopFiles:
    """Where Spark's own file systems reach: HDFS, object stores."""

    def __init__(self, spark: SparkSession, system: Any, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self.place = unquote(self.uri)
        self._jvm: Any = spark._jvm
        self._system = system
        self._gateway: Any = spark.sparkContext._gateway

    def exists(self, path: str = "") -> bool:
        return bool(self._system.exists(self._path(path)))

    def walk(self, path: str) -> Iterator[Found]:
        if not self.exists(path):
            return
        found = self._system.listFiles(self._path(path), True)
        root = self._path("").toUri().getPath().rstrip("/")
        while found.hasNext():
            status = found.next()
            name = status.getPath().toUri().getPath().removeprefix(f"{root}/")
            yield Found(name, status.getLen(), status.getModificationTime())

    def names(self, path: str) -> list[str]:
        if not self.exists(path):
            return []
        return sorted(status.getPath().getName() for status in self._system.listStatus(self._path(path)))

    def read(self, path: str) -> str:
        try:
            stream = self._system.open(self._path(path))
        except SPARK_ERRORS as error:
            if java_class(error).endswith(".FileNotFoundException"):
                raise FileNotFoundError(path) from None
            raise
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()
        finally:
            stream.close()

    def create(self, path: str, text: str) -> bool:
        folder, _, name = path.rpartition("/")
        written = f"{folder}/.{name}.{uuid4().hex}"
        stream = self._system.create(self._path(written), False)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        try:
            return self._rename_to_new(written, path)
        finally:
            with suppress(Exception):  # it is gone if it was renamed, and only litter if not
                self._system.delete(self._path(written), False)

    def move(self, source: str, target: str) -> None:
        self._system.mkdirs(self._path(target).getParent())
        if not self._system.rename(self._path(source), self._path(target)):
            raise OSError(f"{source} could not be moved to {target} in {self.uri}")

    def delete(self, path: str) -> None:
        self._system.delete(self._path(path), True)

    def _path(self, path: str) -> Any:
        root = self._jvm.org.apache.hadoop.fs.Path(self.place)
        # With the dot a colon in the path is not taken for the end of a scheme.
        return self._jvm.org.apache.hadoop.fs.Path(root, f"./{path}") if path else root

    def _rename_to_new(self, source: str, target: str) -> bool:
        choices = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        none = self._gateway.new_array(choices, 1)
        none[0] = choices.NONE
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            self._system.getUri(), self._system.getConf()
        )
        try:
            context.rename(self._path(source), self._path(target), none)
        except SPARK_ERRORS as error:
            if java_class(error).endswith(".FileAlreadyExistsException"):
                return False
            raise
        return True


def _make_folder(path: Path) -> None:
    """With the folders above it, all on the disk."""
    if not path.is_dir():
        _make_folder(path.parent)
        path.mkdir(exist_ok=True)
        _sync(path.parent)


def _sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
