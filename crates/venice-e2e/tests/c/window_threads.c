/* window_threads READY STOP: threads that use their memory in different ways until the file STOP is
 * there: they write and check it, have the kernel write to it, change what is mapped where and how, and
 * wait for each other on words of it that processes could share. */
#include "check.h"
#include <fcntl.h>
#include <pthread.h>

#define PAGES (24 * 256ul)

static const char *stop_file;
static pthread_barrier_t ready;

static int is_over(void)
{
	return access(stop_file, F_OK) == 0;
}

static void *writes(void *unused)
{
	char *base = map(PAGES * PAGE);
	write_pages(base, 0, PAGES, 1);
	pthread_barrier_wait(&ready);
	uint64_t generation = 1;
	for (; !is_over(); generation++) {
		check_pages(base, 0, PAGES, generation);
		write_pages(base, 0, PAGES, generation + 1);
	}
	check_pages(base, 0, PAGES, generation);
	return unused;
}

/* The kernel copies from one half to the other. */
static void *copies(void *unused)
{
	uint64_t half = 8 * 256, at_once = 16;
	char *from = map(2 * half * PAGE), *to = from + half * PAGE;
	int ends[2];
	must(pipe(ends) == 0);
	pthread_barrier_wait(&ready);
	for (uint64_t generation = 1; !is_over(); generation++) {
		write_pages(from, 0, half, generation);
		for (uint64_t page = 0; page < half; page += at_once) {
			size_t left = at_once * PAGE;
			must(write(ends[1], from + page * PAGE, left) == (ssize_t)left);
			while (left > 0) {
				ssize_t got = read(ends[0], to + (page + at_once) * PAGE - left, left);
				must(got > 0);
				left -= got;
			}
		}
		check_pages(to, 0, half, generation);
	}
	return unused;
}

static void *changes(void *unused)
{
	pthread_barrier_wait(&ready);
	for (uint64_t round = 0; !is_over(); round++) {
		size_t pages = 64 + round * 37 % 900;
		char *base = map(pages * PAGE);
		check_zero(base, pages * PAGE);
		write_pages(base, 0, pages, round);
		must(mprotect(base + 16 * PAGE, 8 * PAGE, PROT_READ) == 0);
		check_pages(base, 0, pages, round);
		must(mprotect(base + 16 * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE) == 0);
		must(madvise(base + 4 * PAGE, 5 * PAGE, MADV_DONTNEED) == 0);
		check_zero(base + 4 * PAGE, 5 * PAGE);
		base = mremap(base, pages * PAGE, 2 * pages * PAGE, MREMAP_MAYMOVE);
		must(base != MAP_FAILED);
		check_pages(base, 9, pages, round);
		check_zero(base + pages * PAGE, pages * PAGE);
		must(munmap(base + pages / 2 * PAGE, 10 * PAGE) == 0);
		check_pages(base, 9, pages / 2, round);
		must(munmap(base, 2 * pages * PAGE) == 0);
	}
	return unused;
}

/* Two threads take turns. */
struct turns {
	pthread_mutex_t lock;
	pthread_cond_t turned;
	uint64_t turn;
	int is_over;
};

static struct turns *turns;

static void *takes_turns(void *which)
{
	pthread_barrier_wait(&ready);
	must(pthread_mutex_lock(&turns->lock) == 0);
	while (!turns->is_over) {
		while (turns->turn % 2 != (uint64_t)which && !turns->is_over)
			must(pthread_cond_wait(&turns->turned, &turns->lock) == 0);
		turns->turn++;
		turns->is_over |= is_over();
		must(pthread_cond_broadcast(&turns->turned) == 0);
	}
	must(pthread_mutex_unlock(&turns->lock) == 0);
	return NULL;
}

static void make_turns(void)
{
	turns = map(64 * PAGE);
	pthread_mutexattr_t shared_lock;
	pthread_condattr_t shared_turned;
	must(pthread_mutexattr_init(&shared_lock) == 0 && pthread_condattr_init(&shared_turned) == 0);
	must(pthread_mutexattr_setpshared(&shared_lock, PTHREAD_PROCESS_SHARED) == 0);
	must(pthread_condattr_setpshared(&shared_turned, PTHREAD_PROCESS_SHARED) == 0);
	must(pthread_mutex_init(&turns->lock, &shared_lock) == 0);
	must(pthread_cond_init(&turns->turned, &shared_turned) == 0);
}

int main(int argc, char **argv)
{
	must(argc == 3);
	stop_file = argv[2];
	char *nearest = map(16 * MIB);
	write_pages(nearest, 0, 16 * 256, 7);
	make_turns();
	void *(*bodies[])(void *) = { writes, writes, copies, changes, takes_turns, takes_turns };
	enum { COUNT = sizeof bodies / sizeof *bodies };
	pthread_t threads[COUNT];
	must(pthread_barrier_init(&ready, NULL, COUNT + 1) == 0);
	for (uint64_t i = 0; i < COUNT; i++)
		must(pthread_create(&threads[i], NULL, bodies[i], (void *)(i % 2)) == 0);
	pthread_barrier_wait(&ready);
	must(close(open(argv[1], O_CREAT | O_WRONLY, 0600)) == 0);
	for (int i = 0; i < COUNT; i++)
		must(pthread_join(threads[i], NULL) == 0);
	check_pages(nearest, 0, 16 * 256, 7);
	puts("every byte right");
	return 0;
}
