//! A host that takes what it is sent and does nothing with it: it stands for machines
//! behind a router. Its own stack would drop what no socket waits for, and who traces
//! drops on one host of a kernel sees those of all.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{TC_INGRESS, TcHookBuilder};
use plimsoll_kernel::error::bpf;

use crate::{Error, Host};

include!(concat!(env!("OUT_DIR"), "/consume.rs")); // mod skeleton

/// Of the filter: any will do, there is no other.
const HANDLE: u32 = 1;
const PRIORITY: u32 = 1;

impl Host {
    /// Takes the IPv4 packets that arrive from now on, after the interface has counted
    /// them. ARP and IPv6 go on to the stack. It ends with the host.
    ///
    /// # Errors
    ///
    /// The kernel refuses the program.
    pub fn consume_ipv4(&self) -> Result<(), Error> {
        Ok(self.run(|| attach(self.ifindex()))??)
    }
}

/// Attaches the program in the calling thread's namespace.
fn attach(ifindex: u32) -> Result<(), plimsoll_kernel::Error> {
    let mut place = MaybeUninit::uninit();
    let open = skeleton::ConsumeSkelBuilder::default().open(&mut place);
    let skeleton = open.and_then(OpenSkel::load);
    let skeleton = skeleton.map_err(bpf("load the program that consumes"))?;
    // The filter keeps the program.
    TcHookBuilder::new(skeleton.progs.consume.as_fd())
        .ifindex(ifindex as i32)
        .handle(HANDLE)
        .priority(PRIORITY)
        .hook(TC_INGRESS)
        .create()
        .and_then(|mut hook| hook.attach())
        .map_err(bpf("attach the program that consumes"))?;
    Ok(())
}
