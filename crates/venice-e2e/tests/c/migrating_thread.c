/* Goes from one processor to the other every few milliseconds and touches far memory on each; then
 * does so with a busy process on every processor, and in a forked child. */
#define _GNU_SOURCE
#include "check.h"
#include <sched.h>
#include <signal.h>
#include <time.h>

#define PAGES (40 * MIB / PAGE)

static uint64_t now_ms(void)
{
	struct timespec now;
	must(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return now.tv_sec * 1000ul + now.tv_nsec / 1000000;
}

/* The processor numbered `nth` of those it may use; it may leave that again. */
static void go_to(const cpu_set_t *allowed, uint64_t nth)
{
	cpu_set_t one;
	nth %= CPU_COUNT(allowed);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, allowed) && nth-- == 0) {
			CPU_ZERO(&one);
			CPU_SET(cpu, &one);
			must(sched_setaffinity(0, sizeof(one), &one) == 0);
			must(sched_setaffinity(0, sizeof(*allowed), allowed) == 0);
			return;
		}
}

static void run_around(const cpu_set_t *allowed, void *base, uint8_t *generation, uint64_t for_ms)
{
	uint64_t begin = now_ms(), at = 1, went = 0;
	for (uint64_t ms; (ms = now_ms() - begin) < for_ms;) {
		if (ms / 5 != went)
			go_to(allowed, went = ms / 5);
		for (int i = 0; i < 8; i++) {
			uint64_t page = (at = mix(at + 1)) % PAGES;
			if (!page_is(base, page, generation[page]))
				die("page %lu is not generation %d", (unsigned long)page, generation[page]);
			if (at % 3 == 0)
				write_page(base, page, ++generation[page]);
		}
	}
	for (uint64_t page = 0; page < PAGES; page++)
		check_pages(base, page, page + 1, generation[page]);
}

static pid_t be_busy(const cpu_set_t *allowed, int nth)
{
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		go_to(allowed, nth);
		for (;;)
			;
	}
	return child;
}

int main(void)
{
	static uint8_t generation[PAGES];
	cpu_set_t allowed;
	must(sched_getaffinity(0, sizeof(allowed), &allowed) == 0);
	void *base = map(PAGES * PAGE);
	write_pages(base, 0, PAGES, 0);
	run_around(&allowed, base, generation, 2000);

	pid_t busy[16];
	int count = CPU_COUNT(&allowed) < 16 ? CPU_COUNT(&allowed) : 16;
	for (int i = 0; i < count; i++)
		busy[i] = be_busy(&allowed, i);
	run_around(&allowed, base, generation, 2000);
	for (int i = 0; i < count; i++) {
		must(kill(busy[i], SIGKILL) == 0);
		must(waitpid(busy[i], NULL, 0) == busy[i]);
	}

	pid_t child = fork();
	must(child >= 0);
	run_around(&allowed, base, generation, 1500);
	if (child == 0)
		_exit(0);
	join(child);
	puts("went around");
	return 0;
}
