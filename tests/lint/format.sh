#!/usr/bin/env bash
# Every C file is as clang-format leaves it (`make format`).
set -u
. "$(dirname "$0")/common.bash"
failed=0
for file in $(c_files engine server clients tests); do
    clang-format "$file" | cmp -s - "$file" || { echo "$file: not formatted"; failed=1; }
done
exit $failed
