/* libvenice: memory of the other machines in the rack, for programs that request it.
 *
 *     venice_rack *rack;
 *     venice_memory *memory;
 *     if (venice_connect(NULL, &rack) != VENICE_OK
 *         || venice_get_memory(rack, 1ull << 30, NULL, &memory) != VENICE_OK)
 *         errx(1, "%s", venice_last_error());
 *     venice_write(memory, 4096, "far away", 8);
 *
 * Every function that can fail returns a status; venice_last_error() returns the text. Handles may
 * be used by any thread, and are released by the one function named for it, during which they must
 * not be in use. They are void in a child of fork(). NULL for a handle, or for the destination of a
 * result, is VENICE_INVALID.
 *
 * docs/reference/api.md (installed in share/doc/venice) describes borrowed memory: whole slabs of
 * 16 MiB, zeros at first; bytes whose last copy is lost with its donor are VENICE_DONOR_LOST.
 */
#ifndef VENICE_H
#define VENICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The outcome of a call. */
typedef enum venice_status {
    VENICE_OK = 0,
    VENICE_UNREACHABLE = 1,   /* no rack is known, or it does not answer */
    VENICE_REFUSED = 2,       /* the rack or the kernel refused */
    VENICE_NO_ROOM = 3,       /* too little is free, or no suitable device */
    VENICE_DONOR_LOST = 4,    /* the last donor of these bytes is gone */
    VENICE_OUT_OF_RANGE = 5,  /* beyond the borrowed memory */
    VENICE_UNALIGNED = 6,     /* an atomic access at an unaligned offset */
    VENICE_INVALID = 7,       /* an invalid argument */
    VENICE_NOT_FOUND = 8,     /* no object has this key, or nothing was transferred */
    VENICE_TOO_SMALL = 9,     /* the value is longer than the buffer */
    VENICE_DEVICE_LOST = 10,  /* a device's grant has ended */
    VENICE_WOULD_BLOCK = 11,  /* arm, poll the descriptor, and repeat the call */
    VENICE_TIMED_OUT = 12,    /* the call did not complete in time */
    VENICE_CLOSED = 13,       /* the other side of a channel has closed */
    VENICE_LOST = 14,         /* the other side of a channel is gone without closing */
    VENICE_TASK_FAILED = 15   /* a task failed on an accelerator */
} venice_status;

/* The version of this library, "0.1.0". */
const char *venice_version(void);

/* The text of this thread's last error; "" without one. Valid until its next call. */
const char *venice_last_error(void);

/* A rack. */
typedef struct venice_rack venice_rack;

/* Connects to the Monitor Node at `monitor` ("host:port"); NULL: to the one named by VENICE_MONITOR,
 * otherwise to that of this machine's rack. */
venice_status venice_connect(const char *monitor, venice_rack **rack);

/* Disconnects from the rack; memory borrowed from it stays. NULL is ignored. */
void venice_disconnect(venice_rack *rack);

/* Stores the free bytes of its nodes. */
venice_status venice_free_bytes(const venice_rack *rack, uint64_t *bytes);

