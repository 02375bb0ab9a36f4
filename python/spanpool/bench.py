"""Reads of layer groups through the node, beside the same copies in this process: python3 -m spanpool.bench --socket PATH.

The rows are those of `spanpool bench engine`, which is the same from Go. Ratios are medians over pairs; figures of a busy machine say nothing.

The loop here is numpy's: one call of C for a layer of all objects, in the order of their addresses. That is the friendliest loop there is: a
loop in the order of the call, range by range, which is what an engine's own would be, costs more (Python's five times as much by its own
words). So `--spanpool BINARY` runs `BINARY bench engine` on the same node besides, before and after: its loop copies range by range in the
order of the call, in Go, and each row is compared with it too.
"""
from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from typing import Callable, NamedTuple

import numpy as np

from spanpool import umbp
from spanpool.client import EXISTS, HIT, STORED, Client, Handle, Pattern, Placed

POISON = 0xDB
GUARD = 64  # bytes between objects' places
BATCH = 128 << 20  # bytes of one put


class Shape(NamedTuple):
    """What one row reads: some layers of some objects a call."""

    name: str
    objects: int
    layers: int
    layer: int  # bytes
    group: int  # layers of a call

    @property
    def size(self) -> int:
        return self.layers * self.layer

    @property
    def stride(self) -> int:
        return (self.size + 63) // 64 * 64 + GUARD


SHAPES = [Shape("layer group", 32, 16, 73728, 8), Shape("small layers", 1024, 32, 1728, 8)]


