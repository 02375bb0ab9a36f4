#!/bin/sh
# The e2e cases over the devices that are found: this host's own network address (one looped), or two hosts and more that ssh reaches
# without a question (SPANPOOL_E2E_HOSTS=a.example,user@b.example). What was not run is listed as such, with the reason, and never as
# passed.
set -u
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
. scripts/steps.sh

# The cases that start pools of nodes. The others speak to one process, which has no device.
cases='TestThreeNodes|TestEachByteCrosses|TestAPeer|TestAWriter|TestAReader|TestAFullMedium|TestCalls|TestASecond|TestAWrong|TestABlack|TestGarbage|TestOneRead|TestWorkloads|TestTheSocket|TestABit|TestMetricsOf'

# over NAME VARIABLE=VALUE runs the cases at a place, and notes each of them.
over() {
	place=$1
	log=$work/$place.log
	printf '\n== %s: %s\n' "$place" "$2"
	{ env "$2" go test -count=1 -v -timeout 10m -run "$cases" ./e2e 2>&1; echo $? >"$work/rc"; } | tee "$log" | grep -E '^(ok|FAIL|panic:|[[:space:]]*--- |[[:space:]]+[^ ]+\.go:[0-9]+:)'
	rc=$(cat "$work/rc")
	if ! grep -qE '^--- (PASS|FAIL|SKIP)' "$log" || { [ "$rc" != 0 ] && ! grep -q '^--- FAIL' "$log"; }; then
		cat "$log"
		note FAILED "$place: the cases did not run to their end"
		failures=$((failures + 1))
	fi
	awk '/^=== (RUN|CONT|NAME)/ { t = $3 }
		/^ +[^ ]+[.]go:[0-9]+: / { w = $0; sub(/^ +[^ ]+[.]go:[0-9]+: /, "", w); if (!(t in why)) why[t] = w }
		/^--- / { print $2, $3, ($2 == "SKIP:" ? why[$3] : "") }' "$log" >"$work/results"
	while read -r what name why; do
		case $what in
		PASS:) note passed "$place: $name" ;;
		SKIP:) note 'not run' "$place: $name: $why" ;;
		*) note FAILED "$place: $name"
			failures=$((failures + 1)) ;;
		esac
	done <"$work/results"
}

address=$(ip -o addr show scope global up 2>/dev/null | awk '$3 == "inet" { sub("/.*", "", $4); print $4; exit }')
if [ -n "${SPANPOOL_E2E_HOSTS:-}" ]; then
	over hosts "SPANPOOL_E2E_HOSTS=$SPANPOOL_E2E_HOSTS"
else
	note 'not run' "two hosts: SPANPOOL_E2E_HOSTS names none"
	if [ -n "$address" ]; then
		over looped "SPANPOOL_E2E_ADDRESS=$address"
	else
		note 'not run' "one looped: no network interface of this host has an address beyond loopback"
	fi
fi

# Devices that are tried by hand.
devices() { ls -d "$@" 2>/dev/null | tr '\n' ' '; }
rdma=$(devices /sys/class/infiniband/*)
note 'not run' "rdma: ${rdma:-no device is here; }${rdma:+is here; see docs/rdma.md for what to run on it; }make test-rdma has Soft-RoCE"

# The GPU's suites on the one of this host.
printf '\n== hbm: sh scripts/parts/hip-device.sh\n'
{ sh scripts/parts/hip-device.sh 2>&1; echo $? >"$work/rc"; } | tee "$work/gpu.log" | grep -vE '^(=== |[[:space:]]*--- PASS)'
case "$(cat "$work/rc")" in
0) note passed "hbm: the contract suites and every route" ;;
75) note 'not run' "hbm: $(tail -n 1 "$work/gpu.log")" ;;
*) note FAILED "hbm: sh scripts/parts/hip-device.sh"
	failures=$((failures + 1)) ;;
esac
finish "make e2e-hardware"
