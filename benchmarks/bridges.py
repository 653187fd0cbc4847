"""Time and memory of `convert from-marian`, and speed of the imported model against CTranslate2 in fp32.

Run: python benchmarks/bridges.py [--width 512] [--layers 6] [--vocabulary 58000] [--beam 1 4] [--quick]
The MarianMT folder has the size of an OPUS-MT model (75 million parameters by default) and random weights; so that outputs have
a length, both programs are told it. The import is the command in a process of its own; its memory is its peak
(VmHWM of /proc), with and without that of a process that only imports the same modules. The speed is that of whole lines to
tokens, sentencepiece included on our side only. CTranslate2 (extra `ctranslate2`) gets the model by `convert to-ctranslate2`
and translates 1 × cores: one translator with a thread for each core; both take turns in one process.
"""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from common import finish, interleave, parser, table, take_cores
from phraseloom.bridges import marian_format as names
from phraseloom.bridges.to_ctranslate2 import export_ctranslate2, token_names
from phraseloom.decoding.translator import TranslationReport, Translator
from phraseloom.models.store import save_tensors

QUICK = {
    "width": 16, "layers": 1, "vocabulary": 700, "pieces": 300, "sentences": 4, "length": 5, "seconds": 0.0, "beam": [1],
}  # fmt: skip
BAR_SECONDS = 10.0
MODULES = "import phraseloom.bridges.from_marian, sentencepiece; from phraseloom.cli.main import run"
IMPORT = f"{MODULES}; import sys; assert run(['convert', 'from-marian', *sys.argv[1:]]) == 0"
# A process tells its own peak: that which the system reports to its parent begins with the memory of the parent.
PEAK = """
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def sentences(count: int, seed: int = 1) -> list[str]:
    """Lines of 5 to 25 made-up words, the frequent ones first among 5,000."""
    draw = random.Random(seed)
    among = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(5000)]
    return [" ".join(among[int(5000 * draw.random() ** 3)] for _ in range(draw.randint(5, 25))) for _ in range(count)]


def subwords(pieces: int) -> bytes:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(3000)), model_writer=model, vocab_size=pieces, model_type="bpe", minloglevel=4
    )
    return model.getvalue()


def shape_of(name: str, width: int, inner: int) -> tuple[int, ...]:
    part, kind = name.split(".")[-2:]
    if "norm" in part:
        return (width,)
    rows, columns = {"fc1": (inner, width), "fc2": (width, inner)}.get(part, (width, width))
    return (rows, columns) if kind == "weight" else (rows,)


def write_marian(folder: Path, width: int, layers: int, vocabulary: int, pieces: int) -> int:
    """A MarianMT folder of random weights; the number of its parameters."""
    import sentencepiece

    folder.mkdir(parents=True)
    model = subwords(pieces)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    own = [
        p for p in processor.id_to_piece(list(range(processor.get_piece_size()))) if p not in ("<s>", "</s>", "<unk>")
    ]
    filler = [f"piece{n}" for n in range(vocabulary - len(own) - 3)]
    listed = ["</s>", "<unk>", *own, *filler, "<pad>"]
    pad = len(listed) - 1
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(listed)}))
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(model)
    sides: dict[str, int] = {}
    for side in ("encoder", "decoder"):
        heads = 8 if width % 8 == 0 else 2
        sides |= {f"{side}_layers": layers, f"{side}_attention_heads": heads, f"{side}_ffn_dim": 4 * width}
    config = {
        "model_type": "marian", "vocab_size": len(listed), "d_model": width, **sides, "activation_function": "swish",
        "scale_embedding": True, "pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad, "max_length": 512,
        "bad_words_ids": [[pad]], "num_beams": 4, "max_position_embeddings": 512,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "de"}))
    torch.manual_seed(1)
    tensors = {
        names.SHARED: torch.randn(len(listed), width) * width**-0.5,
        names.OUTPUT_BIAS: torch.zeros(1, len(listed)),
    }
    for side in ("encoder", "decoder"):
        for _, group in names.layer_names(side, layers):
            for name in group:
                shape = shape_of(name, width, 4 * width)
                tensors[name] = torch.ones(shape) if "norm.weight" in name else torch.randn(shape) * width**-0.5
    save_tensors(folder / "model.safetensors", tensors)
    return sum(tensor.numel() for tensor in tensors.values())


def measured(program: str, *arguments: str) -> tuple[float, float, int]:
    """Seconds, seconds of processor time and peak memory (bytes) of a Python program that has to succeed."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", program + PEAK, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    printed = process.stdout.read().decode()
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"exit code {process.returncode}: {' '.join(arguments)}")
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, int(printed.split()[-1]) * 1024


