#!/usr/bin/env bash
# Scripts and JSON files parse.
set -u
. "$(dirname "$0")/common.bash"
failed=0
folders=$(ls -d .ci engine server clients tests docker 2>/dev/null)

for file in $(find $folders -name '*.sh' -o -name '*.bash' -o -path .ci/run); do
    bash -n "$file" || failed=1
done

find $folders \( -name '*.py' -o -name '*.json' \) -not -path '*/.*' -print0 |
    xargs -0r /usr/bin/python3 -c '
import json, sys

failed = False
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        json.loads(text) if path.endswith(".json") else compile(text, path, "exec")
    except (SyntaxError, ValueError) as error:
        print(f"{path}: {error}")
        failed = True
sys.exit(failed)' || failed=1

exit $failed
