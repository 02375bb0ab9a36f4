"""Client: calls on memory that is shared with the node of this host."""
from __future__ import annotations

import os
import threading
import weakref
from contextlib import contextmanager
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence, Union

import grpc

from spanpool.engine.v1 import engine_pb2 as pb
from spanpool.errors import (CallError, GoneError, LimitError, NoReplyError, NotQuietError, SpanpoolError, UnavailableError)
from spanpool.link import ANSWERED, REGISTER_BYTES_PER_SECOND, Deadline, Link, refusal
from spanpool.memory import DeviceMemory, Memory, map_file, shared_file

DEFAULT_SOCKET = "/run/spanpool/engine.sock"
REGION_BYTES = 1 << 46  # of memory; more than any address space has
FORGET = 64  # handles that have ended, and are then dropped; arbitrary, well below what a node has room for
NAME_BYTES = 4 << 20  # of keys in one call that names them: half of the least limit of a message

HIT, STORED, EXISTS = pb.KEY_STATUS_HIT, pb.KEY_STATUS_STORED, pb.KEY_STATUS_EXISTS
BUSY, NOT_FOUND = pb.KEY_STATUS_BUSY, pb.KEY_STATUS_NOT_FOUND
SUCCESS = frozenset((HIT, STORED, EXISTS))

Key = Union[str, bytes]


class Pattern(NamedTuple):
    """The same ranges of every key: range r of key i is [off[r], off[r] + length[r]) of the object, and lies at base[r] + row[i] * stride[r]
    of memory[r]. length, stride and memory may have one entry for all. row is as long as the keys; None is the rows of the handle."""

    off: Sequence[int]
    length: Sequence[int]
    memory: Sequence[Memory]
    base: Sequence[int]
    stride: Sequence[int]
    row: Optional[Sequence[int]]


class Lists(NamedTuple):
    """Ranges of each key: those of key i are [end[i-1], end[i]) of the columns off and length (in the object) and at (in memory, which may
    have one entry for all)."""

    end: Sequence[int]
    off: Sequence[int]
    length: Sequence[int]
    memory: Sequence[Memory]
    at: Sequence[int]


class Handle:
    """Keys that recur, named once: calls send a number instead. It grows by append, and only so; it stands for the keys at whatever node
    answers. rows are where pages of the keys lie, for patterns without rows of their own: of each key, or of none. The node forgets it some
    time after its end here, or at once by Client.drop."""

    def __init__(self, names: Sequence[Key] = (), rows: Optional[Sequence[int]] = None):
        self.names: list[bytes] = []
        self.rows: list[int] = []
        self.append(names, rows)

    def append(self, names: Sequence[Key], rows: Optional[Sequence[int]] = None) -> int:
        """Adds keys, one caller at a time, and returns the place of the first."""
        if rows is not None and len(rows) != len(names) or (rows is None) != (not self.rows) and self.names and names:
            raise ValueError(f"{0 if rows is None else len(rows)} rows for {len(names)} keys of a handle of {len(self.names)} keys and {len(self.rows)} rows")
        first = len(self.names)
        encoded = encode_all(names)
        self.rows.extend(rows or ())
        self.names.extend(encoded)
        return first


class Runs(NamedTuple):
    """A choice of a handle's keys: the runs [first[i], first[i] + count[i]), in any order and with repetitions."""

    handle: Handle
    first: Sequence[int]
    count: Sequence[int]


class Placed(NamedTuple):
    """Some keys of a call with where their bytes lie. sizes are those of the objects, for puts: one, or as many as keys."""

    keys: Union[Sequence[Key], Handle, Runs]
    where: Union[Pattern, Lists]
    sizes: Sequence[int] = ()


class Reply(NamedTuple):
    """What became of each key of a call: a value of KeyStatus. failures have the reasons of the first that failed, by place in the call."""

    status: Sequence[int]
    failures: dict[int, str]
    fetched: int
    joined: int

    def ok(self) -> list[bool]:
        return [s in SUCCESS for s in self.status]

    def names(self) -> list[str]:
        return [status_name(s) for s in self.status]


