/* Command buffers (cl_khr_command_buffer) beside the same commands without one.
 *
 * usage: opencl_command_buffer both         every command, in both forms of the functions
 *        opencl_command_buffer rate N       times of N launches, plain and replayed
 *        opencl_command_buffer steady STOP  replays until the file STOP exists; STOP.ready once it works
 * It ends with 3 if anything is wrong. */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <CL/cl_ext.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WORDS 4096
#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            fprintf(stderr, "line %d: %s (%d)\n", __LINE__, #condition, (int)e);  \
            exit(3);                                                              \
        }                                                                         \
    } while (0)
#define OK(call) CHECK((e = (call)) == CL_SUCCESS)

static const char *SOURCE =
    "kernel void add(global uint *a, uint k) { a[get_global_id(0)] += k; }"
    "kernel void mul(global uint *a, local uint *l, uint k) {"
    "  size_t i = get_local_id(0); l[i] = a[get_global_id(0)]; barrier(CLK_LOCAL_MEM_FENCE);"
    "  a[get_global_id(0)] = l[i] * k; }";

static cl_int e;
static cl_platform_id platform;
static cl_device_id device;
static cl_context context;
static cl_program program;
static cl_uint start[WORDS];

/* Version 0.9.5 and newer: properties in front of the command's own parameters. */
typedef cl_int (*new_fill)(cl_command_buffer_khr, cl_command_queue, const void *, cl_mem, const void *, size_t,
                           size_t, size_t, cl_uint, const cl_sync_point_khr *, cl_sync_point_khr *, void *);
typedef cl_int (*new_copy)(cl_command_buffer_khr, cl_command_queue, const void *, cl_mem, cl_mem, size_t, size_t,
                           size_t, cl_uint, const cl_sync_point_khr *, cl_sync_point_khr *, void *);
typedef cl_int (*new_barrier)(cl_command_buffer_khr, cl_command_queue, const void *, cl_uint,
                              const cl_sync_point_khr *, cl_sync_point_khr *, void *);
typedef cl_int (*new_fill_image)(cl_command_buffer_khr, cl_command_queue, const void *, cl_mem, const void *,
                                 const size_t *, const size_t *, cl_uint, const cl_sync_point_khr *,
                                 cl_sync_point_khr *, void *);

static clCreateCommandBufferKHR_fn create;
static clFinalizeCommandBufferKHR_fn finalize;
static clRetainCommandBufferKHR_fn retain;
static clReleaseCommandBufferKHR_fn release;
static clEnqueueCommandBufferKHR_fn replay;
static clGetCommandBufferInfoKHR_fn info;
static clCommandNDRangeKernelKHR_fn launch;
static clCommandBarrierWithWaitListKHR_fn barrier;
static clCommandCopyBufferKHR_fn copy;
static clCommandCopyBufferRectKHR_fn copy_rect;
static clCommandCopyBufferToImageKHR_fn buffer_to_image;
static clCommandCopyImageKHR_fn copy_image;
static clCommandCopyImageToBufferKHR_fn image_to_buffer;
static clCommandFillBufferKHR_fn fill;
static clCommandFillImageKHR_fn fill_image;

static void *function(const char *name) {
    void *found = clGetExtensionFunctionAddressForPlatform(platform, name);
    CHECK(found != NULL);
    return found;
}

