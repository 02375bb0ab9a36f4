"""Memory that the node cannot map: its bytes are copied to and from a buffer that it can."""
from __future__ import annotations

import ctypes
from typing import Any, Optional, Protocol

import numpy as np

from spanpool.errors import CallError
from spanpool.memory import bytes_at


class Private(Protocol):
    """Copies length bytes between each of the addresses, in this memory, and its place in a buffer: the i-th address's is at + place * each,
    with place i, or places[i] when they are given."""

    def gather(self, addresses: np.ndarray, length: int, buffer: np.ndarray, at: int, each: int) -> None:
        """Into the buffer."""

    def scatter(self, addresses: np.ndarray, length: int, buffer: np.ndarray, at: int, each: int, places: np.ndarray) -> None:
        """Out of the buffer."""


class HostBytes:
    """Memory of this process's heap."""

    def __init__(self, address: int, nbytes: int):
        self.address, self.nbytes = address, nbytes

    def gather(self, addresses: np.ndarray, length: int, buffer: np.ndarray, at: int, each: int) -> None:
        begin = buffer.ctypes.data + at
        for i, a in enumerate(addresses.tolist()):
            ctypes.memmove(begin + i * each, a, length)

    def scatter(self, addresses: np.ndarray, length: int, buffer: np.ndarray, at: int, each: int, places: np.ndarray) -> None:
        begin = buffer.ctypes.data + at
        for i, a in zip(places.tolist(), addresses.tolist()):
            ctypes.memmove(a, begin + i * each, length)


class DeviceBytes:
    """Memory of a GPU, through torch. One copy crosses to or from the device for a range of all keys; rows are picked on the device."""

    def __init__(self, address: int, nbytes: int, device: int):
        torch = _torch()
        if torch is None or not torch.cuda.is_available():
            raise CallError("INVALID_ARGUMENT", f"{nbytes} bytes at 0x{address:x} are not memory of this host, and torch sees no GPU")
        self.address, self.nbytes = address, nbytes
        self.torch = torch
        self.bytes = _tensor(torch, address, nbytes, device)

    def gather(self, addresses: np.ndarray, length: int, buffer: np.ndarray, at: int, each: int) -> None:
        rows = self._rows(addresses, length)
        host = self.torch.from_numpy(buffer)[:at + len(addresses) * each]
        out = host.as_strided((len(addresses), length), (each, 1), at)
        out.copy_(self.bytes[rows])

    def scatter(self, addresses: np.ndarray, length: int, buffer: np.ndarray, at: int, each: int, places: np.ndarray) -> None:
        if not len(addresses):
            return
        host = self.torch.from_numpy(buffer).as_strided((int(places.max()) + 1, length), (each, 1), at)
        picked = host[self.torch.from_numpy(places)].to(self.bytes.device)
        self.bytes[self._rows(addresses, length)] = picked
        self.torch.cuda.synchronize(self.bytes.device)  # the caller is told that the bytes are there

    def _rows(self, addresses: np.ndarray, length: int) -> Any:
        """The places of every byte in this memory."""
        begin = self.torch.from_numpy(addresses - self.address).to(self.bytes.device)
        return begin[:, None] + self.torch.arange(length, device=self.bytes.device)[None, :]


def _torch() -> Optional[Any]:
    try:
        import torch
    except ImportError:
        return None
    return torch


def _tensor(torch: Any, address: int, nbytes: int, device: int) -> Any:
    """The memory as a tensor of bytes, not copied."""
    class Interface:
        __cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 2}
    return torch.as_tensor(Interface(), device=torch.device("cuda", device) if device >= 0 else "cuda")
