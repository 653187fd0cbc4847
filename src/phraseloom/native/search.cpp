// Greedy search and beam search over the steps of `kernels.cpp`: `decoding/beam.py` in one call a step. A beam of 1 is greedy.
//
// Ranks, ties, finished hypotheses and the stopping rules are those of `decoding/beam.py`, to the bit. What is rare (NaN, a
// sentence without an output) ends with RARE, and the caller searches again in Python, which finds the right error.
#include "kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define API extern "C" __declspec(dllexport)
#else
#define API extern "C" __attribute__((visibility("default")))
#endif

struct State;
API int pl_step(State *, const int64_t *, const float *, float *, float *);
API int pl_candidates(int64_t, const Output *, const float *, const float *, int64_t, int64_t, const int64_t *, int64_t, double *,
                      int64_t *, const int64_t *, double *);
API int pl_reorder(State *, const int64_t *, int64_t);

enum { DONE = 0, MORE = 1, RARE = 2 };

// An extension of a live hypothesis: its parent is `row` of the sentence.
struct Extension {
    double total;
    int64_t row, token;
};

struct Finished {
    double score, log_prob;
    int64_t length, row, cut;
};

struct Search {
    SearchRules rules;
    State *state;
    int64_t step, active, live, steps;  // `active` sentences of `live` rows each; the most steps
    int64_t *sentences;                 // the number of each active sentence
    int64_t *num_finished;              // of each sentence
    Finished *finished;                 // (sentences, kept), the best first; score -inf: none
    double *scores, *next_scores;       // log p of each row
    int64_t *tokens, *rows, *ends;      // what each row is fed, which row it was, and the end token
    float *hidden, *lambdas;
    double *log_probs, *of_end;         // (rows, count), (rows)
    int64_t *ids;                       // (rows, count)
    Extension *ranked, *kept;           // (2 beam), (beam)
    int32_t *tokens_before, *rows_before;  // (steps, sentences, beam)
};

API void pl_search_end(Search *search) { free(search); }

// A search over `state`, which has one row a sentence and has not begun; it belongs to the caller, and so do the arrays of `rules`.
// Null without memory.
API Search *pl_search_start(State *state, const SearchRules *rules, int64_t steps) {
    int64_t num = rules->sentences, rows = num * rules->beam, history = steps * rows;
    Search shape = {};
    struct {
        void *part;
        int64_t bytes;
    } parts[] = {
        {&shape.sentences, 8 * num},
        {&shape.num_finished, 8 * num},
        {&shape.finished, (int64_t)sizeof(Finished) * num * rules->kept},
        {&shape.scores, 8 * rows},
        {&shape.next_scores, 8 * rows},
        {&shape.tokens, 8 * rows},
        {&shape.rows, 8 * rows},
        {&shape.ends, 8 * rows},
        {&shape.hidden, 4 * rows * rules->width},
        {&shape.lambdas, rules->gated ? 8 * rows : 0},
        {&shape.log_probs, 8 * rows * rules->count},
        {&shape.of_end, 8 * rows},
        {&shape.ids, 8 * rows * rules->count},
        {&shape.ranked, (int64_t)sizeof(Extension) * 2 * rules->beam},
        {&shape.kept, (int64_t)sizeof(Extension) * rules->beam},
        {&shape.tokens_before, 4 * history},
        {&shape.rows_before, 4 * history},
    };
    int64_t total = (sizeof(Search) + 63) / 64 * 64;
    for (auto &one : parts) total += (one.bytes + 63) / 64 * 64;
    char *memory = (char *)calloc(1, (size_t)total), *next = memory + (sizeof(Search) + 63) / 64 * 64;
    if (!memory) return 0;
    for (auto &one : parts) {
        memcpy(one.part, &next, sizeof(void *));
        next += (one.bytes + 63) / 64 * 64;
    }
    Search *search = (Search *)memory;
    *search = shape;
    search->rules = *rules;
    search->state = state;
    search->steps = steps;
    search->active = num;
    search->live = 1;
    for (int64_t b = 0; b < num; b++) search->sentences[b] = b;
    for (int64_t i = 0; i < num * rules->kept; i++) search->finished[i].score = -INFINITY;
    for (int64_t r = 0; r < rows; r++) search->tokens[r] = rules->begin, search->ends[r] = rules->end;
    return search;
}

// Put an extension behind those of `ranked` that are at least as good, of which the first `most` stay; their number.
static int64_t rank(Extension *ranked, int64_t filled, int64_t most, Extension one) {
    if (filled == most && !(one.total > ranked[most - 1].total)) return filled;
    int64_t place = filled < most ? filled : most - 1;
    for (; place > 0 && one.total > ranked[place - 1].total; place--) ranked[place] = ranked[place - 1];
    ranked[place] = one;
    return filled < most ? filled + 1 : most;
}

// Put a finished hypothesis behind those that are at least as good, if it is among the best that are kept.
static void keep(Finished *finished, int64_t kept, Finished one) {
    if (!(one.score > finished[kept - 1].score)) return;
    int64_t place = kept - 1;
    for (; place > 0 && one.score > finished[place - 1].score; place--) finished[place] = finished[place - 1];
    finished[place] = one;
}

