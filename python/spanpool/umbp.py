"""What SGLang's UMBPDirectLinker and vLLM's connector call, answered by the node of this host.

install() (or the folder python/shim on PYTHONPATH) puts this module where those look for it: mori.umbp. The node's socket comes from
UMBP_STANDALONE_ADDRESS or the config; the namespace, which the engine does not name, from SPANPOOL_NAMESPACE or the config, and there is
no default: engines whose bytes differ (model, dtype, page size, tensor parallel size) would meet under one key.

Nothing here raises into an engine's thread once the client is made: what fails is False, counted (UMBPClient.counts) and logged once per
kind. Every call ends within its bound: exists_timeout, or call_timeout and, when the node gave no answer, quiet_timeout besides.
"""
from __future__ import annotations

import bisect
import enum
import logging
import os
import sys
import threading
import time
import types
import weakref
from collections import Counter
from contextlib import contextmanager
from operator import index
from typing import Any, Iterator, NamedTuple, Optional, Sequence

import numpy as np

from spanpool import ipc, loads, recognise
from spanpool.client import (BUSY, DEFAULT_SOCKET, SUCCESS, Client, Existence, Handle, Lists, Pattern, Placed, Runs, encode,
                             status_name)
from spanpool.engine.v1 import engine_pb2 as pb
from spanpool.errors import CallError, GoneError, LimitError, NotQuietError, SpanpoolError, UnavailableError
from spanpool.link import Deadline
from spanpool.memory import Memory, is_host, is_mapped, shared_file
from spanpool.private import Column, HostBytes, Private, device_bytes, gather, pin, scatter

__all__ = ["UMBPClient", "UMBPConfig", "UMBPDeploymentMode", "UMBPRole", "UMBPStandaloneProcessConfig"]

log = logging.getLogger("spanpool.umbp")

HOLD = 2.0  # seconds for which what exists finds is kept; the node cuts it to its own bound
BREAK = 1.0  # seconds for which exists answers False at once after it got no answer: the scheduler waits for it
STAGE_BYTES = 64 << 20  # of a buffer for private memory; arbitrary: the cost of a call does not show
STAGES = 4  # buffers at a time: the load thread's, the offload thread's, and room
KEY_BYTES = 512  # a key's most
RECENT = 8  # lists of keys that are known again by comparing; arbitrary, above what a group is cut into
PUT_WAIT = 5.0  # seconds for which a put waits for another writer of its key; the most that nodes allow
RETRY_FOR, RETRY_FIRST = 2.0, 0.01  # seconds for which keys are asked for again, and the first pause, which doubles
RETRIED = frozenset((BUSY, pb.KEY_STATUS_LATE, pb.KEY_STATUS_TRANSFER_FAILED))


class UMBPRole(enum.Enum):
    """The role of a client of the reference; here it is always Standalone."""

    Standalone = 0
    SharedSSDLeader = 1
    SharedSSDFollower = 2


class UMBPDeploymentMode(enum.Enum):
    """Where the pool is; here it is always StandaloneProcess."""

    Local = 0
    Distributed = 1
    StandaloneProcess = 2


class UMBPStandaloneProcessConfig:
    """Where the node is. It is never started from here."""

    def __init__(self) -> None:
        self.address = ""
        self.auto_start = False
        self.startup_timeout_ms = 30000


class UMBPConfig:
    """What engines fill in. The node has its own configuration: dram, ssd, copy_pipeline, eviction and distributed can be assigned and
    are not used. Ours besides: namespace."""

    def __init__(self) -> None:
        self.role = UMBPRole.Standalone
        self.dram, self.ssd = types.SimpleNamespace(), types.SimpleNamespace()
        self.copy_pipeline, self.eviction = types.SimpleNamespace(), types.SimpleNamespace()
        self.distributed: Any = None
        self.standalone_process: Optional[UMBPStandaloneProcessConfig] = None
        self.namespace = os.environ.get("SPANPOOL_NAMESPACE", "")

    @classmethod
    def from_environment(cls) -> "UMBPConfig":
        config = cls()
        address = os.environ.get("UMBP_STANDALONE_ADDRESS", "")
        if address:
            config.standalone_process = UMBPStandaloneProcessConfig()
            config.standalone_process.address = address
        return config


class _Region(NamedTuple):
    """What an engine registered: memory that the node maps too, or private memory whose bytes are copied here."""

    address: int
    length: int
    shared: Optional[Memory]
    private: Optional[Private]

    def holds(self, lo: int, hi: int) -> bool:
        return self.address <= lo and hi <= self.address + self.length

    def overlaps(self, lo: int, hi: int) -> bool:
        return self.address < hi and lo < self.address + self.length


class _Ask(NamedTuple):
    """Some keys of a call, as one part of a request. places are theirs in the call; reads is the session that they are read in."""

    places: Sequence[int]
    part: Placed
    nbytes: int
    ranges: int
    low: int  # the first byte of an object that is asked for
    reads: Optional[loads.Reads]


