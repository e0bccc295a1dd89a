/* madvise: DONTNEED gives zeros, resident or far; FREE gives the old or zeros, and keeps writes. */
#include "check.h"

enum { PAGES = 32 * 256 };

int main(void)
{
	char *base = map(PAGES * PAGE);
	write_pages(base, 0, PAGES, 1);
	/* The first pages are far by now, the last resident. */
	must(madvise(base, 64 * PAGE, MADV_DONTNEED) == 0);
	must(madvise(base + (PAGES - 64) * PAGE, 64 * PAGE, MADV_DONTNEED) == 0);
	check_zero(base, 64 * PAGE);
	check_zero(base + (PAGES - 64) * PAGE, 64 * PAGE);
	check_pages(base, 64, PAGES - 64, 1);
	write_pages(base, 0, 64, 2);
	push_out();
	check_pages(base, 0, 64, 2);
	check_zero(base + (PAGES - 64) * PAGE, 64 * PAGE);

	/* All of it, again and again: what is dropped must also be free far away. */
	for (int round = 0; round < 24; round++) {
		write_pages(base, 0, PAGES, 10 + round);
		check_pages(base, 0, 16, 10 + round);
		must(madvise(base, PAGES * PAGE, MADV_DONTNEED) == 0);
		check_zero(base + (round * 97 % (PAGES - 4)) * PAGE, 4 * PAGE);
	}
	check_zero(base, PAGES * PAGE);

	write_pages(base, 0, PAGES, 3);
	must(madvise(base, PAGES / 2 * PAGE, MADV_FREE) == 0);
	push_out();
	for (int i = 0; i < PAGES / 2; i++) {
		if (page_is(base, i, 3))
			continue;
		check_zero(base + i * PAGE, PAGE);
	}
	check_pages(base, PAGES / 2, PAGES, 3);
	must(madvise(base, PAGES / 2 * PAGE, MADV_FREE) == 0);
	write_pages(base, 0, PAGES / 2, 4);
	push_out();
	check_pages(base, 0, PAGES / 2, 4);

	/* Hints change nothing. */
	must(madvise(base, PAGES * PAGE, MADV_SEQUENTIAL) == 0);
	must(madvise(base, PAGES * PAGE, MADV_WILLNEED) == 0);
	must(madvise(base, PAGES * PAGE, MADV_COLD) == 0);
	must(madvise(base, PAGES * PAGE, MADV_PAGEOUT) == 0 || errno == EINVAL);
	madvise(base, PAGES * PAGE, MADV_HUGEPAGE);
	check_pages(base, 0, PAGES / 2, 4);
	check_pages(base, PAGES / 2, PAGES, 3);

	/* DONTFORK: the child has not got it; the parent keeps it. */
	must(madvise(base, PAGE * 16, MADV_DONTFORK) == 0);
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		check_pages(base, 16, 512, 4);
		_exit(0);
	}
	join(child);
	check_pages(base, 0, PAGES / 2, 4);
	puts("madvise: dropped and kept as told");
	return 0;
}
