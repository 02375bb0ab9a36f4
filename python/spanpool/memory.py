"""Memory that is shared with the node, and what lies at an address of this process."""
from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import weakref
from typing import NamedTuple, Optional

import numpy as np

PAGE = mmap.PAGESIZE
# What /proc/self/maps says of memory of the host's that has a name there: of a file in memory, without one but shared, or in huge pages.
HOST_PATHS = ("/dev/shm/", "/dev/zero", "/dev/hugepages/")


class Memory:
    """A run of bytes of this process that the node maps too. Its descriptor is kept, so that it can be registered again with a node that
    was started anew. address and length are bytes; buffer is the bytes, writable, as an array of uint8, and keeps the mapping alive.

    Made by Client.allocate and Client.register; it ends with Client.deregister or the client.
    """

    def __init__(self, address: int, length: int, fd: int, off: int, keep: object = None):
        self.address, self.length = address, length
        self.fd = fd  # owned
        # What is registered begins at a page of the file; before is how far inside of that the memory does.
        self.before = off % _block(fd)
        self.off = off - self.before
        self._keep = keep
        self._close = weakref.finalize(self, os.close, fd)

    @property
    def buffer(self) -> np.ndarray:
        return bytes_at(self.address, self.length, self)

    def close(self) -> None:
        """Lets go of the descriptor. Twice is allowed; the client does it."""
        self._close()

    def __repr__(self) -> str:
        return f"Memory(0x{self.address:x}, {self.length} bytes)"


class DeviceMemory(Memory):
    """Memory of a GPU that the node opens by an IPC handle: off bytes into the allocation that the handle names."""

    def __init__(self, address: int, length: int, handle: bytes, device: str, off: int):
        self.address, self.length, self.before, self.off = address, length, 0, off
        self.handle, self.device = handle, device

    @property
    def buffer(self) -> np.ndarray:
        raise TypeError("memory of a GPU has no bytes here")

    def close(self) -> None:
        """Has no descriptor."""


def map_file(fd: int, length: int) -> Memory:
    """Maps a file of the node's, shared. fd is the memory's from now on."""
    try:
        mapping = mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except BaseException:
        os.close(fd)
        raise
    return Memory(ctypes.addressof(ctypes.c_char.from_buffer(mapping)), length, fd, 0, mapping)


def bytes_at(address: int, length: int, owner: object = None) -> np.ndarray:
    """The bytes at an address, not copied. What keeps them mapped is kept as long as the array."""
    array = (ctypes.c_uint8 * length).from_address(address)
    array.owner = owner
    return np.frombuffer(array, dtype=np.uint8)


class Mapping(NamedTuple):
    """A line of /proc/self/maps. device and inode are 0 for memory without a file."""

    begin: int
    end: int
    access: str
    off: int
    device: int
    inode: int
    path: str


def mappings() -> list[Mapping]:
    out = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as f:
        for line in f:
            span, access, off, device, inode, *path = line.rstrip("\n").split(None, 5)
            begin, end = span.split("-")
            major, minor = device.split(":")
            out.append(Mapping(int(begin, 16), int(end, 16), access, int(off, 16), os.makedev(int(major, 16), int(minor, 16)),
                               int(inode), path[0] if path else ""))
    return out


def covering(address: int, length: int) -> Optional[list[Mapping]]:
    """The mappings that [address, address + length) lies in, in order; None when some of it is not mapped."""
    out, at = [], address
    for m in mappings():
        if m.end <= at or at >= address + length:
            continue
        if m.begin > at:
            return None
        out.append(m)
        at = m.end
    return out if length > 0 and at >= address + length else None


def shared_file(address: int, length: int) -> Optional[tuple[int, int]]:
    """A new descriptor of the file that [address, address + length) maps, shared and writable, and the offset of address in it. None when
    the memory is private, or of several files, or when its file cannot be had: then bytes have to be copied."""
    run = covering(address, length)
    if not run:
        return None
    first = run[0]
    for m in run:
        if m.inode == 0 or not m.access.startswith("rw") or m.access[3:4] != "s":
            return None
        if (m.device, m.inode, m.off - m.begin) != (first.device, first.inode, first.off - first.begin):
            return None
    fd = _descriptor(first)
    if fd is None:
        return None
    return fd, address - first.begin + first.off


def is_host(address: int, length: int) -> bool:
    """Whether all of the memory is this host's, readable and writable. A GPU's is mapped from its device, without access, or not at all."""
    run = covering(address, length)
    return bool(run) and all(m.access.startswith("rw") and (m.path.startswith(HOST_PATHS) or not m.path.startswith("/dev/")) for m in run)


def is_mapped(memory: Memory) -> bool:
    """Whether the addresses of memory that was registered are its file's still. Somebody may have unmapped it without a word, and have other
    memory there now: bytes of the file would be taken for that memory's. Of a GPU's nobody can tell."""
    if isinstance(memory, DeviceMemory):
        return True
    run = covering(memory.address, memory.length)
    return bool(run) and all(_is_file(memory.fd, m) and m.off - m.begin == memory.off + memory.before - memory.address for m in run)


def _descriptor(m: Mapping) -> Optional[int]:
    """A new descriptor of the mapping's file: one that this process has open, or by its path, or by its mapping (for root)."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if _is_file(int(name), m) and fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR:
                fd = fcntl.fcntl(int(name), fcntl.F_DUPFD_CLOEXEC, 3)
                if _is_file(fd, m):  # it may have been closed meanwhile
                    return fd
                os.close(fd)
        except OSError:
            continue
    for path in (m.path, f"/proc/self/map_files/{m.begin:x}-{m.end:x}"):
        if not path.startswith("/dev/shm/") and not path.startswith("/proc/"):
            continue
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        if _is_file(fd, m):
            return fd
        os.close(fd)
    return None


def _is_file(fd: int, m: Mapping) -> bool:
    st = os.fstat(fd)
    return st.st_ino == m.inode and st.st_dev == m.device


def _block(fd: int) -> int:
    """The size of the file's pages."""
    return max(os.fstat(fd).st_blksize, 4096)
