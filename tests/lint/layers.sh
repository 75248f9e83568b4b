#!/usr/bin/env bash
# Who may include whom: clients -> (HTTP only) server -> (engine/engine.h only) engine -> libc.
set -u
. "$(dirname "$0")/common.bash"
failed=0

# complain WHAT: fails the step when stdin has lines, and prints them under WHAT.
complain() {
    local lines
    lines=$(cat)
    [ -z "$lines" ] && return
    printf '%s:\n%s\n' "$1" "$lines"
    failed=1
}

# includes FOLDER...: file:line:#include "path" of every include there.
includes() {
    local files
    files=$(c_files "$@")
    [ -z "$files" ] || grep -HnE '^\s*#\s*include' $files
}

includes engine | grep '"' | grep -v '"engine/' | complain 'engine includes only engine'
includes engine | grep 'microhttpd' | complain 'engine knows no HTTP'
includes engine | grep 'cJSON' | grep -v '^engine/model/checkpoint_json\.c:' |
    complain 'only engine/model/checkpoint_json.c includes cJSON.h in engine'
includes server | grep '"' | grep -vE '"server/|"engine/engine\.h"' |
    complain 'server includes only server and engine/engine.h'
includes server | grep 'microhttpd' | grep -v '^server/http\.c:' |
    complain 'only server/http.c includes microhttpd.h'
includes server | grep 'cJSON' | grep -v '^server/json/json_read\.c:' |
    complain 'only server/json/json_read.c includes cJSON.h in server'
includes clients | grep -E '"(engine|server|tests)/' | complain 'clients speak HTTP only'
includes engine server clients tests | grep '"' | grep -vE '"(engine|server|clients|tests)/' |
    complain 'quoted includes are paths from the root'

exit $failed
