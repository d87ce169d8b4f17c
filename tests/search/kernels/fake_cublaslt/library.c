/* A library with cuBLASLt's functions whose products are plain loops on the host.

   It has three algorithms. 7 knows tiles 1 and 2, three custom options, swizzles, splits of k in place and in fp32, and
   clusters 0 and 3; its heuristic names four of them, one twice. 9 is right, but can't compute a product of more than 8
   columns. 11 is for other devices, and has many tiles. What differs between configurations is how often each element
   is computed, so that their times differ. Algorithm 7 with custom option 2 computes something wrong, and with custom
   option 3 it takes the process down. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 7, UNSUPPORTED = 15 };
enum { ID, TILE, SPLIT_K, REDUCTION, SWIZZLE, CUSTOM, STAGES, INNER, CLUSTER, CONFIGS };

typedef struct {
    int32_t config[CONFIGS];
    uint8_t rest[64 - 4 * CONFIGS];
} Algorithm;
typedef struct {
    Algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} Found;
typedef struct {
    int32_t compute, scale, mode, transposed[2], bias_type;
    uint32_t epilogue;
    int8_t fast;
    const void *bias, *scales[2];
} Desc;
typedef struct {
    int32_t type, batch;
    uint64_t rows, columns;
    int64_t leading, stride;
} Layout;
typedef struct {
    uint32_t search;
    uint64_t workspace;
} Preference;

#ifndef VERSION
#define VERSION 130100
#endif

size_t cublasLtGetVersion(void) { return VERSION; }

int cublasLtCreate(void **handle) {
    *handle = malloc(1);
    return OK;
}

int cublasLtMatmulDescCreate(Desc **made, int compute, int scale) {
    *made = calloc(1, sizeof **made);
    (*made)->compute = compute, (*made)->scale = scale, (*made)->epilogue = 1;
    return compute == 68 && scale == 0 ? OK : UNSUPPORTED;
}

int cublasLtMatmulDescDestroy(Desc *desc) { return free(desc), OK; }

static int put(void *to, size_t size, const void *value, size_t given) {
    if (size != given) return INVALID;
    memcpy(to, value, size);
    return OK;
}

int cublasLtMatmulDescSetAttribute(Desc *desc, int attribute, const void *value, size_t size) {
    switch (attribute) {
    case 2: return put(&desc->mode, 4, value, size);
    case 3: return put(&desc->transposed[0], 4, value, size);
    case 4: return put(&desc->transposed[1], 4, value, size);
    case 7: return put(&desc->epilogue, 4, value, size);
    case 8: return put(&desc->bias, 8, value, size);
    case 17: return put(&desc->scales[0], 8, value, size);
    case 18: return put(&desc->scales[1], 8, value, size);
    case 25: return put(&desc->fast, 1, value, size);
    case 26: return put(&desc->bias_type, 4, value, size);
    }
    return INVALID;
}

int cublasLtMatrixLayoutCreate(Layout **made, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    *made = calloc(1, sizeof **made);
    **made = (Layout){.type = type, .batch = 1, .rows = rows, .columns = columns, .leading = leading};
    return OK;
}

int cublasLtMatrixLayoutDestroy(Layout *layout) { return free(layout), OK; }

int cublasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, const void *value, size_t size) {
    switch (attribute) {
    case 5: return put(&layout->batch, 4, value, size);
    case 6: return put(&layout->stride, 8, value, size);
    }
    return INVALID;
}

int cublasLtMatmulPreferenceCreate(Preference **made) {
    *made = calloc(1, sizeof **made);
    return OK;
}

int cublasLtMatmulPreferenceDestroy(Preference *preference) { return free(preference), OK; }

int cublasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, const void *value, size_t size) {
    switch (attribute) {
    case 0: return put(&preference->search, 4, value, size);
    case 1: return put(&preference->workspace, 8, value, size);
    }
    return INVALID;
}

int cublasLtMatmulAlgoGetIds(void *handle, int compute, int scale, int a, int b, int c, int d, int most, int *ids,
                             int *count) {
    const int known[] = {7, 9, 11};
    if (a != 14 && a != 28) return UNSUPPORTED;
    *count = most < 3 ? most : 3;
    memcpy(ids, known, *count * sizeof *known);
    return OK;
}

int cublasLtMatmulAlgoInit(void *handle, int compute, int scale, int a, int b, int c, int d, int id, Algorithm *made) {
    if (id != 7 && id != 9 && id != 11) return INVALID;
    memset(made, 0, sizeof *made);
    made->config[ID] = id, made->config[SPLIT_K] = 1;
    return OK;
}

static int one(int32_t number, void *value, size_t size, size_t *written) {
    if (size != 4) return INVALID;
    memcpy(value, &number, 4), *written = 4;
    return OK;
}

static int list(const uint32_t *values, size_t count, void *value, size_t size, size_t *written) {
    size_t whole = count * sizeof *values;
    *written = whole;
    if (size == 0) return OK;
    if (size > whole || !value) return INVALID;
    memcpy(value, values, *written = size);
    return OK;
}

int cublasLtMatmulAlgoCapGetAttribute(const Algorithm *algorithm, int attribute, void *value, size_t size,
                                      size_t *written) {
    const uint32_t tiles[] = {1, 2}, stages[] = {4};
    uint32_t others[600];
    int rich = algorithm->config[ID] != 9;
    switch (attribute) {
    case 0: return one(rich, value, size, written);
    case 1: return one(rich ? 1 | 2 : 0, value, size, written);
    case 2: return one(rich, value, size, written);
    case 6:
        for (int at = 0; at < 600; ++at) others[at] = at + 1;
        if (algorithm->config[ID] == 11) return list(others, 600, value, size, written);
        return list(tiles, rich ? 2 : 0, value, size, written);
    case 7: return one(rich ? 3 : 0, value, size, written);
    case 13: return list(stages, rich ? 1 : 0, value, size, written);
    case 16:
    case 17:
    case 18:
    case 19: return one(rich ? 32 : 2, value, size, written); /* bytes that operands are aligned to */
    }
    return INVALID;
}

