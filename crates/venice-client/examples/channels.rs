//! Two programs that talk over a channel: one counts the words of each message, the other asks.
//!
//! ```text
//! cargo run --release -p venice-client --example channels -- listen shm:/tmp/words.sock
//! cargo run --release -p venice-client --example channels -- ask shm:/tmp/words.sock "to be or not"
//! ```
//! Over udp both take a key, 64 hexadecimal digits, from `VENICE_CHANNEL_KEY`.

use std::process::ExitCode;
use std::time::Duration;

use venice_client::channel::{Address, Connection, Error, Kind, Listener, Options};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["listen", address] => listen(address),
        ["ask", address, text] => ask(address, text),
        _ => {
            eprintln!("channels: missing arguments: use listen ADDRESS, or ask ADDRESS TEXT");
            return ExitCode::from(2);
        }
    };
    // Each error is one line that names the remedy.
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("channels: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options() -> Result<Options, Error> {
    let mut options = Options::default();
    if let Ok(key) = std::env::var("VENICE_CHANNEL_KEY") {
        options.key = Some(key.parse()?);
    }
    Ok(options)
}

/// Answers one program after the other, until killed.
fn listen(address: &str) -> Result<(), Error> {
    let listener = Listener::bind(&address.parse()?, Kind::Messages, &options()?)?;
    println!("listening at {}", listener.address());
    loop {
        let theirs = listener.accept(None)?;
        match answer(&theirs) {
            // The program that asked is gone: the next one may come.
            Ok(()) | Err(Error::Lost(_) | Error::Closed) => {}
            Err(error) => return Err(error),
        }
    }
}

fn answer(theirs: &Connection) -> Result<(), Error> {
    while let Some(text) = theirs.recv_vec()? {
        let words = String::from_utf8_lossy(&text).split_whitespace().count();
        theirs.send(words.to_string().as_bytes())?;
    }
    Ok(())
}

fn ask(address: &str, text: &str) -> Result<(), Error> {
    let address: Address = address.parse()?;
    let ours = Connection::connect(&address, Kind::Messages, &options()?)?;
    ours.set_timeout(Some(Duration::from_secs(10)));
    ours.send(text.as_bytes())?;
    let answer = ours.recv_vec()?.ok_or(Error::Closed)?;
    println!("{} words", String::from_utf8_lossy(&answer));
    Ok(())
}
