#!/bin/sh
# What stands beside a redis-server, with Debian's: the same ranges from both, every byte checked.
set -eu
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. scripts/steps.sh
command -v redis-server >/dev/null || debian redis-server || { echo "redis-server is not there, and could not be installed"; exit 75; }
go test -count=1 -v -timeout 3m -run 'TestAllSidesOfSmallRanges|TestRangesOfEverySize|Redis' ./bench ./adapters/redis | tee "$work/log"
! grep -q '^ *--- SKIP' "$work/log" || { echo "with a redis-server there, a test was skipped"; exit 1; }
grep -q '^--- PASS: TestRangesOfEverySizeAreReadByAllSides' "$work/log" || { echo "the comparison was not run"; exit 1; }
# As people call it: a wrong byte, or no redis, is an exit status.
go run ./cmd/spanpool bench ranges --redis need --sizes 1728,73728 --runs 1 --output csv | tee "$work/ranges.csv"
[ "$(awk -F, 'NR > 1 && $6 > 0' "$work/ranges.csv" | wc -l)" = 2 ] || { echo "redis reached nothing"; exit 1; }
