/* libvenice: memory of the other machines in the rack, for programs that ask for it.
 *
 *     venice_rack *rack;
 *     venice_memory *memory;
 *     if (venice_connect(NULL, &rack) != VENICE_OK
 *         || venice_get_memory(rack, 1ull << 30, NULL, &memory) != VENICE_OK)
 *         errx(1, "%s", venice_last_error());
 *     venice_write(memory, 4096, "far away", 8);
 *
 * Every function that can fail returns a status; venice_last_error() has the words. Handles may be
 * used by any thread, and are given back by the one function named for it, which nothing else may
 * be using then. They mean nothing in a child of fork(). Passing NULL for a handle, or for a place
 * that a result goes to, is VENICE_INVALID.
 *
 * What holds for borrowed memory is in docs/reference/api.md: whole slabs of 16 MiB, zeros at first, and what
 * only a lost donor had is VENICE_DONOR_LOST.
 */
#ifndef VENICE_H
#define VENICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What came of a call. */
typedef enum venice_status {
    VENICE_OK = 0,
    VENICE_UNREACHABLE = 1,   /* no rack is known, or nobody answers */
    VENICE_REFUSED = 2,       /* the rack or the kernel said no */
    VENICE_NO_ROOM = 3,       /* not so much is free, or no device that would do */
    VENICE_DONOR_LOST = 4,    /* the last donor that had these bytes is gone */
    VENICE_OUT_OF_RANGE = 5,  /* beyond what was borrowed */
    VENICE_UNALIGNED = 6,     /* an atomic access not to a multiple of eight */
    VENICE_INVALID = 7,       /* an argument that makes no sense */
    VENICE_NOT_FOUND = 8,     /* no object has this key */
    VENICE_TOO_SMALL = 9,     /* the value is longer than the buffer */
    VENICE_DEVICE_LOST = 10   /* a device's grant is over: it may be another's */
} venice_status;

/* The version of this library, "0.1.0". */
const char *venice_version(void);

/* What went wrong in this thread's last call that did; "" if none. Valid until its next call. */
const char *venice_last_error(void);

/* A rack. */
typedef struct venice_rack venice_rack;

/* Connects to the Monitor Node at `monitor` ("host:port"); NULL: to the one that VENICE_MONITOR
 * names, else to that of the rack of this machine. */
venice_status venice_connect(const char *monitor, venice_rack **rack);

/* Forgets the rack; what was borrowed from it stays. NULL is nothing. */
void venice_disconnect(venice_rack *rack);

/* What its nodes have free. */
venice_status venice_free_bytes(const venice_rack *rack, uint64_t *bytes);

/* How memory is borrowed. Begin with VENICE_OPTIONS; NULL for all of it means the same. */
typedef struct venice_options {
    size_t struct_bytes;     /* sizeof(venice_options) */
    const char *donors;      /* nodes to borrow from, "node1,node2"; NULL: any */
    const char *port;        /* "shm", "udp" or "verbs"; NULL: as the rack of this machine says */
    const char *node;        /* where nodes relay for each other: this program's; NULL: the first */
    const char *purpose;     /* what for, in `venice grants`; may be NULL */
    const char *placement;   /* which nodes are borrowed from first: "nearest" (near ones with much
                              * left), "spread" (all alike) or "pack" (as few as can be); NULL: as
                              * the rack does */
    const char *reclaim_to;  /* where to put what a node wants back, in this order: "donors" (other
                              * nodes), "local" (this machine's memory, as far as it is available),
                              * "disk" (files in /var/tmp) or "disk:DIR"; NULL: "donors,local" */
    uint32_t most_under_way; /* asynchronous accesses at a time; 0: 256 */
    uint32_t copies;         /* of each slab, on different nodes, 1 to 3; 0: 2, or 1 where the rack
                              * has no room for 2 */
    uint32_t wait_ms;        /* where there is no room, wait in line so long at most; 0: do not */
    uint32_t priority;       /* in line, higher ones first, 1 to 255; 0: 100, above which is for
                              * administrators */
    uint32_t preempt;        /* while it waits, have grants of lower priority called back: 1: one's
                              * own, for administrators anybody's; 0: none */
    uint64_t bandwidth_bps;  /* traffic that the links to the nodes have to carry, evenly over the
                              * memory, in bits a second: a node gives no more than its link has left
                              * for; 0: it does not say */
} venice_options;

#define VENICE_OPTIONS \
    { sizeof(venice_options), NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0 }

/* How the copies of borrowed memory are. With one copy a node that dies takes with it what it
 * holds; with more nothing is lost, and lost copies are built anew on other nodes. */
typedef struct venice_copies {
    uint64_t copies;      /* of each slab, that there are to be */
    uint64_t slabs;       /* slabs there are */
    uint64_t short_slabs; /* slabs that lack one now */
    uint64_t lost_slabs;  /* slabs that have none any more */
    uint64_t rebuilt;     /* copies that were built anew */
} venice_copies;