/* The options of borrowed memory. Begin with VENICE_OPTIONS; a NULL pointer means the same. */
typedef struct venice_options {
    size_t struct_bytes;     /* sizeof(venice_options) */
    const char *donors;      /* nodes to borrow from, "node1,node2"; NULL: any */
    const char *port;        /* "shm", "udp" or "verbs"; NULL: that of this machine's rack */
    const char *node;        /* this program's node, where nodes relay; NULL: the first */
    const char *purpose;     /* purpose shown by `venice grants`; may be NULL */
    const char *placement;   /* order of the nodes: "nearest" (near ones with much left), "spread"
                              * (evenly) or "pack" (as few as possible); NULL: the rack's default */
    const char *reclaim_to;  /* destinations of memory that a node reclaims, in order: "donors"
                              * (other nodes), "local" (this machine's memory, as far as it is
                              * available), "disk" (files in /var/tmp) or "disk:DIR"; NULL:
                              * "donors,local" */
    uint32_t most_under_way; /* most asynchronous accesses outstanding; 0: 256 */
    uint32_t copies;         /* copies of each slab, on different nodes, 1 to 3; 0: 2, or 1 if the
                              * rack has no room for 2 */
    uint32_t wait_ms;        /* if there is no room, the longest wait; 0: do not wait */
    uint32_t priority;       /* of a waiting request, higher ones first, 1 to 255; 0: 100; values
                              * above 100 are for administrators */
    uint32_t preempt;        /* while it waits, preempt grants of lower priority: 1: one's own, for
                              * administrators any user's; 0: none */
    uint64_t bandwidth_bps;  /* traffic the links to the nodes must carry, evenly over the memory,
                              * in bits per second; a node grants no more than its link has left;
                              * 0: unspecified */
    const char *devices;     /* devices to get with the memory, "accelerator:cuda nic": both or
                              * nothing, and the memory near them; venice_take_devices() returns
                              * them; NULL: none; for venice_get_memory() alone */
} venice_options;

#define VENICE_OPTIONS \
    { sizeof(venice_options), NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, NULL }

/* The state of the copies of borrowed memory. With one copy a node that dies loses what it holds;
 * with more nothing is lost, and lost copies are rebuilt on other nodes. */
typedef struct venice_copies {
    uint64_t copies;      /* required copies of each slab */
    uint64_t slabs;       /* slabs in all */
    uint64_t short_slabs; /* slabs that lack a copy now */
    uint64_t lost_slabs;  /* slabs without any copy */
    uint64_t rebuilt;     /* copies rebuilt */
} venice_copies;

/* Borrowed memory: bytes 0 to venice_len_bytes() - 1. */
typedef struct venice_memory venice_memory;

/* Borrows `len_bytes`, rounded up to whole slabs. */
venice_status venice_get_memory(const venice_rack *rack, uint64_t len_bytes,
                                const venice_options *options, venice_memory **memory);

/* Gives it back, once outstanding accesses have completed. NULL is ignored. */
void venice_free_memory(venice_memory *memory);

/* Returns its size in bytes; 0 for NULL. */
uint64_t venice_len_bytes(const venice_memory *memory);

/* Stores the present state of its copies. */
venice_status venice_get_copies(const venice_memory *memory, venice_copies *copies);

/* Fills `buffer` with the `len_bytes` bytes from `offset` on. */
venice_status venice_read(const venice_memory *memory, uint64_t offset, void *buffer,
                          size_t len_bytes);

/* Stores `len_bytes` bytes of `buffer` at `offset`; they are stored when this returns. */
venice_status venice_write(const venice_memory *memory, uint64_t offset, const void *buffer,
                           size_t len_bytes);

/* An outstanding access. */
typedef struct venice_access venice_access;

/* Starts to read; venice_wait() fills `buffer`, which must exist until then. Waits while the maximum
 * of accesses is outstanding. They take effect in the order in which they were started. */
venice_status venice_read_async(const venice_memory *memory, uint64_t offset, void *buffer,
                                size_t len_bytes, venice_access **access);

/* Starts to write; `buffer` may be reused when this returns. */
venice_status venice_write_async(const venice_memory *memory, uint64_t offset, const void *buffer,
                                 size_t len_bytes, venice_access **access);

/* Returns true if it has completed, so that venice_wait() does not wait. */
bool venice_is_over(const venice_access *access);

/* Waits until it has completed, returns its outcome, and releases the handle. */
venice_status venice_wait(venice_access *access);

/* Waits until every access started before has completed. */
venice_status venice_flush(const venice_memory *memory);

/* Adds to the eight bytes at `offset`, a little-endian number that wraps around, in one step. Stores
 * the previous value at `*old`, unless that is NULL. */
