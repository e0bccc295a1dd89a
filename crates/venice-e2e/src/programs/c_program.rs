//! Small C programs compiled at test time.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A C program of `tests/c`, compiled into a directory of its own.
pub struct CProgram {
    dir: TempDir,
    path: PathBuf,
}

impl CProgram {
    /// Compiles `tests/c/NAME.c`.
    ///
    /// # Panics
    /// When the compiler refuses it.
    pub fn compile(name: &str) -> CProgram {
        CProgram::compile_with(name, &[])
    }

    /// Compiles `tests/c/NAME.c` with more flags, such as `-static`.
    ///
    /// # Panics
    /// When the compiler refuses it.
    pub fn compile_with(name: &str, flags: &[&str]) -> CProgram {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join(name);
        let output = Command::new("gcc")
            .args(["-O1", "-g", "-Wall", "-pthread", "-D_GNU_SOURCE", "-o"])
            .arg(&path)
            .arg(&source)
            .args(flags)
            .output()
            .expect("gcc");
        assert!(output.status.success(), "{name}.c: {}", String::from_utf8_lossy(&output.stderr));
        CProgram { dir, path }
    }

    /// Returns a command that starts it in its own directory.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(args).current_dir(self.dir.path());
        command
    }

    /// Returns the directory it runs in.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}
