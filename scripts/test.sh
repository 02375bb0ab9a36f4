#!/bin/sh
# The tests. What needs a device or a server that not every machine has is a part, scripts/parts/NAME.sh: it exits with 75, and
# the reason on its last line, where it cannot be run. SPANPOOL_REQUIRE=rdma,hip,hip-device,redis,python,browser,structure names parts that must run:
# for them a skip is a failure. The Go tests see it too.
set -u
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
. scripts/steps.sh

parts="rdma hip hip-device redis python browser structure"
required=$(echo "${SPANPOOL_REQUIRE:-}" | tr ',' ' ')
for r in $required; do
	case " $parts " in
	*" $r "*) ;;
	*) echo "SPANPOOL_REQUIRE: unknown part \"$r\", want some of: $parts" >&2; exit 2 ;;
	esac
done

is_required() { case " $required " in *" $1 "*) true ;; *) false ;; esac }

# gotest runs go test and shows a line per package, of failures everything, and puts the skipped tests into the summary.
gotest() {
	log=$work/go.log
	{ go test -v -timeout 10m "$@" 2>&1; echo $? >"$work/rc"; } | tee "$log" | grep -E '^(ok|FAIL|panic:|[[:space:]]*--- FAIL)'
	awk '/^=== (RUN|CONT|NAME)/ { t = $3 }
		/^ +[^ ]+[.]go:[0-9]+: / { w = $0; sub(/^ +[^ ]+[.]go:[0-9]+: /, "", w); why[t] = w }
		/^ *--- SKIP/ { print $3 ": " why[$3] }' "$log" >>"$work/skipped"
	if [ "$(cat "$work/rc")" != 0 ]; then
		grep -vE '^(=== |[[:space:]]*--- PASS|PASS$|ok|[?])|\[rapid\] OK' "$log"
		return 1
	fi
}

# As on a bare machine. With cgo they run once more, raced.
tests() {
	(export CGO_ENABLED=0; go build ./... && gotest ./...)
}

# Left out: what holds no goroutine (the layers test sees to that in domain), and what runs other programs.
race() {
	command -v cc >/dev/null || debian gcc libc6-dev || return 1
	racy=$(go list ./... | grep -vE '/spanpool/spanpool(/domain|/mocks|/e2e)?$')
	(export CGO_ENABLED=1; gotest -race $racy)
}

# Every fuzz target for a moment: the corpus and some seconds of new inputs.
fuzz() {
	go test -list '^Fuzz' ./... >"$work/list" 2>&1 || { grep -v '^ok' "$work/list"; return 1; }
	awk '/^Fuzz/ { names[n++] = $1 } /^ok/ { for (i = 0; i < n; i++) print $2, names[i]; n = 0 }' "$work/list" >"$work/targets"
	count=$(wc -l <"$work/targets")
	[ "$count" -gt 0 ] || { echo "no fuzz target"; return 1; }
	seconds=$((60 / count))
	[ "$seconds" -le 3 ] || seconds=3
	[ "$seconds" -ge 1 ] || seconds=1
	while read -r pkg name; do
		echo "$name for $seconds s"
		go test -run '^$' -fuzz "^$name\$" -fuzztime "${seconds}s" "$pkg" >"$work/fuzz.log" 2>&1 </dev/null || { cat "$work/fuzz.log"; return 1; }
	done <"$work/targets"
}

# skips puts the skipped tests into the summary, a line for each reason.
skips() {
	sort -u "$work/skipped" | awk '{ test = $1; sub(/:$/, "", test); sub(/^[^ ]* /, "") }
		!n[$0]++ { first[$0] = test }
		END { for (why in n) print why ": " first[why] (n[why] > 1 ? " and " n[why] - 1 " more" : "") }' | sort >"$work/skips"
	while read -r line; do note 'not run' "$line"; done <"$work/skips"
}

# part NAME
part() {
	script=scripts/parts/$1.sh
	if [ ! -f "$script" ]; then
		if is_required "$1"; then
			note FAILED "$1: required, and not there yet"
			failures=$((failures + 1))
		else
			note 'not run' "$1: not there yet"
		fi
		return
	fi
	printf '\n== %s: sh %s\n' "$1" "$script"
	{ sh "$script" 2>&1; echo $? >"$work/rc"; } | tee "$work/part.log"
	case "$(cat "$work/rc")" in
	0) note passed "$1" ;;
	75) if is_required "$1"; then
			note FAILED "$1: required, and $(tail -n 1 "$work/part.log")"
			failures=$((failures + 1))
		else
			note 'not run' "$1: $(tail -n 1 "$work/part.log")"
		fi ;;
	*) note FAILED "$1: sh $script"
		failures=$((failures + 1)) ;;
	esac
}

: >"$work/skipped"
step vet go vet ./...
step tests tests
step race race
step fuzz fuzz
skips
for p in $parts; do part "$p"; done
finish "make test"
