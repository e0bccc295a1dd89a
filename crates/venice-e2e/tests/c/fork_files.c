/* A child writes to far memory before it has a pager of its own: the C library resets every
 * stream's lock in the child of a process with threads, and these streams lie in far memory. */
#include "check.h"
#include <pthread.h>

enum { FILES = 200, BUFFER = 3 * 4096 };

static FILE *files[FILES];
static uint64_t *buffers[FILES];
static pthread_mutex_t ends = PTHREAD_MUTEX_INITIALIZER;

static void *idle(void *unused)
{
	pthread_mutex_lock(&ends);
	return unused;
}

static void fill(uint64_t generation)
{
	for (int i = 0; i < FILES; i++)
		for (int k = 0; k < BUFFER / 8; k++)
			buffers[i][k] = mix(generation * 1000003 + i * 7919 + k);
}

static void check(uint64_t generation)
{
	for (int i = 0; i < FILES; i++)
		for (int k = 0; k < BUFFER / 8; k++)
			if (buffers[i][k] != mix(generation * 1000003 + i * 7919 + k))
				die("pid %d: word %d of buffer %d is not of generation %lu", getpid(), k, i, generation);
}

int main(void)
{
	pthread_t thread;
	pthread_mutex_lock(&ends);
	for (int i = 0; i < FILES; i++) {
		must(files[i] = fopen("/dev/null", "r"));
		must(buffers[i] = malloc(BUFFER));
	}
	fill(1);
	must(pthread_create(&thread, NULL, idle, NULL) == 0);
	push_out();
	pid_t pid = fork();
	must(pid >= 0);
	if (pid == 0) {
		check(1);
		fill(2);
		push_out();
		check(2);
		_exit(0);
	}
	join(pid);
	check(1);
	pthread_mutex_unlock(&ends);
	must(pthread_join(thread, NULL) == 0);
	puts("fork_files: every buffer is as it was written");
	return 0;
}