def status_name(status: int) -> str:
    """A status without its prefix; that of a node which knows more of them than this client is its number."""
    try:
        return pb.KeyStatus.Name(status)[len("KEY_STATUS_"):]
    except ValueError:
        return f"STATUS_{status}"


class Existence(NamedTuple):
    """found is of each key, leading the number of keys from the first on that exist without a gap."""

    found: list[bool]
    leading: int


def encode(key: Key) -> bytes:
    return key if isinstance(key, bytes) else str.encode(key, "utf-8", "surrogatepass")


def encode_all(keys: Sequence[Key]) -> list[bytes]:
    """Keys as bytes. A text is a sequence of texts too: of one that is given in place of a list, each letter would be a key."""
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"one key where keys are wanted: {keys[:80]!r}; make it a list")
    return [encode(k) for k in keys]


class _State:
    """What a client has to let go of. It knows no client, so that the client's end is seen."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # link, links, unsettled, closed, and users and retired of links; nothing else is waited for under it
        self.link: Optional[Link] = None
        self.links: set[Link] = set()  # not closed
        self.unsettled: dict[Link, dict[int, object]] = {}  # calls that may touch memory still, and what they keep; each counts as a user
        self.memories: dict[Memory, None] = {}  # in order; under registering
        self.registering = threading.Lock()  # connecting too, which registers again
        self.attempt: Optional["_Attempt"] = None  # to connect, under way; under lock
        self.closed = self.forked = False
        _living.add(self)

    def retire(self, link: Link) -> None:
        """The link is not used for new calls; it closes after its last user."""
        with self.lock:
            link.retired = True
            if self.link is link:
                self.link = None
        self.leave(link, 0)

    def leave(self, link: Link, n: int = 1) -> None:
        with self.lock:
            link.users -= n
            last = link.retired and link.users == 0 and link in self.links
            if last:
                self.links.discard(link)
        if last:
            link.close()

    def close(self) -> None:
        with self.lock:
            self.closed, links = True, list(self.links)
            for link, calls in self.unsettled.items():
                link.users -= len(calls)
            self.unsettled = {}
        for link in links:
            self.retire(link)

    def fork(self) -> None:
        """In a child: its copies of the sockets are closed, or they would keep the clients alive. Threads that had the locks are not here."""
        self.forked, self.lock, self.registering = True, threading.Lock(), threading.Lock()
        for link in list(self.links):
            if link.socket is not None:
                link.socket.close()


class _Attempt:
    """One attempt to connect. error is why it failed, once done is set."""

    def __init__(self, state: _State, path: str, namespace: bytes, name: str, timeout: float):
        self.done, self.error = threading.Event(), None  # type: threading.Event, Optional[SpanpoolError]
        self.thread = threading.Thread(target=self._run, args=(state, path, namespace, name, timeout), name="spanpool connects", daemon=True)

    def _run(self, state: _State, path: str, namespace: bytes, name: str, timeout: float) -> None:
        try:
            with state.registering:
                self._connect(state, path, namespace, name, timeout)
        except GoneError as e:
            self.error = UnavailableError(f"the node was started anew just now: {e}")
        except SpanpoolError as e:
            self.error = e
        except Exception as e:
            self.error = SpanpoolError(f"connecting to {path}: {type(e).__name__}: {e}")
        finally:
            with state.lock:
                state.attempt = None
            self.done.set()

    @staticmethod
    def _connect(state: _State, path: str, namespace: bytes, name: str, timeout: float) -> None:
        link = Link(path, namespace, name, Deadline(timeout))
        try:
            for memory in state.memories:
                try:
                    link.register(memory, Deadline(timeout + memory.length / REGISTER_BYTES_PER_SECOND))
                except (CallError, LimitError):
                    pass  # its file was cut, say: that memory alone is not registered, and its keys are told so
        except BaseException:
            link.close()
            raise
        with state.lock:
            if not state.closed:
                state.link = link
                state.links.add(link)
                return
        link.close()


_living: "weakref.WeakSet[_State]" = weakref.WeakSet()


def _forked() -> None:
    for state in list(_living):
        state.fork()


os.register_at_fork(after_in_child=_forked)


class Client:
    """Calls to the node at a Unix socket. Threads may share it. It connects at the first call, and again when the node was started anew:
    then it registers its memory by itself. Its end, or close, lets go of everything that it has at the node.

    timeout bounds a call in seconds, quiet_timeout what comes after it when there was no reply: until then the node may still touch
    the memory that the call named. Calls raise SpanpoolError; what became of a key is in the reply.
    """

    def __init__(self, socket: str = DEFAULT_SOCKET, namespace: Union[str, bytes] = b"", name: str = "", timeout: float = 10.0,
                 quiet_timeout: float = 10.0):
        self.socket = socket[len("unix:"):] if socket.startswith("unix:") else socket
        if self.socket.startswith("//"):
            self.socket = self.socket[2:]
        self.namespace, self.name = encode(namespace), name or f"python {os.getpid()}"
        self.timeout, self.quiet_timeout = timeout, quiet_timeout
        self._state = _State()
        self._end = weakref.finalize(self, self._state.close)

    def close(self) -> None:
        """Lets go of everything at the node. Calls of other threads end first; later ones fail. Twice is allowed."""
        self._end()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Links.

    def connect(self, timeout: Optional[float] = None) -> pb.HelloReply:
        """Says hello unless that is done, and returns the node's answer: its name, abilities and limits."""
        with self._using(Deadline(self.timeout if timeout is None else timeout)) as link:
            return link.hello

    @contextmanager
    def _using(self, deadline: Deadline) -> Iterator[Link]:
        link = self._link(deadline)
        try:
            yield link
        finally:
            self._state.leave(link)

    def _link(self, deadline: Deadline) -> Link:
        """A link in use, which is the caller's to leave. Making one can take longer than this caller has, since memory is registered again:
        then the attempt goes on, and is the next caller's."""
        for _ in range(4):  # arbitrary: a link that is made may be lost at once
            link = self._current()
            if link is not None:
                return link
            attempt = self._connecting()
            if not attempt.done.wait(deadline.left()):
                raise UnavailableError(f"still connecting to {self.socket}, or registering memory there")
            if attempt.error is not None:
                raise attempt.error.with_traceback(None) from None
        raise UnavailableError(f"the node at {self.socket} ends again and again")

    def _connecting(self) -> "_Attempt":
        """The attempt that is under way, or a new one, on a thread that its own bounds end. It knows no client, so that it keeps none."""
        state = self._state
        with state.lock:
            if state.attempt is None:
                state.attempt = _Attempt(state, self.socket, self.namespace, self.name, self.timeout)
                state.attempt.thread.start()
            return state.attempt

    def _current(self) -> Optional[Link]:
        state = self._state
        with state.lock:
            if state.forked:
                raise UnavailableError("the client is of the process that forked: make one in the child")
            if state.closed:
                raise UnavailableError("the client is closed")
            link = state.link
            if link is None:
                return None
            link.users += 1
        if not link.over(0):
            return link
        state.retire(link)
        state.leave(link)
        return None

    @contextmanager
    def _registering(self, deadline: Deadline) -> Iterator[None]:
        if not self._state.registering.acquire(timeout=deadline.left()):
            raise UnavailableError("another thread is still connecting, or registering")
        try:
            yield
        finally:
            self._state.registering.release()

    # Calls.

    def _call(self, name: str, build: Callable[[Link, Deadline], Any], timeout: Optional[float] = None, moves: bool = False,
              keep: object = None, only: Optional[Link] = None) -> Any:
        """One call. build makes the request for a link, since numbers of regions and handles are a link's own. A client that is not known
        any more says hello and calls again, once, unless only names the link that it has to be. moves: the call touches memory, and is
        seen to have let go of it; keep lives until then."""
        deadline = Deadline(self.timeout if timeout is None else timeout)
        for last in (False, True):
            with self._using(deadline) if only is None else self._again(only) as link:
                try:
                    return self._attempt(link, name, build, deadline, moves, keep)
                except GoneError:
                    self._state.retire(link)
                    if last or only is not None:
                        raise
        raise AssertionError("unreachable")

    @contextmanager
    def _again(self, link: Link) -> Iterator[Link]:
        with self._state.lock:
            if link.retired or self._state.closed:
                raise GoneError("the session is of another start of the node")
            link.users += 1
        try:
            yield link
        finally:
            self._state.leave(link)

    def _attempt(self, link: Link, name: str, build: Callable[[Link, Deadline], Any], deadline: Deadline, moves: bool, keep: object) -> Any:
        try:
            request = build(link, deadline)
        except (TypeError, ValueError, OverflowError) as e:  # what no message can hold
            raise CallError("INVALID_ARGUMENT", f"{name}: {e}") from e
        if request.ByteSize() > link.limits.message_bytes > 0:
            raise LimitError(f"a request of {request.ByteSize()} bytes, limit {link.limits.message_bytes}")
        number = link.number() if moves else 0
        try:
            return link.call(name, request, deadline.left(), number)
        except grpc.RpcError as e:
            if e.code() in ANSWERED:
                raise refusal(e) from None
            if moves:
                self._settle(link, number, keep, e)
            if link.over(0):
                self._state.retire(link)
                raise UnavailableError(f"the node ended during {name}") from None
            if e.code() == grpc.StatusCode.UNAVAILABLE:
                raise UnavailableError(f"{name}: {e.details()}") from None
            raise NoReplyError(f"{name}: {e.code().name}: {e.details()}") from None
        except BaseException:  # an interrupt in the thread that waits: the call goes on
            if moves:
                self._unsettled(link, number, keep)
            raise

    def _settle(self, link: Link, number: int, keep: object, e: grpc.RpcError) -> None:
        """Returns when the node has let go of what a call named."""
        if not link.quiesce([number], Deadline(self.quiet_timeout)):
            self._unsettled(link, number, keep)
            raise NotQuietError(f"call {number} ({e.code().name}), and quiesce was not answered within {self.quiet_timeout:g} s") from None

    def _unsettled(self, link: Link, number: int, keep: object) -> None:
        with self._state.lock:
            if not self._state.closed:
                self._state.unsettled.setdefault(link, {})[number] = keep
                link.users += 1

    def quiesce(self, timeout: Optional[float] = None) -> None:
        """Returns when the node has let go of the memory of every call that ended with NotQuietError; raises NotQuietError when it does
        not within quiet_timeout."""
        deadline = Deadline(self.quiet_timeout if timeout is None else timeout)
        with self._state.lock:
            waiting = {link: list(calls) for link, calls in self._state.unsettled.items()}
        for link, numbers in waiting.items():
            if not link.quiesce(numbers, deadline):
                raise NotQuietError(f"calls {numbers}: quiesce was not answered")
            with self._state.lock:
                calls = self._state.unsettled.get(link, {})
                gone = [n for n in numbers if calls.pop(n, self) is not self]
                if not calls:
                    self._state.unsettled.pop(link, None)
            self._state.leave(link, len(gone))

    @property
    def quiet(self) -> bool:
        """Whether no call may still touch memory without its caller."""
        return not self._state.unsettled

    # Memory.

    def allocate(self, nbytes: int) -> Memory:
        """Memory of the node's, mapped here too: nothing can shrink it, and transports read into it without a copy."""
        deadline = self._registration(nbytes)

        def do(link: Link) -> Memory:
            reply, fd = link.exchange(pb.DescriptorRequest(allocate=pb.Allocate(len=nbytes)), deadline)
            memory = map_file(fd, nbytes)
            link.regions[memory] = reply.region.region
            return memory

        return self._register(do, deadline)

    def register(self, address: int, nbytes: int, fd: Optional[int] = None, off: int = 0) -> Memory:
        """Registers memory of this process that maps a memfd or a file of a tmpfs, shared: the file of the descriptor, from byte off on, or
        the one that is mapped at the address. The descriptor stays the caller's. CallError says that the memory is private."""
        deadline = self._registration(nbytes)
        if fd is None:
            found = shared_file(address, nbytes)
            if found is None:
                raise CallError("INVALID_ARGUMENT", f"{nbytes} bytes at 0x{address:x} are not one shared mapping of a file in memory")
            memory = Memory(address, nbytes, *found)
        else:
            memory = Memory(address, nbytes, os.dup(fd), off)

        def do(link: Link) -> Memory:
            link.register(memory, deadline)
            return memory

        try:
            return self._register(do, deadline)
        except BaseException:
            memory.close()
            raise

    def register_device(self, address: int, nbytes: int, handle: bytes, device: str, off: int = 0) -> DeviceMemory:
        """Registers memory of a GPU: nbytes from byte off on of the allocation that the IPC handle names, on the device at a PCI address
        such as "0000:c1:00.0" (spanpool.ipc finds these). CallError where the node does not take such memory: abilities.device_ipc."""
        deadline = self._registration(0)
        memory = DeviceMemory(address, nbytes, handle, device, off)

        def do(link: Link) -> Memory:
            link.register(memory, deadline)
            return memory

        self._register(do, deadline)
        return memory

    def _registration(self, nbytes: int) -> Deadline:
        if not 0 <= nbytes <= REGION_BYTES:
            raise CallError("INVALID_ARGUMENT", f"{nbytes} bytes of memory, limit {REGION_BYTES}")
        return Deadline(self.timeout + nbytes / REGISTER_BYTES_PER_SECOND)

    def _register(self, do: Callable[[Link], Memory], deadline: Deadline) -> Memory:
        for last in (False, True):
            with self._using(deadline) as link, self._registering(deadline):
                try:
                    with self._state.lock:
                        if link.retired:
                            raise GoneError("the node was started anew")
                    memory = do(link)
                    self._state.memories[memory] = None
                    return memory
                except (GoneError, UnavailableError):
                    self._state.retire(link)
                    if last:
                        raise
        raise AssertionError("unreachable")

    def deregister(self, memory: Memory, timeout: Optional[float] = None) -> None:
        """Returns when no call touches the memory. Memory that is not registered is no error. When there is no answer, the memory is
        not registered with a later start either, and the node lets go of it at the latest when this client ends."""
        deadline = Deadline(self.timeout if timeout is None else timeout)
        with self._registering(deadline):
            if self._state.memories.pop(memory, self) is self:
                return
            memory.close()
            link = self._state.link
            number = link.regions.pop(memory, 0) if link is not None else 0
        if number:
            try:
                self._call("Deregister", lambda _link, _: pb.DeregisterRequest(regions=[number]), deadline.left(), only=link)
            except GoneError:
                pass  # with the client

    # Keys.

    def exists(self, keys: Union[Sequence[Key], Handle, Runs], hold: float = 0, leading_only: bool = False,
               timeout: Optional[float] = None) -> Existence:
        """Which keys are at this node or at a peer. hold keeps what is here for so many seconds; leading_only stops at the first gap."""
        reply = self._call("BatchExists", lambda link, d: pb.BatchExistsRequest(
            keys=self._keys(link, keys, d), hold_nanos=int(hold * 1e9), leading_only=leading_only), timeout)
        return Existence(list(reply.found), reply.leading)

    def get(self, parts: Sequence[Placed], timeout: Optional[float] = None) -> Reply:
        """Reads ranges of objects into registered memory. The destination of a key that is no HIT is undefined."""
        return _reply(self._call("BatchGetRanges", lambda link, d: pb.BatchGetRangesRequest(parts=self._parts(link, parts, d)), timeout,
                                 moves=True, keep=parts))

    def put(self, parts: Sequence[Placed], wait: Optional[float] = None, timeout: Optional[float] = None) -> Reply:
        """Stores objects from registered memory, each whole or not at all: ranges of a key tile it. wait is how many seconds a key
        that another client is just putting is waited for; None is the node's default."""
        def build(link: Link, d: Deadline) -> pb.BatchPutRangesRequest:
            request = pb.BatchPutRangesRequest(parts=self._parts(link, parts, d))
            if wait is not None:
                request.wait_nanos = int(wait * 1e9)
            return request
        return _reply(self._call("BatchPutRanges", build, timeout, moves=True, keep=parts))

    def remove(self, keys: Sequence[Key], timeout: Optional[float] = None) -> list[bool]:
        """Drops objects here and at every peer that answers; says of which a copy was dropped."""
        reply = self._call("Remove", lambda *_: pb.RemoveRequest(namespace=self.namespace, keys=encode_all(keys)), timeout)
        return [r.found for r in reply.removals]

    def drop(self, handle: Handle, timeout: Optional[float] = None) -> None:
        """Forgets a handle at the node; it is named again when it is used again."""
        with self._using(Deadline(self.timeout if timeout is None else timeout)) as link:
            with link.naming:
                number, _ = link.handles.pop(handle, (0, 0))
            if number:
                self._call("DropKeys", lambda *_: pb.DropKeysRequest(handles=[number]), timeout, only=link)

    def stats(self, timeout: Optional[float] = None) -> tuple[dict[str, int], dict[str, int]]:
        """What the node counts, and what this client has there."""
        reply = self._call("Stats", lambda *_: pb.StatsRequest(), timeout)
        return dict(reply.counts), dict(reply.client)

    # Sessions.

    def open_read(self, timeout: Optional[float] = None) -> "ReadSession":
        """A session whose reads of a key all come from one version."""
        def build(link: Link, _: Deadline) -> pb.OpenReadRequest:
            links.append(link)
            return pb.OpenReadRequest()
        links: list[Link] = []
        reply = self._call("OpenRead", build, timeout)
        return ReadSession(self, links[-1], reply.session)

    def open_write(self, keys: Sequence[Key], sizes: Sequence[int], timeout: Optional[float] = None) -> "WriteSession":
        """Reserves objects that are written in parts. sizes: one, or as many as keys."""
        def build(link: Link, d: Deadline) -> pb.OpenWriteRequest:
            links.append(link)
            return pb.OpenWriteRequest(keys=self._keys(link, keys, d), sizes=sizes)
        links: list[Link] = []
        reply = self._call("OpenWrite", build, timeout)
        return WriteSession(self, links[-1], reply.session, Reply(list(reply.status), {f.key: f.reason for f in reply.failures}, 0, 0))

    # Requests.

    def _parts(self, link: Link, parts: Sequence[Placed], deadline: Deadline) -> list[pb.Part]:
        out = []
        for part in parts:
            m = pb.Part(keys=self._keys(link, part.keys, deadline), sizes=part.sizes)
            at = part.where
            regions, before = _regions(link, at.memory)
            if isinstance(at, Pattern):
                m.pattern.off.extend(at.off)
                m.pattern.len.extend(at.length)
                m.pattern.region.extend(regions)
                m.pattern.base.extend(_plus(at.base, before))
                m.pattern.stride.extend(at.stride)
                if at.row is None:
                    m.pattern.rows_of_handle = True
                else:
                    m.pattern.row.extend(at.row)
            else:
                m.lists.end.extend(at.end)
                m.lists.off.extend(at.off)
                m.lists.len.extend(at.length)
                m.lists.region.extend(regions)
                m.lists.region_off.extend(_plus(at.at, before))
            out.append(m)
        return out

    def _keys(self, link: Link, keys: Union[Sequence[Key], Handle, Runs], deadline: Deadline) -> pb.Keys:
        if isinstance(keys, Handle):
            keys = Runs(keys, (0,), (len(keys.names),))
        if isinstance(keys, Runs):
            return pb.Keys(handle=self._name(link, keys.handle, deadline), first=keys.first, count=keys.count)
        return pb.Keys(names=encode_all(keys))

    def _name(self, link: Link, handle: Handle, deadline: Deadline) -> int:
        """The number of a handle at the link, which knows all of its keys by then."""
        number, named = link.handles.get(handle, (0, 0))
        if number and named >= len(handle.names):
            return number
        if not link.naming.acquire(timeout=deadline.left()):
            raise NoReplyError("another thread is still naming keys")
        try:
            number, named = link.handles.get(handle, (0, 0))
            total = len(handle.names)
            if not number:
                self._forget(link, deadline)
            while not number or named < total:
                names = _some(handle.names, named, total)
                rows = handle.rows[named:named + len(names)]
                try:
                    reply = link.call("NameKeys", pb.NameKeysRequest(handle=number, keys=names, rows=rows), deadline.left())
                except grpc.RpcError as e:
                    # It may have been named: the node's handle has an unknown length now, and is left.
                    link.handles.pop(handle, None)
                    if e.code() in ANSWERED:
                        raise refusal(e) from None
                    raise NoReplyError(f"NameKeys: {e.code().name}: {e.details()}") from None
                number, named = reply.handle, reply.keys
                if handle not in link.handles:
                    weakref.finalize(handle, link.ended.append, number).atexit = False
                link.handles[handle] = (number, named)
            return number
        finally:
            link.naming.release()

    @staticmethod
    def _forget(link: Link, deadline: Deadline) -> None:
        """Drops the handles that have ended here, once there are many: one call for all of them."""
        if len(link.ended) < FORGET:
            return
        numbers = [link.ended.popleft() for _ in range(len(link.ended))]
        try:
            link.call("DropKeys", pb.DropKeysRequest(handles=numbers), deadline.left())
        except grpc.RpcError:
            link.ended.extend(numbers)  # another time: twice is no matter there