static void set_up(void) {
    cl_uint count;
    char words[4096];
    OK(clGetPlatformIDs(1, &platform, &count));
    OK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
    OK(clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS, sizeof words, words, NULL));
    CHECK(strstr(words, "cl_khr_command_buffer"));
    create = (clCreateCommandBufferKHR_fn)function("clCreateCommandBufferKHR");
    finalize = (clFinalizeCommandBufferKHR_fn)function("clFinalizeCommandBufferKHR");
    retain = (clRetainCommandBufferKHR_fn)function("clRetainCommandBufferKHR");
    release = (clReleaseCommandBufferKHR_fn)function("clReleaseCommandBufferKHR");
    replay = (clEnqueueCommandBufferKHR_fn)function("clEnqueueCommandBufferKHR");
    info = (clGetCommandBufferInfoKHR_fn)function("clGetCommandBufferInfoKHR");
    launch = (clCommandNDRangeKernelKHR_fn)function("clCommandNDRangeKernelKHR");
    barrier = (clCommandBarrierWithWaitListKHR_fn)function("clCommandBarrierWithWaitListKHR");
    copy = (clCommandCopyBufferKHR_fn)function("clCommandCopyBufferKHR");
    copy_rect = (clCommandCopyBufferRectKHR_fn)function("clCommandCopyBufferRectKHR");
    buffer_to_image = (clCommandCopyBufferToImageKHR_fn)function("clCommandCopyBufferToImageKHR");
    copy_image = (clCommandCopyImageKHR_fn)function("clCommandCopyImageKHR");
    image_to_buffer = (clCommandCopyImageToBufferKHR_fn)function("clCommandCopyImageToBufferKHR");
    fill = (clCommandFillBufferKHR_fn)function("clCommandFillBufferKHR");
    fill_image = (clCommandFillImageKHR_fn)function("clCommandFillImageKHR");
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &e);
    CHECK(context);
    program = clCreateProgramWithSource(context, 1, &SOURCE, NULL, &e);
    OK(clBuildProgram(program, 1, &device, "", NULL, NULL));
    for (int at = 0; at < WORDS; at++) start[at] = at * 2654435761u;
}

static cl_kernel kernel(const char *name) {
    cl_kernel made = clCreateKernel(program, name, &e);
    CHECK(made);
    return made;
}

static cl_command_queue queue_of(cl_command_queue_properties bits) {
    cl_queue_properties list[] = {CL_QUEUE_PROPERTIES, bits, 0};
    cl_command_queue queue = clCreateCommandQueueWithProperties(context, device, list, &e);
    CHECK(queue);
    return queue;
}

/* Objects of one way to run the commands. */
struct set {
    cl_mem a, b, image, other;
    cl_kernel add, mul;
};

static const size_t ORIGIN[3] = {0, 0, 0}, PART[3] = {8, 4, 0}, BOX[3] = {16, 16, 1}, SMALL[3] = {4, 4, 1};
static const size_t FROM[3] = {64, 2, 0}, TO[3] = {128, 5, 0}, RECT[3] = {32, 3, 1};
static const cl_uint COLOR[4] = {1, 2, 3, 255};
static const size_t ALL = WORDS, GROUP = 64, HALF = WORDS / 2;

static struct set make_set(void) {
    struct set set;
    cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    cl_image_desc shape = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 16, .image_height = 16};
    set.a = clCreateBuffer(context, CL_MEM_COPY_HOST_PTR, sizeof start, start, &e);
    set.b = clCreateBuffer(context, CL_MEM_COPY_HOST_PTR, sizeof start, start, &e);
    set.image = clCreateImage(context, CL_MEM_READ_WRITE, &format, &shape, NULL, &e);
    set.other = clCreateImage(context, CL_MEM_READ_WRITE, &format, &shape, NULL, &e);
    CHECK(set.a && set.b && set.image && set.other);
    set.add = kernel("add");
    set.mul = kernel("mul");
    OK(clSetKernelArg(set.add, 0, sizeof set.a, &set.a));
    OK(clSetKernelArg(set.mul, 0, sizeof set.b, &set.b));
    OK(clSetKernelArg(set.mul, 1, GROUP * 4, NULL));
    return set;
}

static void drop_set(struct set *set) {
    clReleaseMemObject(set->a);
    clReleaseMemObject(set->b);
    clReleaseMemObject(set->image);
    clReleaseMemObject(set->other);
    clReleaseKernel(set->add);
    clReleaseKernel(set->mul);
}

static void set_number(cl_kernel kernel, cl_uint index, cl_uint number) {
    OK(clSetKernelArg(kernel, index, sizeof number, &number));
}

