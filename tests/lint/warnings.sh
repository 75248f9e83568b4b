#!/usr/bin/env bash
# Everything, tests and benches included, compiles without a warning. In a build of its own, unless
# LINT_CONFIG names one that is made with WERROR=-Werror anyway.
set -u
. "$(dirname "$0")/common.bash"
jobs=
[[ ${MAKEFLAGS:-} == *-j* ]] || jobs=-j$(nproc)
make $jobs --no-print-directory CONFIG="${LINT_CONFIG:-lint}" WERROR=-Werror SAN= everything >/dev/null
