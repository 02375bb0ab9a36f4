"""The command `python3 -m spanpool.keys`. It is no part of the package's own module, which Python would warn of as loaded twice."""
import argparse
from dataclasses import fields

from spanpool.keys import Namespace


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m spanpool.keys", description="prints the fingerprint of a namespace")
    for f in fields(Namespace):
        parser.add_argument("--" + f.name.replace("_", "-"), type=int if f.type == "int" else str, default=f.default)
    print(Namespace(**vars(parser.parse_args())).fingerprint())


if __name__ == "__main__":
    main()
