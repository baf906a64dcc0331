#!/bin/sh
# Reads the #include lines and fails on an arrow between rooms that the design does not have:
#   base <- backend.h <- backends/cpu;  base <- planner;  base <- model;  {base, backend.h, planner, model} <- run <- sparse <- api;  examples, bindings:
#   the public header only.
# usage: arrows.sh [ROOT]       exit 0 all right, 1 a wrong arrow or an #include "file" that is nowhere
set -eu
root=${1:-$(cd "$(dirname "$0")/.." && pwd)}

check() {                                              # check ROOT: prints wrong arrows
    (cd "$1" && find lib backends planner examples bindings include -name '*.[ch]' -o -name '*.cpp' | LC_ALL=C sort | while read -r file; do
        sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*\(["<]\)\([^">]*\)[">].*/\1 \2/p' "$file" | while read -r kind name; do
            to=
            for place in "$(dirname "$file")" lib backends planner include; do
                [ -f "$place/$name" ] && { to=$(echo "$place/$name" | sed 's,/\./,/,g'); break; }
            done
            [ -n "$to" ] || [ "$kind" = '<' ] || { echo "$file: \"$name\" is nowhere"; continue; }
            [ -z "$to" ] || echo "$file $to"
        done
    done) | awk '
        function room(f) {
            if (f ~ /\.\./) return "outside"
            if (f == "include/hybrid_llm.h") return "header"
            if (f ~ /^lib\/base\//) return "base"
            if (f ~ /^lib\/model\//) return "model"
            if (f ~ /^lib\/run\//) return "run"
            if (f ~ /^lib\/sparse\//) return "sparse"
            if (f ~ /^lib\/[^\/]*\.[ch]$/) return "api"
            if (f == "backends/backend.h") return "seam"
            if (f ~ /^backends\/cpu\//) return "cpu"
            if (f ~ /^planner\//) return "planner"
            if (f ~ /^examples\//) return "examples"
            if (f ~ /^bindings\//) return "bindings"
            return "unknown"
        }
        BEGIN {
            allowed["base"] = "base header"
            allowed["seam"] = "seam base header"
            allowed["cpu"] = "cpu seam base header"
            allowed["model"] = "model base header"
            allowed["planner"] = "planner base header"
            allowed["run"] = "run planner model seam base header"
            allowed["sparse"] = "sparse run planner model seam base header"
            allowed["api"] = "api sparse run planner model seam base header"
            allowed["examples"] = "examples header"
            allowed["bindings"] = "bindings header"
            allowed["header"] = ""
        }
        NF != 2 { print; bad = 1; next }
        {
            n++
            from = room($1); to = room($2)
            if (!(from in allowed) || index(" " allowed[from] " ", " " to " ") == 0) { print $1 " (" from ") must not include " $2 " (" to ")"; bad = 1 }
        }
        END { if (n < 3) { print "arrows: nothing was read"; bad = 1 } if (!bad) print "arrows: " n " includes, all in the right direction"; exit bad }'
}

check "$root"

# Negative control: five wrong arrows in a house of its own must all be reported.
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/planner" "$tmp/lib/base" "$tmp/lib/model" "$tmp/lib/run" "$tmp/backends/cpu" "$tmp/examples" "$tmp/bindings" "$tmp/include"
touch "$tmp/include/hybrid_llm.h" "$tmp/lib/base/base.h" "$tmp/lib/model/model.h" "$tmp/lib/run/run.h" "$tmp/backends/backend.h"
echo '#include "model/model.h"' >"$tmp/lib/base/up.c"
echo '# include <run/run.h>' >"$tmp/lib/model/up.c"
echo '#include "model/model.h"' >"$tmp/backends/cpu/side.c"
echo '#include "../lib/base/base.h"' >"$tmp/examples/inside.c"
echo '#include "model/model.h"' >"$tmp/planner/files.c"
echo '#include "base/base.h"' >"$tmp/lib/run/right.c"
if wrong=$(check "$tmp"); then echo "arrows: wrong arrows were not noticed"; exit 1; fi
[ "$(echo "$wrong" | grep -c 'must not include')" = 5 ] || { echo "arrows: 5 wrong arrows, reported:"; echo "$wrong"; exit 1; }
