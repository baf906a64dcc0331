#!/bin/sh
# Everything that is tested, on a fresh Debian 12: sh tests/run.sh
# usage: run.sh [STEP...]       STEP: only these (run.sh --list names them)
# As root it installs what is missing, else it says what to install.  Works from any directory; all files go to build/, each step's
# output to build/logs/STEP.log.  Two steps run at a time.  Last line: "N passed, N failed, N skipped"; exit 0 when nothing failed.
# HLLM_RUN_DRAFT=1: a step whose script does not exist yet is a skip, not a failure.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build
logs=$build/logs
venv=$build/venv
jobs=$(getconf _NPROCESSORS_ONLN)
HLLM_TEST_ROOT=$root
export HLLM_TEST_ROOT

# ---- what a machine needs ----

packages() {                                           # prints the Debian packages that are missing
    need() { command -v "$1" >/dev/null 2>&1 || echo "$2"; }
    need gcc "gcc libc6-dev"
    need g++ g++
    need clang clang
    need cmake cmake
    need ninja ninja-build
    need make make                                     # what CMake takes when it is not told
    need pkg-config pkg-config
    need readelf binutils
    need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
    need qemu-aarch64 qemu-user
    need valgrind valgrind
    need python3 python3
    need ccache ccache
    need patchelf patchelf
    need setarch util-linux
    [ -f /usr/aarch64-linux-gnu/include/stdio.h ] || echo libc6-dev-arm64-cross
    pkg-config --exists libutf8proc 2>/dev/null || echo libutf8proc-dev
    pkg-config --exists libzstd 2>/dev/null || echo libzstd-dev
    pkg-config --exists jansson 2>/dev/null || echo libjansson-dev
    [ -f /usr/include/glpk.h ] || echo libglpk-dev
    [ -n "$(find /usr/lib/llvm-*/lib/clang /usr/lib/clang -name 'libclang_rt.fuzzer-x86_64.a' 2>/dev/null)" ] || echo libclang-rt-14-dev
    { command -v localedef >/dev/null 2>&1 && [ -f /usr/share/i18n/locales/de_DE ]; } || echo locales
    valgrind -q true >/dev/null 2>&1 || echo libc6-dbg # it reads the C library's symbols
    python3 -c 'import venv, ensurepip' 2>/dev/null || echo python3-venv
    python3 -m pip --version >/dev/null 2>&1 || echo python3-pip
    [ -f /etc/ssl/certs/ca-certificates.crt ] || echo ca-certificates
}
install_packages() {
    missing=$(packages | tr '\n' ' ')
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "installing: $missing"
        # shellcheck disable=SC2086
        { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing; } >"$logs/packages.log" 2>&1 && return 0
        tail -n 20 "$logs/packages.log"
        echo "run.sh: the packages could not be installed" >&2
    else
        echo "run.sh: please install first (names of Debian packages):" >&2
        echo "  sudo apt-get install $missing" >&2
    fi
    return 1
}

# ---- helpers of steps ----

# configure DIR CMAKE_ARG...
configure() {
    dir=$1
    shift
    launcher=
    command -v ccache >/dev/null 2>&1 && launcher=-DCMAKE_C_COMPILER_LAUNCHER=ccache
    generator=
    [ -f "$dir/CMakeCache.txt" ] || generator="-G Ninja"
    # shellcheck disable=SC2086
    cmake -S "$root" -B "$dir" $generator $launcher -DHLLM_WERROR=ON "$@"
}
make_in() {                                            # all errors at once; the generator is that of whoever configured first
    if [ -f "$1/build.ninja" ]; then cmake --build "$1" -j "$jobs" -- -k 0; else cmake --build "$1" -j "$jobs" -- -k; fi
}
# suite DIR CTEST_ARG...: runs ctest and leaves its counts for the parent
suite() {
    dir=$1
    shift
    rm -f "$dir/junit.xml"
    ctest --test-dir "$dir" --output-on-failure --no-tests=error --output-junit "$dir/junit.xml" "$@"
    code=$?
    if [ -f "$dir/junit.xml" ]; then
        count() { sed -n "s/^[[:space:]]*$1=\"\([0-9]*\)\".*/\1/p" "$dir/junit.xml" | head -n 1; }
        # CTest calls a program that is not there "skipped" too: only exit 77 is one.
        skipped=$(grep -c '<skipped message="SKIP_RETURN_CODE=77"' "$dir/junit.xml")
        failed=$(($(count failures) + $(count skipped) - skipped))
        echo "$(($(count tests) - failed - skipped)) $failed $skipped" >"$logs/$step.counts"
    fi
    return $code
}
# Sanitizers want their memory where they expect it: without address randomisation, where that can be asked for.
calm() { if setarch "$(uname -m)" -R true 2>/dev/null; then setarch "$(uname -m)" -R "$@"; else "$@"; fi; }
# Waits for another step that this one needs.
after() {
    while [ ! -f "$logs/$1.code" ]; do sleep 1; done
    [ "$(cat "$logs/$1.code")" = 0 ] || { echo "the step $1 failed"; return 1; }
}
have() {
    for f in "$@"; do
        [ -f "$root/$f" ] && continue
        echo "$f does not exist"
        [ -n "${HLLM_RUN_DRAFT:-}" ] && exit 77
        exit 1
    done
}
sanitize_env() {
    ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1:check_initialization_order=1
    UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
    TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
    export ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS
}

