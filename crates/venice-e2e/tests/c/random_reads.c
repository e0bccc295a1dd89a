/* random_reads PAGES TOUCHES: writes so many pages, then reads words of them at random. */
#include "check.h"

int main(int argc, char **argv)
{
	must(argc == 3);
	uint64_t pages = strtoul(argv[1], NULL, 10), touches = strtoul(argv[2], NULL, 10);
	uint64_t *base = map(pages * PAGE);
	write_pages(base, 0, pages, 1);
	for (uint64_t i = 1; i <= touches; i++) {
		uint64_t page = mix(i) % pages;
		if (base[page * PAGE / 8 + 511] != mix(page * 31 + 1))
			die("page %lu is wrong", (unsigned long)page);
	}
	return 0;
}