/* The commands, one after the other. */
static void run_plain(cl_command_queue queue, struct set *set) {
    cl_uint seven = 7;
    OK(clEnqueueFillBuffer(queue, set->a, &seven, 4, 0, 1024, 0, NULL, NULL));
    OK(clFinish(queue));
    set_number(set->add, 1, 3);
    OK(clEnqueueNDRangeKernel(queue, set->add, 1, NULL, &ALL, NULL, 0, NULL, NULL));
    OK(clFinish(queue));
    OK(clEnqueueCopyBuffer(queue, set->a, set->b, 0, 4 * HALF, 4 * HALF, 0, NULL, NULL));
    OK(clFinish(queue));
    set_number(set->mul, 2, 5);
    OK(clEnqueueNDRangeKernel(queue, set->mul, 1, &HALF, &HALF, &GROUP, 0, NULL, NULL));
    OK(clFinish(queue));
    OK(clEnqueueCopyBufferRect(queue, set->b, set->a, FROM, TO, RECT, 256, 0, 256, 0, 0, NULL, NULL));
    OK(clEnqueueCopyBufferToImage(queue, set->b, set->image, 4, ORIGIN, BOX, 0, NULL, NULL));
    OK(clFinish(queue));
    OK(clEnqueueFillImage(queue, set->image, COLOR, PART, SMALL, 0, NULL, NULL));
    OK(clFinish(queue));
    OK(clEnqueueCopyImage(queue, set->image, set->other, ORIGIN, ORIGIN, BOX, 0, NULL, NULL));
    OK(clFinish(queue));
    OK(clEnqueueCopyImageToBuffer(queue, set->other, set->b, ORIGIN, BOX, 8192, 0, NULL, NULL));
    set_number(set->add, 1, 11);
    OK(clEnqueueNDRangeKernel(queue, set->add, 1, NULL, &HALF, NULL, 0, NULL, NULL));
    OK(clFinish(queue));
}

/* Records the same; sync points are all the order that it needs. */
static void record(cl_command_buffer_khr buffer, struct set *set, int is_new) {
    cl_uint seven = 7;
    cl_sync_point_khr p[12];
    if (is_new)
        OK(((new_fill)(void *)fill)(buffer, NULL, NULL, set->a, &seven, 4, 0, 1024, 0, NULL, &p[0], NULL));
    else
        OK(fill(buffer, NULL, set->a, &seven, 4, 0, 1024, 0, NULL, &p[0], NULL));
    set_number(set->add, 1, 3);
    OK(launch(buffer, NULL, NULL, set->add, 1, NULL, &ALL, NULL, 1, &p[0], &p[1], NULL));
    /* The recorded argument stays 3. */
    set_number(set->add, 1, 11);
    if (is_new)
        OK(((new_copy)(void *)copy)(buffer, NULL, NULL, set->a, set->b, 0, 4 * HALF, 4 * HALF, 1, &p[1], &p[2],
                                    NULL));
    else
        OK(copy(buffer, NULL, set->a, set->b, 0, 4 * HALF, 4 * HALF, 1, &p[1], &p[2], NULL));
    set_number(set->mul, 2, 5);
    OK(launch(buffer, NULL, NULL, set->mul, 1, &HALF, &HALF, &GROUP, 1, &p[2], &p[3], NULL));
    /* Without sync points of its own: a barrier is behind all before it, and before all behind it. */
    if (is_new)
        OK(((new_barrier)(void *)barrier)(buffer, NULL, NULL, 0, NULL, &p[4], NULL));
    else
        OK(barrier(buffer, NULL, 0, NULL, &p[4], NULL));
    OK(copy_rect(buffer, NULL, set->b, set->a, FROM, TO, RECT, 256, 0, 256, 0, 0, NULL, &p[5], NULL));
    OK(buffer_to_image(buffer, NULL, set->b, set->image, 4, ORIGIN, BOX, 0, NULL, &p[6], NULL));
    if (is_new)
        OK(((new_fill_image)(void *)fill_image)(buffer, NULL, NULL, set->image, COLOR, PART, SMALL, 1, &p[6],
                                                &p[7], NULL));
    else
        OK(fill_image(buffer, NULL, set->image, COLOR, PART, SMALL, 1, &p[6], &p[7], NULL));
    OK(copy_image(buffer, NULL, set->image, set->other, ORIGIN, ORIGIN, BOX, 1, &p[7], &p[8], NULL));
    OK(image_to_buffer(buffer, NULL, set->other, set->b, ORIGIN, BOX, 8192, 1, &p[8], &p[9], NULL));
    OK(launch(buffer, NULL, NULL, set->add, 1, NULL, &HALF, NULL, 1, &p[5], NULL, NULL));
    /* And this one is no more than the last one set here. */
    set_number(set->add, 1, 1000);
}