# ---- steps: each runs in a process of its own; 77 is a skip ----

step_venv() {
    have tests/families.sh
    [ -f "$venv/complete" ] && return 0
    rm -rf "$venv"
    python3 -m venv "$venv" && "$venv/bin/pip" install -q --disable-pip-version-check numpy gguf==0.19.0 regex jinja2 && touch "$venv/complete"
}
step_models() { have tests/get_models.sh; sh "$root/tests/get_models.sh" "$build/models"; }
step_vocabs() { have tests/get_vocabs.sh; sh "$root/tests/get_vocabs.sh" "$build/vocab"; }
step_families() { PYTHON=$venv/bin/python sh "$root/tests/families.sh" "$build/families" && PYTHON=$venv/bin/python sh "$root/tests/powerinfer.sh" "$build/powerinfer"; }
step_build() { CC=gcc CXX=g++ configure "$build" -DCMAKE_BUILD_TYPE=Release && make_in "$build"; }
# Everything, with the models that were fetched and made.
step_gcc() {
    after models && after vocabs && after families || return 1
    HLLM_REQUIRE_MODELS=1 HLLM_REQUIRE_VOCABS=1 suite "$build"
}
# Under a locale with a decimal comma that is really set (tests/locale/set.c).  Of the scores only the shipped model's; what stays out
# reads files of the tree or builds another program, and runs nothing of ours under the locale.
step_locale() {
    sh "$root/tests/locale.sh" "$build/locale" true || return 1
    LOCPATH=$build/locale LC_ALL=de_DE.UTF-8 LD_PRELOAD=$build/lib/libsetlocale.so
    export LOCPATH LC_ALL LD_PRELOAD
    [ "$(python3 -c 'import ctypes; f = ctypes.CDLL(None).snprintf; b = ctypes.create_string_buffer(9); f(b, 9, b"%.1f", ctypes.c_double(1.5)); print(b.value.decode())')" = 1,5 ] ||
        { echo "the locale does not bite"; return 1; }
    "$build/tests/golden_scores" tiny && suite "$build" -E '^(golden_scores|install|guest|arrows|runner_.*)$'
}
step_cli() {
    have tests/cli.sh
    after build || return 1
    sh "$root/tests/cli.sh"
    case $? in 0) ;; 77) echo "1 0 1" >"$logs/$step.counts" ;; *) return 1 ;; esac      # 77: something was not tested, the log says what
}
step_examples() { have tests/cli_examples.sh; after build && sh "$root/tests/cli_examples.sh"; }
step_quickstart() {
    have examples/quickstart.sh
    cd / && sh "$root/examples/quickstart.sh" "In the beginning" | tee "$logs/quickstart.out" && grep -q 'In the beginning..' "$logs/quickstart.out"
}
step_chat() {
    have examples/chat.sh
    after models && printf 'What is the capital of France?\n/exit\n' | sh "$root/examples/chat.sh" | tee "$logs/chat.out" && grep -q Paris "$logs/chat.out"
}
step_python() { have tests/python.sh; sh "$root/tests/python.sh"; }
step_presplit() { have tests/presplit_differential.py; after venv && "$venv/bin/python" "$root/tests/presplit_differential.py" --n 10000; }
step_types() {
    have tests/types_model.py
    after build && after venv && "$venv/bin/python" "$root/tests/types_model.py" "$build/bin/hllm" || return 1
    sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2 0/p' "$logs/types.log" >"$logs/$step.counts"
}
step_templates() { have tests/templates_jinja.py; after venv && "$venv/bin/python" "$root/tests/templates_jinja.py" check; }
step_clang() {
    CC=clang CXX=clang++ configure "$build/clang" -DCMAKE_BUILD_TYPE=Release && make_in "$build/clang" && suite "$build/clang" -E '^(golden_scores|abi_flat)$'
}
# The suite on the shipped model, without the golden rows of larger ones.
step_asan() {
    sanitize_env
    CC=clang CXX=clang++ configure "$build/asan" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DHLLM_SANITIZE=address,undefined && make_in "$build/asan" &&
        calm "$build/asan/tests/golden_scores" tiny && suite_calm "$build/asan" -E '^(golden_scores|golden_tokens)$'
}
suite_calm() { if setarch "$(uname -m)" -R true 2>/dev/null; then setarch "$(uname -m)" -R sh "$0" --suite "$step" "$@"; else suite "$@"; fi; }
step_tsan() {
    sanitize_env
    CC=clang CXX=clang++ configure "$build/tsan" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DHLLM_SANITIZE=thread && make_in "$build/tsan" &&
        calm "$build/tsan/bin/example_two_sessions" "$root/models/tiny-relu2-q8_0.gguf" && calm "$build/tsan/bin/example_cancel" "$root/models/tiny-relu2-q8_0.gguf" &&
        suite_calm "$build/tsan" -R '^(unit_base_|unit_run_|unit_planner_glpk|abi_bad_input|abi_flat|fault_)'
}
step_valgrind() {
    after build || return 1
    n=0
    check() {
        valgrind -q --max-threads=2000 --error-exitcode=9 --leak-check=full --show-leak-kinds=definite,possible --errors-for-leak-kinds=definite,possible "$@" ||
            { echo "valgrind: $1"; return 1; }
    }
    for program in abi_bad_input abi_locale unit_model_reader unit_run_outring; do
        [ -x "$build/tests/$program" ] || { echo "no $program"; return 1; }
        check "$build/tests/$program" || return 1
        n=$((n + 1))
    done
    check "$build/bin/example_hello" "$root/models/tiny-relu2-q8_0.gguf" && check "$build/bin/example_two_sessions" "$root/models/tiny-relu2-q8_0.gguf" || return 1
    echo "$((n + 2)) 0 0" >"$logs/$step.counts"
}
step_arm64() {
    sh "$root/tests/arm64.sh" "$build/arm64" -G Ninja || return 1
    # Timing, fault loops and the differences of /proc under an emulator stay out.
    suite "$build/arm64" -R '^(kernels_|unit_base_|unit_model_|unit_planner_|abi_|unit_run_sampler)' -E '^(abi_flat)$' &&
        qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$build/arm64/root/usr/lib/aarch64-linux-gnu" "$build/arm64/tests/golden_scores" tiny
}
step_fuzz() {
    have tests/fuzz/gguf.c
    sanitize_env
    mkdir -p "$build/fuzz-corpus/gguf" "$build/fuzz-corpus/model" "$build/fuzz-corpus/plan"
    cp "$root"/tests/data/planner/neuron-tiny-*.problem.json "$root"/tests/data/planner/layer-*.problem.json "$build/fuzz-corpus/plan"
    CC=clang CXX=clang++ configure "$build/fuzz" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DHLLM_SANITIZE=address,undefined,fuzzer-no-link -DHLLM_FUZZ=ON \
        -DHLLM_BUILD_EXAMPLES=OFF && cmake --build "$build/fuzz" -j "$jobs" --target fuzz_gguf fuzz_model fuzz_plan || return 1
    for target in gguf:60 model:30 plan:60; do
        dict=$root/tests/fuzz/${target%:*}.dict
        calm "$build/fuzz/bin/fuzz_${target%:*}" -max_total_time="${HLLM_FUZZ_SECONDS:-${target#*:}}" $([ -f "$dict" ] && echo "-dict=$dict") -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
            -artifact_prefix="$logs/" "$build/fuzz-corpus/${target%:*}" "$root/tests/fuzz/seeds/${target%:*}" || return 1
    done
}