class _Lists(NamedTuple):
    """An engine's call. objects are the sizes of the objects, for puts."""

    keys: Sequence[str]
    ptrs: Sequence[Sequence[int]]
    sizes: Sequence[Sequence[int]]
    offsets: Sequence[Sequence[int]]
    objects: Optional[Sequence[int]]

    def choose(self, places: Sequence[int]) -> "_Lists":
        return _Lists(*(None if column is None else [column[i] for i in places] for column in self))


class _Work:
    """One attempt at a call of the engine's: what became of each key so far, and what is to be asked for. entered are sessions in use."""

    def __init__(self, op: str, call: _Lists, status: list[int], deadline: Deadline, limits: pb.Limits):
        self.op, self.call, self.status, self.deadline, self.limits = op, call, status, deadline, limits
        # Three threads share the client's bytes in flight.
        self.bytes, self.ranges, self.keys = _quarter(limits.bytes_in_flight), _quarter(limits.ranges), _quarter(limits.keys)
        self.asks: list[_Ask] = []
        self.entered: list[loads.Session] = []

    def calls(self) -> Iterator[list[_Ask]]:
        """What is asked for, in calls within the limits, each of one session."""
        by: dict[int, list[_Ask]] = {}
        for ask in self.asks:
            by.setdefault(0 if ask.reads is None else ask.reads.session.number, []).append(ask)
        for asks in by.values():
            some: list[_Ask] = []
            nbytes = ranges = keys = 0
            for ask in asks:
                nbytes, ranges, keys = nbytes + ask.nbytes, ranges + ask.ranges, keys + len(ask.places)
                if some and (nbytes > self.bytes or ranges > self.ranges or keys > self.keys):
                    yield some
                    some, nbytes, ranges, keys = [], ask.nbytes, ask.ranges, len(ask.places)
                some.append(ask)
            yield some


class _Generation:
    """Keys of one handle: their places in it, and the rows that were named with them. A key's place is set last."""

    def __init__(self) -> None:
        self.handle, self.places, self.nbytes = Handle(), {}, 0  # type: Handle, dict[str, int], int
        self.rows = np.zeros(1024, dtype=np.int64)

    def find(self, keys: Sequence[str]) -> np.ndarray:
        """Raises KeyError when a key was never named."""
        return np.fromiter(map(self.places.__getitem__, keys), dtype=np.int64, count=len(keys))

    def add(self, fresh: dict[str, int], nbytes: int) -> None:
        first, rows = len(self.handle.names), list(fresh.values())
        if first + len(rows) > len(self.rows):
            grown = np.zeros(max(2 * len(self.rows), first + len(rows)), dtype=np.int64)
            grown[:first] = self.rows[:first]
            self.rows = grown
        self.rows[first:first + len(rows)] = rows
        self.handle.append(list(fresh), rows)
        self.nbytes += nbytes
        self.places.update((k, first + i) for i, k in enumerate(fresh))


class _Named:
    """Keys of a call, found: their places in a generation, the rows that were named with them, and the runs that they make up."""

    def __init__(self, generation: _Generation, places: np.ndarray):
        self.generation, self.places, self.rows = generation, places, generation.rows[places]
        first, count = recognise.runs(places)
        self.runs = Runs(generation.handle, first.tolist(), count.tolist())


class _Names:
    """Keys that were named once, for all threads. One of three generations grows; the oldest is dropped when there is a fourth: a call
    that is under way may use the one before."""

    def __init__(self, client: Client):
        self._client = client
        self._lock = threading.Lock()
        self._now, self._old = _Generation(), []  # type: _Generation, list[_Generation]
        self._recent: tuple[tuple[list[str], _Named], ...] = ()  # replaced whole; lists of the groups before

    def find(self, keys: Sequence[str]) -> Optional[_Named]:
        """Keys that were named before; None when one was not. It waits for nothing."""
        now, n = self._now, len(keys)
        for known, named in self._recent:
            if len(known) == n and named.generation is now and known == keys:
                return named
        try:
            found = _Named(now, now.find(keys))
        except (KeyError, TypeError):  # a list is no key, and has no hash
            return None
        if n:
            self._recent = ((list(keys), found), *self._recent[:RECENT - 1])
        return found

    def name(self, keys: Sequence[str], rows: np.ndarray, limits: pb.Limits) -> Optional[_Named]:
        """Names those of the keys that are not, and finds all. None when the node has no room for so many."""
        room_keys, room_bytes = _quarter(limits.handle_keys), _quarter(limits.handle_bytes)
        drop: list[_Generation] = []
        with self._lock:
            now = self._now
            fresh, nbytes = _fresh(keys, rows, now.places)
            if len(now.places) + len(fresh) > room_keys or now.nbytes + nbytes > room_bytes:
                fresh, nbytes = _fresh(keys, rows, {})
                if len(fresh) > room_keys or nbytes > room_bytes:
                    return None
                drop, self._old = self._old[:-1], [*self._old[-1:], now]
                self._now = now = _Generation()
            now.add(fresh, nbytes)
            found = _Named(now, now.find(keys))
        for old in drop:
            try:
                self._client.drop(old.handle)
            except SpanpoolError:
                pass  # it goes with the client
        return found


