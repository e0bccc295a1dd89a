/* A static program that goes over to using half as much again as it may keep, all at once: the pages
 * that it has resident become active one and all, before the kernel's statistics know.
 *
 *   thrash MIB HOT_MIB ROUNDS TOUCHES    exit code 0 and "right" when every page is what it should be
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WORDS = 512, STATISTICS_US = 2200000 };

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    size_t pages = (size_t)atol(argv[1]) << 8, hot = (size_t)atol(argv[2]) << 8;
    long rounds = atol(argv[3]), touches = atol(argv[4]);
    uint64_t *memory =
        mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t *wanted = calloc(pages, sizeof *wanted);
    if (memory == MAP_FAILED || wanted == NULL) return 3;
    uint64_t random = 88172645463325252u;
    size_t wrong = 0;
    for (long round = 0; round < rounds; round++) {
        /* Passed once: inactive. */
        for (size_t page = 0; page < pages; page++) {
            wrong += memory[page * WORDS] != wanted[page];
            memory[page * WORDS] = wanted[page] = page * 0x9e3779b97f4a7c15u + (uint64_t)round;
        }
        usleep(STATISTICS_US);
        for (long touch = 0; touch < touches; touch++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            size_t page = random % hot;
            wrong += memory[page * WORDS] != wanted[page];
            memory[page * WORDS] = ++wanted[page];
        }
    }
    puts(wrong == 0 ? "right" : "WRONG");
    return wrong != 0;
}