/* Borrowed memory: bytes 0 to venice_len_bytes() - 1. */
typedef struct venice_memory venice_memory;

/* Borrows `len_bytes`, rounded up to whole slabs. */
venice_status venice_get_memory(const venice_rack *rack, uint64_t len_bytes,
                                const venice_options *options, venice_memory **memory);

/* Gives it back, once what is under way is over. NULL is nothing. */
void venice_free_memory(venice_memory *memory);

/* How much it is; 0 for NULL. */
uint64_t venice_len_bytes(const venice_memory *memory);

/* How its copies are just now. */
venice_status venice_get_copies(const venice_memory *memory, venice_copies *copies);

/* Fills `buffer` with the `len_bytes` bytes from `offset` on. */
venice_status venice_read(const venice_memory *memory, uint64_t offset, void *buffer,
                          size_t len_bytes);

/* Stores `len_bytes` bytes of `buffer` at `offset`; they are there when this returns. */
venice_status venice_write(const venice_memory *memory, uint64_t offset, const void *buffer,
                           size_t len_bytes);

/* An access that is under way. */
typedef struct venice_access venice_access;

/* Starts to read; venice_wait() fills `buffer`, which must be there until then. Waits while as many
 * accesses are under way as may be. They take effect in the order in which they were started. */
venice_status venice_read_async(const venice_memory *memory, uint64_t offset, void *buffer,
                                size_t len_bytes, venice_access **access);

/* Starts to write; `buffer` may be used again when this returns. */
venice_status venice_write_async(const venice_memory *memory, uint64_t offset, const void *buffer,
                                 size_t len_bytes, venice_access **access);

/* Is it over, so that venice_wait() will not have to wait? */
bool venice_is_over(const venice_access *access);

/* Waits until it is over, says what came of it, and ends the handle. */
venice_status venice_wait(venice_access *access);

/* Waits until every access started before is over. */
venice_status venice_flush(const venice_memory *memory);

/* Adds to the eight bytes at `offset`, a little-endian number that wraps around, as one step. What
 * was there before goes to `*old`, unless that is NULL. */
venice_status venice_fetch_add(const venice_memory *memory, uint64_t offset, uint64_t add,
                               uint64_t *old);

/* Puts `new_value` in the place of the eight bytes at `offset` if they are `expected`, as one step.
 * What was there before goes to `*old`, unless that is NULL. */
venice_status venice_compare_swap(const venice_memory *memory, uint64_t offset, uint64_t expected,
                                  uint64_t new_value, uint64_t *old);

/* Borrowed memory at addresses like any other, for arrays larger than what is resident of them: pages
 * come when they are touched, and those not used lately leave. Needs what `venice run` needs: Linux
 * 6.8 and CAP_SYS_PTRACE. */
typedef struct venice_paged venice_paged;

/* Borrows `len_bytes`, rounded up to whole slabs, for regions of which at most `local_bytes` (4 MiB at
 * least) are resident, all together. */
venice_status venice_paged_open(const venice_rack *rack, uint64_t len_bytes, uint64_t local_bytes,
                                const venice_options *options, venice_paged **paged);

/* No more regions from here; it is given back when the last of them is unmapped. NULL is nothing. */
void venice_paged_close(venice_paged *paged);

/* What of the regions may be resident, and what is; 0 for NULL. */
uint64_t venice_local_bytes(const venice_paged *paged);
uint64_t venice_resident_bytes(const venice_paged *paged);

/* Another budget while they are in use: 4 MiB at least, 32 MiB once there were pages of 2 MiB. When it
 * shrinks, pages leave within the time that they take to travel, which this does not wait for. */
venice_status venice_set_local_bytes(const venice_paged *paged, uint64_t local_bytes);

/* How its copies are just now. */
venice_status venice_paged_get_copies(const venice_paged *paged, venice_copies *copies);

/* A region: bytes at an address, zeros at first. */
typedef struct venice_region venice_region;

/* Maps `len_bytes`, rounded up to whole pages of 4 KiB, which come and go by pages of `page_size`:
 * "4k" (NULL too), "64k" or "2m". */
venice_status venice_map(const venice_paged *paged, uint64_t len_bytes, const char *page_size,
                         venice_region **region);

/* Unmaps it, and forgets what is in it. NULL is nothing. */
void venice_unmap(venice_region *region);

/* Its first byte, that of a page, and its length; NULL and 0 for NULL. The program and the kernel use
 * it as they use any memory until it is unmapped. A page whose last donor is lost is SIGBUS. */
void *venice_region_address(const venice_region *region);
size_t venice_region_bytes(const venice_region *region);

/* Says how `len_bytes` from `offset` on will be used, all pages that these lie on: "sequential",
 * "random", "normal" (takes either back), "willneed" (far pages are brought in, half the budget
 * of them at most), "cold" (they leave before others), "pageout" (they have left). */
venice_status venice_advise(const venice_region *region, size_t offset, size_t len_bytes,
                            const char *hint);