def _fresh(keys: Sequence[str], rows: np.ndarray, places: dict[str, int]) -> tuple[dict[str, int], int]:
    """Keys that have no place, with their rows, and the bytes of their names."""
    fresh = {k: int(r) for k, r in zip(keys, rows) if k not in places}
    return fresh, sum(len(encode(k)) for k in fresh)


class _Stages:
    """Buffers that are shared with the node, for private memory."""

    def __init__(self, client: Client):
        self._client = client
        self._lock = threading.Condition()
        self._free: list[Memory] = []
        self._made = 0
        self.pinned = False  # for copies of a GPU

    @contextmanager
    def one(self, nbytes: int, deadline: Deadline) -> Iterator[Memory]:
        """A buffer of at least so many bytes. After NotQuietError it is left to whoever may still write it."""
        if nbytes > STAGE_BYTES:
            with self._large(nbytes) as memory:
                yield memory
            return
        memory = self._take(deadline)
        try:
            yield memory
        except NotQuietError:
            self._give(None)
            raise
        except BaseException:
            self._give(memory)
            raise
        self._give(memory)

    @contextmanager
    def _large(self, nbytes: int) -> Iterator[Memory]:
        memory = self._client.allocate(nbytes)
        try:
            yield memory
        except NotQuietError:
            raise
        except BaseException:
            self._client.deregister(memory)
            raise
        self._client.deregister(memory)

    def _take(self, deadline: Deadline) -> Memory:
        with self._lock:
            if not self._lock.wait_for(lambda: self._free or self._made < STAGES, deadline.left()):
                raise LimitError(f"no buffer for private memory within the call's time; there are {STAGES} of {STAGE_BYTES} bytes")
            if self._free:
                return self._free.pop()
            self._made += 1
        try:
            memory = self._client.allocate(STAGE_BYTES)
        except BaseException:
            self._give(None)
            raise
        if self.pinned:
            undo = pin(memory.buffer)
            if undo is not None:
                weakref.finalize(memory, undo)
        return memory

    def _give(self, memory: Optional[Memory]) -> None:
        with self._lock:
            if memory is None:
                self._made -= 1
            else:
                self._free.append(memory)
            self._lock.notify()


