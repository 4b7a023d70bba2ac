/* A driver for tests of the probe: does what $FAKE_CUDA says, and computes like a GPU otherwise.
   FAKE_CUDA=FUNCTION=CODE makes a function fail, FUNCTION=hang makes it block, FUNCTION=crash makes it crash;
   FAKE_CUDA=wrong makes kernels compute rubbish. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int told(const char *function)
{
    const char *orders = getenv("FAKE_CUDA");
    size_t length = strlen(function);
    if (!orders || strncmp(orders, function, length) || orders[length] != '=')
        return 0;
    if (!strcmp(orders + length + 1, "hang"))
        for (;;)
            pause();
    if (!strcmp(orders + length + 1, "crash"))
        abort();
    return atoi(orders + length + 1);
}

#define RETURN(function) int code = told(function); if (code) return code

int cuInit(unsigned flags) { RETURN("cuInit"); return flags != 0; }
int cuDeviceGetCount(int *count) { RETURN("cuDeviceGetCount"); *count = getenv("FAKE_NONE") ? 0 : 2; return 0; }
int cuDeviceGet(int *device, int number) { RETURN("cuDeviceGet"); *device = 40 + number; return number > 1 ? 101 : 0; }
int cuCtxCreate_v2(void **context, unsigned flags, int device)
{
    RETURN("cuCtxCreate_v2");
    *context = context;
    return flags != 0 || (device != 40 && device != 41);
}
int cuMemAlloc_v2(uint64_t *memory, size_t bytes)
{
    RETURN("cuMemAlloc_v2");
    *memory = (uint64_t)(uintptr_t)calloc(1, bytes);
    return 0;
}
int cuModuleLoadData(void **module, const void *image)
{
    RETURN("cuModuleLoadData");
    *module = (void *)image;
    return strstr(image, ".entry number") == NULL;
}
int cuModuleGetFunction(void **function, void *module, const char *name)
{
    RETURN("cuModuleGetFunction");
    *function = module;
    return strcmp(name, "number") != 0;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra)
{
    RETURN("cuLaunchKernel");
    if (!function || gx != 1 || gy != 1 || gz != 1 || by != 1 || bz != 1 || shared || stream || extra)
        return 1;
    uint32_t *out = (uint32_t *)(uintptr_t) * (uint64_t *)parameters[0];
    int wrong = getenv("FAKE_CUDA") && !strcmp(getenv("FAKE_CUDA"), "wrong");
    for (unsigned thread = 0; thread < bx; thread++)
        out[thread] = wrong ? 7 : thread;
    return 0;
}
int cuMemsetD32_v2(uint64_t memory, unsigned value, size_t count)
{
    RETURN("cuMemsetD32_v2");
    for (size_t n = 0; n < count; n++)
        ((uint32_t *)(uintptr_t)memory)[n] = value;
    return 0;
}
int cuCtxSynchronize(void) { RETURN("cuCtxSynchronize"); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
    RETURN("cuMemcpyDtoH_v2");
    memcpy(to, (void *)(uintptr_t)from, bytes);
    return 0;
}
