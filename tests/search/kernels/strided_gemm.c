/* D = alpha * A @ B.T + bias in bf16 on the host, of bf16 or e4m3 operands, by the strides that they have; with the
   activation that it is built for: -DRELU, -DGELU or -DSILU. alpha and bias may be left out. The entry point takes
   a, b[, alpha][, bias], d, max_clusters and speaks TVM FFI's calling convention. */

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

static float element(const DLTensor *tensor, int64_t at) {
    if (tensor->dtype.bits == 16)
        return widen(((const uint16_t *)tensor->data)[at]);
    int bits = ((const uint8_t *)tensor->data)[at], exponent = bits >> 3 & 15, mantissa = bits & 7;
    float size = exponent ? ldexpf(8 + mantissa, exponent - 10) : ldexpf(mantissa, -9);
    return bits & 128 ? -size : size;
}

static float activate(float sum) {
#if defined(RELU)
    return sum < 0 ? 0 : sum;
#elif defined(GELU)
    return sum * (erff(sum * 0.70710678f) * 0.5f + 0.5f);
#elif defined(SILU)
    return sum / (expf(-sum) + 1);
#else
    return sum;
#endif
}

static const DLTensor *tensor(TVMFFIAny argument) {
    return argument.type_index == kTVMFFIDLTensorPtr ? argument.v_ptr : (const DLTensor *)(argument.v_obj + 1);
}

TVM_FFI_DLL_EXPORT int64_t calls = 0;

TVM_FFI_DLL_EXPORT int __tvm_ffi_strided_gemm(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
    if (count < 4 || count > 6 || arguments[count - 1].type_index != kTVMFFIInt) {
        TVMFFIErrorSetRaisedFromCStr("RuntimeError", "strided_gemm takes a, b[, alpha][, bias], d, max_clusters");
        return -1;
    }
    const DLTensor *a = tensor(arguments[0]), *b = tensor(arguments[1]), *d = tensor(arguments[count - 2]);
    const uint16_t *bias = 0;
    float alpha = 1;
    for (int32_t at = 2; at < count - 2; ++at)
        if (tensor(arguments[at])->dtype.bits == 32)
            alpha = *(const float *)tensor(arguments[at])->data;
        else
            bias = tensor(arguments[at])->data;
    uint16_t *out = d->data;
    int64_t m = d->shape[1], n = d->shape[2];
    ++calls;
    for (int64_t batch = 0; batch < d->shape[0]; ++batch)
        for (int64_t row = 0; row < m; ++row)
            for (int64_t column = 0; column < n; ++column) {
                float sum = 0;
                for (int64_t k = 0; k < a->shape[2]; ++k)
                    sum += element(a, batch * a->strides[0] + row * a->strides[1] + k * a->strides[2]) *
                           element(b, batch * b->strides[0] + column * b->strides[1] + k * b->strides[2]);
                sum = alpha * sum + (bias ? widen(bias[column]) : 0);
                out[(batch * m + row) * n + column] = narrow(activate(sum));
            }
    return 0;
}
