"""A real node for tests: the binary that SPANPOOL names, or one that is built here."""
import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

_pause = threading.Event()
_built = None


def eventually(what, condition, seconds=20.0):
    """Waits for a condition, and fails when it does not hold in time."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        _pause.wait(0.01)


def binary():
    global _built
    if os.environ.get("SPANPOOL"):
        return os.environ["SPANPOOL"]
    if _built is None:
        folder = tempfile.mkdtemp(prefix="spanpool-python-")
        atexit.register(shutil.rmtree, folder, True)
        _built = os.path.join(folder, "spanpool")
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        subprocess.run(["go", "build", "-o", _built, "./cmd/spanpool"], cwd=root, check=True, timeout=600)
    return _built


class Sidecar:
    """A node with a socket in a folder of its own. It can be ended and started again, at the same socket."""

    def __init__(self, mib=256, *flags):
        self.folder = tempfile.mkdtemp(prefix="spanpool-python-")
        self.socket = os.path.join(self.folder, "engine.sock")
        self.log = os.path.join(self.folder, "log")
        self.flags = [f"--dram-bytes={mib}MiB", "--arena-get-bytes=16MiB", "--arena-put-bytes=16MiB", "--watermark-high=0", "--watermark-low=0", "--drain=1s", *flags]
        self.process = None
        atexit.register(self.close)
        self.start()

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [binary(), "serve", "--socket", self.socket, "--listen=127.0.0.1:0", "--data-listen=127.0.0.1:0", "--http=off",
                 "--node-id=python", *self.flags], stdout=log, stderr=log)
        eventually("the node answers: " + self.log, self.answers)

    def answers(self):
        if self.process.poll() is not None:
            with open(self.log, encoding="utf-8") as f:
                raise AssertionError("the node ended: " + f.read()[-2000:])
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            return s.connect_ex(self.socket) == 0

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        """SIGSTOP, and that every thread has seen it."""
        self.signal(signal.SIGSTOP)
        eventually("every thread is stopped", lambda: set(self.states()) == {"T"})

    def states(self):
        folder = f"/proc/{self.process.pid}/task"
        for thread in os.listdir(folder):
            with open(f"{folder}/{thread}/stat", encoding="utf-8") as f:
                yield f.read().rsplit(")", 1)[1].split()[0]

    def go_on(self):
        self.signal(signal.SIGCONT)

    def kill(self):
        """kill -9, and its end."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)

    def terminate(self):
        self.process.terminate()
        self.process.wait(30)

    def fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def maps(self):
        """Mappings of files in memory: those of clients among them."""
        with open(f"/proc/{self.process.pid}/maps", encoding="utf-8") as f:
            return sum("/memfd:" in line for line in f)

    def close(self):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
