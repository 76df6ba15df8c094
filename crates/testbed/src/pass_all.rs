//! A program that passes every frame, for an end of the link.
//!
//! veth hands on what a program sends back by `XDP_TX` only if the other end runs
//! a program too; an adapter has no such rule. Attach this to the load host where
//! the test host's protection answers from XDP.
//!
//! Limits: with it, veth copies what ordinary sockets send to that end, and the
//! sender's CPU polls it (see [`crate::placement`]): use it for all sides of a
//! comparison, or for none.

use std::fmt;
use std::mem::MaybeUninit;

use libbpf_rs::Link;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

use crate::{Error, Host};

include!(concat!(env!("OUT_DIR"), "/pass_all.rs")); // mod skeleton

/// The program in place. Dropping it detaches it.
pub struct PassAll {
    _link: Link,
}

impl fmt::Debug for PassAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PassAll").finish_non_exhaustive()
    }
}

impl PassAll {
    /// Attaches it to the host's end of the link.
    ///
    /// # Errors
    ///
    /// The kernel refuses the program, or another one is attached.
    pub fn attach(host: &Host) -> Result<Self, Error> {
        let link = host.run(|| attach(host.ifindex()))?;
        let link = link.map_err(|error| Error::MissingKernelFeature {
            feature: "XDP on veth",
            detail: error.to_string(),
        })?;
        Ok(Self { _link: link })
    }
}

fn attach(ifindex: u32) -> libbpf_rs::Result<Link> {
    let mut place = MaybeUninit::uninit();
    let open = skeleton::PassAllSkelBuilder::default().open(&mut place)?;
    let program = open.load()?;
    program.progs.pass_all.attach_xdp(ifindex.cast_signed())
}
