/* The parts that the recorded programs share: random numbers, and marks for the recorder. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static uint64_t state = 1;

static uint64_t draw(void) { /* SplitMix64 */
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

/* Returns the two marks: a store to the first begins the recording, one to the second ends it. */
static volatile uint64_t *map_marks(void) {
    void *marks = mmap((void *)(64ull << 30), 4096, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (marks == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return marks;
}
