#!/bin/sh
# The part of the tests that speaks verbs, without a NIC: the adapter's tests under the race detector and two nodes over two devices, in a
# throw-away virtual machine with Soft-RoCE. It fails when the tests cover less than 80 % of the adapter. Speeds in there mean nothing.
set -u
cd "$(dirname "$0")/../.."
work=${RDMA_WORK:-$(mktemp -d)} # to keep the kernel from run to run
mkdir -p "$work"
[ -n "${RDMA_WORK:-}" ] || trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
. scripts/steps.sh

cannot() { echo "$1"; exit 75; }
[ "$(uname -m)" = x86_64 ] || cannot "the virtual machine is an x86_64 and this is a $(uname -m)"
command -v apt-cache >/dev/null || cannot "the kernel of the virtual machine comes from Debian, which this is not"

packages() {
	for p in qemu-system-x86 libibverbs-dev ibverbs-providers iproute2 busybox-static kmod cpio xz-utils gcc libc6-dev; do
		dpkg -s "$p" >/dev/null 2>&1 || missing="${missing:-} $p"
	done
	# shellcheck disable=SC2086 # a list
	[ -z "${missing:-}" ] || debian --no-install-recommends $missing
	[ -n "$(apt-cache depends linux-image-amd64 2>/dev/null)" ] || apt-get update -q
}

build() {
	export CGO_ENABLED=1
	go vet -tags rdma ./adapters/rdma/... ./cmd/... ./bench/ &&
		go test -tags rdma -race -covermode atomic -coverpkg ./adapters/rdma/... -c -o "$work/rdma.test" ./adapters/rdma &&
		go build -tags rdma,gpu -o "$work/spanpool" ./cmd/spanpool &&
		fakegpu &&
		go test -c -o "$work/e2e.test" ./e2e
}

# fakegpu is a GPU's runtime without a GPU. Its control block is a file of the guest's.
fakegpu() {
	cc -DRUNTIME=hip '-DCONTROL="/tmp/fakegpu"' -shared -fPIC -O1 -w -o "$work/libfakegpu.so" adapters/hip/fakehip/src/fakehip.c -lpthread
}

machine() {
	VM_TIMEOUT=${RDMA_TIMEOUT:-1200} sh scripts/rdma/vm.sh "$work" scripts/rdma/guest.sh "$work/rdma.test" "$work/e2e.test" "$work/spanpool" "$work/libfakegpu.so"
}

# The stub and C's declarations are no statements of the adapter.
coverage() {
	go tool cover -func "$work/out/cover" | awk '/^total:/ { sub(/%/, "", $3); print "adapters/rdma: " $3 " % of statements"; exit !($3 >= 80) }'
}

step packages packages
[ "$failures" -gt 0 ] || step build build
[ "$failures" -gt 0 ] || step "virtual machine" machine
[ "$failures" -gt 0 ] || step "coverage of 80 %" coverage
finish "make test-rdma"
