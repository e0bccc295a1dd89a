/* One long pass over much more memory than is local. With "hot", a small set of pages is touched again
 * after each step of it; with "scan", only before the pass. */
#include "check.h"

enum { COLD = 32768, HOT = 512, STEP = 64 };

int main(int argc, char **argv)
{
	int is_hot = argc > 1 && !strcmp(argv[1], "hot");
	char *hot = map(HOT * PAGE), *cold = map(COLD * PAGE);
	write_pages(hot, 0, HOT, 1);
	write_pages(cold, 0, COLD, 2);
	check_pages(hot, 0, HOT, 1);
	for (uint64_t i = 0; i < COLD; i += STEP) {
		check_pages(cold, i, i + STEP, 2);
		if (is_hot)
			check_pages(hot, 0, HOT, 1);
	}
	return 0;
}
