#!/bin/sh
# Instructions per weight of the decode kernels of an arm64 table, counted by running them: qemu logs every instruction that is executed.
# usage: instructions.sh BENCH_KERNELS [ISA]      an arm64 build's tests/bench_kernels; neon, dotprod or i8mm (default dotprod)
# What a call with 64 rows of 2048 columns executes more than one with 32 rows, over 32 * 2048.  For loops and loads alike, of weights that
# are packed.  QEMU: options for qemu-aarch64, e.g. "-L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=...".
set -eu
bench=${1:?usage: instructions.sh BENCH_KERNELS [ISA]}
isa=${2:-dotprod}
# shellcheck disable=SC2086
count() { qemu-aarch64 ${QEMU:-} -singlestep -d exec,nochain "$bench" once "$isa" "$1" "$2" 2>&1 | grep -c '^Trace'; }
for type in Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL MXFP4 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_XS F16 BF16; do
    awk -v type=$type -v isa="$isa" -v a="$(count $type 32)" -v b="$(count $type 64)" 'BEGIN { printf "%-8s %-7s %.3f instructions a weight\n", isa, type, (b - a) / (32 * 2048) }'
done
