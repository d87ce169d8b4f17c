/* D[rows of e] = A[rows of e] @ B[e].T in bf16 on the host, of A [tokens, k], B [experts, n, k] and the ends of the groups
   [experts]. With SwiGLU, the first half of the columns are the gate of the second. The entry points take a, b, ends, d,
   max_clusters, or with the scale of each row a, b, ends, scale, d, max_clusters, and speak TVM FFI's calling convention. Offsets that decrease or lie beyond the rows make groups empty, or
   end with the rows. */

#include <math.h>
#include <stdint.h>
#include <tvm/ffi/extra/c_env_api.h>

static float widen(uint16_t bits) {
    union { uint32_t bits; float value; } number;
    number.bits = (uint32_t)bits << 16;
    return number.value;
}

static uint16_t narrow(float value) {
    union { float value; uint32_t bits; } number;
    number.value = value;
    return (uint16_t)((number.bits + 0x7fff + (number.bits >> 16 & 1)) >> 16);
}

static const DLTensor *tensor(TVMFFIAny argument) {
    return argument.type_index == kTVMFFIDLTensorPtr ? argument.v_ptr : (const DLTensor *)(argument.v_obj + 1);
}

static int64_t bounded(int64_t end, int64_t tokens) { return end < 0 ? 0 : end > tokens ? tokens : end; }

static float dot(const uint16_t *left, const uint16_t *right, int64_t k) {
    float sum = 0;
    for (int64_t at = 0; at < k; ++at) sum += widen(left[at]) * widen(right[at]);
    return sum;
}

static int run(const TVMFFIAny *arguments, int32_t count, int gated, int scaled) {
    if (count != 5 + scaled || arguments[4 + scaled].type_index != kTVMFFIInt) {
        TVMFFIErrorSetRaisedFromCStr("RuntimeError", "a grouped product takes a, b, ends, d, max_clusters");
        return -1;
    }
    const DLTensor *a = tensor(arguments[0]), *b = tensor(arguments[1]), *d = tensor(arguments[3 + scaled]);
    const float *scale = scaled ? tensor(arguments[3])->data : 0;
    const int32_t *ends = tensor(arguments[2])->data;
    int64_t tokens = a->shape[0], k = a->shape[1], experts = b->shape[0], n = b->shape[1], width = gated ? n / 2 : n;
    for (int64_t expert = 0; expert < experts; ++expert)
        for (int64_t row = expert ? bounded(ends[expert - 1], tokens) : 0; row < bounded(ends[expert], tokens); ++row)
            for (int64_t column = 0; column < width; ++column) {
                const uint16_t *left = (const uint16_t *)a->data + row * k;
                const uint16_t *right = (const uint16_t *)b->data + (expert * n + column) * k;
                float sum = dot(left, right, k);
                if (scaled) sum *= scale[row];
                if (gated) sum = sum / (1 + expf(-sum)) * dot(left, right + width * k, k);
                ((uint16_t *)d->data)[row * width + column] = narrow(sum);
            }
    return 0;
}

TVM_FFI_DLL_EXPORT int __tvm_ffi_grouped_gemm(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
    return run(arguments, count, 0, 0);
}

TVM_FFI_DLL_EXPORT int __tvm_ffi_grouped_swiglu(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
    return run(arguments, count, 1, 0);
}

TVM_FFI_DLL_EXPORT int __tvm_ffi_grouped_scaled(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
    return run(arguments, count, 0, 1);
}