static size_t width(int attribute) { return attribute == INNER || attribute == CLUSTER ? 2 : 4; }

int cublasLtMatmulAlgoConfigSetAttribute(Algorithm *algorithm, int attribute, const void *value, size_t size) {
    if (attribute <= ID || attribute >= CONFIGS || size != width(attribute)) return INVALID;
    algorithm->config[attribute] = 0;
    memcpy(&algorithm->config[attribute], value, size);
    return OK;
}

int cublasLtMatmulAlgoConfigGetAttribute(const Algorithm *algorithm, int attribute, void *value, size_t size,
                                         size_t *written) {
    if (attribute < 0 || attribute >= CONFIGS || size != width(attribute)) return INVALID;
    memcpy(value, &algorithm->config[attribute], *written = size);
    return OK;
}

int cublasLtMatmulAlgoCheck(void *handle, const Desc *desc, const Layout *a, const Layout *b, const Layout *c,
                            const Layout *d, const Algorithm *algorithm, Found *found) {
    const int32_t *set = algorithm->config;
    int split = set[SPLIT_K] > 1;
    found->algorithm = *algorithm;
    /* The splits in fp32 need more than 32 MiB from a result of 2,000,000 elements on: the caller must look. */
    found->workspace = split && set[REDUCTION] == 2 ? 4 * d->rows * d->columns * set[SPLIT_K] : 0;
    if (set[ID] == 11) return UNSUPPORTED;
    if (set[ID] == 9) {
        for (int each = 1; each < CONFIGS; ++each)
            if (set[each] != (each == SPLIT_K)) return UNSUPPORTED;
        return d->rows <= 8 ? OK : UNSUPPORTED;
    }
    int legal = (set[TILE] == 1 || set[TILE] == 2) && set[STAGES] == 4 && set[INNER] == 0 && set[SWIZZLE] <= 1 &&
                set[CUSTOM] <= 3 && (set[CLUSTER] == 0 || (set[CLUSTER] == 3 && set[TILE] == 2)) &&
                (split ? set[SPLIT_K] <= 4 && (set[REDUCTION] == 1 || set[REDUCTION] == 2) : set[REDUCTION] == 0);
    return legal ? OK : UNSUPPORTED;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, const Desc *desc, const Layout *a, const Layout *b, const Layout *c,
                                   const Layout *d, const Preference *preference, int most, Found *found, int *count) {
    const int guesses[][2] = {{2, 3}, {1, 0}, {1, 0}, {2, 0}}; /* tile and cluster; the second is the fastest */
    if (a->type != 14 && a->type != 28) return UNSUPPORTED;
    if ((desc->epilogue & 4) && !desc->bias) return UNSUPPORTED;
    if (a->type == 28 && !(desc->scales[0] && desc->scales[1])) return UNSUPPORTED;
    if (preference->search == 1 && found[0].algorithm.config[ID] != 7) { /* limited to the other algorithm */
        if (d->rows > 8 || found[0].algorithm.config[ID] == 11) return UNSUPPORTED;
        found[0].workspace = 0, found[0].state = OK, found[0].waves = 1, *count = 1;
        return OK;
    }
    *count = most < 4 ? most : 4;
    for (int at = 0; at < *count; ++at) {
        Algorithm *made = &found[at].algorithm;
        cublasLtMatmulAlgoInit(handle, 0, 0, 0, 0, 0, 0, 7, made);
        made->config[TILE] = guesses[at][0], made->config[CLUSTER] = guesses[at][1], made->config[STAGES] = 4;
        found[at].workspace = 0, found[at].state = OK, found[at].waves = 1;
    }
    return OK;
}

