#!/bin/sh
# The same suites on this host's own GPU, bounded to five minutes.
set -u
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
. scripts/steps.sh

for d in /dev/kfd /dev/nvidia0; do [ -e "$d" ] && device=$d; done
[ -n "${device:-}" ] || { echo "there is no GPU: neither /dev/kfd nor /dev/nvidia0"; exit 75; }
command -v cc >/dev/null || debian gcc libc6-dev || { echo "no C compiler"; exit 75; }
export CGO_ENABLED=1 SPANPOOL_E2E_GPU=1
timeout 300 go test -tags gpu -count=1 -v -timeout 280s -run 'KeepsThePortsContract|EveryRoute' ./adapters/hip ./inject
