#!/usr/bin/env bash
# Everything, tests and benches included, compiles without a warning.
set -u
. "$(dirname "$0")/common.bash"
${MAKE:-make} --no-print-directory -s CONFIG=lint WERROR=-Werror SAN= everything
