#!/bin/sh
# Runs a program under de_DE.UTF-8, made here when the system has none: the decimal point is a comma.
# usage: locale.sh DIRECTORY PROGRAM [ARG...]      DIRECTORY: where the locale is made.  Exit: the program's; 77 when there is no localedef.
set -eu
dir=${1:?usage: locale.sh DIRECTORY PROGRAM [ARG...]}
shift
if [ ! -d "$dir/de_DE.UTF-8" ]; then
    command -v localedef >/dev/null && [ -f /usr/share/i18n/locales/de_DE ] || { echo "locale: no localedef or no de_DE source (Debian: apt-get install locales)"; exit 77; }
    mkdir -p "$dir"
    localedef -i de_DE -f UTF-8 "$dir/de_DE.UTF-8.$$" || [ -d "$dir/de_DE.UTF-8.$$" ]
    mv -T "$dir/de_DE.UTF-8.$$" "$dir/de_DE.UTF-8" 2>/dev/null || rm -rf "$dir/de_DE.UTF-8.$$"    # another run was faster
fi
LOCPATH=$(cd "$dir" && pwd) LC_ALL=de_DE.UTF-8 HLLM_TEST_LOCALE=1
export LOCPATH LC_ALL HLLM_TEST_LOCALE
exec "$@"
