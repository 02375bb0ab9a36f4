# Sourced by check.sh and test.sh, with work set to a temporary folder. A step is a command with a name; a failed step does not
# keep the next from running, and finish says what passed, what failed and what was not run. None is reported as another.

failures=0
summary=$work/summary
: >"$summary"

# step NAME COMMAND...
step() {
	step_name=$1
	shift
	printf '\n== %s: %s\n' "$step_name" "$*"
	step_began=$(date +%s)
	if "$@"; then
		note passed "$step_name ($(($(date +%s) - step_began)) s)"
	else
		note FAILED "$step_name: $*"
		failures=$((failures + 1))
	fi
}

# note passed|FAILED|'not run' WHAT
note() { printf '  %-8s %s\n' "$1" "$2" >>"$summary"; }

# debian PACKAGE... installs Debian packages where it may, and names them where it may not.
debian() {
	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		export DEBIAN_FRONTEND=noninteractive
		apt-get install -y -q "$@" || { apt-get update -q && apt-get install -y -q "$@"; }
	else
		echo "missing; as root on Debian: apt-get install $*" >&2
		return 1
	fi
}

# finish WHAT prints the summary, and exits with 1 when a step failed.
finish() {
	printf '\n== %s\n' "$1"
	cat "$summary"
	if [ "$failures" -gt 0 ]; then
		echo "$1: $failures of the steps above FAILED"
		exit 1
	fi
	echo "$1: every step that ran passed"
}
