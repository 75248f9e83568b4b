#!/usr/bin/env bash
# Calls that the product does not make.
set -u
. "$(dirname "$0")/common.bash"
failed=0
mapfile -t files < <(c_files engine server clients)
mapfile -t all_but_main < <(printf '%s\n' "${files[@]}" | grep -vx server/main.c)
mapfile -t all_but_config < <(printf '%s\n' "${files[@]}" | grep -vx server/config.c)

calls='atoi|atol|atoll|atof|v?sprintf|strcpy|strcat|strncpy|strtok|gets|alloca|s?rand|system'
grep_code "\b($calls|cJSON_GetObjectItem)\s*\(" -- "${files[@]}" &&
    echo 'banned calls' && failed=1
grep_code '\b_?exit\s*\(' -- "${all_but_main[@]}" &&
    echo 'only server/main.c exits' && failed=1
grep_code '\b(secure_)?getenv\s*\(|\benviron\b' -- "${all_but_config[@]}" &&
    echo 'only server/config.c reads the environment' && failed=1

exit $failed
