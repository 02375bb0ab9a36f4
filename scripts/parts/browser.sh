#!/bin/sh
# The benchmark's page in a headless Chromium: on a phone and on a desk, light and dark.
set -eu
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. scripts/steps.sh
is_there() { command -v chromium || command -v chromium-browser || command -v google-chrome; }
is_there >/dev/null || debian chromium || { echo "Chromium is not there, and could not be installed"; exit 75; }
go test -count=1 -v -timeout 5m -run TestThePageIsReadableInABrowser ./bench | tee "$work/log"
grep -q '^--- PASS: TestThePageIsReadableInABrowser' "$work/log" || { echo "the page was not looked at"; exit 1; }
