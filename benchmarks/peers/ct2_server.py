"""Translate with CTranslate2 on request: one JSON object a line in, one out. Models stay loaded between requests.

Runs under the interpreter of PHRASELOOM_PEER_CT2: ct2_server.py SENTENCES (ids, one sentence a line, no end symbol).

    {"convert": "x.npz", "out": FOLDER, "heads": 4, "epsilon": 1e-6}  → {}
    {"model": FOLDER, "compute": "float32", "workers": 1, "threads": 2, "beam": 5, "length_penalty": 0, "batch": 64,
     "max_length": 100, "first": 64 or null, "one": false, "clock": "wall", "outputs": true}
        → {"seconds", "tokens", "outputs"?}
`one`: one sentence a call. `clock`: wall, or cpu for processor time.
Loading is not part of the seconds. Tokens count one end symbol a sentence.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import ctranslate2


def translate(request: dict[str, Any], loaded: dict[Any, Any], sentences: list[list[str]]) -> dict[str, Any]:
    key = tuple(request[k] for k in ("model", "compute", "workers", "threads"))
    if key not in loaded:
        model, compute, workers, threads = key
        loaded[key] = ctranslate2.Translator(
            model, device="cpu", compute_type=compute, inter_threads=workers, intra_threads=threads
        )
    given = sentences[: request["first"]]
    clock = {"wall": time.perf_counter, "cpu": time.process_time}[request["clock"]]
    begin = clock()
    results = [
        result
        for call in ([[sentence] for sentence in given] if request["one"] else [given])
        for result in loaded[key].translate_batch(
            call,
            beam_size=request["beam"],
            length_penalty=request["length_penalty"],
            max_batch_size=request["batch"],
            batch_type="examples",
            max_input_length=0,
            max_decoding_length=request["max_length"],
        )
    ]
    outputs = [r.hypotheses[0] for r in results]
    answer: dict[str, Any] = {"seconds": clock() - begin, "tokens": sum(len(o) + 1 for o in outputs)}
    if request.get("outputs"):
        answer["outputs"] = [" ".join(o) for o in outputs]
    return answer


def main() -> None:
    lines = Path(sys.argv[1]).read_text().split("\n")[:-1]
    sentences = [[*line.split(), "</s>"] for line in lines]
    loaded: dict[Any, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "convert" in request:
            import ct2_model

            out = Path(request["out"])
            ct2_model.write(Path(request["convert"]), out, heads=request["heads"], epsilon=request["epsilon"])
            answer: dict[str, Any] = {"version": ctranslate2.__version__}
        else:
            answer = translate(request, loaded, sentences)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
