/* Threads write, check, advise and drop pages of shared memory all at once. */
#include "check.h"
#include <pthread.h>

enum { THREADS = 4, SHARE = 2048, ROUNDS = 60 };

static char *base;

static void *work(void *arg)
{
	uint64_t me = (uint64_t)arg, seed = me + 1;
	char *mine = base + me * SHARE * PAGE;
	static const int HINTS[] = {MADV_NORMAL,   MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED,
				    MADV_WILLNEED, MADV_COLD,   MADV_PAGEOUT};
	uint64_t generation = 0;
	write_pages(mine, 0, SHARE, generation);
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < 3; i++) {
			/* Pages of any thread: hints are not limited to the owner. */
			seed = mix(seed + 0x9e3779b97f4a7c15ul);
			uint64_t from = seed % (THREADS * SHARE - 600);
			madvise(base + from * PAGE, (1 + (seed >> 32) % 600) * PAGE,
				HINTS[(seed >> 50) % 7]);
		}
		seed = mix(seed + 0x9e3779b97f4a7c15ul);
		uint64_t from = seed % (SHARE - 256);
		check_pages(mine, from, from + 256, generation);
		if (round % 12 == 11) {
			generation++;
			must(madvise(mine, SHARE * PAGE, MADV_DONTNEED) == 0);
			check_zero(mine + from * PAGE, PAGE);
			write_pages(mine, 0, SHARE, generation);
		}
	}
	check_pages(mine, 0, SHARE, generation);
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];
	base = map((size_t)THREADS * SHARE * PAGE);
	for (uint64_t i = 0; i < THREADS; i++)
		must(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		must(pthread_join(threads[i], NULL) == 0);
	puts("hints: no page changed by them");
	return 0;
}
