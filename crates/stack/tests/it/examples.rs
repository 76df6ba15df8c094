//! What a stranger copies compiles with this crate, and with public crates that it names. And it works.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::{Stack, StackConfig, TcpListener, TcpStream};

#[path = "../../examples/http_hello.rs"]
#[expect(dead_code, reason = "a program of its own")]
mod http_hello;

/// Lines of the examples, the guide, and the documents of the crate's page and of paced senders.
fn copied() -> Vec<String> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = |path: &Path| fs::read_to_string(path).unwrap();
    let examples = fs::read_dir(home.join("examples")).unwrap();
    let examples = examples.map(|one| text(&one.unwrap().path()));
    let whole = examples.chain([text(&home.join("../../docs/stack.md"))]);
    let documents = ["src/lib.rs", "src/socket/paced.rs"].map(|one| text(&home.join(one)));
    let of_documents = documents.iter().flat_map(|text| text.lines());
    let of_documents = of_documents.filter(|line| line.starts_with("//"));
    let whole: Vec<_> = whole.collect();
    let all = whole
        .iter()
        .flat_map(|text| text.lines())
        .chain(of_documents);
    all.map(ToOwned::to_owned).collect()
}

/// The paced ones took their rates from `plimsoll_core`, which is no dependency of who has added this crate.
#[test]
fn examples_take_nothing_of_crates_below_this_one() {
    let lines = copied();
    let uses = |name: &str| {
        let uses = lines.iter().filter(|line| line.contains(name));
        uses.cloned().collect::<Vec<_>>()
    };
    let ours = uses("use plimsoll_stack");
    assert!(ours.len() > 10, "{ours:?}");
    let all = uses("use plimsoll_");
    assert_eq!(all, ours);
}

/// What it had not read made the end a reset, by which the client lost the answer.
#[test]
fn a_client_that_asks_at_length_is_greeted() {
    let (one, other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let start = |device, at: &str| Stack::start(device, &StackConfig::at(at.parse().unwrap()));
    let ours = start(one, "10.0.0.2/24").unwrap();
    let theirs = start(other, "10.0.0.1/24").unwrap();
    let listener = TcpListener::bind(&ours, "10.0.0.2:80").unwrap();
    let mut client = TcpStream::connect(&theirs, "10.0.0.2:80").unwrap();
    let (server, _) = listener.accept().unwrap();
    let request = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(9000));
    client.write_all(request.as_bytes()).unwrap();
    while server.peek(&mut [0; 10_000]).unwrap() < request.len() {
        thread::sleep(Duration::from_millis(1));
    }
    let answering = thread::spawn(move || http_hello::greet(server));
    let mut told = String::new();
    client.read_to_string(&mut told).unwrap();
    assert!(told.ends_with("hello\n"), "{told}");
    drop(client);
    answering.join().unwrap().unwrap();
}
