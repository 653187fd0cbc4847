// The structures that `kernels.cpp`, `search.cpp` and `farthest.cpp` read; `library.py` declares the same ones for ctypes. Plain C, no torch
// headers.
//
// All tensors are contiguous, and float32 unless another type is there. Offsets and columns count floats. The caller keeps every
// pointer alive and checks every size; a function returns 0, or a negative error code.
#pragma once
#include <stdint.h>

enum { NO_MEMORY = -1, BAD_TOKEN = -2, BAD_ROW = -3 };
enum { LINEAR = 0, RELU = 1, SWISH = 2, GELU = 3, SIGMOID = 4, TANH = 5 };
enum { MAX_TAPS = 8 };
enum { GRU = 3, LSTM = 4 };  // by their number of gates
enum { MLP = 0, GENERAL = 1, FIXED = 2, MULTIHEAD = 3 };

// y = x W' + b, W (n, k) packed by `pl_pack`, as floats or as bytes; b may be null.
struct Matrix {
    const float *packed, *bias;
    int64_t n, k, bytes;
};

// Layer normalisation; weight null: none.
struct Norm {
    const float *weight, *bias;
    int64_t width;
    double epsilon;
};

// One block of an output of `layers/attention/windows.py`: the sum of `taps` columns of the product of the last tokens, the
// oldest first, goes to `offset` of the row of queries (to_cache 0) or of keys and values (to_cache 1).
struct Window {
    int64_t to_cache, offset, width, taps, columns[MAX_TAPS];
};

// The slots of one block for one head: scores are sums over taps of queries (offsets, query order by query order) times keys.
struct Slots {
    int64_t order, taps, key, value;
    const int64_t *queries;
};

// An attention block (layers/attention/multihead.py). Self-attention: `in` makes queries, keys and values. Cross-attention:
// `in` makes the queries and `memory` keys and values of the source.
struct Attention {
    Matrix in, memory, out;
    int64_t heads, size, blocks, num_orders;
    const int64_t *orders;      // of the queries
    int64_t zero_extended;
    int64_t query_width;        // 0: every query is one tap and is read from the product itself
    int64_t cache_width;        // keys and values of one token
    int64_t history;            // the longest window of `windows`
    const Window *windows, *memory_windows;
    int64_t num_windows, num_memory_windows;
    const Slots *slots;         // (heads, blocks)
    const float *gate;          // (heads), or null
    int64_t gate_block, gate_order;
    const float *key_table, *value_table;  // relative positions (2 clip + 1, size), or null
    int64_t clip;
    int64_t num_reads;          // contexts that an output reads: their query order, and how many tokens ahead
    const int64_t *read_order, *read_ahead;
};

// The attentive combination network (layers/phrase_representation.py); hidden.n is 0 where there is only the attention.
struct Combination {
    Norm norm;
    Matrix query, keys_values, output, hidden, down;
    int64_t heads, size, add_attended;
};

// How the phrase vectors of one level of an encoder are made (layers/phrase_representation.py): the glance, then a scorer.
struct Representation {
    int64_t mean, gated;           // else: the maximum, softmax
    Matrix of_glance, of_token;    // the halves of W1; packed null: the vector is the glance
    const float *score;            // w2
    double score_bias;             // b2
};

struct Layer {
    int64_t pre, has_cross, has_combination, activation;
    Norm self_norm, cross_norm, feed_forward_norm;
    Attention self, cross;
    Matrix up, down;
    Combination combination;
};

// A recurrent cell (layers/recurrent.py). Its gates are the sum of three products: `input` (with the biases), `fed` of what a
// decoder feeds back (packed null: nothing), and `hidden` of its state (of a GRU with the bias of the candidate).
struct Cell {
    Matrix input, fed, hidden;
    int64_t width, gates;  // GRU or LSTM
};

// The states of both directions stand side by side; `backwards` with hidden packed null: one direction only.
struct RecurrentLayer {
    Cell forwards, backwards;
};

