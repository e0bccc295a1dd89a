/* A thread ends while it holds a robust mutex whose page was pushed out: the next owner is told. */
#define _GNU_SOURCE
#include <pthread.h>
#include "check.h"

enum { LEN = 64 << 20 };

static pthread_mutex_t *mutex;
static pthread_barrier_t pushed;

static void *owner(void *unused)
{
	must(pthread_mutex_lock(mutex) == 0);
	pthread_barrier_wait(&pushed);
	pthread_barrier_wait(&pushed);
	return unused;
}

int main(void)
{
	char *memory = malloc(LEN);
	pthread_mutexattr_t robust;
	must(pthread_mutexattr_init(&robust) == 0);
	must(pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST) == 0);
	mutex = (pthread_mutex_t *)(memory + LEN / 2);
	must(pthread_mutex_init(mutex, &robust) == 0);
	must(pthread_barrier_init(&pushed, NULL, 2) == 0);
	pthread_t thread;
	must(pthread_create(&thread, NULL, owner, NULL) == 0);
	pthread_barrier_wait(&pushed);
	for (int round = 0; round < 2; round++)
		for (size_t at = 0; at < LEN; at += 4096)
			if (at != LEN / 2)
				memory[at + 64] = round;
	pthread_barrier_wait(&pushed);
	must(pthread_join(thread, NULL) == 0);
	must(pthread_mutex_lock(mutex) == EOWNERDEAD);
	puts("told");
	return 0;
}