def _some(names: list[bytes], lo: int, hi: int) -> list[bytes]:
    """names[lo:hi], or as many of them as go into one message."""
    room = NAME_BYTES
    for i in range(lo, hi):
        room -= len(names[i]) + 8
        if room < 0:
            return names[lo:max(i, lo + 1)]
    return names[lo:hi]


def _regions(link: Link, memory: Sequence[Memory]) -> tuple[list[int], list[int]]:
    """Their numbers, and how far inside of what is registered they begin: one of each, or one for each range. 0 is memory that this start
    of the node does not have: keys in it are NOT_REGISTERED."""
    return [link.regions.get(m, 0) for m in memory], [m.before for m in memory]


def _plus(offsets: Sequence[int], before: list[int]) -> Sequence[int]:
    if not any(before):
        return offsets
    if len(before) == 1:
        return [o + before[0] for o in offsets]
    return [o + b for o, b in zip(offsets, before)]


def _reply(m: pb.RangesReply) -> Reply:
    return Reply(list(m.status), {f.key: f.reason for f in m.failures}, m.fetched, m.joined)


class _Session:
    """A session lives at one start of the node: after another one it raises GoneError, and its caller begins a new one."""

    _close = ""

    def __init__(self, client: Client, link: Link, number: int):
        self._client, self._link, self.number = client, link, number

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ending(self) -> Any:
        raise NotImplementedError

    def close(self, timeout: Optional[float] = None) -> None:
        """Ends the session. A node that is gone, or does not know it, is no error."""
        number, self.number = self.number, 0
        if number:
            try:
                self._client._call(self._close, lambda *_: self._ending()(session=number), timeout, only=self._link)
            except (CallError, GoneError, UnavailableError):
                pass


