#!/bin/sh
# Each wrong spec of this folder ends in `#!` lines: exactly what `check` must print about it. Specs called warn_* must still
# pass (exit 0), all others must fail (exit 1). A first line `#? ...` holds further arguments, which are then what is
# wrong (exit 2).
#   bad.sh CHECKER [ARGUMENTS...]     CHECKER ARGUMENTS SPEC prints diagnostics to stderr
#   MOEC_BLESS=1 bad.sh ...           writes what is printed now into the specs; read the difference before you keep it
LC_ALL=C
export LC_ALL
cd "$(dirname "$0")" || exit 2
failed=0
count=0
for spec in *.moespec; do
  count=$((count + 1))
  more=$(sed -n '1s/^#? //p' "$spec")
  case $spec:$more in warn_*) want=0 ;; *:) want=1 ;; *) want=2 ;; esac
  # shellcheck disable=SC2086 # several arguments are meant
  got=$("$@" $more "$spec" 2>&1)
  code=$?
  if [ "${MOEC_BLESS:-0}" = 1 ]; then
    grep -av '^#!' "$spec" > "$spec.new"
    printf '%s\n' "$got" | sed 's/^/#! /; s/ $//' >> "$spec.new"
    mv "$spec.new" "$spec"
  fi
  expected=$(sed -n 's/^#! \{0,1\}//p' "$spec")
  got=$(printf '%s\n' "$got" | sed 's/ $//')
  if [ $code -ne $want ]; then
    echo "$spec: exit code $code, expected $want"
    failed=$((failed + 1))
  elif [ "$got" != "$expected" ]; then
    echo "$spec: printed"
    printf '%s\n' "$got" | sed 's/^/  /'
    echo "but expected"
    printf '%s\n' "$expected" | sed 's/^/  /'
    failed=$((failed + 1))
  fi
done
echo "$count wrong specs, $failed not reported as expected"
[ $failed -eq 0 ] && [ $count -gt 0 ]