class UMBPClient:
    """The reference's client over a node of spanpool. Threads may share it; close is optional, its end does the same."""

    def __init__(self, config: Optional[UMBPConfig] = None):
        config = config or UMBPConfig.from_environment()
        process = config.standalone_process
        address = process.address if process is not None and process.address else os.environ.get("UMBP_STANDALONE_ADDRESS", "")
        namespace = getattr(config, "namespace", "") or os.environ.get("SPANPOOL_NAMESPACE", "")
        if not namespace:
            raise ValueError("no namespace: set SPANPOOL_NAMESPACE to what `python3 -m spanpool.keys --model ... --dtype ... --page-size ... --tp-size ...` prints, "
                             "or engines whose bytes differ would meet under one key")
        if address and not address.startswith(("unix:", "/", ".")):
            raise ValueError(f"address {address!r}: want the node's Unix socket, as unix:///run/spanpool/engine.sock; the node is on this host")
        self.exists_timeout = _seconds("SPANPOOL_EXISTS_TIMEOUT", 1.0)
        self.call_timeout = _seconds("SPANPOOL_CALL_TIMEOUT", 10.0)
        self.client = Client(address or os.environ.get("SPANPOOL_SOCKET", DEFAULT_SOCKET), namespace, name=f"umbp {os.getpid()}",
                             timeout=self.call_timeout, quiet_timeout=_seconds("SPANPOOL_QUIET_TIMEOUT", 10.0))
        self.counts: Counter = Counter()  # what was False, by kind
        self._lock = threading.Condition()  # counts, regions, active
        self._regions: tuple[tuple[int, ...], tuple[_Region, ...]] = ((), ())  # addresses, ascending, and what is there; replaced whole
        self._first = 0  # the address that was registered first
        self._active: set[object] = set()  # calls that may use regions
        self._silent_until = 0.0
        self._names, self._stages, self._loads = _Names(self.client), _Stages(self.client), loads.Loads(self.client)
        self._await(process.startup_timeout_ms / 1000 if process is not None else self.call_timeout)

    def _await(self, seconds: float) -> None:
        """Waits for the node, which may be starting."""
        deadline = Deadline(seconds)
        pause = threading.Event()
        while True:
            try:
                self.client.connect(deadline.left())
                return
            except UnavailableError as e:
                if deadline.over():
                    raise RuntimeError(f"no spanpool node within {seconds:g} s: {e}") from None
            pause.wait(min(0.05, deadline.left()))

    # What the client is.

    def supports_ranged_io(self) -> bool:
        return True

    def get_deployment_mode(self) -> UMBPDeploymentMode:
        return UMBPDeploymentMode.StandaloneProcess

    def get_backend_mode(self) -> UMBPDeploymentMode:
        return UMBPDeploymentMode.Local

    def is_distributed(self) -> bool:
        return False

    def flush(self) -> bool:
        """Nothing is pending: a put that was answered is stored."""
        return True

    def close(self) -> None:
        self._loads.close()
        self.client.close()

    # Memory.

    def register_memory(self, ptr: int, nbytes: int, location: Any = None, device: int = -1) -> bool:
        """Memory that maps a memfd or a file of a tmpfs is shared with the node. Other memory of the host is copied once on its way, memory
        of a GPU too. What is registered already is no error; what was, and has other memory at its addresses now, is let go of first."""
        try:
            ptr, nbytes = int(ptr), int(nbytes)
            if ptr <= 0 or nbytes <= 0:
                raise CallError("INVALID_ARGUMENT", f"{nbytes} bytes at address {ptr}")
            gone = [r for r in self._regions[1] if r.overlaps(ptr, ptr + nbytes) and r.shared is not None and not is_mapped(r.shared)]
            if gone:
                self._let_go(gone)
            if any(r.address == ptr and r.length == nbytes for r in self._regions[1]):
                return True
            try:
                region = self._region(ptr, nbytes, location, device)
            except UnavailableError:  # it may be starting, and there is no hurry
                self._await(self.call_timeout)
                region = self._region(ptr, nbytes, location, device)
            with self._lock:
                if not self._regions[1]:
                    self._first = ptr
                self._replace([*self._regions[1], region])
            return True
        except Exception as e:
            self._failed("register", e)
            return False

    def _region(self, ptr: int, nbytes: int, location: Any, device: int) -> _Region:
        if not is_host(ptr, nbytes):
            lent = self._lend(ptr, nbytes)
            if lent is not None:
                return _Region(ptr, nbytes, lent, None)
            self._stages.pinned = True
            return _Region(ptr, nbytes, None, device_bytes(ptr, nbytes, device))
        found = shared_file(ptr, nbytes)
        if found is None:
            self._note("memory is private, and is copied")
            return _Region(ptr, nbytes, None, HostBytes(ptr, nbytes))
        fd, off = found
        try:
            return _Region(ptr, nbytes, self.client.register(ptr, nbytes, fd, off), None)
        finally:
            os.close(fd)

    def _lend(self, ptr: int, nbytes: int) -> Optional[Memory]:
        """Memory of a GPU that the node opens, or None where that cannot be."""
        if not self.client.connect().abilities.device_ipc:
            return None
        runtime = ipc.runtime()
        if runtime is None:
            return None
        try:
            return self.client.register_device(ptr, nbytes, *ipc.lend(runtime, ptr, nbytes))
        except (CallError, LimitError) as e:
            self._note("memory of a GPU is not lent, and is copied", 1, e)
            return None

    def deregister_memory(self, ptr: int) -> bool:
        """Returns when no call touches the memory. The address that was registered first stands for all that is registered. Memory that
        is not registered is no error."""
        try:
            self._let_go([r for r in self._regions[1] if ptr in (r.address, self._first)])
            return True
        except Exception as e:
            self._failed("deregister", e)
            return False

    def _let_go(self, gone: list[_Region]) -> None:
        """Returns when no call touches the regions, which later calls do not find."""
        with self._lock:
            self._replace([r for r in self._regions[1] if r not in gone])
            active = set(self._active)
            if not self._lock.wait_for(lambda: not active & self._active, self.call_timeout + self.client.quiet_timeout):
                raise NotQuietError("calls are still under way")
        for r in gone:
            if r.shared is not None:
                self.client.deregister(r.shared)

    def _replace(self, regions: list[_Region]) -> None:
        regions.sort(key=lambda r: r.address)
        self._regions = tuple(r.address for r in regions), tuple(regions)

    @contextmanager
    def _using(self) -> Iterator[None]:
        token = object()
        with self._lock:
            self._active.add(token)
        try:
            yield
        finally:
            with self._lock:
                self._active.discard(token)
                self._lock.notify_all()

    def _at(self, lo: int, hi: int) -> Optional[_Region]:
        """The region that [lo, hi) lies in."""
        addresses, regions = self._regions
        i = bisect.bisect_right(addresses, lo) - 1
        if i >= 0 and regions[i].holds(lo, hi):
            return regions[i]
        return next((r for r in regions if r.holds(lo, hi)), None)  # they may overlap

    # Keys.

    def batch_exists(self, keys: Sequence[str]) -> list[bool]:
        """Which keys are here or at a peer. What is found is kept for a short time, so that the load that follows finds it too."""
        keys = self._list("exists", keys)
        found = self._exists(keys, leading_only=False)
        return found.found if found is not None else [False] * len(keys)

    def batch_exists_consecutive(self, keys: Sequence[str]) -> int:
        """How many keys from the first on exist without a gap."""
        found = self._exists(self._list("exists", keys), leading_only=True)
        return found.leading if found is not None else 0

    def exists(self, key: str) -> bool:
        return self.batch_exists([key])[0]

    def _list(self, op: str, keys: Any) -> Sequence[str]:
        """The keys as a list, which what is none is not of any."""
        if isinstance(keys, (list, tuple)):
            return keys
        try:
            return list(keys)
        except Exception as e:
            self._failed(op, e)
            return []

    def _exists(self, keys: Sequence[str], leading_only: bool) -> Optional[Existence]:
        try:
            if not keys:
                return None
            if time.monotonic() < self._silent_until:
                self._count("exists: the node did not answer a moment ago")
                return None
            deadline = Deadline(self.exists_timeout)
            named = self._names.find(keys)
            if named is not None:
                return self._found(named.runs, len(keys), leading_only, deadline)
            good = [i for i, k in enumerate(keys) if _is_key(k)]
            if len(good) == len(keys):
                return self._found(keys, len(keys), leading_only, deadline)
            self._note("exists: INVALID", len(keys) - len(good))
            found = [False] * len(keys)
            for i, f in zip(good, self._found([keys[i] for i in good], len(good), False, deadline).found):
                found[i] = f
            return Existence(found, found.index(False))
        except Exception as e:
            if isinstance(e, SpanpoolError) and not isinstance(e, (CallError, LimitError)):
                self._silent_until = time.monotonic() + BREAK
            self._failed("exists", e)
            return None

    def _found(self, keys: Any, n: int, leading_only: bool, deadline: Deadline) -> Existence:
        """Exists, in calls within the node's limits."""
        most = self.client.connect(deadline.left()).limits.keys or n
        if n <= most:
            pieces: list[Any] = [keys] if n else []
        else:
            names = list(keys.handle.names[i] for first, count in zip(keys.first, keys.count) for i in range(first, first + count)) \
                if isinstance(keys, Runs) else keys
            pieces = [names[lo:lo + most] for lo in range(0, n, most)]
        found, leading = [], 0  # type: list[bool], int
        for piece in pieces:
            some = self.client.exists(piece, HOLD, leading_only, deadline.left())
            whole = leading == len(found)
            found += some.found
            leading += some.leading if whole else 0
            if leading_only and leading < len(found):
                found += [False] * (n - len(found))
                break
        if len(found) != n:
            raise CallError("INTERNAL", f"{len(found)} answers for {n} keys")
        return Existence(found, leading)

    # Bytes.

    def batch_get_ranges_into_ptr(self, keys: Sequence[str], ptrs: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]],
                                  src_offsets: Sequence[Sequence[int]]) -> list[bool]:
        """Per key, range r is [src_offsets[r], + sizes[r]) of the object and goes to ptrs[r], in registered memory."""
        return self._move("get", _Lists(keys, ptrs, sizes, src_offsets, None))

    def batch_put_ranges_from_ptr(self, keys: Sequence[str], object_sizes: Sequence[int], ptrs: Sequence[Sequence[int]],
                                  sizes: Sequence[Sequence[int]], dst_offsets: Sequence[Sequence[int]]) -> list[bool]:
        """Per key, the ranges tile the object. What exists already, or is just put by another client, is True."""
        return self._move("put", _Lists(keys, ptrs, sizes, dst_offsets, object_sizes))

    def batch_get_into_ptr(self, keys: Sequence[str], ptrs: Sequence[int], sizes: Sequence[int]) -> list[bool]:
        return self.batch_get_ranges_into_ptr(keys, [[p] for p in ptrs], [[s] for s in sizes], [[0] for _ in ptrs])

    def batch_put_from_ptr(self, keys: Sequence[str], ptrs: Sequence[int], sizes: Sequence[int]) -> list[bool]:
        return self.batch_put_ranges_from_ptr(keys, list(sizes), [[p] for p in ptrs], [[s] for s in sizes], [[0] for _ in ptrs])

    def batch_put_from_ptr_with_depth(self, keys: Sequence[str], ptrs: Sequence[int], sizes: Sequence[int], depths: Sequence[int]) -> list[bool]:
        return self.batch_put_from_ptr(keys, ptrs, sizes)

    def get_into_ptr(self, key: str, dst: int, size: int) -> bool:
        return self.batch_get_into_ptr([key], [dst], [size])[0]

    def put_from_ptr(self, key: str, src: int, size: int) -> bool:
        return self.batch_put_from_ptr([key], [src], [size])[0]

    def _move(self, op: str, call: _Lists) -> list[bool]:
        """All of a call of the engine's. Keys that were busy, or whose transfer failed, are asked for again."""
        call = call._replace(keys=self._list(op, call.keys))
        n = len(call.keys)
        ok = [False] * n
        try:
            if any(column is not None and len(column) != n for column in call):
                raise CallError("INVALID_ARGUMENT", f"lists of {[len(c) for c in call if c is not None]} entries for one call")
            deadline = Deadline(self.call_timeout)
            give_up, pause = Deadline(RETRY_FOR), RETRY_FIRST
            places: Sequence[int] = range(n)
            while True:
                some = call if len(places) == n else call.choose(places)
                status = [0] * len(places)
                try:
                    with self._using():
                        self._transfer(op, some, status, deadline)
                finally:
                    if SUCCESS.issuperset(status):
                        for i in places if len(places) < n else ():
                            ok[i] = True
                        if len(places) == n:
                            ok = [True] * n
                    else:
                        for i, s in zip(places, status):
                            ok[i] = s in SUCCESS
                again = [] if RETRIED.isdisjoint(status) else [i for i, s in zip(places, status) if s in RETRIED]
                if not again or give_up.over() or deadline.over():
                    self._tell(op, status)
                    return ok
                if op == "get":  # all gets of a key, so that they come from one version
                    names = {call.keys[i] for i in again}
                    again = [i for i in range(n) if call.keys[i] in names]
                places = again
                threading.Event().wait(pause)
                pause *= 2
        except Exception as e:
            self._failed(op, e)
        return ok

    def _tell(self, op: str, status: Sequence[int]) -> None:
        if SUCCESS.issuperset(status):
            return
        for s, n in Counter(status).items():
            if s not in SUCCESS:
                self._note(f"{op}: {'failed' if s == 0 else status_name(s)}", n)

    def _transfer(self, op: str, call: _Lists, status: list[int], deadline: Deadline) -> None:
        """Fills in what became of each key; the first call of the client's that fails as a whole ends it."""
        work = _Work(op, call, status, deadline, self.client.connect(deadline.left()).limits)
        classes, bad = recognise.classes(call.ptrs, call.sizes, call.offsets)
        for i in bad:
            status[i] = pb.KEY_STATUS_INVALID
        if op == "get":  # a load goes upwards, and so does a call with several classes of a key
            classes.sort(key=lambda c: c.low)
        try:
            for c in classes:
                for some in _split(c, work.bytes, work.ranges, work.keys):
                    self._ask(work, some)
            for asks in work.calls():
                self._send(work, asks)
        finally:
            for session in work.entered:
                self._loads.leave(session)

    def _ask(self, work: _Work, c: recognise.Class) -> None:
        """Adds what one class asks for. Keys of private memory are moved at once, through a buffer; what is no key, has no size, or is of a
        load whose version is gone is refused alone."""
        names = recognise.pick(work.call.keys, c.members)
        bad = {} if self._names.find(names) is not None else {i: pb.KEY_STATUS_INVALID for i, k in enumerate(names) if not _is_key(k)}
        if work.op == "get":
            bad.update((i, pb.KEY_STATUS_NOT_FOUND) for i in self._loads.lost(names, c.low))
        else:  # one for all is a size
            bad.update((i, pb.KEY_STATUS_INVALID) for i, n in enumerate(_objects(work.call, c.members)) if not _is_size(n))
        if bad:
            for i, status in bad.items():
                work.status[c.members[i]] = status
            if len(bad) < len(names):
                self._ask(work, _choose(c, [i for i in range(len(names)) if i not in bad]))
            return
        lo, hi = c.addresses.min(axis=0), c.addresses.max(axis=0) + c.sizes
        regions = [self._at(a, b) for a, b in zip(lo.tolist(), hi.tolist())]
        if any(r is None for r in regions):
            self._ask_apart(work, c)
        elif all(r.shared is not None for r in regions):
            self._shared(work, c, regions)
        else:
            self._staged(work, c, regions)

    def _ask_apart(self, work: _Work, c: recognise.Class) -> None:
        """A class that lies in several allocations is one for each; a key of which a range lies in none is refused."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, row in enumerate(c.addresses.tolist()):
            at = [self._at(a, a + s) for a, s in zip(row, c.sizes.tolist())]
            if any(r is None for r in at):
                work.status[c.members[i]] = pb.KEY_STATUS_NOT_REGISTERED
            else:
                groups.setdefault(tuple(r.address for r in at), []).append(i)
        for rows in groups.values():
            self._ask(work, _choose(c, rows))

    def _reads(self, work: _Work, c: recognise.Class, names: Sequence[str], named: Optional[_Named]) -> list[loads.Reads]:
        """The sessions of a get; none for a put, and for keys that could not be named."""
        if work.op != "get" or named is None:
            return []
        reads = self._loads.enter(named, names, c.low, work.deadline.left())
        work.entered.extend(r.session for r in reads)
        return reads

    def _shared(self, work: _Work, c: recognise.Class, regions: list[_Region]) -> None:
        begin = np.array([r.address for r in regions], dtype=np.int64)
        names = recognise.pick(work.call.keys, c.members)
        named = self._names.find(names)
        pattern = _pattern(c, begin, None if named is None else named.rows)
        if named is None and work.op == "get":  # the next group of layers has the same keys
            named = self._names.name(names, pattern.row if pattern is not None else np.zeros(len(names), dtype=np.int64), work.limits)
        if pattern is None:
            self._count(f"{work.op}: addresses without a pattern", len(names))
        reads = self._reads(work, c, names, named)
        if len(reads) <= 1:
            self._place(work, c, begin, regions, names, named, pattern, reads[0] if reads else None)
            return
        for some in reads:
            rows = np.flatnonzero(some.chosen)
            self._place(work, _choose(c, rows.tolist()), begin, regions, [names[i] for i in rows.tolist()], _Named(named.generation, named.places[rows]),
                        None if pattern is None else pattern._replace(row=pattern.row[rows]), some)

    def _place(self, work: _Work, c: recognise.Class, begin: np.ndarray, regions: list[_Region], names: Sequence[str], named: Optional[_Named],
               pattern: Optional[recognise.Affine], reads: Optional[loads.Reads]) -> None:
        """Adds one part of a request."""
        memory = [r.shared for r in regions]
        where: Any
        if pattern is not None:
            row = None if named is not None and (pattern.row is named.rows or np.array_equal(named.rows, pattern.row)) else pattern.row.tolist()
            where = Pattern(c.offsets.tolist(), c.sizes.tolist(), memory, (pattern.base - begin).tolist(), pattern.stride.tolist(), row)
        else:
            m, n = c.addresses.shape
            where = Lists(range(n, (m + 1) * n, n), c.offsets.tolist() * m, c.sizes.tolist() * m, memory * m, (c.addresses - begin).ravel().tolist())
        part = Placed(names if named is None else named.runs, where, _objects(work.call, c.members))
        work.asks.append(_Ask(c.members, part, c.each * len(names), c.addresses.size, c.low, reads))

    def _staged(self, work: _Work, c: recognise.Class, regions: list[_Region]) -> None:
        """Moves a class by way of a buffer, in which the ranges of a key lie one behind the other."""
        step = max(STAGE_BYTES // c.each, 1)
        if len(c.members) > step:
            for lo in range(0, len(c.members), step):
                self._staged(work, _choose(c, slice(lo, lo + step)), regions)
            return
        names = recognise.pick(work.call.keys, c.members)
        named = self._names.find(names)
        if named is None and work.op == "get":
            named = self._names.name(names, np.zeros(len(names), dtype=np.int64), work.limits)
        reads = self._reads(work, c, names, named)
        if len(reads) <= 1:
            self._stage(work, c, regions, names, named, reads[0] if reads else None)
            return
        for some in reads:
            rows = np.flatnonzero(some.chosen)
            self._stage(work, _choose(c, rows.tolist()), regions, [names[i] for i in rows.tolist()], _Named(named.generation, named.places[rows]), some)

    def _stage(self, work: _Work, c: recognise.Class, regions: list[_Region], names: Sequence[str], named: Optional[_Named],
               reads: Optional[loads.Reads]) -> None:
        each, places = c.each, c.members
        at = np.cumsum(c.sizes) - c.sizes
        with self._stages.one(each * len(places), work.deadline) as stage:
            columns = [Column(_bytes_of(region), c.addresses[:, r], int(c.sizes[r]), int(at[r])) for r, region in enumerate(regions)]
            if work.op == "put":
                gather(columns, stage.buffer, each)
            where = Pattern(c.offsets.tolist(), c.sizes.tolist(), [stage], at.tolist(), [each], range(len(places)))
            part = Placed(names if named is None else named.runs, where, _objects(work.call, places))
            self._send(work, [_Ask(places, part, each * len(places), c.addresses.size, c.low, reads)])
            if work.op == "get":
                hit = np.array([i for i, p in enumerate(places) if work.status[p] in SUCCESS], dtype=np.int64)
                scatter([k._replace(addresses=k.addresses[hit]) for k in columns], stage.buffer, each, hit)

    def _send(self, work: _Work, asks: list[_Ask]) -> None:
        """One call of the client's. A session that is gone is forgotten: keys that begin in it are asked for again in another one, and others fail."""
        reads = asks[0].reads
        try:
            reply = self._sent(work, [a.part for a in asks], None if reads is None else reads.session)
        except (GoneError, UnavailableError, CallError) as e:
            if reads is None or isinstance(e, CallError) and e.code != "NOT_FOUND":
                raise
            self._loads.forget(reads.session)
            again = [self._loads.late([work.call.keys[p] for p in a.places], a.low, a.reads is not None and a.reads.begun) for a in asks]
            if not all(again):
                raise
            for a in asks:
                for p in a.places:
                    work.status[p] = pb.KEY_STATUS_TRANSFER_FAILED
            return
        if len(reply.status) != sum(len(a.places) for a in asks):
            raise CallError("INTERNAL", f"{len(reply.status)} answers for {sum(len(a.places) for a in asks)} keys")
        lo = 0
        for a in asks:
            hi = lo + len(a.places)
            some = reply.status if len(asks) == 1 else reply.status[lo:hi]
            if isinstance(a.places, range):
                work.status[a.places.start:a.places.stop:a.places.step] = some
            else:
                for p, s in zip(a.places, some):
                    work.status[p] = s
            lo = hi
            if a.reads is not None and pb.KEY_STATUS_LATE in some:
                self._loads.late([work.call.keys[p] for p, s in zip(a.places, some) if s == pb.KEY_STATUS_LATE], a.low, a.reads.begun)

    def _sent(self, work: _Work, parts: Sequence[Placed], session: Optional[loads.Session]) -> Any:
        for last in (False, True):
            try:
                if session is not None:
                    return session.read.get(parts, work.deadline.left())
                return self.client.get(parts, work.deadline.left()) if work.op == "get" else self.client.put(parts, PUT_WAIT, work.deadline.left())
            except (UnavailableError, CallError) as e:
                # A node that was started anew a moment ago, or a handle that it forgot; the next one is an answer.
                if last or work.deadline.over() or isinstance(e, CallError) and e.code != "NOT_FOUND":
                    raise
        raise AssertionError("unreachable")

    # What went wrong.

    def _failed(self, op: str, e: BaseException) -> None:
        self._note(f"{op}: {e.kind if isinstance(e, SpanpoolError) else type(e).__name__}", 1, e)

    def _count(self, kind: str, n: int = 1) -> bool:
        with self._lock:
            self.counts[kind] += n
            return self.counts[kind] == n

    def _note(self, kind: str, n: int = 1, e: Optional[BaseException] = None) -> None:
        """Counts, and logs the first of a kind."""
        if self._count(kind, n):
            log.warning("%s%s (logged once; UMBPClient.counts has how often)", kind, f": {e}" if e is not None else "",
                        exc_info=e if e is not None and not isinstance(e, SpanpoolError) else None)


