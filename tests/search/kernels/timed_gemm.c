/* GEMMs that take whatever time a test wants, on a clock that exists only here.

   Every launch computes D = A @ B.T in bf16 and advances the clock by its time times the drift at that moment (one wave
   for all kernels and the library, as the clocks of a GPU are) times noise of its own. A test sets the numbers below
   and reads the clock; the entry points speak TVM FFI's calling convention. */

#include <math.h>
#include <stdint.h>
#include <tvm/ffi/extra/c_env_api.h>

#define SHARED TVM_FFI_DLL_EXPORT

enum { KERNELS = 64 };

SHARED double times_us[KERNELS]; /* of a launch, without drift and noise */
SHARED int64_t launches[KERNELS];
SHARED double library_us, now_us;
SHARED double drift, period_us, phase; /* relative amplitude of the wave, its length, and where it starts */
SHARED double noise;                   /* relative standard deviation of a launch */
SHARED double hiccups;                 /* share of launches that take half as long again */
SHARED uint64_t state;                 /* of the generator; never 0 */

static double uniform(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return ((double)(state >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(void) { return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()); }

static void advance(double time_us) {
    double wave = 1 + drift * sin(6.283185307179586 * now_us / period_us + phase);
    double hiccup = uniform() < hiccups ? 1.5 : 1;
    now_us += time_us * wave * hiccup * exp(noise * normal());
}

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

static int run(const TVMFFIAny *arguments, double time_us) {
    const DLTensor *a = tensor(arguments[0]), *b = tensor(arguments[1]), *d = tensor(arguments[2]);
    int64_t m = d->shape[1], n = d->shape[2], k = a->shape[2];
    const uint16_t *left = a->data, *right = b->data;
    for (int64_t row = 0; row < d->shape[0] * m; ++row)
        for (int64_t column = 0; column < n; ++column) {
            float sum = 0;
            for (int64_t at = 0; at < k; ++at)
                sum += widen(left[row * k + at]) * widen(right[(row / m * n + column) * k + at]);
            ((uint16_t *)d->data)[row * n + column] = narrow(sum);
        }
    advance(time_us);
    return 0;
}

SHARED int __tvm_ffi_library(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
    return run(arguments, library_us);
}

#define KERNEL(number)                                                                                             \
    SHARED int __tvm_ffi_kernel_##number(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) { \
        ++launches[0##number];                                                                                     \
        return run(arguments, times_us[0##number]);                                                                \
    }
/* in octal: kernel_00 to kernel_77 */
#define EIGHT(e) KERNEL(e##0) KERNEL(e##1) KERNEL(e##2) KERNEL(e##3) KERNEL(e##4) KERNEL(e##5) KERNEL(e##6) KERNEL(e##7)
EIGHT(0) EIGHT(1) EIGHT(2) EIGHT(3) EIGHT(4) EIGHT(5) EIGHT(6) EIGHT(7)