venice_status venice_fetch_add(const venice_memory *memory, uint64_t offset, uint64_t add,
                               uint64_t *old);

/* Stores `new_value` in the eight bytes at `offset` if they equal `expected`, in one step. Stores the
 * previous value at `*old`, unless that is NULL. */
venice_status venice_compare_swap(const venice_memory *memory, uint64_t offset, uint64_t expected,
                                  uint64_t new_value, uint64_t *old);

/* Borrowed memory at ordinary addresses, for arrays larger than their resident part: pages are brought
 * in when they are touched, and those not used lately are evicted. Requires what `venice run`
 * requires: Linux 6.8 and CAP_SYS_PTRACE. */
typedef struct venice_paged venice_paged;

/* Borrows `len_bytes`, rounded up to whole slabs, for regions of which at most `local_bytes` (4 MiB at
 * least) are resident, all together. */
venice_status venice_paged_open(const venice_rack *rack, uint64_t len_bytes, uint64_t local_bytes,
                                const venice_options *options, venice_paged **paged);

/* Ends the mapping of regions; the memory is given back when the last region is unmapped. NULL is
 * ignored. */
void venice_paged_close(venice_paged *paged);

/* Return the bytes of the regions that may be resident, and those that are; 0 for NULL. */
uint64_t venice_local_bytes(const venice_paged *paged);
uint64_t venice_resident_bytes(const venice_paged *paged);

/* Changes the budget while they are in use: at least 4 MiB, 32 MiB once there were pages of 2 MiB.
 * When it shrinks, excess pages are evicted as fast as they travel; this does not wait for that. */
venice_status venice_set_local_bytes(const venice_paged *paged, uint64_t local_bytes);

/* Stores the present state of its copies. */
venice_status venice_paged_get_copies(const venice_paged *paged, venice_copies *copies);

/* A region: bytes at an address, zeros at first. */
typedef struct venice_region venice_region;

/* Maps `len_bytes`, rounded up to whole pages of 4 KiB, paged in pages of `page_size`:
 * "4k" (NULL too), "64k" or "2m". */
venice_status venice_map(const venice_paged *paged, uint64_t len_bytes, const char *page_size,
                         venice_region **region);

/* Unmaps it, and discards its contents. NULL is ignored. */
void venice_unmap(venice_region *region);

/* Return its first byte, page-aligned, and its length; NULL and 0 for NULL. The program and the kernel
 * use it like any memory until it is unmapped. A page whose last donor is lost raises SIGBUS. */
void *venice_region_address(const venice_region *region);
size_t venice_region_bytes(const venice_region *region);

/* Advises on the future use of `len_bytes` from `offset` on, all pages the range touches:
 * "sequential", "random", "normal" (revokes either), "willneed" (far pages are brought in, up to half
 * the budget), "cold" (they are evicted before others), "pageout" (they are evicted now). */
venice_status venice_advise(const venice_region *region, size_t offset, size_t len_bytes,
                            const char *hint);

/* An object cache in borrowed memory: a victim store for small caches. */
typedef struct venice_cache venice_cache;

/* The options of a cache. Begin with VENICE_CACHE_OPTIONS; a NULL pointer means the same. */
typedef struct venice_cache_options {
    size_t struct_bytes; /* sizeof(venice_cache_options) */
    bool evict_oldest;   /* evict the object put first, not the one unused for the longest time */
    double max_age_s;    /* objects put longer ago are misses; 0: no limit */
} venice_cache_options;

#define VENICE_CACHE_OPTIONS { sizeof(venice_cache_options), false, 0.0 }

/* The counters of a cache. */
typedef struct venice_cache_stats {
    uint64_t objects, value_bytes, capacity_bytes;
    uint64_t puts, hits, misses, evictions, expired, lost;
} venice_cache_stats;

/* A cache in `len_bytes` of borrowed memory. `options` and `cache_options` may be NULL. */
venice_status venice_cache_open(const venice_rack *rack, uint64_t len_bytes,
                                const venice_options *options,
                                const venice_cache_options *cache_options, venice_cache **cache);

