#!/bin/sh
# The part of LANGUAGE.md below its mark must be what keys.def says: reference.sh LANG_CHECK LANGUAGE.md
# MOEC_BLESS=1 writes it there.
check=$1
doc=$2
mark='<!-- Below: written from lang/keys.def. -->'
grep -qxF -e "$mark" "$doc" || { echo "$doc has no line '$mark'"; exit 1; }
want=$(mktemp) || exit 1
trap 'rm -f "$want"' EXIT
awk -v mark="$mark" '{ print } $0 == mark { exit }' "$doc" > "$want"
echo >> "$want"
"$check" reference >> "$want" || exit 1
if [ "${MOEC_BLESS:-0}" = 1 ]; then
  cat "$want" > "$doc"
fi
diff -u "$doc" "$want"
