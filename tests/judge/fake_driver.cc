// A CUDA driver that launches nothing and writes down what it was asked for: see test_sanitize.py.
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace {
void say(const char* format, ...) {
    const char* path = getenv("CUDA_FAKE_LOG");
    FILE* file = path ? fopen(path, "a") : nullptr;
    if (!file) return;
    va_list args;
    va_start(args, format);
    vfprintf(file, format, args);
    va_end(args);
    fclose(file);
}

int fault(const char* call) {
    const char* name = getenv("CUDA_FAKE_FAULT");
    return name && !strcmp(name, call) ? 719 : 0;
}

struct Attribute {
    int id;
    char pad[4];
    unsigned value[16];
};

struct Config {
    unsigned grid[3], block[3], shared;
    void* stream;
    Attribute* attributes;
    unsigned count;
};
}  // namespace

extern "C" {
int cuInit(unsigned) { return fault("cuInit"); }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = nullptr, 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuCtxSynchronize() { return fault("cuCtxSynchronize"); }
int cuModuleLoadData(void** module, const void* image) {
    say("load %.4s\n", static_cast<const char*>(image));
    return *module = nullptr, 0;
}
int cuModuleUnload(void*) { return 0; }
int cuModuleGetFunction(void** function, void*, const char* name) {
    say("entry %s\n", name);
    return *function = nullptr, 0;
}
int cuFuncSetAttribute(void*, int attribute, int value) {
    say("attribute %d = %d\n", attribute, value);
    return 0;
}
int cuMemAlloc_v2(uint64_t* pointer, size_t size) {
    static uint64_t next = 0;
    say("alloc %zu\n", size);
    return *pointer = (next += 0x10000), 0;
}
int cuMemFree_v2(uint64_t) { return 0; }
int cuMemcpyHtoD_v2(uint64_t pointer, const void*, size_t size) {
    say("copy %zu to %lx\n", size, static_cast<unsigned long>(pointer));
    return 0;
}
int cuMemsetD8_v2(uint64_t pointer, unsigned char value, size_t size) {
    say("set %zu at %lx to %d\n", size, static_cast<unsigned long>(pointer), value);
    return 0;
}
int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* address, const uint64_t* dims,
                           const uint64_t* strides, const unsigned* box, const unsigned* steps,
                           int interleave, int swizzle, int l2, int fill) {
    say("map type %d at %lx dims", type, reinterpret_cast<unsigned long>(address));
    for (unsigned i = 0; i < rank; ++i) say(" %lu", static_cast<unsigned long>(dims[i]));
    say(" strides");
    for (unsigned i = 0; i + 1 < rank; ++i) say(" %lu", static_cast<unsigned long>(strides[i]));
    say(" box");
    for (unsigned i = 0; i < rank; ++i) say(" %u/%u", box[i], steps[i]);
    say(" %d %d %d %d\n", interleave, swizzle, l2, fill);
    memset(map, 0x5A, 128);
    return 0;
}
int cuLaunchKernelEx(const Config* config, void*, void** params, void**) {
    say("launch %u %u %u of %u %u %u shared %u", config->grid[0], config->grid[1], config->grid[2],
        config->block[0], config->block[1], config->block[2], config->shared);
    for (unsigned i = 0; i < config->count; ++i) {
        const Attribute& x = config->attributes[i];
        say(" attribute %d: %u %u %u", x.id, x.value[0], x.value[1], x.value[2]);
    }
    // How wide each argument is, nobody tells a driver that reads no cubin: the test does.
    const char* widths = getenv("CUDA_FAKE_WIDTHS");
    for (int i = 0; widths && widths[i]; ++i) {
        uint64_t value = 0;
        memcpy(&value, params[i], widths[i] - '0');
        say(" %lx", static_cast<unsigned long>(value));
    }
    say("\n");
    return fault("cuLaunchKernelEx");
}
int cuGetErrorName(int, const char** name) { return *name = "fault", 0; }
int cuGetErrorString(int, const char** text) { return *text = "fault", 0; }
int cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, int* status) {
    char versioned[200];
    snprintf(versioned, sizeof versioned, "%s_v2", name);
    *function = dlsym(RTLD_DEFAULT, versioned);
    if (!*function) {
        static void* self = dlopen("libcuda.so.1", RTLD_NOW);
        *function = dlsym(self, versioned);
        if (!*function) *function = dlsym(self, name);
    }
    if (status) *status = *function ? 0 : 1;
    return *function ? 0 : 500;
}
}