/* Gives its memory back. NULL is ignored. */
void venice_cache_close(venice_cache *cache);

/* Stores a value under a key, replacing an older one. */
venice_status venice_put(const venice_cache *cache, const void *key, size_t key_bytes,
                         const void *value, size_t value_bytes);

/* Copies the value under the key to `buffer`, and its length to `*value_bytes`, even if it
 * exceeds `buffer_bytes`: then nothing is copied (VENICE_TOO_SMALL). */
venice_status venice_get(const venice_cache *cache, const void *key, size_t key_bytes,
                         void *buffer, size_t buffer_bytes, size_t *value_bytes);

/* Removes the object under the key. */
venice_status venice_delete(const venice_cache *cache, const void *key, size_t key_bytes);

/* Stores the present state of the copies of its memory. */
venice_status venice_cache_get_copies(const venice_cache *cache, venice_copies *copies);

/* Stores its counters. */
venice_status venice_cache_get_stats(const venice_cache *cache, venice_cache_stats *stats);

/* A granted device of another node: an accelerator, storage or a network card. A program reaches its data
 * by its service (venice_open_service); a device without one is only reserved. */
typedef struct venice_device venice_device;

/* The options of devices. Begin with VENICE_DEVICE_OPTIONS; a NULL pointer means the same. */
typedef struct venice_device_options {
    size_t struct_bytes;      /* sizeof(venice_device_options) */
    const char *donors;       /* nodes to borrow from, "node1,node2"; NULL: any */
    const char *purpose;      /* purpose shown by `venice grants`; may be NULL */
    uint32_t wait_ms;         /* if none is free, the longest wait; 0: do not wait */
    uint32_t priority;        /* of a waiting request, higher ones first, 1 to 255; 0: 100; values
                               * above 100 are for administrators */
    uint32_t preempt;         /* while it waits, preempt a device of lower priority: 1: one's own, for
                               * administrators any user's; 0: none */
} venice_device_options;

#define VENICE_DEVICE_OPTIONS { sizeof(venice_device_options), NULL, NULL, 0, 0, 0 }

/* Gets one device. `want` is KIND[:CAPABILITY,...][=SIZE]: "accelerator:cuda", "nic:25Gbps", or
 * "storage=20GiB" of one device, in whole MiB; for a device that is lent whole SIZE is the least that
 * will do. VENICE_NO_ROOM: no suitable one is free. */
venice_status venice_get_device(const venice_rack *rack, const char *want,
                                const venice_device_options *options, venice_device **device);

/* Gets several devices, all or none: `wants` as "accelerator:cuda=2 nic", which is `count` = 3 devices,
 * stored in that order. */
venice_status venice_get_devices(const venice_rack *rack, const char *wants,
                                 const venice_device_options *options, venice_device **devices,
                                 size_t count);

/* Stores the `count` devices that were granted with memory (venice_options.devices), in the order of
 * their wants. What is not taken ends with the memory. No other call may use the memory meanwhile. */
venice_status venice_take_devices(venice_memory *memory, venice_device **devices, size_t count);

/* Gives it back. NULL is ignored. */
void venice_free_device(venice_device *device);

/* Checks that the grant still exists: VENICE_DEVICE_LOST if its node is gone or has taken it back. */
venice_status venice_check_device(const venice_device *device);

/* Returns the seconds until its node takes it back, for example for a request of higher priority: free
 * it before. INFINITY: its node reclaims it and waits; negative: it is not reclaimed, and for NULL. */
double venice_device_leaving_s(const venice_device *device);

/* Returns the granted bytes of storage; for other devices their size, 0 if unknown, and for NULL. */
uint64_t venice_device_bytes(const venice_device *device);

/* Returns the number of its grant, as in `venice grants`; 0 for NULL. */
uint64_t venice_device_grant(const venice_device *device);

