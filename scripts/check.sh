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

# Generates proto/ elsewhere, and compares.
proto_current() {
	mkdir "$work/proto"
	sh scripts/proto.sh "$work/proto" || return 1
	(cd proto && find . -name '*.pb.go' | sort) >"$work/proto.here"
	(cd "$work/proto" && find . -name '*.pb.go' | sort) >"$work/proto.due"
	diff -u "$work/proto.here" "$work/proto.due" || { echo "proto has files of no .proto, or the other way round"; return 1; }
	while read -r f; do
		diff -u "proto/$f" "$work/proto/$f" || { echo "proto is not current: make generate"; return 1; }
	done <"$work/proto.due"
}

scripts_parse() {
	for f in scripts/*.sh scripts/parts/*.sh; do sh -n "$f" || return 1; done
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
if command -v protoc >/dev/null; then
	step "proto is current" proto_current
else
	note 'not run' "proto is current: protoc is not installed; on Debian: apt-get install protobuf-compiler"
fi
step "no older idioms" go fix -diff ./...
step "builds on another system" env CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 go build ./...
step "scripts parse" scripts_parse
finish "make check"
