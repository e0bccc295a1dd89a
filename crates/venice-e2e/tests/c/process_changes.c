/* A process with far memory changes its user, root or namespaces; then it forks and executes. */
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { PAGES = 32 * 256, NOBODY = 65534 };

static int self;
extern char **environ;

/* Executes this program anew, to check memory of its own. */
static void execute(void)
{
	char *arguments[] = { "process_changes", "check", NULL };
	fexecve(self, arguments, environ);
	die("fexecve: %s", strerror(errno));
}

/* Far pages, and memory that is mapped after the change, have their contents, in children too. */
static void go_on(void *base)
{
	check_pages(base, 0, PAGES, 1);
	write_pages(base, 0, PAGES / 2, 2);
	push_out();
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		check_pages(base, 0, PAGES / 2, 2);
		check_pages(base, PAGES / 2, PAGES, 1);
		pid_t grandchild = fork();
		must(grandchild >= 0);
		if (grandchild == 0)
			execute();
		join(grandchild);
		push_out();
		check_pages(base, 0, PAGES / 2, 2);
		_exit(0);
	}
	join(child);
	check_pages(base, 0, PAGES / 2, 2);
}

static void drop_user(void)
{
	must(setgroups(0, NULL) == 0);
	must(setgid(NOBODY) == 0);
	must(setuid(NOBODY) == 0);
}

/* Hides the directories where sockets may be. */
static void hide_directories(void)
{
	must(unshare(CLONE_NEWNS) == 0);
	must(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
	must(mount("none", "/tmp", "tmpfs", 0, NULL) == 0);
	must(mount("none", "/run", "tmpfs", 0, NULL) == 0);
}

/* Enters a root of the system's libraries alone: neither sockets nor the shim are in it. */
static void change_root(void)
{
	must(unshare(CLONE_NEWNS) == 0);
	must(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
	must(mkdir("root", 0755) == 0 || errno == EEXIST);
	must(mount("none", "root", "tmpfs", 0, NULL) == 0);
	must(mkdir("root/usr", 0755) == 0 && mkdir("root/proc", 0755) == 0);
	must(symlink("usr/lib", "root/lib") == 0 && symlink("usr/lib64", "root/lib64") == 0);
	must(mount("/usr", "root/usr", NULL, MS_BIND, NULL) == 0);
	must(mount("/proc", "root/proc", NULL, MS_BIND, NULL) == 0);
	must(chroot("root") == 0);
	must(chdir("/") == 0);
}

/* Enters the user namespace of a child. */
static void enter_users(void)
{
	int made[2];
	char byte = 0;
	must(pipe(made) == 0);
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		must(unshare(CLONE_NEWUSER) == 0);
		must(write(made[1], &byte, 1) == 1);
		pause();
	}
	must(read(made[0], &byte, 1) == 1);
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/ns/user", child);
	int fd = open(path, O_RDONLY);
	must(fd >= 0);
	must(setns(fd, CLONE_NEWUSER) == 0);
	must(kill(child, SIGKILL) == 0);
	must(waitpid(child, NULL, 0) == child);
	close(fd);
}

static void change(const char *how)
{
	if (!strcmp(how, "user"))
		drop_user();
	else if (!strcmp(how, "directories"))
		hide_directories();
	else if (!strcmp(how, "root"))
		change_root();
	else if (!strcmp(how, "pids"))
		must(unshare(CLONE_NEWPID) == 0);
	else if (!strcmp(how, "users"))
		must(unshare(CLONE_NEWUSER) == 0);
	else if (!strcmp(how, "users-by-number"))
		must(syscall(SYS_unshare, CLONE_NEWUSER) == 0);
	else if (!strcmp(how, "users-and-pids"))
		must(unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS) == 0);
	else if (!strcmp(how, "enter-users"))
		enter_users();
	else
		must(!strcmp(how, "check"));
}

int main(int argc, char **argv)
{
	must(argc == 2);
	self = open("/proc/self/exe", O_RDONLY);
	must(self >= 0);
	void *base = map(PAGES * PAGE);
	write_pages(base, 0, PAGES, 1);
	push_out();
	if (!strcmp(argv[1], "pids") || !strcmp(argv[1], "users-and-pids")) {
		/* The first process of a PID namespace ends all others with it: one fork more. */
		change(argv[1]);
		check_pages(base, 0, PAGES, 1);
		pid_t first = fork();
		must(first >= 0);
		if (first) {
			join(first);
			check_pages(base, 0, PAGES, 1);
			printf("%s\n", argv[1]);
			return 0;
		}
		must(getpid() == 1);
	} else {
		change(argv[1]);
	}
	if (strcmp(argv[1], "check"))
		go_on(base);
	check_pages(base, PAGES / 2, PAGES, 1);
	printf("%s\n", argv[1]);
	return 0;
}
