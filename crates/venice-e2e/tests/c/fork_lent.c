/* Forks that wait for a lock of the C library's, held for long by another thread, while a third one
 * changes the address space until the fork begins, and now and then at that moment. */
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>

enum { PAGES = 24 * 256, OTHERS = 48 * 256, FORKS = 6 };

static atomic_int turn, inside, stop;

/* Called with the lock of all streams held, which a fork takes. */
static ssize_t slow(void *unused, const char *text, size_t len)
{
	(void)unused, (void)text;
	atomic_store(&inside, 1);
	usleep(12000);
	return len;
}

static void *flush(void *stream)
{
	for (int turns = 1; turns <= FORKS; turns++) {
		while (atomic_load(&turn) < turns)
			usleep(100);
		fputs("x", stream);
		fflush(NULL);
	}
	return NULL;
}

/* Moves memory of its own there and back, which takes as long as there are pages. */
static void *move(void *unused)
{
	char *at = map(OTHERS * PAGE), *to = map(OTHERS * PAGE);
	write_pages(at, 0, OTHERS, 5);
	while (!atomic_load(&stop)) {
		must(mremap(at, OTHERS * PAGE, OTHERS * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
		char *was = at;
		at = to;
		to = was;
	}
	check_pages(at, 0, OTHERS, 5);
	return unused;
}

static void child(char *base)
{
	check_pages(base, 0, PAGES, 1);
	write_pages(base, 0, PAGES, 2);
	check_pages(base, 0, PAGES, 2);
	_exit(0);
}

int main(void)
{
	pthread_t threads[2];
	char *base = map(PAGES * PAGE);
	FILE *stream = fopencookie(NULL, "w", (cookie_io_functions_t){ .write = slow });
	must(stream);
	write_pages(base, 0, PAGES, 1);
	must(pthread_create(&threads[0], NULL, flush, stream) == 0);
	must(pthread_create(&threads[1], NULL, move, NULL) == 0);
	for (int i = 0; i < FORKS; i++) {
		atomic_store(&inside, 0);
		atomic_store(&turn, i + 1);
		while (!atomic_load(&inside))
			usleep(100);
		pid_t pid = fork();
		must(pid >= 0);
		if (pid == 0)
			child(base);
		join(pid);
		check_pages(base, 0, PAGES, 1);
	}
	atomic_store(&stop, 1);
	for (int i = 0; i < 2; i++)
		must(pthread_join(threads[i], NULL) == 0);
	puts("fork_lent: parent and children have what they had");
	return 0;
}
