/* noise PAGES TOUCHES: as random_reads, of pages that no compression makes shorter. */
#include "check.h"

int main(int argc, char **argv)
{
	must(argc == 3);
	uint64_t pages = strtoul(argv[1], NULL, 10), touches = strtoul(argv[2], NULL, 10);
	uint64_t *base = map(pages * PAGE);
	for (uint64_t word = 0; word < pages * PAGE / 8; word++)
		base[word] = mix(word + 1);
	for (uint64_t i = 1; i <= touches; i++) {
		uint64_t word = mix(i) % pages * (PAGE / 8) + i % 512;
		if (base[word] != mix(word + 1))
			die("word %lu is wrong", (unsigned long)word);
	}
	return 0;
}