/* Return its node, its name there ("/dev/nvidia0"), its capabilities ("gpu,cuda"), and the name of its
 * service ("" without one); "" for NULL. Valid until it is given back. */
const char *venice_device_node(const venice_device *device);
const char *venice_device_address(const venice_device *device);
const char *venice_device_capabilities(const venice_device *device);
const char *venice_device_service(const venice_device *device);

/* A connection to the service of a device: a process beside the device that ends with the grant. */
typedef struct venice_service venice_service;

/* Connects to the service of a device. Each call waits at most `timeout_ms`, at least 1; -1: without
 * limit. VENICE_INVALID: the device has no service. */
venice_status venice_open_service(const venice_device *device, int64_t timeout_ms,
                                  venice_service **service);

/* Sends one request and waits for its answer. `operation` and `code` are the service's; code 0 means done.
 * `*answer_bytes` is the room at `answer` before, and the length of the answer after the call. After an
 * error, VENICE_INVALID for a request or an answer that is too long excepted, close the connection. One
 * thread at a time. */
venice_status venice_call_service(venice_service *service, uint16_t operation, const void *request,
                                  size_t request_bytes, void *answer, size_t *answer_bytes,
                                  uint16_t *code);

/* Closes the connection. NULL is ignored. */
void venice_close_service(venice_service *service);

/* Accelerators that run tasks together. Each has two tasks in flight: one is transferred while the other
 * runs. A task whose accelerator is lost runs on another one. One thread at a time. */
typedef struct venice_pool venice_pool;

/* What runs on an accelerator. Begin with VENICE_EXECUTABLE. */
typedef enum venice_code_kind {
    VENICE_BUILT_IN = 1,      /* a function that the accelerator has */
    VENICE_OPENCL_SOURCE = 2, /* source in OpenCL C */
    VENICE_SPIR_V = 3,
    VENICE_DEVICE_BINARY = 4  /* a program that the device's driver made */
} venice_code_kind;

typedef enum venice_argument_kind {
    VENICE_VALUE = 1,         /* `value_bytes` at `value`, 4096 at most */
    VENICE_INPUT = 2,         /* a range of the input: `offset`, and `bytes` or UINT64_MAX, to its end */
    VENICE_OUTPUT = 3,        /* a range of the output */
    VENICE_LOCAL = 4          /* `bytes` of memory of a work-group */
} venice_argument_kind;

typedef struct venice_argument {
    uint32_t kind;            /* venice_argument_kind */
    const void *value;
    size_t value_bytes;
    uint64_t offset;
    uint64_t bytes;
} venice_argument;

typedef struct venice_executable {
    size_t struct_bytes;      /* sizeof(venice_executable) */
    uint32_t code_kind;       /* venice_code_kind */
    const char *name;         /* of the function or kernel: "fft" */
    const char *options;      /* of the build; NULL: none */
    const void *code;         /* NULL for a built-in function */
    size_t code_bytes;
    uint64_t global[3];       /* work items in each dimension; 0: unused. { 0, N, 0 }: one for every N
                               * bytes of the input, 4 if N is 0 */
    uint64_t local[3];        /* work items of a group; 0: the device chooses */
    const venice_argument *arguments;
    size_t argument_count;
} venice_executable;

#define VENICE_EXECUTABLE \
    { sizeof(venice_executable), VENICE_BUILT_IN, NULL, NULL, NULL, 0, { 0 }, { 0 }, NULL, 0 }

/* One run of an executable. */
typedef struct venice_task {
    const void *input;
    size_t input_bytes;
    void *output;             /* no two tasks share bytes of their outputs */
    size_t output_bytes;      /* the room at `output` before, the length of the output after the call */
} venice_task;

/* Gets `count` accelerators with mailboxes that have all the capabilities in `needs`, separated by commas:
 * "fft"; NULL: any. venice_free_pool() gives them back. */
