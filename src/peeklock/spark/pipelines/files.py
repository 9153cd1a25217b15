"""Access to the files of one folder, on this machine or on storage that Spark can write to.

Paths are relative to the folder. The commit log relies on two guarantees: `create` never replaces a file, and a file is
created as a whole or not at all. On this machine, created and moved files are synced when the call returns. On other
storage the file system decides on syncing, and on two concurrent creations of one file. Only this module requires the
driver's Java, through which Spark reaches other storage; folders of this machine do not need it.
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
    """A file in the folder."""

    path: str
    size: int
    modified_ms: int


class Files(Protocol):
    """The files of a folder."""

    uri: str
    """The URI of the folder, escaped, without a slash at the end."""
    place: str
    """The URI of the folder, not escaped, as Spark's readers and writers require it."""

    def exists(self, path: str = "") -> bool: ...
    def walk(self, path: str) -> Iterator[Found]:
        """All files below a folder; none if the folder does not exist."""

    def names(self, path: str) -> list[str]: ...
    def read(self, path: str) -> str: ...
    def create(self, path: str, text: str) -> bool:
        """Create a file. Returns False, and changes nothing, if it exists."""

    def move(self, source: str, target: str) -> None: ...
    def delete(self, path: str) -> None:
        """Delete a file or a folder, if it exists."""


def files_of(spark: SparkSession, folder: str) -> Files:
    """Open a folder by path or URI. Spark decides which storage a path without a scheme is on.

    A client of Spark Connect has no access to the driver's Java, and so only to folders of this machine.
    """
    if is_connect(spark):
        address = urlsplit(folder)
        if address.scheme not in ("", "file"):
            raise ValueError(f"{folder} is not a folder of this machine; Spark Connect requires one")
        return LocalFiles(Path(unquote(address.path) if address.scheme else folder))
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(folder)
    system = path.getFileSystem(spark._jsc.hadoopConfiguration())
    uri = str(system.makeQualified(path).toUri())
    if urlsplit(uri).scheme == "file":
        return LocalFiles(Path(unquote(urlsplit(uri).path)))
    return HadoopFiles(spark, system, uri)


class LocalFiles:
    """The files of a folder on this machine."""

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
            os.link(written, target)  # unlike a rename, a link fails if the target exists
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
    """The files of a folder on a Hadoop file system, such as HDFS or an object store."""

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
            with suppress(Exception):  # renamed files do not exist, and a remaining file does no harm
                self._system.delete(self._path(written), False)

    def move(self, source: str, target: str) -> None:
        self._system.mkdirs(self._path(target).getParent())
        if not self._system.rename(self._path(source), self._path(target)):
            raise OSError(f"{source} could not be moved to {target} in {self.uri}")

    def delete(self, path: str) -> None:
        self._system.delete(self._path(path), True)

    def _path(self, path: str) -> Any:
        root = self._jvm.org.apache.hadoop.fs.Path(self.place)
        # Without the dot, Hadoop takes a colon in the path for the end of a scheme.
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
    """Create a folder and its parents, and sync them."""
    if not path.is_dir():
        _make_folder(path.parent)
        path.mkdir(exist_ok=True)
        _sync(path.parent)


def _sync(path: Path) -> None:
    """Sync a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
