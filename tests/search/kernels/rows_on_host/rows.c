/* Operations on the rows of a bf16 matrix in plain loops, with one fault or none, by TVM FFI's calling convention. */

#include <math.h>
#include <stdint.h>
#include <tvm/ffi/extra/c_env_api.h>

enum { SOFTMAX, RMS_NORM };
enum { NOTHING, LAST_IS_MISSED, MAXIMUM_IS_FORGOTTEN, ROW_TOO_MANY, EIGHT_TOO_MANY };

static float widen(uint16_t bits) {
    union { uint32_t bits; float value; } number = {(uint32_t)bits << 16};
    return number.value;
}

static uint16_t narrow(float value) {
    union { float value; uint32_t bits; } number = {value};
    return (uint16_t)((number.bits + 0x7fff + (number.bits >> 16 & 1)) >> 16);
}

static const DLTensor *tensor(TVMFFIAny argument) {
    return argument.type_index == kTVMFFIDLTensorPtr ? argument.v_ptr : (const DLTensor *)(argument.v_obj + 1);
}

static float value_of(float x, float top) { return OPERATION == SOFTMAX ? expf(x - top) : x; }

static void run_row(const uint16_t *x, uint16_t *y, int64_t columns) {
    int64_t seen = FAULT == LAST_IS_MISSED ? columns - 1 : columns;
    float top = -INFINITY, sum = 0;
    for (int64_t at = 0; at < columns; ++at) top = fmaxf(top, widen(x[at]));
    if (FAULT == MAXIMUM_IS_FORGOTTEN) top = 0;
    for (int64_t at = 0; at < seen; ++at) {
        float value = value_of(widen(x[at]), top);
        sum += OPERATION == SOFTMAX ? value : value * value;
    }
    float factor = OPERATION == SOFTMAX ? 1 / sum : 1 / sqrtf(sum / columns + 1e-6f);
    for (int64_t at = 0; at < columns; ++at) y[at] = narrow(value_of(widen(x[at]), top) * factor);
    if (FAULT == EIGHT_TOO_MANY)
        for (int64_t at = columns; at < columns + 8; ++at) y[at] = 0;
}

TVM_FFI_DLL_EXPORT int ENTRY(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
    const DLTensor *x = tensor(arguments[0]), *y = tensor(arguments[1]);
    int64_t rows = x->shape[0] + (FAULT == ROW_TOO_MANY), columns = x->shape[1];
    for (int64_t row = 0; row < rows; ++row)
        run_row((const uint16_t *)x->data + row * columns, (uint16_t *)y->data + row * columns, columns);
    return 0;
}
