#!/bin/sh
# What does not depend on how busy the machine is, held to bench/testdata/structure.txt: wire bytes and allocations of a layer group, and
# the instructions of a call, as callgrind counts them: the difference of two numbers of calls, so that what surrounds them falls out.
set -u
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
. scripts/steps.sh
go test -count=1 -timeout 3m -run 'TestALayerGroupKeepsItsBounds' ./bench || exit 1
command -v valgrind >/dev/null || debian valgrind || { echo "valgrind is not there, and could not be installed"; exit 75; }
go test -c -o "$work/app.test" ./app && go test -c -o "$work/bench.test" ./bench || exit 1

# instructions PROGRAM BENCHMARK CALLS. One processor and no collection, so that what runs is always the same.
instructions() {
	GODEBUG=asyncpreemptoff=1 GOMAXPROCS=1 GOGC=off timeout 300 valgrind --tool=callgrind --callgrind-out-file=/dev/null \
		"$work/$1" -test.run '^$' -test.bench "$2" -test.benchtime "${3}x" 2>&1 | sed -n 's/.*Collected : //p'
}

# hold NAME PROGRAM BENCHMARK FEW MANY
hold() {
	bound=$(awk -v of="$1" '$1 == "instructions" && $2 == of { print $3 }' bench/testdata/structure.txt)
	few=$(instructions "$2" "$3" "$4")
	many=$(instructions "$2" "$3" "$5")
	[ -n "$bound" ] && [ -n "$few" ] && [ -n "$many" ] || { echo "$1: no count (few: $few, many: $many, bound: $bound)"; return 1; }
	each=$(((many - few) / ($5 - $4)))
	echo "$1: $each instructions a call, bound $bound"
	[ "$each" -gt 0 ] && [ "$each" -le "$bound" ] || { echo "$1: $each instructions a call, and the bound is $bound"; return 1; }
}

# Only the test binaries know where their data lies; these benchmarks have none.
failed=0
hold plan/range=73728B app.test 'GetCommitted/plan/range=73728B/page=4497408B' 100 300 || failed=1
hold group/inproc/range=1728B bench.test 'LayerGroup/inproc/range=1728B' 20 60 || failed=1
exit $failed
