// Decoder steps, encoders and outputs for search on a CPU in float32: one call a step, weights packed once, no torch headers.
//
// `body.inc` has the kernels and is compiled once for each instruction set; the caller picks a variant at run time. The state
// of a search (caches, the order of its rows) belongs to this library; weights belong to the caller (`kernels.h`).
//
// Self-attention caches are never moved: the keys and values of a step stay where that step wrote them, and `ancestors` says
// which row of each earlier step belongs to a row now. Reordering or dropping hypotheses changes this table only. Recurrent states
// are read from the step before by the same table.
#include "kernels.h"

#include <float.h>
#if defined(__x86_64__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // in the header of intrinsics
#endif
#include <immintrin.h>
#endif
#include <math.h>
#if !defined(_WIN32)
#include <pthread.h>
#endif
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define API extern "C" __declspec(dllexport)
#else
#define API extern "C" __attribute__((visibility("default")))
#endif

static const float NEVER = -INFINITY, LOWEST = -FLT_MAX;

static inline int64_t greatest(int64_t a, int64_t b) { return a > b ? a : b; }

// Uninitialised floats on a cache line, or null. Blocks are powers of two and are kept when they are released, up to POOLED bytes:
// fresh pages of the system cost more than the arithmetic on them.
enum { SMALLEST = 12, LARGEST = 30, HEADER = 64 };
static const int64_t POOLED = 1 << 27;

struct Block {
    int64_t kind;  // log2 of its size, or 0 if it is not kept
    Block *next;
};

static Block *pool[LARGEST + 1];
static int64_t pooled;
static int pool_lock;

static void lock_pool() {
    while (__atomic_exchange_n(&pool_lock, 1, __ATOMIC_ACQUIRE)) {}
}

static void unlock_pool() { __atomic_store_n(&pool_lock, 0, __ATOMIC_RELEASE); }

#if !defined(_WIN32)
// A fork waits until no other thread is at the pool: in the child that thread is gone, and would never unlock it.
__attribute__((constructor)) static void lock_pool_at_fork() { pthread_atfork(lock_pool, unlock_pool, unlock_pool); }
#endif

static void *allocate(int64_t floats) {
    int64_t bytes = HEADER + (int64_t)sizeof(float) * greatest(floats, 1), kind = SMALLEST;
    while (kind <= LARGEST && ((int64_t)1 << kind) < bytes) kind++;
#if defined(__SANITIZE_ADDRESS__)
    kind = LARGEST + 1;  // exact blocks, so that the sanitizer sees their ends
#endif
    void *raw = 0;
    if (kind <= LARGEST) {
        bytes = (int64_t)1 << kind;
        lock_pool();
        if (pool[kind]) {
            raw = pool[kind];
            pool[kind] = pool[kind]->next;
            pooled -= bytes;
        }
        unlock_pool();
    }
#if defined(_WIN32)
    if (!raw && !(raw = malloc((size_t)bytes))) return 0;
#else
    if (!raw && posix_memalign(&raw, HEADER, (size_t)bytes)) return 0;
#endif
    ((Block *)raw)->kind = kind <= LARGEST ? kind : 0;
    return (char *)raw + HEADER;
}

static void release(void *data) {
    if (!data) return;
    Block *block = (Block *)((char *)data - HEADER);
    int64_t bytes = (int64_t)1 << block->kind;
    if (block->kind) {
        lock_pool();
        int keep = pooled + bytes <= POOLED;
        if (keep) {
            block->next = pool[block->kind];
            pool[block->kind] = block;
            pooled += bytes;
        }
        unlock_pool();
        if (keep) return;
    }
    free(block);
}

// One block of memory for several parts, each on a cache line; the block, or null.
static float *allocate_parts(const int64_t *sizes, float **parts, int count) {
    int64_t total = 0;
    for (int i = 0; i < count; i++) total += (sizes[i] + 31) / 16 * 16;
    float *memory = (float *)allocate(total), *next = memory;
    for (int i = 0; memory && i < count; i++) parts[i] = next, next += (sizes[i] + 31) / 16 * 16;
    return memory;
}

