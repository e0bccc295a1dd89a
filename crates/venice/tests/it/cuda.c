// A program of the CUDA driver API, for the tests: the same output on any device.
//
//   cuda streams|large|errors|fault|hold
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int code;
typedef unsigned long long address;
typedef void *handle;

static void *library;

static void *find(const char *name) {
    void *function = dlsym(library, name);
    if (!function) {
        fprintf(stderr, "%s is missing\n", name);
        exit(2);
    }
    return function;
}

#define CALL(name, ...) (((code(*)())find(#name))(__VA_ARGS__))

static const char *named(code result) {
    const char *name = NULL;
    CALL(cuGetErrorName, result, &name);
    return name ? name : "?";
}

#define CHECK(name, ...)                                                       \
    do {                                                                       \
        code result = CALL(name, __VA_ARGS__);                                 \
        if (result) {                                                          \
            printf("%s: %s\n", #name, named(result));                          \
            exit(1);                                                           \
        }                                                                      \
    } while (0)
#define TELL(name, ...) printf("%s: %s\n", #name, named(CALL(name, __VA_ARGS__)))

static const char image[] = ".version 8.0\n.target sm_75\n.entry vector_add\n.entry saxpy\n"
                            ".entry spin\n.global bias\n";
enum { STREAMS = 4, COUNT = 1 << 18, BYTES = 4 * COUNT, ROUNDS = 5 };

static handle context, module, vector_add, saxpy, spin;

static void start(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    int count = 0, major = 0;
    char name[64];
    CHECK(cuInit, 0);
    CHECK(cuDeviceGetCount, &count);
    CHECK(cuDeviceGetName, name, (int)sizeof name, 0);
    CHECK(cuDeviceGetAttribute, &major, 75, 0);
    printf("%d device, %s, sm_%d\n", count, name, major);
    CHECK(cuDevicePrimaryCtxRetain, &context, 0);
    CHECK(cuCtxSetCurrent, context);
    CHECK(cuModuleLoadData, &module, image);
    CHECK(cuModuleGetFunction, &vector_add, module, "vector_add");
    CHECK(cuModuleGetFunction, &saxpy, module, "saxpy");
    CHECK(cuModuleGetFunction, &spin, module, "spin");
}

static void launch(handle function, unsigned threads, handle stream, void **parameters) {
    CHECK(cuLaunchKernel, function, (threads + 255) / 256, 1, 1, threads < 256 ? threads : 256, 1, 1,
          0, stream, parameters, NULL);
}

// Each stream adds its two arrays; the next one goes on from the sum, by an event.
static void streams(void) {
    handle stream[STREAMS], event[STREAMS], begin, end;
    address x[STREAMS], y[STREAMS], counter;
    float *from[STREAMS], *into[STREAMS], factor = 0.5f;
    int count = COUNT;
    CHECK(cuEventCreate, &begin, 0);
    CHECK(cuEventCreate, &end, 0);
    CHECK(cuMemAlloc_v2, &counter, (size_t)4);
    CHECK(cuMemsetD32_v2, counter, 0u, (size_t)1);
    for (int at = 0; at < STREAMS; at++) {
        CHECK(cuStreamCreate, &stream[at], at % 2);
        CHECK(cuEventCreate, &event[at], 2);
        CHECK(cuMemAlloc_v2, &x[at], (size_t)BYTES);
        CHECK(cuMemAlloc_v2, &y[at], (size_t)BYTES);
        CHECK(cuMemHostAlloc, (void **)&from[at], (size_t)BYTES, 0);
        CHECK(cuMemHostAlloc, (void **)&into[at], (size_t)BYTES, 0);
        for (int i = 0; i < COUNT; i++)
            from[at][i] = (float)((i + at) % 1000);
        CHECK(cuMemsetD32_v2, y[at], 0u, (size_t)COUNT);
    }
    CHECK(cuCtxSynchronize);
    CHECK(cuEventRecord, begin, stream[0]);
    for (int round = 0; round < ROUNDS; round++) {
        for (int at = 0; at < STREAMS; at++) {
            address other = y[(at + STREAMS - 1) % STREAMS];
            address microseconds = 2000;
            void *waits[] = {&microseconds, &counter};
            void *adds[] = {&x[at], &other, &y[at], &count};
            void *scales[] = {&factor, &x[at], &y[at], &count};
            if (round + at > 0)
                CHECK(cuStreamWaitEvent, stream[at], event[(at + STREAMS - 1) % STREAMS], 0);
            CHECK(cuMemcpyHtoDAsync_v2, x[at], from[at], (size_t)BYTES, stream[at]);
            launch(spin, 1, stream[at], waits);
            launch(vector_add, COUNT, stream[at], adds);
            launch(saxpy, COUNT, stream[at], scales);
            CHECK(cuMemcpyDtoHAsync_v2, into[at], y[at], (size_t)BYTES, stream[at]);
            // The next round takes what this one has brought, in order.
            CHECK(cuMemcpyHtoDAsync_v2, x[at], into[at], (size_t)BYTES, stream[at]);
            CHECK(cuEventRecord, event[at], stream[at]);
        }
    }
    CHECK(cuEventRecord, end, stream[STREAMS - 1]);
    CHECK(cuEventSynchronize, event[STREAMS - 1]);
    double sums[STREAMS];
    for (int at = 0; at < STREAMS; at++) {
        CHECK(cuStreamSynchronize, stream[at]);
        sums[at] = 0;
        for (int i = 0; i < COUNT; i++)
            sums[at] += into[at][i];
        printf("stream %d: %.1f\n", at, sums[at]);
    }
    CHECK(cuEventSynchronize, end);
    float ms = 0;
    CHECK(cuEventElapsedTime, &ms, begin, end);
    printf("%s\n", ms >= 2 * ROUNDS * STREAMS && ms < 60000 ? "times are plausible" : "bad times");
    unsigned counted = 0;
    CHECK(cuMemcpyDtoH_v2, &counted, counter, (size_t)4);
    printf("%u launches\n", counted);
    size_t bytes = 0;
    address bias, base;
    CHECK(cuModuleGetGlobal_v2, &bias, &bytes, module, "bias");
    CHECK(cuMemGetAddressRange_v2, &base, NULL, x[1] + 64);
    printf("global of %zu bytes, base %s\n", bytes, base == x[1] ? "right" : "wrong");
    for (int at = 0; at < STREAMS; at++) {
        CHECK(cuMemFree_v2, x[at]);
        CHECK(cuMemFree_v2, y[at]);
        CHECK(cuMemFreeHost, from[at]);
        CHECK(cuMemFreeHost, into[at]);
        CHECK(cuStreamDestroy_v2, stream[at]);
        CHECK(cuEventDestroy_v2, event[at]);
    }
    CHECK(cuModuleUnload, module);
}

// A long image, and copies that are longer than what carries them, from and to both sorts of memory.
static void large(void) {
    enum { LONG = 300 << 10, MANY = 96 << 20 };
    char *text = malloc(LONG + sizeof image);
    memcpy(text, image, sizeof image);
    memset(text + sizeof image - 1, '/', LONG);
    text[sizeof image - 1 + LONG] = 0;
    handle other;
    CHECK(cuModuleLoadData, &other, text);
    address memory;
    unsigned *from = malloc(MANY), *into;
    CHECK(cuMemAlloc_v2, &memory, (size_t)MANY);
    CHECK(cuMemHostAlloc, (void **)&into, (size_t)MANY, 0);
    for (unsigned at = 0; at < MANY / 4; at++)
        from[at] = at * 2654435761u;
    CHECK(cuMemcpyHtoD_v2, memory, from, (size_t)MANY);
    CHECK(cuMemcpyDtoHAsync_v2, into, memory, (size_t)MANY, NULL);
    CHECK(cuStreamSynchronize, NULL);
    printf("pinned: %s\n", memcmp(from, into, MANY) ? "other bytes" : "the same bytes");
    // From pinned memory that is being filled.
    handle stream;
    CHECK(cuStreamCreate, &stream, 1);
    CHECK(cuMemsetD32_v2, memory, 7u, (size_t)MANY / 4);
    CHECK(cuCtxSynchronize);
    CHECK(cuMemcpyDtoHAsync_v2, into, memory, (size_t)MANY / 2, stream);
    CHECK(cuMemcpyHtoDAsync_v2, memory + MANY / 2, into, (size_t)MANY / 2, stream);
    CHECK(cuMemsetD32Async, memory, 9u, (size_t)MANY / 8, stream);
    CHECK(cuStreamSynchronize, stream);
    CHECK(cuMemcpyDtoH_v2, from, memory, (size_t)MANY);
    unsigned long long sum = 0;
    for (unsigned at = 0; at < MANY / 4; at++)
        sum += from[at];
    printf("pageable: %s\n", sum == 8ull * (MANY / 4) ? "the right sum" : "another sum");
    CHECK(cuMemFreeHost, into);
}

static void errors(void) {
    handle other;
    address memory;
    char byte = 0;
    void *none[] = {NULL};
    CHECK(cuMemAlloc_v2, &memory, (size_t)1024);
    TELL(cuModuleLoadData, &other, "no image");
    TELL(cuModuleGetFunction, &other, module, "missing");
    TELL(cuMemcpyHtoD_v2, (address)0x1234, &byte, (size_t)1);
    TELL(cuMemcpyDtoH_v2, &byte, memory + 1024, (size_t)1);
    TELL(cuMemFree_v2, memory + 1);
    TELL(cuMemAlloc_v2, &memory, (size_t)1 << 40);
    TELL(cuStreamSynchronize, (handle)0x7777);
    TELL(cuLaunchKernel, vector_add, 1, 1, 1, 4096, 1, 1, 0, NULL, none, NULL);
    TELL(cuEventQuery, (handle)0x7777);
    void *function = NULL;
    TELL(cuGetProcAddress, "cuMemAlloc", &function, 12000, 0ull);
    printf("%s\n", function == dlsym(library, "cuMemAlloc_v2") ? "the right one" : "another one");
    TELL(cuCtxSynchronize);
}

// A kernel that leaves its memory ends the use of its context.
static void fault(void) {
    address wild = 0x10;
    int count = 16;
    void *parameters[] = {&wild, &wild, &wild, &count};
    launch(vector_add, 16, NULL, parameters);
    TELL(cuCtxSynchronize);
    TELL(cuMemAlloc_v2, &wild, (size_t)16);
    TELL(cuCtxSynchronize);
}

// Runs until the device is lost.
static void hold(void) {
    printf("running\n");
    fflush(stdout);
    for (int round = 0; round < 3000; round++) {
        code result = CALL(cuCtxSynchronize);
        if (result) {
            printf("%s\n", named(result));
            return;
        }
        usleep(10000);
    }
}

int main(int count, char **words) {
    start();
    const char *what = count > 1 ? words[1] : "streams";
    if (!strcmp(what, "streams"))
        streams();
    else if (!strcmp(what, "large"))
        large();
    else if (!strcmp(what, "errors"))
        errors();
    else if (!strcmp(what, "fault"))
        fault();
    else
        hold();
    return 0;
}
