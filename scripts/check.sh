#!/bin/sh
# The static part: what can be said about the sources without running them.
set -u
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
. scripts/steps.sh

formatted() {
	unformatted=$(gofmt -l .)
	[ -z "$unformatted" ] || { echo "gofmt -w $unformatted"; return 1; }
}

# Runs the go:generate lines of ports with their destination changed, and compares.
mocks_current() {
	mkdir "$work/mocks"
	sed -n 's|^//go:generate \(.*\)\.\./mocks/|\1'"$work"'/mocks/|p' ports/*.go >"$work/generate"
	[ -s "$work/generate" ] || { echo "no go:generate line of mocks in ports"; return 1; }
	(cd ports && sh -e "$work/generate") || return 1
	diff -r -u mocks "$work/mocks" || { echo "mocks are not current: make generate"; return 1; }
}

scripts_parse() {
	for f in scripts/*.sh; do sh -n "$f" || return 1; done
	bash -n .ci/run
}

step gofmt formatted
step vet go vet ./...
step staticcheck go tool staticcheck ./...
step "module file" go mod tidy -diff
step "mocks are current" mocks_current
if [ -d inject ]; then
	step "wire is current" go tool wire diff ./inject
else
	note 'not run' "wire is current: inject is not there yet"
fi
step "no older idioms" go fix -diff ./...
step "builds on another system" env CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 go build ./...
step "scripts parse" scripts_parse
finish "make check"