def _quarter(limit: int) -> int:
    """What one call uses of a limit of the node's, of which 0 is none."""
    return limit // 4 if limit > 0 else sys.maxsize


def _is_key(k: Any) -> bool:
    return isinstance(k, (str, bytes)) and 0 < len(encode(k)) <= KEY_BYTES


def _is_size(n: Any) -> bool:
    try:
        return 0 < index(n) < 1 << 64
    except TypeError:
        return False


def _bytes_of(region: _Region) -> Private:
    return region.private if region.private is not None else HostBytes(region.address, region.length)


def _pattern(c: recognise.Class, begin: np.ndarray, known: Optional[np.ndarray]) -> Optional[recognise.Affine]:
    """The pattern of a class's addresses, with the rows that are known where these fit. begin is where the buffers do."""
    pattern = recognise.affine(c.addresses, int(begin[0]), known)
    if pattern is not None and (pattern.base < begin).any():  # some buffer has no row 0
        pattern = recognise.affine(c.addresses, int(c.addresses[:, 0].min()))
    return pattern if pattern is not None and not (pattern.base < begin).any() else None


def _objects(call: _Lists, places: Sequence[int]) -> Sequence[int]:
    """The sizes of the objects: one when all are equal."""
    if call.objects is None:
        return ()
    sizes = recognise.pick(call.objects, places)
    return sizes[:1] if _is_size(sizes[0]) and sizes.count(sizes[0]) == len(sizes) else sizes


