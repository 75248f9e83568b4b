#!/usr/bin/env bash
# Seven lessons about attention, on a running server's own numbers: ./clients/curl/lessons.sh [en|zh]
# They follow the examples of the MiniMind tutorial's chapter on attention: each prints shapes and
# numbers, then a check mark for each claim. Needs curl and jq. ATTND_URL names another server.
# Ends with status 1 if a claim does not hold.
set -euo pipefail
URL=${ATTND_URL:-http://127.0.0.1:8080}
case ${1:-${LANG:-en}} in zh*) LANGUAGE=zh ;; *) LANGUAGE=en ;; esac
SESSION=lesson-$$
FAILED=0
command -v jq >/dev/null || { echo "lessons.sh needs jq (apt-get install jq)" >&2; exit 1; }

# say ENGLISH CHINESE: prints one of the two.
say() {
    if [ "$LANGUAGE" = zh ]; then echo "$2"; else echo "$1"; fi
}

# check ENGLISH CHINESE VALUE: a claim; the value is "true" if it holds.
check() {
    local mark=✓
    [ "$3" = true ] || { mark=✗; FAILED=1; }
    say "  $mark $1" "  $mark $2"
}

# call PATH [curl's arguments]: asks the server; an error reply ends the script.
call() {
    local path=$1
    shift
    curl --silent --show-error --fail-with-body "$URL$path" "$@" || { echo >&2; exit 1; }
}

# prefill SESSION ROWS [more fields]: the whole output, row under row.
prefill() {
    jq -cn --arg s "$1" --argjson rows "$2" \
        "{session: \$s, model: \"seed-attention\", inputs: \$rows, output: \"all\"} + ${3:-{\}}" |
        call /prefill -d @-
}

# decode SESSION ROW: one step.
decode() {
    jq -cn --arg s "$1" --argjson row "$2" '{session: $s, input: $row}' | call /decode -d @-
}

# tensor SESSION NAME [QUERY]: its numbers, nested by its shape.
tensor() {
    call "/sessions/$1/tensors/blocks.0.attn.$2${3:+?$3}" | jq -c .data
}

cache() {
    call "/sessions/$1/tensors/past_key_values.0.$2" | jq -c .data
}

# Removes the sessions of a lesson, those that there are.
forget() {
    for name in "$@"; do
        curl --silent -X DELETE "$URL/sessions/$name" >/dev/null || true
    done
}
trap 'forget $SESSION $SESSION-b' EXIT

title() {
    printf '\n'
    say "$1" "$2"
    printf '%.0s-' {1..70}
    printf '\n'
}

# What jq is to know: shapes, products, closeness.
JQ='
def shape: if type == "array" then [length] + (.[0] | shape) else [] end;
def dot($a; $b): reduce range($a | length) as $i (0; . + $a[$i] * $b[$i]);
def norm: dot(.; .) | sqrt;
def near($x; $by): (. - $x) | (if . < 0 then -. else . end) < $by;
def digits: . * 10000 | round / 10000;
def rows($n): [range($n) as $i | [range(16) as $j | (($i * 7 + $j * $j * 3 + $i * $j) % 17 - 8) / 8]];
'
q() { jq -cr "$JQ $1" "${@:2}"; }

ROWS=$(q 'rows(7)' -n)

# ------------------------------------------------------------------------------------------------
title "1. Q/K/V: one projection, split into heads" "1. Q/K/V 线性投影与多头拆分"
prefill $SESSION "$(q '.[:5]' <<<"$ROWS")" >/dev/null
Q=$(tensor $SESSION hook_q) K=$(tensor $SESSION hook_k) V=$(tensor $SESSION hook_v)
say "input  [5, 16]   seq, hidden_size" "输入   [5, 16]   seq, hidden_size"
for name in Q K V; do
    echo "$name      $(q shape <<<"${!name}")"
done
say "       seq, heads or kv_heads, head_dim" "       seq, heads 或 kv_heads, head_dim"
check "Q has 4 heads of 8" "Q 有 4 个头, 每个 8 维" "$(q 'shape == [5, 4, 8]' <<<"$Q")"
check "K and V have 2 heads: each KV head serves 2 query heads (GQA)" \
    "K 和 V 只有 2 个 KV 头: 每个 KV 头供 2 个 Q 头共享 (GQA)" \
    "$(q '(.[0] | shape) == [5, 2, 8] and (.[1] | shape) == [5, 2, 8]' <<<"[$K,$V]")"

