/* Shared anonymous memory, far more than is local, in the way that the argument names. Each way
 * checks every page it has written. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include "check.h"

enum { LEN = 64 << 20, PAGES = LEN / 4096, CHILDREN = 8, ROUNDS = 4 };

static void *map_shared(size_t len)
{
	void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(at != MAP_FAILED);
	return at;
}

static uint64_t *word_of(char *base, uint64_t page, int writer)
{
	return (uint64_t *)(base + page * PAGE + writer * 128);
}

/* Each child counts in a word of its own and in a common one of each page, in an order of its own. */
static void count_up(char *base, int me)
{
	for (uint64_t round = 0; round < ROUNDS; round++)
		for (uint64_t i = 0; i < PAGES; i++) {
			uint64_t page = (i * 7919 + me * 4001) % PAGES;
			uint64_t *own = word_of(base, page, me);
			if (*own != round)
				die("page %lu: child %d finds %lu in round %lu", page, me, *own, round);
			*own = round + 1;
			__atomic_fetch_add(word_of(base, page, CHILDREN), 1, __ATOMIC_RELAXED);
		}
}

static void check_counts(char *base, int writers)
{
	for (uint64_t page = 0; page < PAGES; page++)
		must(*word_of(base, page, CHILDREN) == (uint64_t)writers * ROUNDS);
}

static void count(void)
{
	char *base = map_shared(LEN);
	pid_t children[CHILDREN];
	for (int i = 0; i < CHILDREN; i++)
		if ((children[i] = fork()) == 0) {
			count_up(base, i);
			_exit(0);
		}
	for (int i = 0; i < CHILDREN; i++)
		join(children[i]);
	check_counts(base, CHILDREN);
}