def _choose(c: recognise.Class, rows: Any) -> recognise.Class:
    """Some keys of a class: a slice of them, or a list."""
    members = c.members[rows] if isinstance(rows, slice) else [c.members[i] for i in rows]
    return c._replace(members=members, addresses=c.addresses[rows])


def _split(c: recognise.Class, nbytes: int, ranges: int, keys: int) -> Iterator[recognise.Class]:
    """The class in pieces that are each within a call's limits, as far as one key is."""
    each, n = c.each, len(c.sizes)
    step = max(min(nbytes // each, ranges // n, keys), 1)
    if len(c.members) <= step:
        yield c
        return
    for lo in range(0, len(c.members), step):
        yield _choose(c, slice(lo, lo + step))


def _seconds(name: str, default: float) -> float:
    return float(os.environ.get(name) or default)


def install() -> None:
    """Puts this module where engines look for the reference's: import mori.umbp. A real mori that is there keeps its other modules."""
    try:
        import mori
    except ImportError:
        mori = types.ModuleType("mori")
        mori.__path__ = []  # type: ignore[attr-defined]
        sys.modules["mori"] = mori
    mori.umbp = sys.modules[__name__]  # type: ignore[attr-defined]
    sys.modules["mori.umbp"] = sys.modules[__name__]
