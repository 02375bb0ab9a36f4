"""The command `python3 -m spanpool.keys`. It is no part of the package's own module, which Python would warn of as loaded twice."""
import argparse
from dataclasses import fields

from spanpool.keys import Namespace

HELP = {
    "model": "name of the model (required)",
    "revision": "of the weights",
    "dtype": "of the cache, as fp8_e4m3 (required)",
    "layout": "how layers, heads and tokens lie in an object",
    "page_size": "tokens of a page (required)",
    "tp_size": "tensor parallel size, and no rank (required)",
    "pp_size": "pipeline parallel size",
    "cp_size": "context parallel size",
    "extra": "anything else that tells bytes apart",
}
# What engines' keys do not hold, and what differs between engines: left out, their objects would meet.
REQUIRED = ("model", "dtype", "page_size", "tp_size")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m spanpool.keys", description="Prints the fingerprint of a namespace, as SPANPOOL_NAMESPACE wants it.")
    for f in fields(Namespace):
        parser.add_argument("--" + f.name.replace("_", "-"), type=int if f.type == "int" else str, default=f.default, help=HELP[f.name],
                            required=f.name in REQUIRED)
    try:
        print(Namespace(**vars(parser.parse_args())).fingerprint())
    except ValueError as e:
        parser.error(str(e))


if __name__ == "__main__":
    main()
