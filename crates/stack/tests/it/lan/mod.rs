//! A link between the stack and the kernel, in network namespaces that end with
//! the test.

use std::env;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_kernel::{link, namespace};
use plimsoll_stack::device::xdp::{XdpConfig, XdpInterface};
use plimsoll_stack::{Stack, StackConfig};

/// No test waits longer for what must come.
pub(crate) const SOON: Duration = Duration::from_secs(10);

pub(crate) fn config(path: &str) -> StackConfig {
    StackConfig {
        addresses: ["10.0.0.2/24", "fd00::2/64"]
            .map(|net| net.parse().unwrap())
            .to_vec(),
        path: path.parse().unwrap(),
        ..StackConfig::default()
    }
}

/// Addresses of the stack's own.
pub(crate) fn owned() -> XdpConfig {
    XdpConfig {
        owned: ["10.0.0.2", "fd00::2"]
            .map(|address| address.parse().unwrap())
            .to_vec(),
        ..XdpConfig::default()
    }
}

pub(crate) fn xdp(config: &XdpConfig) -> XdpInterface {
    XdpInterface::open("stack0", config).unwrap()
}

/// Bytes that tell where they belong.
pub(crate) fn content(length: usize) -> Vec<u8> {
    (0..length as u32)
        .map(|k| (k.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

pub(crate) fn transfer(from: &mut (impl Write + Send), to: &mut impl Read, sent: &[u8]) {
    thread::scope(|scope| {
        scope.spawn(|| from.write_all(sent).unwrap());
        let mut received = vec![0; sent.len()];
        to.read_exact(&mut received).unwrap();
        assert!(received == sent, "damaged on the way");
    });
}

/// Runs `test` in a network namespace of its own.
pub(crate) fn in_namespace(test: impl FnOnce() + Send) {
    namespace::in_new(|| {
        run("ip link set lo up");
        test();
    })
    .expect("these tests make network namespaces: run them as root");
}

/// A veth pair: the kernel has one end, the stack is to take the other.
pub(crate) struct Lan;

impl Lan {
    /// `kernel0` with the kernel's addresses and `stack0` with none, in one
    /// namespace.
    pub(crate) fn create(test: impl FnOnce() + Send) {
        in_namespace(|| {
            run("ip link add kernel0 type veth peer name stack0");
            set_up_kernel_side("kernel0");
            set_up_stack_side();
            link::wait_until_sending("kernel0").unwrap();
            test();
        });
    }

    /// `stack0` with 10.0.0.2 and `fd00::2` of the kernel's; the other end in a namespace
    /// that `test` is given.
    pub(crate) fn create_apart(test: impl FnOnce(&Far) + Send) {
        let far = Far::create();
        in_namespace(|| {
            run(&format!(
                "ip link add stack0 type veth peer name kernel0 netns {}",
                far.name
            ));
            far.run(|| {
                run("ip link set lo up");
                set_up_kernel_side("kernel0");
            });
            set_up_stack_side();
            far.run(|| link::wait_until_sending("kernel0").unwrap());
            run("ip addr add 10.0.0.2/24 dev stack0");
            run("ip addr add fd00::2/64 dev stack0 nodad");
            test(&far);
        });
    }
}

/// The namespace of the other end.
pub(crate) struct Far {
    name: String,
    namespace: File,
}

impl Far {
    /// For `ip link … netns`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn create() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("plimsoll-stack-{}-{number}", process::id());
        let namespace = namespace::create(&name).expect("run as root");
        Self { name, namespace }
    }

    /// Runs `work` on a thread in there.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            namespace::enter(&self.namespace).unwrap();
            work()
        };
        let done = thread::scope(|scope| scope.spawn(inside).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = namespace::delete(&self.name);
    }
}

/// The kernel's addresses, and no checksums left to hardware that is not there.
pub(crate) fn set_up_kernel_side(device: &str) {
    run(&format!("ip addr add 10.0.0.1/24 dev {device}"));
    run(&format!("ip addr add fd00::1/64 dev {device} nodad"));
    run(&format!("ip link set {device} up"));
    link::wait_until_local("fd00::1".parse().unwrap()).unwrap();
    run(&format!("ethtool -K {device} tx off"));
}

/// `host` in network `number`, with gateways there.
pub(crate) fn set_up_host(number: u8) {
    run(&format!("ip addr add 10.0.{number}.1/24 dev host"));
    run(&format!("ip addr add fd0{number}::1/64 dev host nodad"));
    run("ip link set host up");
    run(&format!("ip route add default via 10.0.{number}.2"));
    run(&format!("ip route add default via fd0{number}::2"));
    link::wait_until_local(format!("fd0{number}::1").parse().unwrap()).unwrap();
    run("ethtool -K host tx off");
}

/// The stack's end, after the kernel's.
pub(crate) fn set_up_stack_side() {
    run("ip link set stack0 addrgenmode none");
    run("ip link set stack0 up");
    run("ethtool -K stack0 tx off");
}

/// Runs a command that must succeed.
pub(crate) fn run(command: &str) {
    let mut words = command.split_whitespace();
    let program = words.next().expect("a command");
    let output = Command::new(program).args(words).output();
    let output = output.unwrap_or_else(|error| panic!("{command}: {error}"));
    assert!(output.status.success(), "{command}: {output:?}");
}

/// Threads of this process with that name, of stacks that were started in this network namespace: others are
/// other tests'.
pub(crate) fn threads(name: &str) -> Vec<i32> {
    let namespace = fs::read_link("/proc/thread-self/ns/net").unwrap();
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let tasks = tasks.filter_map(|task| {
        // Other tests' threads may end meanwhile.
        let task = task.ok()?.path();
        let is_named = fs::read_to_string(task.join("comm")).ok()?.trim() == name;
        let is_here = fs::read_link(task.join("ns/net")).ok()? == namespace;
        (is_named && is_here).then(|| task.file_name()?.to_str()?.parse().ok())?
    });
    tasks.collect()
}

/// Runs the test of that name in a process of its own: this program once more. It then comes here again.
pub(crate) fn alone(name: &str, test: impl FnOnce()) {
    const ALONE: &str = "PLIMSOLL_STACK_TEST_ALONE";
    if env::var_os(ALONE).is_some() {
        return test();
    }
    let mut again = Command::new(env::current_exe().unwrap());
    let again = again.args([name, "--exact"]).env(ALONE, "1").output();
    let again = again.unwrap();
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success(), "{said}");
    assert!(said.contains("1 passed"), "no test is called {name}");
}

/// Waits until nothing is under way, then every frame has one outcome.
pub(crate) fn assert_sums(stack: &Stack) {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let counts = stack.counts();
        let accounted = counts.ended() + counts.queued + counts.incomplete;
        if counts.received == accounted {
            return;
        }
        assert!(Instant::now() < end, "{counts:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `test` on this thread without any capability.
pub(crate) fn without_capabilities(test: impl FnOnce()) {
    let none = std::collections::HashSet::new();
    caps::set(None, caps::CapSet::Effective, &none).unwrap();
    test();
    let all = caps::read(None, caps::CapSet::Permitted).unwrap();
    caps::set(None, caps::CapSet::Effective, &all).unwrap();
}
