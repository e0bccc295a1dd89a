/* core_dump MIB READY STOP [abort|overflow|fork]: fills MIB MiB, then two threads read all of it at random until
 * the file STOP is there. With `abort` or `overflow` it dies while they read; with `fork` a child does, whose
 * parent ends well. Page I begins with the word I + 1. The variable SHARED says how the memory is shared:
 * `anonymous`, `memfd`, or `private`: a memfd of which every eighth page is a copy of the process's own. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <pthread.h>

static volatile uint64_t *base;
static uint64_t pages;
static volatile int ends;

static void map_memory(int sharing, int fd)
{
	base = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, sharing, fd, 0);
	must(base != MAP_FAILED);
}

static void fill(const char *shared)
{
	if (!shared || strcmp(shared, "anonymous") == 0) {
		map_memory(MAP_ANONYMOUS | (shared ? MAP_SHARED : MAP_PRIVATE), -1);
		for (uint64_t page = 0; page < pages; page++)
			base[page * 512] = page + 1;
		return;
	}
	int fd = memfd_create("memory", 0), is_private = strcmp(shared, "private") == 0;
	must(fd >= 0 && ftruncate(fd, pages * PAGE) == 0);
	map_memory(MAP_SHARED, fd);
	for (uint64_t page = 0; page < pages; page++)
		base[page * 512] = is_private && page % 8 == 0 ? 0 : page + 1;
	if (!is_private)
		return;
	must(munmap((void *)base, pages * PAGE) == 0);
	map_memory(MAP_PRIVATE, fd);
	for (uint64_t page = 0; page < pages; page += 8)
		base[page * 512] = page + 1;
}

static void *read_at_random(void *seed)
{
	for (uint64_t at = mix((uint64_t)seed); !ends; at = mix(at)) {
		uint64_t page = at % pages;
		if (base[page * 512] != page + 1)
			die("page %lu reads as %lu", page, base[page * 512]);
	}
	return NULL;
}

static uint64_t overflow(uint64_t depth)
{
	volatile char frame[65536];
	if (depth > 1ul << 40)
		return 0;
	frame[depth % sizeof frame] = (char)depth;
	return overflow(depth + 1) + frame[0];
}

static void die_by(const char *how)
{
	if (strcmp(how, "overflow") == 0)
		printf("%lu\n", overflow(0));
	abort();
}

int main(int argc, char **argv)
{
	must(argc == 4 || argc == 5);
	pages = strtoul(argv[1], NULL, 10) * 256;
	fill(getenv("SHARED"));
	const char *how = argc == 5 ? argv[4] : "";
	pid_t child = strcmp(how, "fork") == 0 ? fork() : -1;
	if (child > 0) {
		int status;
		must(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WCOREDUMP(status));
		puts("the child dumped core");
		return 0;
	}
	pthread_t readers[2];
	for (uint64_t i = 0; i < 2; i++)
		must(pthread_create(&readers[i], NULL, read_at_random, (void *)i) == 0);
	must(close(open(argv[2], O_CREAT | O_WRONLY, 0600)) == 0);
	if (*how) {
		usleep(200000);
		die_by(how);
	}
	while (access(argv[3], F_OK) != 0)
		usleep(10000);
	ends = 1;
	for (int i = 0; i < 2; i++)
		must(pthread_join(readers[i], NULL) == 0);
	for (uint64_t page = 0; page < pages; page++)
		must(base[page * 512] == page + 1);
	puts("every byte right");
	return 0;
}
