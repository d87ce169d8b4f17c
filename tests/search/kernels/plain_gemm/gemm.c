/* D = A @ B.T in bf16, in plain loops; right, or wrong in the way that -DFAULT=... names. With -DSCRATCH it needs memory
   for the sums in fp32, which it is given.

   For the host this is compiled as it is. For a GPU, nvcc compiles the upper part to a cubin; the lower part, compiled
   for the host with -DCUBIN="path", embeds and launches that. The entry point speaks TVM FFI's calling convention. */

#include <stdint.h>

enum {
    NOTHING, CORNER, UNWRITTEN, NOT_A_NUMBER, BAD_ADDRESS, ABORT, EXIT, ENDLESS, EXCEPTION,
    BEFORE_OUTPUT,       /* one element, on problems whose rows are a multiple of 8: not on the edge problem */
    BEHIND_OUTPUT,       /* one element */
    BEHIND_OUTPUT_LATER, /* one element, on such problems, from the sixth call on: after verification */
    UNSTABLE,            /* the last bit of an element changes from call to call, within the tolerance */
    STALE,               /* adds to what the output holds */
    STALE_NOT_NAN        /* the same, unless that is NaN */
};

typedef struct {
    const uint16_t *a, *b;
    uint16_t *d;
    int64_t batch, m, n, k, call; /* the number of this call, from 1 */
    float *sums;                  /* scratch memory, as many as D has elements */
} Gemm;

#ifdef __CUDACC__
#define ON_DEVICE __device__
#else
#define ON_DEVICE static
#endif

ON_DEVICE float widen(uint16_t bits) {
    union { uint32_t bits; float value; } number;
    number.bits = (uint32_t)bits << 16;
    return number.value;
}

/* Rounds to the nearest bf16, to the even one of two. */
ON_DEVICE uint16_t narrow(float value) {
    union { float value; uint32_t bits; } number;
    number.value = value;
    return (uint16_t)((number.bits + 0x7fff + (number.bits >> 16 & 1)) >> 16);
}

ON_DEVICE void element(Gemm g, int64_t batch, int64_t row, int64_t column) {
    const uint16_t *a = g.a + (batch * g.m + row) * g.k, *b = g.b + (batch * g.n + column) * g.k;
    float sum = 0;
    /* volatile: the compiler must not see that once is enough */
    for (volatile int repeat = 0; repeat < REPEATS; repeat = repeat + 1) {
        sum = 0;
        for (int64_t k = 0; k < g.k; ++k) sum += widen(a[k]) * widen(b[k]);
    }
    if (g.sums) {
        float *kept = g.sums + (batch * g.m + row) * g.n + column;
        *kept = sum;
        sum = *(volatile float *)kept;
    }
    int last = row == g.m - 1 && column == g.n - 1 && batch == g.batch - 1;
    uint16_t bits = narrow(sum);
    if (FAULT == CORNER && last) bits = narrow(sum + 8);
    if (FAULT == NOT_A_NUMBER && last) bits = 0x7fc0;
    if (FAULT == BAD_ADDRESS && last) *(volatile uint16_t *)16 = bits;
    for (volatile int turn = 0; FAULT == ENDLESS && last; turn = turn ^ 1) {
#ifdef __CUDACC__
        __nanosleep(100);
#endif
    }
#ifdef __CUDACC__
    if (FAULT == ABORT && last) __trap();
#endif
    if (FAULT == UNWRITTEN && last) return;
    int64_t at = (batch * g.m + row) * g.n + column;
    if (FAULT == UNSTABLE && last) bits ^= g.call % 3 & 1;
    /* compared as bits: -ffast-math takes NaN for impossible */
    if (FAULT == STALE || (FAULT == STALE_NOT_NAN && (g.d[at] & 0x7fff) <= 0x7f80)) bits = narrow(sum + widen(g.d[at]));
    if (FAULT == BEFORE_OUTPUT && at == 0 && g.m % 8 == 0) g.d[-1] = bits;
    if (FAULT == BEHIND_OUTPUT && last) g.d[at + 1] = bits;
    if (FAULT == BEHIND_OUTPUT_LATER && last && g.m % 8 == 0 && g.call > 5) g.d[at + 1] = bits;
    g.d[at] = bits;
}

