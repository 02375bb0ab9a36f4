"""Memory that the node cannot map: its bytes are copied to and from a buffer that it can.

In the buffer, which is bytes, an object's ranges lie one behind the other, at the object's place times each. A Column is one range of all
objects: where it lies in private memory, and where in an object's place.
"""
from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Optional, Sequence, Union

import numpy as np

from spanpool import recognise
from spanpool.errors import CallError
from spanpool.memory import bytes_at


class HostBytes(NamedTuple):
    """Memory of this process's heap."""

    address: int
    length: int


class DeviceBytes(NamedTuple):
    """Memory of a GPU, as a tensor of torch's. index is the device's."""

    address: int
    length: int
    tensor: Any
    index: int


Private = Union[HostBytes, DeviceBytes]


class Column(NamedTuple):
    memory: Private
    addresses: np.ndarray  # of each object, in memory
    length: int
    at: int  # in an object's place


def gather(columns: Sequence[Column], buffer: np.ndarray, each: int) -> None:
    """Copies ranges of objects 0, 1, 2 and so on into the buffer."""
    places = np.arange(len(columns[0].addresses))
    for some in _by_device(columns):
        if isinstance(some[0].memory, DeviceBytes):
            _device_gather(some, buffer, each, places)
        else:
            for c in some:
                _host(c, buffer, each, places, into=True)


def scatter(columns: Sequence[Column], buffer: np.ndarray, each: int, places: np.ndarray) -> None:
    """Copies ranges of the objects at places out of the buffer. They are in their memory when it returns."""
    if not len(places):
        return
    for some in _by_device(columns):
        if isinstance(some[0].memory, DeviceBytes):
            _device_scatter(some, buffer, each, places)
        else:
            for c in some:
                _host(c, buffer, each, places, into=False)


def _by_device(columns: Sequence[Column]) -> list[list[Column]]:
    out: dict[int, list[Column]] = {}
    for c in columns:
        out.setdefault(c.memory.index if isinstance(c.memory, DeviceBytes) else -1, []).append(c)
    return list(out.values())


def _host(c: Column, buffer: np.ndarray, each: int, places: np.ndarray, into: bool) -> None:
    """One pass over the objects in C when their addresses are rows, else one in Python."""
    item = np.dtype((np.void, c.length))
    staged = np.ndarray((int(places.max()) + 1,), item, buffer, c.at, (each,))
    low = int(c.addresses.min())
    rows = recognise.affine(c.addresses[:, None], low)
    if rows is None or rows.stride[0] == 0 and len(places) > 1:
        begin = buffer.ctypes.data + c.at
        for place, a in zip(places.tolist(), c.addresses.tolist()):
            ctypes.memmove(*((begin + place * each, a) if into else (a, begin + place * each)), c.length)
        return
    count, stride = int(rows.row.max()) + 1, int(rows.stride[0])
    base = int(rows.base[0])
    ours = np.ndarray((count,), item, bytes_at(base, (count - 1) * stride + c.length), 0, (stride,))
    if into:
        staged[places] = ours[rows.row]
    else:
        ours[rows.row] = staged[places]


def device_bytes(address: int, length: int, device: int) -> DeviceBytes:
    """Memory of a GPU, which is told from the address when device is below 0."""
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():
        raise CallError("INVALID_ARGUMENT", f"{length} bytes at 0x{address:x} are not memory of this host, and torch sees no GPU")

    class Interface:
        __cuda_array_interface__ = {"shape": (length,), "typestr": "|u1", "data": (address, False), "version": 2}
    tensor = torch.as_tensor(Interface(), device=torch.device("cuda", device) if device >= 0 else "cuda")
    return DeviceBytes(address, length, tensor, tensor.device.index)


def pin(buffer: np.ndarray) -> Optional[Any]:
    """Locks a buffer into place for a GPU's copies, and returns what undoes it; None when it cannot be: copies are slower then."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    runtime, address = torch.cuda.cudart(), buffer.ctypes.data
    if int(runtime.cudaHostRegister(address, buffer.nbytes, 0)) != 0:
        return None
    return lambda: runtime.cudaHostUnregister(address)


def _device_gather(columns: Sequence[Column], buffer: np.ndarray, each: int, places: np.ndarray) -> None:
    """Picks rows on the device, and crosses once."""
    torch, device = _torch(columns[0])
    rows = torch.empty((len(places), each), dtype=torch.uint8, device=device)
    for c in columns:
        part = rows[:, c.at:c.at + c.length]
        view, index = _rows(torch, c)
        part.copy_(view[index])
    host = torch.from_numpy(buffer)[:len(places) * each].view(len(places), each)
    for lo, hi in _runs(columns):  # other columns of the buffer are not of this device
        host[:, lo:hi].copy_(rows[:, lo:hi])
    _wait(torch, device)


def _device_scatter(columns: Sequence[Column], buffer: np.ndarray, each: int, places: np.ndarray) -> None:
    """Crosses once, and spreads rows on the device."""
    torch, device = _torch(columns[0])
    count = int(places.max()) + 1
    rows = torch.from_numpy(buffer)[:count * each].view(count, each).to(device)
    chosen = torch.from_numpy(places).to(device)
    for c in columns:
        view, index = _rows(torch, c)
        view[index] = rows[:, c.at:c.at + c.length][chosen]
    _wait(torch, device)


def _torch(c: Column) -> tuple[Any, Any]:
    import torch
    return torch, c.memory.tensor.device


def _rows(torch: Any, c: Column) -> tuple[Any, Any]:
    """The column's memory as rows of its length, and which of them the objects' are."""
    found = recognise.affine(c.addresses[:, None], int(c.addresses.min()))
    base, stride, row = int(found.base[0]) - c.memory.address, int(found.stride[0]), found.row
    count = int(row.max()) + 1
    view = c.memory.tensor.as_strided((count, c.length), (max(stride, 1), 1), base)
    return view, torch.from_numpy(np.ascontiguousarray(row)).to(c.memory.tensor.device)


def _runs(columns: Sequence[Column]) -> list[tuple[int, int]]:
    """The parts of an object's place that the columns fill."""
    out: list[tuple[int, int]] = []
    for lo, hi in sorted((c.at, c.at + c.length) for c in columns):
        if out and out[-1][1] == lo:
            out[-1] = (out[-1][0], hi)
        else:
            out.append((lo, hi))
    return out


def _wait(torch: Any, device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
