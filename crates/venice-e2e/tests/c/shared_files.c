/* Files of shared memory, far more than is local, in the way that the argument names. Each way
 * checks every page it has written. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include "check.h"

enum { LEN = 64 << 20, PAGES = LEN / 4096 };

static void *map_file(int fd, size_t len, int flags)
{
	void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, fd, 0);
	must(at != MAP_FAILED);
	return at;
}

static uint64_t *word(char *base, uint64_t page)
{
	return (uint64_t *)(base + page * PAGE + page % 500 * 8);
}

static void fill(char *base, uint64_t salt)
{
	for (uint64_t page = 0; page < PAGES; page++)
		*word(base, page) = page * 3 + salt;
}

static void check(char *base, uint64_t from, uint64_t to, uint64_t salt)
{
	for (uint64_t page = from; page < to; page++)
		if (*word(base, page) != page * 3 + salt)
			die("page %lu: %lu is not %lu", page, *word(base, page), page * 3 + salt);
}

static int make(void)
{
	int fd = memfd_create("heap", MFD_CLOEXEC);
	must(fd >= 0 && ftruncate(fd, LEN) == 0);
	return fd;
}

/* Three addresses, one truth, over a fork; its descriptor is closed. */
static void mapped(void)
{
	int fd = make();
	char *views[3];
	for (int i = 0; i < 3; i++)
		views[i] = map_file(fd, LEN, MAP_SHARED);
	fill(views[0], 1);
	check(views[1], 0, PAGES, 1);
	close(fd);
	pid_t child = fork();
	if (child == 0) {
		check(views[2], 0, PAGES, 1);
		fill(views[0], 2);
		_exit(0);
	}
	join(child);
	check(views[1], 0, PAGES, 2);
}

/* By system calls, beside a mapping. */
static void called(void)
{
	static char buffer[1 << 20];
	int fd = make();
	char *base = map_file(fd, LEN, MAP_SHARED);
	fill(base, 1);
	for (off_t at = 0; at < LEN; at += sizeof buffer) {
		must(pread(fd, buffer, sizeof buffer, at) == sizeof buffer);
		must(memcmp(buffer, base + at, sizeof buffer) == 0);
		for (size_t i = 0; i < sizeof buffer; i++)
			buffer[i] ^= 0x5a;
		must(pwrite(fd, buffer, sizeof buffer, at) == sizeof buffer);
	}
	for (size_t i = 0; i < LEN; i++)
		base[i] ^= 0x5a;
	check(base, 0, PAGES, 1);
	must(syscall(SYS_pread64, fd, buffer, 8, 7 * PAGE + 56) == 8);
	must(*(uint64_t *)buffer == 22);
	int out = open(".", O_TMPFILE | O_RDWR, 0600), pipes[2];
	must(out >= 0 && pipe(pipes) == 0);
	off_t at = 0;
	while (at < LEN)
		must(sendfile(out, fd, &at, LEN - at) > 0);
	char *copy = map_file(out, LEN, MAP_SHARED);
	check(copy, 0, PAGES, 1);
	loff_t from = 9 * PAGE;
	must(splice(fd, &from, pipes[1], NULL, PAGE, 0) == PAGE);
	must(read(pipes[0], buffer, PAGE) == PAGE && memcmp(buffer, base + 9 * PAGE, PAGE) == 0);
	/* From memory of the file into the file. */
	must(pwrite(fd, base, LEN / 2, LEN / 2) == LEN / 2);
	check(base, 0, PAGES / 2, 1);
	must(memcmp(base, base + LEN / 2, LEN / 2) == 0);
}

static sigjmp_buf back;

static void on_bus(int signal)
{
	siglongjmp(back, signal);
}

static int is_gone(char *at)
{
	if (sigsetjmp(back, 1))
		return 1;
	(void)*(volatile char *)at;
	return 0;
}

