"""The description of a folder (`report/run/folders.py`) as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phraseloom.errors import plural
from phraseloom.report.markup import terminal


def render(found: Mapping[str, Any]) -> str:
    """The description as text for a terminal, with a final newline."""
    draw = {"dataset": _render_dataset, "run": _render_run}.get(found["kind"], _render_model)
    blocks = [f"{found['folder']}: {found['kind']}", *draw(found)]
    if found["checksums"] is not None:
        blocks.append("checksums: " + ("all files are as they were written" if found["checksums"] else "DAMAGED"))
    blocks += [f"problem: {p}" for p in found["problems"]]
    return "\n".join(blocks) + "\n"


def _render_model(found: Mapping[str, Any]) -> list[str]:
    blocks = []
    facts: list[list[object]] = []
    languages, vocabularies = found.get("languages"), found.get("vocabularies")
    if found.get("task"):
        facts.append(["task", found["task"]])
    if isinstance(languages, dict):
        facts.append(["languages", _languages(languages)])
    if isinstance(vocabularies, dict):
        sizes = [f"{side} {v.get('size')}" for side, v in vocabularies.items() if isinstance(v, dict)]
        same = len({str(v.get("sha256")) for v in vocabularies.values() if isinstance(v, dict)}) == 1
        facts.append(["vocabularies", ", ".join(sizes) + (" (joint)" if same and len(sizes) > 1 else "")])
    if found.get("segmenter"):
        facts.append(["source phrases", found["segmenter"]])
    if found.get("phraseloom"):
        facts.append(["written by", f"phraseloom {found['phraseloom']}"])
    if found.get("types"):
        facts.append(["stored as", ", ".join(found["types"])])
    for prefix, part in (("", "model"), ("decoding: ", "generation"), ("state: ", "training")):
        if isinstance(found.get(part), dict):
            facts += [[f"{prefix}{k}", v] for k, v in _flat(found[part])]
    if facts:
        blocks.append(terminal(["", ""], [[a, str(b)] for a, b in facts], indent=2))
    if "parts" in found:
        rows = [[p["part"], p["tensors"], p["parameters"]] for p in found["parts"]]
        rows.append(["all", sum(p["tensors"] for p in found["parts"]), found["parameters"]])
        blocks.append("\n" + terminal(["part", "tensors", "parameters"], rows, indent=2) + "\n")
    return blocks


def _languages(languages: Mapping[str, Any]) -> str:
    if "text" in languages:
        return str(languages["text"])
    return f"{languages.get('source') or '?'} → {languages.get('target') or '?'}"


def _render_run(found: Mapping[str, Any]) -> list[str]:
    blocks = []
    if "updates" in found:
        seconds = found["seconds"] or 0.0
        time = f", {seconds / 60:.1f} minutes" if seconds >= 60 else f", {seconds:.1f} seconds" if seconds else ""
        blocks.append(f"  {plural(found['updates'], 'update')}{time}")
    if found.get("unreadable_lines"):
        blocks.append(f"  {plural(found['unreadable_lines'], 'line')} of the log could not be read")
    validations = found.get("validations", [])
    if validations:
        columns = {
            "perplexity": "perplexity",
            "word_perplexity": "per word",
            "cosine_loss": "cosine loss",
            "bleu": "BLEU",
        }
        columns = {key: title for key, title in columns.items() if any(key in v for v in validations)}
        rows = [[v["update"], *(v.get(key) for key in columns)] for v in validations[-10:]]
        more = f" (last 10 of {len(validations)})" if len(validations) > 10 else ""
        blocks.append(f"\n  validations{more}\n" + terminal(["update", *columns.values()], rows, indent=2) + "\n")
    state = {True: "whole", False: "DAMAGED", None: "not checked"}
    rows = []
    for checkpoint in found["checkpoints"]:
        links = [name for name in ("best", "last") if found.get(name) == checkpoint["name"]]
        rows.append([checkpoint["name"], state[checkpoint["whole"]], ", ".join(links)])
    blocks.append(terminal(["checkpoint", "state", ""], rows, indent=2) if rows else "  no checkpoint yet")
    if "model_folder" in found:
        model = {**found["model_folder"], "training": None}
        blocks += [f"\n  the model of {model['folder']}:", *_render_model(model)]
    return blocks


def _render_dataset(found: Mapping[str, Any]) -> list[str]:
    if "splits" not in found:
        return []
    config, is_text = found["config"], "language" in found["config"]
    sizes = f"{found['subwords']['source_vocabulary']:,} / {found['subwords']['target_vocabulary']:,}"
    kind = f"{config.get('source_language')} → {config.get('target_language')}, vocabularies {sizes}"
    if is_text:
        kind = (
            f"text in {config['language']}, for language models; vocabulary {found['subwords']['target_vocabulary']:,}"
        )
    columns = {"read": "read", "pairs": "kept", "source_tokens": "source subwords", "target_tokens": "target subwords"}
    if is_text:
        columns = {"read": "read", "pairs": "kept", "target_tokens": "subwords"}
    if "target_words" in found["subwords"]:
        of_words = "source_words" in found["subwords"]
        columns = {
            key: name.replace("subwords", "words") if of_words or key != "source_tokens" else name
            for key, name in columns.items()
        }
        columns |= {"source_unknown": "unknown source words"} if of_words and not is_text else {}
        columns["target_unknown"] = "unknown words" if is_text else "unknown target words"
    if "segmenter" in found:
        columns["source_phrases"] = "source phrases"
    columns["shards"] = "shards"
    rows = [[name, *(split[k] for k in columns)] for name, split in found["splits"].items()]
    blocks = [f"  {kind}", "", terminal(["split", *columns.values()], rows, indent=2)]
    if "segmenter" in found:
        blocks += [f"  source phrases: {found['segmenter']}"]
        trees = [(n, s["no_tree"]) for n, s in found["splits"].items() if "no_tree" in s]
        blocks += [
            f"  {n}: {plural(t['lines'], 'line')} without a parse tree ({t['first_file']}:{t['first_line']})"
            for n, t in trees
        ]
    dropped = [
        [n, reason, d["pairs"], f"{d['first_file']}:{d['first_line']}"]
        for n, s in found["splits"].items()
        for reason, d in s["dropped"].items()
    ]
    if dropped:
        blocks += [
            "",
            terminal(["split", "left out because", "lines" if is_text else "pairs", "first"], dropped, indent=2),
        ]
    for name, split in found["splits"].items():
        if split["lengths"]:
            blocks += ["", _histogram(name, split["lengths"])]
    return [*blocks, ""]


def _histogram(name: str, lengths: Mapping[str, Any]) -> str:
    most = max([1, *(c for side in lengths.values() for c in side["histogram"].values())])
    rows = []
    for label in next(iter(lengths.values()))["histogram"]:
        counts = [side["histogram"][label] for side in lengths.values()]
        if any(counts):
            bars = ["▇" * round(24 * c / most) or ("▏" if c else "") for c in counts]
            rows.append([label, *(cell for pair in zip(counts, bars, strict=True) for cell in pair)])
    quantiles = [f"{s}: median {v['median']}, 90 % ≤ {v['p90']}, longest {v['longest']}" for s, v in lengths.items()]
    table = terminal(["subwords", *(cell for side in lengths for cell in (side, ""))], rows, indent=2)
    return f"  {name}: sentence lengths ({'; '.join(quantiles)})\n{table}"


def _flat(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    """Nested mappings as dotted names; empty values left out."""
    result: list[tuple[str, object]] = []
    for key, inner in value.items():
        if isinstance(inner, dict):
            result += _flat(inner, f"{prefix}{key}.")
        elif inner is not None:
            result.append((f"{prefix}{key}", inner))
    return result
