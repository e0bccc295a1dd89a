/* fork_pool MIB WORKERS [READY STOP]: a server that forks its workers beforehand. Each reads all that the
 * server wrote, and rewrites a slice of its own, over and over. After three rounds of all workers READY is
 * made; they end once STOP is there. Without the two they end after three rounds. */
#include "check.h"
#include <fcntl.h>

enum { ROUNDS = 3, MOST = 64 };

static void work(char *base, uint64_t pages, int worker, int workers, int round)
{
	uint64_t own = pages / 2 / MOST, from = pages / 2 + worker * own;
	check_pages(base, 0, pages / 2, 1);
	check_pages(base, from, from + own, round == 1 ? 1 : 100 + worker + round - 1);
	write_pages(base, from, from + own, 100 + worker + round);
	for (int other = 0; other < workers; other++)
		if (other != worker)
			check_pages(base, pages / 2 + other * own, pages / 2 + (other + 1) * own, 1);
}

int main(int argc, char **argv)
{
	must(argc == 3 || argc == 5);
	uint64_t pages = strtoul(argv[1], NULL, 10) * 256;
	int workers = atoi(argv[2]), ends[2], status;
	must(workers <= MOST && pipe(ends) == 0);
	char *base = map(pages * PAGE), done = 1;
	write_pages(base, 0, pages, 1);
	for (int worker = 0; worker < workers; worker++) {
		if (fork() != 0)
			continue;
		int round = 1;
		for (; round <= ROUNDS; round++)
			work(base, pages, worker, workers, round);
		must(write(ends[1], &done, 1) == 1);
		for (; argc == 5 && access(argv[4], F_OK) != 0; round++) {
			work(base, pages, worker, workers, round);
			usleep(200000);
		}
		_exit(0);
	}
	for (int worker = 0; worker < workers; worker++)
		must(read(ends[0], &done, 1) == 1);
	if (argc == 5)
		must(close(open(argv[3], O_CREAT | O_WRONLY, 0600)) == 0);
	for (int worker = 0; worker < workers; worker++)
		must(wait(&status) > 0 && status == 0);
	check_pages(base, 0, pages, 1);
	puts("every byte right");
	return 0;
}
