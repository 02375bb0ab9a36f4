import contextlib
import ctypes
import gc
import mmap
import os
import signal
import socket
import tempfile
import threading
import time
import unittest
from unittest import mock

import numpy as np

from spanpool import (CallError, Client, GoneError, Handle, LimitError, Lists, NoReplyError, NotQuietError, Pattern, Placed, UnavailableError)
from spanpool import ipc
from spanpool.client import EXISTS, HIT, STORED, Reply, Runs
from spanpool.engine.v1 import engine_pb2 as pb
from spanpool.link import Deadline, Link
from tests.content import GUARD, POISON, content
from tests.sidecar import Sidecar, eventually

SIZE = 3 * 4096 + 40  # of an object: no multiple of a page


def whole(keys, memory, rows, stride=SIZE + 2 * GUARD, size=SIZE):
    """Objects of one size at rows of memory, each with guards around it."""
    return [Placed(keys, Pattern([0], [size], [memory], [GUARD], [stride], rows), [size])]


def reading(part):
    """The same of a get."""
    return [p._replace(sizes=()) for p in part]


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = Sidecar()

    @classmethod
    def tearDownClass(cls):
        cls.node.close()

    def client(self, **options):
        c = Client(self.node.socket, options.pop("namespace", self.id()), **options)
        self.addCleanup(c.close)
        return c

    def put(self, client, keys, memory=None):
        """Stores the content of keys."""
        stride = SIZE + 2 * GUARD
        memory = memory or client.allocate(stride * len(keys))
        for i, k in enumerate(keys):
            memory.buffer[i * stride + GUARD:i * stride + GUARD + SIZE] = content(k, SIZE)
        reply = client.put(whole(keys, memory, range(len(keys))))
        self.assertTrue(set(reply.status) <= {STORED, EXISTS}, reply)
        return memory

    def check(self, memory, row, key):
        """The bytes of an object at a row are right, and its guards are as they were."""
        stride = SIZE + 2 * GUARD
        b = memory.buffer[row * stride:(row + 1) * stride]
        np.testing.assert_array_equal(content(key, SIZE), b[GUARD:GUARD + SIZE])
        self.assertTrue((b[:GUARD] == POISON).all() and (b[GUARD + SIZE:] == POISON).all(), "a guard was written")