venice_status venice_get_pool(const venice_rack *rack, uint32_t count, const char *needs,
                              const venice_device_options *options, venice_pool **pool);

/* Opens the accelerators that this program was started with, by "venice get accelerator:fft=3 -- PROGRAM". */
venice_status venice_pool_from_grants(venice_pool **pool);

/* Runs the executable on the input of each of the `count` tasks, and waits for all of them.
 * VENICE_TASK_FAILED: one failed, and no more were started. VENICE_DEVICE_LOST: all accelerators are
 * lost. After an error any output may have been written. */
venice_status venice_pool_map(venice_pool *pool, const venice_executable *executable,
                              venice_task *tasks, size_t count);

/* Returns the number of accelerators that are not lost; 0 for NULL. */
size_t venice_pool_size(const venice_pool *pool);

/* Closes the pool, and gives back the accelerators of venice_get_pool(). NULL is ignored. */
void venice_free_pool(venice_pool *pool);

/* The progress of a transferred grant. */
typedef enum venice_transfer_state {
    VENICE_TRANSFERRED = 1,      /* its donor answers the new owner alone */
    VENICE_TRANSFER_PENDING = 2, /* it is the new owner's; its donor has not confirmed that yet */
    VENICE_TRANSFER_LOST = 3     /* it is lost with its donor, or has ended since */
} venice_transfer_state;

/* A transferred grant. */
typedef struct venice_transferred {
    uint64_t grant;              /* its number, as in `venice grants` */
    uint64_t successor;          /* the number of its successor, of the new owner */
    venice_transfer_state state; /* its progress */
} venice_transferred;

/* Bytes of a transfer's number: 32 hexadecimal digits and the terminating zero. */
#define VENICE_TRANSFER_BYTES 33

/* Transfers the `count` grants of this user to `to`, "user@node", all of them or none. Their donors
 * refuse this user with the next access. The new owner has `claim_within_ms` to claim them, at most ten
 * minutes and no less than a lease; 0: a minute. Memory requested together is transferred together.
 * Stores `count` rows at `rows` and the transfer's number at `number`, each unless it is NULL. */
venice_status venice_transfer(const venice_rack *rack, const uint64_t *grants, size_t count,
                              const char *to, uint32_t claim_within_ms, venice_transferred *rows,
                              char number[VENICE_TRANSFER_BYTES]);

/* Grants that were transferred to this user. */
typedef struct venice_claimed venice_claimed;

/* Takes over what was transferred to this user, and waits for it for at most `wait_ms`. `transfer`: the
 * number of one transfer; NULL: all. VENICE_NOT_FOUND: nothing came, or all of it is lost.
 * VENICE_NO_ROOM: the quota of this user; nothing is claimed, so claim again. */
venice_status venice_claim(const venice_rack *rack, const char *transfer, uint32_t wait_ms,
                           venice_claimed **claimed);

/* Gives the grants back. NULL is ignored. */
void venice_free_claimed(venice_claimed *claimed);

/* Returns true if none of the grants was lost; false for NULL. */
bool venice_claimed_is_whole(const venice_claimed *claimed);

/* Returns the number of grants; 0 for NULL. */
size_t venice_claimed_count(const venice_claimed *claimed);

/* Return the number of a grant, as in `venice grants`, and its bytes; 0 beyond the last one. */
uint64_t venice_claimed_grant(const venice_claimed *claimed, size_t index);
uint64_t venice_claimed_bytes(const venice_claimed *claimed, size_t index);

/* Return the kind of a grant ("memory", "accelerator", "storage" or "nic"), its node, its name there
 * ("" for memory), its capabilities ("gpu,cuda"), and the name of its service ("" without one); ""
 * beyond the last one. Valid until they are given back. */
