/* A child made by a bare system call has a copy of everything and no pager: changes of
 * its address space do not affect its parent's memory. */
#include "check.h"
#include <signal.h>
#include <sys/syscall.h>

enum { PAGES = 32 * 256 };

static void child(char *base)
{
	check_pages(base, 0, PAGES, 1);
	must(munmap(base, PAGES / 2 * PAGE) == 0);
	must(madvise(base + PAGES / 2 * PAGE, PAGES / 4 * PAGE, MADV_DONTNEED) == 0);
	check_zero(base + PAGES / 2 * PAGE, PAGES / 4 * PAGE);
	char *own = map(PAGES / 4 * PAGE);
	write_pages(own, 0, PAGES / 4, 3);
	check_pages(own, 0, PAGES / 4, 3);
	must(mremap(own, PAGES / 4 * PAGE, PAGES * PAGE, MREMAP_MAYMOVE) != MAP_FAILED);
	check_pages(base, 3 * PAGES / 4, PAGES, 1);
	_exit(0);
}

int main(void)
{
	char *base = map(PAGES * PAGE);
	write_pages(base, 0, PAGES, 1);
	pid_t pid = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	must(pid >= 0);
	if (pid == 0)
		child(base);
	join(pid);
	/* All far memory is used in turn: a slot released wrongly by the child would be reused now. */
	for (int i = 0; i < 4; i++)
		push_out();
	check_pages(base, 0, PAGES, 1);
	puts("fork_bare: the parent has what it had");
	return 0;
}
