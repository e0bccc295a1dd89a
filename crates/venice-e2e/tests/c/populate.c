/* populate: brings large mappings in before they are used (MADV_POPULATE_READ, MADV_POPULATE_WRITE),
 * fresh ones and far ones, and expects the kernel's errors where that is impossible. */
#include "check.h"
#include <errno.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

static uint64_t there(char *base, uint64_t pages)
{
	unsigned char *vec = malloc(pages);
	uint64_t count = 0;
	must(vec && mincore(base, pages * PAGE, vec) == 0);
	for (uint64_t page = 0; page < pages; page++)
		count += vec[page] & 1;
	free(vec);
	return count;
}

static void fails(char *base, uint64_t pages, int advice, int expected)
{
	errno = 0;
	must(madvise(base, pages * PAGE, advice) == -1);
	must(errno == expected);
}

int main(void)
{
	/* Fresh: all of it fits. */
	uint64_t few = 5 << 8, many = 64 << 8;
	char *fresh = map(few * PAGE);
	must(madvise(fresh, few * PAGE, MADV_POPULATE_WRITE) == 0);
	must(there(fresh, few) == few);
	write_pages(fresh, 0, few, 1);

	/* More than may be here: no error, and no byte changes. */
	char *base = map(many * PAGE);
	must(madvise(base, many * PAGE, MADV_POPULATE_READ) == 0);
	must(base[0] == 0 && base[many * PAGE - 1] == 0);
	write_pages(base, 0, many, 2);
	for (int round = 0; round < 2; round++) {
		int advice = round ? MADV_POPULATE_READ : MADV_POPULATE_WRITE;
		must(madvise(base, many * PAGE, advice) == 0);
		/* A part that is far now. */
		must(madvise(base, few / 2 * PAGE, advice) == 0);
		must(there(base, few / 2) > few / 4);
		check_pages(base, 0, many, 2);
	}
	check_pages(fresh, 0, few, 1);

	/* The kernel reports impossible requests. */
	must(madvise(base + PAGE, 0, MADV_POPULATE_READ) == 0);
	fails(base + 1, 1, MADV_POPULATE_READ, EINVAL);
	must(mprotect(base + 100 * PAGE, PAGE, PROT_READ) == 0);
	must(madvise(base, 200 * PAGE, MADV_POPULATE_READ) == 0);
	fails(base, 200, MADV_POPULATE_WRITE, EINVAL);
	must(mprotect(base + 100 * PAGE, PAGE, PROT_NONE) == 0);
	fails(base, 200, MADV_POPULATE_READ, EINVAL);
	must(mprotect(base + 100 * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
	must(munmap(base + 150 * PAGE, PAGE) == 0);
	fails(base, 200, MADV_POPULATE_READ, ENOMEM);
	check_pages(base, 0, 150, 2);
	puts("populated");
	return 0;
}