// Rank the extensions of active sentence b, store those that end, and put the live ones in `kept`: whether the sentence goes on.
static int extend(Search *search, int64_t b) {
    const SearchRules *rules = &search->rules;
    int64_t beam = rules->beam, live = search->live, count = rules->count, step = search->step, end = rules->end;
    int64_t sentence = search->sentences[b], filled = 0, most = 2 * beam, num = 0;
    int at_longest = rules->longest[sentence] == step, early = step < rules->shortest[sentence];
    for (int64_t row = 0; row < live; row++) {
        int64_t first = (b * live + row) * count;
        double before = search->scores[b * live + row];
        if (at_longest) {
            double of_end = search->of_end[b * live + row];
            double total = before + (of_end == -INFINITY || rules->free_end ? 0.0 : of_end);
            if (isnan(total)) return RARE;
            filled = rank(search->ranked, filled, most, {total, row, end});
        }
        for (int64_t i = 0; i < count && !at_longest; i++) {
            int64_t token = search->ids[first + i];
            double total = early && token == end ? -INFINITY : search->log_probs[first + i] + before;
            if (isnan(total)) return RARE;
            filled = rank(search->ranked, filled, most, {total, row, token});
        }
    }
    Finished *finished = search->finished + sentence * rules->kept;
    for (int64_t i = 0; i < filled && i < beam; i++) {
        Extension one = search->ranked[i];
        if (one.token != end || one.total == -INFINITY) continue;
        search->num_finished[sentence]++;
        int cut = at_longest && search->ids[(b * live + one.row) * count] != end;
        keep(finished, rules->kept, {one.total / rules->divisors[step + 1], one.total, step, one.row, cut});
    }
    for (int64_t i = 0; i < filled && num < beam; i++)
        if (search->ranked[i].token != end) search->kept[num++] = search->ranked[i];
    for (; num < beam; num++) search->kept[num] = {-INFINITY, 0, end};
    int64_t length = rules->bound_now ? step + 1 : rules->longest[sentence] + 1;
    int more = search->kept[0].total / rules->divisors[length] > finished[rules->kept - 1].score;
    if (rules->until_finished) more = more && search->num_finished[sentence] < beam;
    return more ? MORE : finished[0].score == -INFINITY ? RARE : DONE;
}

// One step of all sentences that are not done. MORE: there is another; DONE; RARE; or an error. `position`: see `pl_step`.
API int pl_search_step(Search *search, const float *position) {
    const SearchRules *rules = &search->rules;
    int64_t beam = rules->beam, live = search->live, rows = search->active * live, left = 0;
    int closing = 0, moved = live < beam;
    for (int64_t b = 0; b < search->active; b++) closing |= rules->longest[search->sentences[b]] == search->step;
    int error = pl_step(search->state, search->tokens, position, search->hidden, rules->gated ? search->lambdas : 0);
    if (!error)
        error = pl_candidates(rules->variant, rules->output, search->hidden, rules->weighed ? search->lambdas : 0, rows, rules->count,
                              rules->banned, rules->num_banned, search->log_probs, search->ids, closing ? search->ends : 0,
                              search->of_end);
    if (error) return error;
    for (int64_t b = 0; b < search->active; b++) {
        int64_t sentence = search->sentences[b], before = (search->step * rules->sentences + sentence) * beam;
        int more = extend(search, b);
        if (more == RARE) return RARE;
        if (more == DONE) continue;
        for (int64_t i = 0; i < beam; i++) {
            Extension one = search->kept[i];
            search->tokens_before[before + i] = (int32_t)one.token;
            search->rows_before[before + i] = (int32_t)one.row;
            search->next_scores[left * beam + i] = one.total;
            search->tokens[left * beam + i] = one.token;
            search->rows[left * beam + i] = b * live + one.row;
            moved |= b * live + one.row != left * beam + i;
        }
        search->sentences[left++] = sentence;
    }
    double *scores = search->scores;
    search->scores = search->next_scores;
    search->next_scores = scores;
    search->active = left;
    search->live = beam;
    search->step++;
    if (!left) return DONE;
    if (moved || left * beam != rows) error = pl_reorder(search->state, search->rows, left * beam);
    return error ? error : MORE;
}

// The finished hypotheses of all sentences, (sentences, kept), the best first: the tokens without the end (steps each), how many,
// log p, the score (-inf: none), and whether the longest length ended it.
API void pl_search_result(const Search *search, int64_t *tokens, int64_t *lengths, double *log_probs, double *scores, int64_t *cut) {
    const SearchRules *rules = &search->rules;
    for (int64_t slot = 0; slot < rules->sentences * rules->kept; slot++) {
        const Finished *one = search->finished + slot;
        int64_t sentence = slot / rules->kept, row = one->row;
        lengths[slot] = one->length;
        log_probs[slot] = one->log_prob;
        scores[slot] = one->score;
        cut[slot] = one->cut;
        for (int64_t t = one->length - 1; t >= 0; t--) {
            int64_t place = (t * rules->sentences + sentence) * rules->beam + row;
            tokens[slot * search->step + t] = search->tokens_before[place];
            row = search->rows_before[place];
        }
    }
}
