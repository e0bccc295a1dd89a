//! A MariaDB for the benchmark: Debian's server on a temporary data folder, with a table far larger
//! than its buffer pool. It bypasses the kernel's page cache, so that a cache miss waits for the
//! disk.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use mysql::prelude::Queryable;
use mysql::{Conn, LocalInfileHandler, OptsBuilder, Statement};
use tempfile::TempDir;

use super::entries::{ANSWER_BYTES, Entries};
use venice_measure::child::{ChildGuard, find_program};
use venice_measure::interrupt::{self, wait_until};
use venice_measure::progress::Phase;

/// Time limit for MariaDB to create its files and to listen.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Time without an answer after which it is taken for hung; a bulk load takes long.
const SILENCE: Duration = Duration::from_secs(300);
/// Buffer pool while the table is loaded.
const LOADING_POOL_BYTES: u64 = 256 << 20;

/// A server with its data. Dropping it ends the server and removes the data.
#[derive(Debug)]
pub(super) struct MariaDb {
    guard: ChildGuard,
    socket: PathBuf,
    _folder: TempDir,
}

impl MariaDb {
    /// Starts it on an empty data folder in `parent`.
    ///
    /// # Errors
    /// When it is not installed or does not start; the message quotes its log.
    pub(super) fn start(parent: &Path) -> Result<Self> {
        let program = find_program("mariadbd")
            .context("the figure needs MariaDB: apt-get install mariadb-server-core")?;
        let folder = tempfile::Builder::new()
            .prefix("venice-mariadb-")
            .tempdir_in(parent)
            .with_context(|| format!("cannot make a folder in {}", parent.display()))?;
        let (data, socket) = (folder.path().join("data"), folder.path().join("socket"));
        std::fs::create_dir(&data).context("cannot make the database's folder")?;
        let mut command = Command::new(program);
        command.arg("--no-defaults").arg(of("--datadir", &data)).arg(of("--socket", &socket));
        command.arg(of("--pid-file", &folder.path().join("pid")));
        if rustix::process::geteuid().is_root() {
            command.arg("--user=root");
        }
        command.args([
            // The folder is private: no other user reaches the socket.
            "--skip-grant-tables",
            "--skip-networking",
            "--skip-log-bin",
            "--character-set-server=ascii",
            "--innodb-flush-method=O_DIRECT",
            // The data is temporary: it need not survive a power cut.
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-doublewrite=0",
            "--innodb-stats-persistent=0",
            "--innodb-buffer-pool-dump-at-shutdown=0",
            "--innodb-adaptive-hash-index=0",
            "--innodb-read-ahead-threshold=0",
        ]);
        command.arg(format!("--innodb-buffer-pool-size={LOADING_POOL_BYTES}"));
        let guard = ChildGuard::spawn("mariadbd", command, &folder.path().join("log"))?;
        let mut mariadb = Self { guard, socket, _folder: folder };
        wait_until("the start of mariadbd", START_LIMIT, || {
            mariadb.guard.ensure_alive()?;
            Ok(mariadb.connect().ok())
        })?;
        Ok(mariadb)
    }

    /// Fills the table, then sets a buffer pool of `pool_bytes`; returns the size of table and
    /// index on the disk in bytes.
    ///
    /// # Errors
    /// When MariaDB fails, and on an interrupt.
    pub(super) fn load(&self, entries: Entries, pool_bytes: u64) -> Result<u64> {
        let mut conn = self.connect()?;
        for statement in [
            "CREATE DATABASE shop",
            "USE shop",
            "CREATE TABLE entries (id INT UNSIGNED PRIMARY KEY, owner INT UNSIGNED NOT NULL, \
             value CHAR(64) NOT NULL) ENGINE=InnoDB",
        ] {
            conn.query_drop(statement).context("MariaDB did not create the table")?;
        }
        stream_rows(&mut conn, entries)?;
        {
            let _phase = Phase::waiting("index the database");
            conn.query_drop("CREATE INDEX by_owner ON entries (owner)")
                .context("MariaDB did not create the index")?;
        }
        conn.query_drop(format!("SET GLOBAL innodb_buffer_pool_size = {pool_bytes}"))
            .context("MariaDB did not shrink its buffer pool")?;
        let sizes: Option<u64> = conn
            .query_first(
                "SELECT SUM(file_size) FROM information_schema.innodb_sys_tablespaces \
                 WHERE name = 'shop/entries'",
            )
            .context("MariaDB does not report the size of the table")?;
        interrupt::check()?;
        sizes.context("MariaDB has no such table")
    }

    /// Opens a connection that queries owners' entries.
    ///
    /// # Errors
    /// When MariaDB refuses.
    pub(super) fn session(&self) -> Result<Session> {
        let mut conn = self.connect()?;
        conn.query_drop("USE shop").context("MariaDB does not find its database")?;
        let statement = conn
            .prep("SELECT value FROM entries FORCE INDEX (by_owner) WHERE owner = ? ORDER BY id")
            .context("MariaDB did not prepare the query")?;
        Ok(Session { conn, statement })
    }

    /// Checks that the server still runs.
    ///
    /// # Errors
    /// When it has ended; the message quotes its log.
    pub(super) fn ensure_alive(&mut self) -> Result<()> {
        self.guard.ensure_alive()
    }

    fn connect(&self) -> Result<Conn> {
        let options = OptsBuilder::new()
            .socket(self.socket.to_str())
            .user(Some("root"))
            .read_timeout(Some(SILENCE))
            .write_timeout(Some(SILENCE));
        Conn::new(options).context("cannot connect to MariaDB")
    }
}

/// A connection for queries.
#[derive(Debug)]
pub(super) struct Session {
    conn: Conn,
    statement: Statement,
}

impl Session {
    /// Returns all entries of `owner`, one after the other.
    ///
    /// # Errors
    /// When MariaDB fails.
    pub(super) fn answer(&mut self, owner: u64) -> Result<Vec<u8>> {
        let mut answer = Vec::with_capacity(ANSWER_BYTES);
        let rows = self.conn.exec_iter(&self.statement, (owner,)).context("a query failed")?;
        for row in rows {
            let value: Option<Vec<u8>> = row.context("a query was cut off")?.take(0);
            answer.extend_from_slice(&value.context("an entry has no value")?);
        }
        Ok(answer)
    }
}

fn of(option: &str, path: &Path) -> String {
    format!("{option}={}", path.display())
}

fn stream_rows(conn: &mut Conn, entries: Entries) -> Result<()> {
    let phase = Phase::new("load the database", entries.rows());
    let mut reported = 0;
    conn.set_local_infile_handler(Some(LocalInfileHandler::new(move |_, out| {
        let mut out = std::io::BufWriter::with_capacity(1 << 20, out);
        entries.write_rows(&mut out, |number| {
            phase.advance(number - reported);
            reported = number;
            interrupt::check().map_err(std::io::Error::other)
        })
    })));
    let loaded = conn.query_drop("LOAD DATA LOCAL INFILE 'entries' INTO TABLE entries");
    conn.set_local_infile_handler(None);
    interrupt::check()?;
    loaded.context("MariaDB did not load the entries")
}
