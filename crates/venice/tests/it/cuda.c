// A program of the CUDA driver API, for the tests: the same output on any device.
//
//   cuda streams|large|errors|fault|hold|asked|rows|pool|calls|images|launches|nonsense|peers|slow|half|
//        refused|threads|graphs|behind|ending
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
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
        code outcome = CALL(name, __VA_ARGS__);                                \
        if (outcome) {                                                         \
            printf("%s: %s\n", #name, named(outcome));                         \
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
    printf("%s, %s, sm_%d\n", count > 0 ? "devices" : "no device", name, major);
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

// What libraries ask at their start.
static void asked(void) {
    void *function = NULL;
    int status = -1, value = -1, least = -1, greatest = -1;
    unsigned char id[16] = "0123456789abcdef";
    TELL(cuGetProcAddress_v2, "cuMemAlloc", &function, 12040, 0ull, &status);
    printf("%d %d\n", status, function == dlsym(library, "cuMemAlloc_v2"));
    TELL(cuGetProcAddress_v2, "cuStreamSynchronize", &function, 12040, 2ull, &status);
    printf("%d, called: %s\n", status, named(((code(*)(handle))function)(NULL)));
    TELL(cuGetProcAddress_v2, "cuMakeTea", &function, 12040, 0ull, &status);
    printf("%d %d\n", status, function == NULL);
    CHECK(cuCtxGetDevice, &value);
    printf("device %d\n", value);
    CHECK(cuDeviceCanAccessPeer, &value, 0, 0);
    TELL(cuCtxEnablePeerAccess, context, 0);
    size_t bytes = 0;
    CHECK(cuCtxGetLimit, &bytes, 0);
    printf("stack %zu\n", bytes);
    CHECK(cuCtxSetLimit, 0, (size_t)4096);
    CHECK(cuCtxGetLimit, &bytes, 0);
    printf("stack %zu\n", bytes);
    TELL(cuCtxSetLimit, 77, (size_t)1);
    CHECK(cuStreamIsCapturing, NULL, &value);
    printf("capturing %d\n", value);
    (void)least, (void)greatest, (void)id;
}

enum { WIDTH = 100, HEIGHT = 37, DEPTH = 3 };

typedef struct {
    size_t x, y;
    unsigned kind;
    void *host;
    address device;
    void *array;
    size_t pitch;
} side2;
typedef struct {
    side2 from, to;
    size_t width, height;
} copy2;
typedef struct {
    size_t x, y, z, level;
    unsigned kind;
    void *host;
    address device;
    void *array, *reserved;
    size_t pitch, height;
} side3;
typedef struct {
    side3 from, to;
    size_t width, height, depth;
} copy3;

static unsigned long long sum_of(const unsigned char *bytes, size_t len) {
    unsigned long long sum = 0;
    for (size_t at = 0; at < len; at++)
        sum = sum * 31 + bytes[at];
    return sum;
}

// Copies and fills of rows, in two and three dimensions.
static void rows(void) {
    address memory, other;
    size_t pitch = 0;
    static unsigned char from[DEPTH * HEIGHT * WIDTH], into[DEPTH * HEIGHT * 2 * WIDTH];
    for (size_t at = 0; at < sizeof from; at++)
        from[at] = (unsigned char)(at * 7 + at / 251);
    CHECK(cuMemAllocPitch_v2, &memory, &pitch, (size_t)WIDTH, (size_t)HEIGHT, 4);
    printf("pitch %zu\n", pitch);
    CHECK(cuMemsetD8_v2, memory, 1, pitch * HEIGHT);
    copy2 up = {{.kind = 1, .host = from, .pitch = WIDTH},
                {.kind = 2, .device = memory, .pitch = pitch}, WIDTH, HEIGHT};
    CHECK(cuMemcpy2D_v2, &up);
    copy2 down = {{.x = 3, .y = 2, .kind = 2, .device = memory, .pitch = pitch},
                  {.x = 5, .y = 1, .kind = 1, .host = into, .pitch = 2 * WIDTH}, WIDTH - 10, HEIGHT - 4};
    CHECK(cuMemcpy2DAsync_v2, &down, NULL);
    CHECK(cuCtxSynchronize);
    printf("rows: %llu\n", sum_of(into, sizeof into));
    CHECK(cuMemAlloc_v2, &other, (size_t)(DEPTH * HEIGHT * 128));
    CHECK(cuMemsetD32_v2, other, 0x01020304u, (size_t)(DEPTH * HEIGHT * 32));
    copy2 within = {{.kind = 2, .device = memory, .pitch = pitch},
                    {.y = 1, .kind = 4, .device = other, .pitch = 128}, WIDTH, HEIGHT};
    CHECK(cuMemcpy2DUnaligned_v2, &within);
    CHECK(cuMemsetD2D32_v2, other + 64, (size_t)128, 9u, (size_t)4, (size_t)5);
    CHECK(cuMemsetD2D8_v2, other, (size_t)128, 200, (size_t)3, (size_t)50);
    CHECK(cuMemsetD16_v2, other + 1024, 0xbeef, (size_t)40);
    CHECK(cuMemcpyDtoH_v2, into, other, (size_t)(HEIGHT * 128));
    printf("within: %llu\n", sum_of(into, HEIGHT * 128));
    copy3 layers = {{.kind = 1, .host = from, .pitch = WIDTH, .height = HEIGHT},
                    {.kind = 2, .device = other, .pitch = 128, .height = HEIGHT}, WIDTH, HEIGHT, DEPTH};
    CHECK(cuMemcpy3D_v2, &layers);
    memset(into, 0, sizeof into);
    copy3 back = {{.x = 4, .y = 3, .z = 1, .kind = 2, .device = other, .pitch = 128, .height = HEIGHT},
                  {.kind = 1, .host = into, .pitch = WIDTH, .height = 2 * HEIGHT}, WIDTH - 8, HEIGHT - 3, 2};
    CHECK(cuMemcpy3DAsync_v2, &back, NULL);
    CHECK(cuCtxSynchronize);
    printf("layers: %llu\n", sum_of(into, sizeof into));
    CHECK(cuMemcpy, (address)into, other, (size_t)1000);
    CHECK(cuMemcpyAsync, other + 5000, (address)from, (size_t)1000, NULL);
    CHECK(cuMemcpy, other, other + 5000, (size_t)1000);
    CHECK(cuMemcpy, (address)into + 1000, other, (size_t)1000);
    printf("unified: %llu\n", sum_of(into, 2000));
    down.from.y = HEIGHT - 2;
    TELL(cuMemcpy2D_v2, &down);
    down.from.kind = 3;
    printf("array: %s\n", CALL(cuMemcpy2D_v2, &down) ? "refused" : "copied");
    unsigned kind = 0, managed = 9;
    int ordinal = -1;
    address start = 0;
    int names[] = {2, 9, 8, 11};
    void *values[] = {&kind, &ordinal, &managed, &start};
    CHECK(cuPointerGetAttributes, 4, names, values, other + 77);
    printf("kind %u, device %d, managed %u, start %d\n", kind, ordinal, managed, start == other);
    CHECK(cuPointerGetAttributes, 4, names, values, (address)from);
    printf("kind %u, start %d\n", kind, start == 0);
    TELL(cuPointerGetAttribute, &kind, 2, (address)from);
}

// Memory in the order of streams.
static void pool(void) {
    handle stream, its, again;
    address memory, second, third;
    unsigned long long threshold = 1 << 20, used = 0;
    CHECK(cuStreamCreate, &stream, 1);
    CHECK(cuDeviceGetDefaultMemPool, &its, 0);
    CHECK(cuDeviceGetMemPool, &again, 0);
    printf("one pool: %d\n", its == again);
    CHECK(cuMemPoolSetAttribute, its, 4, &threshold);
    threshold = 0;
    CHECK(cuMemPoolGetAttribute, its, 4, &threshold);
    printf("keeps %llu\n", threshold);
    unsigned word = 0;
    for (int round = 0; round < 50; round++) {
        CHECK(cuMemAllocAsync, &memory, (size_t)4096, stream);
        CHECK(cuMemAllocFromPoolAsync, &second, (size_t)8192, its, stream);
        CHECK(cuMemsetD32Async, memory, (unsigned)round, (size_t)1024, stream);
        CHECK(cuMemcpyDtoDAsync_v2, second + 4096, memory, (size_t)4096, stream);
        CHECK(cuMemFreeAsync, memory, stream);
        CHECK(cuMemAllocAsync, &third, (size_t)4096, stream);
        CHECK(cuMemsetD32Async, third, 77u, (size_t)1024, stream);
        CHECK(cuMemFreeAsync, third, stream);
        CHECK(cuMemcpyDtoHAsync_v2, &word, second + 8188, (size_t)4, stream);
        CHECK(cuMemFreeAsync, second, stream);
        CHECK(cuStreamSynchronize, stream);
        if (word != (unsigned)round)
            printf("round %d: %u\n", round, word);
    }
    CHECK(cuMemPoolGetAttribute, its, 7, &used);
    printf("used %llu\n", used);
    CHECK(cuMemAllocAsync, &memory, (size_t)(16 << 20), stream);
    CHECK(cuMemPoolGetAttribute, its, 7, &used);
    printf("used %llu\n", used);
    CHECK(cuMemFree_v2, memory);
    TELL(cuMemFreeAsync, memory, stream);
    CHECK(cuMemPoolTrimTo, its, (size_t)0);
    // Much more than the device has, one after the other.
    for (int round = 0; round < 40; round++) {
        CHECK(cuMemAllocAsync, &memory, (size_t)(48 << 20) + round * 4096, stream);
        CHECK(cuMemFreeAsync, memory, stream);
        if (round % 8 == 0)
            CHECK(cuStreamSynchronize, stream);
    }
    TELL(cuMemAllocAsync, &memory, (size_t)1 << 40, stream);
    TELL(cuMemAllocAsync, &memory, (size_t)64, (handle)0x7777);
    CHECK(cuStreamDestroy_v2, stream);
    CHECK(cuCtxSynchronize);
}

static unsigned *shared;
static int called;

static void fill_up(void *data) {
    // What came before it has ended.
    called = called * 10 + (shared[0] == 5 ? 1 : 2);
    for (int at = 0; at < 1024; at++)
        shared[at] = (unsigned)(size_t)data;
}

static void take_note(handle stream, code status, void *data) {
    (void)stream;
    usleep(20000);
    called = called * 10 + (status == 0 && data == &called ? 3 : 4);
}

// Functions of the program that a stream calls.
static void calls(void) {
    handle stream;
    address memory;
    CHECK(cuStreamCreate, &stream, 1);
    CHECK(cuMemAlloc_v2, &memory, (size_t)4096);
    CHECK(cuMemHostAlloc, (void **)&shared, (size_t)4096, 0);
    CHECK(cuMemsetD32Async, memory, 5u, (size_t)1024, stream);
    CHECK(cuMemcpyDtoHAsync_v2, shared, memory, (size_t)4096, stream);
    CHECK(cuLaunchHostFunc, stream, fill_up, (void *)6);
    CHECK(cuMemcpyHtoDAsync_v2, memory, shared, (size_t)4096, stream);
    CHECK(cuStreamAddCallback, stream, take_note, &called, 0);
    CHECK(cuMemcpyDtoHAsync_v2, shared, memory, (size_t)4096, stream);
    CHECK(cuStreamSynchronize, stream);
    printf("called %d, has %u\n", called, shared[1023]);
    for (int round = 0; round < 30; round++) {
        CHECK(cuMemsetD32Async, memory, 5u, (size_t)1024, stream);
        CHECK(cuMemcpyDtoHAsync_v2, shared, memory, (size_t)4096, stream);
        called = 0;
        CHECK(cuLaunchHostFunc, stream, fill_up, (void *)(size_t)round);
        CHECK(cuStreamSynchronize, stream);
        if (called != 1 || shared[7] != (unsigned)round)
            printf("round %d: %d, %u\n", round, called, shared[7]);
    }
    // Behind many commands, with a wait that the driver knows nothing of.
    for (int at = 0; at < 3000; at++)
        CHECK(cuMemsetD32Async, memory, (unsigned)at, (size_t)1024, stream);
    called = 0;
    CHECK(cuLaunchHostFunc, stream, fill_up, (void *)9);
    CHECK(cuMemcpyHtoDAsync_v2, memory, shared, (size_t)4096, stream);
    CHECK(cuStreamSynchronize, stream);
    CHECK(cuMemcpyDtoH_v2, shared, memory, (size_t)4096);
    printf("has %u\n", shared[5]);
    called = 0;
    CHECK(cuLaunchHostFunc, stream, fill_up, (void *)9);
    for (int at = 0; at < 500 && !*(volatile int *)&called; at++)
        usleep(10000);
    printf("called: %d\n", called > 0);
    CHECK(cuStreamSynchronize, stream);
    TELL(cuStreamAddCallback, stream, take_note, NULL, 7);
    TELL(cuLaunchHostFunc, (handle)0x7777, fill_up, NULL);
    CHECK(cuMemFreeHost, shared);
}

// Loading with options, linking, libraries.
static void images(void) {
    static const char wrong[] = ".version 8.0\n.target sm_75\nsyntax error\n";
    static const char parts[2][64] = {".version 8.0\n.entry saxpy\n", ".entry spin\n.global bias\n"};
    char info[256] = "", errors[256] = "";
    float ms = 0;
    int options[] = {7, 3, 4, 5, 6, 2};
    void *values[] = {(void *)4, info, (void *)sizeof info, errors, (void *)sizeof errors, &ms};
    handle other, function, linker, state, kernel, library2;
    TELL(cuModuleLoadDataEx, &other, wrong, 6, options, values);
    printf("%s (%zu bytes)\n", errors, (size_t)values[4]);
    values[2] = (void *)sizeof info, values[4] = (void *)sizeof errors;
    TELL(cuModuleLoadDataEx, &other, image, 5, options, values);
    printf("%s (%zu bytes), errors: %zu\n", info, (size_t)values[2], (size_t)values[4]);
    CHECK(cuModuleGetFunction, &function, other, "saxpy");
    int value = 0;
    CHECK(cuFuncGetAttribute, &value, 8, function);
    printf("dynamic %d\n", value);
    TELL(cuFuncSetAttribute, function, 8, 60 << 10);
    TELL(cuFuncSetAttribute, function, 8, 600 << 10);
    TELL(cuFuncSetAttribute, function, 1, 0);
    CHECK(cuFuncGetAttribute, &value, 8, function);
    printf("dynamic %d\n", value);
    CHECK(cuModuleUnload, other);
    TELL(cuModuleUnload, other);
    // A linker makes one image of two.
    void *cubin = NULL;
    size_t bytes = 0;
    CHECK(cuLinkCreate_v2, 0, NULL, NULL, &linker);
    for (int at = 0; at < 2; at++)
        CHECK(cuLinkAddData_v2, linker, 1, (void *)parts[at], strlen(parts[at]) + 1, "part", 0, NULL, NULL);
    CHECK(cuLinkComplete, linker, &cubin, &bytes);
    CHECK(cuModuleLoadData, &other, cubin);
    CHECK(cuLinkDestroy, linker);
    CHECK(cuModuleGetFunction, &function, other, "spin");
    TELL(cuModuleGetFunction, &function, other, "vector_add");
    // A library is loaded once, and has kernels.
    TELL(cuLibraryLoadData, &library2, wrong, NULL, NULL, 0, NULL, NULL, 0);
    CHECK(cuLibraryLoadData, &library2, image, NULL, NULL, 0, NULL, NULL, 0);
    unsigned count = 0;
    CHECK(cuLibraryGetKernelCount, &count, library2);
    CHECK(cuLibraryGetKernel, &kernel, library2, "vector_add");
    TELL(cuLibraryGetKernel, &state, library2, "missing");
    CHECK(cuKernelGetFunction, &function, kernel);
    CHECK(cuKernelGetAttribute, &value, 0, kernel, 0);
    size_t offset = 0, len = 0;
    CHECK(cuKernelGetParamInfo, kernel, (size_t)3, &offset, &len);
    printf("%u kernels, %d threads, parameter at %zu of %zu\n", count, value, offset, len);
    address bias, memory;
    CHECK(cuLibraryGetGlobal, &bias, &len, library2, "bias");
    CHECK(cuLibraryGetModule, &other, library2);
    CHECK(cuMemAlloc_v2, &memory, (size_t)1024);
    CHECK(cuMemsetD32_v2, memory, 0x3f800000u, (size_t)256);
    int many = 256;
    void *adds[] = {&memory, &memory, &memory, &many};
    launch(kernel, 256, NULL, adds);
    launch(function, 256, NULL, adds);
    float result = 0;
    CHECK(cuMemcpyDtoH_v2, &result, memory + 1020, (size_t)4);
    printf("global of %zu bytes, sum %.1f\n", len, result);
    CHECK(cuLibraryUnload, library2);
    TELL(cuLibraryUnload, library2);
}

typedef struct {
    unsigned name, pad;
    unsigned long long value[8];
} attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    handle stream;
    attribute *attributes;
    unsigned count;
} config;

static size_t shared_of(int threads) { return (size_t)threads * 64; }

// Launches with attributes, and how many blocks fit.
static void launches(void) {
    address memory;
    int many = 1000, blocks = 0, threads = 0, grid = 0;
    size_t bytes = 0;
    CHECK(cuMemAlloc_v2, &memory, (size_t)4000);
    CHECK(cuMemsetD32_v2, memory, 0x3f800000u, (size_t)many);
    void *adds[] = {&memory, &memory, &memory, &many};
    attribute all[] = {{0}, {2, 0, {1}}, {8, 0, {0}}, {6, 0, {0}}};
    config its = {{4, 1, 1}, {256, 1, 1}, 0, NULL, all, 4};
    CHECK(cuLaunchKernelEx, &its, vector_add, adds, NULL);
    its.count = 0, its.attributes = NULL;
    CHECK(cuLaunchKernelEx, &its, vector_add, adds, NULL);
    CHECK(cuLaunchCooperativeKernel, vector_add, 4, 1, 1, 256, 1, 1, 0, NULL, adds);
    float result = 0;
    CHECK(cuMemcpyDtoH_v2, &result, memory + 3996, (size_t)4);
    printf("sum %.1f\n", result);
    its.shared = 1 << 20;
    TELL(cuLaunchKernelEx, &its, vector_add, adds, NULL);
    attribute unknown[] = {{99}};
    its.shared = 0, its.count = 1, its.attributes = unknown;
    TELL(cuLaunchKernelEx, &its, vector_add, adds, NULL);
    CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor, &blocks, vector_add, 256, (size_t)0);
    printf("%d blocks\n", blocks);
    CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, &blocks, vector_add, 256, (size_t)20000, 0);
    printf("%d blocks\n", blocks);
    CHECK(cuOccupancyAvailableDynamicSMemPerBlock, &bytes, vector_add, 4, 256);
    printf("%zu bytes\n", bytes);
    CHECK(cuOccupancyMaxPotentialBlockSize, &grid, &threads, vector_add, NULL, (size_t)0, 0);
    printf("%d times %d\n", grid, threads);
    CHECK(cuOccupancyMaxPotentialBlockSize, &grid, &threads, vector_add, shared_of, (size_t)0, 900);
    printf("%d times %d\n", grid, threads);
    void *packed[4];
    size_t len = 28;
    memcpy(packed, &memory, 8), memcpy(packed + 1, &memory, 8), memcpy(packed + 2, &memory, 8);
    memcpy(packed + 3, &many, 4);
    void *extra[] = {(void *)1, packed, (void *)2, &len, NULL};
    CHECK(cuLaunchKernel, vector_add, 4, 1, 1, 256, 1, 1, 0, NULL, NULL, extra);
    CHECK(cuMemcpyDtoH_v2, &result, memory, (size_t)4);
    printf("sum %.1f\n", result);
}

