/* Mutexes, condition variables and atomics in far memory. */
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 4, CELLS = 4096, STEPS = 20000 };

struct cell {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t guarded;
	_Atomic uint64_t free;
	char rest[PAGE - sizeof(pthread_mutex_t) - sizeof(pthread_cond_t) - 16];
};

static struct cell *cells;
static pthread_barrier_t barrier;

static void *thread(void *seed)
{
	uint64_t state = (uint64_t)seed;
	for (int step = 0; step < STEPS; step++) {
		struct cell *cell = &cells[mix(state++) % CELLS];
		must(pthread_mutex_lock(&cell->lock) == 0);
		cell->guarded++;
		must(pthread_mutex_unlock(&cell->lock) == 0);
		atomic_fetch_add(&cell->free, 1);
	}
	pthread_barrier_wait(&barrier);
	/* A ring of waiting: each thread wakes the next through a far condition variable. */
	uint64_t me = (uint64_t)seed % 1000;
	for (int round = 0; round < 200; round++) {
		struct cell *cell = &cells[round * 17 % CELLS];
		must(pthread_mutex_lock(&cell->lock) == 0);
		while (cell->rest[0] != (char)me)
			must(pthread_cond_wait(&cell->changed, &cell->lock) == 0);
		cell->rest[0] = (char)((me + 1) % THREADS);
		must(pthread_cond_broadcast(&cell->changed) == 0);
		must(pthread_mutex_unlock(&cell->lock) == 0);
	}
	return NULL;
}

int main(void)
{
	cells = map(CELLS * sizeof *cells);
	for (int i = 0; i < CELLS; i++) {
		pthread_mutex_init(&cells[i].lock, NULL);
		pthread_cond_init(&cells[i].changed, NULL);
	}
	push_out();
	pthread_t threads[THREADS];
	pthread_barrier_init(&barrier, NULL, THREADS);
	for (uint64_t i = 0; i < THREADS; i++)
		must(pthread_create(&threads[i], NULL, thread, (void *)(i + 1000 * (i + 1))) == 0);
	for (int i = 0; i < THREADS; i++)
		must(pthread_join(threads[i], NULL) == 0);
	uint64_t guarded = 0, free = 0;
	for (int i = 0; i < CELLS; i++)
		guarded += cells[i].guarded, free += cells[i].free;
	printf("futex: %lu %lu\n", (unsigned long)guarded, (unsigned long)free);
	return guarded == THREADS * STEPS && free == THREADS * STEPS ? 0 : 1;
}
