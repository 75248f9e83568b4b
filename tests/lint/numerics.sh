#!/usr/bin/env bash
# What keeps the bits the same everywhere: flags, instructions, and no libm on the step path.
set -u
. "$(dirname "$0")/common.bash"
failed=0
mapfile -t engine < <(c_files engine)
mapfile -t compute < <(c_files engine/compute)

grep -q -- '^NUMERICS := -ffp-contract=off$' Makefile ||
    { echo 'the Makefile lost -ffp-contract=off'; failed=1; }

flags='-ffast-math|-Ofast|-march=|-mtune=native|-funsafe-math|-fassociative-math|-freciprocal-math'
flags="$flags|-ffinite-math-only|-fno-signed-zeros|-fno-trapping-math|-ffp-contract=(fast|on)"
grep -nE -- "$flags" Makefile $(find docker -type f 2>/dev/null) /dev/null &&
    echo 'flags that change the bits' && failed=1
grep_code '#\s*pragma\s+(STDC\s+FP_CONTRACT\s+ON|GCC\s+optimize)|\boptimize\s*\(' \
    -- "${engine[@]}" && echo 'pragmas that change the bits' && failed=1

grep_code '\b_mm\w*_(rcp|rsqrt|dpbf16|maddubs|dpbusd)\w*\s*\(|\b_mm\w*_\w+_ph\s*\(' \
    -- "${compute[@]}" &&
    echo 'instructions that are approximate, saturate, or compute in half precision' && failed=1

libm='exp|exp2|expm1|log|log2|log10|log1p|pow|sin|cos|tan|sincos|sinh|cosh|tanh|atan|atan2|hypot'
grep_code "\b($libm|cbrt|erf|fmod|fdim)f?\s*\(" -- "${compute[@]}" &&
    echo 'libm differs between machines: only fma and sqrt are exact' && failed=1

exit $failed
