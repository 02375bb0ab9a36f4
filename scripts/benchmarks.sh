#!/bin/sh
# Measures what docs/benchmarks publishes, and writes it there as it goes: a CSV for each bar and each shape, with the machine, the
# commit, the time and the command in front, and at the end results.md and report.html over all that is there. What fails leaves the
# file that was there, with the rows that it had as FILE.failed beside it; it is named at the end and makes the exit status 1. The rest
# is measured all the same.
#
#   sh scripts/benchmarks.sh [WHAT...]    what: ceiling ratios ranges mixed shapes micro report; all but micro by default
#   BARS=restore-1,mixed-4                these of the ratios
#   SHAPES=wire,group-61                  these of the shapes
#   RUNS=3                                runs of each shape, of which a figure is the median; one by default, three by make bench
#   ALL=1                                 micro too, and three runs
#   QUICK=1 OUT=FOLDER                    all of it, of a few pages and a single pair, to see that it runs to the end
#
# It should have the machine to itself. RUNS and PAIRS make it shorter, and its figures none to publish.
set -u
cd "$(dirname "$0")/.."
[ -z "${QUICK:-}" ] || [ -n "${OUT:-}" ] || { echo "QUICK=1 gives no figures to publish: want OUT=FOLDER" >&2; exit 2; }
out=${OUT:-docs/benchmarks}
[ -z "${QUICK:-}" ] || PAIRS=1
mkdir -p "$out" || exit 1
runs=${RUNS:-${ALL:+3}}
runs=${runs:-1}
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
trap 'exit 130' INT TERM
go build -o "$bin/spanpool" ./cmd/spanpool || exit 1
failed=
began=$(date +%s)

about() {
	echo "# machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores, $(sed -n 's/^MemTotal: *//p' /proc/meminfo), $(uname -sr), $(go env GOVERSION)"
	echo "# commit: $(git rev-parse --short=12 HEAD)$(git diff --quiet HEAD -- app domain ports adapters inject bench cmd || echo ' with changes')"
	echo "# time: $(date -u +%Y-%m-%dT%H:%MZ), load before $(cut -d ' ' -f 1 /proc/loadavg)"
}

# publish FILE ARGS... runs a benchmark into FILE.csv.
publish() {
	file=$1
	shift
	mkdir -p "$out/$(dirname "$file")"
	{
		about
		echo "# command: spanpool bench $* --output csv"
	} >"$bin/now.csv"
	printf '%5d s  %s\n' $(($(date +%s) - began)) "$file"
	if "$bin/spanpool" bench "$@" --output csv >>"$bin/now.csv"; then
		mv "$bin/now.csv" "$out/$file.csv"
		rm -f "$out/$file.failed"
	else
		mv "$bin/now.csv" "$out/$file.failed"
		failed="$failed $file"
	fi
}

is_wanted() { case ",${SHAPES:-$1}," in *",$1,"*) true ;; *) false ;; esac }

# shape NAME ARGS... measures a shape over the modelled link and over TCP, by ranges and by whole objects.
shape() {
	name=$1
	shift
	is_wanted "$name" || return 0
	for way in link tcp; do
		case $way in
		link) over="--link-gbps 16 --link-delay-us 50" ;;
		tcp) over="--transport tcp" ;;
		esac
		for fetch in ranged whole; do
			# shellcheck disable=SC2086 # words
			publish "shapes/$name-$way-$fetch" layerwise "$@" $over --fetch "$fetch" --runs "$runs" ${QUICK:+--pages 2 --requests 1}
		done
	done
}

# alone NAME ARGS... is a shape that has no comparison.
alone() {
	name=$1
	shift
	is_wanted "$name" || return 0
	publish "shapes/$name-link-ranged" layerwise "$@" --link-gbps 16 --link-delay-us 50 --runs "$runs" ${QUICK:+--pages 2 --requests 1}
	publish "shapes/$name-tcp-ranged" layerwise "$@" --transport tcp --runs "$runs" ${QUICK:+--pages 2 --requests 1}
}

# The shapes of rules.md section 7. Figures are of 32 pages where nothing else is said.
shapes() {
	v32="--preset deepseek-v3.2 --pages 32"
	indexer="--preset deepseek-v3.2-indexer"
	three=412
	[ -z "${QUICK:-}" ] || three=26
	# shellcheck disable=SC2086 # words
	{
		shape restore $v32 --ranks 1,2,4,8 --requests 1 --offload-ranks 0
		shape restore-offload $v32 --ranks 1,8 --requests 2
		shape wire $v32 --ranks 1 --requests 3 --offload-ranks 0
		shape wire-medium-of-3 $v32 --ranks 1 --requests 3 --offload-ranks 0 --medium-mib "$three" # of the four sets, as the reference's had
		alone wire-pull $v32 --ranks 1 --requests 3 --offload-ranks 0 --locality pull
		alone wire-no-prefetch $v32 --ranks 1 --requests 3 --offload-ranks 0 --locality pull --no-prefetch
		alone no-prefetch $v32 --ranks 8 --requests 1 --offload-ranks 0 --locality pull --no-prefetch
		alone local $v32 --ranks 1,8 --requests 1 --offload-ranks 0 --local-only
		alone fill $v32 --ranks 1 --requests 3 --offload-ranks 0 --fill 2
		shape shared-keys $v32 --ranks 8 --requests 1 --offload-ranks 0 --shared-keys
		shape group-2 $v32 --ranks 8 --requests 1 --offload-ranks 0 --layer-group 2
		shape group-61 $v32 --ranks 4 --requests 1 --offload-ranks 0 --layer-group 61
		shape interleaved $v32 --ranks 8 --requests 1 --offload-ranks 0 --interleave-groups
		shape small-one-call $indexer --pages 32 --ranks 8 --requests 2 --offload-ranks 0 --layer-group 61
		shape small-group-8 $indexer --pages 32 --ranks 8 --requests 2 --offload-ranks 0
		shape small-group-1 $indexer --pages 128 --ranks 8 --requests 1 --offload-ranks 0 --layer-group 1
		shape three-pools --preset deepseek-v4 --pages 32 --ranks 1,8 --requests 2 --offload-ranks 0
		shape three-pools-bytes-in-one --pools kv:61:23446 --pages 32 --ranks 1,8 --requests 2 --offload-ranks 0
	}
}