// Rows x to multiply, `stride` apart, and for a matrix of bytes also as bytes (rows, 4 quads) with their scales.
struct Rows {
    const float *x;
    int64_t stride;
    const uint8_t *bytes;
    const float *scales;
};

enum { MOST_BYTES = 1 << 16, MOST_ROWS = 64 };  // of a product of bytes at a time
static const float NO_BIAS[64] = {0.0f};       // of a panel
static const float SMALLEST_SCALED = 1e-30f;    // numbers that are all below it count as 0 in bytes

enum { NORMED, CONTEXTS, QUERIES, SCORES, POINTERS, INNER, EMBEDDED, GATES, HIDDEN_GATES, JOINED, NUM_SCRATCH };
enum { CHUNK = (1 << 18) - HEADER / 4, GROUP = 240, RECURRENT_GROUP = 960 };

struct Buffer {
    float *data;
    int64_t room;
};

// Chunks of memory that are freed together.
struct Arena {
    float **chunks;
    int64_t num_chunks, used, room;
};

// The products of the last tokens, for windows that have begun.
struct History {
    float *rows[MAX_TAPS];
    int64_t room[MAX_TAPS];
};

struct LayerState {
    History self, cross;
    float **steps;           // keys and values of each step
    float *memory;           // those of the source
    float *phrases;          // those of its phrases, sentence after sentence
    int64_t *phrase_starts;  // the first phrase of each sentence; one more number at the end
    int64_t most_phrases;    // of one sentence
};

struct State {
    const Stack *stack;
    LayerState *layers;
    Arena arena;
    Buffer scratch[NUM_SCRATCH];
    int64_t rows, step, capacity, num_sentences, length;
    int64_t *lengths;     // of the sources
    float *shares;        // of words and of phrases (sentences, orders, 2, length): see pl_gate
    float *initial;       // recurrent states before the first step (sentences, layers, parts, D)
    History recurrent;    // what is fed back, then the states, of the last two steps
    int32_t *ancestors;   // (rows, capacity)
    int32_t *sentences;   // of each row
};

static float *scratch(State *state, int number, int64_t floats) {
    Buffer *buffer = state->scratch + number;
    if (buffer->room < floats) {
        release(buffer->data);
        buffer->room = floats + floats / 2;
        buffer->data = (float *)allocate(buffer->room);
        if (!buffer->data) buffer->room = 0;
    }
    return buffer->data;
}

static float *take(Arena *arena, int64_t floats) {
    floats = (floats + 15) / 16 * 16;
    if (arena->used + floats > arena->room) {
        int64_t room = greatest(CHUNK, floats);
        float **chunks = (float **)realloc(arena->chunks, sizeof(float *) * (arena->num_chunks + 1));
        if (!chunks) return 0;
        arena->chunks = chunks;
        if (!(chunks[arena->num_chunks] = (float *)allocate(room))) return 0;
        arena->num_chunks++;
        arena->room = room;
        arena->used = 0;
    }
    float *result = arena->chunks[arena->num_chunks - 1] + arena->used;
    arena->used += floats;
    return result;
}

static float *take_history(History *history, int64_t taps, int64_t step, int64_t floats) {
    int64_t place = step % taps;
    if (history->room[place] < floats) {
        release(history->rows[place]);
        history->room[place] = floats;
        history->rows[place] = (float *)allocate(floats);
        if (!history->rows[place]) history->room[place] = 0;
    }
    return history->rows[place];
}

// The numbers of the state of a recurrent decoder, without what is fed back.
static int64_t state_width(const Stack *stack) {
    return stack->num_layers * (stack->recurrence->layers->forwards.gates == LSTM ? 2 : 1) * stack->width;
}