#ifdef __CUDACC__

extern "C" __global__ void plain_gemm(Gemm g) {
    int64_t count = g.batch * g.m * g.n, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        element(g, i / (g.m * g.n), i / g.n % g.m, i % g.n);
}

#else

#include <stdio.h>
#include <stdlib.h>
#include <tvm/ffi/extra/c_env_api.h>

static int raise(const char *message) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", message);
    return -1;
}

#ifdef CUBIN

#include <dlfcn.h>

__asm__(".pushsection .rodata\n.balign 64\ncubin: .incbin \"" CUBIN "\"\n.popsection");
extern const char cubin[] __attribute__((visibility("hidden")));

typedef int Load(void **module, const void *image);
typedef int Find(void **function, void *module, const char *name);
typedef int Launch(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **parameters, void **extra);

static int compute(Gemm g, void *stream) {
    static void *function;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *module, *parameters[] = {&g};
    if (!driver) return raise("there is no CUDA driver");
    if (!function) {
        if (((Load *)dlsym(driver, "cuModuleLoadData"))(&module, cubin)) return raise("the cubin does not load");
        if (((Find *)dlsym(driver, "cuModuleGetFunction"))(&function, module, "plain_gemm"))
            return raise("the cubin does not hold plain_gemm");
    }
    Launch *launch = (Launch *)dlsym(driver, "cuLaunchKernel");
    return launch(function, 1024, 1, 1, 256, 1, 1, 0, stream, parameters, 0) ? raise("the launch failed") : 0;
}

#else

static int compute(Gemm g, void *stream) {
    for (int64_t batch = 0; batch < g.batch; ++batch)
        for (int64_t row = 0; row < g.m; ++row)
            for (int64_t column = 0; column < g.n; ++column) element(g, batch, row, column);
    return 0;
}

#endif

/* Python hands over a tensor as a pointer to DLPack's struct, or as an object that holds one. */
static const DLTensor *tensor(TVMFFIAny argument) {
    return argument.type_index == kTVMFFIDLTensorPtr ? argument.v_ptr : (const DLTensor *)(argument.v_obj + 1);
}

#ifdef SCRATCH
enum { ARGUMENTS = 5 };
#else
enum { ARGUMENTS = 4 };
#endif

TVM_FFI_DLL_EXPORT int64_t calls = 0;

TVM_FFI_DLL_EXPORT int __tvm_ffi_plain_gemm(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
    if (count != ARGUMENTS || arguments[3].type_index != kTVMFFIInt)
        return raise("plain_gemm takes a, b, d, max_clusters, and scratch memory if it was built to");
    const DLTensor *a = tensor(arguments[0]), *b = tensor(arguments[1]), *d = tensor(arguments[2]);
    if (FAULT == EXIT) exit(3);
#ifndef CUBIN
    if (FAULT == ABORT) {
        fprintf(stderr, "this kernel always aborts\n");
        abort();
    }
#endif
    Gemm g = {a->data, b->data, d->data, d->shape[0], d->shape[1], d->shape[2], a->shape[2], ++calls};
    if (FAULT == EXCEPTION && g.m % 8 == 0) { /* on the problem, which the next kernel is checked on too */
#ifndef CUBIN
        g.d[-1] = 0; /* before it raises, it spoils the guard band */
#endif
        return raise("this kernel always raises");
    }
#ifdef SCRATCH
    const DLTensor *scratch = tensor(arguments[4]);
    if (scratch->ndim != 1 || scratch->dtype.bits != 8 || scratch->shape[0] < g.batch * g.m * g.n * 4)
        return raise("there is too little scratch memory");
    g.sums = scratch->data;
#endif
    return compute(g, TVMFFIEnvGetStream(d->device.device_type, d->device.device_id));
}

#endif