const char *venice_claimed_kind(const venice_claimed *claimed, size_t index);
const char *venice_claimed_node(const venice_claimed *claimed, size_t index);
const char *venice_claimed_address(const venice_claimed *claimed, size_t index);
const char *venice_claimed_capabilities(const venice_claimed *claimed, size_t index);
const char *venice_claimed_service(const venice_claimed *claimed, size_t index);

/* Connects to the service of a grant, like venice_open_service(). */
venice_status venice_open_claimed_service(const venice_claimed *claimed, size_t index,
                                          int64_t timeout_ms, venice_service **service);

/* Channels between two programs, without a rack. One program listens at an address, the other
 * connects:
 *
 *     "shm:PATH"          both on one host; the mode of the socket's file, 0660, admits callers
 *     "udp:HOST:PORT"     sealed under the key of both ends
 *     "verbs:HOST:PORT"   RDMA devices; registered memory only, and not sealed
 *
 * In a child of fork() every call returns VENICE_INVALID, and closing closes nothing of the parent;
 * what the child makes itself works. docs/guide/channels.md shows the whole of it. */

/* Kinds of a channel; both ends name the same one. */
typedef enum venice_kind {
    VENICE_MESSAGES = 1, /* messages in both directions: each whole, once, in order */
    VENICE_STREAM = 2,   /* bytes in both directions, like a TCP connection */
    VENICE_ADAPTIVE = 3  /* bytes from the connecting end to the accepting one, by whichever of
                          * CRMA, RDMA and QPair is measured best */
} venice_kind;

/* The options of an end. Begin with VENICE_CHANNEL_OPTIONS; a NULL pointer means the same. */
typedef struct venice_channel_options {
    size_t struct_bytes;         /* sizeof(venice_channel_options) */
    const char *key;             /* 64 hexadecimal digits, the same at both ends; NULL: none */
    uint32_t plain;              /* 1: allow traffic that the route can read and forge: udp without
                                  * a key, and verbs */
    uint32_t buffer_bytes;       /* bytes that may wait at each end, 4 KiB to 16 MiB; 0: 256 KiB.
                                  * Over udp it bounds the length of a message. VENICE_INVALID for
                                  * adaptive streams and memory */
    uint32_t connect_timeout_ms; /* the longest time to connect; 0: ten seconds. VENICE_INVALID for
                                  * ends that listen or lend */
} venice_channel_options;

#define VENICE_CHANNEL_OPTIONS { sizeof(venice_channel_options), NULL, 0, 0, 0 }

/* A listener, and one end of a connection. */
typedef struct venice_listener venice_listener;
typedef struct venice_channel venice_channel;

/* Listens at `address`; port 0 of udp: any. */
venice_status venice_listen(const char *address, venice_kind kind,
                            const venice_channel_options *options, venice_listener **listener);

/* Its address, with the chosen port; valid as long as the listener. "" for NULL. */
const char *venice_listener_address(const venice_listener *listener);

/* Accepts the next channel within `timeout_ms`: -1: without limit; 0: VENICE_WOULD_BLOCK if none
 * waits. Any threads may accept at the same time; each channel goes to one of them. */
venice_status venice_accept(venice_listener *listener, int64_t timeout_ms,
                            venice_channel **channel);

/* The descriptor to poll for input after venice_listener_arm(), and its preparation, which returns
 * false if the program must try again first. Neither waits for a thread that accepts; one thread
 * polls at a time. -1 and false for NULL. */
int venice_listener_fd(const venice_listener *listener);
bool venice_listener_arm(const venice_listener *listener);

/* Stops listening; accepted channels stay. NULL is ignored. */
void venice_close_listener(venice_listener *listener);

/* Connects to a listener of the same kind. */
venice_status venice_connect_channel(const char *address, venice_kind kind,
                                     const venice_channel_options *options,
                                     venice_channel **channel);

/* Sets the longest wait of a call: -1, at first: no limit (VENICE_TIMED_OUT after it); 0: calls do
 * not wait (VENICE_WOULD_BLOCK). */