class ClientTest(Case):
    def test_a_node_that_is_slow_to_take_a_connection_is_waited_for(self):
        """The one between passes the first bytes on after 0.3 s, as a node on a busy host does."""
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as between:
            between.bind(os.path.join(folder, "s"))
            between.listen()
            ends = []
            os.symlink(self.node.socket + ".fd", os.path.join(folder, os.path.basename(self.node.socket) + ".fd"))

            def serve():
                while True:
                    try:
                        front = between.accept()[0]
                    except OSError:
                        return
                    back = socket.socket(socket.AF_UNIX)
                    ends.extend((front, back))
                    back.connect(self.node.socket)
                    time.sleep(0.3)  # what is tested, and no synchronisation
                    for source, to in ((front, back), (back, front)):
                        threading.Thread(target=forward, args=(source, to), daemon=True).start()

            def forward(source, to):
                with contextlib.suppress(OSError):
                    while data := source.recv(1 << 16):
                        to.sendall(data)
                with contextlib.suppress(OSError):
                    to.shutdown(socket.SHUT_WR)

            served = threading.Thread(target=serve, daemon=True)
            served.start()
            with Client(os.path.join(folder, "s"), self.id()) as client:
                self.assertEqual([False], client.exists(["k"]).found)
            between.shutdown(socket.SHUT_RDWR)
            served.join(10)
            self.assertFalse(served.is_alive())
            for end in ends:
                end.close()

    def test_one_key_in_place_of_a_list_is_refused(self):
        """Its letters would be keys: remove would drop theirs."""
        client = self.client()
        memory = self.put(client, ["a", "b", "ab"])
        for call in (lambda: client.remove("ab"), lambda: client.exists("ab"), lambda: client.exists(b"ab"),
                     lambda: client.get(reading(whole("ab", memory, range(2))))):
            with self.assertRaisesRegex((CallError, TypeError), "make it a list"):
                call()
        with self.assertRaises(TypeError):
            Handle("ab")
        self.assertEqual([True] * 3, client.exists(["a", "b", "ab"]).found)

    def test_hello_says_who_answers(self):
        hello = self.client().connect()
        self.assertEqual("python", hello.node)
        self.assertTrue(hello.abilities.ranged and hello.abilities.patterns and hello.abilities.register_file)
        self.assertGreater(hello.limits.keys, 0)

    def test_objects_come_back_as_they_were_put(self):
        c = self.client()
        keys = [f"k{i}" for i in range(5)]
        self.put(c, keys)
        memory = c.allocate((SIZE + 2 * GUARD) * 5)
        memory.buffer[:] = POISON
        reply = c.get(reading(whole(keys, memory, [4, 0, 3, 1, 2])))
        self.assertEqual([HIT] * 5, reply.status)
        for row, k in zip([4, 0, 3, 1, 2], keys):
            self.check(memory, row, k)

    def test_a_file_of_the_clients_own_is_read_into(self):
        c = self.client()
        self.put(c, ["k"])
        for name, seal in (("sealed", True), ("unsealed", False)):
            for off in (0, 4096, 4096 + 512):
                with self.subTest(name, off=off):
                    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                    self.addCleanup(os.close, fd)
                    os.ftruncate(fd, 1 << 16)
                    if seal:
                        import fcntl
                        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
                    mapping = mmap.mmap(fd, 1 << 16)
                    view = np.frombuffer(mapping, dtype=np.uint8)
                    view[:] = POISON
                    address = view.ctypes.data + off
                    for given in (fd, None):  # None: found by its address
                        memory = c.register(address, SIZE + 2 * GUARD, given, off if given is not None else 0)
                        self.assertEqual([HIT], c.get(reading(whole(["k"], memory, [0]))).status)
                        np.testing.assert_array_equal(content("k", SIZE), view[off + GUARD:off + GUARD + SIZE])
                        self.assertTrue((view[:off + GUARD] == POISON).all() and (view[off + GUARD + SIZE:] == POISON).all())
                        view[:] = POISON
                        c.deregister(memory)

    def test_private_memory_is_refused(self):
        c = self.client()
        private = np.zeros(1 << 20, dtype=np.uint8)
        with self.assertRaises(CallError):
            c.register(private.ctypes.data, private.nbytes)

    def test_lists_and_patterns_and_handles_name_the_same_bytes(self):
        c = self.client()
        self.put(c, ["a", "b"])
        memory = c.allocate(1 << 16)
        handle = Handle(["x", "a", "b"], [9, 4, 2])
        offs, lens = [8192, 100], [4000, 17]
        pattern = Pattern(offs, lens, [memory], [10, 5000], [8000], [4, 2])
        lists = Lists([2, 4], offs * 2, lens * 2, [memory], [4 * 8000 + 10, 4 * 8000 + 5000, 2 * 8000 + 10, 2 * 8000 + 5000])
        for name, part in [("pattern", Placed(["a", "b"], pattern)), ("lists", Placed(["a", "b"], lists)),
                           ("handle", Placed(Runs(handle, [1], [2]), pattern)), ("rows of the handle", Placed(Runs(handle, [1], [2]), pattern._replace(row=None))),
                           ("lists of a handle", Placed(Runs(handle, [1, 2], [1, 1]), lists))]:
            with self.subTest(name):
                memory.buffer[:] = POISON
                self.assertEqual([HIT, HIT], c.get([part]).status)
                want = np.full(1 << 16, POISON, dtype=np.uint8)
                for key, row in (("a", 4), ("b", 2)):
                    for off, n, base in zip(offs, lens, (10, 5000)):
                        want[row * 8000 + base:row * 8000 + base + n] = content(key, SIZE)[off:off + n]
                np.testing.assert_array_equal(want, memory.buffer)

    def test_a_handle_grows_and_is_named_anew_when_dropped(self):
        c = self.client()
        self.put(c, ["a", "b"])
        h = Handle(["a"])
        self.assertEqual([True], c.exists(h).found)
        h.append(["none", b"b"])
        self.assertEqual([True, False, True], c.exists(h).found)
        self.assertEqual(1, c.stats()[1]["handles"])
        c.drop(h)
        self.assertEqual(0, c.stats()[1]["handles"])
        self.assertEqual([False, True], c.exists(Runs(h, [1], [2])).found)

    def test_a_handle_larger_than_a_message_is_named_in_parts(self):
        c = self.client()
        h = Handle([f"{i:0400d}" for i in range(24000)])
        self.assertEqual(24000, len(c.exists(h).found))

    def test_exists_tells_the_leading_run(self):
        c = self.client()
        self.put(c, ["a", "b", "d"])
        self.assertEqual(([True, True, False, True], 2), tuple(c.exists(["a", "b", "c", "d"], hold=1)))
        self.assertEqual(([True, True, False, False], 2), tuple(c.exists(["a", "b", "c", "d"], leading_only=True)))

    def test_a_miss_and_an_unregistered_region_are_told_apart(self):
        c = self.client()
        self.put(c, ["a"])
        memory = c.allocate(1 << 16)
        reply = c.get([Placed(["a"], Pattern([0], [SIZE], [memory], [(1 << 16) - 5], [0], [0])), *reading(whole(["none"], memory, [0]))])
        self.assertEqual(["NOT_REGISTERED", "NOT_FOUND"], reply.names())
        self.assertIn("not in region", reply.failures[0])
        c.deregister(memory)
        self.assertEqual(["NOT_REGISTERED"], c.get(reading(whole(["a"], memory, [0]))).names())
        c.deregister(memory)  # again is no error

    def test_a_session_reads_a_version(self):
        c = self.client()
        self.put(c, ["a"])
        memory = c.allocate(1 << 16)
        with c.open_read() as session:
            self.assertEqual([HIT], session.get(reading(whole(["a"], memory, [0]))).status)
            self.assertEqual(1, c.stats()[1]["read_sessions"])
        self.assertEqual(0, c.stats()[1]["read_sessions"])

    def test_objects_are_written_in_parts(self):
        c = self.client()
        memory = c.allocate(1 << 16)
        memory.buffer[:SIZE] = content("w", SIZE)
        with c.open_write(["w", "x"], [SIZE]) as session:
            self.assertEqual([HIT, HIT], session.reserved.status)
            for off, n in ((4096, SIZE - 4096), (0, 4096)):
                self.assertEqual(["INVALID"], session.commit(["w"]).names())
                self.assertEqual([False], c.exists(["w"]).found)
                self.assertEqual([STORED], session.write([Placed(["w"], Pattern([off], [n], [memory], [off], [0], [0]))]).status)
            self.assertEqual([STORED], session.commit(["w"]).status)
        self.assertEqual([True, False], c.exists(["w", "x"]).found)
        memory.buffer[:] = POISON
        self.assertEqual([HIT], c.get(reading(whole(["w"], memory, [0]))).status)
        self.check(memory, 0, "w")
        self.assertEqual([STORED], c.put(whole(["x"], memory, [0])).status)  # its reservation was given back

    def test_removed_objects_are_gone(self):
        c = self.client()
        self.put(c, ["a"])
        self.assertEqual([True, False], c.remove(["a", "b"]))
        self.assertEqual([False], c.exists(["a"]).found)

    def test_namespaces_do_not_meet(self):
        a, b = self.client(namespace="a"), self.client(namespace="b")
        self.put(a, ["k"])
        self.assertEqual(([True], [False]), (a.exists(["k"]).found, b.exists(["k"]).found))

    def test_a_request_over_the_limit_names_it(self):
        c = self.client()
        with self.assertRaisesRegex(LimitError, "8388608"):
            c.exists([f"{i:0500d}" for i in range(20000)])
        with self.assertRaisesRegex(LimitError, "65536"):
            c.exists([str(i) for i in range(65537)])

    def test_no_node_is_an_error_at_once(self):
        c = Client("/nowhere/engine.sock", timeout=5)
        began = time.monotonic()
        with self.assertRaises(UnavailableError):
            c.exists(["a"])
        self.assertLess(time.monotonic() - began, 4)

    def test_a_closed_client_refuses(self):
        c = self.client()
        c.exists(["a"])
        c.close()
        c.close()
        with self.assertRaises(UnavailableError):
            c.exists(["a"])

    def test_threads_share_a_client(self):
        c = self.client()
        keys = [f"k{i}" for i in range(8)]
        self.put(c, keys)
        failures = []

        def load(n):
            try:
                memory = c.allocate((SIZE + 2 * GUARD) * 8)
                for _ in range(10):
                    memory.buffer[:] = POISON
                    self.assertEqual([HIT] * 8, c.get(reading(whole(keys, memory, range(8)))).status)
                    self.check(memory, n, keys[n])
                    self.assertTrue(all(c.exists(keys).found))
                c.deregister(memory)
            except BaseException as e:
                failures.append(e)

        threads = [threading.Thread(target=load, args=(i,)) for i in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        self.assertEqual([], failures)


    def test_a_status_that_is_unknown_here_is_no_success_and_has_a_name(self):
        reply = Reply([99, HIT], {}, 0, 0)
        self.assertEqual([False, True], reply.ok())
        self.assertEqual(["STATUS_99", "HIT"], reply.names())

    def test_what_no_message_holds_is_a_call_error(self):
        client = self.client()
        memory = self.put(client, ["a"])
        one = lambda off=0, key="a", sizes=(): [Placed([key], Pattern([off], [1], [memory], [0], [0], [0]), sizes)]
        for name, call in [("a negative offset", lambda: client.get(one(-1))), ("a huge one", lambda: client.get(one(1 << 64))), ("no key", lambda: client.get(one(key=None))),
                           ("text", lambda: client.get(one("0"))), ("a size that is none", lambda: client.put(one(key="b", sizes=["x"]))),
                           ("a wait", lambda: client.put(one(key="b", sizes=[1]), wait=-1)), ("a hold", lambda: client.exists(["a"], hold=1e30)),
                           ("no key of exists", lambda: client.exists([None])), ("a size of a session", lambda: client.open_write(["b"], [-1])),
                           ("no memory", lambda: client.allocate(-1)), ("too much", lambda: client.allocate(1 << 70)), ("bytes of a file", lambda: client.register(0, -1, 0))]:
            with self.subTest(name), self.assertRaises(CallError):
                call()
        self.assertEqual([HIT], client.get(one()).status, "nothing of it stays")

    def test_memory_of_nobody_is_its_keys_fault_alone(self):
        client = self.client()
        memory = self.put(client, ["a"])
        other = client.allocate(4096)
        client.deregister(other)
        parts = reading(whole(["a"], other, [0])) + reading(whole(["a"], memory, [0]))
        self.assertEqual(["NOT_REGISTERED", "HIT"], client.get(parts).names())

    def test_handles_that_ended_here_are_forgotten_there(self):
        client = self.client()
        for i in range(200):
            self.assertEqual([False], client.exists(Handle([str(i)])).found)
        self.assertLess(client.stats()[1]["handles"], 100)
        kept = Handle(["kept"])
        client.exists(kept)
        for i in range(200):
            client.exists(Handle([str(i)]))
        calls, real = [], Link.call
        with mock.patch.object(Link, "call", lambda link, name, *a: calls.append(name) or real(link, name, *a)):
            client.exists(kept)
        self.assertEqual(["BatchExists"], calls, "it is named still")


class DeviceTest(Case):
    """Memory of a GPU is registered by its handle: this node has none, so its answers are put in its place."""

    def test_a_node_without_a_gpu_refuses(self):
        c = self.client()
        self.assertFalse(c.connect().abilities.device_ipc)
        with self.assertRaises(CallError):
            c.register_device(1 << 40, 4096, bytes(64), "0000:c1:00.0")

    def test_a_handle_is_lent_and_lent_again_after_a_restart(self):
        c, asked = self.client(), []
        real = Link.call

        def call(link, name, request, *rest):
            if name != "RegisterDevice":
                return real(link, name, request, *rest)
            asked.append(request)
            return pb.RegisterDeviceReply(region=pb.Region(region=70 + len(asked)))

        fake = ipc.Runtime(lambda out, attribute, p: set_int(out, 3), lambda base, size, p: set_int(base, 1 << 40) or set_int(size, 1 << 20),
                           lambda handle, p: ctypes.memmove(handle, bytes(range(64)), 64) and 0, lambda out, n, d: ctypes.memmove(out, b"0000:C1:00.0\0", 13) and 0)
        with mock.patch.object(Link, "call", call):
            lent = ipc.lend(fake, (1 << 40) + 8192, 4096)
            self.assertEqual((bytes(range(64)), "0000:c1:00.0", 8192), tuple(lent))
            memory = c.register_device((1 << 40) + 8192, 4096, *lent)
            where = Pattern([0], [64], [memory], [128], [64], [1])
            parts = c._parts(c._state.link, [Placed(["k"], where)], Deadline(1))
            self.assertEqual(([71], [128]), (list(parts[0].pattern.region), list(parts[0].pattern.base)))
            with self.assertRaises(CallError):
                ipc.lend(fake, (1 << 40) + 8192, 1 << 20)  # beyond the allocation
            with self.assertRaises(CallError):
                ipc.lend(fake._replace(handle=lambda *_: 1), 1 << 40, 4096)
            c._state.retire(c._state.link)
            c.connect()
            self.assertEqual(2, len(asked))
            self.assertEqual((bytes(range(64)), "0000:c1:00.0", 8192, 4096), (asked[1].ipc_handle, asked[1].device, asked[1].off, asked[1].len))
            self.assertEqual(72, c._state.link.regions[memory])


def set_int(out, value):
    out._obj.value = value
    return 0


class EndTest(Case):
    """What is left of a client at the node, and in this process."""

    def clients(self):
        with Client(self.node.socket) as c:
            return c.stats()[0]["now.engine.clients"] - 1

    def test_the_finalizer_lets_go_of_everything(self):
        eventually("no client", lambda: self.clients() == 0)
        gc.collect()
        here = len(os.listdir("/proc/self/fd"))
        fds, maps = self.node.fds(), self.node.maps()
        for _ in range(5):
            c = Client(self.node.socket, self.id())
            memory = self.put(c, ["a"])
            self.assertEqual([HIT], c.get(reading(whole(["a"], memory, [0]))).status)
            session = c.open_read()
            self.assertEqual(1, self.clients())
            del c, session, memory
            gc.collect()
            eventually("the client is gone", lambda: self.clients() == 0)
        eventually("descriptors are back", lambda: self.node.fds() <= fds)
        eventually("mappings are back", lambda: self.node.maps() <= maps)
        eventually("descriptors of this process are back", lambda: len(os.listdir("/proc/self/fd")) <= here)

    def test_a_forked_child_does_not_keep_the_client_alive(self):
        c = Client(self.node.socket, self.id())
        c.exists(["a"])
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(write)
                try:
                    c.exists(["a"])
                except UnavailableError:
                    os.read(read, 1)
                    os._exit(0)
            finally:
                os._exit(1)
        os.close(read)
        c.exists(["a"])
        c.close()
        eventually("the client is gone, with the child alive", lambda: self.clients() == 0)
        os.close(write)
        self.assertEqual(0, os.waitpid(child, 0)[1])

    def test_a_child_does_not_wait_for_locks_of_threads_that_it_has_not(self):
        c = Client(self.node.socket, self.id())
        c.exists(["a"])
        with c._state.lock, c._state.registering:
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                try:
                    with mock.patch.object(c, "timeout", 1), contextlib.suppress(UnavailableError):
                        c.exists(["a"])
                    c.close()
                    os._exit(0)
                finally:
                    os._exit(1)
        self.assertEqual(0, os.waitpid(child, 0)[1])
        c.exists(["a"])
        c.close()


class FaultTest(Case):
    def setUp(self):
        self.node = Sidecar(64)
        self.addCleanup(self.node.close)

    @classmethod
    def setUpClass(cls):
        pass

    @classmethod
    def tearDownClass(cls):
        pass

    def test_a_node_that_was_started_anew_is_registered_with_again(self):
        for end in (self.node.kill, self.node.terminate):
            c = self.client()
            memory = self.put(c, ["a"])
            fd = os.memfd_create("test")
            os.ftruncate(fd, 1 << 16)
            mapping = mmap.mmap(fd, 1 << 16)
            address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
            own = c.register(address, 1 << 16, fd)
            os.close(fd)
            handle = Handle(["a"], [0])
            session = c.open_read()
            self.assertEqual([True], c.exists(handle).found)
            boot = c.connect().boot
            end()
            with self.assertRaises(UnavailableError):
                c.exists(["a"])
            self.node.start()
            self.assertEqual([False], c.exists(handle).found)
            self.assertNotEqual(boot, c.connect().boot)
            self.put(c, ["a"], memory)  # by its old name
            own.buffer[:] = POISON
            self.assertEqual([HIT], c.get([Placed(handle, Pattern([0], [SIZE], [own], [GUARD], [SIZE], None))]).status)
            self.check(own, 0, "a")
            with self.assertRaises(GoneError):
                session.get(reading(whole(["a"], memory, [0])))
            session.close()

    def test_registering_again_may_take_longer_than_the_call_that_needs_it(self):
        c = self.client()
        memory = self.put(c, ["a"])
        self.node.kill()
        self.node.start()
        real, go_on = Link.register, threading.Event()

        def register(link, m, deadline):
            go_on.wait(30)
            self.assertGreater(deadline.left(), 5)
            real(link, m, deadline)

        with mock.patch.object(Link, "register", register):
            for _ in range(3):
                with self.assertRaisesRegex(UnavailableError, "still connecting"):
                    c.exists(["a"], timeout=0.1)
            go_on.set()
            self.assertEqual([False], c.exists(["a"]).found)
        self.assertEqual(1, c.stats()[0]["now.engine.clients"], "one attempt for all")
        self.put(c, ["a"], memory)

    def test_a_stopped_node_bounds_every_call(self):
        c = self.client(timeout=0.5, quiet_timeout=0.5)
        memory = self.put(c, ["a"])
        self.node.stop()
        for name, call, error in [("exists", lambda: c.exists(["a"]), NoReplyError), ("get", lambda: c.get(reading(whole(["a"], memory, [0]))), NotQuietError),
                                  ("put", lambda: c.put(whole(["b"], memory, [0])), NotQuietError), ("quiesce", c.quiesce, NotQuietError),
                                  ("allocate", lambda: c.allocate(4096), UnavailableError)]:
            with self.subTest(name):
                began = time.monotonic()
                with self.assertRaises(error):
                    call()
                self.assertLess(time.monotonic() - began, 10)
        self.assertFalse(c.quiet)
        self.node.go_on()
        c.quiesce(20)
        self.assertTrue(c.quiet)
        self.assertTrue(eventually("it answers", lambda: self.answer(c)))
        self.assertEqual([HIT], c.get(reading(whole(["a"], memory, [0])), timeout=10).status)

    def answer(self, c):
        try:
            return c.exists(["a"]).found == [True]
        except (NoReplyError, UnavailableError):
            return False

    def test_a_killed_node_is_quiet(self):
        c = self.client(timeout=20)
        memory = self.put(c, ["a"])
        self.node.stop()
        ended = []

        def load():
            try:
                c.get(reading(whole(["a"], memory, [0])))
            except Exception as e:
                ended.append(e)

        t = threading.Thread(target=load)
        t.start()
        eventually("the call is under way", lambda: c._state.link.users > 0)
        self.node.kill()
        t.join(30)
        self.assertEqual([UnavailableError], [type(e) for e in ended])
        self.assertTrue(c.quiet)

    def test_a_killed_client_leaves_nothing(self):
        with Client(self.node.socket) as watcher:
            def clients():
                return watcher.stats()[0]["now.engine.clients"] - 1
            watcher.exists(["a"])
            self.assertEqual(0, clients())
            fds, maps = self.node.fds(), self.node.maps()
            for i in range(6):
                read, write = os.pipe()
                child = self.loading(write)
                os.close(write)
                self.assertEqual(b"x", os.read(read, 1))
                os.close(read)
                child.kill()
                child.wait(30)
                eventually("the client is gone", lambda: clients() == 0)
            eventually("descriptors are back", lambda: self.node.fds() <= fds)
            eventually("mappings are back", lambda: self.node.maps() <= maps)
            counts = watcher.stats()[0]
            self.assertEqual(0, counts["now.engine.region_bytes"])

    def loading(self, write):
        """A process that puts and gets all the time, and says so once."""
        import subprocess
        import sys
        program = """
import os, sys
from spanpool import Client, Pattern, Placed
c = Client(sys.argv[1], "killed")
m = c.allocate(8 << 20)
said = False
n = 0
while True:
    keys = [f"{os.getpid()} {n} {i}" for i in range(8)]
    n += 1
    c.put([Placed(keys, Pattern([0], [1 << 20], [m], [0], [1 << 20], range(8)), [1 << 20])])
    c.get([Placed(keys, Pattern([0], [1 << 20], [m], [0], [1 << 20], range(8)))])
    if not said:
        os.write(int(sys.argv[2]), b"x")
        said = True
"""
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        return subprocess.Popen([sys.executable, "-c", program, self.node.socket, str(write)], pass_fds=[write], env={**os.environ, "PYTHONPATH": root})


if __name__ == "__main__":
    unittest.main()