# Gets and puts at once, with an arena a direction and with one for both.
mixed() {
	for way in "" -tcp; do
		case $way in
		"") over="--link-gbps 16 --link-delay-us 500" ;;
		-tcp) over="--transport tcp" ;;
		esac
		# shellcheck disable=SC2086 # words
		{
			publish "mixed$way" mixed --threads 1,2,4,8 $over --runs "$runs" ${QUICK:+--calls 2 --rounds 1}
			publish "mixed$way-shared-arena" mixed --threads 1,2,4,8 $over --runs "$runs" --shared-arena ${QUICK:+--calls 2 --rounds 1}
		}
	done
}

# bars is the names of all.
bars() { "$bin/spanpool" bench ratios --help | sed -n 's/^Bars: //p' | tr -d ','; }

ratios() {
	for bar in $(echo "${BARS:-$(bars)}" | tr ',' ' '); do
		publish "ratios/$bar" ratios --bars "$bar" ${PAIRS:+--runs "$PAIRS"}
		results
	done
}

micro() {
	printf '%5d s  micro\n' $(($(date +%s) - began))
	{
		about
		echo "# command: go test -run '^\$' -bench . -benchtime 200ms ./..."
		go test -run '^$' -bench . -benchtime 200ms ./... 2>&1 | grep -vE '^(PASS|\?|ok)'
	} >"$bin/micro.txt" && mv "$bin/micro.txt" "$out/micro.txt"
}

# results writes the bars as a table that a person reads. A bar whose last run failed, and one that was not run, have their rows too.
results() {
	{
		echo "# Bars"
		echo
		echo "Written by scripts/benchmarks.sh from ratios/*.csv, which have more columns, and the machine, the commit and the command of each."
		echo
		echo "| bar | figure | ours | theirs | ratio (low to high) | target | verdict | noisy pairs | of the ceiling | commit |"
		echo "|---|---|---|---|---|---|---|---|---|---|"
		for f in "$out"/ratios/*.csv; do
			[ ! -f "$f" ] || awk -F, '
				/^# commit: / { sub(/^# commit: /, ""); commit = $0 }
				/^#/ { next }
				!at["bar"] { for (i = 1; i <= NF; i++) at[$i] = i; next }
				{ share = at["ceiling_pct"] ? $at["ceiling_pct"] : 0
				  printf "| %s | %s | %s | %s | %s (%s to %s) | %s | %s | %s of %s | %s | %s |\n", $at["bar"], $at["figure"], $at["ours"], $at["theirs"],
					$at["ratio"], $at["ratio_low"], $at["ratio_high"], $at["target"], $at["verdict"], $at["noisy"], $at["pairs"],
					(share > 0 ? share " %" : ""), commit }' "$f"
		done
		for f in "$out"/ratios/*.failed; do
			[ ! -f "$f" ] || echo "| $(basename "$f" .failed) | | | | | | the last run failed | | | $(sed -n 's/^# commit: //p' "$f") |"
		done
		for bar in $(bars); do
			[ -f "$out/ratios/$bar.csv" ] || [ -f "$out/ratios/$bar.failed" ] || echo "| $bar | | | | | | not run | | | |"
		done
	} >"$bin/results.md" && cp "$bin/results.md" "$out/results.md"
}

report() {
	results || failed="$failed results.md"
	"$bin/spanpool" bench report "$out" --out "$out/report.html" || failed="$failed report"
}

default="ceiling ratios ranges mixed shapes report"
for what in ${*:-$default ${ALL:+micro}}; do
	case $what in
	ceiling) publish ceiling ceiling --fragments 1728,8448,37440,73728,589824 ;;
	ratios | shapes | mixed | micro | report) $what ;;
	ranges) publish ranges ranges ${QUICK:+--runs 1} ;;
	*) echo "unknown workload \"$what\", want some of: $default micro" >&2; exit 2 ;;
	esac
done
printf '%5d s  done\n' $(($(date +%s) - began))
[ -z "$failed" ] || { echo "failed, and left as it was:$failed" >&2; exit 1; }
