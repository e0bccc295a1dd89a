/* Borrows memory, uses it in every way there is, and gives it back.
 *
 *     cc borrow.c $(pkg-config --cflags --libs venice) -o borrow && ./borrow
 */
#include <err.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <venice.h>

#define PAGES 1000
#define PAGE 4096
#define MIB (1 << 20)

static void must(venice_status status, const char *what)
{
    if (status != VENICE_OK)
        errx(1, "%s: %s", what, venice_last_error());
}

/* A thousand pages are on their way there, then on their way back, before the first is waited for. */
static void many_at_once(venice_memory *memory)
{
    static unsigned char pages[PAGES][PAGE];
    static venice_access *accesses[PAGES];
    for (int page = 0; page < PAGES; page++) {
        memset(pages[page], page * 7 + 1, PAGE);
        must(venice_write_async(memory, (uint64_t)page * PAGE, pages[page], PAGE, &accesses[page]),
             "write");
    }
    for (int page = 0; page < PAGES; page++)
        must(venice_wait(accesses[page]), "wait");
    memset(pages, 0, sizeof pages);
    for (int page = 0; page < PAGES; page++)
        must(venice_read_async(memory, (uint64_t)page * PAGE, pages[page], PAGE, &accesses[page]),
             "read");
    for (int page = 0; page < PAGES; page++) {
        must(venice_wait(accesses[page]), "wait");
        for (int at = 0; at < PAGE; at++)
            if (pages[page][at] != (unsigned char)(page * 7 + 1))
                errx(1, "page %d is wrong at %d", page, at);
    }
    printf("%d pages there and back\n", PAGES);
    must(venice_write_async(memory, 0, pages[0], PAGE, &accesses[0]), "write");
    must(venice_flush(memory), "flush");
    if (!venice_is_over(accesses[0]))
        errx(1, "flushed, and not over");
    must(venice_wait(accesses[0]), "wait");
}

/* An array of 32 MiB, of which 8 are here, then 5. */
static void an_array(venice_rack *rack)
{
    venice_paged *paged;
    venice_region *region;
    venice_copies copies;
    venice_status status;
    size_t length;
    uint64_t *numbers, sum = 0;
    status = venice_paged_open(rack, 32 * MIB, 8 * MIB, NULL, &paged);
    if (status == VENICE_REFUSED) {
        printf("no array: %s\n", venice_last_error());
        return;
    }
    must(status, "paged_open");
    must(venice_map(paged, 32 * MIB, "64k", &region), "map");
    numbers = venice_region_address(region);
    length = venice_region_bytes(region) / sizeof *numbers;
    must(venice_advise(region, 0, venice_region_bytes(region), "sequential"), "advise");
    for (size_t at = 0; at < length; at++)
        numbers[at] = at;
    must(venice_set_local_bytes(paged, 5 * MIB), "set_local_bytes");
    for (size_t at = 0; at < length; at++)
        sum += numbers[at];
    if (sum != (uint64_t)length * (length - 1) / 2)
        errx(1, "the sum is wrong");
    if (venice_resident_bytes(paged) > venice_local_bytes(paged))
        errx(1, "more is here than may be");
    must(venice_advise(region, 0, venice_region_bytes(region), "pageout"), "advise");
    must(venice_paged_get_copies(paged, &copies), "copies");
    printf("%zu numbers in %" PRIu64 " slabs, %" PRIu64 " MiB of them here at most\n", length,
           copies.slabs, venice_local_bytes(paged) / MIB);
    venice_paged_close(paged);
    if (numbers[4711] != 4711)
        errx(1, "a region is there until it is unmapped");
    venice_unmap(region);
}

