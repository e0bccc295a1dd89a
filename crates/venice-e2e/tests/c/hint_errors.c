/* Every hint returns the errors of madvise(2), and affects the mapped part of the range. */
#include "check.h"

enum { PAGES = 256 };

static const struct {
	const char *name;
	int advice;
} HINTS[] = {
	{"normal", MADV_NORMAL}, {"random", MADV_RANDOM},     {"sequential", MADV_SEQUENTIAL},
	{"willneed", MADV_WILLNEED}, {"cold", MADV_COLD}, {"pageout", MADV_PAGEOUT},
	{"none", 4711},
};

static void try(const char *what, void *at, size_t len)
{
	for (size_t i = 0; i < sizeof(HINTS) / sizeof(*HINTS); i++) {
		errno = 0;
		int outcome = madvise(at, len, HINTS[i].advice);
		printf("%s %s: %d, errno %d", what, HINTS[i].name, outcome, errno);
		if (HINTS[i].advice <= MADV_WILLNEED)
			printf(", posix %d", posix_madvise(at, len, HINTS[i].advice));
		printf("\n");
	}
	printf("%s posix dontneed: %d\n", what, posix_madvise(at, len, POSIX_MADV_DONTNEED));
}

int main(void)
{
	char *base = map(PAGES * PAGE);
	write_pages(base, 0, PAGES, 1);
	push_out();
	try("whole", base, PAGES * PAGE);
	try("not at a page", base + 100, 8 * PAGE);
	try("part of a page", base, 100);
	try("nothing", base, 0);
	try("too long", base, (size_t)-PAGE);
	try("the kernel's", (void *)(1ul << 63), PAGE);
	check_pages(base, 0, PAGES, 1);

	must(munmap(base + 64 * PAGE, 64 * PAGE) == 0);
	try("with a hole", base, PAGES * PAGE);
	try("a hole", base + 64 * PAGE, 64 * PAGE);
	check_pages(base, 0, 64, 1);
	check_pages(base, 128, PAGES, 1);

	must(mprotect(base, 32 * PAGE, PROT_NONE) == 0);
	try("not to be touched", base, 64 * PAGE);
	must(mprotect(base, 32 * PAGE, PROT_READ | PROT_WRITE) == 0);
	check_pages(base, 0, 64, 1);

	must(mlock(base, 16 * PAGE) == 0);
	try("locked", base, 32 * PAGE);
	check_pages(base, 0, 64, 1);
	return 0;
}
