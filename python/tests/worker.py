"""A rank in a process of its own: offloads and loads for ever, verifies every byte, and writes a line for each round. For tests that kill
it. Arguments: the socket, a namespace, and a number that its keys are made of."""
import logging
import sys

from spanpool import umbp
from tests.host import Failed, Linker, Pool, scattered, wait

PAGES, ROWS, LAYERS = 24, 32, 13


def main():
    logging.getLogger("spanpool.umbp").setLevel(logging.CRITICAL)
    socket, namespace, number = sys.argv[1:]
    config = umbp.UMBPConfig()
    config.namespace = namespace
    config.standalone_process = umbp.UMBPStandaloneProcessConfig()
    config.standalone_process.address = socket
    client = umbp.UMBPClient(config)
    pools = [Pool("packed", range(LAYERS), [1728, 1728], ROWS, packed=True, share_lists=True), Pool("apart", range(LAYERS), [4096, 512], ROWS, shared=False)]
    linker = Linker(client, pools, LAYERS)
    n = 0
    while True:
        keys = [f"{number}.{n}.{i}" for i in range(PAGES)]
        rows = scattered(PAGES, ROWS, n)
        n += 1
        for pool in pools:
            pool.poison()
            for key, row in zip(keys, rows):
                pool.fill(key, row)
        try:
            wait(linker.offload(keys, rows))
            linker.lookup(keys)
            for pool in pools:
                pool.poison()
            rows = scattered(PAGES, ROWS, n + 1000)
            wait(linker.load(keys, rows))
        except Failed as e:
            print("failed", e, dict(client.counts), flush=True)
            continue
        for pool in pools:
            pool.check(dict(zip(rows, keys)))
        print("verified", flush=True)


if __name__ == "__main__":
    main()
