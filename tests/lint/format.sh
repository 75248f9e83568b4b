#!/usr/bin/env bash
# Every C file is as clang-format leaves it (`make format`).
set -u
. "$(dirname "$0")/common.bash"
c_files engine server clients tests | xargs -r clang-format --dry-run -Werror
