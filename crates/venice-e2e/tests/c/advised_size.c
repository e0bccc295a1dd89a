/* advised_size huge|"no huge"|nothing: gives this advice for its memory, writes it and reads it backwards. */
#include "check.h"

enum { PAGES = 12288 };

int main(int argc, char **argv)
{
	must(argc == 2);
	char *base = map(PAGES * PAGE);
	if (!strcmp(argv[1], "huge"))
		must(madvise(base, PAGES * PAGE, MADV_HUGEPAGE) == 0);
	else if (!strcmp(argv[1], "no huge"))
		must(madvise(base, PAGES * PAGE, MADV_NOHUGEPAGE) == 0);
	else
		must(!strcmp(argv[1], "nothing"));
	write_pages(base, 0, PAGES, 1);
	for (uint64_t i = PAGES; i-- > 0;)
		if (!page_is(base, i, 1))
			die("page %lu is wrong", (unsigned long)i);
	return 0;
}
