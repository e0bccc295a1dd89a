/* mremap: grow, move, shrink, onto a fixed place; contents follow. */
#include "check.h"

int main(void)
{
	size_t pages = 24 * 256;
	char *at = map(pages * PAGE);
	write_pages(at, 0, pages, 1);
	/* Grow; something behind it makes it move. */
	char *behind = mmap(at + pages * PAGE, PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(behind != MAP_FAILED);
	char *grown = mremap(at, pages * PAGE, 2 * pages * PAGE, MREMAP_MAYMOVE);
	must(grown != MAP_FAILED);
	check_pages(grown, 0, pages, 1);
	check_zero(grown + pages * PAGE, pages * PAGE);
	write_pages(grown, pages, 2 * pages, 2);
	push_out();
	check_pages(grown, 0, pages, 1);
	check_pages(grown, pages, 2 * pages, 2);

	/* Shrink in place: the cut part is unmapped, and reads as zeros when mapped again. */
	must(mremap(grown, 2 * pages * PAGE, pages * PAGE, 0) == grown);
	char *again = mmap(grown + pages * PAGE, pages * PAGE, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	must(again == grown + pages * PAGE);
	check_zero(again, pages * PAGE);
	check_pages(grown, 0, pages, 1);

	/* Onto a fixed place that held something else. */
	char *target = map(pages * PAGE);
	write_pages(target, 0, pages, 9);
	push_out();
	must(mremap(grown, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target);
	check_pages(target, 0, pages, 1);

	/* A part out of the middle. */
	char *part = map(64 * PAGE);
	must(mremap(target + 128 * PAGE, 64 * PAGE, 64 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, part) == part);
	for (int i = 0; i < 64; i++) {
		char page[PAGE];
		memcpy(page, part + i * PAGE, PAGE);
		uint64_t *word = (uint64_t *)page;
		if (word[511] != mix((128 + i) * 31 + 1))
			die("moved page %d is wrong", i);
	}
	check_pages(target, 0, 128, 1);
	check_pages(target, 192, pages, 1);

	/* realloc of large blocks is mremap as well. */
	size_t len = 8 * MIB;
	char *block = malloc(len);
	memset(block, 1, len);
	for (int round = 0; round < 4; round++) {
		block = realloc(block, 2 * len);
		must(block);
		for (size_t i = 0; i < len; i += 513)
			must(block[i] == 1);
		memset(block + len, 1, len);
		len *= 2;
		if (len > 40 * MIB) {
			len = 8 * MIB;
			block = realloc(block, len);
			must(block);
		}
	}
	free(block);
	puts("mremap: contents followed");
	return 0;
}
