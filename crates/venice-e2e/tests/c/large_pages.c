/* Threads read and write runs of pages anywhere in their own memory, while parts of it are dropped,
 * protected, moved, forked and given other page sizes; every page is checked.
 * Arguments: the pages of a thread, and the longest run. */
#include "check.h"
#include <pthread.h>
#include <stdbool.h>
#include <sys/wait.h>

enum { THREADS = 2, ROUNDS = 800 };

static uint64_t share, longest;

struct part {
	char *base;
	uint64_t seed;
	/* Of each page; 0: zeros. */
	uint32_t *generation;
};

static uint64_t next(struct part *part)
{
	part->seed += 0x9e3779b97f4a7c15ul;
	return mix(part->seed);
}

static void check(struct part *part, uint64_t from, uint64_t to)
{
	for (uint64_t i = from; i < to; i++) {
		if (!part->generation[i])
			check_zero(part->base + i * PAGE, PAGE);
		else if (!page_is(part->base, i, part->generation[i]))
			die("page %lu is not of generation %u", (unsigned long)i, part->generation[i]);
	}
}

static void fork_and_check(struct part *part, uint64_t from, uint64_t to)
{
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		check(part, from, to);
		write_pages(part->base, from, to, 7);
		check_pages(part->base, from, to, 7);
		_exit(0);
	}
	write_pages(part->base, from, to, 1000000);
	for (uint64_t i = from; i < to; i++)
		part->generation[i] = 1000000;
	join(child);
}

/* Elsewhere, where large pages begin at others of its pages. Alone, its parts may differ too much for
 * the kernel to move them together. */
static void move(struct part *part)
{
	size_t len = share * PAGE;
	char *room = mmap(NULL, len + 32 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(room != MAP_FAILED);
	char *to = room + (1 + next(part) % 31) * PAGE;
	if (mremap(part->base, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to)
		part->base = to;
	else
		must(errno == EFAULT);
}

static void step(struct part *part, int round, bool forks)
{
	uint64_t from = next(part) % (share - longest), to = from + 1 + next(part) % longest;
	char *at = part->base + from * PAGE;
	size_t len = (to - from) * PAGE;
	switch (next(part) % 16) {
	case 0:
		must(madvise(at, len, MADV_DONTNEED) == 0);
		memset(part->generation + from, 0, (to - from) * sizeof part->generation[0]);
		break;
	case 1:
		must(mprotect(at, len, PROT_READ) == 0);
		check(part, from > 20 ? from - 20 : 0, to);
		must(mprotect(at, len, PROT_READ | PROT_WRITE) == 0);
		break;
	case 2:
		must(madvise(at, len, next(part) % 2 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) == 0);
		break;
	case 3:
		must(madvise(at, len, next(part) % 2 ? MADV_WILLNEED : MADV_PAGEOUT) == 0);
		break;
	case 4:
		must(mmap(at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
			  0) == at);
		memset(part->generation + from, 0, (to - from) * sizeof part->generation[0]);
		break;
	case 5:
		if (round % 8 == 0)
			move(part);
		break;
	case 6:
		if (forks && round % 4 == 0)
			fork_and_check(part, from, to);
		break;
	case 7: case 8: case 9: case 10:
		write_pages(part->base, from, to, round + 1);
		for (uint64_t i = from; i < to; i++)
			part->generation[i] = round + 1;
		break;
	default:
		check(part, from, to);
	}
}

static struct part parts[THREADS];

static void *work(void *arg)
{
	struct part *part = arg;
	part->base = map(share * PAGE);
	part->generation = calloc(share, sizeof part->generation[0]);
	must(part->generation != NULL);
	part->seed = part - parts + 1;
	for (int round = 0; round < ROUNDS; round++)
		step(part, round, part == parts);
	check(part, 0, share);
	return NULL;
}

int main(int argc, char **argv)
{
	must(argc == 3);
	share = strtoul(argv[1], NULL, 10);
	longest = strtoul(argv[2], NULL, 10);
	pthread_t threads[THREADS];
	for (uint64_t i = 0; i < THREADS; i++) {
		parts[i].base = NULL;
		must(pthread_create(&threads[i], NULL, work, &parts[i]) == 0);
	}
	for (int i = 0; i < THREADS; i++)
		must(pthread_join(threads[i], NULL) == 0);
	puts("large pages: every byte right");
	return 0;
}
