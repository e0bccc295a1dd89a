/* MAP_FIXED over, and munmap out of the middle of, memory that is partly far. */
#include "check.h"

enum { PAGES = 32 * 256 };

int main(void)
{
	char *base = map(PAGES * PAGE);
	write_pages(base, 0, PAGES, 1);
	char *middle = base + 1000 * PAGE;
	must(mmap(middle, 500 * PAGE, PROT_READ | PROT_WRITE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == middle);
	check_zero(middle, 500 * PAGE);
	check_pages(base, 0, 1000, 1);
	check_pages(base, 1500, PAGES, 1);
	write_pages(base, 1000, 1500, 2);
	push_out();
	check_pages(base, 1000, 1500, 2);

	/* Holes; then the same addresses again. */
	for (int i = 2000; i < 3000; i += 10)
		must(munmap(base + i * PAGE, 5 * PAGE) == 0);
	for (int i = 2000; i < 3000; i += 10) {
		check_pages(base, i + 5, i + 10, 1);
		char *hole = base + i * PAGE;
		must(mmap(hole, 5 * PAGE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == hole);
		check_zero(hole, 5 * PAGE);
		write_pages(base, i, i + 5, 3);
	}
	push_out();
	for (int i = 2000; i < 3000; i += 10) {
		check_pages(base, i, i + 5, 3);
		check_pages(base, i + 5, i + 10, 1);
	}

	/* A file over anonymous memory, and anonymous memory over the file. */
	FILE *file = tmpfile();
	char page[PAGE];
	memset(page, 'f', PAGE);
	for (int i = 0; i < 100; i++)
		must(fwrite(page, PAGE, 1, file) == 1);
	must(fflush(file) == 0);
	char *over = base + 4000 * PAGE;
	must(mmap(over, 100 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
		  fileno(file), 0) == over);
	for (size_t i = 0; i < 100 * PAGE; i += 61)
		must(over[i] == 'f');
	check_pages(base, 3900, 4000, 1);
	check_pages(base, 4100, 4200, 1);
	must(mmap(over, 100 * PAGE, PROT_READ | PROT_WRITE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == over);
	check_zero(over, 100 * PAGE);

	/* Many small mappings side by side, come and gone. */
	char *small[2000];
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 2000; i++) {
			small[i] = map(4 * PAGE);
			write_pages(small[i], 0, 4, i);
		}
		for (int i = 0; i < 2000; i++)
			check_pages(small[i], 0, 4, i);
		for (int i = 0; i < 2000; i++)
			must(munmap(small[(i * 7) % 2000], 4 * PAGE) == 0);
	}
	puts("map_fixed: old and new kept apart");
	return 0;
}
