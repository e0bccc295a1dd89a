/*
 * Effects of hints on far memory, by mincore: the pages in the program's memory. Needs 16 MiB
 * local; `hints HOW` tests one hint, and all pages keep their contents.
 */
#include "check.h"

enum { PAGES = 12288, SOME = 1024 };

static char *base;

static int here(uint64_t from, uint64_t to)
{
	static unsigned char seen[PAGES];
	int count = 0;
	must(mincore(base + from * PAGE, (to - from) * PAGE, seen) == 0);
	for (uint64_t i = 0; i < to - from; i++)
		count += seen[i] & 1;
	return count;
}

static void advise(uint64_t from, uint64_t to, int advice)
{
	must(madvise(base + from * PAGE, (to - from) * PAGE, advice) == 0);
}

/* Many pages were written since the first ones: these are far. Touched in no order. */
static void touch_first(void)
{
	static int order[SOME];
	for (int i = 0; i < SOME; i++) {
		int other = mix(i + 1) % (i + 1);
		order[i] = order[other];
		order[other] = i;
	}
	for (int i = 0; i < SOME; i++)
		must(page_is(base, order[i], 1));
}

static void willneed(void)
{
	advise(0, SOME, MADV_WILLNEED);
	if (here(0, SOME) != SOME)
		die("%d pages of %d came", here(0, SOME), SOME);
	touch_first();
	/* More than there is room for: it brings in half of the budget, without a hang. */
	advise(0, PAGES, MADV_WILLNEED);
	must(here(0, PAGES) < 4096 + 256);
}

static void posix_willneed(void)
{
	must(posix_madvise(base, SOME * PAGE, POSIX_MADV_WILLNEED) == 0);
	must(here(0, SOME) == SOME);
	must(posix_madvise(base, SOME * PAGE, POSIX_MADV_DONTNEED) == 0);
	touch_first();
}

static void pageout(void)
{
	uint64_t from = PAGES - SOME;
	must(here(from, PAGES) > SOME / 2);
	advise(from, PAGES, MADV_PAGEOUT);
	/* The kernel may keep single pages for a moment: PAGEOUT promises no more. */
	if (here(from, PAGES) > SOME / 32)
		die("%d pages stayed", here(from, PAGES));
	/* Nothing is left of them to take out. */
	advise(from, PAGES, MADV_PAGEOUT);
	must(here(0, from) > 1024);
}

/* Without the advice the pages written last would stay longest. */
static void cold(void)
{
	uint64_t from = PAGES - SOME;
	int before = here(from, PAGES);
	must(before > SOME / 2);
	advise(from, PAGES, MADV_COLD);
	must(here(from, PAGES) == before);
	int others = here(0, from);
	for (int i = 0; i < 3 * SOME; i++)
		must(page_is(base, i, 1));
	if (here(from, PAGES) > SOME / 32 || here(0, from) < others)
		die("of the cold %d stayed, of others %d of %d", here(from, PAGES), here(0, from), others);
}

/* In order through what is far. */
static uint64_t most_ahead(uint64_t from, uint64_t to)
{
	uint64_t most = 0;
	for (uint64_t i = from; i < to; i++) {
		must(page_is(base, i, 1));
		uint64_t ahead = here(i + 1, i + 65);
		most = ahead > most ? ahead : most;
	}
	return most;
}

static void use(int advice)
{
	advise(0, SOME, advice);
	advise(0, SOME, MADV_PAGEOUT);
	uint64_t most = most_ahead(0, SOME - 65);
	printf("%d came ahead\n", (int)most);
	if (advice == MADV_RANDOM)
		must(most == 0);
	else
		must(most >= 32);
	if (advice == MADV_SEQUENTIAL) {
		/* The first touch opens the prefetch window. */
		advise(0, SOME, MADV_PAGEOUT);
		must(page_is(base, 0, 1));
		/* They come after it, in the pager's time. */
		for (int waits = 0; here(1, 64) < 32 && waits < 5000; waits++)
			usleep(1000);
		must(here(1, 64) >= 32);
		/* Pages behind the stream leave first. */
		must(most_ahead(0, SOME - 65) >= 32);
		int others = here(SOME, PAGES);
		void *more = map(SOME / 2 * PAGE);
		write_pages(more, 0, SOME / 2, 1);
		if (here(0, SOME - 256) >= SOME / 2 || here(SOME, PAGES) < others * 3 / 4)
			die("behind %d, others %d of %d", here(0, SOME - 256), here(SOME, PAGES), others);
	}
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	base = map(PAGES * PAGE);
	write_pages(base, 0, PAGES, 1);
	if (!strcmp(how, "touch"))
		touch_first();
	else if (!strcmp(how, "soon")) {
		advise(0, SOME, MADV_WILLNEED);
		touch_first();
	}
	else if (!strcmp(how, "willneed"))
		willneed();
	else if (!strcmp(how, "posix"))
		posix_willneed();
	else if (!strcmp(how, "pageout"))
		pageout();
	else if (!strcmp(how, "cold"))
		cold();
	else if (!strcmp(how, "random"))
		use(MADV_RANDOM);
	else if (!strcmp(how, "sequential"))
		use(MADV_SEQUENTIAL);
	else if (!strcmp(how, "normal")) {
		advise(0, PAGES, MADV_RANDOM);
		use(MADV_NORMAL);
	} else if (!strcmp(how, "moved")) {
		/* Advice moves with its memory, and ends with it. */
		advise(0, PAGES, MADV_RANDOM);
		base = mremap(base, PAGES * PAGE, 2 * PAGES * PAGE, MREMAP_MAYMOVE);
		must(base != MAP_FAILED);
		must(most_ahead(0, SOME - 65) == 0);
		void *again = mmap(base, PAGES * PAGE, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		must(again == base);
		write_pages(base, 0, PAGES, 1);
		must(most_ahead(0, SOME - 65) >= 32);
	} else
		die("no such thing: %s", how);
	check_pages(base, 0, PAGES, 1);
	return 0;
}
