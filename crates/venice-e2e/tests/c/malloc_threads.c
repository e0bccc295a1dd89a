/* malloc, calloc, realloc and free of all sizes from many threads, with a fork in between. */
#include "check.h"
#include <malloc.h>
#include <pthread.h>

enum { THREADS = 4, SLOTS = 900, STEPS = 30000 };

struct slot {
	unsigned char *at;
	size_t len;
	unsigned char fill;
};

static size_t length(uint64_t r)
{
	switch (r % 16) {
	case 0: return 150000 + r / 16 % 300000;
	case 1: case 2: return 4096 + r / 16 % 40000;
	default: return 1 + r / 16 % 2000;
	}
}

static void check(const struct slot *slot)
{
	for (size_t i = 0; i < slot->len; i += 1 + slot->len / 64)
		if (slot->at[i] != slot->fill)
			die("a block of %zu bytes is wrong at %zu", slot->len, i);
	if (slot->len && slot->at[slot->len - 1] != slot->fill)
		die("a block of %zu bytes is wrong at its end", slot->len);
}

static void *thread(void *seed)
{
	uint64_t state = (uint64_t)seed;
	struct slot *slots = calloc(SLOTS, sizeof *slots);
	must(slots);
	for (int step = 0; step < STEPS; step++) {
		uint64_t r = mix(state += 0x9e3779b97f4a7c15ul);
		struct slot *slot = &slots[r % SLOTS];
		size_t len = length(r >> 16);
		check(slot);
		if (r >> 60 < 4 && slot->at) {
			slot->at = realloc(slot->at, len);
			must(slot->at);
			size_t kept = len < slot->len ? len : slot->len;
			struct slot old = { slot->at, kept, slot->fill };
			check(&old);
		} else {
			free(slot->at);
			slot->at = r >> 60 < 8 ? calloc(1, len) : malloc(len);
			must(slot->at);
			if (r >> 60 < 8)
				for (size_t i = 0; i < len; i += 97)
					must(slot->at[i] == 0);
		}
		slot->len = len;
		slot->fill = (unsigned char)(r >> 8);
		memset(slot->at, slot->fill, len);
		if (step % 10000 == 5000) {
			pid_t child = fork();
			must(child >= 0);
			if (child == 0) {
				for (int i = 0; i < SLOTS; i++)
					check(&slots[i]);
				_exit(0);
			}
			join(child);
		}
	}
	for (int i = 0; i < SLOTS; i++) {
		check(&slots[i]);
		free(slots[i].at);
	}
	free(slots);
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];
	for (uint64_t i = 0; i < THREADS; i++)
		must(pthread_create(&threads[i], NULL, thread, (void *)(i * 1234567 + 1)) == 0);
	for (int i = 0; i < THREADS; i++)
		must(pthread_join(threads[i], NULL) == 0);
	malloc_trim(0);
	void *aligned;
	must(posix_memalign(&aligned, 2 * MIB, 20 * MIB) == 0);
	write_pages(aligned, 0, 20 * MIB / PAGE, 8);
	check_pages(aligned, 0, 20 * MIB / PAGE, 8);
	free(aligned);
	puts("malloc: every block kept its bytes");
	return 0;
}
