#!/bin/sh
# Generates the Go code of proto/ beside it, or with an argument into that folder. 75: there is no protoc here.
set -eu
cd "$(dirname "$0")/.."
out=${1:-proto}
command -v protoc >/dev/null || { echo "protoc is not installed; on Debian: apt-get install protobuf-compiler"; exit 75; }
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
go build -o "$bin/" google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
cd proto
# The header of a file names protoc's version, which is Debian's and not ours: it is left out, or every machine differs.
case $out in /*) ;; *) out=../$out ;; esac
find . -name '*.proto' | sort | sed 's|^\./||' | while read -r f; do
	PATH=$bin:$PATH protoc --go_out="$out" --go_opt=paths=source_relative --go-grpc_out="$out" --go-grpc_opt=paths=source_relative "$f"
done
find "$out" -name '*.pb.go' | while read -r f; do
	sed -i '/^\/\/ \(- \)\{0,1\}\(	\)\{0,1\}protoc  *v/d; /^\/\/ - protoc-gen-go-grpc v/d; /^\/\/ 	protoc-gen-go v/d; /^\/\/ versions:$/d' "$f"
done