def speeds(model: Path, scratch: Path, options: Any) -> tuple[dict[str, float], dict[str, Any]] | None:
    """Ratios of time, CTranslate2 / phraseloom (above 1: phraseloom is faster), and times; None without CTranslate2."""
    try:
        import ctranslate2
    except ImportError:
        return None
    source = export_ctranslate2(model, scratch / "ct2")
    torch.set_num_threads(options.cores)
    bounds = {"factor": 0.0, "constant": options.length}
    ours = Translator.from_pretrained(model, max_length=bounds, min_length=bounds, unknown="keep")
    theirs = ctranslate2.Translator(
        str(scratch / "ct2"), inter_threads=1, intra_threads=options.cores, compute_type="float32"
    )
    lines = sentences(options.sentences, seed=3)
    piece_names = token_names(source.tokenizer.source.vocabulary)
    pieces = [[piece_names[i] for i in ours.tokenizer.source.encode(line)] for line in lines]
    ratios, figures = {}, {}
    for beam in options.beam:

        def translate(beam: int = beam) -> Any:
            return ours.translate(lines, beam=beam, report=TranslationReport())  # all reach their longest, as asked

        def translate_there(beam: int = beam) -> Any:
            return theirs.translate_batch(
                pieces, beam_size=beam, max_batch_size=32, min_decoding_length=options.length,
                max_decoding_length=options.length,
            )  # fmt: skip

        lengths = {len(t.tokens) for t in translate()} | {len(r.hypotheses[0]) for r in translate_there()}
        assert lengths == {options.length}, f"outputs of {lengths} tokens"
        times = interleave({"phraseloom": translate, "CTranslate2": translate_there}, seconds=options.seconds, warm=1)
        ratios[f"speed of beam {beam}: phraseloom / CTranslate2 fp32 1 × {options.cores}"] = (
            times["CTranslate2"] / times["phraseloom"]
        )
        figures[f"beam {beam}"] = times
    return ratios, figures


def main() -> None:
    arguments = parser(__doc__, quick=QUICK)
    arguments.add_argument("--width", type=int, default=512)
    arguments.add_argument("--layers", type=int, default=6, help="of the encoder, and as many of the decoder")
    arguments.add_argument("--vocabulary", type=int, default=58_000)
    arguments.add_argument("--pieces", type=int, default=8_000, help="pieces of the sentencepiece model")
    arguments.add_argument("--sentences", type=int, default=64)
    arguments.add_argument("--length", type=int, default=25, help="subwords of an output")
    arguments.add_argument("--beam", type=int, nargs="+", default=[1, 4])
    arguments.add_argument("--seconds", type=float, default=60.0, help="of turns for each beam")
    options = arguments.parse_args()
    options.cores = take_cores(options.cores)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = 4 * write_marian(folder / "theirs", options.width, options.layers, options.vocabulary, options.pieces)
        _, _, idle = measured(MODULES)
        seconds, processor, peak = measured(IMPORT, str(folder / "theirs"), str(folder / "ours"))
        compared = speeds(folder / "ours", folder, options)
    rows = [[f"{size / 4e6:,.1f} M", seconds, processor, size / 2**20, peak / 2**20, idle / 2**20]]
    table(["parameters", "seconds", "of processor", "model, MiB", "peak, MiB", "modules alone, MiB"], rows)
    ratios = {
        f"import: seconds / bar of {BAR_SECONDS:g} s": seconds / BAR_SECONDS,
        "import: peak memory beyond the modules / size of the model": (peak - idle) / size,
    }
    figures: dict[str, Any] = {"seconds": seconds, "processor": processor, "bytes": size, "peak": peak, "modules": idle}
    if compared is None:
        print("CTranslate2 is left out: pip install 'phraseloom[ctranslate2]'")
    else:
        ratios |= compared[0]
        figures["times"] = compared[1]
    finish("bridges", options, ratios=ratios, figures=figures)


if __name__ == "__main__":
    main()
