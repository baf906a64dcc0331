#!/bin/sh
# A good guest: what the library may not call, by its undefined symbols, and that it has no writable global data.
# usage: guest.sh LIBRARY OBJECT...       LIBRARY: an optimised build without sanitizers; OBJECT: its own object files
# CC: a compiler for the negative controls (default cc).  Exit 0 all right, 1 a symbol was found.
set -eu
lib=${1:?usage: guest.sh LIBRARY OBJECT...}
shift
cc=${CC:-cc}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# prints                                          ends or disturbs the process                environment
# locale (also through number parsing, ctype)     random numbers of the process               memory beside the allocator hook
forbidden='
printf fprintf vprintf vfprintf dprintf vdprintf puts fputs putchar putc fputc fwrite perror psignal stdout stderr stdin syslog
abort exit _exit _Exit quick_exit atexit on_exit raise kill tgkill pthread_kill __assert __assert_fail __assert_perror_fail err errx warn warnx
getenv secure_getenv setenv putenv unsetenv clearenv environ __environ
setlocale uselocale newlocale localeconv strtod strtof strtold strtol strtoul strtoll strtoull atof atoi atol atoll scanf sscanf fscanf
isalpha isdigit isspace isupper islower isalnum isprint ispunct toupper tolower __ctype_b_loc __ctype_tolower_loc __ctype_toupper_loc
strcoll strxfrm strftime nl_langinfo strerror
signal bsd_signal sysv_signal sigaction sigprocmask sigsetmask sigaltstack siginterrupt alarm setitimer
system popen fork vfork execve execv execvp posix_spawn chdir umask setrlimit mlockall
rand srand random srandom drand48 lrand48 srand48 strtok tmpnam mktemp
fesetround fesetenv feholdexcept feupdateenv feenableexcept fedisableexcept
malloc calloc realloc reallocarray strdup strndup asprintf vasprintf'

undefined() { nm -D --undefined-only --format=posix "$1" | sed 's/[@ ].*//'; }
# Also the checked and the ISO C99 variants of a name: __printf_chk, __isoc99_sscanf, __isoc23_strtol.  snprintf and its kind are allowed.
bad_symbols() {
    undefined "$1" | while read -r s; do
        plain=$(echo "$s" | sed 's/^__isoc[0-9]*_//; s/^__\(.*\)_chk$/\1/; s/^_IO_//')
        for f in $forbidden; do
            if [ "$s" = "$f" ] || [ "$plain" = "$f" ]; then echo "$s"; break; fi
        done
    done
}
# Data that is written after the start.  .data.rel.ro is constant once the loader is done.
writable() {
    for o in "$@"; do
        objdump -t "$o" | awk -v o="${o##*/}" '
            $NF != "" && match($0, /\t/) {
                split($0, part, "\t")
                n = split(part[1], w, " "); section = w[n]; m = split(part[2], t, " "); name = t[m]
                if (w[n] == "*COM*" || section ~ /^\.(data|bss|tdata|tbss)/) if (section !~ /^\.data\.rel\.ro/ && name != section) print o ": " name " in " section
            }'
    done
}

fail=0
undefined "$lib" | grep -q . || { echo "guest: $lib has no undefined symbols: not read"; exit 1; }
found=$(bad_symbols "$lib")
[ -z "$found" ] || { echo "guest: the library uses:"; echo "$found"; fail=1; }
[ $# -gt 0 ] || { echo "guest: no object files"; exit 1; }
found=$(writable "$@")
[ -z "$found" ] || { echo "guest: writable global data:"; echo "$found"; fail=1; }

# Negative controls: one forbidden call, and each kind of writable data, must be seen.
for call in 'printf("%d", x)' 'puts("")' 'abort()' 'exit(x)' 'assert(x)' '(void)getenv("X")' '(void)setlocale(0, "")' '(void)signal(2, 0)' \
    '(void)strtod("1", 0)' '(void)sigaction(2, 0, 0)' 'fputs("a", stderr)' '(void)sscanf("1", "%d", &x)'; do
    printf '#undef NDEBUG\n#include <assert.h>\n#include <locale.h>\n#include <signal.h>\n#include <stdio.h>\n#include <stdlib.h>\nvoid f(int x); void f(int x) { %s; }\n' "$call" >"$tmp/x.c"
    "$cc" -D_GNU_SOURCE -O2 -fPIC -shared -o "$tmp/x.so" "$tmp/x.c"
    [ -n "$(bad_symbols "$tmp/x.so")" ] || { echo "guest: $call was not noticed"; fail=1; }
done
for data in 'int a = 1' 'int a' 'static int a; int *f(void); int *f(void) { return &a; }' '_Thread_local int a' \
    'int *f(void); int *f(void) { static int n; return &n; }'; do
    echo "$data;" | sed 's/};$/}/' >"$tmp/x.c"
    "$cc" -O2 -fPIC -c -o "$tmp/x.o" "$tmp/x.c"
    [ -n "$(writable "$tmp/x.o")" ] || { echo "guest: '$data' was not noticed"; fail=1; }
done
printf 'static const char *const names[] = { "a", "b" }; const char *f(int i); const char *f(int i) { return names[i]; }\n' >"$tmp/x.c"
"$cc" -O2 -fPIC -c -o "$tmp/x.o" "$tmp/x.c"
[ -z "$(writable "$tmp/x.o")" ] || { echo "guest: a constant table was taken for writable data"; fail=1; }
[ $fail = 1 ] || echo "guest: $(undefined "$lib" | wc -l) undefined symbols and $# objects, nothing forbidden"
exit $fail
