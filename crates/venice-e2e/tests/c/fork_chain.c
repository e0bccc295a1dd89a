/* Nested forks: a chain of processes that write and check, and end in any order. */
#include "check.h"

enum { PAGES = 32 * 256, DEPTH = 4 };

static void level(void *base, int depth)
{
	if (depth == DEPTH)
		return;
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		int from = depth * PAGES / DEPTH, to = (depth + 1) * PAGES / DEPTH;
		write_pages(base, from, to, 10 + depth);
		level(base, depth + 1);
		for (int above = 0; above <= depth; above++)
			check_pages(base, above * PAGES / DEPTH, (above + 1) * PAGES / DEPTH, 10 + above);
		check_pages(base, to, PAGES, 1);
		/* Memory mapped after the fork is the child's alone. */
		void *own = map(16 * MIB);
		write_pages(own, 0, 16 * MIB / PAGE, 20 + depth);
		check_pages(own, 0, 16 * MIB / PAGE, 20 + depth);
		_exit(0);
	}
	join(child);
	for (int above = 0; above < depth; above++)
		check_pages(base, above * PAGES / DEPTH, (above + 1) * PAGES / DEPTH, 10 + above);
	check_pages(base, depth * PAGES / DEPTH, PAGES, 1);
}

/* The parent ends before the child: its far memory must stay for the child. */
static void orphan(void *base)
{
	int done[2], gone[2];
	char byte = 0;
	must(pipe(done) == 0 && pipe(gone) == 0);
	pid_t middle = fork();
	must(middle >= 0);
	if (middle == 0) {
		write_pages(base, 0, PAGES, 77);
		pid_t last = fork();
		must(last >= 0);
		if (last > 0)
			_exit(0);
		must(read(gone[0], &byte, 1) == 1);
		push_out();
		check_pages(base, 0, PAGES, 77);
		must(write(done[1], &byte, 1) == 1);
		_exit(0);
	}
	join(middle);
	close(done[1]);
	must(write(gone[1], &byte, 1) == 1);
	if (read(done[0], &byte, 1) != 1)
		die("the orphan found a wrong page");
	check_pages(base, 0, PAGES, 1);
}

int main(void)
{
	void *base = map(PAGES * PAGE);
	write_pages(base, 0, PAGES, 1);
	level(base, 0);
	check_pages(base, 0, PAGES, 1);
	orphan(base);
	puts("chain: everyone has their own");
	return 0;
}
