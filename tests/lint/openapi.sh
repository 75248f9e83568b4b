#!/usr/bin/env bash
# server/openapi.json is valid OpenAPI 3.1. Says so and passes where npm, or its registry, is not
# at hand; tests/http/test_openapi.py checks what needs no validator.
set -u
. "$(dirname "$0")/common.bash"
room=build/lint/openapi

command -v npm >/dev/null || { echo 'skipped: no npm'; exit 0; }
mkdir -p $room
if ! cmp -s tests/lint/openapi/package-lock.json $room/installed; then
    cp tests/lint/openapi/package*.json $room || exit 1
    npm ci --prefix $room --silent --no-audit --no-fund >/dev/null 2>&1 ||
        { echo 'skipped: the validator cannot be installed'; exit 0; }
    cp $room/package-lock.json $room/installed
fi
cp tests/lint/openapi/check.mjs $room && node $room/check.mjs server/openapi.json
