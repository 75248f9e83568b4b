#!/usr/bin/env bash
# Everything, tests and benches included, compiles without a warning.
set -u
. "$(dirname "$0")/common.bash"
jobs=
[[ ${MAKEFLAGS:-} == *-j* ]] || jobs=-j$(nproc)
make $jobs --no-print-directory CONFIG=lint WERROR=-Werror SAN= everything >/dev/null