# ---- running them ----

# Two lanes side by side; NAME:SECONDS.  A step that needs one of the other lane waits for it (after).
lane_a="build:600 gcc:1500 locale:900 cli:600 examples:300 quickstart:300 chat:300 python:900 valgrind:900 asan:1500"
lane_b="venv:600 models:900 vocabs:600 families:300 types:600 clang:900 tsan:900 arm64:1200 fuzz:600 presplit:900 templates:600"

case ${1:-} in
--list) for s in $lane_a $lane_b; do echo "${s%:*}"; done; exit 0 ;;
--step) step=$2; "step_$2"; exit $? ;;
--suite) step=$2; shift 2; suite "$@"; exit $? ;;
esac

for s in "$@"; do
    case " $lane_a $lane_b" in *" $s:"*) ;; *) echo "run.sh: there is no step $s; there are: $(sh "$0" --list | tr '\n' ' ')" >&2; exit 2 ;; esac
done
mkdir -p "$logs" || exit 1
rm -f "$logs"/*.code "$logs"/*.counts "$logs"/*.sum "$logs"/*.pid
chosen=" $* "
begin=$(date +%s)
cd "$root" || exit 1

run_lane() {
    for s in "$@"; do
        name=${s%:*} limit=${s#*:}
        if [ "$chosen" != "  " ]; then
            case $chosen in *" $name "*) ;; *) [ -f "$logs/$name.code" ] || echo 0 >"$logs/$name.code"; continue ;; esac
        fi
        t=$(date +%s)
        timeout -k 10 "$limit" env --default-signal=INT,QUIT sh "$root/tests/run.sh" --step "$name" >"$logs/$name.log" 2>&1 </dev/null &
        echo $! >"$logs/$name.pid"                     # timeout hands a signal on to all that it started; a background job would ignore INT
        wait $!
        code=$?
        rm -f "$logs/$name.pid"
        t=$(($(date +%s) - t))
        p=0 f=0 k=0
        [ -f "$logs/$name.counts" ] && read -r p f k <"$logs/$name.counts"
        if [ $code = 77 ]; then k=$((k + 1))
        elif [ $code != 0 ]; then [ "$f" -gt 0 ] || f=1
        elif [ $((p + f + k)) = 0 ]; then p=1; fi
        if [ $code != 0 ] && [ $code != 77 ]; then word=FAILED; elif [ "$p" = 0 ]; then word=skipped; else word=ok; fi
        more=
        [ $code = 124 ] && more=" (stopped after $limit s)"
        {
            printf '%-8s %-11s %4d s  %d passed, %d failed, %d skipped%s\n' "$word" "$name" "$t" "$p" "$f" "$k" "$more"
            [ $word = FAILED ] && {
                grep -aE 'failed:|error:|ERROR:|WARNING: ThreadSanitizer|\*\*\*(Failed|Exception|Timeout|Not Run)' "$logs/$name.log" | head -n 20 | cut -c1-240 | sed 's/^/    > /'
                tail -n 20 "$logs/$name.log" | cut -c1-240 | sed 's/^/    | /'
                echo "    $logs/$name.log"
            }
        } >"$logs/$name.out.part"
        cat "$logs/$name.out.part"
        rm -f "$logs/$name.out.part"
        echo "$p $f $k" >"$logs/$name.sum"
        echo $code >"$logs/$name.code"
    done
}

install_packages || { echo "0 passed, 1 failed"; exit 1; }
# shellcheck disable=SC2086
run_lane $lane_a &
a=$!
# shellcheck disable=SC2086
run_lane $lane_b &
b=$!
stop() {
    kill "$a" "$b" 2>/dev/null
    for pid in "$logs"/*.pid; do [ -f "$pid" ] && kill "$(cat "$pid")" 2>/dev/null; done
    rm -f "$logs"/*.pid
    exit 130
}
trap stop INT TERM
wait $a
wait $b

passed=0 failed=0 skipped=0 missing=0
for s in $lane_a $lane_b; do
    name=${s%:*}
    if [ "$chosen" != "  " ]; then case $chosen in *" $name "*) ;; *) continue ;; esac; fi
    if [ -f "$logs/$name.sum" ]; then
        read -r p f k <"$logs/$name.sum"
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + k))
    else missing=$((missing + 1)); fi
done
echo
[ $missing = 0 ] || { echo "$missing steps left no result"; failed=$((failed + missing)); }
[ $((passed + failed + skipped)) -gt 0 ] || { echo "nothing was run: steps are named by run.sh --list"; failed=1; }
grep -l . "$logs"/*.sum >/dev/null 2>&1 && for s in $lane_a $lane_b; do
    name=${s%:*}
    [ -f "$logs/$name.sum" ] && read -r p f k <"$logs/$name.sum" && [ "$f" != 0 ] && echo "failed: $name ($logs/$name.log)"
done
echo "$(($(date +%s) - begin)) s"
if [ $skipped -gt 0 ]; then echo "$passed passed, $failed failed, $skipped skipped"; else echo "$passed passed, $failed failed"; fi
[ $failed = 0 ] && [ $passed -gt 0 ]