/* Grows, shrinks, and has holes. */
static void resized(void)
{
	int fd = make();
	char *base = map_file(fd, 2 * LEN, MAP_SHARED);
	struct stat found;
	signal(SIGBUS, on_bus);
	fill(base, 1);
	must(is_gone(base + LEN) && !is_gone(base + LEN - 1));
	must(ftruncate(fd, LEN / 2 + 100) == 0 && fstat(fd, &found) == 0);
	must(found.st_size == LEN / 2 + 100);
	must(is_gone(base + LEN / 2 + PAGE) && !is_gone(base + LEN / 2));
	check(base, 0, PAGES / 2, 1);
	must(ftruncate(fd, 2 * LEN) == 0);
	for (size_t at = LEN / 2 + 100; at < 2 * LEN; at += 8 + (at > LEN / 2 + PAGE ? PAGE : 0))
		must(base[at] == 0);
	fill(base + LEN, 5);
	check(base, 0, PAGES / 2, 1);
	check(base + LEN, 0, PAGES, 5);
	int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
	must(fallocate(fd, punch, 10 * PAGE + 5, 90 * PAGE) == 0);
	must(base[10 * PAGE + 5] == 0 && base[100 * PAGE + 4] == 0);
	for (int page = 11; page < 100; page++)
		must(*word(base, page) == 0);
	check(base, 0, 10, 1);
	check(base, 101, PAGES / 2, 1);
	must(fallocate(fd, 0, 0, 3 * (off_t)LEN) == 0 && fstat(fd, &found) == 0);
	must(found.st_size == 3 * (off_t)LEN);
	must(fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, PAGE) < 0 && errno == EOPNOTSUPP);
	must(pwrite(fd, "end", 3, 4 * (off_t)LEN) == 3 && lseek(fd, 0, SEEK_END) == 4 * (off_t)LEN + 3);
}

/* A private mapping has copies of its own, and sees what it has not written to. */
static void private(void)
{
	int fd = make();
	char *base = map_file(fd, LEN, MAP_SHARED), *own = map_file(fd, LEN, MAP_PRIVATE);
	fill(base, 1);
	check(own, 0, PAGES, 1);
	for (uint64_t page = 0; page < PAGES; page += 8)
		*word(own, page) = 7;
	check(base, 0, PAGES, 1);
	fill(base, 2);
	for (uint64_t page = 0; page < PAGES; page++)
		must(*word(own, page) == (page % 8 ? page * 3 + 2 : 7));
}

static void send_fd(int socket, int fd)
{
	char byte = 'f', room[CMSG_SPACE(sizeof fd)] = { 0 };
	struct iovec body = { &byte, 1 };
	struct msghdr message = { .msg_iov = &body, .msg_iovlen = 1, .msg_control = room,
				  .msg_controllen = sizeof room };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(header), &fd, sizeof fd);
	must(sendmsg(socket, &message, 0) == 1);
}

static int receive_fd(int socket)
{
	char byte, room[CMSG_SPACE(sizeof(int))];
	struct iovec body = { &byte, 1 };
	struct msghdr message = { .msg_iov = &body, .msg_iovlen = 1, .msg_control = room,
				  .msg_controllen = sizeof room };
	must(recvmsg(socket, &message, 0) == 1);
	int fd;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	return fd;
}

/* A descriptor sent to another process, and one inherited by another program. */
static void handed(char *self)
{
	int ends[2];
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	pid_t child = fork();
	if (child == 0) {
		int fd = receive_fd(ends[1]);
		char *base = map_file(fd, LEN, MAP_SHARED);
		check(base, 0, PAGES, 1);
		fill(base, 2);
		/* A bare system call is refused a shared mapping, and reads right in a private one. */
		must(bare_call(SYS_mmap, 0, LEN, PROT_READ, MAP_SHARED, fd, 0) == -ENODEV);
		char *own = (char *)bare_call(SYS_mmap, 0, MIB, PROT_READ, MAP_PRIVATE, fd, 0);
		must((long)own > 0);
		check(own, 0, MIB / PAGE, 2);
		_exit(0);
	}
	int fd = memfd_create("sent", 0);
	must(ftruncate(fd, LEN) == 0);
	char *base = map_file(fd, LEN, MAP_SHARED);
	fill(base, 1);
	send_fd(ends[0], fd);
	join(child);
	check(base, 0, PAGES, 2);
	char number[16];
	sprintf(number, "%d", fd);
	if ((child = fork()) == 0) {
		execl(self, self, "inherited", number, NULL);
		_exit(1);
	}
	join(child);
	check(base, 0, PAGES, 3);
}

static void inherited(int fd)
{
	char *base = map_file(fd, LEN, MAP_SHARED);
	check(base, 0, PAGES, 2);
	fill(base, 3);
}

static struct sockaddr_un address_of(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	strncpy(address.sun_path, path, sizeof address.sun_path - 1);
	return address;
}

