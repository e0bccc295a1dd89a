/* Memory advised MADV_DONTFORK keeps its bytes here and is not mapped in a child, which may map
 * its own there; MADV_DOFORK takes the advice back. */
#include <fcntl.h>
#include <signal.h>
#include "check.h"

enum { PAGES = 40 * 256 };

static int is_mapped(void *addr)
{
	unsigned char seen;
	return mincore(addr, PAGE, &seen) == 0;
}

/* Fills the free addresses above `kept` that a thread's stack has room in. */
static void fill_gaps(char *kept)
{
	int fd = open("/proc/self/exe", O_RDONLY);
	char *at;

	must(fd >= 0);
	do {
		at = mmap(NULL, 128 * PAGE, PROT_NONE, MAP_PRIVATE, fd, 0);
		must(at != MAP_FAILED);
	} while (at > kept);
	close(fd);
}

static void child_side(char *kept, char *given)
{
	must(!is_mapped(kept) && errno == ENOMEM);
	check_pages(given, 0, PAGES, 2);
	check_pages(kept, PAGES / 2, PAGES, 1);
	for (int page = 0; page < PAGES / 2; page++)
		must(!is_mapped(kept + page * PAGE));
	/* A mapping of the child's own at the same place starts zeroed. */
	void *own = mmap(kept, PAGES / 2 * PAGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	must(own == kept);
	check_zero(own, PAGES / 2 * PAGE);
	write_pages(own, 0, PAGES / 2, 7);
	write_pages(given, 0, PAGES, 8);
	/* A grandchild gets what the child mapped anew. */
	pid_t grandchild = fork();
	must(grandchild >= 0);
	if (grandchild == 0) {
		check_pages(own, 0, PAGES / 2, 7);
		_exit(0);
	}
	join(grandchild);
	check_pages(own, 0, PAGES / 2, 7);
	check_pages(given, 0, PAGES, 8);
	_exit(0);
}

int main(void)
{
	char *kept = map(PAGES * PAGE), *given = map(PAGES * PAGE);
	fill_gaps(kept);
	must(madvise(kept, PAGES * PAGE, MADV_DONTFORK) == 0);
	write_pages(kept, 0, PAGES, 1);
	write_pages(given, 0, PAGES, 2);
	must(madvise(kept + PAGES / 2 * PAGE, PAGES / 2 * PAGE, MADV_DOFORK) == 0);
	for (int round = 0; round < 3; round++) {
		pid_t child = fork();
		must(child >= 0);
		if (child == 0)
			child_side(kept, given);
		join(child);
		check_pages(kept, 0, PAGES, 1);
		check_pages(given, 0, PAGES, 2);
	}
	/* The advice goes along with the mapping. */
	char *moved = mremap(kept, PAGES / 2 * PAGE, PAGES * PAGE, MREMAP_MAYMOVE);
	must(moved != MAP_FAILED);
	write_pages(moved, PAGES / 2, PAGES, 1);
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		must(!is_mapped(moved) && !is_mapped(moved + (PAGES - 1) * PAGE));
		_exit(0);
	}
	join(child);
	check_pages(moved, 0, PAGES, 1);
	must(madvise(given, PAGE / 2, 77) == -1 && errno == EINVAL);
	puts("dont_fork: bytes kept");
	return 0;
}
