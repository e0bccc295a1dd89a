/* fork: each side sees the moment of the fork, whatever the other writes after it. */
#include "check.h"

enum { PAGES = 64 * 256 };

static void round_of(void *base, uint64_t generation)
{
	int to_child[2], to_parent[2];
	char byte = 0;
	must(pipe(to_child) == 0 && pipe(to_parent) == 0);
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		/* Half of what the parent rewrites meanwhile is read before, half after. */
		check_pages(base, 0, PAGES / 8, generation);
		must(write(to_parent[1], &byte, 1) == 1 && read(to_child[0], &byte, 1) == 1);
		check_pages(base, 0, PAGES, generation);
		write_pages(base, PAGES / 4, PAGES * 3 / 4, generation + 100);
		must(write(to_parent[1], &byte, 1) == 1 && read(to_child[0], &byte, 1) == 1);
		check_pages(base, 0, PAGES / 4, generation);
		check_pages(base, PAGES / 4, PAGES * 3 / 4, generation + 100);
		check_pages(base, PAGES * 3 / 4, PAGES, generation);
		_exit(0);
	}
	write_pages(base, 0, PAGES / 2, generation + 1);
	must(read(to_parent[0], &byte, 1) == 1 && write(to_child[1], &byte, 1) == 1);
	must(read(to_parent[0], &byte, 1) == 1);
	check_pages(base, 0, PAGES / 2, generation + 1);
	check_pages(base, PAGES / 2, PAGES, generation);
	must(write(to_child[1], &byte, 1) == 1);
	join(child);
	check_pages(base, 0, PAGES / 2, generation + 1);
	check_pages(base, PAGES / 2, PAGES, generation);
	write_pages(base, PAGES / 2, PAGES, generation + 1);
	close(to_child[0]), close(to_child[1]), close(to_parent[0]), close(to_parent[1]);
}

int main(void)
{
	void *base = map(PAGES * PAGE);
	write_pages(base, 0, PAGES, 1);
	for (uint64_t generation = 1; generation <= 4; generation++)
		round_of(base, generation);
	/* Many short-lived children at once, each with its own part. */
	pid_t children[8];
	for (int i = 0; i < 8; i++) {
		children[i] = fork();
		must(children[i] >= 0);
		if (children[i] == 0) {
			write_pages(base, i * 512, (i + 1) * 512, 50 + i);
			check_pages(base, i * 512, (i + 1) * 512, 50 + i);
			check_pages(base, 8 * 512, PAGES, 5);
			_exit(0);
		}
	}
	for (int i = 0; i < 8; i++)
		join(children[i]);
	check_pages(base, 0, PAGES, 5);
	puts("fork: both sides right");
	return 0;
}