// Room for one more step, whose rows are their own ancestors.
static int prepare_step(State *state) {
    if (state->step == state->capacity) {
        int64_t capacity = 2 * state->capacity;
        int32_t *ancestors = (int32_t *)malloc(sizeof(int32_t) * greatest(1, state->rows * capacity));
        if (!ancestors) return 0;
        for (int64_t r = 0; r < state->rows; r++)
            memcpy(ancestors + r * capacity, state->ancestors + r * state->capacity, sizeof(int32_t) * state->step);
        free(state->ancestors);
        state->ancestors = ancestors;
        for (int64_t n = 0; n < state->stack->num_layers; n++) {
            float **steps = (float **)realloc(state->layers[n].steps, sizeof(float *) * capacity);
            if (!steps) return 0;
            state->layers[n].steps = steps;
        }
        state->capacity = capacity;
    }
    for (int64_t r = 0; r < state->rows; r++) state->ancestors[r * state->capacity + state->step] = (int32_t)r;
    return 1;
}

struct Kernels {
    int64_t (*packed_size)(int64_t, int64_t, int64_t);
    void (*pack)(const float *, int64_t, int64_t, int64_t, float *);
    int (*step)(State *, const int64_t *, const float *, float *, float *);
    int (*project_memory)(const Attention *, const float *, int64_t, int64_t, float *);
    int (*begin)(State *, const float *);
    void (*multiply)(const Matrix *, const float *, int64_t, int, float *);
    int (*encode)(const Stack *, const Source *);
    int (*candidates)(const Output *, const float *, const float *, int64_t, int64_t, const int64_t *, int64_t, double *, int64_t *,
                      const int64_t *, double *);
    int64_t lanes;
};

#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#endif

#define NAME generic
#define LANES 4
#define ROWS 2
#define VNNI 0
#define FN static
#define INLINE static inline __attribute__((always_inline))
#include "body.inc"
#undef NAME
#undef LANES
#undef ROWS
#undef FN
#undef INLINE

#if defined(__x86_64__)
#define NAME avx2
#define LANES 8
#define ROWS 3
#define FN static __attribute__((target("avx2,fma")))
#define INLINE static inline __attribute__((always_inline, target("avx2,fma")))
#include "body.inc"
#undef NAME
#undef LANES
#undef ROWS
#undef FN
#undef INLINE

#define NAME avx512
#define LANES 16
#define ROWS 6
#define FN static __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,fma")))
#define INLINE static inline __attribute__((always_inline, target("avx512f,avx512vl,avx512dq,avx512bw,fma")))
#include "body.inc"
#undef NAME
#undef FN
#undef INLINE
#undef VNNI

#define NAME avx512vnni
#define VNNI 1
#define FN static __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")))
#define INLINE static inline __attribute__((always_inline, target("avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")))
#include "body.inc"
#endif

