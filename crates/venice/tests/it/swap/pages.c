/* A static program that writes its memory full and reads it back: threads side by side, then a
 * child of fork that sees its parent's pages and changes its own.
 *
 *   pages MIB [wait|hold]    exit code 0 and "right" when every word is what it should be; with
 *                            `wait` it says "filled" first and goes on reading and writing until its
 *                            stdin ends, with `hold` it touches nothing until then
 */
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 2, WORDS = 512 };

static uint64_t *memory;
static size_t pages;

static uint64_t wanted(size_t page, size_t word, uint64_t seed) {
    return (page * WORDS + word + 1) * 0x9e3779b97f4a7c15u + seed;
}

static void fill(size_t first, size_t step, uint64_t seed) {
    for (size_t page = first; page < pages; page += step)
        for (size_t word = 0; word < WORDS; word++)
            memory[page * WORDS + word] = wanted(page, word, seed);
}

static size_t wrong(size_t first, size_t step, uint64_t seed) {
    size_t count = 0;
    for (size_t page = first; page < pages; page += step)
        for (size_t word = 0; word < WORDS; word++)
            count += memory[page * WORDS + word] != wanted(page, word, seed);
    return count;
}

static void *work(void *number) {
    size_t first = (size_t)(uintptr_t)number;
    fill(first, THREADS, 0);
    return (void *)(uintptr_t)wrong(first, THREADS, 0);
}

int main(int argc, char **argv) {
    pages = (size_t)(argc > 1 ? atol(argv[1]) : 1) << 8;
    memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 3;
    pthread_t threads[THREADS];
    size_t count = 0;
    for (size_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i);
    for (size_t i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        count += (size_t)(uintptr_t)result;
    }
    uint64_t seed = 0;
    if (argc > 2) {
        puts("filled");
        fflush(stdout);
        struct pollfd input = {.fd = 0, .events = POLLIN};
        int patience = strcmp(argv[2], "hold") == 0 ? -1 : 0;
        while (poll(&input, 1, patience) == 0) {
            count += wrong(0, 1, seed);
            fill(0, 1, ++seed);
        }
    }
    pid_t child = fork();
    if (child == 0) {
        count = wrong(0, 4, seed);
        fill(0, 4, seed + 7);
        _exit(count + wrong(0, 4, seed + 7) != 0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    count += wrong(0, 1, seed) + (status != 0);
    puts(count == 0 ? "right" : "WRONG");
    return count != 0;
}