// Handles and sizes that make no sense are errors.
static void nonsense(void) {
    handle stream, event, none = (handle)0xdeadbeef;
    address memory, far = 0x123456789000;
    size_t huge = (size_t)1 << 63;
    char byte = 0;
    int value = 0;
    CHECK(cuStreamCreate, &stream, 0);
    CHECK(cuEventCreate, &event, 0);
    CHECK(cuMemAlloc_v2, &memory, (size_t)64);
    // An event in the place of a stream, a stream in the place of an event, a context as a module.
    TELL(cuStreamSynchronize, event);
    TELL(cuEventSynchronize, stream);
    TELL(cuModuleGetFunction, &event, context, "saxpy");
    TELL(cuLaunchKernel, none, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    TELL(cuStreamWaitEvent, stream, none, 0);
    TELL(cuStreamDestroy_v2, none);
    TELL(cuEventDestroy_v2, none);
    TELL(cuCtxSetCurrent, none);
    TELL(cuCtxDestroy_v2, none);
    TELL(cuDeviceGet, &value, 99);
    TELL(cuDeviceGet, &value, -1);
    TELL(cuMemAlloc_v2, &far, huge);
    far = 0x123456789000;
    TELL(cuMemAlloc_v2, &far, (size_t)0);
    far = 0x123456789000;
    TELL(cuMemFree_v2, far);
    TELL(cuMemcpyHtoD_v2, memory, &byte, huge);
    TELL(cuMemcpyDtoH_v2, &byte, memory, huge);
    TELL(cuMemcpyDtoD_v2, far, memory, (size_t)8);
    TELL(cuMemsetD32_v2, memory, 1u, huge);
    TELL(cuMemsetD8_v2, memory + 60, 1, (size_t)8);
    TELL(cuPointerGetAttribute, &value, 9, far);
    TELL(cuMemFreeHost, &byte);
    TELL(cuCtxSynchronize);
    // A child has no device.
    fflush(stdout);
    if (fork() == 0) {
        TELL(cuCtxSynchronize);
        TELL(cuMemAlloc_v2, &memory, (size_t)64);
        TELL(cuDeviceGet, &value, 0);
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    TELL(cuCtxSynchronize);
}

// Copies between two devices.
static void peers(void) {
    enum { LONG = 20 << 20 };
    handle second, stream;
    address here, there;
    int can = -1, ordinal = -1, another = -1;
    unsigned *bytes = malloc(LONG);
    for (unsigned at = 0; at < LONG / 4; at++)
        bytes[at] = at * 2654435761u;
    CHECK(cuMemAlloc_v2, &here, (size_t)LONG);
    CHECK(cuMemcpyHtoD_v2, here, bytes, (size_t)LONG);
    CHECK(cuStreamCreate, &stream, 1);
    CHECK(cuDevicePrimaryCtxRetain, &second, 1);
    CHECK(cuCtxPushCurrent_v2, second);
    CHECK(cuMemAlloc_v2, &there, (size_t)LONG);
    printf("other addresses: %d\n", here + LONG <= there || there + LONG <= here);
    CHECK(cuDeviceCanAccessPeer, &can, 0, 1);
    CHECK(cuPointerGetAttribute, &ordinal, 9, here);
    CHECK(cuPointerGetAttribute, &another, 9, there);
    printf("access %d, devices %d and %d\n", can, ordinal, another);
    CHECK(cuMemcpyPeer, there, second, here, context, (size_t)LONG);
    memset(bytes, 0, LONG);
    CHECK(cuMemcpyDtoH_v2, bytes, there, (size_t)LONG);
    printf("peer: %llu\n", sum_of((unsigned char *)bytes, LONG));
    CHECK(cuMemsetD32_v2, there, 3u, (size_t)LONG / 4);
    CHECK(cuCtxPopCurrent_v2, NULL);
    CHECK(cuMemcpyPeerAsync, here, context, there, second, (size_t)LONG / 2, stream);
    CHECK(cuMemsetD32Async, here + 4, 4u, (size_t)1, stream);
    CHECK(cuStreamSynchronize, stream);
    CHECK(cuMemcpy, here + LONG - 4, there, (size_t)4);
    CHECK(cuMemcpyDtoH_v2, bytes, here, (size_t)LONG);
    printf("peer: %llu\n", sum_of((unsigned char *)bytes, LONG));
    // A fault of one device leaves the other one alone.
    address wild = 0x10;
    int count = 16;
    void *parameters[] = {&wild, &wild, &wild, &count};
    launch(vector_add, 16, NULL, parameters);
    TELL(cuCtxSynchronize);
    CHECK(cuCtxSetCurrent, second);
    TELL(cuCtxSynchronize);
    CHECK(cuMemcpyDtoH_v2, bytes, there, (size_t)LONG);
    printf("there: %llu\n", sum_of((unsigned char *)bytes, LONG));
}

static volatile int is_loaded;

static void *load_slowly(void *ignored) {
    static const char slow[] = ".version 8.0\n.entry saxpy\n// slow\n";
    handle other;
    (void)ignored;
    CHECK(cuCtxSetCurrent, context);
    CHECK(cuModuleLoadData, &other, slow);
    is_loaded = 1;
    return NULL;
}

// A long load, and a free behind a long kernel, hold up no other stream.
static void slow(void) {
    handle stream, busy;
    address memory, counter;
    pthread_t thread;
    CHECK(cuStreamCreate, &stream, 1);
    CHECK(cuStreamCreate, &busy, 1);
    CHECK(cuMemAlloc_v2, &memory, (size_t)64);
    CHECK(cuMemAlloc_v2, &counter, (size_t)64);
    pthread_create(&thread, NULL, load_slowly, NULL);
    usleep(50000);
    int rounds = 0;
    for (; !is_loaded && rounds < 100; rounds++) {
        CHECK(cuMemsetD32Async, memory, 1u, (size_t)16, stream);
        CHECK(cuStreamSynchronize, stream);
    }
    printf("during a load: %s\n", rounds >= 1 ? "goes on" : "waits");
    pthread_join(thread, NULL);
    address microseconds = 500000;
    void *waits[] = {&microseconds, &counter};
    CHECK(cuMemsetD32_v2, counter, 0u, (size_t)16);
    launch(spin, 1, busy, waits);
    // The vendor's driver waits here; one of another node need not.
    CHECK(cuMemFree_v2, memory);
    CHECK(cuMemAlloc_v2, &memory, (size_t)64);
    CHECK(cuMemsetD32Async, memory, 1u, (size_t)16, stream);
    CHECK(cuStreamSynchronize, stream);
    unsigned count = 9;
    CHECK(cuStreamSynchronize, busy);
    CHECK(cuMemcpyDtoH_v2, &count, counter, (size_t)4);
    printf("%u launch\n", count);
}

// A kernel fails before a stream gets to a function that a copy waits for.
static void behind(void) {
    handle stream;
    address wild = 0x10, memory, counter, microseconds = 100000;
    int count = 16, notes = 0;
    void *parameters[] = {&wild, &wild, &wild, &count}, *waits[] = {&microseconds, &counter};
    CHECK(cuStreamCreate, &stream, 1);
    CHECK(cuMemAlloc_v2, &memory, (size_t)64);
    CHECK(cuMemAlloc_v2, &counter, (size_t)64);
    CHECK(cuMemHostAlloc, (void **)&shared, (size_t)64, 0);
    launch(spin, 1, stream, waits);
    launch(vector_add, 16, stream, parameters);
    CHECK(cuLaunchHostFunc, stream, fill_up, &notes);
    CALL(cuMemcpyHtoDAsync_v2, memory, shared, (size_t)64, stream);
    TELL(cuStreamSynchronize, stream);
    printf("called: %d\n", called);
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

// What no device of another node can do.
static void refused(void) {
    handle stream = NULL;
    address memory;
    const void *table = NULL;
    static const unsigned char id[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
                                         0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
    TELL(cuMemAllocManaged, &memory, (size_t)64, 1);
    TELL(cuMemAllocManaged, &memory, (size_t)64, 1);
    TELL(cuStreamBeginCapture_v2, stream, 0);
    TELL(cuGetExportTable, &table, id);
    TELL(cuGetExportTable, &table, id);
}

static void note(void *data) { ++*(volatile int *)data; }

typedef struct {
    handle function;
    unsigned grid[3], block[3], shared;
    void **parameters, **extra;
    handle kernel, context;
} kernel_node;
typedef struct {
    address to;
    size_t pitch;
    unsigned value, unit;
    size_t width, height;
} memset_node;
typedef struct {
    void (*function)(void *);
    void *data;
} host_node;

// A graph: fills and adds on the device, then a function, then a copy to the program.
static void graphs(void) {
    enum { MANY = 1000 };
    handle graph, inner, exec, other, node[6], more[300], stream;
    address x, y;
    int many = MANY, kind = -1;
    size_t count = 0;
    float factor = 3, *host;
    CHECK(cuStreamCreate, &stream, 1);
    CHECK(cuMemAlloc_v2, &x, (size_t)(4 * MANY));
    CHECK(cuMemAlloc_v2, &y, (size_t)(4 * MANY));
    CHECK(cuMemHostAlloc, (void **)&host, (size_t)(4 * MANY), 0);
    CHECK(cuGraphCreate, &graph, 0);
    memset_node ones = {x, 0, 0x3f800000, 4, MANY, 1};
    memset_node twos = {y, 2000, 0x40000000, 4, MANY / 2, 2};
    void *scales[] = {&factor, &x, &y, &many};
    kernel_node scale = {saxpy, {4, 1, 1}, {256, 1, 1}, 0, scales, NULL, NULL, NULL};
    copy3 down = {{.kind = 2, .device = y, .pitch = 4 * MANY}, {.kind = 1, .host = host, .pitch = 4 * MANY},
                  4 * MANY, 1, 1};
    static int notes;
    host_node call = {note, &notes};
    // The kernel is there before what it depends on.
    CHECK(cuGraphAddKernelNode_v2, &node[2], graph, NULL, (size_t)0, &scale);
    CHECK(cuGraphAddMemsetNode, &node[0], graph, NULL, (size_t)0, &ones, NULL);
    CHECK(cuGraphAddMemsetNode, &node[1], graph, NULL, (size_t)0, &twos, NULL);
    CHECK(cuGraphAddDependencies, graph, node, (handle[]){node[2], node[2]}, (size_t)1);
    CHECK(cuGraphAddDependencies, graph, node + 1, node + 2, (size_t)1);
    CHECK(cuGraphAddHostNode, &node[3], graph, node + 2, (size_t)1, &call);
    CHECK(cuGraphAddMemcpyNode, &node[4], graph, node + 3, (size_t)1, &down, NULL);
    CHECK(cuGraphAddEmptyNode, &node[5], graph, node + 4, (size_t)1);
    CHECK(cuGraphGetNodes, graph, NULL, &count);
    CHECK(cuGraphNodeGetType, node[3], &kind);
    printf("%zu nodes, type %d\n", count, kind);
    CHECK(cuGraphInstantiate_v2, &exec, graph, NULL, NULL, (size_t)0);
    for (int round = 0; round < 20; round++) {
        memset(host, 0, 4 * MANY);
        CHECK(cuGraphLaunch, exec, stream);
        CHECK(cuStreamSynchronize, stream);
        if (host[0] != 5 || host[MANY - 1] != 5 || notes != round + 1)
            printf("round %d: %f %f %d\n", round, host[0], host[MANY - 1], notes);
    }
    // Other parameters, for what is launched from now on.
    factor = 10;
    CHECK(cuGraphExecKernelNodeSetParams_v2, exec, node[2], &scale);
    CHECK(cuGraphLaunch, exec, stream);
    CHECK(cuStreamSynchronize, stream);
    printf("%.1f\n", host[7]);
    TELL(cuGraphExecKernelNodeSetParams_v2, exec, (handle)0x7777, &scale);
    // A graph in another one, and a long one.
    CHECK(cuGraphCreate, &inner, 0);
    factor = 1;
    for (int at = 0; at < 300; at++)
        CHECK(cuGraphAddKernelNode_v2, &more[at], inner, more + at - 1, (size_t)(at > 0), &scale);
    CHECK(cuGraphAddChildGraphNode, &node[5], inner, more + 299, (size_t)1, graph);
    for (int at = 0; at < 2; at++)
        CHECK(cuGraphAddKernelNode_v2, &more[at], inner, node + 5, (size_t)1, &scale);
    CHECK(cuGraphInstantiateWithFlags, &other, inner, 0ull);
    for (int round = 0; round < 3; round++)
        CHECK(cuGraphLaunch, other, stream);
    CHECK(cuMemcpyDtoHAsync_v2, host, y, (size_t)(4 * MANY), stream);
    CHECK(cuStreamSynchronize, stream);
    printf("%.1f, %d notes\n", host[500], notes);
    // In a circle.
    CHECK(cuGraphAddDependencies, graph, node + 4, node, (size_t)1);
    TELL(cuGraphInstantiateWithFlags, &other, graph, 0ull);
    CHECK(cuGraphExecDestroy, exec);
    TELL(cuGraphLaunch, exec, stream);
    CHECK(cuGraphDestroy, graph);
    TELL(cuGraphDestroy, graph);
}

enum { THREADS = 6 };

// Allocates, copies, computes, calls back and frees, with a stream of its own.
static void *work(void *number) {
    size_t own = (size_t)number;
    static const char text[] = ".version 8.0\n.entry saxpy\n";
    handle stream, event, loaded, function;
    address x, y;
    float *host, factor = 2;
    int count = 5000, notes = 0;
    CHECK(cuCtxSetCurrent, context);
    CHECK(cuStreamCreate, &stream, (unsigned)own % 2);
    CHECK(cuEventCreate, &event, 0);
    CHECK(cuMemHostAlloc, (void **)&host, (size_t)(4 * count), 0);
    for (int round = 0; round < 25; round++) {
        size_t len = 4 * (size_t)count;
        CHECK(cuModuleLoadData, &loaded, text);
        CHECK(cuModuleGetFunction, &function, loaded, "saxpy");
        CHECK(cuMemAllocAsync, &x, len, stream);
        CHECK(cuMemAlloc_v2, &y, len);
        for (int at = 0; at < count; at++)
            host[at] = (float)(at + round + (int)own);
        CHECK(cuMemcpyHtoDAsync_v2, x, host, len, stream);
        CHECK(cuMemcpyDtoDAsync_v2, y, x, len, stream);
        void *parameters[] = {&factor, &x, &y, &count};
        launch(function, (unsigned)count, stream, parameters);
        CHECK(cuEventRecord, event, stream);
        CHECK(cuLaunchHostFunc, stream, note, &notes);
        CHECK(cuMemcpyDtoHAsync_v2, host, y, len, stream);
        if (round % 3 == 0)
            CHECK(cuEventSynchronize, event);
        CHECK(cuStreamSynchronize, stream);
        for (int at = 0; at < count; at++)
            if (host[at] != 3 * (float)(at + round + (int)own)) {
                printf("thread %zu, round %d: %f at %d\n", own, round, host[at], at);
                return NULL;
            }
        CHECK(cuMemFreeAsync, x, stream);
        CHECK(cuMemFree_v2, y);
        CHECK(cuModuleUnload, loaded);
    }
    CHECK(cuMemFreeHost, host);
    CHECK(cuEventDestroy_v2, event);
    CHECK(cuStreamDestroy_v2, stream);
    if (notes != 25)
        printf("thread %zu: %d notes\n", own, notes);
    return NULL;
}

// Frees memory into streams that end at once, or waits, for which that memory is given back.
static void *end_streams(void *number) {
    size_t own = (size_t)number;
    handle stream;
    address memory;
    CHECK(cuCtxSetCurrent, context);
    for (int round = 0; round < 500; round++) {
        if (own == 0) {
            CHECK(cuCtxSynchronize);
            continue;
        }
        CHECK(cuStreamCreate, &stream, 1u);
        CHECK(cuMemAllocAsync, &memory, (size_t)4096, stream);
        CHECK(cuMemFreeAsync, memory, stream);
        CHECK(cuStreamDestroy_v2, stream);
    }
    return NULL;
}

// Runs threads, and tells whether they have left memory behind.
static void run_threads(void *(*body)(void *)) {
    pthread_t all[THREADS];
    for (size_t at = 0; at < THREADS; at++)
        pthread_create(&all[at], NULL, body, (void *)at);
    for (size_t at = 0; at < THREADS; at++)
        pthread_join(all[at], NULL);
    size_t free = 0, total = 0;
    CHECK(cuCtxSynchronize);
    CHECK(cuMemGetInfo_v2, &free, &total);
    // The module's variable is no part of what is granted.
    printf("%s\n", total - free <= 4 ? "all is free" : "something is not free");
}

// Threads that use the device at once.
static void threads(void) {
    run_threads(work);
}

// Threads that end their streams while others wait.
static void ending(void) {
    run_threads(end_streams);
}

// Goes on with one device when the other one is lost.
static void half(void) {
    handle second;
    address memory;
    unsigned word = 0;
    CHECK(cuDevicePrimaryCtxRetain, &second, 1);
    CHECK(cuCtxPushCurrent_v2, second);
    CHECK(cuMemAlloc_v2, &memory, (size_t)64);
    CHECK(cuCtxPopCurrent_v2, NULL);
    printf("nodes %s\n", getenv("VENICE_GRANT_NODE"));
    hold();
    CHECK(cuCtxSetCurrent, second);
    CHECK(cuMemsetD32_v2, memory, 42u, (size_t)16);
    CHECK(cuMemcpyDtoH_v2, &word, memory + 60, (size_t)4);
    printf("the other one: %u\n", word);
    TELL(cuCtxSetCurrent, context);
    TELL(cuMemAlloc_v2, &memory, (size_t)64);
}

int main(int count, char **words) {
    static const struct {
        const char *name;
        void (*run)(void);
    } all[] = {{"streams", streams}, {"large", large},       {"errors", errors},     {"fault", fault},
               {"hold", hold},       {"asked", asked},       {"rows", rows},         {"pool", pool},
               {"calls", calls},     {"images", images},     {"launches", launches}, {"nonsense", nonsense},
               {"peers", peers},     {"slow", slow},         {"half", half},
               {"refused", refused}, {"threads", threads},
               {"graphs", graphs},     {"behind", behind},   {"ending", ending}};
    const char *what = count > 1 ? words[1] : "streams";
    start();
    for (size_t at = 0; at < sizeof all / sizeof *all; at++)
        if (!strcmp(what, all[at].name))
            all[at].run();
    return 0;
}
