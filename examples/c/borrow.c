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
}

static void a_cache(venice_rack *rack)
{
    venice_cache *cache;
    venice_cache_stats stats;
    char value[64];
    size_t len;
    must(venice_cache_open(rack, 16 << 20, NULL, NULL, &cache), "cache");
    must(venice_put(cache, "planet", 6, "Jupiter", 7), "put");
    must(venice_get(cache, "planet", 6, value, sizeof value, &len), "get");
    printf("planet: %.*s\n", (int)len, value);
    if (venice_get(cache, "planet", 6, value, 3, &len) != VENICE_TOO_SMALL || len != 7)
        errx(1, "three bytes cannot hold it");
    if (venice_get(cache, "star", 4, value, sizeof value, &len) != VENICE_NOT_FOUND)
        errx(1, "there is no star");
    must(venice_delete(cache, "planet", 6), "delete");
    must(venice_cache_get_stats(cache, &stats), "stats");
    printf("hits %" PRIu64 ", misses %" PRIu64 ", objects %" PRIu64 "\n", stats.hits, stats.misses,
           stats.objects);
    venice_cache_close(cache);
}

static void a_device(venice_rack *rack)
{
    venice_device *device;
    venice_device_options options = VENICE_DEVICE_OPTIONS;
    venice_status status;
    options.purpose = "an example in C";
    options.wait_ms = 100;
    status = venice_get_accelerator(rack, &options, &device);
    if (status == VENICE_NO_ROOM) {
        printf("no device: %s\n", venice_last_error());
        return;
    }
    must(status, "get_accelerator");
    printf("held: %s of %s (%s)\n", venice_device_address(device), venice_device_node(device),
           venice_device_capabilities(device));
    must(venice_check_device(device), "check_device");
    if (venice_device_leaving_s(device) >= 0)
        printf("its node wants it back\n");
    venice_free_device(device);
}

int main(int argc, char **argv)
{
    venice_rack *rack;
    venice_memory *memory;
    venice_options options = VENICE_OPTIONS;
    venice_copies copies;
    uint64_t old;
    char word[8];
    options.purpose = "an example in C";
    options.copies = 2;
    options.placement = "spread";
    options.reclaim_to = "donors,local";
    must(venice_connect(argc > 1 ? argv[1] : NULL, &rack), "connect");
    must(venice_get_memory(rack, 32 << 20, &options, &memory), "get_memory");
    printf("borrowed %" PRIu64 " bytes\n", venice_len_bytes(memory));
    must(venice_get_copies(memory, &copies), "copies");
    printf("copies %" PRIu64 ", slabs without all of them %" PRIu64 "\n", copies.copies,
           copies.short_slabs);

    must(venice_write(memory, 5000000, "far away", 8), "write");
    must(venice_read(memory, 5000000, word, 8), "read");
    printf("read: %.8s\n", word);
    many_at_once(memory);
    must(venice_fetch_add(memory, 16 << 20, 41, NULL), "fetch_add");
    must(venice_compare_swap(memory, 16 << 20, 41, 42, &old), "compare_swap");
    printf("it was %" PRIu64 "\n", old);
    if (venice_read(memory, 1ull << 40, word, 8) != VENICE_OUT_OF_RANGE)
        errx(1, "there is not so much");
    printf("refused: %s\n", venice_last_error());

    a_cache(rack);
    a_device(rack);
    venice_free_memory(memory);
    venice_disconnect(rack);
    return 0;
}
