"""Coded rows in a file that agrees with the last checkpoint at any moment.

Rows are read and written one by one, not mapped into memory: a full disk is an error and not a crash,
and what a process has read stays in the system's cache and out of its own memory.
"""

import contextlib
import os
import secrets
import struct
import tempfile
import weakref
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fedstale.core import Ids, require
from fedstale.memory.rows import Codes

MARK = b"fedstale"
HEADER = struct.Struct("<8sQQQ")  # mark, bytes of a row, the epoch that is protected, the epoch that writes
FIRST = 4096  # where the first row begins


class File:
    """Rows in a file of their own in `folder`, made at the first write.

    A row that changes for the first time after a checkpoint moves to a free place, and the place that
    the checkpoint knows is free after the next one. So a kill at any moment leaves every row of the last
    checkpoint where it was, and only rows that change are written. The places and checksums of the rows are
    all that a checkpoint holds. An epoch is the time between two checkpoints: the file names the one that it
    protects and the one that writes, so that a run never reads rows that another has changed since.

    A file that no checkpoint knows is removed with its object. A pickled or copied object carries its
    rows and gets a file of its own.
    """

    def __init__(self, folder: str, n: int, d: int, dtype: Any) -> None:
        self.folder, self.d, self.dtype, self.name, self.fd = folder, d, np.dtype(dtype), "", -1
        self.size = d * self.dtype.itemsize  # bytes of a row
        self.index: Ids = np.full(n, -1, np.int64)  # (n,) the place of each client's row
        self.moved = np.zeros(n, np.bool_)  # since the last checkpoint
        self.checksums = np.zeros(n, np.uint32)  # (n,) CRC-32 of each row
        self.free: list[int] = []
        self.left: list[int] = []  # places that the last checkpoint needs and nobody else
        self.end = 0
        self.protected = self.epoch = 0
        self.writing = False
        self.scratch: Codes = np.zeros((0, d), self.dtype)

    def take(self, clients: Ids) -> tuple[Codes, Ids]:
        """A copy of the codes of these rows, one after the other."""
        if len(self.scratch) < len(clients):
            self.scratch = np.empty((len(clients), self.d), self.dtype)
        for row, place in zip(self.scratch, self.index[clients].tolist(), strict=False):
            self._read(row, place)
        return self.scratch[: len(clients)], np.arange(len(clients))

    def put(self, clients: Ids, codes: Codes) -> None:
        """Write the rows of these clients, each to the place that no checkpoint needs."""
        self._claim()
        for row, i in zip(codes, clients.tolist(), strict=True):
            if not self.moved[i]:
                if self.index[i] >= 0:
                    self.left.append(int(self.index[i]))
                if not self.free:
                    self.free, self.end = [self.end], self.end + 1
                self.index[i], self.moved[i] = self.free.pop(), True
            data = row.view(np.uint8).data
            self.checksums[i] = zlib.crc32(data)  # a third of the time that the write takes
            self._write(data, FIRST + int(self.index[i]) * self.size)

    def read(self, client: int) -> Codes:
        """(d,) the codes of one row, a copy."""
        row = np.empty(self.d, self.dtype)
        self._read(row, int(self.index[client]))
        return row

    def saved(self) -> dict[str, Any]:
        """What the checkpoint holds; the rows are on the disk when this returns."""
        if self.fd >= 0:
            os.fsync(self.fd)
            self.remove.detach()
        self.free += self.left
        self.left, self.writing = [], False
        self.moved[:] = False
        names = ("index", "checksums", "name", "protected", "epoch")
        return {name: vars(self)[name] for name in names}

    def restored(self, saved: dict[str, Any]) -> "File":
        """The rows that a checkpoint knows, every one compared with its checksum."""
        file = File(self.folder, len(saved["index"]), self.d, self.dtype)
        file.index[:], file.end = saved["index"], int(saved["index"].max(initial=-1)) + 1
        file.checksums[:] = saved["checksums"]
        used = file.index[file.index >= 0]
        file.free = np.setdiff1d(np.arange(file.end), used, assume_unique=True)[::-1].tolist()
        file.protected, file.epoch, file.name = saved["protected"], saved["epoch"], saved["name"]
        if file.name:
            path = Path(file.folder) / file.name
            require(path.exists(), f"the checkpoint needs {path}, which is not there")
            file._opened(os.open(path, os.O_RDWR))
            file.remove.detach()
            file._check()
            for i in np.flatnonzero(file.index >= 0).tolist():
                sound = zlib.crc32(file.read(i).view(np.uint8).data) == file.checksums[i]
                require(sound, f"{path} was damaged: the row of client {i} is not the one of the checkpoint")
        return file

    def __reduce__(self) -> Any:
        clients = np.flatnonzero(self.index >= 0)
        return File, (self.folder, len(self.index), self.d, self.dtype), (clients, self.take(clients)[0])

    def __setstate__(self, state: tuple[Ids, Codes]) -> None:
        if len(state[0]):
            self.put(*state)

    def _claim(self) -> None:
        """Make sure that the file is ours, as it was left; after a checkpoint, begin an epoch."""
        if not self.name:
            Path(self.folder).mkdir(parents=True, exist_ok=True)
            fd, path = tempfile.mkstemp(".rows", "memory-", self.folder)
            self.name = Path(path).name
            self._opened(fd)
        else:
            self._check()
        if not self.writing:
            self.protected, self.epoch, self.writing = self.epoch, secrets.randbits(63), True
            self._write(memoryview(HEADER.pack(MARK, self.size, self.protected, self.epoch)), 0)

    def _check(self) -> None:
        """Raise unless nobody wrote since our last write, or what was written is not in any checkpoint."""
        found = os.pread(self.fd, HEADER.size, 0)
        where = f"{Path(self.folder) / self.name}"
        sound = len(found) == HEADER.size and os.fstat(self.fd).st_size >= FIRST + self.end * self.size
        require(sound, f"{where} was cut off")
        mark, size, protected, epoch = HEADER.unpack(found)
        require((mark, size) == (MARK, self.size), f"{where} is not a file of rows of {self.size} bytes")
        ours = (protected, epoch) == (self.protected, self.epoch) or (not self.writing and protected == self.epoch)
        require(ours, f"{where} was changed by another run, or after a newer checkpoint than this one")

    def _opened(self, fd: int) -> None:
        """Close the file with this object, and remove it unless a checkpoint comes to know it."""
        self.fd = fd
        weakref.finalize(self, os.close, fd)
        self.remove = weakref.finalize(self, _remove, str(Path(self.folder) / self.name), os.getpid())

    def _read(self, row: Codes, place: int) -> None:
        if place < 0:
            row[:] = 0
        else:
            got = os.preadv(self.fd, [row.view(np.uint8).data], FIRST + place * self.size)
            require(got == self.size, f"{Path(self.folder) / self.name} was cut off")

    def _write(self, data: memoryview, offset: int) -> None:
        while data:  # a large row may take several writes
            done = os.pwrite(self.fd, data, offset)
            data, offset = data[done:], offset + done


def _remove(path: str, process: int) -> None:
    if os.getpid() == process:  # a forked process has a copy of the object, not a file of its own
        with contextlib.suppress(OSError):
            os.unlink(path)
