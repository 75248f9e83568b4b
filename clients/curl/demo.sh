#!/usr/bin/env bash
# The README's lines against a running server: ./clients/curl/demo.sh, or with another server
# ATTND_URL=http://host:port ./clients/curl/demo.sh. Shows each line, then what it answers.
set -euo pipefail
cd "$(dirname "$0")/../.."
URL=${ATTND_URL:-http://127.0.0.1:8080}

# Runs curl on a path of the server; an error reply ends the script.
call() {
    local path=$1
    shift
    printf '\n$ curl %s%s' "$URL" "$path"
    [ $# = 0 ] || printf ' %q' "$@"
    printf '\n'
    curl --silent --show-error --fail-with-body "$URL$path" "$@"
}

call /health
call /models
# A text goes into the cache of the session "story", which is made if it is new.
call /prefill -d '{"session":"story","text":"Once upon a time"}'
# The model goes on, each token sent as soon as it is computed; at most 256.
call /decode -N -d '{"session":"story","steps":256,"temperature":0.7,"seed":6,"stream":true}'
call /sessions/story/tokens
call /sessions/story -X DELETE
# Another model takes rows: four go into the cache of the session "demo".
call /prefill -d @clients/curl/prefill.json
# Five steps, each fed the last output, each sent as soon as it is computed.
call /decode -N -d @clients/curl/decode.json
call /decode -N -H 'Accept: text/event-stream' -d @clients/curl/decode.json
call /sessions/demo
# How strongly position 3 looked at those before it, in each head; then the same of a new step.
call '/sessions/demo/tensors/blocks.0.attn.hook_pattern?q=3:4'
call /decode -d '{"session":"demo","trace":{"tensors":["hook_pattern"],"top_k":3}}'
# The cached keys, as a safetensors file.
call /sessions/demo/tensors/past_key_values.0.key -H 'Accept: application/x-safetensors' -o /dev/null
# The cache against a fresh prefill: the same bits.
call /sessions/demo/verify -X POST
# Back to four positions; then the same steps again.
call /sessions/demo/truncate -d '{"length":4}'
call /decode -d '{"session":"demo"}'
call '/sessions?limit=10'
call /sessions/demo -X DELETE
