#!/bin/sh
# A CPU profile of layer groups over TCP, both ends in one process: the largest costs of each, flat and with what they call, and the
# profiles in profile/ for go tool pprof. An argument is how long each is taken (default 5s).
set -eu
cd "$(dirname "$0")/.."
mkdir -p profile
go test -c -o profile/bench.test ./bench
for range in 589824B 1728B; do
	of=profile/tcp-$range.pb.gz
	(cd bench && ../profile/bench.test -test.run '^$' -test.bench "LayerGroup/tcp/range=$range" -test.benchtime "${1:-5s}" -test.cpuprofile "../$of") | grep '^Benchmark'
	printf '\n== %s: flat\n' "$of"
	go tool pprof -top -nodecount 12 profile/bench.test "$of" 2>/dev/null | tail -n +4
	printf '\n== %s: with what they call\n' "$of"
	go tool pprof -top -cum -nodecount 30 profile/bench.test "$of" 2>/dev/null | tail -n +4 | grep spanpool || true
done
