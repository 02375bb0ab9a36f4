#!/bin/sh
# The GPU's adapter and the routes over device memory, with a runtime that cc builds: its device memory faults when a CPU touches it.
# Then Debian's own libamdhip64, which has no device here, where it can be had.
set -u
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
. scripts/steps.sh

command -v cc >/dev/null || debian gcc libc6-dev || { echo "no C compiler"; exit 75; }
export CGO_ENABLED=1
packages="./adapters/hip/... ./inject ./cmd/spanpool/..."

# The newest of Debian 12; elsewhere its test says that it is not there.
ldconfig -p | grep -q libamdhip64 || debian libamdhip64-5 >/dev/null 2>&1 || echo "libamdhip64 cannot be installed here"

go vet -tags gpu $packages || exit 1
go test -tags gpu -count=1 -timeout 3m $packages || exit 1
go test -tags gpu -count=1 -timeout 5m -race ./adapters/hip/... ./inject || exit 1
