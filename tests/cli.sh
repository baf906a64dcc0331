#!/bin/sh
# Every command of `hllm` on the shipped model: what it prints, what it refuses, its exit codes.
# usage: cli.sh [NAME...]      NAME: only these groups (usage run session interrupt tokenize score perplexity inspect bench devices plan prepare chat terminal errors)
# Environment: HLLM_TEST_ROOT (default: this project), HLLM_TEST_BUILD (default: its build/).  Exit: 0 all passed, 1 some failed, 77 no hllm.
# Values of the model come from llama.cpp (f32 weights and KV): see tests/golden.
set -u
root=${HLLM_TEST_ROOT:-$(cd "$(dirname "$0")/.." && pwd)}
hllm=${HLLM_TEST_BUILD:-$root/build}/bin/hllm
model=$root/models/tiny-relu2-q8_0.gguf
[ -x "$hllm" ] || { echo "cli.sh: no $hllm"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
in=/dev/null
checks=0 failed=0 last=

note() {                                               # note OK WHAT
    checks=$((checks + 1))
    if [ "$1" = 0 ]; then echo "ok   $2"
    else
        failed=$((failed + 1))
        echo "FAIL $2"
        echo "     after: $last"
        sed 's/^/     out: /' "$tmp/out" | head -n 5 | cut -c1-200
        sed 's/^/     err: /' "$tmp/err" | head -n 5 | cut -c1-200
    fi
}
h() {                                                  # h CODE ARG...: runs hllm with stdin from $in
    want=$1
    shift
    last="hllm $*"
    timeout 120 "$hllm" "$@" <"$in" >"$tmp/out" 2>"$tmp/err"
    got=$?
    [ "$got" = "$want" ]
    note $? "exit $want: hllm $(echo "$*" | cut -c1-90)"
}
out() { grep -qe "$1" "$tmp/out"; note $? "stdout has '$1'"; }
err() { grep -qe "$1" "$tmp/err"; note $? "stderr has '$1'"; }
same() { cmp -s "$1" "$2"; note $? "$3"; }
is() { test "$1" "$2" "$3"; note $? "$4: $1 $2 $3"; }
lines() { is "$(wc -l <"$tmp/$1")" -eq "$2" "lines of $1"; }
refused() {                                            # refused CODE PATTERN ARG...: nothing on stdout, one line on stderr
    code=$1 pattern=$2
    shift 2
    h "$code" "$@"
    err "$pattern"
    lines err 1
    is "$(wc -c <"$tmp/out")" -eq 0 "bytes of out"
}
objects() {                                            # every line of out is one JSON object
    bad=$(grep -cv '^{.*}$' "$tmp/out")
    [ -s "$tmp/out" ] && [ "$bad" = 0 ]
    note $? "one JSON object per line"
}

group_usage() {
    h 0
    out 'hllm perplexity'
    is "$(wc -l <"$tmp/out")" -le 24 "screen lines of hllm alone"
    h 0 --version
    out '^hllm [0-9]*\.[0-9]*\.[0-9]*$'
    for c in run chat tokenize detokenize score perplexity inspect bench devices plan prepare; do
        h 0 $c --help
        out "^hllm $c"
        is "$(wc -l <"$tmp/out")" -le 24 "screen lines of $c"
        is "$(wc -L <"$tmp/out")" -le 80 "columns of $c"
        refused 2 "unknown flag --no-such-flag" $c --no-such-flag
    done
    for c in ring; do refused 2 "$c is not in this version" $c x; done
    refused 2 'unknown command dance' dance
    refused 2 'm MODEL is missing' run -p x
    refused 2 'm needs a value' run -p x -m
    refused 2 'n needs a value' run -m "$model" -n --greedy
    refused 2 "n: 'x' is not a whole number" run -m "$model" -n x
    refused 2 't: -1 is not between' run -m "$model" -t -1
    refused 2 "temp: 'warm' is not a number" run -m "$model" --temp warm
    refused 2 'top-p: 1.5 is not between' run -m "$model" --top-p 1.5
    refused 2 "kv: 'f8' is none of f16|f32|q8_0" run -m "$model" --kv f8
    refused 2 "act: 'q4' is none of" run -m "$model" --act q4
    refused 2 "load: 'x' is none of" run -m "$model" --load x
    refused 2 "seed: '-1' is not a whole number" run -m "$model" --seed -1
    refused 2 "logit-bias: '5' is not ID:BIAS" run -m "$model" --logit-bias 5
    refused 2 'logprobs: 65 is not between' run -m "$model" --logprobs 65
    refused 2 'greedy takes no value' run -m "$model" --greedy=1
    refused 2 'p and -f exclude' run -m "$model" -p x -f y
    refused 2 "'x' belongs to no flag" run -m "$model" x
    refused 1 'has no predictors' run -m "$model" --mode predicted -p x
    refused 2 'plan comes with a later version' run -m "$model" --plan p.json
    refused 2 'f FILE is missing' perplexity -m "$model"
    refused 2 'which file' inspect
    refused 2 'unknown flag -p' chat -m "$model" -p x
}

group_run() {
    h 0 run -m "$model" -p "The capital of France is" -n 46 --act f32 --kv f32 --mode exact --greedy
    printf ' the LORD'\''s.\nThe LORD is the LORD, and the LORD is the LORD: the LORD is the LORD, and the LORD is the LORD.\n' >"$tmp/golden"
    printf 'The LORD is the way of the LORD: he is a man of understanding.' >>"$tmp/golden"
    head -c "$(wc -c <"$tmp/out")" "$tmp/golden" >"$tmp/golden.cut"
    is "$(wc -c <"$tmp/out")" -gt 150 "bytes of the answer"
    same "$tmp/out" "$tmp/golden.cut" "the golden continuation, byte for byte"
    cp "$tmp/out" "$tmp/answer"
    printf 'The capital of France is' >"$tmp/prompt"
    h 0 run -m "$model" -f "$tmp/prompt" -n 46 --act=f32 --kv=f32
    same "$tmp/out" "$tmp/answer" "-f gives what -p gives"
    in=$tmp/prompt
    h 0 run -m "$model" -n 46 --act f32 --kv f32 -t 1
    same "$tmp/out" "$tmp/answer" "stdin and one thread give what -p gives"
    in=/dev/null
    h 0 run -m "$model" -p "In the beginning" -n 20 --isa scalar --load mmap --kv q8_0 --stats
    for word in 'tok/s' 'bytes/token' 'peak' 'exact' 'active share'; do err "$word"; done
    h 0 run -m "$model" -p "In the beginning" -n 20 --temp 0.9 --seed 5
    cp "$tmp/out" "$tmp/a"
    h 0 run -m "$model" -p "In the beginning" -n 20 --temp 0.9 --seed 5 --load read
    same "$tmp/a" "$tmp/out" "the same seed repeats the run"
    h 0 run -m "$model" -p "In the beginning" -n 20 --temp 0.9 --seed 6
    ! cmp -s "$tmp/a" "$tmp/out"
    note $? "another seed is another run"
    h 0 run -m "$model" -p "In the beginning" -n 20 --temp 0.9 --seed 5 --top-k 1
    cp "$tmp/out" "$tmp/a"
    h 0 run -m "$model" -p "In the beginning" -n 20 --temp 0.9 --greedy --top-p 0.5 --min-p 0.1
    same "$tmp/a" "$tmp/out" "top-k 1 is greedy"
    h 0 run -m "$model" -p "In the beginning" -n 20 --greedy --repeat-penalty 1.5 --frequency-penalty 0.5 --presence-penalty 0.5
    ! cmp -s "$tmp/a" "$tmp/out"
    note $? "penalties change a greedy run"
    h 0 run -m "$model" -p "In the beginning" -n 5 --logit-bias 65:1000
    is "$(cat "$tmp/out")" = aaaaa "a biased token"
    h 0 run -m "$model" -p "In the beginning" -n 5 --logit-bias 0:1000 --json
    out '"finish":"end"'
    h 0 run -m "$model" -p "In the beginning" -n 5 --logit-bias 0:1000 --ignore-eos --json
    out '"finish":"length".*"n_generated":5'
    objects
    h 0 run -m "$model" -p "The capital of France is" -n 46 --act f32 --kv f32 --greedy --stop "RD's." --stop zzz
    is "$(cat "$tmp/out")" = " the LO" "text before a stop text"
    h 0 run -m "$model" -p "The capital of France is" -n 4 --act f32 --kv f32 --greedy --logprobs 3
    out '^token 259 logprob -[0-9.]* top 259:-[0-9.]* [0-9]*:-[0-9.]* [0-9]*:-[0-9.]*$'
    is "$(grep -c '^token ' "$tmp/out")" -eq 4 "token records"
    h 0 run -m "$model" -p "The capital of France is" -n 4 --act f32 --kv f32 --greedy --logprobs 2 --json
    objects
    is "$(grep -c '"type":"token"' "$tmp/out")" -eq 4 "token records"
    out '"type":"token","token":259,"logprob":-[0-9.]*,"top":\[\[259,-[0-9.]*\],\[[0-9]*,-[0-9.]*\]\],"text_end":4'
    out '"type":"end","finish":"length","n_prompt":8,"n_reused":0,"n_generated":4'
    out '"decode_tok_s":[1-9]'
    h 0 run -m "$model" -p "$(printf 'caf\351 \377\300')" -n 3
    h 0 run -m "$model" -p "the end<|end|>" -n 3 --parse-special
    h 0 run -m "$model" -p "In the beginning" -c 32 --ignore-eos --greedy
    err 'context of 32 tokens is full'
    last='hllm run ... >/dev/full'
    "$hllm" run -m "$model" -p "In the beginning" -n 5 >/dev/full 2>"$tmp/err"
    is $? -eq 1 "exit with a full stdout"
    err 'stdout cannot be written'
}

group_session() {
    h 0 run -m "$model" -p "In the beginning" -n 20 --greedy
    cp "$tmp/out" "$tmp/whole"
    h 0 run -m "$model" -p "In the beginning" -n 10 --greedy --save "$tmp/session"
    cp "$tmp/out" "$tmp/halves"
    h 0 run -m "$model" -n 10 --greedy --load-session "$tmp/session"
    cat "$tmp/out" >>"$tmp/halves"
    same "$tmp/whole" "$tmp/halves" "a saved session goes on as if it had not stopped"
    h 0 run -m "$model" -n 3 --load-session "$tmp/session" -p " And God said" --json
    out '"type":"end"'
    head -c 1000 "$tmp/session" >"$tmp/cut"
    refused 1 "$tmp/cut" run -m "$model" -n 3 --load-session "$tmp/cut"
    refused 1 "$tmp/none" run -m "$model" -n 3 --load-session "$tmp/none"
    refused 1 'HLLM_E_MISMATCH' run -m "$model" -n 3 --load-session "$tmp/session" --kv f32
    refused 1 'save .*/no/such/folder: .*/no/such: No such file' run -m "$model" -p x -n 1 --save "$tmp/no/such/folder"
    refused 1 'session is not a directory' run -m "$model" -p x -n 1 --save "$tmp/session/x"
    refused 1 '/dev/zero: longer than 268435456 bytes' run -m "$model" -f /dev/zero -n 1
    mkfifo "$tmp/fifo"
    h 1 run -m "$model" -p x -n 1 --save "$tmp/fifo"
    err 'not a regular file'
    test -p "$tmp/fifo"; note $? "a pipe stays a pipe"
    (ulimit -v 40000 && exec "$hllm" run -m "$model" -p x -n 1) >"$tmp/out" 2>"$tmp/err"; note $(($? != 1)) "exit 1 under ulimit -v"
    err 'needs\{0,1\} [0-9]* bytes.* \(leaves\|has\) [0-9]'
}

wait_for() {                                           # wait_for FILE PATTERN: at most 20 s
    for _ in $(seq 200); do
        grep -q "$2" "$1" 2>/dev/null && return 0
        sleep 0.1
    done
    return 1
}

group_interrupt() {
    last='hllm run, Ctrl-C'
    : >"$tmp/out"
    "$hllm" run -m "$model" -p "In the beginning" --ignore-eos --isa scalar --act f32 -t 1 --save "$tmp/kept" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    wait_for "$tmp/out" .
    note $? "an answer begins"
    kill -INT $pid
    wait $pid
    is $? -eq 130 "exit of an interrupted run"
    h 0 run -m "$model" -n 2 --load-session "$tmp/kept"
    mkfifo "$tmp/fifo"
    exec 3<>"$tmp/fifo"                                # both ways: neither opening nor writing waits for a reader
    last='hllm chat, Ctrl-C'
    : >"$tmp/out"                                      # the child empties it too, but maybe after we looked
    "$hllm" chat -m "$model" --chat-template chatml --ignore-eos --isa scalar --act f32 -t 1 <"$tmp/fifo" >"$tmp/out" 2>"$tmp/err" 3>&- &
    pid=$!
    echo "In the beginning" >&3
    wait_for "$tmp/out" .
    note $? "an answer begins"
    kill -INT $pid
    wait_for "$tmp/out" '\[stopped\]'
    note $? "Ctrl-C stops the answer"
    kill -INT $pid                                     # while it waits for a line: nothing happens
    sleep 0.2
    echo "/exit" >&3
    exec 3>&-
    wait $pid
    is $? -eq 0 "exit of a chat that was interrupted"
}

group_tokenize() {
    printf '\0a\0hello   world\0a\nb\r\nc\0"\\\001 caf\303\251\0<|end|>\0' >"$tmp/texts"
    in=$tmp/texts
    h 0 tokenize -m "$model"
    lines out 12
    is "$(sed -n 1,2p "$tmp/out" | tr '\n' '|')" = 'text ""|tokens|' "the empty text"
    is "$(sed -n 6p "$tmp/out")" = 'tokens 72 574 79 221 221 1171' "golden tokens"
    out '^text "a\\nb\\r\\nc"$'
    out '^tokens 65 199 66 202 199 67$'
    out '^text "\\"\\\\\\u0001 caf'
    cp "$tmp/out" "$tmp/tokens"
    h 0 tokenize -m "$model" --no-special --json
    objects
    out '{"text":"hello   world","tokens":\[72,574,79,221,221,1171\]}'
    h 0 tokenize -m "$model" --parse-special
    is "$(sed -n 12p "$tmp/out")" = 'tokens 0' "a parsed control token"
    in=$tmp/tokens
    h 0 detokenize -m "$model"
    printf '\0' >>"$tmp/out"
    same "$tmp/out" "$tmp/texts" "detokenize undoes tokenize, byte for byte"
    h 0 detokenize -m "$model" --json
    out '^{"text":"hello   world"}$'
    echo "72 574 79" >"$tmp/ids"
    in=$tmp/ids
    h 0 detokenize -m "$model"
    is "$(cat "$tmp/out")" = hello "text of one line"
    is "$(wc -c <"$tmp/out")" -eq 5 "bytes of one line"
    printf '1 2\n3 x4\n' >"$tmp/ids"
    h 1 detokenize -m "$model"
    err "line 2: 'x4' is not a token id"
    printf '65 188 66\n189\n189 67\n' >"$tmp/ids"       # a byte that is no UTF-8, and NUL bytes: written as they are
    h 0 detokenize -m "$model"
    is "$(od -An -tx1 "$tmp/out" | tr -d ' \n')" = 61ff620000000063 "NUL bytes in and between texts"
    h 0 detokenize -m "$model" --json
    is "$(tail -n 1 "$tmp/out")" = '{"text":"\u0000c"}' "a NUL byte in JSON"
    printf '65 66\0 67\n65\n' >"$tmp/ids"
    refused 1 'line 1: a NUL byte is not a token id' detokenize -m "$model"
    printf '65\n65 \0' >"$tmp/ids"
    h 1 detokenize -m "$model"
    err 'line 2: a NUL byte'
    echo 4096 >"$tmp/ids"
    refused 1 4096 detokenize -m "$model"
    in=/dev/null
    h 0 tokenize -m "$model"
    lines out 0
}

group_score() {
    printf 'The capital of France is\0a\0' >"$tmp/texts"
    in=$tmp/texts
    h 0 score -m "$model" --act f32 --kv f32 --top 3 --greedy 8
    is "$(sed -n 2p "$tmp/out")" = 'tokens 450 466 3654 443 269 986 2617 335' "golden tokens"
    out '^pos 0 next 466 nll 10\.311[0-9]* top 341:-3\.132[0-9] 450:-3\.268[0-9] 1285:-3\.69[56][0-9]$'
    out '^pos 1 next 3654 nll 9\.205[0-9]* top 399:-1\.014[0-9] '
    out '^pos 7 next -1 nll 0\.00000 top 259:'
    out '^greedy 259 341 499 14 199 450 341 335$'
    out "^greedy_text \" the LORD's.\\\\nThe LORD is\"$"
    is "$(grep -c '^text ' "$tmp/out")" -eq 2 "texts"
    lines out 17
    cp "$tmp/out" "$tmp/a"
    h 0 score -m "$model" --act f32 --kv f32 --top 3 --greedy 8 -t 1
    same "$tmp/a" "$tmp/out" "threads do not change a bit"
    h 0 score -m "$model" --act f32 --kv f32 --json
    objects
    lines out 2
    out '"positions":\[{"pos":0,"next":466,"nll":10\.311[0-9]*,"top":\[\[341,-3\.13'
    is "$(head -n 1 "$tmp/out" | grep -o '"top":\[[^}]*' | head -n 1 | grep -o '\[[0-9]*,' | wc -l)" -eq 10 "best ids by default"
    refused 1 'text 1 has 8 tokens, the context 4' score -m "$model" -c 4
    printf a >"$tmp/texts"                              # an SPM vocabulary: the answer's first space is part of it
    h 0 score -m "$root/tests/fuzz/seeds/model/llama.gguf" --greedy 4
    out '^greedy_text "    "$'
}

group_perplexity() {
    for _ in $(seq 40); do printf 'In the beginning God created the heaven and the earth.\n'; done >"$tmp/text"
    h 0 perplexity -m "$model" -f "$tmp/text" -c 64
    lines out 1
    out '^{"ppl":[0-9.]*,"nll":[0-9.]*,"tokens":[0-9]*,"active_share":[0-9.]*}$'
    err 'window 1 of '
    n=$(sed -n 's/.*"tokens":\([0-9][0-9]*\).*/\1/p' "$tmp/out")
    n=${n:-1}
    is "$((n % 63))" -eq 0 "counted tokens are windows of 63"
    windows=$(grep -c window "$tmp/err")
    is "$n" -eq "$((windows * 63))" "counted tokens"
    printf 'Too short.' >"$tmp/short"
    refused 1 'a window needs 512' perplexity -m "$model" -f "$tmp/short"
    refused 1 'no-such-file' perplexity -m "$model" -f "$tmp/no-such-file"
    refused 2 'c: a window of 1' perplexity -m "$model" -f "$tmp/text" -c 1
    if [ -f "$root/tests/data/text/eval.txt" ]; then
        h 0 perplexity -m "$model" -f "$root/tests/data/text/eval.txt" -c 512 --act f32 --kv f32
        out '^{"ppl":32\.60[0-9]*,"nll":3\.4844[0-9]*,"tokens":3066,'
    fi
}

group_inspect() {
    h 0 inspect "$model"
    for word in arcee '6 layers' 'width 256' 'Q8_0 37' 'template    none' 'runs        yes' 'at a context of 512' 'gpt2'; do out "$word"; done
    h 0 inspect -m "$model" -c 128 --json --kv f32
    objects
    out '"family":"arcee".*"runs":true.*"n_layers":6.*"types":{.*"Q8_0":{"tensors":37,.*"chat_template":"none".*"n_ctx":128'
    out '"general.architecture":"arcee"'
    out '"tokenizer.ggml.tokens":{"array_of":"string","n":4096}'
    refused 1 '9999' inspect "$model" -c 9999
    refused 1 no-such inspect "$tmp/no-such.gguf"
}

group_bench() {
    h 0 bench -m "$model" -p 16 -n 4 -r 1 --json
    objects
    for key in read_ceiling_gb_s decode_tok_s decode_bytes_per_token decode_gb_s decode_share prefill_tok_s prefill_gops compute_ceiling_gops \
        prefill_share load_s first_token_ms peak_rss_bytes; do out "\"$key\":[0-9.]*[1-9]"; done
    for key in isa mode; do out "\"$key\":\"[a-z0-9]"; done
    out '"active_share":[01]\.'
    h 0 bench -m "$model" -p 16 -n 4 -r 2 --depth 8 --sessions 2
    out '^decode .*at depth 8, 2 sessions'
    out '^prefill .*compute ceiling'
    h 0 bench -m "$model" -p 16 -n 4 -r 1 --sessions 1 --json
    one=$(sed 's/.*"decode_bytes_per_token":\([0-9]*\).*/\1/' "$tmp/out")
    h 0 bench -m "$model" -p 16 -n 4 -r 1 --sessions 4 --json
    four=$(sed 's/.*"decode_bytes_per_token":\([0-9]*\).*/\1/' "$tmp/out")
    is "$((one / 4 < four && four < one / 3))" -eq 1 "four sessions read the weights together ($four of $one bytes a token)"
    refused 1 'context' bench -m "$model" -p 16 -n 4 -r 1 -c 8
}

group_plan() {
    data=$root/tests/data/planner
    machine="--cpu-bytes 200000000 --cpu-bandwidth 5e10"
    gpu="--gpu-bytes 18000000 --gpu-bandwidth 1e12"
    number() { sed -n "s/.*\"$1\":\([-0-9.e+]*\).*/\1/p" "$tmp/out" | head -n 1; }
    for p in "$data"/*-tiny-*.problem.json "$data"/layer-?-*.problem.json; do
        h 0 plan --problem "$p" --json
        objects
        want=$(sed -n 's/.*"objective": *\([-0-9.e+]*\).*/\1/p' "${p%.problem.json}.answer.json")
        awk -v a="$(number objective)" -v b="$want" 'BEGIN { exit !(a - b <= 1e-6 * b && b - a <= 1e-6 * b) }'
        note $? "the objective of $(basename "$p") is $want"
    done
    # For a model: numbers that add up, a file that can be read again, a picture.
    h 0 plan -m "$model" $machine $gpu -o "$tmp/plan.json" --svg "$tmp/plan.svg"
    out '^predicted '
    out '^gpu '
    out 'ffn_hot'
    grep -q '^<svg ' "$tmp/plan.svg" && grep -q '</svg>' "$tmp/plan.svg"
    note $? "the picture is SVG"
    h 0 inspect "$tmp/plan.json"
    out '^predicted '
    h 0 plan -m "$model" $machine $gpu --json
    objects
    head -c 300000 "$model" >"$tmp/begun.gguf"         # a download that has only begun
    cp "$tmp/out" "$tmp/whole"
    h 0 plan -m "$tmp/begun.gguf" $machine $gpu --json
    is "$(number objective)" = "$(sed -n 's/.*"objective":\([-0-9.e+]*\).*/\1/p' "$tmp/whole")" "objective of a file without its data"
    refused 1 'ends at' run -m "$tmp/begun.gguf" -p x
    # Two GPUs; impact; less time than it takes.
    h 0 plan -m "$model" $machine $gpu --gpu-bytes 14000000 --gpu-bandwidth 5e11 --sync 1e-6 --objective impact --json
    out '"gpu_of_layer":\['
    h 0 plan -m "$model" $machine $gpu --solver builtin --time-limit 0.001 --json
    out '"solver":"builtin"'
    # Impossible: both numbers.
    h 1 plan -m "$model" --cpu-bytes 14000000 --cpu-bandwidth 5e10 --json
    out '^{"error":{"code":"HLLM_E_NOMEM","message":".*","bytes_needed":[1-9][0-9]*,"bytes_available":0'
    lines err 1
    sed 's/"budget_bytes":35743334/"budget_bytes":1000/' "$data/neuron-tiny-time.problem.json" >"$tmp/p.json"
    h 1 plan --problem "$tmp/p.json" --json
    out '"bytes_needed":35388440,"bytes_available":12386304'
    # Hostile problems: one line that names the key.
    sed 's/"sync_s"/"sink_s"/' "$data/neuron-tiny-time.problem.json" >"$tmp/p.json"
    refused 1 'p.json: sink_s: unknown key' plan --problem "$tmp/p.json"
    sed 's/"k":0/"k":0,"k":0/' "$data/layer-a-serial.problem.json" >"$tmp/p.json"
    refused 1 'p.json: line 1.*duplicate' plan --problem "$tmp/p.json"
    sed 's/"k":0/"k":5/' "$data/layer-a-serial.problem.json" >"$tmp/p.json"
    refused 1 'k is 5: it does not divide n_layers, 32' plan --problem "$tmp/p.json"
    head -c 300 "$data/layer-a-serial.problem.json" >"$tmp/p.json"
    refused 1 'HLLM_E_TRUNCATED' plan --problem "$tmp/p.json"
    sed 's/"k":0/"k":"many"/' "$data/layer-a-serial.problem.json" >"$tmp/p.json"
    refused 1 'p.json: k: expected a number, it is "many"' plan --problem "$tmp/p.json"
    refused 1 'stdin: ' plan --problem - </dev/null
    sed 's/"objective":/"objektive":/2' "$tmp/plan.json" >"$tmp/p.json"
    refused 1 'p.json: answer.objektive: unknown key' inspect "$tmp/p.json"
    refused 1 'no/such' plan --problem no/such
    refused 2 'm MODEL or --problem FILE is missing' plan
    refused 2 'exclude each other' plan -m "$model" --problem x
    refused 2 'gpu-bandwidth is missing' plan -m "$model" --gpu-bytes 5
    refused 2 'gpu-bytes comes before it' plan -m "$model" --gpu-bandwidth 5
    refused 2 "solver: 'x' is none of" plan -m "$model" --solver x
    refused 1 'there is no such module' plan --problem "$data/layer-a-serial.problem.json" --solver glpk --backend-dir /nonexistent
}

group_prepare() {
    text=$root/tests/data/text/profile.txt
    head -c 30000 "$text" >"$tmp/some.txt"
    head -c 8000 "$root/tests/data/text/check.txt" >"$tmp/other.txt"
    refused 2 'which files' prepare "$model" -f "$tmp/some.txt"
    refused 2 'f FILE is missing' prepare "$model" "$tmp/made.gguf"
    refused 2 "belongs to no flag" prepare "$model" "$tmp/made.gguf" more -f "$tmp/some.txt"
    refused 2 'loss: 2 is not between' prepare "$model" "$tmp/made.gguf" -f "$tmp/some.txt" --loss 2
    : >"$tmp/empty.txt"
    refused 1 '0 tokens' prepare "$model" "$tmp/made.gguf" -f "$tmp/empty.txt"
    h 0 prepare "$model" "$tmp/plain.gguf" -f "$tmp/some.txt" --no-predictors --svg "$tmp/heat.svg"
    lines out 8
    out '^    0     1536'
    grep -q '</svg>' "$tmp/heat.svg"; note $? "a picture"
    h 0 prepare "$model" "$tmp/made.gguf" -f "$tmp/some.txt" --json
    objects
    out '"predictors":[1-6]'
    refused 1 'prepared file already' prepare "$tmp/made.gguf" "$tmp/again.gguf" -f "$tmp/some.txt"
    h 0 inspect "$tmp/made.gguf"
    out 'or predicted'
    out 'relu2, by neurons'
    for mode in dense exact predicted; do
        h 0 perplexity -m "$tmp/made.gguf" --mode "$mode" -f "$tmp/other.txt" -c 128
        tail -n 1 "$tmp/out" >"$tmp/ppl.$mode"
    done
    for mode in dense exact; do sed 's/,"active_share".*//' "$tmp/ppl.$mode" >"$tmp/p.$mode"; done
    same "$tmp/p.dense" "$tmp/p.exact" "exact and dense: the same perplexity"
    grep -q '"active_share":0.[12]' "$tmp/ppl.predicted"; note $? "predicted: a share of the neurons"
    refused 1 'has no predictors' run -m "$tmp/plain.gguf" --mode predicted -p x
    refused 1 'has no thresholds' run -m "$tmp/made.gguf" --mode thresholded -p x
    h 0 run -m "$tmp/made.gguf" --mode predicted -p 'In the beginning' -n 8 --stats
    err 'predicted, active share 0'
    h 0 plan -m "$tmp/made.gguf" --gpu-bytes 3000000 --gpu-bandwidth 500e9 --cpu-bandwidth 40e9
}
group_devices() {
    h 0 devices
    out '^cpu '
    out 'GB/s'
    h 0 devices --json --remeasure -t 1 --isa scalar
    objects
    out '"isa":"scalar"'
    out '"threads":1'
    out '"read_gb_s":[0-9]*[1-9]'
}

group_chat() {
    refused 1 'template' chat -m "$model"
    h 0 chat --chat-template list
    out '^chatml$'
    printf 'Who is the king?\n\nAnd his son?\n/exit\nnever asked\n' >"$tmp/talk"
    in=$tmp/talk
    h 0 chat -m "$model" --chat-template chatml -n 5 --greedy --stats
    err '[1-9][0-9]* reused; [0-9]* generated, [1-9][0-9]*\.[0-9] tok/s; exact, active share 1\.000'
    h 0 chat -m "$model" --chat-template chatml -n 5 --greedy --json --system "Be brief." --seed 3
    objects
    lines out 2
    out '{"role":"assistant","content":".*","finish":"length","n_prompt":[0-9]*,"n_reused":[1-9]'
    refused 1 'no-such' chat -m "$model" --chat-template no-such
    # A message too long for the context: said, left out, and the conversation goes on as if it had not been.
    printf 'Who is the king?\nAnd his son?\n' >"$tmp/talk"
    h 0 chat -m "$model" --chat-template chatml -c 128 -n 5 --greedy --json
    lines out 2
    cp "$tmp/out" "$tmp/short"
    long=$(for _ in $(seq 30); do printf ' And he said unto them, Go ye out'; done)
    printf 'Who is the king?\n%s\nAnd his son?\n%s\n' "$long" "$long" >"$tmp/talk"
    h 1 chat -m "$model" --chat-template chatml -c 128 -n 5 --greedy --json
    lines out 4
    is "$(grep -c '^{"error":{"code":"HLLM_E_CONTEXT_FULL","message":".* 128"' "$tmp/out")" -eq 2 "messages left out"
    grep -v '^{"error"' "$tmp/out" >"$tmp/rest"
    same "$tmp/short" "$tmp/rest" "the other answers are as without the long messages"
    h 1 chat -m "$model" --chat-template chatml -c 128 -n 5 --greedy
    is "$(grep -c 'prompt.s [0-9]* tokens do not fit: the context is 128' "$tmp/err")" -eq 2 "messages said not to fit"
    err '^(this message is left out; /clear begins anew'
    lines err 4
    # The context fills up: the answer that is cut, the messages after it; /clear makes room.
    { for _ in $(seq 12); do echo "And he said unto them, Go ye out into the field of the king"; done; echo /clear; echo "Who is the king?"; } >"$tmp/talk"
    h 1 chat -m "$model" --chat-template chatml -c 64 --greedy --ignore-eos --json
    err '^(the answer ends here: the context of 64 tokens is full'
    is "$(sed -n 2p "$tmp/out" | cut -c1-36)" = '{"error":{"code":"HLLM_E_CONTEXT_FUL' "no room after it"
    is "$(tail -n 1 "$tmp/out" | cut -c1-20)" = '{"role":"assistant",' "an answer after /clear"
    lines out 13
    in=/dev/null
    h 0 chat -m "$model" --chat-template chatml
    lines out 0
}

# What is different on a terminal.  Its output: carriage returns as newlines.
tty() {                                                # tty SHELL-COMMAND
    last="on a terminal: $1"
    timeout 120 script -qec "$1" /dev/null <"$in" 2>"$tmp/err" | tr '\r' '\n' >"$tmp/out"
}

group_terminal() {
    script -qec true /dev/null >/dev/null 2>&1 || { echo "no pseudo-terminal by script (Debian: bsdutils; /dev/pts): not tested"; not_tested="$not_tested terminal"; return; }
    slow=${HLLM_TEST_BUILD:-$root/build}/lib/libslow_read.so
    if [ -f "$slow" ]; then                            # the loading bar: after a second, upwards, to 100 at most, wiped out at the end
        tty "LD_PRELOAD=$slow '$hllm' run -m '$model' -p 'In the beginning' -n 3 --greedy --load read -t 1"
        sed -n 's/^loading \([ 0-9]\{3\}\) %$/\1/p' "$tmp/out" >"$tmp/bar"
        is "$(wc -l <"$tmp/bar")" -ge 5 "states of the loading bar"
        sort -n -c "$tmp/bar"
        note $? "the loading bar only grows"
        is "$(head -n 1 "$tmp/bar")" -ge 5 "it begins after a second"
        is "$(head -n 1 "$tmp/bar")" -le 80 "and where loading is then"
        is "$(tail -n 1 "$tmp/bar")" -ge 85 "it goes to the end"
        is "$(tail -n 1 "$tmp/bar")" -le 100 "and not beyond"
        is "$(grep -c '^ \{13\}$' "$tmp/out")" -eq 1 "the bar is wiped out, once"
        is "$(sed -n '/^ \{13\}$/,$p' "$tmp/out" | grep -c loading)" -eq 0 "nothing of it after that"
        h 0 run -m "$model" -p "In the beginning" -n 3 --greedy
        is "$(tail -c 1 "$tmp/out" | od -An -tx1 | tr -d ' ')" != 0a "no newline without a terminal"
        is "$(grep -c loading "$tmp/err")" -eq 0 "no bar without a terminal"
    else not_tested="$not_tested loading-bar"; fi
    tty "'$hllm' run -m '$model' -p 'In the beginning' -n 3 --greedy"
    is "$(grep -c loading "$tmp/out")" -eq 0 "no bar when loading is fast"
    is "$(tail -c 1 "$tmp/out" | od -An -tx1 | tr -d ' ')" = 0a "a newline at the end"
    printf 'Who is the king?\n/exit\n' >"$tmp/talk"
    in=$tmp/talk
    tty "'$hllm' chat -m '$model' --chat-template chatml -n 5 --greedy"
    out '^A line is a message'
    is "$(grep -c '^> ' "$tmp/out")" -ge 1 "a prompt for each line"
    in=/dev/null
}

group_errors() {
    : >"$tmp/empty"
    mkdir "$tmp/folder"
    head -c 4000 /dev/zero >"$tmp/zeros"
    head -c 3000000 "$model" >"$tmp/cut.gguf"
    refused 1 'HLLM_E_\(IO\|NOT_FOUND\)' run -m "$tmp/none.gguf" -p x
    for f in folder empty zeros cut.gguf; do refused 1 "$tmp/$f" run -m "$tmp/$f" -p x; done
    h 1 run -m "$tmp/zeros" -p x --json
    objects
    out '^{"error":{"code":"HLLM_E_FORMAT","message":".*"}}$'
    long=$(for _ in $(seq 600); do printf ' king'; done)
    refused 1 'context' run -m "$model" -p "$long"
    refused 1 '100000' run -m "$model" -p x -c 100000
    refused 1 '5000' run -m "$model" -p x -t 5000
    refused 1 'no-such-isa' run -m "$model" -p x --isa no-such-isa
    refused 1 '100000' run -m "$model" -p x --ram-bytes 100000
    refused 1 'no tokens' run -m "$model" -p ""
    refused 1 '4096' run -m "$model" -p x --logit-bias 4096:1
    refused 1 'no-such-file' run -m "$model" -f "$tmp/no-such-file"
}

not_tested=
[ $# -gt 0 ] || set -- usage run session interrupt tokenize score perplexity inspect bench devices plan chat terminal errors
for g in "$@"; do
    in=/dev/null
    echo "# $g"
    "group_$g"
done
echo "cli.sh: $checks checks, $failed failed${not_tested:+, not tested:$not_tested}"
[ -z "$not_tested" ] || [ "$failed" != 0 ] || exit 77
[ "$failed" = 0 ]