// What a recurrent stack has in place of layers (models/recurrent.py). `residual`: layers after the first add their input to
// their output. A decoder has an attention of the top layer: MLP reads `query`, `key` and `score`, GENERAL `query`, MULTIHEAD
// `block`; FIXED always gives the last state of the source. `join` reads the top layer and the context. `initial`: the states
// before the first step from the last state of the source; packed null: they are given, or zero.
struct Recurrence {
    const RecurrentLayer *layers;
    int64_t residual, attention;
    Matrix query, key;
    const float *score;
    Attention block;
    Matrix join, initial;
};

// An encoder or a decoder with the embedding of its tokens: rows of `embedding`, through `project` if it is there; `embedded`
// numbers each. It has `layers`, or a `recurrence` (null: none).
//
// An encoder with source phrases has a representation for each of its num_layers + 1 levels. Mixture j of phrase vectors is the
// sum of the levels times phrase_shares[j * (num_layers + 1) + level]; likewise the mixtures of token states.
struct Stack {
    int64_t variant, width, embedded, vocabulary, num_layers;
    double scale;
    const float *embedding;
    Matrix project;
    Norm embedding_norm, final_norm;
    const Layer *layers;
    const Recurrence *recurrence;
    const Representation *representations;
    const float *phrase_shares, *token_shares;
    int64_t num_phrase_mixtures, num_token_mixtures;
};

// An output: its classes are compared with h, or with ê of a continuous output (outputs/continuous.py): first h, or
// second relu(first h). A class from `first_phrase` on is a phrase, for a gate between words and phrases.
struct Output {
    Matrix first, second, classes;  // first, second: packed null if not there
    int64_t first_phrase;
};

// What a search writes and when it ends (search.cpp). `divisors`: those of the length penalty for outputs of 0, 1, … tokens.
// `count`: the candidates of a row; `kept`: the finished hypotheses of a sentence. `gated`: steps give a gate, `weighed`: the
// output reads it. `until_finished`: a sentence is done when `beam` hypotheses have finished; `bound_now`: the bound of a live
// hypothesis has the penalty of its length now, not of the longest; `free_end`: the end of the longest output costs nothing.
struct SearchRules {
    int64_t variant, sentences, width, beam, count, kept, begin, end, num_banned;
    int64_t gated, weighed, until_finished, bound_now, free_end;
    const Output *output;
    const int64_t *banned, *longest, *shortest;  // of each sentence, without the end
    const double *divisors;
};

// A batch of sources, padded, and where its encoding goes. The mixtures are zero before; padding stays zero.
struct Source {
    int64_t sentences, length, phrases;
    const int64_t *tokens, *lengths;
    const float *positions;  // (length, embedded), or null
    const int64_t *sizes;    // tokens in each phrase (sentences, phrases), none after the last phrase; null without phrases
    float *states;           // (sentences, length, D)
    float *vectors;          // (phrase mixtures, sentences, phrases, D)
    float *mixed;            // (token mixtures, sentences, length, D)
    float *final;            // of a recurrent encoder (sentences, layers, parts of a state, D), or null
};

// A table of vectors as bytes (farthest.cpp): rows in panels of 64, the bytes of a panel (quads, 64, 4), zeros behind the last
// row and behind its last number. `starts`: -128 Σ q of each row; `scales`: s, NaN behind the last row; `rows` (n, width).
struct ByteTable {
    const int8_t *panels;
    const int32_t *starts;
    const float *scales, *rows;
    int64_t n, width, quads;
};

// Directions t, `vectors` (count, width), and their bytes p + 128 (count, 4 quads); `inverse`: 1 / r; `excluded`: the row of the
// table that is left out.
struct Directions {
    const uint8_t *bytes;
    const float *vectors, *inverse, *slack;
    const int64_t *excluded;
    int64_t count;
};
