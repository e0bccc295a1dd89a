//! The screen, drawn into memory.

use super::*;
use anyhow::anyhow;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use venice_control::{EventKind, EventRow, GrantRow, NodeRow, ResourceKind};

fn node(name: &str, state: &str) -> NodeRow {
    NodeRow {
        name: name.into(),
        node_id: 1,
        pid: None,
        state: state.into(),
        lent_bytes: 64 << 20,
        free_bytes: 48 << 20,
        granted_bytes: 16 << 20,
        epoch: 1,
        control_addr: String::new(),
        udp_addr: String::new(),
        shm_socket: String::new(),
        last_heartbeat_ms: Some(500),
        protection: "sealed".into(),
        replayed: 0,
        forged: 0,
        unsealed: 0,
        unknown_key: 0,
        xdp_received: None,
        xdp_sent: None,
        xdp_lost: None,
        topology: String::new(),
        position: None,
        relay_addr: String::new(),
        link: String::new(),
        role: "peer".into(),
        pressure: "none".into(),
        available_bytes: None,
        stall_ratio: None,
        draining: false,
        certificate_expires_s: None,
        refused: 0,
    }
}

fn grant(id: u64, owner: &str, bytes: u64, age_s: f64) -> GrantRow {
    GrantRow {
        id,
        donor: "node1".into(),
        donor_epoch: 1,
        owner_user: owner.into(),
        owner_node: "h".into(),
        recipient: "h/1".into(),
        home: String::new(),
        hops: None,
        kind: ResourceKind::Memory,
        address: String::new(),
        bytes,
        bandwidth_bps: 0,
        state: "committed".into(),
        lease_s: 10.0,
        age_s,
        purpose: "job".into(),
        priority: 100,
        preempted_in_s: None,
        ownership: 1,
        busy_ratio: None,
        in_bytes: None,
        out_bytes: None,
        commands: None,
    }
}

fn screen() -> Screen {
    let mut screen = Screen::new("m:1");
    let lost = EventRow { node: "node2".into(), ..EventRow::of(EventKind::NodeDown) };
    screen.take(Ok(Snapshot {
        monitor: "m:1".into(),
        nodes: vec![node("node1", "up"), node("node2", "down")],
        grants: vec![grant(1, "ada", 16 << 20, 9.0), grant(2, "bob", 32 << 20, 5.0)],
        events: [lost].into(),
        ..Snapshot::default()
    }));
    screen
}

/// Draws the screen, and returns its lines.
fn drawn(screen: &Screen, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.render(frame)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_owned()).collect()
}

fn key(code: KeyCode) -> Event {
    Event::Key(KeyEvent::new(code, KeyModifiers::NONE))
}

#[test]
fn frame_has_all_sections() {
    let lines = drawn(&screen(), 120, 30);
    let text = lines.join("\n");
    for part in ["1 up of 2", "NODES", "GRANTS, by size", "EVENTS", "node-down", "q quit"] {
        assert!(text.contains(part), "no {part}:\n{text}");
    }
    assert!(!text.contains("QUEUE") && !text.contains("PROGRAMS"), "{text}");
    let (bob, ada) = (text.find("bob@h").unwrap(), text.find("ada@h").unwrap());
    assert!(bob < ada, "the larger first:\n{text}");
    // A terminal of any size.
    for (width, height) in [(1, 1), (20, 5), (300, 200)] {
        drawn(&screen(), width, height);
    }
}

#[test]
fn narrow_screen_shows_whole_columns() {
    let wide = drawn(&screen(), 140, 30).join("\n");
    assert!(!wide.contains("more columns"), "{wide}");
    for width in 40..140 {
        let lines = drawn(&screen(), width, 30);
        let text = lines.join("\n");
        let head = |title: &str| -> Vec<String> {
            let at = lines.iter().position(|line| line.starts_with(title)).unwrap();
            lines[at + 1].split_whitespace().map(str::to_owned).collect()
        };
        let (nodes, grants) = (head("NODES"), head("GRANTS"));
        assert!(nodes.starts_with(&["NAME".to_owned(), "STATE".to_owned()]), "{text}");
        assert_eq!((&*grants[0], &*grants[grants.len() - 1]), ("ID", "PURPOSE"), "{text}");
        // No head of the full table is cut.
        let all = wide.split_whitespace().collect::<Vec<_>>();
        assert!(nodes.iter().chain(&grants).all(|it| all.contains(&&**it)), "{text}");
    }
}

#[test]
fn keys_change_the_view() {
    let mut screen = screen();
    assert_eq!(screen.press(key(KeyCode::Char('s'))), Outcome::Go);
    assert!(drawn(&screen, 120, 30).join("\n").contains("GRANTS, by age"));
    screen.press(key(KeyCode::Down));
    let text = drawn(&screen, 120, 30).join("\n");
    assert!(text.contains("ada@h") && !text.contains("bob@h"), "scrolled:\n{text}");
    screen.press(key(KeyCode::PageDown));
    assert_eq!(screen.view.skip, 1, "the last one stays");
    screen.press(key(KeyCode::Char('p')));
    assert!(screen.view.is_paused && drawn(&screen, 80, 20).join("\n").contains("paused"));
    screen.press(key(KeyCode::Char('h')));
    assert!(drawn(&screen, 120, 30).join("\n").contains("this help"));
    assert_eq!(screen.press(key(KeyCode::Esc)), Outcome::Go, "it closes the help");
    assert_eq!(screen.press(key(KeyCode::Char('q'))), Outcome::Quit);
    let ctrl_c = Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    assert_eq!(screen.press(ctrl_c), Outcome::Quit);
}

#[test]
fn error_keeps_last_tables() {
    let mut screen = screen();
    screen.take(Err(anyhow!("no Monitor Node answers at \u{1b}[2J")));
    let text = drawn(&screen, 120, 30).join("\n");
    assert!(
        text.contains("no Monitor Node answers at \\u{1b}") && text.contains("node1"),
        "{text}"
    );
}
