#!/bin/sh
# The Python client's tests, against a real node, with Debian's Python and its grpcio, protobuf and numpy. Names of test modules as
# arguments run these alone: sh scripts/parts/python.sh tests.test_keys
set -u
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
. scripts/steps.sh

[ "$(uname)" = Linux ] || { echo "memory is shared with the node on Linux only"; exit 75; }
python=/usr/bin/python3 # Debian's, which Debian's modules are for; others may come first in PATH
has() { "$python" -c 'import google.protobuf, grpc, numpy' 2>/dev/null; }
has || debian python3 python3-grpcio python3-protobuf python3-numpy || { echo "no python3 with grpcio, protobuf and numpy"; exit 75; }
has || { echo "$python has no grpcio, protobuf and numpy, though they were installed"; exit 75; }
command -v protoc >/dev/null || debian protobuf-compiler || { echo "protobuf-compiler cannot be installed"; exit 75; }

go build -o "$work/spanpool" ./cmd/spanpool || exit 1
export SPANPOOL="$work/spanpool" PYTHONDONTWRITEBYTECODE=1
cd python || exit 1
if [ $# -gt 0 ]; then
	timeout 600 "$python" -m unittest -v "$@"
else
	timeout 600 "$python" -m unittest discover -v -t . -s tests
fi