/* Children of a process that has no shared memory any more, or none that they get. */
static void none_inherited(void)
{
	char *base = map_shared(LEN);
	write_pages(base, 0, PAGES, 1);
	must(munmap(base, LEN) == 0);
	for (int way = 0; way < 3; way++) {
		pid_t child = fork();
		if (child == 0) {
			/* The child, and its own, can have some. */
			char *own = map_shared(LEN / 4);
			write_pages(own, 0, PAGES / 4, 3);
			if (fork() == 0)
				_exit(!page_is(own, 5, 3));
			int status;
			must(wait(&status) > 0 && status == 0);
			check_pages(own, 0, PAGES / 4, 3);
			_exit(0);
		}
		join(child);
		/* Once more with what is not inherited, and with what is replaced. */
		base = map_shared(LEN);
		write_pages(base, 0, PAGES, 2);
		if (way == 0)
			must(madvise(base, LEN, MADV_DONTFORK) == 0);
		else
			must(mmap(base, LEN, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == base);
	}
}

/* A child by a bare system call: no code of the C library, and of Venice, runs there. */
static void bare(void)
{
	char *base = map_shared(LEN);
	write_pages(base, 0, PAGES, 1);
	pid_t child = syscall(SYS_fork);
	if (child == 0) {
		check_pages(base, 0, PAGES, 1);
		write_pages(base, 0, PAGES / 2, 2);
		syscall(SYS_exit_group, 0);
	}
	join(child);
	check_pages(base, 0, PAGES / 2, 2);
	check_pages(base, PAGES / 2, PAGES, 1);
}

/* Forks in a chain, while pages leave: each child writes, and its parent ends. */
static void chain(void)
{
	char *base = map_shared(LEN);
	int ends[2];
	must(pipe(ends) == 0);
	for (uint64_t generation = 1; generation <= 12; generation++) {
		write_pages(base, 0, PAGES, generation);
		pid_t child = fork();
		must(child >= 0);
		if (child > 0) {
			if (generation == 1) {
				char done;
				must(read(ends[0], &done, 1) == 1);
				check_pages(base, 0, PAGES, 12);
			}
			_exit(0);
		}
		check_pages(base, 0, PAGES, generation);
	}
	must(write(ends[1], "d", 1) == 1);
	_exit(0);
}

static void moved(void)
{
	char *base = map_shared(LEN);
	write_pages(base, 0, PAGES, 1);
	/* A second address of the same memory. */
	char *twin = mremap(base, 0, LEN, MREMAP_MAYMOVE);
	must(twin != MAP_FAILED && twin != base);
	check_pages(twin, 0, PAGES, 1);
	write_pages(twin, 0, PAGES, 2);
	check_pages(base, 0, PAGES, 2);
	/* Moved to another address, and cut there. */
	char *room = mmap(NULL, LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	must(room != MAP_FAILED);
	char *moved = mremap(base, LEN, LEN / 2, MREMAP_MAYMOVE | MREMAP_FIXED, room);
	must(moved == room);
	check_pages(moved, 0, PAGES / 2, 2);
	write_pages(moved, 0, PAGES / 2, 3);
	check_pages(twin, 0, PAGES / 2, 3);
	check_pages(twin, PAGES / 2, PAGES, 2);
	/* The rest of the object comes back with its contents. */
	char *grown = mremap(moved, LEN / 2, LEN, MREMAP_MAYMOVE);
	must(grown != MAP_FAILED);
	check_pages(grown, PAGES / 2, PAGES, 2);
	must(munmap(twin, LEN) == 0);
	check_pages(grown, 0, PAGES / 2, 3);
	must(munmap(grown + LEN / 4, LEN / 4) == 0);
	pid_t child = fork();
	if (child == 0) {
		check_pages(grown, PAGES / 2, PAGES, 2);
		_exit(0);
	}
	join(child);
	check_pages(grown, 0, PAGES / 4, 3);
}

static void advised(void)
{
	char *base = map_shared(LEN);
	write_pages(base, 0, PAGES, 1);
	must(madvise(base, LEN, MADV_DONTNEED) == 0);
	check_pages(base, 0, PAGES, 1);
	must(madvise(base, LEN, MADV_HUGEPAGE) == 0);
	must(madvise(base + LEN / 4, LEN / 2, MADV_REMOVE) == 0);
	check_zero(base + LEN / 4, LEN / 2);
	check_pages(base, 0, PAGES / 4, 1);
	check_pages(base, PAGES * 3 / 4, PAGES, 1);
	must(mprotect(base, LEN / 2, PROT_READ) == 0);
	check_pages(base, 0, PAGES / 4, 1);
	must(mprotect(base, LEN / 2, PROT_READ | PROT_WRITE) == 0);
	write_pages(base, 0, PAGES, 2);
	must(madvise(base, LEN / 2, MADV_DONTFORK) == 0);
	pid_t child = fork();
	if (child == 0) {
		/* The child may map there again. */
		char *again = mmap(base, LEN / 2, PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		must(again == base);
		check_zero(base, LEN / 2);
		write_pages(base, 0, PAGES / 2, 7);
		check_pages(base, PAGES / 2, PAGES, 2);
		check_pages(base, 0, PAGES / 2, 7);
		_exit(0);
	}
	join(child);
	check_pages(base, 0, PAGES, 2);
	/* Replaced in place, by private and by shared memory. */
	must(mmap(base, LEN / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == base);
	must(mmap(base + LEN / 2, LEN / 4, PROT_READ | PROT_WRITE,
		  MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == base + LEN / 2);
	check_zero(base, LEN * 3ul / 4);
	write_pages(base, 0, PAGES * 3 / 4, 5);
	check_pages(base, 0, PAGES * 3 / 4, 5);
	check_pages(base, PAGES * 3 / 4, PAGES, 2);
}

/* System calls write into far pages: reads of a file, by way of the page cache and past it. */
static void read_into(void)
{
	enum { FILE_PAGES = 512 };
	char *base = map_shared(LEN), *source;
	must(posix_memalign((void **)&source, PAGE, PAGE) == 0);
	int file = open("shared.data", O_RDWR | O_CREAT | O_TRUNC, 0600);
	must(file >= 0);
	for (uint64_t i = 0; i < FILE_PAGES; i++) {
		write_page(source, 0, 0);
		for (int word = 0; word < 512; word++)
			((uint64_t *)source)[word] = mix(i * 512 + word);
		must(write(file, source, PAGE) == PAGE);
	}
	must(fsync(file) == 0);
	int direct = open("shared.data", O_RDONLY | O_DIRECT);
	pid_t children[4];
	for (int me = 0; me < 4; me++) {
		if ((children[me] = fork()) != 0)
			continue;
		unsigned seed = me + 1;
		static uint16_t has[PAGES];
		for (int i = 0; i < 20000; i++) {
			/* Each child has a block of 1 KiB of each page. */
			uint64_t page = rand_r(&seed) % PAGES, from = rand_r(&seed) % FILE_PAGES;
			char *block = base + page * PAGE + me * 1024;
			uint64_t *words = (uint64_t *)block;
			for (int word = 0; word < 128; word += 17) {
				uint64_t want = has[page] ? mix((has[page] - 1) * 512ul + me * 128 + word) : 0;
				if (words[word] != want)
					die("child %d, step %d: page %lu, word %d", me, i, page, word);
			}
			int fd = direct >= 0 && i % 2 ? direct : file;
			must(pread(fd, block, 1024, from * PAGE + me * 1024) == 1024);
			has[page] = from + 1;
		}
		_exit(0);
	}
	for (int me = 0; me < 4; me++)
		join(children[me]);
	must(unlink("shared.data") == 0);
}

struct pool {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	uint64_t turn;
};

/* A mutex and a condition variable in shared memory, robust against a killed owner. */
static void locks(void)
{
	char *base = map_shared(LEN);
	struct pool *pool = (struct pool *)base;
	pthread_mutexattr_t mutex;
	pthread_condattr_t changed;
	must(pthread_mutexattr_init(&mutex) == 0 && pthread_condattr_init(&changed) == 0);
	must(pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED) == 0);
	must(pthread_mutexattr_setrobust(&mutex, PTHREAD_MUTEX_ROBUST) == 0);
	must(pthread_condattr_setpshared(&changed, PTHREAD_PROCESS_SHARED) == 0);
	must(pthread_mutex_init(&pool->mutex, &mutex) == 0);
	must(pthread_cond_init(&pool->changed, &changed) == 0);
	pid_t children[3];
	for (int me = 0; me < 3; me++) {
		if ((children[me] = fork()) != 0)
			continue;
		for (uint64_t turn = me; turn < 12; turn += 3) {
			must(pthread_mutex_lock(&pool->mutex) == 0);
			while (pool->turn != turn)
				must(pthread_cond_wait(&pool->changed, &pool->mutex) == 0);
			/* Pushes the page with the lock out. */
			write_pages(base, 1, PAGES, turn);
			pool->turn = turn + 1;
			must(pthread_cond_broadcast(&pool->changed) == 0);
			must(pthread_mutex_unlock(&pool->mutex) == 0);
		}
		_exit(0);
	}
	for (int me = 0; me < 3; me++)
		join(children[me]);
	check_pages(base, 1, PAGES, 11);
	pid_t child = fork();
	if (child == 0) {
		must(pthread_mutex_lock(&pool->mutex) == 0);
		write_pages(base, 1, PAGES, 30);
		raise(SIGKILL);
	}
	must(waitpid(child, NULL, 0) == child);
	must(pthread_mutex_lock(&pool->mutex) == EOWNERDEAD);
	check_pages(base, 1, PAGES, 30);
}

/* Writers killed at any moment: what the others have written stays. */
static void killed(void)
{
	char *base = map_shared(LEN);
	unsigned seed = 7;
	for (int round = 0; round < 12; round++) {
		pid_t child = fork();
		if (child == 0)
			for (uint64_t i = 0;; i++)
				++*word_of(base, i * 31 % PAGES, 9);
		for (uint64_t page = round; page < PAGES; page += 12)
			write_page(base, page, round), *word_of(base, page, 9) = 0;
		usleep(rand_r(&seed) % 20000);
		must(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	}
	for (uint64_t page = 0; page < PAGES; page++) {
		uint64_t *words = (uint64_t *)(base + page * PAGE);
		for (int i = 0; i < 512; i += 8)
			if (i != 144)
				must(words[i] == mix(page * 1000003 + page % 12 * 777767 + i));
	}
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "count";
	void (*ways[])(void) = { count, bare, chain, none_inherited, moved, advised, read_into, locks, killed };
	const char *names[] = { "count",   "bare", "chain", "none", "moved",
				"advised", "read", "locks", "killed" };
	for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++)
		if (!strcmp(way, names[i])) {
			ways[i]();
			puts("done");
			return 0;
		}
	die("no way %s", way);
}
