//! Three bare hosts become a rack by the commands of docs/guide/several-hosts.md alone.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use venice_testkit::network::{Namespaces, node_address};
use venice_testkit::process::ChildGuard;

use crate::common::{is_root, skipped, wait, wait_until};

const HOSTS: u16 = 3;
/// Address of the Monitor Node in the page.
const ADDRESS_IN_PAGE: &str = "10.0.0.1";

/// A host: a network, mounts, a name and processes of its own.
struct Host {
    name: String,
    /// Folder of its files.
    folder: PathBuf,
    /// Ends all its processes.
    _keeper: ChildGuard,
    /// Its first process.
    pid: String,
}

impl Host {
    fn start(number: u16, network: &Namespaces, folder: &Path) -> Host {
        let name = format!("host{}", number + 1);
        let folder = folder.join(&name);
        for part in ["lib", "run", "bin", "tmp"] {
            fs::create_dir_all(folder.join(part)).unwrap();
        }
        let built = Path::new(env!("CARGO_BIN_EXE_venice")).parent().unwrap();
        for file in ["venice", "libvenice_preload.so"] {
            let to = folder.join("bin").join(file);
            fs::copy(built.join(file), &to).unwrap();
            fs::set_permissions(to, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let shown = folder.display();
        let script = format!(
            "set -e; echo {name} > /proc/sys/kernel/hostname; cp -a /etc {shown}/etc
             mount --bind {shown}/etc /etc; mount --bind {shown}/lib /var/lib
             mount --bind {shown}/run /run; mount --bind {shown}/bin /usr/local/bin
             touch {shown}/ready; chmod 1777 {shown}/tmp; mount --bind {shown}/tmp /tmp
             exec sleep infinity"
        );
        let mut keeper = Command::new("ip");
        keeper.args([
            "netns",
            "exec",
            &network.node(number),
            "unshare",
            "--mount",
            "--uts",
            "--pid",
        ]);
        keeper.args(["--fork", "--mount-proc", "--kill-child", "sh", "-c", &script]);
        let keeper = ChildGuard(keeper.stdin(Stdio::null()).spawn().unwrap());
        wait_until("the host is up", || folder.join("ready").exists());
        let children = format!("/proc/{0}/task/{0}/children", keeper.0.id());
        let pid = fs::read_to_string(children).unwrap().trim().to_owned();
        Host { name, folder, _keeper: keeper, pid }
    }

    /// Runs a script. What it leaves in the background goes on.
    fn run(&self, script: &str) -> (ExitStatus, String) {
        let path = self.folder.join("said");
        let said = File::create(&path).unwrap();
        let mut shell = Command::new("nsenter");
        shell.args([
            "-t",
            &self.pid,
            "--net",
            "--mount",
            "--uts",
            "--pid",
            "env",
            "-i",
            "HOME=/root",
        ]);
        shell
            .arg("PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .args(["bash", "-ec", script]);
        shell.stdin(Stdio::null()).stdout(said.try_clone().unwrap()).stderr(said);
        let ended = wait(&mut ChildGuard(shell.spawn().unwrap()), &[script]);
        (ended, fs::read_to_string(path).unwrap())
    }

    /// Waits until a daemon that was started in the background is of use.
    fn await_daemon(&self, block: &str) {
        wait_until("the daemon answers", || {
            let (ended, said) = self.run("venice nodes");
            ended.success() && (!block.contains("venice agent") || said.contains(&self.name))
        });
    }
}

/// Returns the blocks of the page: host, and commands.
fn blocks(page: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    for (fence, rest) in page.split("```sh,host").skip(1).filter_map(|it| it.split_once('\n')) {
        let commands = rest.split("```").next().unwrap();
        blocks.push((fence.parse::<usize>().unwrap(), commands.to_owned()));
    }
    blocks
}

/// Returns the join token in what a command has said.
fn token(said: &str) -> Option<&str> {
    said.split_whitespace().rfind(|word| word.contains('@') && word.matches('.').count() > 2)
}

#[test]
fn page_makes_a_rack() {
    if !is_root() {
        return skipped("page_makes_a_rack", "needs root");
    }
    let folder = tempfile::Builder::new().prefix("vthosts").tempdir_in("/tmp").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let network = Namespaces::new(HOSTS).unwrap();
    let hosts: Vec<Host> =
        (0..HOSTS).map(|number| Host::start(number, &network, folder.path())).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/guide/several-hosts.md")).unwrap();
    let page = page.replace(ADDRESS_IN_PAGE, &node_address(0).to_string());
    let mut last_token = String::new();
    let mut runs = 0;
    for (host, block) in blocks(&page) {
        let host = &hosts[host - 1];
        let (ended, said) = host.run(&block.replace("TOKEN", &last_token));
        assert!(ended.success(), "{}: {block}{said}", host.name);
        if let Some(found) = token(&said) {
            found.clone_into(&mut last_token);
        }
        if block.trim_end().ends_with('&') {
            host.await_daemon(&block);
        }
        if block.contains("venice run") {
            runs += 1;
            assert!(said.contains("83886080") && said.contains("copies 2"), "{said}");
        }
    }
    assert_eq!(runs, 2, "as root, and as a member of the group");
    let (ended, said) = hosts[0].run("venice up < /dev/null");
    assert!(!ended.success() && said.contains("--beside"), "{said}");
    let (ended, said) =
        hosts[1].run("venice agent --monitor 10.9.0.2:7470 --lend 16MiB --listen 127.0.0.1:0");
    assert!(!ended.success() && said.contains("other machines cannot reach"), "{said}");
}