/* An object cache in borrowed memory: a victim store for caches that are too small. */
typedef struct venice_cache venice_cache;

/* How a cache behaves. Begin with VENICE_CACHE_OPTIONS; NULL for all of it means the same. */
typedef struct venice_cache_options {
    size_t struct_bytes; /* sizeof(venice_cache_options) */
    bool evict_oldest;   /* the object put first leaves, not the one unused for the longest time */
    double max_age_s;    /* objects put longer ago are not found; 0: they keep */
} venice_cache_options;

#define VENICE_CACHE_OPTIONS { sizeof(venice_cache_options), false, 0.0 }

/* What a cache has done. */
typedef struct venice_cache_stats {
    uint64_t objects, value_bytes, capacity_bytes;
    uint64_t puts, hits, misses, evictions, expired, lost;
} venice_cache_stats;

/* A cache in `len_bytes` of borrowed memory. `options`, `cache_options`: NULL for neither. */
venice_status venice_cache_open(const venice_rack *rack, uint64_t len_bytes,
                                const venice_options *options,
                                const venice_cache_options *cache_options, venice_cache **cache);

/* Gives it back. NULL is nothing. */
void venice_cache_close(venice_cache *cache);

/* Stores a value under a key, in the place of what was there. */
venice_status venice_put(const venice_cache *cache, const void *key, size_t key_bytes,
                         const void *value, size_t value_bytes);

/* Copies the value under the key to `buffer`, and its length to `*value_bytes`, also if that is
 * more than `buffer_bytes`: then nothing is copied (VENICE_TOO_SMALL). */
venice_status venice_get(const venice_cache *cache, const void *key, size_t key_bytes,
                         void *buffer, size_t buffer_bytes, size_t *value_bytes);

/* Takes the object under the key away. */
venice_status venice_delete(const venice_cache *cache, const void *key, size_t key_bytes);

/* How the copies of its memory are just now. */
venice_status venice_cache_get_copies(const venice_cache *cache, venice_copies *copies);

/* What it has done so far. */
venice_status venice_cache_get_stats(const venice_cache *cache, venice_cache_stats *stats);

/* A device of another node, held: an accelerator, storage or a network card. The grant holds it and
 * no more: how its data is reached from here is the holder's business. */
typedef struct venice_device venice_device;

/* Which device, and what for. Begin with VENICE_DEVICE_OPTIONS; NULL for all of it means the same. */
typedef struct venice_device_options {
    size_t struct_bytes;      /* sizeof(venice_device_options) */
    const char *capabilities; /* what it has to be able to do, all of it: "cuda,fp8"; NULL: anything */
    const char *donors;       /* nodes to get it from, "node1,node2"; NULL: any */
    const char *purpose;      /* what for, in `venice grants`; may be NULL */
    uint64_t min_bytes;       /* how large an accelerator has to be at least; 0: any */
    uint32_t wait_ms;         /* where there is none, wait in line so long at most; 0: do not */
    uint32_t priority;        /* in line, higher ones first, 1 to 255; 0: 100, above which is for
                               * administrators */
    uint32_t preempt;         /* while it waits, have a device of lower priority called back: 1: one's
                               * own, for administrators anybody's; 0: none */
} venice_device_options;

#define VENICE_DEVICE_OPTIONS { sizeof(venice_device_options), NULL, NULL, NULL, 0, 0, 0, 0 }

/* Gets an accelerator, whole. VENICE_NO_ROOM: none is free that would do. */
venice_status venice_get_accelerator(const venice_rack *rack, const venice_device_options *options,
                                     venice_device **device);

/* Gets `len_bytes` of one storage device, rounded up to whole MiB. */
venice_status venice_get_storage(const venice_rack *rack, uint64_t len_bytes,
                                 const venice_device_options *options, venice_device **device);

/* Gets a network card, whole. */
venice_status venice_get_nic(const venice_rack *rack, const venice_device_options *options,
                             venice_device **device);

/* Gives it back. NULL is nothing. */
void venice_free_device(venice_device *device);

/* Whether it is still held: VENICE_DEVICE_LOST if its node is gone or has taken it back. */
venice_status venice_check_device(const venice_device *device);

/* Seconds until its node takes it back, as for a request of higher priority: free it before. INFINITY:
 * its node wants it back and waits; less than 0: it does not want it back, and for NULL. */
double venice_device_leaving_s(const venice_device *device);

/* Of storage how much was granted; of others their size, 0 where nobody knows, and for NULL. */
uint64_t venice_device_bytes(const venice_device *device);

/* The node it is on, its name there ("/dev/nvidia0"), and what it can do ("gpu,cuda"); "" for NULL.
 * Valid until it is given back. */
const char *venice_device_node(const venice_device *device);
const char *venice_device_address(const venice_device *device);
const char *venice_device_capabilities(const venice_device *device);

#ifdef __cplusplus
}
#endif

#endif
