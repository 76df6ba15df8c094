//! The examples end, and without an error.

#[path = "../../examples/epoll_loop.rs"]
pub(crate) mod epoll_loop;
#[path = "../../examples/pacer.rs"]
mod pacer;
#[path = "../../examples/plain_loop.rs"]
mod plain_loop;
#[path = "../../examples/tokio_sleep.rs"]
mod tokio_sleep;

#[test]
fn plain_loop() {
    plain_loop::main().unwrap();
}

#[test]
fn epoll_loop() {
    epoll_loop::main().unwrap();
}

#[test]
fn tokio_sleep() {
    tokio_sleep::main().unwrap();
}

#[test]
fn pacer() {
    pacer::main().unwrap();
}
