#!/bin/sh
# The library exports exactly the names in lib/hybridllm.map, and they are exactly the functions that the header declares.
# usage: symbols.sh LIBRARY       exit 0 equal, 1 not (the difference is printed), 2 wrong usage
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
lib=${1:?usage: symbols.sh LIBRARY}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

header() {                                             # names declared by a header, read from stdin, comments removed
    tr '\n' ' ' | sed 's,/\*[^*]*\*\+\([^/*][^*]*\*\+\)*/, ,g' | tr ';{}' '\n\n\n' |
        sed -n 's/^.*HLLM_API [^(]*\(hllm_[a-z0-9_]*\)(.*$/\1/p' | sort
}
map() { sed 's,/\*.*\*/,,; s/^ *local:.*//; s/^ *\*;//' | sed -n 's/^ *\([A-Za-z_*?][A-Za-z0-9_*?]*\);.*$/\1/p' | sort; }
exported() { nm -D --defined-only --format=posix "$1" | sed 's/@.*//; s/ .*//' | grep -v '^HYBRIDLLM_' | sort -u; }
equal() { diff "$1" "$2" >"$tmp/diff" || { echo "$3"; cat "$tmp/diff"; return 1; }; }

header <"$root/include/hybrid_llm.h" >"$tmp/header"
map <"$root/lib/hybridllm.map" >"$tmp/map"
exported "$lib" >"$tmp/lib"
sed -n 's/.*/&/; s/USE(\([a-z0-9_]*\))/\n\1\n/gp' "$root/tests/abi/header_functions.h" | grep '^hllm_' | sort >"$tmp/linked"
[ "$(wc -l <"$tmp/header")" -gt 50 ] || { echo "symbols: the header could not be read"; exit 1; }
equal "$tmp/header" "$tmp/map" "header (<) and version script (>) differ:"
equal "$tmp/header" "$tmp/lib" "header (<) and exported symbols (>) differ:"
equal "$tmp/header" "$tmp/linked" "header (<) and tests/abi/header_functions.h (>) differ:"

# Negative control: one more function in the header must be seen.
{ cat "$root/include/hybrid_llm.h"; echo 'HLLM_API hllm_status hllm_not_there(void);'; } | header >"$tmp/more"
if equal "$tmp/more" "$tmp/lib" "" >/dev/null; then echo "symbols: a function that is not exported was not noticed"; exit 1; fi
echo "symbols: $(wc -l <"$tmp/lib") names, equal in header, version script and library"