# ------------------------------------------------------------------------------------------------
title "2. repeat_kv: query heads share a KV head, and nothing is copied" \
    "2. repeat_kv: Q 头共享 KV 头, 内存中并不复制"
ROT_Q=$(tensor $SESSION hook_rot_q q=4:5) KEY=$(cache $SESSION key)
SCORES=$(tensor $SESSION hook_attn_scores q=4:5)
echo "past_key_values.0.key  $(q shape <<<"$KEY")"
say "scores of the last row, per query head:" "最后一行的分数, 每个 Q 头一行:"
q '.[][0] | map(digits) | "  " + tostring' <<<"$SCORES"
for head in 0 1 2 3; do
    kv=$((head / 2))
    check "query head $head: q . k / sqrt(8) with the rows of KV head $kv is its score" \
        "Q 头 $head: 用 KV 头 $kv 的行算 q·k/√8, 正是它的分数" \
        "$(q ".[0][0][$head] as \$q | .[1] as \$k | .[2][$head][0] as \$s |
            all(range(5); . as \$i | (dot(\$q; \$k[\$i][$kv]) / (8 | sqrt)) | near(\$s[\$i]; 1e-5))" \
            <<<"[$ROT_Q,$KEY,$SCORES]")"
done
forget $SESSION

# ------------------------------------------------------------------------------------------------
title "3. RoPE: one row at the positions 0, 1 and 2" "3. RoPE 旋转位置编码: 同一行放在位置 0, 1, 2"
prefill $SESSION "$(q '[.[1], .[1], .[1]]' <<<"$ROWS")" >/dev/null
NORMED=$(tensor $SESSION hook_k_normed) ROT=$(tensor $SESSION hook_rot_k)
say "before RoPE, KV head 0, at the positions 0, 1, 2:" "旋转前, KV 头 0, 位置 0, 1, 2:"
q '.[][0] | map(digits) | "  " + tostring' <<<"$NORMED"
say "after it:" "旋转后:"
q '.[][0] | map(digits) | "  " + tostring' <<<"$ROT"
check "before it, the three are equal: the projection knows no position" \
    "旋转前三者相同: 线性投影不知道位置" "$(q '.[0] == .[1] and .[1] == .[2]' <<<"$NORMED")"
check "at position 0 the angle is 0: nothing changes" "位置 0 的角度为 0: 不变" \
    "$(q '.[0][0] == .[1][0]' <<<"[$NORMED,$ROT]")"
check "lengths stay: $(q '[.[][0] | norm | digits] | tostring' <<<"$ROT")" \
    "模长不变: $(q '[.[][0] | norm | digits] | tostring' <<<"$ROT")" \
    "$(q '(.[0][0][0] | norm) as $n | all(.[1][][0]; norm | near($n; 1e-5))' <<<"[$NORMED,$ROT]")"
DOTS=$(q '[dot(.[0][0]; .[1][0]), dot(.[1][0]; .[2][0])]' <<<"$ROT")
say "  <k(0), k(1)>, <k(1), k(2)> = $DOTS" "  <k(0), k(1)>, <k(1), k(2)> = $DOTS"
check "products depend on the distance alone" "点积只取决于相对距离" \
    "$(q '.[0] as $d | .[1] | near($d; 1e-5)' <<<"$DOTS")"
forget $SESSION

# ------------------------------------------------------------------------------------------------
title "4. The causal mask: rows of zeros have equal scores" "4. 因果掩码: 全零的行, 分数都相等"
prefill $SESSION "$(q '[range(5) | [range(16) | 0]]' -n)" >/dev/null
SCORES=$(tensor $SESSION hook_attn_scores heads=0) PATTERN=$(tensor $SESSION hook_pattern heads=0)
say "scores, masked (row: query, column: key):" "施加掩码后的分数 (行: query, 列: key):"
q '.[0][] | "  " + tostring' <<<"$SCORES"
say "weights after softmax:" "softmax 之后的注意力权重:"
q '.[0][] | map(digits) | "  " + tostring' <<<"$PATTERN"
check "keys of the future: score -inf, weight exactly 0" "未来的 key: 分数为 -inf, 权重恰为 0" \
    "$(q '. as [$s, $p] | all(range(5) as $i | range($i + 1; 5) as $j | [$i, $j];
        . as [$i, $j] | $s[0][$i][$j] == "-inf" and $p[0][$i][$j] == 0)' <<<"[$SCORES,$PATTERN]")"