/* Outside of the run: maps what is sent here. */
static void receiver(const char *path)
{
	struct sockaddr_un address = address_of(path);
	int listener = socket(AF_UNIX, SOCK_STREAM, 0);
	must(bind(listener, (void *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
	int peer = accept(listener, NULL, NULL);
	must(peer >= 0);
	int fd = receive_fd(peer);
	char *base = map_file(fd, LEN, MAP_SHARED);
	check(base, 0, PAGES, 1);
	fill(base, 2);
	must(write(peer, "x", 1) == 1);
	char byte;
	must(read(peer, &byte, 1) == 1);
	check(base, 0, PAGES, 3);
	must(write(peer, "x", 1) == 1);
}

/* In the run: its memory is read and written by a process outside of it. */
static void sender(const char *path)
{
	struct sockaddr_un address = address_of(path);
	int peer = socket(AF_UNIX, SOCK_STREAM, 0);
	while (connect(peer, (void *)&address, sizeof address) < 0)
		usleep(10000);
	int fd = make();
	char *base = map_file(fd, LEN, MAP_SHARED), byte;
	fill(base, 1);
	send_fd(peer, fd);
	must(read(peer, &byte, 1) == 1);
	check(base, 0, PAGES, 2);
	fill(base, 3);
	/* Other memory would take its place. */
	char *other = map_file(make(), LEN, MAP_SHARED);
	fill(other, 9);
	must(write(peer, "x", 1) == 1 && read(peer, &byte, 1) == 1);
	check(base, 0, PAGES, 3);
	check(other, 0, PAGES, 9);
}

/* Objects with a name. */
static void named(void)
{
	must(shm_open("/venice-test", O_RDWR, 0) == -1 && errno == ENOENT);
	int fd = shm_open("/venice-test", O_RDWR | O_CREAT | O_EXCL, 0600);
	must(fd >= 0 && ftruncate(fd, LEN) == 0);
	must(shm_open("/venice-test", O_RDWR | O_CREAT | O_EXCL, 0600) == -1 && errno == EEXIST);
	fill(map_file(fd, LEN, MAP_SHARED), 1);
	pid_t child = fork();
	if (child == 0) {
		int again = shm_open("venice-test", O_RDONLY, 0);
		must(mmap(NULL, LEN, PROT_WRITE, MAP_SHARED, again, 0) == MAP_FAILED && errno == EACCES);
		char *base = mmap(NULL, LEN, PROT_READ, MAP_SHARED, again, 0);
		must(base != MAP_FAILED);
		check(base, 0, PAGES, 1);
		must(shm_unlink("/venice-test") == 0);
		_exit(0);
	}
	join(child);
	must(shm_open("/venice-test", O_RDWR, 0) == -1 && errno == ENOENT);
	must(shm_unlink("/venice-test") == -1 && errno == ENOENT);
	check(map_file(fd, LEN, MAP_SHARED), 0, PAGES, 1);
	/* A name that others have made is theirs. */
	int theirs = open("/dev/shm/venice-test-theirs", O_RDWR | O_CREAT, 0600);
	must(theirs >= 0 && write(theirs, "theirs", 6) == 6);
	fd = shm_open("/venice-test-theirs", O_RDWR | O_CREAT, 0600);
	char read_back[6];
	must(pread(fd, read_back, 6, 0) == 6 && memcmp(read_back, "theirs", 6) == 0);
	must(shm_unlink("/venice-test-theirs") == 0);
	must(access("/dev/shm/venice-test-theirs", F_OK) == -1);
}

/* Many files, each gone with its last user. */
static void many(void)
{
	enum { SIZE = 8 << 20 };
	for (int i = 0; i < 128; i++) {
		int fd = memfd_create("one", 0);
		must(fd >= 0 && ftruncate(fd, SIZE) == 0);
		char *base = map_file(fd, SIZE, MAP_SHARED);
		for (int page = 0; page < SIZE / 4096; page++)
			must(base[page * PAGE] == 0), base[page * PAGE] = 1 + i % 100;
		must(munmap(base, SIZE) == 0 && close(fd) == 0);
	}
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "";
	if (!strcmp(way, "mapped"))
		mapped();
	else if (!strcmp(way, "called"))
		called();
	else if (!strcmp(way, "resized"))
		resized();
	else if (!strcmp(way, "private"))
		private();
	else if (!strcmp(way, "handed"))
		handed(argv[0]);
	else if (!strcmp(way, "inherited"))
		inherited(atoi(argv[2]));
	else if (!strcmp(way, "receiver"))
		receiver(argv[2]);
	else if (!strcmp(way, "sender"))
		sender(argv[2]);
	else if (!strcmp(way, "named"))
		named();
	else if (!strcmp(way, "many"))
		many();
	else
		die("no such way: %s", way);
	puts("ok");
	return 0;
}
