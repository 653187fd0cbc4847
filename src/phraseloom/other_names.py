"""Names of options in other toolkits → the keys of a recipe and the options of a command that mean the same.

Error messages suggest them for an unknown key or option, and `docs/coming_from.md` lists them. Names are compared without
case, and with `_` for `-`. Where two toolkits use one name for different things, the suggestion names both.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

__all__ = ["KEYS", "OPTIONS", "TOOLKITS", "OtherName", "markdown", "suggest_key", "suggest_option"]

TOOLKITS = ("fairseq", "Marian", "JoeyNMT", "Hugging Face", "OpenNMT", "Sockeye", "CTranslate2")
PEAK = "kind: inverse_sqrt_peak, linear or cosine"
WHOLE_UPDATE = "target tokens of a whole update"
BY_LENGTH = "all but JoeyNMT and OpenNMT"  # they divide by a power of the length


class OtherName(NamedTuple):
    """One of our names, the names of each toolkit (in the order of `TOOLKITS`), and what to know."""

    ours: str
    names: tuple[str, ...]
    note: str = ""


def _row(
    ours: str, fairseq: str = "", marian: str = "", joey: str = "", hf: str = "", onmt: str = "", *,
    sockeye: str = "", ct2: str = "", note: str = "",
) -> OtherName:  # fmt: skip
    return OtherName(ours, (fairseq, marian, joey, hf, onmt, sockeye, ct2), note)


KEYS = [
    _row("data.train", "trainpref", "train-sets", "", "train_file", "train_path", sockeye="source target"),
    _row("data.valid", "validpref", "valid-sets", "dev", "validation_file", "valid_path",
         sockeye="validation-source validation-target"),
    _row("data.source_language", "source-lang", "", "", "source_lang"),
    _row("data.target_language", "target-lang", "", "", "target_lang"),
    _row("data.folder", "destdir", "", "", "", "save_data", sockeye="prepared-data"),
    _row("data.subwords.size", "nwordssrc", "dim-vocabs", "voc_limit", "vocab_size", "src_vocab_size", sockeye="num-words"),
    _row("data.subwords.joint", "joined-dictionary", "", "", "", "share_vocab", sockeye="shared-vocab"),
    _row("data.filter.max_tokens", "max-source-positions", "max-length", "max_length", "max_source_length", "src_seq_length",
         sockeye="max-seq-len"),
    _row("data.text.lowercase", "", "", "lowercase"),
    _row("model.preset", "arch", "task"),
    _row("model.width", "encoder-embed-dim", "dim-emb", "hidden_size", "d_model", "hidden_size word_vec_size enc_hid_size",
         sockeye="transformer-model-size num-embed"),
    _row("model.ffn_width", "encoder-ffn-embed-dim", "transformer-dim-ffn", "ff_size", "encoder_ffn_dim decoder_ffn_dim",
         "transformer_ff", sockeye="transformer-feed-forward-num-hidden"),
    _row("model.heads", "encoder-attention-heads decoder-attention-heads", "transformer-heads", "num_heads",
         "encoder_attention_heads num_attention_heads", sockeye="transformer-attention-heads"),
    _row("model.encoder.layers", "encoder-layers", "enc-depth", "num_layers", "encoder_layers num_hidden_layers",
         "enc_layers layers", sockeye="num-layers"),
    _row("model.decoder.layers", "decoder-layers", "dec-depth", "num_layers", "decoder_layers num_hidden_layers",
         "dec_layers layers", sockeye="num-layers"),
    _row("model.norm", "encoder-normalize-before", "transformer-postprocess", "layer_norm", "normalize_before",
         sockeye="transformer-preprocess transformer-postprocess"),
    _row("model.activation", "activation-fn", "transformer-ffn-activation", "", "activation_function", "pos_ffn_activation_fn",
         sockeye="transformer-activation-type"),
    _row("model.tied", "share-all-embeddings", "tied-embeddings-all", "tied_embeddings tied_softmax", "tie_word_embeddings",
         "share_embeddings share_decoder_embeddings", sockeye="weight-tying-type"),
    _row("model.dropout", "dropout", "transformer-dropout", "dropout", "dropout hidden_dropout_prob", "dropout",
         sockeye="transformer-dropout-prepost embed-dropout"),
    _row("model.attention_dropout", "attention-dropout", "transformer-dropout-attention", "",
         "attention_dropout attention_probs_dropout_prob", "attention_dropout", sockeye="transformer-dropout-attention"),
    _row("model.ffn_dropout", "activation-dropout relu-dropout", "transformer-dropout-ffn", "", "activation_dropout",
         sockeye="transformer-dropout-act"),
    _row("model.positions", "encoder-learned-pos", "transformer-train-positions", "", "position_embedding_type",
         "position_encoding", sockeye="transformer-positional-embedding-type"),
    _row("model.output.label_smoothing", "label-smoothing", "label-smoothing", "label_smoothing", "label_smoothing_factor",
         "label_smoothing", sockeye="label-smoothing"),
    _row("training.batch_tokens", "max-tokens update-freq", "mini-batch-words mini-batch optimizer-delay",
         "batch_size batch_multiplier", "per_device_train_batch_size gradient_accumulation_steps", "batch_size accum_count",
         sockeye="batch-size update-interval", note=WHOLE_UPDATE),
    _row("training.schedule.peak", "lr", "learn-rate", "learning_rate", "learning_rate", "learning_rate",
         sockeye="initial-learning-rate", note=PEAK),
    _row("training.schedule.kind", "lr-scheduler", "lr-decay-inv-sqrt", "scheduling", "lr_scheduler_type", "decay_method",
         sockeye="learning-rate-scheduler-type"),
    _row("training.schedule.warmup", "warmup-updates", "lr-warmup", "learning_rate_warmup", "warmup_steps", "warmup_steps",
         sockeye="learning-rate-warmup"),
    _row("training.max_updates", "max-update", "after after-batches", "updates", "max_steps", "train_steps",
         sockeye="max-updates"),
    _row("training.max_epochs", "max-epoch", "after-epochs", "epochs", "num_train_epochs", sockeye="max-num-epochs"),
    _row("training.max_minutes", "stop-time-hours", sockeye="max-seconds", note="in minutes"),
    _row("training.clip_norm", "clip-norm", "clip-norm", "clip_grad_norm", "max_grad_norm", "max_grad_norm",
         sockeye="gradient-clipping-threshold"),
    _row("training.optimizer.beta1", "adam-betas", "optimizer-params", "adam_betas", "adam_beta1", "adam_beta1",
         sockeye="optimizer-betas"),
    _row("training.optimizer.beta2", "adam-betas", "optimizer-params", "adam_betas", "adam_beta2", "adam_beta2",
         sockeye="optimizer-betas"),
    _row("training.optimizer.weight_decay", "weight-decay", "", "weight_decay", "weight_decay", "weight_decay",
         sockeye="weight-decay"),
    _row("training.checkpoint_every", "save-interval-updates validate-interval-updates", "save-freq valid-freq",
         "validation_freq", "save_steps eval_steps", "save_checkpoint_steps valid_steps", sockeye="checkpoint-interval",
         note="saves, then validates"),
    _row("training.keep_last", "keep-last-epochs keep-interval-updates", "", "keep_best_ckpts", "save_total_limit",
         "keep_checkpoint", sockeye="keep-last-params"),
    _row("training.patience", "patience", "early-stopping", "", "early_stopping_patience", "early_stopping",
         sockeye="max-num-checkpoint-not-improved"),
    _row("training.schedule.patience", "lr-patience", "", "patience", sockeye="learning-rate-reduce-num-not-improved",
         note="kind: plateau"),
    _row("training.schedule.factor", "lr-shrink", "lr-decay", "decrease_factor", "", "learning_rate_decay",
         sockeye="learning-rate-reduce-factor", note="kind: plateau"),
    _row("training.best_by", "best-checkpoint-metric", "valid-metrics", "early_stopping_metric", "metric_for_best_model",
         "early_stopping_criteria", sockeye="optimized-metric"),
    _row("training.log_every", "log-interval", "disp-freq", "logging_freq", "logging_steps", "report_every"),
    _row("training.precision", "fp16 bf16", "fp16", "fp16", "fp16 bf16", "model_dtype", sockeye="dtype amp"),
    _row("training.processes", "distributed-world-size", "devices num-devices", "", "nproc_per_node", "world_size"),
    _row("training.start_from", "finetune-from-model restore-file", "pretrained-model", "load_model", "model_name_or_path",
         "train_from", sockeye="params"),
    _row("training.seed", "seed", "seed", "random_seed", "seed", "seed", sockeye="seed"),
    _row("training.tensorboard", "tensorboard-logdir", "", "", "report_to"),
    _row("training.tracker", "wandb-project", "", "", "report_to"),
    _row("training.guided_alignment", "alignment-lambda alignment-heads", "guided-alignment guided-alignment-weight", "", "",
         "lambda_align alignment_heads"),
    _row("training.checkpoint_activations", "", "", "", "gradient_checkpointing"),
    _row("training.compile", "", "", "", "torch_compile"),
    _row("decoding.beam", "beam", "beam-size", "beam_size", "num_beams", "beam_size", sockeye="beam-size"),
    _row("decoding.length_penalty", "lenpen", "normalize", "beam_alpha", "length_penalty", "alpha",
         sockeye="length-penalty-alpha length-penalty-beta", note=f"{BY_LENGTH}: {{kind: sockeye, alpha: 1, beta: 0}}"),
    _row("decoding.max_length", "max-len-a max-len-b", "max-length-factor", "max_output_length", "max_new_tokens",
         sockeye="max-output-length"),
]  # fmt: skip

OPTIONS = [
    _row("--beam", "beam", "beam-size", "beam_size", "num_beams", "beam_size", sockeye="beam-size", ct2="beam_size"),
    _row("--n-best", "nbest", "n-best", "n_best", "num_return_sequences", "n_best", sockeye="nbest-size", ct2="num_hypotheses"),
    _row("--alpha", "lenpen", "normalize", "beam_alpha", "length_penalty", "alpha", sockeye="length-penalty-alpha",
         ct2="length_penalty", note=f"{BY_LENGTH}: with --length-penalty sockeye --beta 0"),
    _row("--beta", sockeye="length-penalty-beta"),
    _row("--word-bonus", "", "word-penalty"),
    _row("--max-length", "max-len-a max-len-b", "max-length-factor", "max_output_length", "max_new_tokens",
         sockeye="max-output-length", ct2="max_decoding_length"),
    _row("--min-length", "min-len", "", "min_output_length", "min_new_tokens", "min_length", ct2="min_decoding_length"),
    _row("--batch", "batch-size", "mini-batch", "batch_size", "per_device_eval_batch_size", "batch_size", sockeye="batch-size",
         ct2="max_batch_size"),
    _row("--sample", "sampling", "output-sampling", "", "do_sample", sockeye="sample"),
    _row("--top-k", "sampling-topk", "", "", "top_k", "random_sampling_topk", ct2="sampling_topk"),
    _row("--top-p", "sampling-topp", "", "", "top_p", "random_sampling_topp", ct2="sampling_topp"),
    _row("--temperature", "temperature", "", "", "temperature", "random_sampling_temp", ct2="sampling_temperature"),
    _row("--no-repeat-ngram-size", "no-repeat-ngram-size", "", "", "no_repeat_ngram_size", "block_ngram_repeat",
         ct2="no_repeat_ngram_size"),
    _row("--constraints", "", "", "", "force_words_ids bad_words_ids", ct2="suppress_sequences"),
    _row("--unknown", "replace-unk", "allow-unk", "replace_unk", "", "replace_unk", sockeye="prevent-unk",
         ct2="replace_unknowns disable_unk"),
    _row("--prefixes", "prefix-size", "force-decode", "", "forced_decoder_ids", ct2="target_prefix"),
    _row("--alignments", "print-alignment", "alignment", "", "", "report_align", ct2="return_attention"),
    _row("--workers", "num-workers", "cpu-threads", ct2="inter_threads intra_threads"),
    _row("--precision", "fp16", "fp16", "", "", "fp32 int8", sockeye="dtype", ct2="compute_type"),
    _row("--device", "cpu", "devices", "use_cuda", "use_cpu", "gpu", sockeye="use-cpu device-id", ct2="device"),
    _row("--run", "save-dir", "model", "model_dir", "output_dir", "save_model", sockeye="output"),
    _row("MODEL", "path", "models", "", "model_name_or_path", "model", sockeye="models"),
]  # fmt: skip


def _normal(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


def _rows(table: list[OtherName], name: str) -> list[OtherName]:
    name = _normal(name)
    return [row for row in table if any(name in map(_normal, names.split()) for names in row.names)]


def _suggestion(rows: list[OtherName]) -> str | None:
    if not rows:
        return None
    ours = " or ".join(row.ours for row in rows)
    note = next((row.note for row in rows if row.note), "")
    return f"did you mean {ours}{f' ({note})' if note else ''}?"


def markdown(table: list[OtherName]) -> str:
    """The table as Markdown, for docs/coming_from.md, with the toolkits that have a name in it."""
    named = [i for i in range(len(TOOLKITS)) if any(row.names[i] for row in table)]
    header = ["phraseloom", *(TOOLKITS[i] for i in named)]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for row in table:
        ours = f"`{row.ours}`" + (f": {row.note}" if row.note else "")
        names = (", ".join(f"`{name}`" for name in row.names[i].split()) for i in named)
        lines.append(f"| {' | '.join([ours, *names])} |")
    return "\n".join(lines)


def suggest_key(name: str, keys: Container[str]) -> str | None:
    """`did you mean training.schedule.peak (…)?` for the last part of an unknown key, if a toolkit names it.

    `keys`: the dotted keys that the recipe may have.
    """
    return _suggestion([row for row in _rows(KEYS, name) if row.ours in keys])


def suggest_option(name: str, options: Container[str], *, takes_keys: bool = False) -> str | None:
    """`did you mean --beam?` for an unknown option, if a toolkit names it.

    `options`: those of the command. `takes_keys`: the command also takes `key=value`, so keys of recipes are suggested.
    """
    rows = [row for row in _rows(OPTIONS, name) if row.ours in options]
    if not rows and takes_keys:
        rows = [row._replace(ours=f"{row.ours}=VALUE") for row in _rows(KEYS, name)]
    return _suggestion(rows)
