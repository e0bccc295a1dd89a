/* close_range, dup2 and unshare by syscall(2), in every flavour: the memory is still paged. */
#include "check.h"
#include <fcntl.h>
#include <linux/close_range.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>

enum { PAGES = 32 * 256 };
static char *base;
static uint64_t generation = 1;

static void still_paged(void)
{
	check_pages(base, 0, PAGES, generation);
	generation++;
	write_pages(base, 0, PAGES, generation);
	push_out();
	check_pages(base, 0, PAGES, generation);
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		check_pages(base, 0, PAGES, generation);
		write_pages(base, 0, PAGES, generation + 1);
		check_pages(base, 0, PAGES, generation + 1);
		_exit(0);
	}
	join(child);
}

static void *unshared(void *arg)
{
	int fd = *(int *)arg;
	must(close_range(fd, fd, CLOSE_RANGE_UNSHARE) == 0);
	must(fcntl(fd, F_GETFD) == -1 && errno == EBADF);
	still_paged();
	return NULL;
}

int main(void)
{
	base = map(PAGES * PAGE);
	write_pages(base, 0, PAGES, generation);
	push_out();
	must(syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC) == 0);
	still_paged();
	must(syscall(SYS_close_range, 3, ~0u, 0) == 0);
	still_paged();
	must(syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_UNSHARE) == 0);
	still_paged();
	must(unshare(CLONE_FILES) == 0);
	still_paged();
	must(syscall(SYS_close_range, 5, 4, 0) == -1 && errno == EINVAL);
	must(syscall(SYS_close_range, 3, ~0u, 64) == -1 && errno == EINVAL);
	for (int fd = 3; fd < 70000; fd++)
		syscall(SYS_close, fd);
	still_paged();
	/* A table of descriptors of one thread alone. */
	int fd = open("/dev/null", O_RDONLY);
	must(fd == 3);
	pthread_t thread;
	must(pthread_create(&thread, NULL, unshared, &fd) == 0 && pthread_join(thread, NULL) == 0);
	must(fcntl(fd, F_GETFD) >= 0);
	still_paged();
	puts("bare_descriptors: still paged");
	return 0;
}