class Row:
    """One shape: its objects at the node, and memory that they are read into, shared with the node. rows are in no order."""

    def __init__(self, client: Client, shape: Shape):
        self.client, self.shape = client, shape
        self.keys = [f"bench.{shape.name}.{shape.objects}x{shape.layers}x{shape.layer}.{i}" for i in range(shape.objects)]
        self.rows = np.random.default_rng(1).permutation(shape.objects)
        self.source = np.random.default_rng(2).integers(0, 256, shape.objects * shape.stride, dtype=np.uint8)
        self.memory = client.allocate(shape.objects * shape.stride)
        self.handle = Handle(self.keys, self.rows.tolist())
        self._store()

    def _store(self) -> None:
        s = self.shape
        self.memory.buffer[:] = self.source
        self.client.remove(self.keys)
        step = max(BATCH // s.size, 1)
        for lo in range(0, s.objects, step):
            rows = self.rows[lo:lo + step].tolist()
            reply = self.client.put([Placed(self.keys[lo:lo + step], Pattern([0], [s.size], [self.memory], [0], [s.stride], rows), [s.size])])
            if not set(reply.status) <= {STORED, EXISTS}:
                raise SystemExit(f"put: {reply.names()}: {reply.failures}")

    def by_pattern(self, first: int) -> None:
        """A call of the client's: layers [first, first + group) of every object."""
        s = self.shape
        offs = [layer * s.layer for layer in range(first, first + s.group)]
        reply = self.client.get([Placed(self.handle, Pattern(offs, [s.layer], [self.memory], offs, [s.stride], None))])
        if reply.status.count(HIT) != s.objects:
            raise SystemExit(f"get: {reply.failures}")

    def lists(self, first: int) -> tuple:
        """The same as an engine names it."""
        s = self.shape
        offs = [layer * s.layer for layer in range(first, first + s.group)]
        begin = self.memory.address
        ptrs = [[begin + row * s.stride + o for o in offs] for row in self.rows.tolist()]
        return self.keys, ptrs, [[s.layer] * s.group for _ in self.keys], [list(offs) for _ in self.keys]

    def loop(self, target: np.ndarray, first: int) -> None:
        """The bare copies: each range by itself, in C, between the places that it has."""
        s = self.shape
        item = np.dtype((np.void, s.layer))
        for layer in range(first, first + s.group):
            to = np.ndarray((s.objects,), item, target, layer * s.layer, (s.stride,))
            of = np.ndarray((s.objects,), item, self.source, layer * s.layer, (s.stride,))
            for row in self.rows.tolist() if s.layer > 16384 else ():  # large ones are not copied twice
                to[row:row + 1] = of[row:row + 1]
            if s.layer <= 16384:
                to[:] = of

    def check(self) -> None:
        s = self.shape
        want = self.source.reshape(s.objects, s.stride)[:, :s.size // (s.group * s.layer) * s.group * s.layer]
        have = self.memory.buffer.reshape(s.objects, s.stride)
        if not (have[:, :want.shape[1]] == want).all() or not (have[:, s.size:] == POISON).all():
            raise SystemExit("wrong bytes")


def timed(do: Callable[[], None]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def engine_loops(binary: str, socket: str, runs: int) -> dict[str, float]:
    """Microseconds of the loop of `spanpool bench engine`, by shape."""
    out = subprocess.run([binary, "bench", "engine", "--socket", socket, "--runs", str(runs), "--output", "json"], check=True, timeout=600,
                         stdout=subprocess.PIPE).stdout
    return {row["shape"]: row["loop_us"] for row in json.loads(out)}


def measure(row: Row, name: str, call: Callable[[int], None], runs: int) -> float:
    s = row.shape
    target = np.zeros(s.objects * s.stride, dtype=np.uint8)
    firsts = list(range(0, s.layers - s.group + 1, s.group))

    def verified() -> None:
        row.memory.buffer[:] = POISON
        for first in firsts:
            call(first)
        row.check()

    verified()
    for first in firsts:
        row.loop(target, first)
    calls, loops = [], []
    for i in range(runs * len(firsts)):
        first = firsts[i % len(firsts)]
        calls.append(timed(lambda: call(first)))
        loops.append(timed(lambda: row.loop(target, first)))
    verified()
    share = statistics.median(loop / took for took, loop in zip(calls, loops))
    print(f"{s.name + ', ' + name:28} {s.objects * s.group:7} ranges  {s.objects * s.group * s.layer / 2**20:7.1f} MiB  call {statistics.median(calls) * 1e6:8.0f} us"
          f"  loop {statistics.median(loops) * 1e6:8.0f} us  {100 * share:5.0f} %", flush=True)
    return statistics.median(calls) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m spanpool.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", required=True, help="of the node, whose medium has room for 200 MiB")
    parser.add_argument("--runs", type=int, default=15, help="pairs of each call")
    parser.add_argument("--spanpool", help="the binary, for the loop in the order of the call; the medium then needs 532 MiB free")
    options = parser.parse_args()
    before = engine_loops(options.spanpool, options.socket, 7) if options.spanpool else {}
    took = {}
    for shape in SHAPES:
        with Client(options.socket, "bench") as client:
            row = Row(client, shape)
            took[shape.name, "pattern"] = measure(row, "pattern", row.by_pattern, options.runs)
            took[shape.name, "umbp"] = measure(row, "umbp", _umbp(options.socket, row), options.runs)
            client.remove(row.keys)
    after = engine_loops(options.spanpool, options.socket, 7) if options.spanpool else {}
    for (shape_name, name), call in took.items():
        if shape_name in before:
            loop = (before[shape_name] + after[shape_name]) / 2
            print(f"{shape_name + ', ' + name:28} call {call:8.0f} us  loop in the order of the call {loop:8.0f} us  {100 * loop / call:5.0f} %"
                  f"  {100 * (call - loop) / loop:+5.0f} % of the loop's time")


def _umbp(socket: str, row: Row) -> Callable[[int], None]:
    """The call of an engine, lists included but not their making."""
    config = umbp.UMBPConfig()
    config.namespace = "bench"
    config.standalone_process = umbp.UMBPStandaloneProcessConfig()
    config.standalone_process.address = socket
    engine = umbp.UMBPClient(config)
    if not engine.register_memory(row.memory.address, row.memory.length):
        raise SystemExit("register")
    made = {first: row.lists(first) for first in range(0, row.shape.layers - row.shape.group + 1, row.shape.group)}

    def call(first: int) -> None:
        if not all(engine.batch_get_ranges_into_ptr(*made[first])):
            raise SystemExit(f"get: {engine.counts}")

    return call


if __name__ == "__main__":
    main()