static void a_cache(venice_rack *rack)
{
    venice_cache *cache;
    venice_cache_stats stats;
    venice_copies copies;
    char value[64];
    size_t len;
    must(venice_cache_open(rack, 16 * MIB, NULL, NULL, &cache), "cache");
    must(venice_put(cache, "planet", 6, "Jupiter", 7), "put");
    must(venice_get(cache, "planet", 6, value, sizeof value, &len), "get");
    printf("planet: %.*s\n", (int)len, value);
    if (venice_get(cache, "planet", 6, value, 3, &len) != VENICE_TOO_SMALL || len != 7)
        errx(1, "three bytes cannot hold it");
    if (venice_get(cache, "star", 4, value, sizeof value, &len) != VENICE_NOT_FOUND)
        errx(1, "there is no star");
    must(venice_delete(cache, "planet", 6), "delete");
    must(venice_cache_get_copies(cache, &copies), "copies");
    if (copies.copies < 1 || copies.lost_slabs > 0)
        errx(1, "a cache without its memory");
    must(venice_cache_get_stats(cache, &stats), "stats");
    printf("hits %" PRIu64 ", misses %" PRIu64 ", objects %" PRIu64 "\n", stats.hits, stats.misses,
           stats.objects);
    venice_cache_close(cache);
}

/* Asks a device's service, if it has one. Operation 1 of `echo` answers with the request. */
static void ask_service(venice_device *device)
{
    const char request[] = "far away";
    char answer[64];
    size_t answer_bytes = sizeof answer;
    uint16_t code;
    venice_service *service;
    if (venice_device_service(device)[0] == '\0')
        return;
    if (venice_open_service(device, 0, &service) != VENICE_INVALID)
        errx(1, "a call waits for its answer");
    must(venice_open_service(device, 30000, &service), "open_service");
    must(venice_call_service(service, 1, request, sizeof request, answer, &answer_bytes, &code),
         "call_service");
    printf("service %s answers %u: %.*s\n", venice_device_service(device), code, (int)answer_bytes,
           answer);
    venice_close_service(service);
}

/* Holds a device for a moment, if there is one. */
static void a_device(venice_status status, venice_device *device)
{
    if (status == VENICE_NO_ROOM) {
        printf("no device: %s\n", venice_last_error());
        return;
    }
    must(status, "a device");
    printf("held: %s of %s (%s), %" PRIu64 " bytes\n", venice_device_address(device),
           venice_device_node(device), venice_device_capabilities(device),
           venice_device_bytes(device));
    ask_service(device);
    must(venice_check_device(device), "check_device");
    if (venice_device_leaving_s(device) >= 0)
        printf("its node wants it back\n");
    venice_free_device(device);
}

/* Gives a device to another user, "USER@NODE", whose program claims it within a minute. */
static void hand_over(venice_rack *rack, const char *to)
{
    char number[VENICE_TRANSFER_BYTES];
    venice_device *device;
    venice_transferred row;
    uint64_t grant;
    venice_status status = venice_get_device(rack, "accelerator", NULL, &device);
    if (status == VENICE_NO_ROOM)
        return;
    must(status, "a device");
    grant = venice_device_grant(device);
    if (venice_transfer(rack, &grant, 1, to, 60000, &row, number) != VENICE_OK)
        printf("transferred nothing: %s\n", venice_last_error());
    else if (row.grant != grant || row.successor == grant || row.state == VENICE_TRANSFER_LOST)
        errx(1, "the transfer is wrong");
    else
        printf("transferred to %s: %s\n", to, number);
    venice_free_device(device);
}

/* Takes over what others have given to this user. */
static void take_over(venice_rack *rack)
{
    venice_claimed *claimed;
    venice_service *service;
    venice_status status = venice_claim(rack, NULL, 0, &claimed);
    if (status == VENICE_NOT_FOUND) {
        printf("claimed nothing: %s\n", venice_last_error());
        return;
    }
    must(status, "claim");
    for (size_t at = 0; at < venice_claimed_count(claimed); at++) {
        printf("claimed: %s %s of %s (%s), %" PRIu64 " bytes, grant %" PRIu64 "\n",
               venice_claimed_kind(claimed, at), venice_claimed_address(claimed, at),
               venice_claimed_node(claimed, at), venice_claimed_capabilities(claimed, at),
               venice_claimed_bytes(claimed, at), venice_claimed_grant(claimed, at));
        if (venice_claimed_service(claimed, at)[0] == '\0')
            continue;
        must(venice_open_claimed_service(claimed, at, 30000, &service), "open_claimed_service");
        venice_close_service(service);
    }
    if (!venice_claimed_is_whole(claimed))
        printf("some of it was lost\n");
    venice_free_claimed(claimed);
}