venice_status venice_set_timeout(venice_channel *channel, int64_t timeout_ms);

/* Sends a message of 1 byte or more: all of it or nothing. Any threads may send and receive at the
 * same time; each message stays whole. */
venice_status venice_send(const venice_channel *channel, const void *message, size_t len_bytes);

/* Receives a message into `buffer` of `size_bytes`, and stores its length; 0: the other side has
 * ended its sending. VENICE_TOO_SMALL: the message stays queued, and its length is stored;
 * over shm that is what the sender names, at most 1 GiB, before all of it has arrived. */
venice_status venice_recv(const venice_channel *channel, void *buffer, size_t size_bytes,
                          size_t *len_bytes);

/* Writes the front of `bytes` to a stream, and stores how much. */
venice_status venice_stream_write(const venice_channel *channel, const void *bytes,
                                  size_t len_bytes, size_t *written_bytes);

/* Reads what has arrived, at least one byte, and stores how much; 0: the other side has ended. */
venice_status venice_stream_read(const venice_channel *channel, void *buffer, size_t size_bytes,
                                 size_t *len_bytes);

/* Ends the sending: the other side gets all that was sent, then the end. Receiving continues. */
venice_status venice_shutdown(const venice_channel *channel);

/* The descriptor to poll for input after venice_arm(), and its preparation, which returns false if
 * the program must try again first. It becomes readable when anything may have changed, room to
 * send included. -1 and false for NULL. */
int venice_channel_fd(const venice_channel *channel);
bool venice_arm(const venice_channel *channel);

/* Closes this end; what was sent still arrives. NULL is ignored. */
void venice_close_channel(venice_channel *channel);

/* Memory of this program that others read and write, and memory of another program. */
typedef struct venice_lent venice_lent;
typedef struct venice_remote venice_remote;

/* Lends `len_bytes` of zeros, rounded up to 16 MiB, at `address`. */
venice_status venice_lend(const char *address, uint64_t len_bytes,
                          const venice_channel_options *options, venice_lent **lent);
const char *venice_lent_address(const venice_lent *lent);
venice_status venice_lent_read(const venice_lent *lent, uint64_t offset, void *buffer,
                               size_t len_bytes);
venice_status venice_lent_write(const venice_lent *lent, uint64_t offset, const void *bytes,
                                size_t len_bytes);

/* Add to the little-endian number in eight bytes, or replace them if they equal `expected`,
 * atomically; store the old value. */
venice_status venice_lent_fetch_add(const venice_lent *lent, uint64_t offset, uint64_t add,
                                    uint64_t *old);
venice_status venice_lent_compare_swap(const venice_lent *lent, uint64_t offset, uint64_t expected,
                                       uint64_t new_value, uint64_t *old);

/* Stops lending: later accesses of others are VENICE_LOST. NULL is ignored. */
void venice_end_lent(venice_lent *lent);

/* Connects to the first `len_bytes` of lent memory, a multiple of 16 MiB. */
venice_status venice_connect_remote(const char *address, uint64_t len_bytes,
                                    const venice_channel_options *options,
                                    venice_remote **remote);
venice_status venice_remote_read(venice_remote *remote, uint64_t offset, void *buffer,
                                 size_t len_bytes);

/* Writes; the lender's memory has it when this returns. */
venice_status venice_remote_write(venice_remote *remote, uint64_t offset, const void *bytes,
                                  size_t len_bytes);

/* Adds to the little-endian number in eight bytes, or replaces them if they equal `expected`,
 * atomically; stores the old value. */
venice_status venice_remote_fetch_add(venice_remote *remote, uint64_t offset, uint64_t add,
                                      uint64_t *old);
venice_status venice_remote_compare_swap(venice_remote *remote, uint64_t offset,
                                         uint64_t expected, uint64_t new_value, uint64_t *old);
void venice_disconnect_remote(venice_remote *remote);

#ifdef __cplusplus
}
#endif

#endif
