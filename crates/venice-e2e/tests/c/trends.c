/* Reads far memory in the given order; `--stats` counts the prefetched pages. */
#include "check.h"

enum { PAGES = 12288, QUARTER = PAGES / 4 };

static char *base;

static void touch(uint64_t page)
{
	if (!page_is(base, page, 1))
		die("page %lu is wrong", (unsigned long)page);
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	base = map(PAGES * PAGE);
	write_pages(base, 0, PAGES, 1);
	if (!strcmp(how, "backwards")) {
		for (uint64_t i = PAGES; i-- > 0;)
			touch(i);
	} else if (!strcmp(how, "strided")) {
		for (uint64_t i = 0; i < PAGES; i += 5)
			touch(i);
	} else if (!strcmp(how, "in turn")) {
		/* Three streams: on, back, and by twos. */
		for (uint64_t i = 0; i < QUARTER; i++) {
			touch(i);
			touch(2 * QUARTER - 1 - i);
			touch(2 * QUARTER + 2 * i);
		}
	} else if (!strcmp(how, "noisy")) {
		/* Every fifth touch is random. */
		for (uint64_t i = 0; i < PAGES; i += 3) {
			touch(i);
			if (mix(i) % 5 == 0)
				touch(mix(i + 1) % PAGES);
		}
	} else if (!strcmp(how, "random")) {
		for (uint64_t i = 0; i < PAGES; i++)
			touch(mix(i + 1) % PAGES);
	} else if (!strcmp(how, "pairs")) {
		for (uint64_t i = 0; i < PAGES / 2; i++) {
			uint64_t page = mix(i + 1) % (PAGES / 4) * 4;
			touch(page);
			touch(page + 1);
		}
	} else
		die("no such order: %s", how);
	return 0;
}
