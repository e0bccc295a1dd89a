/* Reads memory in order, again and again. The line of `--stats` counts the far faults. */
#include "check.h"

int main(int argc, char **argv)
{
	uint64_t pages = argc > 1 ? strtoul(argv[1], NULL, 0) : 0;
	int rounds = argc > 2 ? atoi(argv[2]) : 0;
	char *base = map(pages * PAGE);
	write_pages(base, 0, pages, 1);
	for (int round = 0; round < rounds; round++)
		for (uint64_t i = 0; i < pages; i++)
			if (!page_is(base, i, 1))
				die("page %lu is wrong", (unsigned long)i);
	return 0;
}
