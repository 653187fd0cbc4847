#!/usr/bin/env bash
# make demo: from nothing to a translation model, with the plain verbs, in the folder $1. Every command is printed as it runs.
set -euo pipefail
here=$1
recipe=recipes/demo/world.yaml
started=$(date +%s)

run() { printf '\n$ %s\n' "$*"; "$@"; }

if [ -e "$here" ]; then
    echo "$here is there already: 'make clean' removes it, and 'make demo DEMO=another-folder' leaves it alone" >&2
    exit 1
fi

run phraseloom world "$here/world" --train 20000 --valid 500 --test 500
run phraseloom prepare "$recipe" --data-root "$here" data.folder="$here/dataset"
run phraseloom train "$recipe" --run "$here/run" data.folder="$here/dataset"

printf '\n$ phraseloom translate %s < %s > %s\n' "$here/run" "$here/world/test.en" "$here/test.translated.de"
phraseloom translate "$here/run" <"$here/world/test.en" >"$here/test.translated.de"
run phraseloom evaluate --reference "$here/world/test.de" "$here/test.translated.de"

printf '\nFive sentences, their translations, and which word comes from which (source-target, counted from 0):\n'
head -n 5 "$here/world/test.en" >"$here/five.en"
phraseloom translate "$here/run" --alignments "$here/five.align" <"$here/five.en" >"$here/five.de" 2>/dev/null
paste -d '\t' "$here/five.en" "$here/five.de" "$here/five.align" | while IFS=$'\t' read -r english german links; do
    printf '\n  en %s\n  de %s\n     %s\n' "$english" "$german" "$links"
done

cat <<END

Done in $(($(date +%s) - started)) seconds. Where everything lies:
  $here/world            the built-in corpus with its gold truth (README.md there)
  $here/dataset          the prepared dataset            phraseloom inspect $here/dataset
  $here/run              the run: checkpoints, logs      phraseloom inspect $here/run
  $here/run/curves.png   the learning curves
  $here/run/best         the model                       echo "the old man sleeps ." | phraseloom translate $here/run
END