static float read_at(const void *data, int type, size_t at) {
    union {
        uint32_t bits;
        float value;
    } wide;
    if (type == 0) return ((const float *)data)[at];
    if (type == 14) return wide.bits = (uint32_t)((const uint16_t *)data)[at] << 16, wide.value;
    uint32_t byte = ((const uint8_t *)data)[at], exponent = byte >> 3 & 15, fraction = byte & 7; /* e4m3 */
    float value = exponent ? 1 + fraction / 8.0f : fraction / 8.0f;
    for (int each = exponent ? (int)exponent : 1; each != 7; each += each < 7 ? 1 : -1) value *= each < 7 ? 0.5f : 2;
    return byte & 128 ? -value : value;
}

static void write_at(void *data, int type, size_t at, float value) {
    union {
        float value;
        uint32_t bits;
    } wide = {value};
    if (type == 0)
        ((float *)data)[at] = value;
    else /* to the nearest bf16, ties to even */
        ((uint16_t *)data)[at] = (wide.bits + 0x7FFF + (wide.bits >> 16 & 1)) >> 16;
}

int cublasLtMatmul(void *handle, const Desc *desc, const float *alpha, const void *a, const Layout *la, const void *b,
                   const Layout *lb, const float *beta, const void *c, const Layout *lc, void *d, const Layout *ld,
                   const Algorithm *algorithm, void *workspace, size_t size, void *stream) {
    Found found;
    if (cublasLtMatmulAlgoCheck(handle, desc, la, lb, lc, ld, algorithm, &found) != OK) return UNSUPPORTED;
    if (found.workspace > size || (size && !workspace) || *beta != 0) return INVALID;
    const int32_t *set = algorithm->config;
    if (set[ID] == 7 && set[CUSTOM] == 3) abort();
    memset(workspace, 0x5A, found.workspace); /* it is the algorithm's own */
    float factor = *alpha * (set[ID] == 7 && set[CUSTOM] == 2 ? 1.5f : 1);
    if (la->type == 28) factor *= *(const float *)desc->scales[0] * *(const float *)desc->scales[1];
    size_t depth = desc->transposed[0] ? la->rows : la->columns;
    int times = set[TILE] == 1 ? 1 : set[CLUSTER] ? 2 : 4;
    for (int product = 0; product < ld->batch; ++product)
        for (size_t column = 0; column < ld->columns; ++column)
            for (size_t row = 0; row < ld->rows; ++row) {
                volatile float sum = 0;
                for (int time = 0; time < times; ++time) {
                    float part = 0;
                    for (size_t at = 0; at < depth; ++at) {
                        size_t i = desc->transposed[0] ? at + row * la->leading : row + at * la->leading;
                        size_t j = desc->transposed[1] ? column + at * lb->leading : at + column * lb->leading;
                        part += read_at(a, la->type, i + product * la->stride) *
                                read_at(b, lb->type, j + product * lb->stride);
                    }
                    sum = part;
                }
                float value = factor * sum;
                if (desc->epilogue & 4) value += read_at(desc->bias, desc->bias_type, row);
                if (desc->epilogue & 2 && value < 0) value = 0;
                write_at(d, ld->type, row + column * ld->leading + product * ld->stride, value);
            }
    return OK;
}
