/* Takes 48 MiB in the way that the argument names, most of which Venice does not manage, and holds
 * it for a while. A second argument is a file: the program waits until it exists. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/syscall.h>
#include "check.h"

enum { LEN = 48 << 20 };

/* From the file, and zeroed by the loader. */
static char static_data[LEN] = { 1 };
static char zeroed_data[LEN];

static void *raw(int flags, int fd)
{
	long at = bare_call(SYS_mmap, 0, LEN, PROT_READ | PROT_WRITE, flags, fd, 0);
	must(at > 0);
	return (void *)at;
}

/* By the C library's `syscall`, as tcmalloc does; moved, cut and freed in part in that way too. */
static void *by_number(void)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	char *at = (char *)syscall(SYS_mmap, NULL, LEN / 2, PROT_NONE, flags, -1, 0l);
	must(at != MAP_FAILED && syscall(SYS_mprotect, at, LEN / 2, PROT_READ | PROT_WRITE) == 0);
	at[0] = 1;
	at = (char *)syscall(SYS_mremap, at, LEN / 2, 2ul * LEN, MREMAP_MAYMOVE);
	must(at != MAP_FAILED && at[0] == 1);
	must(syscall(SYS_munmap, at + LEN, (size_t)LEN) == 0);
	must(syscall(SYS_madvise, at, PAGE, MADV_DONTNEED) == 0 && at[0] == 0);
	must(syscall(SYS_munmap, at, 1ul) == 0 && syscall(SYS_munmap, at + 1, PAGE) == -1);
	must(errno == EINVAL);
	char *end = (char *)syscall(SYS_brk, 0l);
	must((char *)syscall(SYS_brk, end + MIB) == end + MIB && sbrk(0) == end + MIB);
	memset(end, 1, MIB);
	must((char *)syscall(SYS_brk, end) == end);
	must((char *)syscall(SYS_brk, -1l) == end);
	must((char *)syscall(SYS_mmap, at, PAGE, PROT_READ | PROT_WRITE, flags | MAP_FIXED, -1, 0l) == at);
	return at;
}

static void *on_stack(void *unused)
{
	volatile char room[LEN];
	for (size_t i = 0; i < LEN; i += PAGE / 2)
		room[i] = 1;
	usleep(600 * 1000);
	must(room[LEN / 2] == 1);
	return unused;
}

static void take_stack(void)
{
	pthread_attr_t attributes;
	pthread_t thread;
	must(pthread_attr_init(&attributes) == 0);
	must(pthread_attr_setstacksize(&attributes, LEN + 16 * PAGE) == 0);
	must(pthread_create(&thread, &attributes, on_stack, NULL) == 0);
	must(pthread_join(thread, NULL) == 0);
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "none";
	char *at = NULL;
	if (!strcmp(way, "managed")) {
		at = map(LEN);
	} else if (!strcmp(way, "dontfork")) {
		at = map(LEN);
		must(madvise(at, LEN, MADV_DONTFORK) == 0);
	} else if (!strcmp(way, "shared")) {
		int fd = memfd_create("own", MFD_ALLOW_SEALING);
		must(fd >= 0 && ftruncate(fd, LEN) == 0);
		at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		must(at != MAP_FAILED);
	} else if (!strcmp(way, "raw")) {
		at = raw(MAP_PRIVATE | MAP_ANONYMOUS, -1);
	} else if (!strcmp(way, "number")) {
		at = by_number();
	} else if (!strcmp(way, "wiped")) {
		at = map(LEN);
		must(madvise(at, LEN, MADV_WIPEONFORK) == 0);
	} else if (!strcmp(way, "locked")) {
		at = mmap(NULL, LEN, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
		must(at != MAP_FAILED);
	} else if (!strcmp(way, "static")) {
		at = static_data;
	} else if (!strcmp(way, "zeroed")) {
		at = zeroed_data;
	} else if (!strcmp(way, "malloc")) {
		must((at = malloc(LEN)) != NULL);
	} else if (!strcmp(way, "stack")) {
		take_stack();
	}
	if (at) {
		memset(at, 1, LEN);
		usleep(600 * 1000);
	}
	while (argc > 2 && access(argv[2], F_OK) != 0)
		usleep(1000);
	puts("done");
	return 0;
}