/* Two devices, both or none; then one together with memory near it. */
static void several_at_once(venice_rack *rack)
{
    venice_device *both[2], *device;
    venice_memory *memory;
    venice_options options = VENICE_OPTIONS;
    venice_status status = venice_get_devices(rack, "accelerator storage=3MiB", NULL, both, 2);
    if (status == VENICE_NO_ROOM)
        return;
    must(status, "two devices");
    a_device(VENICE_OK, both[0]);
    a_device(VENICE_OK, both[1]);
    options.devices = "storage=3MiB";
    must(venice_get_memory(rack, 16 << 20, &options, &memory), "memory and a device");
    must(venice_take_devices(memory, &device, 1), "take_devices");
    a_device(VENICE_OK, device);
    venice_free_memory(memory);
}

static void devices(venice_rack *rack)
{
    venice_device *device;
    venice_device_options options = VENICE_DEVICE_OPTIONS;
    venice_status status;
    options.purpose = "an example in C";
    options.wait_ms = 100;
    status = venice_get_device(rack, "accelerator", &options, &device);
    a_device(status, device);
    status = venice_get_device(rack, "storage=3MiB", &options, &device);
    a_device(status, device);
    status = venice_get_device(rack, "nic", &options, &device);
    a_device(status, device);
    several_at_once(rack);
}

int main(int argc, char **argv)
{
    venice_rack *rack;
    venice_memory *memory;
    venice_options options = VENICE_OPTIONS;
    venice_copies copies;
    uint64_t old, free_bytes, left_bytes;
    char word[8];
    options.purpose = "an example in C";
    options.copies = 2;
    options.placement = "spread";
    options.reclaim_to = "donors,local";
    must(venice_connect(argc > 1 ? argv[1] : NULL, &rack), "connect");
    must(venice_free_bytes(rack, &free_bytes), "free_bytes");
    printf("venice %s, %" PRIu64 " bytes free\n", venice_version(), free_bytes);
    must(venice_get_memory(rack, 32 * MIB, &options, &memory), "get_memory");
    must(venice_free_bytes(rack, &left_bytes), "free_bytes");
    printf("borrowed %" PRIu64 " bytes, %" PRIu64 " are left\n", venice_len_bytes(memory),
           left_bytes);
    must(venice_get_copies(memory, &copies), "copies");
    printf("copies %" PRIu64 ", slabs without all of them %" PRIu64 "\n", copies.copies,
           copies.short_slabs);

    must(venice_write(memory, 5000000, "far away", 8), "write");
    must(venice_read(memory, 5000000, word, 8), "read");
    printf("read: %.8s\n", word);
    many_at_once(memory);
    must(venice_fetch_add(memory, 16 * MIB, 41, NULL), "fetch_add");
    must(venice_compare_swap(memory, 16 * MIB, 41, 42, &old), "compare_swap");
    printf("it was %" PRIu64 "\n", old);
    if (venice_read(memory, 1ull << 40, word, 8) != VENICE_OUT_OF_RANGE)
        errx(1, "there is not so much");
    printf("refused: %s\n", venice_last_error());

    a_cache(rack);
    an_array(rack);
    devices(rack);
    take_over(rack);
    hand_over(rack, argc > 2 ? argv[2] : "nobody@nowhere");
    venice_free_memory(memory);
    venice_disconnect(rack);
    return 0;
}
