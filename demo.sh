#!/usr/bin/env bash
# make demo: a model that attends to phrases, from nothing, in the folder $1. Every command is printed as it runs.
set -euo pipefail
here=$1
recipe=recipes/demo/world_phrasal.yaml

run() { printf '\n$ %s\n' "$*"; "$@"; }

if [ -e "$here" ]; then
    echo "$here exists: 'make clean' removes it, and 'make demo DEMO=another-folder' leaves it alone" >&2
    exit 1
fi

echo "1. A small language pair with known idioms, compounds and agreement"
run phraseloom world "$here/world" --valid 500 --test 500
run phraseloom prepare "$recipe" --data-root "$here" data.folder="$here/dataset"

printf '\n2. A Transformer whose heads see every token and every bigram: a few minutes on two cores\n'
run phraseloom train "$recipe" --run "$here/run" data.folder="$here/dataset" \
    training.max_updates=900 training.checkpoint_every=300 training.bleu_every=0

printf '\n3. Is it right? The truth about every test sentence is known, so phenomena can be counted\n'
printf '\n$ phraseloom translate %s --beam 1 < %s > %s\n' "$here/run" "$here/world/test.en" "$here/test.de"
phraseloom translate "$here/run" --beam 1 <"$here/world/test.en" >"$here/test.de"
run phraseloom analyse phenomena "$here/world" "$here/test.de" --split test

printf '\n4. Which words and phrases does a translation come from?\n'
cat >"$here/sentences.en" <<'END'
This brave man kicks the bucket .
A school bus driver who sees the prince picks up a red hat .
A cow is small , but a winter garden is dark .
The dogs that see the prince sleep .
END
printf '\n$ phraseloom translate %s --show < %s\n\n' "$here/run" "$here/sentences.en"
phraseloom translate "$here/run" --show <"$here/sentences.en"

echo "5. Everything the model does with these sentences, as a page"
run phraseloom explain "$here/run" -s "$here/sentences.en" -o "$here/explain.html"

cat <<END

Try your own: echo "the old man kicks the bucket ." | phraseloom translate $here/run --show
Train the plain Transformer too, and compare: docs/tutorial.md
Open this page in a browser:
$(cd "$here" && pwd)/explain.html
END