static void compare(cl_command_queue queue, struct set *plain, struct set *recorded) {
    cl_uint is[WORDS], has[WORDS];
    cl_mem pairs[2][2] = {{plain->a, recorded->a}, {plain->b, recorded->b}};
    for (int at = 0; at < 2; at++) {
        OK(clEnqueueReadBuffer(queue, pairs[at][0], CL_TRUE, 0, sizeof is, is, 0, NULL, NULL));
        OK(clEnqueueReadBuffer(queue, pairs[at][1], CL_TRUE, 0, sizeof has, has, 0, NULL, NULL));
        for (int word = 0; word < WORDS; word++) {
            if (is[word] != has[word]) {
                fprintf(stderr, "buffer %d word %d: %u, not %u\n", at, word, has[word], is[word]);
                exit(3);
            }
        }
    }
}

static void run_both(cl_command_queue_properties bits, int is_new, cl_command_buffer_flags_khr flags) {
    cl_command_queue queue = queue_of(bits | CL_QUEUE_PROFILING_ENABLE);
    cl_command_buffer_properties_khr list[] = {CL_COMMAND_BUFFER_FLAGS_KHR, flags, 0};
    struct set plain = make_set(), recorded = make_set();
    cl_command_buffer_khr buffer = create(1, &queue, flags ? list : NULL, &e);
    CHECK(buffer);
    cl_command_buffer_state_khr state;
    OK(info(buffer, CL_COMMAND_BUFFER_STATE_KHR, sizeof state, &state, NULL));
    CHECK(state == CL_COMMAND_BUFFER_STATE_RECORDING_KHR);
    CHECK((e = replay(0, NULL, buffer, 0, NULL, NULL)) == CL_INVALID_OPERATION);
    record(buffer, &recorded, is_new);
    OK(finalize(buffer));
    CHECK((e = finalize(buffer)) == CL_INVALID_OPERATION);
    CHECK((e = barrier(buffer, NULL, 0, NULL, NULL, NULL)) == CL_INVALID_OPERATION);
    /* Nothing of what was recorded is the program's any more. */
    struct set kept = recorded;
    clReleaseKernel(recorded.add);
    clReleaseKernel(recorded.mul);
    for (int turn = 0; turn < 4; turn++) {
        run_plain(queue, &plain);
        cl_event gate = clCreateUserEvent(context, &e), done;
        OK(replay(0, NULL, buffer, 1, &gate, &done));
        OK(clFlush(queue));
        cl_int status;
        OK(clGetEventInfo(done, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
        CHECK(status > CL_COMPLETE);
        OK(clSetUserEventStatus(gate, CL_COMPLETE));
        OK(clWaitForEvents(1, &done));
        cl_command_type type;
        OK(clGetEventInfo(done, CL_EVENT_COMMAND_TYPE, sizeof type, &type, NULL));
        CHECK(type == CL_COMMAND_COMMAND_BUFFER_KHR);
        cl_ulong began, ended;
        OK(clGetEventProfilingInfo(done, CL_PROFILING_COMMAND_START, sizeof began, &began, NULL));
        OK(clGetEventProfilingInfo(done, CL_PROFILING_COMMAND_END, sizeof ended, &ended, NULL));
        CHECK(began && began < ended);
        OK(clReleaseEvent(gate));
        OK(clReleaseEvent(done));
        compare(queue, &plain, &kept);
    }
    /* Behind one another without a wait, and on another queue of the device. */
    run_plain(queue, &plain);
    run_plain(queue, &plain);
    if (flags == 0 || bits == 0) {
        OK(replay(0, NULL, buffer, 0, NULL, NULL));
        OK(replay(1, &queue, buffer, 0, NULL, NULL));
    } else {
        cl_event first;
        OK(replay(0, NULL, buffer, 0, NULL, &first));
        OK(replay(1, &queue, buffer, 1, &first, NULL));
        OK(clReleaseEvent(first));
    }
    OK(clFinish(queue));
    compare(queue, &plain, &kept);
    cl_command_queue loose = queue_of(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    run_plain(queue, &plain);
    OK(replay(1, &loose, buffer, 0, NULL, NULL));
    OK(clFinish(loose));
    compare(queue, &plain, &kept);
    /* A wait list that fails. */
    {
        cl_event gate = clCreateUserEvent(context, &e), done;
        OK(replay(0, NULL, buffer, 1, &gate, &done));
        OK(clSetUserEventStatus(gate, -5));
        CHECK((e = clWaitForEvents(1, &done)) == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
        OK(clReleaseEvent(gate));
        OK(clReleaseEvent(done));
        compare(queue, &plain, &kept);
    }
    cl_uint references;
    OK(retain(buffer));
    OK(info(buffer, CL_COMMAND_BUFFER_REFERENCE_COUNT_KHR, sizeof references, &references, NULL));
    CHECK(references == 2);
    OK(release(buffer));
    OK(release(buffer));
    CHECK((e = release(buffer)) == CL_INVALID_COMMAND_BUFFER_KHR);
    recorded.add = kernel("add");
    recorded.mul = kernel("mul");
    drop_set(&plain);
    drop_set(&recorded);
    OK(clReleaseCommandQueue(queue));
    OK(clReleaseCommandQueue(loose));
}

/* A barrier of a queue without an order also comes before a read that waits for nothing else. */
static void run_barrier(void) {
    cl_command_queue queue = queue_of(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    struct set set = make_set();
    cl_uint read[WORDS];
    for (cl_uint turn = 1; turn <= 50; turn++) {
        set_number(set.add, 1, 1);
        OK(clEnqueueNDRangeKernel(queue, set.add, 1, NULL, &ALL, NULL, 0, NULL, NULL));
        OK(clEnqueueBarrierWithWaitList(queue, 0, NULL, NULL));
        OK(clEnqueueReadBuffer(queue, set.a, CL_TRUE, 0, sizeof read, read, 0, NULL, NULL));
        CHECK(read[0] == turn && read[WORDS - 1] == start[WORDS - 1] + turn);
    }
    drop_set(&set);
    OK(clReleaseCommandQueue(queue));
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void run_rate(int count) {
    cl_command_queue queue = queue_of(0);
    struct set set = make_set();
    set_number(set.add, 1, 1);
    cl_command_buffer_khr buffer = create(1, &queue, NULL, &e);
    CHECK(buffer);
    for (int at = 0; at < count; at++)
        OK(launch(buffer, NULL, NULL, set.add, 1, NULL, &GROUP, NULL, 0, NULL, NULL, NULL));
    OK(finalize(buffer));
    double plain = 1e9, replayed = 1e9, calls = 1e9;
    for (int turn = 0; turn < 20; turn++) {
        double began = now();
        for (int at = 0; at < count; at++)
            OK(clEnqueueNDRangeKernel(queue, set.add, 1, NULL, &GROUP, NULL, 0, NULL, NULL));
        OK(clFinish(queue));
        double middle = now();
        OK(replay(0, NULL, buffer, 0, NULL, NULL));
        double called = now();
        OK(clFinish(queue));
        double ended = now();
        if (middle - began < plain) plain = middle - began;
        if (ended - middle < replayed) replayed = ended - middle;
        if (called - middle < calls) calls = called - middle;
    }
    printf("%d launches: plain %.0f us, replayed %.0f us, its call %.1f us\n", count, plain * 1e6, replayed * 1e6,
           calls * 1e6);
}

static void run_steady(const char *stop) {
    cl_command_queue queue = queue_of(0);
    struct set plain = make_set(), recorded = make_set();
    cl_command_buffer_khr buffer = create(1, &queue, NULL, &e);
    char ready[4096];
    CHECK(buffer);
    record(buffer, &recorded, 0);
    OK(finalize(buffer));
    snprintf(ready, sizeof ready, "%s.ready", stop);
    int turns = 0;
    do {
        run_plain(queue, &plain);
        OK(replay(0, NULL, buffer, 0, NULL, NULL));
        OK(clFinish(queue));
        compare(queue, &plain, &recorded);
        if (turns++ == 0) fclose(fopen(ready, "w"));
    } while (access(stop, F_OK) != 0);
    printf("right %d\n", turns);
}

int main(int count, char **words) {
    set_up();
    if (count == 3 && strcmp(words[1], "rate") == 0) {
        run_rate(atoi(words[2]));
    } else if (count == 3 && strcmp(words[1], "steady") == 0) {
        run_steady(words[2]);
    } else {
        for (int is_new = 1; is_new >= 0; is_new--) {
            run_both(0, is_new, 0);
            run_both(0, is_new, CL_COMMAND_BUFFER_SIMULTANEOUS_USE_KHR);
            run_both(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, is_new, 0);
            run_both(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, is_new, CL_COMMAND_BUFFER_SIMULTANEOUS_USE_KHR);
        }
        run_barrier();
        printf("right\n");
    }
    return 0;
}