class ReadSession(_Session):
    """Reads of which all of a key come from one version."""

    _close = "CloseRead"

    def _ending(self) -> Any:
        return pb.CloseReadRequest

    def get(self, parts: Sequence[Placed], timeout: Optional[float] = None) -> Reply:
        """As Client.get. LATE is said of a key whose version is gone."""
        c = self._client
        return _reply(c._call("ReadRanges", lambda link, d: pb.ReadRangesRequest(session=self.number, parts=c._parts(link, parts, d)), timeout,
                              moves=True, keep=parts, only=self._link))


class WriteSession(_Session):
    """Objects that are written in parts. reserved says of each key: HIT waits for its bytes, EXISTS needs none, others are refused.
    What is not committed when the session is closed is given back."""

    _close = "Abort"

    def __init__(self, client: Client, link: Link, number: int, reserved: Reply):
        super().__init__(client, link, number)
        self.reserved = reserved

    def _ending(self) -> Any:
        return pb.AbortRequest

    def write(self, parts: Sequence[Placed], timeout: Optional[float] = None) -> Reply:
        """Writes parts of objects, in any order; a range that was written before is INVALID."""
        c = self._client
        return _reply(c._call("WriteRanges", lambda link, d: pb.WriteRangesRequest(session=self.number, parts=c._parts(link, parts, d)), timeout,
                              moves=True, keep=parts, only=self._link))

    def commit(self, keys: Sequence[Key] = (), timeout: Optional[float] = None) -> Reply:
        """Makes objects visible, each whole or not at all; no keys are all of the session's."""
        c = self._client
        return _reply(c._call("Commit", lambda link, d: pb.CommitRequest(session=self.number, keys=c._keys(link, keys, d)), timeout, only=self._link))
