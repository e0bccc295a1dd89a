/* Forks while threads on every processor fault: by the C library, and by a bare system call. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>

enum { PAGES = 24 * 256, OWN = 4 * 256, THREADS = 4, FORKS = 24 };

static char *shared, *own[THREADS];
static atomic_int stop, rounds;

/* Reads constant pages and rewrites its own, in an order without a stream. */
static void *toucher(void *number)
{
	uint64_t self = (uint64_t)number, generation = 2, at = self * 977;
	while (!atomic_load(&stop)) {
		for (int i = 0; i < OWN; i++) {
			at = mix(at + i);
			uint64_t page = at % PAGES;
			if (!page_is(shared, page, 1))
				die("thread %lu: page %lu is wrong", self, page);
		}
		check_pages(own[self], 0, OWN, generation - 1);
		write_pages(own[self], 0, OWN, generation++);
		atomic_fetch_add(&rounds, 1);
	}
	return NULL;
}

static pid_t fork_bare(void)
{
	return syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
}

/* Pages that the parent's threads only read must be complete, wherever they were at the fork. */
static void child(int number)
{
	int first = number * 131 % PAGES;
	check_pages(shared, first, PAGES, 1);
	check_pages(shared, 0, first, 1);
	_exit(0);
}

int main(void)
{
	pthread_t threads[THREADS];
	shared = map(PAGES * PAGE);
	write_pages(shared, 0, PAGES, 1);
	for (uint64_t i = 0; i < THREADS; i++) {
		own[i] = map(OWN * PAGE);
		write_pages(own[i], 0, OWN, 1);
		must(pthread_create(&threads[i], NULL, toucher, (void *)i) == 0);
	}
	for (int i = 0; i < FORKS; i++) {
		int seen = atomic_load(&rounds);
		pid_t pid = i % 3 == 2 ? fork_bare() : fork();
		must(pid >= 0);
		if (pid == 0)
			child(i);
		join(pid);
		while (atomic_load(&rounds) == seen)
			usleep(100);
	}
	atomic_store(&stop, 1);
	for (int i = 0; i < THREADS; i++)
		must(pthread_join(threads[i], NULL) == 0);
	check_pages(shared, 0, PAGES, 1);
	puts("fork_threads: every child saw what was there");
	return 0;
}
