"""Handles by which another process opens a GPU's memory: of the runtime that this process has loaded already, by ctypes."""
from __future__ import annotations

import ctypes
import re
from typing import Any, NamedTuple, Optional

from spanpool.errors import CallError
from spanpool.memory import mappings

HANDLE_BYTES = 64
DEVICE_ORDINAL = 9  # {CU_,HIP_}POINTER_ATTRIBUTE_DEVICE_ORDINAL


class Lent(NamedTuple):
    """What RegisterDevice takes: the handle of an allocation, the device at a PCI address, and where in the allocation the memory begins."""

    handle: bytes
    device: str
    off: int


class Runtime(NamedTuple):
    """The four functions of a runtime. Each returns 0 for success."""

    ordinal: Any  # (int *out, int attribute, void *p)
    allocation: Any  # (void **base, size_t *bytes, void *p)
    handle: Any  # (char handle[64], void *p)
    address: Any  # (char *out, int bytes, int device): "0000:c1:00.0"


NAMES = {
    re.compile(r"/libamdhip64\.so"): ("hipPointerGetAttribute", "hipMemGetAddressRange", "hipIpcGetMemHandle", "hipDeviceGetPCIBusId"),
    re.compile(r"/libcuda\.so"): ("cuPointerGetAttribute", "cuMemGetAddressRange_v2", "cuIpcGetMemHandle", "cuDeviceGetPCIBusId"),
}


def runtime() -> Optional[Runtime]:
    """The runtime that is loaded, or None."""
    for path in {m.path for m in mappings()}:
        for pattern, names in NAMES.items():
            if pattern.search(path):
                library = ctypes.CDLL(path)
                return Runtime(*(getattr(library, n) for n in names))
    return None


def lend(r: Runtime, address: int, nbytes: int) -> Lent:
    """The handle of device memory. It has to lie in one allocation, which is not so with torch's expandable segments."""
    ordinal, base, size = ctypes.c_int(-1), ctypes.c_void_p(0), ctypes.c_size_t(0)
    handle, name, p = ctypes.create_string_buffer(HANDLE_BYTES), ctypes.create_string_buffer(64), ctypes.c_void_p(address)
    _check("device of the address", r.ordinal(ctypes.byref(ordinal), DEVICE_ORDINAL, p))
    _check("allocation of the address", r.allocation(ctypes.byref(base), ctypes.byref(size), p))
    begin = base.value or 0
    if not begin <= address or address + nbytes > begin + size.value:
        raise CallError("INVALID_ARGUMENT", f"{nbytes} bytes at 0x{address:x} are not in one allocation: it has {size.value} at 0x{begin:x}")
    _check("handle of the allocation", r.handle(handle, ctypes.c_void_p(begin)))
    _check("PCI address of the device", r.address(name, len(name), ordinal))
    return Lent(handle.raw, name.value.decode().lower(), address - begin)


def _check(what: str, code: int) -> None:
    if code != 0:
        raise CallError("INVALID_ARGUMENT", f"{what}: the GPU's runtime says {code}")
