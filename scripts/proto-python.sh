#!/bin/sh
# Generates python/spanpool/engine/v1/engine_pb2.py. Generate with a protoc of 3.20 or 3.21 (Debian 12 has 3.21): what a newer one makes
# refuses the older runtimes that the client is for. tests/test_proto.py says whether it is current. 75: there is no protoc here.
set -eu
cd "$(dirname "$0")/.."
command -v protoc >/dev/null || { echo "protoc is not installed; on Debian: apt-get install protobuf-compiler"; exit 75; }
case $(protoc --version) in
*" 3.20."* | *" 3.21."*) ;;
*) echo "$(protoc --version): want 3.20 or 3.21"; exit 75 ;;
esac
protoc -I proto --python_out=python spanpool/engine/v1/engine.proto
