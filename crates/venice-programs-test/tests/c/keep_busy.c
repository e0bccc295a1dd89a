/* keep_busy MIB READY STOP: writes and checks its memory over and over until the file STOP is there. */
#include "check.h"
#include <fcntl.h>

int main(int argc, char **argv)
{
	must(argc == 4);
	uint64_t pages = strtoul(argv[1], NULL, 10) * 256, generation = 1;
	char *base = map(pages * PAGE);
	write_pages(base, 0, pages, 1);
	check_pages(base, 0, pages, 1);
	must(close(open(argv[2], O_CREAT | O_WRONLY, 0600)) == 0);
	for (; access(argv[3], F_OK) != 0; generation++) {
		check_pages(base, 0, pages, generation);
		write_pages(base, 0, pages, generation + 1);
	}
	check_pages(base, 0, pages, generation);
	puts("every byte right");
	return 0;
}
