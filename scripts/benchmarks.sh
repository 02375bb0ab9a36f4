#!/bin/sh
# Measures what docs/benchmarks publishes, and writes it there: a CSV a workload, with the machine, the commit and the command in
# front. An argument names the workloads to measure: ratios, layerwise, mixed, ceiling (all by default); BARS chooses among the ratios.
# It takes some twenty minutes, and should have the machine to itself.
set -eu
cd "$(dirname "$0")/.."
out=docs/benchmarks
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
go build -o "$bin/spanpool" ./cmd/spanpool

# publish NAME ARGS... runs a benchmark into NAME.csv. What fails leaves the file that was there.
publish() {
	name=$1
	shift
	{
		echo "# machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores, $(sed -n 's/^MemTotal: *//p' /proc/meminfo), $(uname -sr), $(go env GOVERSION)"
		echo "# commit: $(git rev-parse --short=12 HEAD)$(git diff --quiet HEAD -- app domain ports adapters inject bench cmd || echo ' with changes')"
		echo "# command: spanpool bench $* --output csv"
		"$bin/spanpool" bench "$@" --output csv
	} >"$bin/$name.csv"
	mv "$bin/$name.csv" "$out/$name.csv"
}

for what in ${*:-ratios layerwise mixed ceiling}; do
	case $what in
	ratios) publish ratios ratios ${BARS:+--bars "$BARS"} ;;
	layerwise)
		publish layerwise layerwise --preset deepseek-v3.2 --pages 32 --ranks 1,8 --requests 3 --offload-ranks 0 --link-gbps 16 --link-delay-us 50 --runs 3
		publish layerwise-whole layerwise --preset deepseek-v3.2 --pages 32 --ranks 1,8 --requests 3 --offload-ranks 0 --link-gbps 16 --link-delay-us 50 --runs 3 --fetch whole
		publish layerwise-fill layerwise --preset deepseek-v3.2 --pages 32 --ranks 1 --requests 3 --offload-ranks 0 --link-gbps 16 --link-delay-us 50 --runs 3 --fill 2
		publish layerwise-v4 layerwise --preset deepseek-v4 --pages 32 --ranks 1 --requests 3 --offload-ranks 0 --link-gbps 16 --link-delay-us 50 --runs 3
		;;
	mixed)
		publish mixed mixed --threads 1,2,4,8 --link-gbps 16 --link-delay-us 500 --runs 3
		publish mixed-shared-arena mixed --threads 1,2,4,8 --link-gbps 16 --link-delay-us 500 --runs 3 --shared-arena
		;;
	ceiling) publish ceiling ceiling ;;
	*) echo "unknown workload \"$what\", want some of: ratios, layerwise, mixed, ceiling" >&2; exit 2 ;;
	esac
done
