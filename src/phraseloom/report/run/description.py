"""The description of a folder (`report/run/folders.py`) or a recipe (`cli/inspect.py`) as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phraseloom.errors import plural
from phraseloom.report.markup import terminal


def render(description: Mapping[str, Any]) -> str:
    """The description of a folder or a recipe as text, with a final newline."""
    others = {"dataset": _render_dataset, "run": _render_run, "recipe": _render_recipe}
    draw = others.get(description["kind"], _render_model)
    blocks = [f"{description.get('folder') or description['file']}: {description['kind']}", *draw(description)]
    if description["checksums"] is not None:
        blocks.append("checksums: " + ("all files are as they were written" if description["checksums"] else "DAMAGED"))
    blocks += [f"problem: {p}" for p in description["problems"]]
    return "\n".join(blocks) + "\n"


def _render_model(description: Mapping[str, Any]) -> list[str]:
    blocks = []
    facts: list[list[object]] = []
    languages, vocabularies = description.get("languages"), description.get("vocabularies")
    if description.get("task"):
        facts.append(["task", description["task"]])
    if isinstance(languages, dict):
        facts.append(["languages", _languages(languages)])
    if isinstance(vocabularies, dict):
        sizes = [f"{side} {v.get('size')}" for side, v in vocabularies.items() if isinstance(v, dict)]
        same = len({str(v.get("sha256")) for v in vocabularies.values() if isinstance(v, dict)}) == 1
        facts.append(["vocabularies", ", ".join(sizes) + (" (joint)" if same and len(sizes) > 1 else "")])
    if description.get("segmenter"):
        facts.append(["source phrases", description["segmenter"]])
    if description.get("phraseloom"):
        facts.append(["written by", f"phraseloom {description['phraseloom']}"])
    if description.get("types"):
        facts.append(["stored as", ", ".join(description["types"])])
    for prefix, part in (("", "model"), ("decoding: ", "generation"), ("state: ", "training")):
        if isinstance(description.get(part), dict):
            facts += [[f"{prefix}{k}", v] for k, v in _flat(description[part])]
    if facts:
        blocks.append(terminal(["", ""], [[a, str(b)] for a, b in facts], indent=2))
    if "parts" in description:
        blocks.append(_parts(description))
    return blocks


def _render_recipe(description: Mapping[str, Any]) -> list[str]:
    facts: list[list[object]] = [["name", description["name"]], ["task", description["task"]]]
    facts.append(["languages", _languages(description["languages"])])
    sizes = description["vocabularies"]
    of_sides = ", ".join(f"{side} {size}" for side, size in sizes["sizes"].items())
    facts.append(["vocabularies", f"{of_sides} ({sizes['from']})"])
    facts += [[key, value] for key, value in _flat(description["model"])]
    blocks = [terminal(["", ""], [[a, str(b)] for a, b in facts], indent=2), _parts(description)]
    if (start := description["start"]) is not None:
        blocks.append(f"{start['text']}; collapsed: {', '.join(start['collapsed']) or 'nothing'}")
    return blocks


def _parts(description: Mapping[str, Any]) -> str:
    """The table of parameters by part."""
    rows = [[p["part"], p["tensors"], p["parameters"]] for p in description["parts"]]
    rows.append(["all", sum(p["tensors"] for p in description["parts"]), description["parameters"]])
    return "\n" + terminal(["part", "tensors", "parameters"], rows, indent=2) + "\n"


def _languages(languages: Mapping[str, Any]) -> str:
    if "text" in languages:
        return str(languages["text"])
    return f"{languages.get('source') or '?'} → {languages.get('target') or '?'}"


def _render_run(description: Mapping[str, Any]) -> list[str]:
    blocks = []
    if "updates" in description:
        seconds = description["seconds"] or 0.0
        time = f", {seconds / 60:.1f} minutes" if seconds >= 60 else f", {seconds:.1f} seconds" if seconds else ""
        blocks.append(f"  {plural(description['updates'], 'update')}{time}")
    if description.get("unreadable_lines"):
        blocks.append(f"  {plural(description['unreadable_lines'], 'line')} of the log could not be read")
    validations = description.get("validations", [])
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
    for checkpoint in description["checkpoints"]:
        links = [name for name in ("best", "last") if description.get(name) == checkpoint["name"]]
        rows.append([checkpoint["name"], state[checkpoint["whole"]], ", ".join(links)])
    blocks.append(terminal(["checkpoint", "state", ""], rows, indent=2) if rows else "  no checkpoint yet")
    if "model_folder" in description:
        model = {**description["model_folder"], "training": None}
        blocks += [f"\n  the model of {model['folder']}:", *_render_model(model)]
    return blocks


def _render_dataset(description: Mapping[str, Any]) -> list[str]:
    if "splits" not in description:
        return []
    config, is_text = description["config"], "language" in description["config"]
    sizes = f"{description['subwords']['source_vocabulary']:,} / {description['subwords']['target_vocabulary']:,}"
    kind = f"{config.get('source_language')} → {config.get('target_language')}, vocabularies {sizes}"
    if is_text:
        kind = f"text in {config['language']}, for language models; vocabulary {description['subwords']['target_vocabulary']:,}"
    columns = {"read": "read", "pairs": "kept", "source_tokens": "source subwords", "target_tokens": "target subwords"}
    if is_text:
        columns = {"read": "read", "pairs": "kept", "target_tokens": "subwords"}
    if "target_words" in description["subwords"]:
        of_words = "source_words" in description["subwords"]
        columns = {
            key: name.replace("subwords", "words") if of_words or key != "source_tokens" else name
            for key, name in columns.items()
        }
        columns |= {"source_unknown": "unknown source words"} if of_words and not is_text else {}
        columns["target_unknown"] = "unknown words" if is_text else "unknown target words"
    if "segmenter" in description:
        columns["source_phrases"] = "source phrases"
    columns["shards"] = "shards"
    rows = [[name, *(split[k] for k in columns)] for name, split in description["splits"].items()]
    blocks = [f"  {kind}", "", terminal(["split", *columns.values()], rows, indent=2)]
    if "segmenter" in description:
        blocks += [f"  source phrases: {description['segmenter']}"]
        trees = [(n, s["no_tree"]) for n, s in description["splits"].items() if "no_tree" in s]
        blocks += [
            f"  {n}: {plural(t['lines'], 'line')} without a parse tree ({t['first_file']}:{t['first_line']})"
            for n, t in trees
        ]
    dropped = [
        [n, reason, d["pairs"], f"{d['first_file']}:{d['first_line']}"]
        for n, s in description["splits"].items()
        for reason, d in s["dropped"].items()
    ]
    if dropped:
        blocks += [
            "",
            terminal(["split", "left out because", "lines" if is_text else "pairs", "first"], dropped, indent=2),
        ]
    for name, split in description["splits"].items():
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
    """Nested mappings as dotted names, without None."""
    result: list[tuple[str, object]] = []
    for key, inner in value.items():
        if isinstance(inner, dict):
            result += _flat(inner, f"{prefix}{key}.")
        elif inner is not None:
            result.append((f"{prefix}{key}", inner))
    return result
