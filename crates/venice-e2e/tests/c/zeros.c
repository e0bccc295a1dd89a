/* Zeros, written to much more memory than is local, and data in one page of 64; all of it is read back. */
#include "check.h"

enum { PAGES = 16384, EVERY = 64 };

int main(void)
{
	char *base = map(PAGES * PAGE);
	for (uint64_t i = 0; i < PAGES; i++) {
		if (i % EVERY == 0)
			write_page(base, i, 1);
		else
			memset(base + i * PAGE, 0, PAGE);
	}
	for (uint64_t i = 0; i < PAGES; i++) {
		if (i % EVERY == 0)
			check_pages(base, i, i + 1, 1);
		else
			check_zero(base + i * PAGE, PAGE);
	}
	return 0;
}
