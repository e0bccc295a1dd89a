/* Writes to every page of so many MiB, one after the other. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

int main(int argc, char **argv) {
    size_t bytes = (size_t)atoi(argv[argc - 1]) << 20;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        return 3;
    }
    for (size_t at = 0; at < bytes; at += 4096) {
        memory[at] = (char)(at >> 12 | 1);
    }
    puts("filled");
    return 0;
}