check "row i gives each of its i + 1 keys the weight 1 / (i + 1)" "第 i 行给它的 i + 1 个 key 各 1/(i+1)" \
    "$(q '. as $p | all(range(5) as $i | range($i + 1) as $j | [$i, $j];
        . as [$i, $j] | $p[0][$i][$j] | near(1 / ($i + 1); 1e-6))' <<<"$PATTERN")"
check "each row sums to 1" "每行之和为 1" "$(q 'all(.[0][]; add | near(1; 1e-6))' <<<"$PATTERN")"
forget $SESSION

# ------------------------------------------------------------------------------------------------
title "5. A whole forward pass" "5. 完整注意力前向传播"
OUTPUT=$(prefill $SESSION "$(q '.[:6]' <<<"$ROWS")" | jq -c .output)
KEY=$(cache $SESSION key) VALUE=$(cache $SESSION value)
PATTERN=$(tensor $SESSION hook_pattern q=5:6) Z=$(tensor $SESSION hook_z q=5:6)
echo "output                   $(q shape <<<"$OUTPUT")"
echo "past_key_values.0.key    $(q shape <<<"$KEY")"
echo "past_key_values.0.value  $(q shape <<<"$VALUE")"
check "the output has the input's shape" "输出与输入形状相同" "$(q 'shape == [6, 16]' <<<"$OUTPUT")"
check "the cache keeps K and V of every position" "KV Cache 保存了每个位置的 K 和 V" \
    "$(q '(.[0] | shape) == [6, 2, 8] and (.[1] | shape) == [6, 2, 8]' <<<"[$KEY,$VALUE]")"
check "z of query head 3 is its weights times the values of KV head 1" \
    "Q 头 3 的 z = 它的权重 × KV 头 1 的 V" \
    "$(q '. as [$p, $v, $z] | all(range(8); . as $d |
        ([range(6) | $p[3][0][.] * $v[.][1][$d]] | add) | near($z[0][3][$d]; 1e-5))' \
        <<<"[$PATTERN,$VALUE,$Z]")"
forget $SESSION

# ------------------------------------------------------------------------------------------------
title "6. Prefill, then decode" "6. prefill + decode 两阶段生成"
LENGTHS=$(prefill $SESSION "$(q '.[:4]' <<<"$ROWS")" | jq .length)
say "prefill: 4 rows at once, length $LENGTHS" "prefill: 一次 4 行, 缓存长度 $LENGTHS"
for i in 4 5 6; do
    length=$(decode $SESSION "$(q ".[$i]" <<<"$ROWS")" | jq .length)
    LENGTHS+=,$length
    say "decode: 1 row, length $length" "decode: 1 行, 缓存长度 $length"
done
check "each step adds one position" "每步增加一个位置" "$(q '. == [4, 5, 6, 7]' <<<"[$LENGTHS]")"
say "  A step projects one row, whatever the length; but it reads every key and value before it," \
    "  每步只投影一行, 与长度无关; 但要读取之前所有的 K 和 V,"
say "  so its attention grows with the length. Without the cache, it would project them all again." \
    "  所以注意力的开销随长度增长。没有缓存, 则每步都要把它们重新投影一遍。"

# ------------------------------------------------------------------------------------------------
title "7. The cache changes nothing" "7. KV Cache 正确性验证"
WITH=$(call "/sessions/$SESSION/tensors/blocks.0.hook_attn_out?q=3:7" | jq -c .data)
WITHOUT=$(prefill $SESSION-b "$ROWS" | jq -c '.output[3:]')
VERIFY=$(call "/sessions/$SESSION/verify" -X POST)
DIFF=$(q '[.[0][], .[1][]] as $r | [range(4) as $i | range(16) as $j |
    ($r[$i][$j] - $r[$i + 4][$j]) | if . < 0 then -. else . end] | max' <<<"[$WITH,$WITHOUT]")
say "4 rows, then 3 steps, against 7 rows at once: largest difference $DIFF" \
    "4 行 + 3 步, 与一次 7 行相比: 最大绝对差异 $DIFF"
say "verify recomputes the session: $VERIFY" "verify 重新计算整个会话: $VERIFY"
check "the same bits" "逐位相同" "$(q '.[0] == .[1]' <<<"[$WITH,$WITHOUT]")"
check "the cache is what a fresh prefill computes" "缓存与重新 prefill 的结果逐位相同" \
    "$(q .bit_identical <<<"$VERIFY")"

printf '\n'
[ $FAILED = 0 ] || { say "A claim does not hold." "有结论不成立。"; exit 1; }
say "All claims hold." "全部通过。"
