#!/usr/bin/env bash
# From a fresh clone to a trained model: installs what is missing, builds moec, compiles specs/tiny.moespec with two
# attention and two FFN ranks at two stages, and trains it on the text that Debian's `fortunes` package holds.
#   ./run.sh [steps]
set -euo pipefail
cd "$(dirname "$0")"
steps=${1:-400}

.ci/install run
cmake --preset release >/dev/null
quiet=()
[ -t 1 ] || quiet=(-- --quiet)
echo "building moec"
cmake --build --preset release --target moec "${quiet[@]}"
moec=build/release/moec
mkdir -p out

spec=specs/tiny.moespec
text=out/text.txt
(cd /usr/share/games/fortunes && cat art computers definitions education humorists law linux literature miscellaneous) >"$text"

echo
echo "== the plan for $spec =="
$moec plan $spec
echo
echo "== its schedule =="
$moec schedule $spec | cut -c 1-150
$moec schedule $spec --trace out/predicted.json --svg out/predicted.svg >/dev/null
$moec build $spec -o out/tiny
echo
echo "== training on $text: $(wc -c <"$text") bytes, the last tenth held out =="
out/tiny/train --data "$text" --steps "$steps" --eval-every 100 --log out/log.jsonl --trace out/measured.json
echo
python3 tests/e2e/bigram.py "$text" out/log.jsonl
echo "the modelled timeline as a picture: out/predicted.svg"
echo "for any viewer of Chrome traces: out/predicted.json (modelled), out/measured.json (the last step as measured)"
