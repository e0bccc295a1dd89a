/* Threads whose stacks are larger than what may be local. */
#include "check.h"
#include <pthread.h>

enum { THREADS = 8, DEPTH = 96 };

static uint64_t deep(int depth, uint64_t seed)
{
	uint64_t frame[2048];
	for (int i = 0; i < 2048; i++)
		frame[i] = mix(seed + depth * 4096 + i);
	uint64_t below = depth ? deep(depth - 1, seed) : 0;
	for (int i = 0; i < 2048; i++)
		if (frame[i] != mix(seed + depth * 4096 + i))
			die("frame %d of thread %lu is wrong", depth, (unsigned long)seed);
	return below + frame[depth];
}

static void *thread(void *seed)
{
	uint64_t sum = 0;
	for (int round = 0; round < 6; round++)
		sum += deep(DEPTH * 3, (uint64_t)seed);
	return (void *)sum;
}

int main(void)
{
	uint64_t total = 0;
	for (int round = 0; round < 3; round++) {
		pthread_t threads[THREADS];
		for (uint64_t i = 0; i < THREADS; i++)
			must(pthread_create(&threads[i], NULL, thread, (void *)i) == 0);
		for (int i = 0; i < THREADS; i++) {
			void *sum;
			must(pthread_join(threads[i], &sum) == 0);
			total += (uint64_t)sum;
		}
	}
	/* The main stack too, far below where it was at the start. */
	total += deep(300, 12345);
	/* Many threads, come and gone. */
	for (int i = 0; i < 300; i++) {
		pthread_t one;
		must(pthread_create(&one, NULL, (void *(*)(void *))mix, (void *)(uint64_t)i) == 0);
		must(pthread_join(one, NULL) == 0);
	}
	printf("threads: %lx\n", (unsigned long)total);
	return 0;
}