// The variants, the slowest first; those that this processor lacks are null.
static const Kernels *variant(int64_t number) {
#if defined(__x86_64__)
    if (number == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &avx2::kernels;
    if (number >= 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("fma")) {
        if (number == 2) return &avx512::kernels;
        if (number == 3 && __builtin_cpu_supports("avx512vnni")) return &avx512vnni::kernels;
    }
#endif
    return number == 0 ? &generic::kernels : 0;
}

// The floats of a vector of a variant; 0 if this processor lacks it.
API int64_t pl_lanes(int64_t number) { return variant(number) ? variant(number)->lanes : 0; }

// The sizes of the structures, so that the caller can check that it declares the same ones.
API int64_t pl_struct_size(int64_t number) {
    const int64_t sizes[] = {sizeof(Matrix),      sizeof(Norm),           sizeof(Window), sizeof(Slots), sizeof(Attention),
                             sizeof(Combination), sizeof(Representation), sizeof(Layer),  sizeof(Cell),  sizeof(RecurrentLayer),
                             sizeof(Recurrence),  sizeof(Stack),          sizeof(Output), sizeof(Source),
                             sizeof(ByteTable),   sizeof(Directions),     sizeof(SearchRules)};
    return number >= 0 && number < (int64_t)(sizeof(sizes) / sizeof(*sizes)) ? sizes[number] : 0;
}

// The floats that `pl_pack` writes for W (n, k); `bytes`: whether as bytes.
API int64_t pl_packed_size(int64_t number, int64_t n, int64_t k, int64_t bytes) {
    return variant(number)->packed_size(n, k, bytes);
}

API void pl_pack(int64_t number, const float *w, int64_t n, int64_t k, int64_t bytes, float *out) {
    variant(number)->pack(w, n, k, bytes, out);
}

API int pl_candidates(int64_t number, const Output *output, const float *hidden, const float *lambdas, int64_t rows,
                      int64_t count, const int64_t *banned, int64_t num_banned, double *log_probs, int64_t *ids,
                      const int64_t *gold, double *of_gold) {
    return variant(number)->candidates(output, hidden, lambdas, rows, count, banned, num_banned, log_probs, ids, gold, of_gold);
}

// y = f(x W' + b), for parts of a model that are not in a stack.
API void pl_multiply(int64_t number, const Matrix *w, const float *x, int64_t rows, int64_t activation, float *y) {
    variant(number)->multiply(w, x, rows, (int)activation, y);
}

API int pl_encode(const Stack *stack, const Source *source) { return variant(stack->variant)->encode(stack, source); }

API void pl_end(State *state) {
    if (!state) return;
    for (int64_t n = 0; state->layers && n < state->stack->num_layers; n++) {
        LayerState *layer = state->layers + n;
        for (int i = 0; i < MAX_TAPS; i++) {
            release(layer->self.rows[i]);
            release(layer->cross.rows[i]);
        }
        free(layer->steps);
        free(layer->phrase_starts);
        release(layer->memory);
        release(layer->phrases);
    }
    for (int64_t i = 0; i < state->arena.num_chunks; i++) release(state->arena.chunks[i]);
    for (int i = 0; i < NUM_SCRATCH; i++) release(state->scratch[i].data);
    for (int i = 0; i < MAX_TAPS; i++) release(state->recurrent.rows[i]);
    release(state->initial);
    free(state->arena.chunks);
    free(state->layers);
    free(state->lengths);
    release(state->shares);
    free(state->ancestors);
    free(state->sentences);
    free(state);
}

// The state of `sentences` sentences with one row each, for about `capacity` steps; null without memory.
API State *pl_start(const Stack *stack, int64_t sentences, int64_t capacity) {
    State *state = (State *)calloc(1, sizeof(State));
    if (!state) return 0;
    state->stack = stack;
    state->rows = state->num_sentences = sentences;
    state->capacity = greatest(1, capacity);
    state->layers = (LayerState *)calloc(stack->num_layers, sizeof(LayerState));
    state->ancestors = (int32_t *)malloc(sizeof(int32_t) * greatest(1, sentences * state->capacity));
    state->sentences = (int32_t *)malloc(sizeof(int32_t) * greatest(1, sentences));
    int complete = state->layers && state->ancestors && state->sentences;
    for (int64_t n = 0; complete && n < stack->num_layers; n++)
        complete = (state->layers[n].steps = (float **)malloc(sizeof(float *) * state->capacity)) != 0;
    if (!complete) {
        pl_end(state);
        return 0;
    }
    for (int64_t r = 0; r < sentences; r++) state->sentences[r] = (int32_t)r;
    return state;
}

// The numbers of each source token that the attention of a recurrent decoder keeps.
static int64_t memory_width(const Recurrence *how, int64_t d) {
    return how->attention == MULTIHEAD ? how->block.cache_width : how->attention == MLP ? 2 * d : d;
}

// What the cross-attention of a layer reads: x (sentences, length, D) with these numbers of real tokens. A recurrent decoder has
// one attention, that of layer 0, and its states before the first step are set.
API int pl_memory(State *state, int64_t layer, const float *x, int64_t length, const int64_t *lengths) {
    const Stack *stack = state->stack;
    const Recurrence *recurrence = stack->recurrence;
    int64_t wide = recurrence ? memory_width(recurrence, stack->width) : stack->layers[layer].cross.cache_width;
    float *memory = (float *)allocate(state->num_sentences * length * wide);
    release(state->layers[layer].memory);
    state->layers[layer].memory = memory;
    if (!state->lengths) state->lengths = (int64_t *)malloc(sizeof(int64_t) * greatest(1, state->num_sentences));
    if (!memory || !state->lengths) return NO_MEMORY;
    memcpy(state->lengths, lengths, sizeof(int64_t) * state->num_sentences);
    state->length = length;
    const Kernels *kernels = variant(stack->variant);
    if (recurrence) return kernels->begin(state, x);
    return kernels->project_memory(&stack->layers[layer].cross, x, state->num_sentences, length, memory);
}

// The states of a recurrent decoder before the first step, (sentences, layers, parts, D), after `pl_memory`.
API void pl_initial(State *state, const float *initial) {
    memcpy(state->initial, initial, sizeof(float) * state->num_sentences * state_width(state->stack));
}

// What the combination network of a layer reads: phrase vectors (sentences, phrases, D), of which the first counts[b] are real
// (counts null: all).
API int pl_phrases(State *state, int64_t layer, const float *vectors, int64_t phrases, const int64_t *counts) {
    LayerState *own = state->layers + layer;
    const Matrix *keys_values = &state->stack->layers[layer].combination.keys_values;
    int64_t d = keys_values->k, sentences = state->num_sentences;
    free(own->phrase_starts);
    release(own->phrases);
    own->phrases = 0;
    int64_t *starts = own->phrase_starts = (int64_t *)malloc(sizeof(int64_t) * (sentences + 1));
    if (!starts) return NO_MEMORY;
    starts[0] = 0;
    for (int64_t b = 0; b < sentences; b++) starts[b + 1] = starts[b] + (counts ? counts[b] : phrases);
    float *real = (float *)allocate(starts[sentences] * d);
    own->phrases = (float *)allocate(starts[sentences] * keys_values->n);
    own->most_phrases = phrases;
    if (real && own->phrases) {
        for (int64_t b = 0; b < sentences; b++)
            memcpy(real + starts[b] * d, vectors + b * phrases * d, sizeof(float) * (starts[b + 1] - starts[b]) * d);
        variant(state->stack->variant)->multiply(keys_values, real, starts[sentences], LINEAR, own->phrases);
    }
    release(real);
    return real && own->phrases ? 0 : NO_MEMORY;
}

// How likely each source token gives a word and a phrase, (sentences, 2, length), after `pl_memory`: every step then has a
// gate. Of a slot of order n it is the mean over its tokens, which is kept for every order up to MAX_TAPS.
API int pl_gate(State *state, const float *shares) {
    int64_t length = state->length;
    release(state->shares);
    state->shares = (float *)allocate(state->num_sentences * MAX_TAPS * 2 * length);
    if (!state->shares) return NO_MEMORY;
    for (int64_t row = 0; row < state->num_sentences * 2; row++, shares += length)
        for (int64_t order = 1; order <= MAX_TAPS; order++)
            for (int64_t j = 0; j < length; j++) {
                int64_t covered = j + 1 < order ? j + 1 : order;
                float sum = 0;
                for (int64_t k = j + 1 - covered; k <= j; k++) sum += shares[k];
                state->shares[((row / 2 * MAX_TAPS + order - 1) * 2 + row % 2) * length + j] = sum / covered;
            }
    return 0;
}

// Feed a token to every row: the hidden states (rows, D), and λ of words and of phrases of each row (null without `pl_gate`).
// `position`: the vector of this step, or null.
API int pl_step(State *state, const int64_t *tokens, const float *position, float *out, float *lambdas) {
    return variant(state->stack->variant)->step(state, tokens, position, out, lambdas);
}

// Row i becomes what row `rows[i]` was; the number of rows may change.
API int pl_reorder(State *state, const int64_t *rows, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (rows[i] < 0 || rows[i] >= state->rows) return BAD_ROW;
    int32_t *ancestors = (int32_t *)malloc(sizeof(int32_t) * greatest(1, count * state->capacity));
    int32_t *sentences = (int32_t *)malloc(sizeof(int32_t) * greatest(1, count));
    if (!ancestors || !sentences) {
        free(ancestors);
        free(sentences);
        return NO_MEMORY;
    }
    for (int64_t i = 0; i < count; i++) {
        memcpy(ancestors + i * state->capacity, state->ancestors + rows[i] * state->capacity, sizeof(int32_t) * state->step);
        sentences[i] = state->sentences[rows[i]];
    }
    free(state->ancestors);
    free(state->sentences);
    state->ancestors = ancestors;
    state->sentences = sentences;
    state->rows = count;
    return 0;
}
