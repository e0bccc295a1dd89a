/* The kernel reads and writes far memory as any other: read, write, readv, sockets, O_DIRECT. */
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

enum { PAGES = 32 * 256 };
static char *base;

static void through_a_file(int fd)
{
	write_pages(base, 0, PAGES, 1);
	must(pwrite(fd, base, PAGES * PAGE, 0) == PAGES * PAGE);
	memset(base, 0, PAGES * PAGE);
	push_out();
	must(pread(fd, base, PAGES * PAGE, 0) == PAGES * PAGE);
	check_pages(base, 0, PAGES, 1);
	/* Scattered: every 16th page of it, in one call. */
	struct iovec parts[512];
	for (int i = 0; i < 512; i++)
		parts[i] = (struct iovec){ base + (i * 16 + 3) * PAGE + 17, 100 };
	push_out();
	must(preadv(fd, parts, 512, 0) == 51200);
	push_out();
	must(pwritev(fd, parts, 512, PAGES * PAGE) == 51200);
	char *both = malloc(2 * 51200);
	must(pread(fd, both, 51200, 0) == 51200 && pread(fd, both + 51200, 51200, PAGES * PAGE) == 51200);
	must(memcmp(both, both + 51200, 51200) == 0);
	free(both);
}

/* Pages that the kernel holds for a transfer must not be taken away under it. */
static void direct(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_DIRECT, 0600);
	if (fd < 0)
		return;
	write_pages(base, 0, PAGES, 2);
	for (int round = 0; round < 2; round++) {
		must(pwrite(fd, base, PAGES * PAGE, 0) == PAGES * PAGE);
		memset(base, round, PAGES * PAGE);
		push_out();
		must(pread(fd, base, PAGES * PAGE, 0) == PAGES * PAGE);
		check_pages(base, 0, PAGES, 2);
	}
	close(fd);
}

static void *sender(void *fd)
{
	for (size_t sent = 0; sent < PAGES * PAGE;) {
		ssize_t n = write(*(int *)fd, base + sent, PAGES * PAGE - sent);
		must(n > 0);
		sent += n;
	}
	return NULL;
}

static void through_a_socket(void)
{
	int ends[2];
	pthread_t thread;
	char *received = map(PAGES * PAGE);
	write_pages(base, 0, PAGES, 3);
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	must(pthread_create(&thread, NULL, sender, &ends[0]) == 0);
	for (size_t got = 0; got < PAGES * PAGE;) {
		ssize_t n = read(ends[1], received + got, PAGES * PAGE - got);
		must(n > 0);
		got += n;
	}
	must(pthread_join(thread, NULL) == 0);
	check_pages(received, 0, PAGES, 3);
	munmap(received, PAGES * PAGE);
}

/* Access by another process. A page that the kernel does not fetch for the reader (/proc/PID/mem, as debuggers use
 * it, does not wait for a pager) is an error to that reader, never a wrong byte. */
static void from_outside(void)
{
	write_pages(base, 0, PAGES, 4);
	push_out();
	char page[PAGE];
	int fd = open("/proc/self/mem", O_RDWR);
	must(fd >= 0);
	for (int i = 0; i < PAGES; i += 61) {
		off_t at = (off_t)(uintptr_t)(base + i * PAGE);
		ssize_t got = pread(fd, page, PAGE, at);
		must(got == PAGE || (got < 0 && errno == EIO));
		must(got < 0 || memcmp(page, base + i * PAGE, PAGE) == 0);
		/* It is resident now, and cannot be refused. */
		must(page_is(base, i, 4) && pwrite(fd, "poke", 4, at + 12) == 4);
	}
	push_out();
	for (int i = 0; i < PAGES; i += 61)
		must(memcmp(base + i * PAGE + 12, "poke", 4) == 0);
	close(fd);
	/* process_vm_readv does wait. */
	pid_t parent = getpid(), child = fork();
	must(child >= 0);
	if (child == 0) {
		struct iovec mine = { page, PAGE };
		for (int i = 0; i < PAGES; i += 211) {
			struct iovec theirs = { base + i * PAGE, PAGE };
			if (process_vm_readv(parent, &mine, 1, &theirs, 1, 0) != PAGE)
				_exit(errno == EPERM ? 0 : 1);
			if (memcmp(page, base + i * PAGE, PAGE) != 0)
				_exit(2);
		}
		_exit(0);
	}
	join(child);
}

int main(void)
{
	char path[] = "direct.XXXXXX";
	base = map(PAGES * PAGE);
	FILE *file = tmpfile();
	must(file);
	through_a_file(fileno(file));
	must(mkstemp(path) >= 0);
	direct(path);
	unlink(path);
	through_a_socket();
	from_outside();
	struct stat *far = (struct stat *)base;
	push_out();
	must(stat("/", far) == 0 && S_ISDIR(far->st_mode));
	puts("system calls: far memory served");
	return 0;
}
