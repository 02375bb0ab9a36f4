"""One hello: a channel for calls, the socket for descriptors, and what was registered over them. It ends with the node's start."""
from __future__ import annotations

import itertools
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from typing import Any, Optional

import grpc

from spanpool.engine.v1 import engine_pb2 as pb
from spanpool.errors import CallError, GoneError, LimitError, NoReplyError, SpanpoolError, UnavailableError
from spanpool.memory import DeviceMemory, Memory

PROTOCOL = 1
SERVICE = "/spanpool.engine.v1.Engine/"
# Calls with one request and one reply, by name: what protoc's plugin for Python would make, without its demands on versions.
CALLS = {
    "Hello": pb.HelloReply, "Deregister": pb.DeregisterReply, "RegisterDevice": pb.RegisterDeviceReply,
    "NameKeys": pb.NameKeysReply, "DropKeys": pb.DropKeysReply,
    "BatchExists": pb.BatchExistsReply, "BatchGetRanges": pb.RangesReply, "BatchPutRanges": pb.RangesReply,
    "OpenRead": pb.OpenReadReply, "ReadRanges": pb.RangesReply, "CloseRead": pb.CloseReadReply,
    "OpenWrite": pb.OpenWriteReply, "WriteRanges": pb.RangesReply, "Commit": pb.RangesReply, "Abort": pb.AbortReply,
    "Quiesce": pb.QuiesceReply, "Stats": pb.StatsReply, "Remove": pb.RemoveReply, "Size": pb.SizeReply, "Status": pb.StatusReply,
}
OPTIONS = [
    ("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1),  # the node says its own limits
    # Channels of one process share connections, and with them the pause after a failed one: a node that is back is to be seen at once.
    ("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 500),
    # By its name a pause too, and in truth the time that a node has to take a connection: one on a busy host takes a while.
    ("grpc.min_reconnect_backoff_ms", 2000), ("grpc.enable_http_proxy", 0),
]
PACKET = 4096
REGISTER_BYTES_PER_SECOND = 1 << 29  # the node gives every page its memory; arbitrary, well below what that takes
# What only a node says. Any other status may be this side's own, of a call that still goes on over there.
ANSWERED = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.FAILED_PRECONDITION}
FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION.value[0]


class Deadline:
    """An instant by which something ends."""

    def __init__(self, seconds: float):
        self.at = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds, at least one millisecond: what is late fails by itself."""
        return max(self.at - time.monotonic(), 0.001)

    def over(self) -> bool:
        return time.monotonic() >= self.at


class Link:
    """A client of one start of the node. users and retired are the Client's, under its lock; registering is under its lock for that."""

    def __init__(self, path: str, namespace: bytes, name: str, deadline: Deadline):
        self.users, self.retired = 0, False
        self.pid = os.getpid()
        self.regions: dict[Memory, int] = {}
        self.handles: Any = weakref.WeakKeyDictionary()  # handle: its number, and how many of its keys are named
        self.ended: deque[int] = deque()  # numbers of handles that nobody has any more
        self.naming = threading.Lock()
        self._numbers = itertools.count(1)
        self.socket: Optional[socket.socket] = None
        self.channel = grpc.insecure_channel("unix:" + path, options=OPTIONS)
        try:
            self.stubs = {n: self.channel.unary_unary(SERVICE + n, request_serializer=_serialize, response_deserializer=reply.FromString)
                          for n, reply in CALLS.items()}
            self.hello: pb.HelloReply = self._hello(path, namespace, name, deadline)
            self.limits, self.abilities = self.hello.limits, self.hello.abilities
            self.caller = pb.Caller(boot=self.hello.boot, client=self.hello.client)
            self.socket = _connect(os.path.join(os.path.dirname(path), self.hello.descriptor_socket), deadline)
            self.exchange(pb.DescriptorRequest(attach=pb.Attach(boot=self.hello.boot, client=self.hello.client)), deadline)
        except BaseException:
            self.close()
            raise

    def _hello(self, path: str, namespace: bytes, name: str, deadline: Deadline) -> pb.HelloReply:
        request = pb.HelloRequest(protocol=PROTOCOL, namespace=namespace, name=name)
        try:
            reply = self.stubs["Hello"](request, timeout=deadline.left())
        except grpc.RpcError as e:
            if e.code() in ANSWERED:
                raise refusal(e) from None
            raise UnavailableError(f"no node answers at {path}: {e.code().name}: {e.details()}") from None
        if reply.protocol != PROTOCOL:
            raise UnavailableError(f"the node at {path} speaks protocol {reply.protocol}, want {PROTOCOL}")
        return reply

    def close(self) -> None:
        """Ends the client at the node. Twice is allowed."""
        if self.socket is not None:
            self.socket.close()
        if self.pid == os.getpid():  # a forked child has no threads of the channel's
            self.channel.close()

    def call(self, name: str, request: Any, timeout: float, number: int = 0) -> Any:
        """One call, with the caller filled in where the request has one. Errors are grpc.RpcError."""
        if hasattr(request, "caller"):
            request.caller.CopyFrom(self.caller)
            request.caller.call = number
        return self.stubs[name](request, timeout=timeout)

    def number(self) -> int:
        """Of the next call that touches memory."""
        return next(self._numbers)

    def exchange(self, request: pb.DescriptorRequest, deadline: Deadline, fd: Optional[int] = None) -> tuple[pb.DescriptorReply, int]:
        """One packet each way on the socket for descriptors; returns the reply and its descriptor, or -1. An UnavailableError leaves
        the socket unusable."""
        fds: list[int] = []
        try:
            self.socket.settimeout(deadline.left())
            socket.send_fds(self.socket, [request.SerializeToString()], [] if fd is None else [fd])
            self.socket.settimeout(deadline.left())
            data, fds, _, _ = socket.recv_fds(self.socket, PACKET, 4, socket.MSG_CMSG_CLOEXEC)
            if not data and self.over(0):  # else a reply that says nothing but success, which has no bytes
                raise UnavailableError("the node closed the socket for descriptors")
            reply = pb.DescriptorReply.FromString(data)
        except (OSError, ValueError) as e:
            _close_all(fds)
            raise UnavailableError(f"the socket for descriptors: {e}") from None
        if reply.code == 0 and len(fds) == (1 if request.HasField("allocate") else 0):
            return reply, fds[0] if fds else -1
        _close_all(fds)
        if reply.code == 0:
            raise UnavailableError(f"the node sent {len(fds)} descriptors")
        if reply.code == FAILED_PRECONDITION:
            raise GoneError(reply.reason)
        raise _of_code(_CODES.get(reply.code, "UNKNOWN"), reply.reason)

    def register(self, memory: Memory, deadline: Deadline) -> None:
        """Registers memory. An UnavailableError or a GoneError ends the link."""
        if isinstance(memory, DeviceMemory):
            self.regions[memory] = self._register_device(memory, deadline)
            return
        request = pb.DescriptorRequest(register_file=pb.RegisterFile(off=memory.off, len=memory.before + memory.length))
        reply, _ = self.exchange(request, deadline, memory.fd)
        self.regions[memory] = reply.region.region

    def _register_device(self, memory: DeviceMemory, deadline: Deadline) -> int:
        request = pb.RegisterDeviceRequest(ipc_handle=memory.handle, device=memory.device, off=memory.off, len=memory.length)
        try:
            return self.call("RegisterDevice", request, deadline.left()).region.region
        except grpc.RpcError as e:
            raise refusal(e) from None

    def over(self, seconds: float) -> bool:
        """Whether the node has ended, or let this client go, within so long: then it touches nothing any more."""
        if self.socket is None or self.socket.fileno() < 0:
            return False
        events = select.poll()
        events.register(self.socket.fileno(), select.POLLRDHUP)  # packets that another thread waits for are none of it
        return bool(events.poll(max(seconds, 0) * 1000))

    def quiesce(self, numbers: list[int], deadline: Deadline) -> bool:
        """Ends calls and returns whether the node has let go of their memory."""
        while True:
            try:
                self.call("Quiesce", pb.QuiesceRequest(calls=numbers), deadline.left())
                return True
            except grpc.RpcError as e:
                # It is only ever said when nothing of this client is touched.
                if e.code() == grpc.StatusCode.FAILED_PRECONDITION:
                    return True
            if self.over(min(0.05, deadline.left())):
                return True
            if deadline.over():
                return False


def _serialize(request: Any) -> bytes:
    return request.SerializeToString()


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _connect(path: str, deadline: Deadline) -> socket.socket:
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        s.settimeout(deadline.left())
        s.connect(path)
    except OSError as e:
        s.close()
        raise UnavailableError(f"socket {path}: {e}") from None
    return s


_CODES = {c.value[0]: c.name for c in grpc.StatusCode}


def refusal(e: grpc.RpcError) -> SpanpoolError:
    """The error of a call that the node refused as a whole."""
    return _of_code(e.code().name, e.details())


def _of_code(code: str, reason: Optional[str]) -> SpanpoolError:
    if code == "RESOURCE_EXHAUSTED":
        return LimitError(reason)
    if code == "FAILED_PRECONDITION":
        return GoneError(reason)
    if code == "UNAVAILABLE":
        return UnavailableError(reason)
    if code in ("CANCELLED", "DEADLINE_EXCEEDED"):
        return NoReplyError(f"{code}: {reason}")
    return CallError(code, reason or "")
