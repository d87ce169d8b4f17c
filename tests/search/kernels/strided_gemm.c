/* D = A @ B.T in bf16 on the host, by the strides that the operands have; plus a bias if there is one, rectified if built
   with -DRELU=1. The entry point takes a, b[, bias], d, max_clusters and speaks TVM FFI's calling convention. */

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

TVM_FFI_DLL_EXPORT int64_t calls = 0;

TVM_FFI_DLL_EXPORT int __tvm_ffi_strided_gemm(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
    if ((count != 4 && count != 5) || arguments[count - 1].type_index != kTVMFFIInt) {
        TVMFFIErrorSetRaisedFromCStr("RuntimeError", "strided_gemm takes a, b[, bias], d, max_clusters");
        return -1;
    }
    const DLTensor *a = tensor(arguments[0]), *b = tensor(arguments[1]), *d = tensor(arguments[count - 2]);
    const uint16_t *x = a->data, *y = b->data, *bias = count == 5 ? tensor(arguments[2])->data : 0;
    uint16_t *out = d->data;
    int64_t m = d->shape[1], n = d->shape[2];
    ++calls;
    for (int64_t batch = 0; batch < d->shape[0]; ++batch)
        for (int64_t row = 0; row < m; ++row)
            for (int64_t column = 0; column < n; ++column) {
                float sum = bias ? widen(bias[column]) : 0;
                for (int64_t k = 0; k < a->shape[2]; ++k)
                    sum += widen(x[batch * a->strides[0] + row * a->strides[1] + k * a->strides[2]]) *
                           widen(y[batch * b->strides[0] + column * b->strides[1] + k * b->strides[2]]);
                out[(batch * m + row) * n + column] = narrow(RELU && sum < 0 ? 0 : sum);
            }
    return 0;
}
