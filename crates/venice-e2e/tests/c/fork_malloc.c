/* Forks while other threads are in malloc, whose locks the C library takes before it forks: the
 * threads map and unmap with these locks held. */
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 3, BLOCKS = 64, FORKS = 60 };

static atomic_int stop, rounds;

static void *allocate(void *number)
{
	uint64_t seed = (uint64_t)number + 1;
	while (!atomic_load(&stop)) {
		char *blocks[BLOCKS];
		for (int i = 0; i < BLOCKS; i++) {
			seed = mix(seed + i);
			size_t size = 4096 + seed % 120000;
			must(blocks[i] = malloc(size));
			memset(blocks[i], i, size);
		}
		for (int i = 0; i < BLOCKS; i++) {
			must(blocks[i][100] == (char)i);
			free(blocks[i]);
		}
		atomic_fetch_add(&rounds, 1);
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];
	for (uint64_t i = 0; i < THREADS; i++)
		must(pthread_create(&threads[i], NULL, allocate, (void *)i) == 0);
	for (int i = 0; i < FORKS; i++) {
		int seen = atomic_load(&rounds);
		pid_t pid = fork();
		must(pid >= 0);
		if (pid == 0) {
			char *mine = malloc(1 << 20);
			must(mine);
			memset(mine, 1, 1 << 20);
			free(mine);
			_exit(0);
		}
		join(pid);
		while (atomic_load(&rounds) == seen)
			usleep(100);
	}
	atomic_store(&stop, 1);
	for (int i = 0; i < THREADS; i++)
		must(pthread_join(threads[i], NULL) == 0);
	puts("fork_malloc: every child allocated");
	return 0;
}
