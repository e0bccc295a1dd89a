/* fork_over_and_over MIB READY STOP: writes its memory, has a child check and change its own copy, and
 * checks that its own is as it was, until the file STOP is there. */
#include "check.h"
#include <fcntl.h>

int main(int argc, char **argv)
{
	must(argc == 4);
	uint64_t pages = strtoul(argv[1], NULL, 10) * 256, generation = 1;
	char *base = map(pages * PAGE);
	write_pages(base, 0, pages, generation);
	must(close(open(argv[2], O_CREAT | O_WRONLY, 0600)) == 0);
	for (; access(argv[3], F_OK) != 0; generation++) {
		pid_t child = fork();
		must(child >= 0);
		if (child == 0) {
			check_pages(base, 0, pages, generation);
			write_pages(base, 0, pages, 0);
			check_pages(base, 0, pages, 0);
			_exit(0);
		}
		int status;
		must(waitpid(child, &status, 0) == child && status == 0);
		check_pages(base, 0, pages, generation);
		write_pages(base, 0, pages, generation + 1);
	}
	puts("every byte right");
	return 0;
}
