// The row of a table that is farthest in a direction, for each of many directions: the rival of a max-margin loss. Exact:
// products of bytes, at a third of the time of a product in float32, tell which few rows it can be; these are compared in double.
//
// A row e is s q + d with whole numbers q from -127 to 127, and a direction t is r p + c, so that
//
//     | t·e / r - s p·q |  <=  (|t| |d| + |c| |s q|) / r  =  slack
//
// The farthest row is among those whose s p·q is within 2 slack of the largest. p is kept as p + 128, for an instruction that
// multiplies unsigned with signed bytes; sums begin at -128 Σ q, which takes the 128 out again.
#include "kernels.h"

#if defined(_WIN32)
#define API extern "C" __declspec(dllexport)
#else
#define API extern "C" __attribute__((visibility("default")))
#endif

#if defined(__x86_64__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // in the header of intrinsics
#endif
#include <immintrin.h>
#include <math.h>
#include <stdlib.h>

#define FN static __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")))
#define INLINE static inline __attribute__((always_inline, target("avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,fma")))

enum { PANEL = 64, LANES = 16, ROWS = 6, ROOM = 64 };

// What is known of a direction: the best row of those that were computed, and the candidates that still have to be.
struct Found {
    double best;
    int64_t row;
    int32_t count, rows[ROOM];
    float products[ROOM];
};

// t·e in double, in one order.
FN double product(const float *t, const float *e, int64_t width) {
    __m512d sum = _mm512_setzero_pd();
    int64_t i = 0;
    for (; i + 8 <= width; i += 8)
        sum = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm256_loadu_ps(t + i)), _mm512_cvtps_pd(_mm256_loadu_ps(e + i)), sum);
    double rest = 0;
    for (; i < width; i++) rest += (double)t[i] * e[i];
    return _mm512_reduce_add_pd(sum) + rest;
}

// Compute the candidates of direction i that are still above the bound. They come in ascending order, so that of equal rows the
// first stays.
FN void settle(const ByteTable *table, const Directions *to, int64_t i, Found *found, float *bound) {
    for (int32_t c = 0; c < found->count; c++) {
        if (!(found->products[c] > *bound)) continue;
        int64_t row = found->rows[c], width = table->width;
        double here = product(to->vectors + i * width, table->rows + row * width, width);
        if (here > found->best) found->best = here, found->row = row;
    }
    found->count = 0;
    float least = (float)(found->best * to->inverse[i]) - to->slack[i];
    if (least > *bound) *bound = least;
}

// Note the rows first + lane, of the lanes that are set, as candidates of direction i, and raise the bound.
FN __attribute__((noinline)) void keep(const ByteTable *table, const Directions *to, int64_t i, int64_t first, unsigned lanes,
                                       __m512 products, Found *found, float *bound) {
    float values[LANES];
    _mm512_storeu_ps(values, products);
    for (; lanes; lanes &= lanes - 1) {
        int lane = __builtin_ctz(lanes);
        if (first + lane == to->excluded[i]) continue;
        if (values[lane] > *bound && found->count == ROOM) settle(table, to, i, found, bound);
        if (!(values[lane] > *bound)) continue;
        found->rows[found->count] = (int32_t)(first + lane);
        found->products[found->count++] = values[lane];
        float least = values[lane] - 2 * to->slack[i];
        if (least > *bound) *bound = least;
    }
}

// M directions from i on with the 64 rows from `first` on.
template <int M>
INLINE void tile(const ByteTable *table, const Directions *to, int64_t i, int64_t first, Found *found, float *bounds) {
    const int8_t *panel = table->panels + first * 4 * table->quads;
    const uint8_t *bytes = to->bytes + i * 4 * table->quads;
    __m512i sums[M][4];
    for (int v = 0; v < 4; v++) {
        __m512i start = _mm512_loadu_si512(table->starts + first + LANES * v);
        for (int m = 0; m < M; m++) sums[m][v] = start;
    }
    for (int64_t quad = 0; quad < table->quads; quad++, panel += 4 * PANEL) {
        __m512i b0 = _mm512_loadu_si512(panel), b1 = _mm512_loadu_si512(panel + PANEL);
        __m512i b2 = _mm512_loadu_si512(panel + 2 * PANEL), b3 = _mm512_loadu_si512(panel + 3 * PANEL);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            int32_t four;
            __builtin_memcpy(&four, bytes + (m * table->quads + quad) * 4, 4);
            __m512i a = _mm512_set1_epi32(four);
            sums[m][0] = _mm512_dpbusd_epi32(sums[m][0], a, b0);
            sums[m][1] = _mm512_dpbusd_epi32(sums[m][1], a, b1);
            sums[m][2] = _mm512_dpbusd_epi32(sums[m][2], a, b2);
            sums[m][3] = _mm512_dpbusd_epi32(sums[m][3], a, b3);
        }
    }
    for (int v = 0; v < 4; v++) {
        __m512 scale = _mm512_loadu_ps(table->scales + first + LANES * v);
        for (int m = 0; m < M; m++) {
            __m512 products = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[m][v]), scale);
            unsigned lanes = _mm512_cmp_ps_mask(products, _mm512_set1_ps(bounds[i + m]), _CMP_GT_OQ);
            if (__builtin_expect(lanes, 0))
                keep(table, to, i + m, first + LANES * v, lanes, products, found + i + m, bounds + i + m);
        }
    }
}

// 64 rows, which stay in the cache, with all directions; then the next ones.
FN void search(const ByteTable *table, const Directions *to, Found *found, float *bounds) {
    for (int64_t first = 0; first < table->n; first += PANEL) {
        int64_t i = 0;
        for (; i + ROWS <= to->count; i += ROWS) tile<ROWS>(table, to, i, first, found, bounds);
        for (; i < to->count; i++) tile<1>(table, to, i, first, found, bounds);
    }
    for (int64_t i = 0; i < to->count; i++) settle(table, to, i, found + i, bounds + i);
}

// Whether this processor can run `pl_farthest`.
API int pl_has_farthest() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma");
}

// The farthest row of each direction; `farthest` stays as it is where there is no row but the excluded one.
API int pl_farthest(const ByteTable *table, const Directions *to, int64_t *farthest) {
    Found *found = (Found *)malloc(sizeof(Found) * (to->count + 1));
    float *bounds = (float *)malloc(sizeof(float) * (to->count + 1));
    if (found && bounds) {
        for (int64_t i = 0; i < to->count; i++) {
            found[i].best = -INFINITY, found[i].row = farthest[i], found[i].count = 0;
            bounds[i] = -INFINITY;
        }
        search(table, to, found, bounds);
        for (int64_t i = 0; i < to->count; i++) farthest[i] = found[i].row;
    }
    int code = found && bounds ? 0 : NO_MEMORY;
    free(found);
    free(bounds);
    return code;
}
#else
API int pl_has_farthest() { return 0; }
API int pl_farthest(const ByteTable *, const Directions *, int64_t *) { return NO_MEMORY; }
#endif
