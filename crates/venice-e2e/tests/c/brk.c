/* The heap by sbrk itself: up, down, up again. */
#include "check.h"

int main(void)
{
	size_t pages = 40 * 256;
	uintptr_t now = (uintptr_t)sbrk(0);
	must(sbrk((PAGE - now % PAGE) % PAGE) != (void *)-1);
	char *base = sbrk(pages * PAGE);
	must(base != (void *)-1);
	check_zero(base, pages * PAGE);
	write_pages(base, 0, pages, 1);
	check_pages(base, 0, pages, 1);
	must(sbrk(-(intptr_t)(pages / 2 * PAGE)) != (void *)-1);
	must(sbrk(0) == base + pages / 2 * PAGE);
	check_pages(base, 0, pages / 2, 1);
	char *again = sbrk(pages / 2 * PAGE);
	must(again == base + pages / 2 * PAGE);
	check_zero(again, pages / 2 * PAGE);
	write_pages(base, pages / 2, pages, 2);
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		check_pages(base, 0, pages / 2, 1);
		must(sbrk(8 * MIB) != (void *)-1);
		write_pages(base, 0, pages, 3);
		check_pages(base, 0, pages, 3);
		_exit(0);
	}
	join(child);
	check_pages(base, 0, pages / 2, 1);
	check_pages(base, pages / 2, pages, 2);
	/* brk to below: allowed, and back. */
	must(brk(base) == 0);
	must(sbrk(0) == base);
	/* Page by page, each touched at once: read-ahead looks beyond the end that is just moving. */
	for (int round = 0; round < 6; round++) {
		for (size_t i = 0; i < pages; i++) {
			must(sbrk(PAGE) == base + i * PAGE);
			write_pages(base, i, i + 1, 4 + round);
		}
		check_pages(base, 0, pages, 4 + round);
		must(brk(base) == 0);
	}
	puts("brk: up, down and up again");
	return 0;
}
