/* Closes every descriptor like a daemon, and uses low and high descriptor numbers. */
#include "check.h"
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

enum { PAGES = 32 * 256 };
static char *base;

static void still_paged(uint64_t generation)
{
	check_pages(base, 0, PAGES, generation);
	write_pages(base, 0, PAGES, generation + 1);
	push_out();
	check_pages(base, 0, PAGES, generation + 1);
}

static void in_child(void (*act)(void), uint64_t generation)
{
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		act();
		still_paged(generation);
		_exit(0);
	}
	join(child);
}

static void close_range_all(void)
{
	must(close_range(3, ~0u, 0) == 0);
}

static void closefrom_all(void)
{
	closefrom(3);
}

static void nothing(void)
{
}

static void take_all_numbers(void)
{
	struct rlimit limit;
	must(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	for (int fd = 3; fd < (int)limit.rlim_cur && fd < 70000; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			dup2(1, fd);
}

int main(void)
{
	base = map(PAGES * PAGE);
	write_pages(base, 0, PAGES, 1);
	/* The traditional way: all possible numbers. */
	struct rlimit limit;
	must(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	for (int fd = 3; fd < (int)limit.rlim_cur && fd < 1 << 20; fd++)
		close(fd);
	still_paged(1);
	int low = open("/dev/null", O_RDONLY);
	must(low == 3 && close(low) == 0);
	/* Redis and others raise their limit, daemons lower it. */
	limit.rlim_cur = limit.rlim_cur > 512 ? 512 : limit.rlim_cur;
	must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	still_paged(2);
	in_child(nothing, 3);
	must(prlimit(0, RLIMIT_NOFILE, NULL, &limit) == 0);
	limit.rlim_cur = limit.rlim_max;
	must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	still_paged(3);
	in_child(close_range_all, 4);
	in_child(closefrom_all, 4);
	in_child(take_all_numbers, 4);
	check_pages(base, 0, PAGES, 4);
	close_range_all();
	still_paged(4);
	puts("close_all: still paged");
	return 0;
}
